"""What the machine did while a block of code ran: energy, temperature, memory, faults, swap.

A thread reads all gauges twice a second, which takes about 0.1 % of a core. Synchronize the device
before the block and at its end, or energy is billed to the wrong block.
"""

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

SENSORS = ("temperature_c", "clock_hz")
SWAP = ("swap_bytes", "swapped_bytes", "compressed_bytes")
UNITS = {"page_faults": "count", "page_ins": "count", "temperature_c": "°C", "clock_hz": "Hz"}
# Traffic above that, in bytes a second, counts as a shortage of memory. A disk that swapped single
# pages at 100 MB/s, or a core that compressed at 1 GB/s, would be busy for 1 % of the time.
SHORTAGE = {"swapped_bytes": 1e6, "compressed_bytes": 10e6}
INTERVAL_S = 0.5  # between two samples
LATE_S = 1.0  # by which a sample is late where the process was stopped
IDLE = 0.1  # of a core, at most, that a process uses while it is stopped
SHORTAGE_S = 10.0  # of such traffic at least, also in a shorter block


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
    text = snapshot.run_command("vm_stat")
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
    """One reading; None is what was not read. power_w and gpu_busy: only in older journals."""

    t_s: float
    footprint_bytes: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    gpu_busy: float | None = None
    clock_hz: float | None = None
    thermal_level: int | None = None


class Sampler:
    """Watch the machine while a block runs; one use each.

    kind: "cpu" or "gpu". samples: of what can be plotted. After the block: `metrics`, by name (n
    counts samples, and one block has no interval); thermal_level (highest); rails (what the energy
    covers); flags (`swapping` and `paused`, where they hold); absent (metric -> why it is missing).
    Page faults are of this process, `page_ins` those that needed the disk. The footprint is also of
    its multiprocessing children; all else has others' work in it. `swap_bytes`: by how much swap in
    use grew.
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

    def steady(self, stretch: Hashable, steps: int) -> None:
        """Note that a steady block begins or ends here, see `EnergyCounter.steady`."""
        if "power_w" not in self.absent:
            self._attempt(("power_w",), self._energy.steady, stretch, steps)

    def _begin(self) -> None:
        self._energy = self._attempt(("power_w",), EnergyCounter, self._kind, self._clock)
        self._gauges |= self._attempt(SENSORS, sensors, self._kind) or {}
        self._before = self._counters()
        self._start_s = self._last_s = self._clock()
        self._last_own_s = quiet.own_s()
        self._tick()

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self._tick()

    def _tick(self) -> None:
        gauges = {}
        for name, read in self._gauges.items():
            if name not in self.absent:
                gauges[name] = self._attempt((name,), read)
        now_s = self._clock()
        self.samples.append(Sample(now_s - self._start_s, **gauges))
        own_s = quiet.own_s()
        late_s = now_s - self._last_s - INTERVAL_S
        # This process has computed nothing meanwhile: it was stopped.
        idle = own_s - self._last_own_s < IDLE * late_s
        if late_s > LATE_S and idle and "paused" not in self.flags:
            self.flags.append("paused")
        self._last_s = now_s
        self._last_own_s = own_s

    def _end(self) -> None:
        self._tick()
        after = self._counters()
        values = {name: after[name] - self._before[name] for name in after if name in self._before}
        seconds = max(SHORTAGE_S, self.samples[-1].t_s)
        if any(values.get(name, 0) > rate * seconds for name, rate in SHORTAGE.items()):
            self.flags.append("swapping")
        for name in self._gauges:
            readings = [getattr(sample, name) for sample in self.samples]
            readings = [reading for reading in readings if reading is not None]
            if name in self.absent or not readings:
                continue
            if name == "thermal_level":
                self.thermal_level = max(readings)
            elif name == "clock_hz":
                values[name] = statistics.fmean(readings)
            else:
                values[name.replace("footprint", "footprint_peak")] = max(readings)
        n = len(self.samples)
        metrics = {
            name: Estimate(value, UNITS.get(name, "B"), n=n) for name, value in values.items()
        }
        if "power_w" not in self.absent:
            metrics |= self._attempt(("power_w",), self._energy.metrics) or {}
        if "power_w" not in self.absent:  # nor has it failed at the end
            self.rails = self._energy.rails
            self.absent |= self._energy.missing
        self.metrics = dict(sorted(metrics.items()))

    def _counters(self) -> dict[str, int]:
        """Return what the system counts all the time."""
        return memory.page_faults() | (self._attempt(SWAP, swap_counters) or {})

    def _attempt(self, metrics: tuple[str, ...], read: Callable, *arguments: Any) -> Any:
        """Return what `read` does; if it fails, note why its metrics are absent and return None."""
        try:
            return read(*arguments)
        except Absent as error:
            reason = str(error)
        except Exception as error:  # what a driver raises must not end the case that is measured
            reason = f"failed after {len(self.samples)} samples: {type(error).__name__}: {error}"
        self.absent |= dict.fromkeys(metrics, reason)
        return None
