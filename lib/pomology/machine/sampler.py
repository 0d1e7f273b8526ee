"""What the machine did while a block of code ran: energy, temperature, memory, faults, swap, load.

A thread reads all gauges twice a second, which takes about 0.1 % of a core. Energy is what a
counter grew during the block: synchronize the device before the block and at its end, or work is
billed to the wrong block.
"""

import itertools
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, Self

import psutil

from pomology.machine import energy, memory, quiet, snapshot
from pomology.machine.energy import Absent, EnergyCounter
from pomology.measure.estimate import Estimate

UNITS = {
    "page_faults": "count",
    "page_ins": "count",
    "swap_bytes": "B",
    "swapped_bytes": "B",
    "compressed_bytes": "B",
    "footprint_peak_bytes": "B",
    "temperature_c": "°C",
    "clock_hz": "Hz",
}
SENSORS = ("temperature_c", "clock_hz")
SWAP = ("swap_bytes", "swapped_bytes", "compressed_bytes")
LATE_S = 1.0  # by which a sample is late where the process was stopped
IDLE = 0.1  # of a core, at most, that a process uses while it is stopped
# Traffic above both counts as a shortage of memory: bytes in all, and bytes a second. A disk that
# swapped single pages at 100 MB/s, or a core that compressed at 1 GB/s, would be busy for 1 % of
# the time.
SHORTAGE = {"swapped_bytes": (10e6, 1e6), "compressed_bytes": (100e6, 10e6)}


def sensors(kind: str) -> dict[str, Callable[[], float]]:
    """Return what reads the temperature of an NVIDIA GPU and the clock of its multiprocessors."""
    if sys.platform == "darwin":
        raise Absent("macOS has no public sensor of it")
    if kind == "cpu":
        raise Absent("not read of a processor")
    nvml, gpu = energy.nvml_gpu()
    return {
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
        "clock_hz": lambda: 1e6 * nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
    }


def swap_counters() -> dict[str, int]:
    """Return bytes of swap in use, and those moved into and out of it and macOS's compressor."""
    swap = psutil.swap_memory()
    if sys.platform != "darwin":
        return {"swap_bytes": swap.used, "swapped_bytes": swap.sin + swap.sout}
    # psutil's sin and sout are every page-in and page-out of a Mac.
    text = snapshot.run_command("vm_stat", timeout=2)
    if text is None:
        raise Absent("vm_stat did not answer")
    page_bytes = int(re.search(r"page size of (\d+) bytes", text)[1])
    pages = {name: int(n) for name, n in re.findall(r"^(\w+):\s+(\d+)\.$", text, re.MULTILINE)}
    return {
        "swap_bytes": swap.used,
        "swapped_bytes": page_bytes * (pages["Swapins"] + pages["Swapouts"]),
        "compressed_bytes": page_bytes * (pages["Compressions"] + pages["Decompressions"]),
    }


class Sample(NamedTuple):
    """One reading; None is what was not read. `gpu_busy` is only in older journals.

    power_w: the mean of the window that ends there, longer than a sample where counters move
    seldom.
    """

    t_s: float
    footprint_bytes: int | None
    power_w: float | None
    temperature_c: float | None
    gpu_busy: float | None
    clock_hz: float | None
    thermal_level: int | None


class Row(NamedTuple):
    """What is read at one time. own_s: as `quiet.own_s`. gauges: by name, without what failed."""

    t_s: float
    energy: energy.Reading | None
    own_s: float
    faults: tuple[int, int]
    gauges: dict[str, Any]


