"""The memory of this process and its workers, sampled while a case runs."""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import multiprocessing.process
import os
import re
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from pomology.machine.energy import Absent
from pomology.measure.estimate import Estimate

VMSTAT = Path("/proc/vmstat")

MOST_TRACED = 1000  # rows of a trace of memory


class MemoryCounters:
    """The memory of this process at this moment, cheap enough for every step: 0.1 ms, and no process is started.

    `read()` gives `footprint_bytes` (as `Telemetry` counts it, multiprocessing children included), `resident_bytes`
    (of this process alone; macOS leaves out what only the GPU touched), `page_faults` and `page_ins` (of this process
    alone, since it began: those of children would come in one lump when they end, and with them those of what
    `Telemetry` asks) and `swap_used_bytes` (the machine's). What cannot be read is None; `absent` says why.
    """

    def __init__(self) -> None:
        self.absent: dict[str, str] = {}
        self._sources: dict[tuple[str, ...], Callable[[], tuple]] = {}
        openers = {
            ("footprint_bytes",): lambda: footprint()[1],
            ("resident_bytes",): lambda: lambda: psutil.Process().memory_info().rss,
            ("page_faults", "page_ins"): lambda: _own_faults,
            ("swap_used_bytes",): lambda: lambda: psutil.swap_memory().used,
        }
        self._names = [name for names in openers for name in names]
        for names, opener in openers.items():
            try:
                self._sources[names] = opener()
            except Exception as error:  # see _drop
                self._drop(names, error)

    def read(self) -> dict[str, int | None]:
        """Each counter now, by its name."""
        values: dict[str, int | None] = dict.fromkeys(self._names)
        for names, source in list(self._sources.items()):
            try:
                reading = source()
            except Exception as error:  # see _drop
                self._drop(names, error)
                continue
            values |= dict(zip(names, reading if isinstance(reading, tuple) else (reading,), strict=True))
        return values

    def _drop(self, names: tuple[str, ...], error: Exception) -> None:
        """Whatever a counter raises must not end the case that is being measured."""
        self._sources.pop(names, None)
        self.absent |= dict.fromkeys(names, f"{type(error).__name__}: {error}")


class MemoryTrace:
    """Memory and page faults of a training, a row a step; what `Case.trace` keeps.

    device: gives `allocated_bytes` and `reserved_bytes` of the device now, or what of them it counts. since: when the
    case began, by `clock`. Of long traces every second, fourth, ... row is kept, and the last one.
    """

    COLUMNS = (
        *("step", "t_s", "allocated_bytes", "reserved_bytes", "footprint_bytes", "resident_bytes"),
        *("page_faults", "page_ins", "swap_used_bytes"),
    )

    def __init__(
        self,
        device: Callable[[], dict[str, int]],
        since: float,
        clock: Callable[[], float] = time.perf_counter,
        counters: Callable[[], dict[str, int | None]] | None = None,
    ) -> None:
        self._device, self._since, self._clock = device, since, clock
        self.counters = MemoryCounters()
        self._read = counters or self.counters.read
        self.steps, self._stride = 0, 1
        self._rows: list[tuple] = []
        self._last: tuple = ()

    def note(self) -> None:
        """A step has ended, on the device too."""
        now = {"step": self.steps, "t_s": round(self._clock() - self._since, 6)} | self._device() | self._read()
        self._last = tuple(now.get(name) for name in self.COLUMNS)
        if self.steps % self._stride == 0:
            self._rows.append(self._last)
            if len(self._rows) > MOST_TRACED:
                self._rows, self._stride = self._rows[::2], self._stride * 2
        self.steps += 1

    @property
    def rows(self) -> list[tuple]:
        """In the order of `COLUMNS`; None is what could not be read."""
        return self._rows + [self._last] * (self._rows[-1:] != [self._last])

    def metrics(self, warmup: int) -> dict[str, dict[str, Any]]:
        """Growth a step and both ends of what was read in every step from number `warmup` on, in the record's form.

        NAME_slope_bytes with its interval, NAME_start_bytes and NAME_end_bytes for NAME in footprint, resident,
        allocated and reserved; page_faults_slope and page_ins_slope, per step. No slope with fewer than 3 steps.
        """
        from pomology.measure import intervals  # numpy, which a process that is watched need not have loaded

        rows = [row for row in self.rows if row and row[0] >= warmup]
        metrics: dict[str, Estimate] = {}
        for name, values in zip(self.COLUMNS, zip(*rows, strict=True), strict=True) if rows else ():
            if name in ("step", "t_s", "swap_used_bytes") or None in values:
                continue
            memory = name.endswith("_bytes")
            short, unit, ending = (name.removesuffix("_bytes"), "B", "_bytes") if memory else (name, "count", "")
            if len(values) >= 3:
                # The system gives a process pages; frameworks count what they were asked for.
                pages = name in ("footprint_bytes", "resident_bytes")
                grows = intervals.slope(values, [row[0] for row in rows], mmap.PAGESIZE if pages else 1)
                metrics[f"{short}_slope{ending}"] = grows.replace(unit=unit)
            if memory:
                metrics[f"{short}_start_bytes"], metrics[f"{short}_end_bytes"] = (
                    Estimate(value, unit) for value in (values[0], values[-1])
                )
        return {name: estimate.metric() for name, estimate in metrics.items()}


