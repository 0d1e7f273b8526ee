"""What `Telemetry` reads of the machine, a class for each source.

A source is opened when the block begins, which raises Absent where it cannot be read here, and read at both ends of the
block, some meanwhile too. What it does not know is left out of the metrics.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import psutil

from pomology.machine import energy, memory, snapshot
from pomology.machine.energy import Absent

HWMON = Path("/sys/class/hwmon")

# A driver says how busy its GPU was over up to the last second; on a Mac the question takes a process of its own.
GPU_WINDOW_S = 1.0

# Traffic above both counts as a shortage of memory: bytes in all, and bytes a second. Systems always move a little. A
# disk that swapped single pages at 100 MB/s, or a core that compressed at 1 GB/s, would be busy for 1 % of the time.
SHORTAGE = {
    "swapping": ("swapped_bytes", 10e6, 1e6),
    "compressing": ("compressed_bytes", 100e6, 10e6),
}


@dataclass
class Block:
    """What the sources of one block share.

    device: `cpu` or `gpu`. interval_s: seconds between two readings. clock: in seconds. faults: minor and major page
    faults of the commands that were run meanwhile, which are not the block's.
    """

    device: str
    interval_s: float
    clock: Callable[[], float]
    faults: list[int] = field(default_factory=lambda: [0, 0])

    def run(self, *command: str) -> str:
        """What a command prints. Raises Absent if it does not answer within 2 s."""
        answer = snapshot.run_command(*command, timeout=2)
        if answer.usage is not None:
            self.faults[0] += answer.usage.ru_minflt
            self.faults[1] += answer.usage.ru_majflt
        if answer.text is None:
            raise Absent(f"{command[0]} did not answer")
        return answer.text


def too_short(seconds: float, least_s: float) -> str:
    """Why a block of some seconds has no such metric."""
    return f"the block took {seconds:.2f} s; {least_s:g} s are needed"


class Source:
    """One source. `missing` says why a part of it is absent; `flags` are those of the block that hold.

    `read()` gives what it says now, and `values(first, last, seconds)` the block's metrics from the readings at its two
    ends, or raises Absent if they say nothing.
    """

    metrics: ClassVar[dict[str, str]]  # what becomes of it -> unit
    least_s: ClassVar[float] = 0.0  # shorter blocks are not resolved
    samples: int | None = None  # what its metrics rest on, if not all readings of the block
    read: Callable[[], Any]
    values: Callable[[Any, Any, float], dict[str, float]]

    def __init__(self, block: Block) -> None:
        self.block, self.missing, self.flags = block, dict[str, str](), list[str]()

    def due(self, since_s: float, edge: bool) -> bool:
        """Whether to read it now, `since_s` seconds after the block began. edge: at one of the block's two ends."""
        return True


class Peak(Source):
    """A source of which the highest reading counts. `open()` gives what reads it, or raises Absent."""

    open: Callable[[], Callable[[], float]]

    def __init__(self, block: Block) -> None:
        super().__init__(block)
        self.now, self.peak = self.open(), float("-inf")

    def read(self) -> float:
        value = self.now()
        self.peak = max(value, self.peak)
        return value

    def values(self, first: float, last: float, seconds: float) -> dict[str, float]:
        return dict.fromkeys(self.metrics, self.peak)


class Change(Source):
    """A source whose counters are read at both ends of the block; what counts is their change."""

    def due(self, since_s: float, edge: bool) -> bool:
        return edge

    def values(self, first: dict, last: dict, seconds: float) -> dict[str, float]:
        return {name: last[name] - before for name, before in first.items()}


