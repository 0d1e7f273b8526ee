"""What other programs take of this machine while something is timed, and how fast it is then."""

import contextlib
import fcntl
import os
import re
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from pomology.machine import memory, snapshot

CGROUPS = Path("/sys/fs/cgroup")
PROCESS = Path("/proc/self")
TICK_S = 0.01  # of the counters of processor time, on each core
SHORT_S = 0.2  # in shorter stretches the ticks hide much
LEAST_S = 0.02  # what the runner itself takes now and then to note a case
CALIBRATION_S = 0.02
CALIBRATION_SIZE = 160
# By so much both products around a case must exceed the fastest of the run. On a virtual machine
# of two cores that was so for 38 of 1,069 cases.
SLOWED = 0.3
# Of this machine, whoever measures: not in TMPDIR, which each user of a Mac has.
LOCK = Path("/tmp/pomology-device.lock")


def usable_threads() -> int:
    """Return how many threads can run at a time, by the process's affinity and cgroup quotas."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        allowed = os.cpu_count() or 1
    return max(1, int(min([allowed, *quotas().values()])))


def quotas() -> dict[Path, float]:
    """Return the cgroups that limit this process's CPU time, and the cores that each grants."""
    limits = {}
    own = re.search("^0::/(.*)$", _text(PROCESS / "cgroup"), re.MULTILINE)
    # A container may be shown the path that its host knows; its own limits are the root's.
    folder = CGROUPS / own[1] if own else CGROUPS
    for place in (folder, *folder.parents):
        quota, _, period = _text(place / "cpu.max").partition(" ")
        if quota.isdecimal():
            limits[place] = int(quota) / int(period)
    return limits


def _text(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


class Edge(NamedTuple):
    """Counters in seconds where something timed begins or ends.

    t_s: the time. busy_s: what all processes of this machine have used. own_s: what this process
    and its children have. held_s: how long a quota of its cgroups held them.
    """

    t_s: float
    busy_s: float
    own_s: float
    held_s: float


def edge() -> Edge:
    """Return the counters now, which takes about 0.5 ms."""
    held_s = 0.0
    for folder in quotas():
        held = re.search(r"throttled_usec (\d+)", _text(folder / "cpu.stat"))
        held_s += int(held[1]) / 1e6 if held else 0.0
    return Edge(time.perf_counter(), snapshot.cpu_busy_s(), own_s(), held_s)


def own_s() -> float:
    """Return the CPU seconds of this process and its children, living and ended ones."""
    used_s = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        used_s += usage.ru_utime + usage.ru_stime
    for pid in memory.live_children():
        with contextlib.suppress(psutil.NoSuchProcess):
            used_s += sum(psutil.Process(pid).cpu_times()[:4])
    return used_s


def between(first: Edge, last: Edge) -> tuple[float, list[str]]:
    """Return how many cores others used at least between two edges, and which flags hold.

    `contended`: over 0.1 core, 2.5 % of all cores, and 20 ms or 0.2 core. `paused`: a quota held
    this process for over 5 % of the time.
    """
    cores = psutil.cpu_count() or 1
    wall_s = max(last.t_s - first.t_s, 1e-9)
    busy_s = last.busy_s - first.busy_s
    used_s = last.own_s - first.own_s
    # Ticks of all cores, each off by up to one at either edge, as their sum scatters.
    lost_s = max(0.0, busy_s - used_s - 2 * TICK_S * cores**0.5)
    load = min(lost_s / wall_s, cores)
    flags = []
    if load > max(0.1, 0.025 * cores, min(LEAST_S / wall_s, 0.2)):
        flags.append("contended")
    if last.held_s - first.held_s > 0.05 * wall_s:
        flags.append("paused")
    return load, flags


class Others:
    """What other programs did while things were timed, one after the other.

    most_cores: that they used at least, of the worst; None before the first has ended.
    """

    def __init__(self):
        self.most_cores: float | None = None
        self.flags: list[str] = []
        self._edge: Edge | None = None

    def begin(self) -> None:
        """Something timed begins here."""
        self._edge = edge()

    def end(self) -> None:
        """What was timed ends here, and the next thing begins."""
        begin = self._edge
        self.begin()
        load, flags = between(begin, self._edge)
        self.most_cores = max(load, self.most_cores or 0.0)
        self.flags += flags

    def ended_just_now(self) -> bool:
        """Return whether so little time has passed since the last end that it says nothing."""
        return self.most_cores is not None and time.perf_counter() - self._edge.t_s < SHORT_S


@contextlib.contextmanager
def alone(say: Callable[[str], Any]) -> Iterator[None]:
    """Hold this machine for one measurement, after the one that holds it now has ended.

    say: gets a line if there is one. The lock goes with this process, however that ends.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW
    try:  # in two steps, as Linux opens no other user's file in /tmp with O_CREAT
        lock = os.open(LOCK, flags)
    except FileNotFoundError:
        lock = os.open(LOCK, flags | os.O_CREAT, 0o444)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"  another run measures on this machine, and holds {LOCK}: this one waits for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def calibrate() -> float:
    """Return the seconds of a fixed matrix product on one thread: the median of 20 ms of them.

    What counters do not see makes it slower, too: a lower clock, a neighbour on the same host.
    """
    import numpy  # slow to import

    matrix = numpy.linspace(0.5, 1.5, CALIBRATION_SIZE**2, dtype="float32")
    matrix = matrix.reshape(CALIBRATION_SIZE, -1)
    calls_s: list[float] = []
    begin_s = start_s = time.perf_counter()
    while start_s - begin_s < CALIBRATION_S or len(calls_s) < 8:
        numpy.einsum("ij,jk->ik", matrix, matrix)  # not by a BLAS, which has threads of its own
        end_s = time.perf_counter()
        calls_s.append(end_s - start_s)
        start_s = end_s
    return statistics.median(calls_s[len(calls_s) // 4 :])  # without a warm-up


def slowed(around_case_s: Iterable[float], best_s: float) -> bool:
    """Return whether the calibrations around a case were all slower than the run's best."""
    return min(around_case_s) > (1 + SLOWED) * best_s
