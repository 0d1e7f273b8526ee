"""Sampling of energy, load, temperature, memory, page faults and swap while a block runs.

A thread reads all gauges twice per second, which takes 0.02 % of a core on Linux. On a Mac another
process reads its sensors, too; what that takes has not been measured. The device must be
synchronized before the block and at its end, or energy counts for the wrong block.
"""

import contextlib
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, Self

import psutil

from pomology.machine import memory, other_programs, sensors, snapshot
from pomology.machine.energy import Absent, EnergyCounter
from pomology.measure.estimate import Estimate

SWAP = ("swap_bytes", "swapped_bytes", "compressed_bytes")
# Shares of the machine's cores, its memory, and of the time of its GPU.
LOADS = ("cpu_load", "memory_load", "gpu_load")
UNITS = {"page_faults": "count", "page_ins": "count", "temperature_c": "°C", "clock_hz": "Hz"}
UNITS |= {name + ending: "" for name in LOADS for ending in ("", "_peak")}
# More traffic, in B/s, counts as memory pressure. It keeps a disk that swaps single pages at
# 100 MB/s, or a core that compresses at 1 GB/s, busy for 1 % of the time.
SHORTAGE = {"swapped_bytes": 1e6, "compressed_bytes": 10e6}
INTERVAL_S = 0.5  # between two samples
SLEEP_S = 1.0  # least sleep of the machine that gets a flag
SHORTAGE_S = 10.0  # least seconds of such traffic, also in a shorter block


def swap_counters() -> dict[str, int]:
    """Return bytes of swap in use, and bytes moved in and out of swap and macOS's compressor."""
    swap = psutil.swap_memory()
    if sys.platform != "darwin":
        return {"swap_bytes": swap.used, "swapped_bytes": swap.sin + swap.sout}
    # On a Mac psutil's sin and sout count all page-ins and page-outs.
    text = snapshot.run_command("vm_stat")
    if text is None:
        raise Absent("vm_stat did not answer")
    page_bytes = int(re.search(r"page size of (\d+) bytes", text)[1])
    counters = re.findall(r"^(\w+):\s+(\d+)\.$", text, re.MULTILINE)
    pages = {name: int(count) for name, count in counters}
    return {
        "swap_bytes": swap.used,
        "swapped_bytes": page_bytes * (pages["Swapins"] + pages["Swapouts"]),
        "compressed_bytes": page_bytes * (pages["Compressions"] + pages["Decompressions"]),
    }


def asleep_s() -> float:
    """Return the seconds that this machine has slept, which `time.monotonic` does not count."""
    # One clock goes on while the machine sleeps, the other stands still. The names mean different
    # things on the two systems: CLOCK_MONOTONIC stands still on Linux only.
    names = ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC")
    if hasattr(time, "CLOCK_UPTIME_RAW"):  # macOS
        names = ("CLOCK_MONOTONIC_RAW", "CLOCK_UPTIME_RAW")
    always_s, awake_s = (time.clock_gettime(getattr(time, name)) for name in names)
    return always_s - awake_s


class Sample(NamedTuple):
    """One reading, with None for values not read. power_w, gpu_busy: only in older journals."""

    t_s: float
    footprint_bytes: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    gpu_busy: float | None = None
    clock_hz: float | None = None
    thermal_level: int | None = None
    cpu_load: float | None = None
    memory_load: float | None = None
    gpu_load: float | None = None