class Sampler:
    """Watch the machine while a block runs; one use each.

    kind: "cpu" or "gpu". After the block: `metrics()`; thermal_level (highest); rails (what the
    energy covers); flags (of `swapping` and `paused` those that hold); samples; absent (metric ->
    why it is missing).

    Page faults are of this process, `page_ins` those that needed the disk. The footprint is also of
    its multiprocessing children; all else has others' work in it. `swap_bytes`: by how much swap in
    use grew.
    """

    def __init__(
        self,
        kind: str = "cpu",
        interval_s: float = 0.5,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.kind = kind
        self.rails: list[str] = []
        self.flags: list[str] = []
        self.absent: dict[str, str] = {}
        self.thermal_level: int | None = None
        self._interval_s = interval_s
        self._clock = clock
        self._energy: EnergyCounter | None = None
        self._gauges: dict[str, Callable[[], float | None]] = {
            "footprint_peak_bytes": memory.footprint()[1],
            "thermal_level": snapshot.thermal_level,
        }
        self._swap: list[dict[str, int]] = []  # before and after the block
        self._rows: list[Row] = []
        self._metrics: dict[str, Estimate] | None = None
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        self._begin()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        self._end()

    def _begin(self) -> None:
        self._energy = self._attempt(("power_w",), EnergyCounter, self.kind, self._clock)
        if self._energy:
            self.rails = self._energy.rails
            for rail, reason in self._energy.missing.items():
                self.absent[f"energy of the {rail}"] = reason
        self._gauges |= self._attempt(SENSORS, sensors, self.kind) or {}
        self._swap.append(self._attempt(SWAP, swap_counters) or {})
        self._tick()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._tick()

    def _tick(self) -> None:
        counted = self._attempt(("power_w",), self._energy.read) if self._energy else None
        t_s = self._clock()
        own_s = quiet.own_s()
        faults = memory.page_faults()
        gauges = {name: self._attempt((name,), read) for name, read in self._gauges.items()}
        self._gauges = {name: self._gauges[name] for name in gauges if name not in self.absent}
        self._rows.append(Row(t_s, counted, own_s, faults, gauges))

    def _end(self) -> None:
        self._tick()
        self._swap.append(self._attempt(SWAP, swap_counters) or {})
        self._summarise()

    def metrics(self) -> dict[str, Estimate]:
        """Return what was measured, by name; n counts samples, and one block has no interval."""
        if self._metrics is None:
            raise ValueError("a sampler has no metrics before its block has ended")
        return self._metrics

    def steady(self, stretch: Hashable, steps: int) -> None:
        """Note that a steady block begins or ends here, see `EnergyCounter.steady`."""
        if self._energy:
            self._attempt(("power_w",), self._energy.steady, stretch, steps)

    @property
    def samples(self) -> list[Sample]:
        """All samples, for plots."""
        rows = list(self._rows)
        watts: dict[float, float] = {}
        if self._energy:
            watts = self._energy.powers([row.energy for row in rows], self._interval_s / 2)
        return [
            Sample(
                t_s=row.t_s - rows[0].t_s,
                footprint_bytes=row.gauges.get("footprint_peak_bytes"),
                power_w=watts.get(row.energy.seconds) if row.energy else None,
                temperature_c=row.gauges.get("temperature_c"),
                gpu_busy=None,
                clock_hz=row.gauges.get("clock_hz"),
                thermal_level=row.gauges.get("thermal_level"),
            )
            for row in rows
        ]

    def _attempt(self, metrics: tuple[str, ...], read: Callable, *arguments: Any) -> Any:
        """Return what `read` does; if it fails, note why its metrics are absent and return None."""
        try:
            return read(*arguments)
        except Absent as error:
            reason = str(error)
        except Exception as error:  # what a driver raises must not end the case that is measured
            reason = f"failed after {len(self._rows)} samples: {type(error).__name__}: {error}"
        self.absent |= dict.fromkeys(metrics, reason)
        if "power_w" in metrics:
            self._energy = None
            self.rails = []
        return None

    def _summarise(self) -> None:
        first = self._rows[0]
        last = self._rows[-1]
        found: dict[str, Estimate | str] = {}
        if self._energy:
            ends = first.energy, last.energy
            found = self._attempt(("power_w",), self._energy.metrics, *ends) or {}
        self.absent |= {name: value for name, value in found.items() if isinstance(value, str)}
        values: dict[str, float] = {
            "page_faults": sum(last.faults) - sum(first.faults),
            "page_ins": last.faults[1] - first.faults[1],
        }
        before, after = self._swap
        values |= {name: after[name] - before[name] for name in after.keys() & before.keys()}
        for name in self._gauges:
            readings = [row.gauges[name] for row in self._rows if row.gauges[name] is not None]
            if readings:
                values[name] = statistics.fmean(readings) if name == "clock_hz" else max(readings)
        # It describes the block, and is no metric of its case.
        self.thermal_level = values.pop("thermal_level", None)
        for name in UNITS.keys() - values.keys():
            self.absent.setdefault(name, "this system does not count it")
        for name, (least, least_per_s) in SHORTAGE.items():
            if values.get(name, 0) > max(least, least_per_s * (last.t_s - first.t_s)):
                self.flags = ["swapping"]
        if self._was_stopped():
            self.flags.append("paused")
        n = len(self._rows)
        metrics = {name: Estimate(value, UNITS[name], n=n) for name, value in values.items()}
        metrics |= {name: value for name, value in found.items() if isinstance(value, Estimate)}
        self._metrics = dict(sorted(metrics.items()))

    def _was_stopped(self) -> bool:
        """Return whether a sample was late, and this process had used no processor meanwhile."""
        for before, now in itertools.pairwise(self._rows):
            late_s = now.t_s - before.t_s - self._interval_s
            if late_s > LATE_S and now.own_s - before.own_s < IDLE * late_s:
                return True
        return False
