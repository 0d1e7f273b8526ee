"""What this process may use of the machine, what others use of it, and how fast it is now.

Counters of processor time tick every 10 ms on each core. Of shorter stretches Linux knows for how long threads of this
process that could have run had to wait."""

import contextlib
import fcntl
import itertools
import json
import math
import os
import resource
import signal
import statistics
import time
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from pomology.machine import memory, snapshot
from pomology.paths import write_atomic

CGROUPS, PROCESS = Path("/sys/fs/cgroup"), Path("/proc/self")
TICK_S, SHORT_S = 0.01, 0.2  # of the counters of processor time; stretches in which their ticks hide much
LEAST_S = 0.02  # what the runner itself takes now and then to note a case
DELAY_S = 0.001  # that threads wait on any machine, or waited before
# For a quiet machine: at a time, so that a run of a minute or so takes at most twice as long, and in all of a run.
WAIT_S, WAIT_IN_ALL_S = 45.0, 300.0
WAITED = ".partial/quiet.json"
CANARY_S, CANARY_SIZE = 0.02, 160
MOMENT_S, PATIENCE = 0.25, 3  # before a slow canary is taken anew ahead of a case, and how often
SLOWED = 0.15  # by which canaries may exceed the best: clocks of idle processors were seen to fall by 13 %
LOCK = Path("/tmp/pomology-device.lock")  # of this machine, whoever measures; not TMPDIR, which each user of a Mac has

_children_s: dict[int, float] = {}
_stops: list[tuple] = []
_handlers: list[Callable] = []