class Energy(Source):
    """Joules of the meters of this device. (NVML renews its energy every 0.1 s.)"""

    metrics: ClassVar = {"power_w": "W", "energy_j": "J"}
    least_s = 1.0

    def __init__(self, block: Block) -> None:
        super().__init__(block)
        self._meters, absent = energy.meters(block.device)
        if not self._meters:
            raise Absent("; ".join(absent.values()))
        self.rails = [rail for meter in self._meters for rail in meter.rails]
        for meter in self._meters:
            self.missing |= {f"energy of the {rail}": why for rail, why in getattr(meter, "missing", {}).items()}

    def read(self) -> float:
        return sum(meter.energy_j() for meter in self._meters)

    def values(self, first: float, last: float, seconds: float) -> dict[str, float]:
        if last <= first:
            raise Absent("the energy counter did not move")
        return {"power_w": (last - first) / seconds, "energy_j": last - first}


class Load(Source):
    """CPU seconds of the machine and of this process with its children. (Systems count ticks of 10 ms a core.)"""

    metrics: ClassVar = {"foreign_load": "", "cpu_busy": "%"}
    least_s = 0.5

    def __init__(self, block: Block) -> None:
        super().__init__(block)
        self._children_s: dict[int, float] = {}

    def due(self, since_s: float, edge: bool) -> bool:
        # A child's CPU time is noted while it lives: macOS has none between its end and the wait for it.
        return edge or bool(memory.live_children())

    def read(self) -> tuple[float, float, float]:
        """Now, CPU seconds of the machine, CPU seconds of this process and its children, ended ones included."""
        now, busy_s = self.block.clock(), snapshot.cpu_busy_s()
        own_s = sum(usage.ru_utime + usage.ru_stime for usage in memory.usages())
        for pid in memory.live_children():
            with contextlib.suppress(psutil.NoSuchProcess):  # ended, not yet waited for: what it last had used stands
                used = psutil.Process(pid).cpu_times()
                self._children_s[pid] = used.user + used.system + used.children_user + used.children_system
            own_s += self._children_s.get(pid, 0.0)
        return now, busy_s, own_s

    def values(self, first: tuple, last: tuple, seconds: float) -> dict[str, float]:
        wall_s, busy_s, own_s = (after - before for before, after in zip(first, last, strict=True))
        cores = psutil.cpu_count() or 1
        return {"foreign_load": max(0.0, (busy_s - own_s) / wall_s), "cpu_busy": 100 * own_s / wall_s / cores}


class Faults(Change):
    """Page faults of this process and its ended children: all, and those that needed the disk, macOS's page-ins."""

    metrics: ClassVar = {"page_faults": "count", "page_ins": "count"}

    def read(self) -> dict[str, int]:
        usages, (minor, major) = memory.usages(), self.block.faults
        page_ins = sum(usage.ru_majflt for usage in usages) - major
        return {"page_faults": sum(usage.ru_minflt for usage in usages) - minor + page_ins, "page_ins": page_ins}


class Swap(Change):
    """The machine's swap space in use."""

    metrics: ClassVar = {"swap_bytes": "B"}

    def read(self) -> dict[str, int]:
        return {"swap_bytes": psutil.swap_memory().used}


class Footprint(Peak):
    """Memory of this process and its children; `origin` says what counts it."""

    metrics: ClassVar = {"footprint_peak_bytes": "B"}

    def open(self) -> Callable[[], int]:
        self.origin, read = memory.footprint()
        return read


class Temperature(Peak):
    """Of the GPU, or of the hottest processor package, in °C."""

    metrics: ClassVar = {"temperature_c": "°C"}

    def open(self) -> Callable[[], float]:
        if sys.platform == "darwin":
            raise Absent("macOS has no public temperature sensor")
        if self.block.device == "gpu":
            nvml, gpu = energy.nvml_gpu()
            return lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)
        # The files are listed once: psutil would look through all sensors of the machine at every sample.
        files: list[Path] = []
        for chip in sorted(HWMON.glob("hwmon*")):
            if (chip / "name").read_text().strip() not in ("coretemp", "k10temp", "zenpower"):
                continue
            labels = {label.read_text().strip(): label for label in sorted(chip.glob("temp*_label"))}
            packages = [label for text, label in labels.items() if text.startswith("Package id")]
            # AMD: Tdie is the temperature, Tctl on some models that plus an offset.
            packages = packages or [labels[text] for text in ("Tdie", "Tctl") if text in labels][:1]
            files += [label.with_name(label.name.replace("_label", "_input")) for label in packages]
        if not files:
            raise Absent("this machine shows no temperature of its processor")
        return lambda: max(int(file.read_text()) for file in files) / 1e3


