"""Whether a case can run here: whether it fits the memory, and ends in time."""

import functools

from pomology.devices.base import Device
from pomology.errors import TooBig
from pomology.machine import snapshot
from pomology.measure import calls
from pomology.models.cost import Workload


def require_memory(device: Device, workload: Workload) -> None:
    """Raise TooBig if too little memory is free for a step: the device's, or the host's."""
    parts = (
        f"weights, gradients and optimiser {workload.state_bytes / 1e9:.1f}, "
        f"kept for the backward pass {workload.saved_bytes / 1e9:.1f}"
    )
    require_bytes(workload.bytes, device.free_memory(), f"GB at the least ({parts})")
    if workload.host_bytes:
        # A GPU with a memory of its own takes nothing of the host's.
        needed = workload.host_bytes + (workload.bytes if device.unified_memory else 0)
        free = snapshot.available_memory_bytes()
        require_bytes(needed, free, "GB of the host's memory at the least")


def require_bytes(needed: float, free: float, what: str = "GB") -> None:
    """Raise TooBig if less memory is free."""
    if needed > free:
        raise TooBig(f"needs {needed / 1e9:.1f} {what}; {free / 1e9:.1f} GB are free")


@functools.cache
def peak_matmul_rate(device: Device, precision: str) -> float:
    """Return the most FLOP/s of products of 512 to 4096 squared, timed once in this process."""
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
