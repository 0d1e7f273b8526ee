"""CPU time that other programs use during a measurement."""

import contextlib
import resource
import time

import psutil

from pomology.machine import memory

TICK_S = 0.01  # resolution of the counters of CPU time, on each core
RUNNER_S = 0.02  # CPU time that the runner itself may take to record a case
BURST_CORES = 0.5  # that others use
BURST_S = 0.9  # a second, of which readings may miss a part at its ends
SPACING_S = 0.2  # between two readings of a burst, of which the counters' resolution is a tenth


def process_cpu_s() -> float:
    """Return the CPU seconds of this process and its children, running and ended ones."""
    # The system adds a child's time to RUSAGE_CHILDREN when the child ends, so that running ones,
    # such as the workers of a loader, must be asked one by one.
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = time.process_time() + ended.ru_utime + ended.ru_stime
    for pid in memory.live_children():
        with contextlib.suppress(psutil.NoSuchProcess):
            used_s += sum(psutil.Process(pid).cpu_times()[:4])
    return used_s


def contended(wall_s: float, busy_s: float, used_s: float) -> bool:
    """Return whether other programs used over 0.1 core, 2.5 % of all cores, and 20 ms or 0.2 core.

    busy_s: CPU seconds of all processes. used_s: CPU seconds of this process and its children.
    """
    cores = psutil.cpu_count() or 1
    wall_s = max(wall_s, 1e-9)
    # Each core's counter is off by up to one tick at either end; errors of cores add in squares.
    load = (busy_s - used_s - 2 * TICK_S * cores**0.5) / wall_s
    return load > max(0.1, 0.025 * cores, min(RUNNER_S / wall_s, 0.2))


def bursting(wall_s: float, busy_s: float, used_s: float) -> bool:
    """Return whether other programs used over `BURST_CORES`, see `contended`."""
    cores = psutil.cpu_count() or 1
    return (busy_s - used_s - 2 * TICK_S * cores**0.5) / wall_s > BURST_CORES


def readings() -> tuple[float, float, float]:
    """Return the time, and the CPU seconds of all processes and of this one with its children.

    It takes about 0.5 ms.
    """
    times = psutil.cpu_times()._asdict()
    # On Linux user and nice include the time of guests.
    idle = ("idle", "iowait", "guest", "guest_nice")
    busy_s = sum(seconds for name, seconds in times.items() if name not in idle)
    return time.perf_counter(), busy_s, process_cpu_s()


class Bursts:
    """Whether other programs were busy for a second, in readings twice per second.

    seen: whether they were. A long timing hides a burst in its mean load.
    """

    def __init__(self):
        self.seen = False
        self._burst_s = 0.0
        self._before = readings()

    def read(self) -> None:
        """Judge the time since the reading before."""
        now = readings()
        grown = [new - old for new, old in zip(now, self._before, strict=True)]
        if grown[0] < SPACING_S:
            return
        self._before = now
        self._burst_s = self._burst_s + grown[0] if bursting(*grown) else 0.0
        self.seen |= self._burst_s >= BURST_S


class OtherPrograms:
    """Load of other programs in successive measurements. flags: one `contended` per busy one."""

    def __init__(self):
        self.flags: list[str] = []

    def begin(self) -> None:
        """Read the counters at the start of a measurement."""
        self._began = readings()

    def end(self) -> None:
        """Compare the counters at the end of a measurement, and begin the next one."""
        began = self._began
        self.begin()
        if contended(*(now - then for now, then in zip(self._began, began, strict=True))):
            self.flags.append("contended")