class Thermal(Peak):
    """macOS's thermal level; see `snapshot.thermal_level`."""

    metrics: ClassVar = {"thermal_level": ""}

    def open(self) -> Callable[[], int | None]:
        if snapshot.thermal_level() is None:
            mac = sys.platform == "darwin"
            raise Absent("macOS tells no thermal level" if mac else "only macOS tells a thermal level")
        return snapshot.thermal_level


class GPU(Source):
    """How busy the GPU was, in %: the mean of readings from the first second on, when they are of the block alone."""

    metrics: ClassVar = {"gpu_busy": "%"}

    def __init__(self, block: Block) -> None:
        super().__init__(block)
        if block.device == "cpu":
            raise Absent("told only where a GPU is timed")
        mac = sys.platform == "darwin"
        self._every_s, self._next_s, self._readings = GPU_WINDOW_S if mac else 0.0, GPU_WINDOW_S, list[float]()
        if mac:
            self._busy = lambda: gpu_busy(block.run("ioreg", "-r", "-d", "1", "-w", "0", "-c", "IOAccelerator"))
        else:
            nvml, gpu = energy.nvml_gpu()
            self._busy = lambda: float(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu)
        self._busy()  # if it cannot, it says so now

    def due(self, since_s: float, edge: bool) -> bool:
        if edge or since_s < self._next_s:  # at an edge it has just been waited for, and is idle
            return False
        self._next_s = since_s + self._every_s
        return True

    def read(self) -> float:
        self._readings.append(self._busy())
        self.samples = len(self._readings)
        return self._readings[-1]

    def values(self, first: Any, last: Any, seconds: float) -> dict[str, float]:
        if not self._readings:
            raise Absent(too_short(seconds, GPU_WINDOW_S + self.block.interval_s))
        return {"gpu_busy": sum(self._readings) / len(self._readings)}


def gpu_busy(text: str) -> float:
    """The busiest of the GPUs that `ioreg` lists, in %. (An Ultra's two dies are one GPU to programs.)"""
    statistics = re.findall(r'^[ |]*"PerformanceStatistics" = \{(.*)\}$', text, re.MULTILINE)
    matches = [re.search(r'"Device Utilization %"=(\d+)', line) for line in statistics]
    percents = [float(match[1]) for match in matches if match]
    if not percents:
        raise Absent("this GPU does not tell how busy it is" if text.strip() else "macOS lists no GPU")
    return max(percents)


class Pressure(Change):
    """What the machine swaps and compresses."""

    metrics: ClassVar = dict.fromkeys(("swapped_bytes", "compressed_bytes", "compressor_bytes"), "B")

    def __init__(self, block: Block) -> None:
        super().__init__(block)
        if sys.platform != "darwin":
            memory.swapped_bytes()
            self.missing = dict.fromkeys(list(self.metrics)[1:], "only macOS tells what it compresses")

    def read(self) -> dict[str, int]:
        if sys.platform == "darwin":
            return memory.vm_stat(self.block.run("vm_stat"))
        return {"swapped_bytes": memory.swapped_bytes()}

    def values(self, first: dict, last: dict, seconds: float) -> dict[str, float]:
        moved = super().values(first, last, seconds)
        for flag, (name, least, least_per_s) in SHORTAGE.items():
            if moved.get(name, 0) > max(least, least_per_s * seconds):
                self.flags.append(flag)
        return moved


# In the order in which they are read at the end of the block; see `Telemetry`.
SOURCES: dict[str, type[Source]] = {
    **{"energy": Energy, "load": Load, "faults": Faults, "swap": Swap, "footprint": Footprint},
    **{"temperature": Temperature, "thermal": Thermal, "gpu": GPU, "pressure": Pressure},
}
