"""Whether a case can run here: whether it fits the memory, and ends in time."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from pomology import format
from pomology.errors import PomologyError, TooBig, TooSlow
from pomology.machine import snapshot
from pomology.measure import calls
from pomology.models.cost import Workload
from pomology.report import peaks
from pomology.results.cases import DOUBTS

if TYPE_CHECKING:
    from pomology.devices.base import Device
    from pomology.experiment.case import Case
    from pomology.experiment.experiment import Experiment

SPARED_BYTES = 1.5e9  # of the free memory, that a case near the limit leaves to the machine
SPARED_SHARE = 0.1
HOLES = 1.25  # times its tensors, that a process takes on a CPU, with holes in the C library's heap


def require_memory(device: Device, workload: Workload) -> None:
    """Raise TooBig if too little memory is free for a step: the device's, or the host's."""
    free = device.free_memory()
    if workload.bytes > free:
        raise TooBig(
            f"needs {workload.bytes / 1e9:.1f} GB at the least (weights, gradients and optimiser "
            f"{workload.state_bytes / 1e9:.1f}, kept for the backward pass "
            f"{workload.saved_bytes / 1e9:.1f}); {free / 1e9:.1f} GB are free"
        )
    if not workload.host_bytes:
        return
    # A GPU with a memory of its own takes nothing of the host's.
    needed = workload.host_bytes + (workload.bytes if device.unified_memory else 0)
    available = snapshot.available_memory_bytes()
    if needed > available:
        raise TooBig(
            f"needs {needed / 1e9:.1f} GB of the host's memory at the least, for what is offloaded "
            f"to it; {available / 1e9:.1f} GB are free"
        )


def require_time(case: Case, flops: float, limit_s: float, steps: int, precision: str) -> None:
    """Raise TooSlow if so many steps cannot end in `limit_s` at the best rate of this device."""
    rate = peak_matmul_rate(case.experiment, case.backend, precision)
    if steps * flops / rate > limit_s:
        raise TooSlow(
            f"a step of {flops / 1e12:,.4g} TFLOP would take {format.seconds(flops / rate)} at the "
            f"least, at {rate / 1e9:,.4g} GFLOP/s, the most that a product in {precision} reaches "
            f"here; {steps} steps must end within {format.seconds(limit_s)}"
        )


def peak_matmul_rate(experiment: Experiment, device: Device, precision: str) -> float:
    """Return the most FLOP/s that an operator reaches on a device.

    It is this run's ceiling with the same framework. Where there is none, or a doubtful one,
    products are timed.
    """
    records = [
        record for record in experiment.run.records if record.framework == experiment.framework
    ]
    ceiling = peaks.peaks(records).rates.get((device.kind, precision))
    if ceiling and DOUBTS.isdisjoint(ceiling.record.flags):
        return ceiling.value
    timed = _timed_matmul_rate(device, precision)
    return max(ceiling.value, timed) if ceiling else timed


@functools.cache
def _timed_matmul_rate(device: Device, precision: str) -> float:
    """Time products of 512 to 4096 squared once in this process, as long as they are short."""
    best = 0.0
    for size in (512, 1024, 2048, 4096):
        function = device.dispatch(device.product(precision, size))
        options = {"budget_s": 0.1, "warmup_s": 0.02, "warmup_calls": 1}
        timed = calls.measure(function, device.synchronize, **options)
        fastest_s = min(block.step_s for block in timed.blocks)
        best = max(best, 2 * size**3 / fastest_s)
        if fastest_s > 0.02:  # the next takes eight times as long
            break
    return best


def fill(
    case: Case,
    bytes_of: Callable[[int], int],
    what: str,
    share: float = 0.9,
    most_bytes: float = math.inf,
) -> int:
    """Return how many clips, or parts of a batch, fill `share` of the free memory.

    At least 10 % of it or 1.5 GB stay free. bytes_of: the bytes of a step of one, and of two, from
    which those of more follow. what: one of them, in words. most_bytes: where the memory has room
    for more than that, it is the budget, and the case is `scaled`. Raises TooBig if not even one
    fits.
    """
    if not 0 < share <= 1:
        raise PomologyError(f"near is {share!r}; it must be a share of the memory, from 0 to 1")
    free = case.backend.free_memory()
    room = min(share * free, free - max(SPARED_BYTES, SPARED_SHARE * free))
    if case.backend.kind == "cpu":
        room /= HOLES
    budget = int(max(0, min(room, most_bytes)))
    if room > most_bytes:
        case.scaled = True
        case.note("not near the limit of the memory")
    amount = f"{budget / 1e9:.3g} GB of {free / 1e9:.3g} GB that were free"
    case.note(f"planned for {amount}")
    first = bytes_of(1)
    if first > budget:
        needed = format.quantity(first, "B")
        raise TooBig(f"one {what} needs at least {needed}; {amount} may be filled")
    return 1 + (budget - first) // (bytes_of(2) - first)
