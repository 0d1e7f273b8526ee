"""Calibration of this machine's speed: a matmul that is timed before and after each case.

It also shows slowdowns that no counter shows: a lower clock, or other guests of the same host.
"""

import functools
from typing import Any

# numpy and `measure.calls` are slow to import, so the functions import them.

CPU_SIDE = 160  # of a CPU's matrices, 100 KB each
GPU_SIDE = 1920  # of a GPU's matrices: 7 ms on an M1; no notebook times this size
# Share by which a calibration must take longer to show a slower machine. CPU: that of 38 of 1,069
# cases did on a virtual machine with two cores. GPU: as for `drift`, which no steady matmul had on
# a quiet CPU. Macs that slow down at nominal counters lose 15 % or more (report FB23754032).
SLOWER = {"cpu": 0.3, "gpu": 0.1}


def calibrate() -> float:
    """Return the median seconds of a matmul on one thread, from 20 ms of equal ones."""
    import numpy

    from pomology.measure import calls

    matrix = numpy.linspace(0.5, 1.5, CPU_SIDE**2, dtype="float32").reshape(CPU_SIDE, CPU_SIDE)
    # einsum runs numpy's own loop; the operator @ would call a BLAS, which starts threads.
    multiply = functools.partial(numpy.einsum, "ij,jk->ik", matrix, matrix)
    return calls.measure(multiply, budget_s=0.02, warmup_s=0.005).seconds.value


def calibrate_gpu(device: Any) -> float:
    """Return the seconds of a matmul in true fp32 on a `Device`, by its fastest block in 0.1 s."""
    from pomology.measure import calls

    options = {"budget_s": 0.06, "warmup_s": 0.02, "warmup_calls": 1}
    with device.context(strict=True):  # no TF32, whatever the last case has set
        multiply = device.dispatch(device.product("fp32", GPU_SIDE))
        timed = calls.measure(multiply, device.synchronize, **options)
    return min(block.step_s for block in timed.blocks)


def slower(kind: str, seconds: float, usual_s: float) -> str:
    """Return how much longer a calibration took than usual, such as `31 %`; "" within the noise.

    kind: of the calibrated device, `cpu` or `gpu`.
    """
    excess = seconds / usual_s - 1
    return f"{100 * excess:.0f} %" if excess > SLOWER[kind] else ""