class Sampler:
    """Context manager that samples the machine while its block runs, for a single use.

    kind: "cpu" or "gpu". samples: readings to plot. After the block, metrics: values by name, with
    the number of samples and no interval. thermal_level: the highest. rails: power domains of the
    energy. flags: `swapping`, `slept`, and `contended` by a burst of other programs. absent:
    metric -> why it is missing. Page faults are of this process, the footprint also of its
    children. `swap_bytes` is the growth of swap in use.
    """

    def __init__(self, kind: str = "cpu", clock: Callable[[], float] = time.perf_counter):
        self.samples: list[Sample] = []
        self.metrics: dict[str, Estimate] = {}
        self.rails: list[str] = []
        self.flags: list[str] = []
        self.absent: dict[str, str] = {}
        self.thermal_level: int | None = None
        self._kind = kind
        self._clock = clock
        self._gauges: dict[str, Callable[[], float | None]] = {
            "footprint_bytes": memory.footprint,
            "thermal_level": snapshot.thermal_level,
        }
        self._started = contextlib.ExitStack()  # what the gauges run besides
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        self._begin()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        with self._started:
            self._end()

    def steady(self, stretch: Hashable, steps: int) -> None:
        """Read energy where a steady block begins or ends, see `EnergyCounter.steady`."""
        if "power_w" not in self.absent:
            self._attempt(("power_w",), self._energy.steady, stretch, steps)

    def _begin(self) -> None:
        """Read all counters and gauges before the block; what fails once is absent from then on."""
        self._energy = self._attempt(("power_w",), EnergyCounter, self._kind, self._clock)
        read_by = self._attempt(LOADS, sensors.gauges, self._kind, self._started, self._clock)
        for name, gauge in (read_by or {}).items():
            if isinstance(gauge, Absent):
                self.absent[name] = str(gauge)
            else:
                self._gauges[name] = gauge
        self._before = self._counters()
        self._asleep_s = asleep_s()
        self._bursts = other_programs.Bursts()
        self._start_s = self._clock()
        self._tick()

    def _run(self) -> None:
        """Sample until the block ends, in the sampler's thread."""
        while not self._stop.wait(INTERVAL_S):
            self._tick()

    def _tick(self) -> None:
        """Take one sample."""
        gauges = {}
        for name, read in self._gauges.items():
            if name not in self.absent:
                gauges[name] = self._attempt((name,), read)
        if "power_w" not in self.absent:
            self._attempt(("power_w",), self._energy.watch)
        self._attempt((), self._bursts.read)
        self.samples.append(Sample(self._clock() - self._start_s, **gauges))

    def _end(self) -> None:
        """Read all counters after the block, and compute flags and metrics."""
        self._tick()
        if asleep_s() - self._asleep_s > SLEEP_S:
            self.flags.append("slept")
        if self._bursts.seen:
            self.flags.append("contended")
        # The system's counters: their growth during the block.
        after = self._counters()
        values = {name: after[name] - self._before[name] for name in after if name in self._before}
        seconds = max(SHORTAGE_S, self.samples[-1].t_s)
        if any(values.get(name, 0) > rate * seconds for name, rate in SHORTAGE.items()):
            self.flags.append("swapping")
        # The gauges: the mean clock, of loads the mean and the peak, and of all others the peak.
        for name in self._gauges:
            readings = [getattr(sample, name) for sample in self.samples]
            readings = [reading for reading in readings if reading is not None]
            if name in self.absent or not readings:
                continue
            if name == "thermal_level":
                self.thermal_level = max(readings)
            elif name == "clock_hz":
                values[name] = statistics.fmean(readings)
            elif name in LOADS:
                values[name] = statistics.fmean(readings)
                values[f"{name}_peak"] = max(readings)
            else:
                values[name.replace("footprint", "footprint_peak")] = max(readings)
        count = len(self.samples)
        metrics = {
            name: Estimate(value, UNITS.get(name, "B"), n=count) for name, value in values.items()
        }
        # Energy comes last, since it may turn out to be absent only now.
        if "power_w" not in self.absent:
            metrics |= self._attempt(("power_w",), self._energy.metrics) or {}
        if "power_w" not in self.absent:  # the line above may have failed
            self.rails = self._energy.rails
            self.absent |= self._energy.missing
        self.metrics = dict(sorted(metrics.items()))

    def _counters(self) -> dict[str, int]:
        """Return the system's running counters."""
        return memory.page_faults() | (self._attempt(SWAP, swap_counters) or {})

    def _attempt(self, metrics: tuple[str, ...], read: Callable, *arguments: Any) -> Any:
        """Return the result of `read`; after an error None, with the reason in `absent`."""
        try:
            return read(*arguments)
        except Absent as error:
            reason = str(error)
        except Exception as error:  # an error of a driver must not end the case
            reason = f"failed after {len(self.samples)} samples: {type(error).__name__}: {error}"
        self.absent |= dict.fromkeys(metrics, reason)
        return None
