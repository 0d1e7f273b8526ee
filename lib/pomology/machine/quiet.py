"""What other programs take of this machine while something is timed, and how fast it is then."""

import contextlib
import os
import resource
import statistics
import time
import timeit
from pathlib import Path

import psutil

from pomology.machine import memory

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")  # of a container
TICK_S = 0.01  # of the counters of processor time, on each core
LEAST_S = 0.02  # what the runner itself takes now and then to note a case
CALIBRATION_CALLS = 50  # of about 0.4 ms each


def usable_threads() -> int:
    """Return how many threads can run at a time: cores by affinity, and by a container's quota."""
    on_linux = hasattr(os, "sched_getaffinity")
    allowed = len(os.sched_getaffinity(0)) if on_linux else os.cpu_count() or 1
    granted, _, period = (CPU_MAX.read_text() if CPU_MAX.is_file() else "max").partition(" ")
    cores = int(granted) // int(period) if granted.isdecimal() else allowed
    return max(1, min(allowed, cores))


def own_s() -> float:
    """Return the CPU seconds of this process and its children, living and ended ones."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = time.process_time() + ended.ru_utime + ended.ru_stime
    for pid in memory.live_children():
        with contextlib.suppress(psutil.NoSuchProcess):
            used_s += sum(psutil.Process(pid).cpu_times()[:4])
    return used_s


def contended(wall_s: float, busy_s: float, used_s: float) -> bool:
    """Return whether others used over 0.1 core, 2.5 % of all cores, and 20 ms or 0.2 core.

    busy_s, used_s: CPU seconds of all processes, and those of this one and its children.
    """
    cores = psutil.cpu_count() or 1
    wall_s = max(wall_s, 1e-9)
    # Ticks of all cores, each off by up to one at either end, as their sum scatters.
    load = (busy_s - used_s - 2 * TICK_S * cores**0.5) / wall_s
    return load > max(0.1, 0.025 * cores, min(LEAST_S / wall_s, 0.2))


class Others:
    """What other programs did while things were timed, one after the other."""

    def __init__(self):
        self.flags: list[str] = []

    def begin(self) -> None:
        """Something timed begins here: read the counters, which takes about 0.5 ms."""
        times = psutil.cpu_times()._asdict()
        # Linux counts guests within user and nice already.
        idle = ("idle", "iowait", "guest", "guest_nice")
        busy_s = sum(seconds for name, seconds in times.items() if name not in idle)
        self._began = (time.perf_counter(), busy_s, own_s())

    def end(self) -> None:
        """What was timed ends here, and the next thing begins."""
        began = self._began
        self.begin()
        if contended(*(now - then for now, then in zip(self._began, began, strict=True))):
            self.flags.append("contended")


def calibrate() -> float:
    """Return the seconds of a fixed matrix product on one thread: the median of 50.

    What counters do not see makes it slower, too: a lower clock, a neighbour on the same host.
    """
    import numpy  # slow to import

    matrix = numpy.linspace(0.5, 1.5, 160 * 160, dtype="float32").reshape(160, 160)

    def multiply() -> None:
        numpy.einsum("ij,jk->ik", matrix, matrix)  # not by a BLAS, which has threads of its own

    calls_s = timeit.repeat(multiply, number=1, repeat=CALIBRATION_CALLS)
    return statistics.median(calls_s[CALIBRATION_CALLS // 4 :])  # without a warm-up
