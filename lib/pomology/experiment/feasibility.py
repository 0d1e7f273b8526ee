"""Whether a case fits the memory and the time that this machine has."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from pomology import format
from pomology.errors import PomologyError, TooBig
from pomology.machine import snapshot
from pomology.workloads.cost import Workload

if TYPE_CHECKING:
    from pomology.devices.base import Device

SPARED_BYTES, SPARED_SHARE = 1.5e9, 0.1  # of the free memory, that a case near the limit leaves to the machine

# On a processor tensors lie in the C library's heap, with holes between them: glibc gives one a mapping of its own only
# if it is larger than all that were freed before, or than 32 MB. The memory of `memory_torch` grew to 1.22 times the
# sum of its tensors; where glibc was told to map each of them by itself, to 1.00 times.
HOLES = 1.25


class Budget(NamedTuple):
    """Bytes that a case may plan for, whether that makes it smaller than asked for, and a note that says why."""

    bytes: int
    scaled: bool
    note: str


def require_memory(workload: Workload, device: Device) -> None:
    """Raise TooBig if a step surely does not fit the free memory of the device, or of the host what is offloaded."""
    free = device.free_memory()
    if workload.bytes > free:
        raise TooBig(
            f"needs {workload.bytes / 1e9:.1f} GB at the least (weights, gradients and optimiser "
            f"{workload.state_bytes / 1e9:.1f}, kept for the backward pass {workload.saved_bytes / 1e9:.1f}); "
            f"{free / 1e9:.1f} GB are free"
        )
    if workload.host_bytes:
        # A GPU with a memory of its own takes nothing of the host's.
        needed = workload.host_bytes + (workload.bytes if device.unified_memory else 0)
        available = snapshot.available_memory_bytes()
        if needed > available:
            raise TooBig(
                f"needs {needed / 1e9:.1f} GB of the host's memory at the least, for what is offloaded to it; "
                f"{available / 1e9:.1f} GB are free"
            )


def require_time(flops: int, rate: float, precision: str, limit_s: float, steps: int) -> None:
    """Raise TooBig if so many steps of `flops` operations cannot end in `limit_s` at `rate`, the most FLOP/s here."""
    least_s = flops / rate
    if steps * least_s > limit_s:
        raise TooBig(
            f"a step of {flops / 1e12:,.4g} TFLOP would take {format.seconds(least_s)} at the least, at "
            f"{rate / 1e9:,.4g} GFLOP/s, the most that a product in {precision} reaches here; {steps} steps must end "
            f"within {format.seconds(limit_s)}"
        )


def memory_budget(device: Device, share: float = 0.9, most_bytes: float = math.inf) -> Budget:
    """What a case near the limit of the memory may plan for; see `Case.memory_budget`."""
    if not 0 < share <= 1:
        raise PomologyError(f"near is {share!r}; it must be a share of the free memory, above 0 and at most 1")
    free = device.free_memory()
    cpu = device.kind == "cpu"
    room = min(share * free, free - max(SPARED_BYTES, SPARED_SHARE * free)) / (HOLES if cpu else 1)
    if room <= 0:
        raise TooBig(f"{free / 1e9:.1f} GB are free, of which {SPARED_BYTES / 1e9:.1f} GB must stay so")
    if room > most_bytes:
        note = f"not near the limit: held at {most_bytes / 1e9:.3g} GB of {free / 1e9:.3g} GB that were free"
        return Budget(int(most_bytes), True, note)
    holes = f": holes between tensors may take {100 * (HOLES - 1):.0f} % more" if cpu else ""
    return Budget(int(room), False, f"planned for {room / 1e9:.3g} GB of {free / 1e9:.3g} GB that were free{holes}")