def usable_threads() -> int:
    """Threads that can run at a time: no more than this process is let run on, nor than its cgroups' quota pays."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([allowed, *quotas().values()])))


def quotas() -> dict[Path, float]:
    """The cgroups that limit this process's CPU time, its own and those above it -> cores that each grants."""
    limits = {}
    for line in snapshot.file_text(PROCESS / "cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        bases = (CGROUPS / controllers, CGROUPS / "cpu") if "cpu" in controllers.split(",") else ()
        for base in (CGROUPS, CGROUPS / "unified") if number == "0" else bases:
            own = base / path.lstrip("/")
            # A container may be shown the path that its host knows; its own limits are those of the base.
            for folder in (folder for folder in (own, *own.parents) if folder.is_relative_to(base)):
                old = " ".join(snapshot.file_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
                limit = (snapshot.file_text(folder / "cpu.max") or old).split()
                if len(limit) == 2 and limit[0].isdecimal():  # none is `max`, or -1
                    limits[folder] = int(limit[0]) / int(limit[1])
    return limits


# Counters at an edge of something timed, in seconds: the time; what all processes of this machine have used; what this
# one and its children have; how long its threads could not run, as others did (None where nobody counts), and for its
# cgroups' quota. stops: how often it was continued after a stop, as by SIGSTOP.
Edge = namedtuple("Edge", "t_s busy_s own_s delay_s held_s stops")


def edge() -> Edge:
    """The counters now, which takes about 0.5 ms."""
    _count_stops()
    # Of each thread: nanoseconds on a core, nanoseconds that it waited for one, and how often it got one.
    tasks = [snapshot.file_text(task / "schedstat").split() for task in (PROCESS / "task").glob("*")]
    delay_s = sum(int(counts[1]) for counts in tasks if counts) / 1e9 if any(tasks) else None
    held_s = 0.0
    for folder in quotas():
        counts = dict(line.split() for line in snapshot.file_text(folder / "cpu.stat").splitlines())
        held_s += int(counts.get("throttled_usec", 0)) / 1e6 + int(counts.get("throttled_time", 0)) / 1e9
    return Edge(time.perf_counter(), snapshot.cpu_busy_s(), own_s(), delay_s, held_s, len(_stops))


def _count_stops() -> None:
    """Have continuations after a stop counted from now on; a handler that is there goes on being called."""
    before = signal.getsignal(signal.SIGCONT)
    if before not in _handlers:
        _handlers.append(lambda *given: (_stops.append(given), callable(before) and before(*given)))
        with contextlib.suppress(ValueError):  # another thread than the main one, which alone may
            signal.signal(signal.SIGCONT, _handlers[-1])


def own_s() -> float:
    """CPU seconds of this process and its children, living and ended ones."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    used_s = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    for pid in memory.live_children():
        # Noted while it lives: macOS has none between its end and the wait for it.
        with contextlib.suppress(psutil.NoSuchProcess):
            _children_s[pid] = sum(psutil.Process(pid).cpu_times()[:4])  # its own, and that of its children
        used_s += _children_s.get(pid, 0.0)
    return used_s


def between(first: Edge, last: Edge) -> tuple[float, list[str]]:
    """What others did to something timed, however short it was: the cores that they used, at the least, and which of
    the flags `contended` (over 0.1 core, 2.5 % of all, and 20 ms or 0.2 core) and `paused` hold."""
    cores, (wall_s, busy_s, used_s) = psutil.cpu_count() or 1, (last[place] - first[place] for place in range(3))
    # Ticks of all cores, each off by up to one at either edge, as their sum scatters.
    lost_s = max(0.0, busy_s - used_s - 2 * TICK_S * cores**0.5)
    # Threads and workers of one's own wait for each other, too: others had no more than what these left, and no more
    # than what ticks can hide.
    if wall_s < SHORT_S and None not in (first.delay_s, last.delay_s) and not memory.live_children():
        most_s = min(cores * wall_s - used_s, busy_s - used_s + TICK_S * cores**0.5)
        lost_s = max(lost_s, min(last.delay_s - first.delay_s - DELAY_S, most_s))
    load = min(lost_s / max(wall_s, 1e-9), cores)
    paused = last.stops > first.stops or last.held_s - first.held_s > 0.05 * wall_s
    most = max(0.1, 0.025 * cores, min(LEAST_S / max(wall_s, 1e-9), 0.2))
    return load, ["contended"] * (load > most) + ["paused"] * paused


def wait(place: Path, say: Callable[[str], Any], sleep: Callable[[float], Any] = time.sleep) -> dict[str, Any]:
    """Wait until other programs leave the processor alone, and return `snapshot.conditions` then: up to `WAIT_S`, and
    `WAIT_IN_ALL_S` in all of a run. Where that was not enough, nobody waits again before the machine was quiet once.

    place: a file, `WAITED` in a run's folder, with what it has waited so far, in whichever process. say: gets a
    line about it every second. sleep: waits so many seconds, and returns True to give up, as an event's `wait` does."""
    state, waited_s, begun_s = snapshot.conditions(), 0.0, time.monotonic()
    before = json.loads(snapshot.file_text(place) or '{"waited_s": 0.0, "in_vain": false}')
    most_s = 0.0 if before["in_vain"] else min(WAIT_S, WAIT_IN_ALL_S - before["waited_s"])
    while "busy" in state["flags"] and waited_s < most_s:
        used = f"{state['others']:.1f} of {psutil.cpu_count()} processors"
        say(f"waiting for other programs to end, which use {used} ({waited_s:.0f} s of at most {most_s:.0f})")
        if sleep(1.0):
            break
        state, waited_s = snapshot.conditions(), time.monotonic() - begun_s
    in_vain = "busy" in state["flags"] and (before["in_vain"] or waited_s >= most_s)
    after = {"waited_s": round(before["waited_s"] + waited_s, 1), "in_vain": in_vain}
    if after != before:
        write_atomic(place, json.dumps(after))
    return state


@contextlib.contextmanager
def alone(say: Callable[[str], Any]) -> Iterator[None]:
    """Hold this machine for one measurement, behind the one that holds it now; say: gets a line if there is one.

    The lock goes with this process, however that ends."""
    flags = os.O_RDONLY | os.O_NOFOLLOW
    try:  # in two steps, as Linux opens no other user's file in /tmp with O_CREAT
        held = os.open(LOCK, flags)
    except FileNotFoundError:
        held = os.open(LOCK, flags | os.O_CREAT, 0o444)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"  another run measures on this machine: this one begins when it has ended ({LOCK} is held)")
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def canary() -> float:
    """Seconds of a fixed product of NumPy's on one thread, the median of 20 ms of them. What counters do not see makes
    it slower, too: a lower clock, a neighbour on the same core or host."""
    import numpy  # slow to import

    numbers = numpy.linspace(0.5, 1.5, CANARY_SIZE**2, dtype="float32").reshape(CANARY_SIZE, -1)
    calls_s, begun_s = list[float](), time.perf_counter()
    while (start_s := time.perf_counter()) - begun_s < CANARY_S or len(calls_s) < 8:
        numpy.einsum("ij,jk->ik", numbers, numbers)  # not through a BLAS, which has threads of its own
        calls_s.append(time.perf_counter() - start_s)
    return statistics.median(calls_s[len(calls_s) // 4 :])  # behind a warm-up


def slowed(case_s: Sequence[float], run_s: Sequence[Sequence[float]]) -> bool:
    """Whether the canaries of a case say that the machine was slower than at its best in this run, whose canaries are
    run_s, those of a case together. Their geometric mean must exceed the best (the 5 % quantile) by over 15 %, and by
    over 1.4 times what separates the canaries of one case in nine of ten cases: a neighbour that comes and goes within
    a second makes that 40 %, and is in the intervals of the steps."""
    apart = sorted(math.log(max(both) / min(both)) for both in run_s)
    best_s = sorted(itertools.chain(*run_s))[int(0.05 * sum(map(len, run_s)))]
    most = max(math.log(1 + SLOWED), 1.4 * apart[int(0.9 * len(apart))])
    return math.log(statistics.geometric_mean(case_s) / best_s) > most
