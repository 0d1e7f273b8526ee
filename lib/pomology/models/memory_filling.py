"""Batch size that fills the memory of a device: a training near the limit."""

import math

from pomology import format
from pomology.errors import PomologyError, TooBig

# A case near the limit leaves the larger of these two parts of the free memory to the machine.
SPARED_BYTES = 1.5e9
SPARED_SHARE = 0.1
FRAGMENTATION = 1.25  # memory of a process on a CPU over the sum of its tensors: the heap fragments


def fill(case, bytes_of, what, share=0.9, most_bytes=math.inf):
    """Return the number of clips, or parts of a batch, that fill `share` of the free memory.

    At least 10 % of the free memory and 1.5 GB stay free. bytes_of: returns the bytes of a step
    with one and with two clips; more clips are extrapolated. what: the name of one clip or part.
    most_bytes: an upper bound; a case that it limits is `scaled`. Raises TooBig if not even one
    fits.
    """
    if not 0 < share <= 1:
        raise PomologyError(f"near is {share!r}; it must be a share of the memory, from 0 to 1")
    free = case.backend.free_memory()
    room = min(share * free, free - max(SPARED_BYTES, SPARED_SHARE * free))
    if case.backend.kind == "cpu":
        room /= FRAGMENTATION
    budget = int(max(0, min(room, most_bytes)))
    if room > most_bytes:
        case.scaled = True
        case.note("not near the limit of the memory")
    amount = f"{budget / 1e9:.3g} GB of {free / 1e9:.3g} GB of free memory"
    case.note(f"planned for {amount}")
    first = bytes_of(1)
    if first > budget:
        needed = format.quantity(first, "B")
        raise TooBig(f"one {what} needs at least {needed}; the limit is {amount}")
    return 1 + (budget - first) // (bytes_of(2) - first)
