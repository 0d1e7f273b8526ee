"""Whether a case fits the memory and the time that this machine has."""

from __future__ import annotations

SPARED_BYTES, SPARED_SHARE = 1.5e9, 0.1  # of the free memory, that a case near the limit leaves to the machine

# On a processor tensors lie in the C library's heap, with holes between them: glibc gives one a mapping of its own only
# if it is larger than all that were freed before, or than 32 MB. The memory of `memory_torch` grew to 1.22 times the
# sum of its tensors; where glibc was told to map each of them by itself, to 1.00 times.
HOLES = 1.25
