"""Whether a case can run here: whether it fits the memory, and ends in time."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from pomology import format
from pomology.errors import PomologyError, TooBig, TooSlow, Unsupported
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

# On a processor tensors are in the C library's heap, with holes between them: glibc gives one a
# mapping of its own only if it is larger than all that were freed before, or than 32 MB. The memory
# of `memory_torch` grew to 1.22 times the sum of its tensors; where glibc had to map each of them
# by itself, to 1.00 times.
HOLES = 1.25


def require_memory(device: Device, workload: Workload) -> None:
    """Raise TooBig if the device's memory has too little free for a step.

    Also if the host's has, for what is offloaded to it.
    """
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
    """Raise TooSlow if so many steps of so many operations surely cannot end in `limit_s`.

    Surely: at the best rate of a matrix product on this device in this precision.
    """
    rate = peak_matmul_rate(case.experiment, case.backend, precision)
    if steps * flops / rate <= limit_s:
        return
    reason = (
        f"a step of {flops / 1e12:,.4g} TFLOP would take {format.seconds(flops / rate)} at the "
        f"least, at {rate / 1e9:,.4g} GFLOP/s, the most that a product in {precision} reaches "
        f"here; {steps} steps must end within {format.seconds(limit_s)}"
    )
    if precision != case.precision:
        reason += "; in every precision the same model is trained"
    raise TooSlow(reason)


def require_tf32(device: Device) -> str:
    """Return a note that fp32 is TF32 here; raise Unsupported where it is true fp32 anyway."""
    if not device.tf32:
        raise Unsupported(f"{device.title} computes fp32 as fp32 on this device: there is no other way")
    return f"fp32 as {device.title} ships it, which here is TF32"


def peak_matmul_rate(experiment: Experiment, device: Device, precision: str) -> float:
    """Return the most FLOP/s that an operator reaches on a device.

    It is this run's ceiling with the same framework. Where there is none, or a doubtful one,
    products are timed.
    """
    records = [record for record in experiment.run.records if record.framework == experiment.framework]
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


def memory_budget(case: Case, share: float = 0.9, most_bytes: float = math.inf) -> int:
    """Return the bytes that a case may plan for that is to come near the limit of the memory.

    They are `share` of what is free, less 10 % of it or 1.5 GB at the least; on a processor also
    less the `HOLES` between tensors. Where that exceeds `most_bytes`, it is those, and the case is
    `scaled`; a note says which. Raises PomologyError for a wrong share, and TooBig if nothing can
    be spared.
    """
    if not 0 < share <= 1:
        raise PomologyError(f"near is {share!r}; it must be a share of the free memory, above 0 and at most 1")
    free = case.backend.free_memory()
    cpu = case.backend.kind == "cpu"
    budget = min(share * free, free - max(SPARED_BYTES, SPARED_SHARE * free))
    if cpu:
        budget /= HOLES
    if budget <= 0:
        spared = f"{SPARED_BYTES / 1e9:.1f} GB must stay so"
        raise TooBig(f"{free / 1e9:.1f} GB are free, of which {spared}")
    planned = min(budget, most_bytes)
    amount = f"{planned / 1e9:.3g} GB of {free / 1e9:.3g} GB that were free"
    if budget > most_bytes:
        case.scaled = True
        case.note(f"not near the limit: held at {amount}")
    elif cpu:
        holes = f"holes between tensors may take {100 * (HOLES - 1):.0f} % more"
        case.note(f"planned for {amount}: {holes}")
    else:
        case.note(f"planned for {amount}")
    return int(planned)


def fill(
    case: Case,
    bytes_of: Callable[[int], int],
    what: str,
    share: float = 0.9,
    most_bytes: float = math.inf,
) -> int:
    """Return how many clips, or parts of a batch, fill the memory, see `memory_budget`.

    bytes_of: the bytes of a step of one, and of two, from which those of more follow. what: one of
    them, in words. Raises TooBig if one is too many.
    """
    budget = memory_budget(case, share, most_bytes)
    first = bytes_of(1)
    if first > budget:
        needed = format.quantity(first, "B")
        planned = format.quantity(budget, "B")
        raise TooBig(f"one {what} needs at least {needed}; {planned} may be filled")
    return 1 + (budget - first) // (bytes_of(2) - first)