def _own_faults() -> tuple[int, int]:
    """All page faults of this process, and those of them that needed the disk."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt, usage.ru_majflt


def live_children() -> list[int]:
    """Process ids of the multiprocessing children that have not ended."""
    # multiprocessing.active_children() would also collect the ended ones, behind the back of the thread that waits for
    # them: PyTorch would then learn only late that a worker was killed.
    processes = [child._popen for child in list(multiprocessing.process._children)]
    return [process.pid for process in processes if process is not None and process.returncode is None]


def usages() -> list[Any]:
    """What this process has used, and its children that have ended."""
    return [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]


def swapped_bytes() -> int:
    """What Linux has moved into and out of swap since it started. (psutil would take every page for one of 4 KiB.)"""
    try:
        pages = dict(line.split() for line in VMSTAT.read_text().splitlines())
        return (int(pages["pswpin"]) + int(pages["pswpout"])) * mmap.PAGESIZE
    except (OSError, KeyError) as error:
        raise Absent("this system does not count what it swaps") from error


def vm_stat(text: str) -> dict[str, int]:
    """What macOS has moved into and out of swap and its compressor since it started, and what the latter holds.

    The size of a page stands in the first line: 16384 on Apple Silicon, 4096 on Intel.
    """
    size = re.match(r"Mach Virtual Memory Statistics: \(page size of (\d+) bytes\)\n", text)
    pages = {name: int(count) for name, count in re.findall(r"^([^:]+):\s+(\d+)\.$", text, re.MULTILINE)}
    sums = {
        "swapped_bytes": ("Swapins", "Swapouts"),
        "compressed_bytes": ("Compressions", "Decompressions"),
        "compressor_bytes": ("Pages occupied by compressor",),
    }
    try:
        return {name: sum(pages[key] for key in keys) * int(size[1]) for name, keys in sums.items()}
    except (KeyError, TypeError) as error:
        raise Absent("vm_stat prints something else than it is known to") from error


class _RusageInfo(ctypes.Structure):
    """`struct rusage_info_v0` of macOS's <sys/resource.h>."""

    _fields_ = [
        ("uuid", ctypes.c_uint8 * 16),
        *((name, ctypes.c_uint64) for name in ("user", "system", "idle_wakeups", "interrupt_wakeups", "page_ins")),
        *((name, ctypes.c_uint64) for name in ("wired", "resident", "footprint", "started", "ended")),
    ]


def footprint() -> tuple[str, Callable[[], int]]:
    """Where the footprint comes from, and a function that gives that of this process and its living children."""
    if sys.platform != "darwin":
        return "resident memory", ResidentMemory()
    read = _physical_reader()
    return "physical footprint", lambda: read(os.getpid()) + _sum_of_living(read)


def _sum_of_living(read: Callable[[int], int]) -> int:
    total = 0
    for pid in live_children():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):  # ended since it was listed
            total += read(pid)
    return total


class ResidentMemory:
    """Resident memory of this process, and with it what its living children add to that, on Linux; in bytes.

    A forked worker begins with all pages of its parent, and eight of them would count these nine times. So of children
    only the pages that nobody shares are added (what they share among themselves alone is left out). To count these the
    kernel walks through all of them, a tenth of a second for some gigabytes: it is asked so seldom that this takes a
    fiftieth of the time at most, and in between what the children add stays what it was.
    """

    SHARE = 1 / 50

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._next_s, self._added = clock, -math.inf, 0

    def __call__(self) -> int:
        own = psutil.Process().memory_info().rss
        if not live_children():
            self._added = 0
        elif (began_s := self._clock()) >= self._next_s:
            self._added = _sum_of_living(self._private)
            self._next_s = began_s + (self._clock() - began_s) / self.SHARE
        return own + self._added

    @staticmethod
    def _private(pid: int) -> int:
        return psutil.Process(pid).memory_full_info().uss


def _physical_reader() -> Callable[[int], int]:
    """macOS's physical footprint: process id to bytes."""
    proc_pid_rusage = ctypes.CDLL(None, use_errno=True).proc_pid_rusage

    def physical(pid: int) -> int:
        info = _RusageInfo()
        if proc_pid_rusage(pid, 0, ctypes.byref(info)) != 0:
            raise OSError(ctypes.get_errno(), "proc_pid_rusage failed")
        return info.footprint

    return physical
