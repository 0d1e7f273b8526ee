"""CPU time of other programs during a measurement, and a calibration of this machine's speed."""

import contextlib
import functools
import os
import resource
import time
from pathlib import Path
from typing import Any

import psutil

from pomology.machine import memory

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")  # a container's quota
TICK_S = 0.01  # resolution of the counters of CPU time, on each core
RUNNER_S = 0.02  # CPU time that the runner itself may take to record a case
CALIBRATION_SIDE = 1920  # of a GPU's matrices: 7 ms on an M1; no notebook times this size
# Share by which a calibration must take longer to show a slower machine. CPU: that of 38 of 1,069
# cases did on a virtual machine with two cores. GPU: as for `drift`, which no steady matmul had on
# a quiet CPU. Macs that slow down at nominal counters lose 15 % or more (report FB23754032).
SLOWER = {"cpu": 0.3, "gpu": 0.1}


def usable_threads() -> int:
    """Return the number of threads that can run at once, by affinity and a container's quota."""
    on_linux = hasattr(os, "sched_getaffinity")
    allowed = len(os.sched_getaffinity(0)) if on_linux else os.cpu_count() or 1
    granted, _, period = (CPU_MAX.read_text() if CPU_MAX.is_file() else "max").partition(" ")
    cores = int(granted) // int(period) if granted.isdecimal() else allowed
    return max(1, min(allowed, cores))


def own_cpu_s() -> float:
    """Return the CPU seconds of this process and its children, running and ended ones."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = time.process_time() + ended.ru_utime + ended.ru_stime
    for pid in memory.live_children():
        with contextlib.suppress(psutil.NoSuchProcess):
            used_s += sum(psutil.Process(pid).cpu_times()[:4])
    return used_s


def asleep_s() -> float:
    """Return the seconds that this machine has slept, which `time.monotonic` does not count."""
    names = ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC")
    if hasattr(time, "CLOCK_UPTIME_RAW"):  # macOS
        names = ("CLOCK_MONOTONIC_RAW", "CLOCK_UPTIME_RAW")
    always_s, awake_s = (time.clock_gettime(getattr(time, name)) for name in names)
    return always_s - awake_s


def contended(wall_s: float, busy_s: float, used_s: float) -> bool:
    """Return whether other programs used over 0.1 core, 2.5 % of all cores, and 20 ms or 0.2 core.

    busy_s: CPU seconds of all processes. used_s: CPU seconds of this process and its children.
    """
    cores = psutil.cpu_count() or 1
    wall_s = max(wall_s, 1e-9)
    # Each core's counter is off by up to one tick at either end; errors of cores add in squares.
    load = (busy_s - used_s - 2 * TICK_S * cores**0.5) / wall_s
    return load > max(0.1, 0.025 * cores, min(RUNNER_S / wall_s, 0.2))


class OtherPrograms:
    """Load of other programs in successive measurements. flags: one `contended` per busy one."""

    def __init__(self):
        self.flags: list[str] = []

    def begin(self) -> None:
        """Read the counters at the start of a measurement, which takes about 0.5 ms."""
        times = psutil.cpu_times()._asdict()
        # On Linux user and nice include the time of guests.
        idle = ("idle", "iowait", "guest", "guest_nice")
        busy_s = sum(seconds for name, seconds in times.items() if name not in idle)
        self._began = (time.perf_counter(), busy_s, own_cpu_s())

    def end(self) -> None:
        """Compare the counters at the end of a measurement, and begin the next one."""
        began = self._began
        self.begin()
        if contended(*(now - then for now, then in zip(self._began, began, strict=True))):
            self.flags.append("contended")


def calibrate() -> float:
    """Return the median seconds of a matmul on one thread, from 20 ms of equal ones.

    It also shows slowdowns that no counter shows: a lower clock, or other guests of the same host.
    """
    import numpy  # slow to import, as are intervals

    from pomology.measure import calls

    matrix = numpy.linspace(0.5, 1.5, 160 * 160, dtype="float32").reshape(160, 160)
    # A BLAS would start threads.
    multiply = functools.partial(numpy.einsum, "ij,jk->ik", matrix, matrix)
    return calls.measure(multiply, budget_s=0.02, warmup_s=0.005).seconds.value


def calibrate_gpu(device: Any) -> float:
    """Return the seconds of a matmul in true fp32 on a `Device`, by its fastest block in 0.1 s."""
    from pomology.measure import calls  # slow to import

    options = {"budget_s": 0.06, "warmup_s": 0.02, "warmup_calls": 1}
    with device.context(strict=True):  # no TF32, whatever the last case has set
        multiply = device.dispatch(device.product("fp32", CALIBRATION_SIDE))
        timed = calls.measure(multiply, device.synchronize, **options)
    return min(block.step_s for block in timed.blocks)


def slower(kind: str, seconds: float, usual_s: float) -> str:
    """Return how much longer a calibration took than usual, such as `31 %`; "" within the noise."""
    excess = seconds / usual_s - 1
    return f"{100 * excess:.0f} %" if excess > SLOWER[kind] else ""
