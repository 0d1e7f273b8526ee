"""What `Telemetry` reads of the machine, an entry of `SOURCES` for each source.

A source is opened when the block begins, which raises Absent where it cannot be read here, and read at both ends of the
block, some meanwhile too. What it does not know is left out of the metrics."""

from __future__ import annotations

import math
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

from pomology.machine import energy, memory, quiet, rails, snapshot
from pomology.machine.energy import Absent

if TYPE_CHECKING:
    from pomology.machine.sampler import Telemetry

HWMON = Path("/sys/class/hwmon")
CPUFREQ = Path("/sys/devices/system/cpu")
VMSTAT = Path("/proc/vmstat")
IOREG = ("ioreg", "-r", "-d", "1", "-w", "0", "-c", "IOAccelerator")
# What pages are counted under which names, in Linux's file and by macOS's command.
LINUX_PAGES = {"swapped_bytes": ("pswpin", "pswpout")}
MAC_PAGES = {"swapped_bytes": ("Swapins", "Swapouts"), "compressed_bytes": ("Compressions", "Decompressions")}
MAC_PAGES |= {"compressor_bytes": ("Pages occupied by compressor",)}
# A driver says how busy its GPU was over up to the last second; on a Mac the question takes a process of its own.
GPU_WINDOW_S = 1.0
# Traffic above both counts as a shortage of memory: bytes in all, and bytes a second. Systems always move a little. A
# disk that swapped single pages at 100 MB/s, or a core that compressed at 1 GB/s, would be busy for 1 % of the time.
SHORTAGE = {"swapping": ("swapped_bytes", 10e6, 1e6), "compressing": ("compressed_bytes", 100e6, 10e6)}


def peak_or_change(readings: list[Any], seconds: float) -> Any:
    """The highest of numbers; by how much counters have grown from one end of the block to the other."""
    first, last = readings[0], readings[-1]
    return {name: last[name] - first[name] for name in first} if isinstance(first, dict) else max(readings)


def at_ends(since_s: float, before_s: float, edge: bool) -> bool:
    """For counters: what they were in between changes nothing."""
    return edge


class Source(NamedTuple):
    """units: of its metrics. open(watch): gives what reads it. least_s: shorter blocks are not resolved.

    values(readings, seconds): the block's metrics, or the value of the only one, or raises Absent. due(since_s,
    before_s, edge): whether to read it `since_s` after the block began and `before_s` before that; edge: at an end."""

    units: dict[str, str]
    open: Callable[[Telemetry], Callable[[], Any]]
    values: Callable[[list[Any], float], Any] = peak_or_change
    due: Callable[[float, float, bool], bool] = lambda *_: True
    least_s: float = 0.0


def _energy(watch: Telemetry) -> rails.Counters:
    counters = rails.Counters(watch.device, watch.clock)
    watch.rails, watch.powers = counters.rails, counters.powers
    watch.absent |= {f"energy of the {rail}": why for rail, why in counters.missing.items()}
    return counters


def _load_due(since_s: float, before_s: float, edge: bool) -> bool:
    # `own_s` notes a child's CPU time while it lives.
    return edge or bool(memory.live_children())


def _cpu_busy(readings: list[float], seconds: float) -> float:
    return 100 * (readings[-1] - readings[0]) / seconds / (psutil.cpu_count() or 1)


def _faults() -> dict[str, int]:
    both = memory.page_faults(resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    minor, page_ins = (count - commands for count, commands in zip(both, snapshot.command_faults, strict=True))
    return {"page_faults": minor + page_ins, "page_ins": page_ins}


def _footprint(watch: Telemetry) -> Callable[[], int]:
    watch.footprint_source, read = memory.footprint()
    return read


def _temperature(watch: Telemetry) -> Callable[[], float]:
    """Of the GPU, or of the hottest processor package, in °C."""
    if sys.platform == "darwin":
        raise Absent("macOS has no public temperature sensor")
    if watch.device == "gpu":
        nvml, gpu = energy.nvml_gpu()
        return lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)
    # The files are listed once: psutil would look through all sensors of the machine at every sample.
    files: list[Path] = []
    for chip in sorted(HWMON.glob("hwmon*")):
        if (chip / "name").read_text().strip() in ("coretemp", "k10temp", "zenpower"):
            labels = {label.read_text().strip(): label for label in sorted(chip.glob("temp*_label"))}
            # AMD: Tdie is the temperature, Tctl on some models that plus an offset.
            wanted = "Tdie" if "Tdie" in labels else ("Package id", "Tctl")
            packages = [label for text, label in labels.items() if text.startswith(wanted)]
            files += [label.with_name(label.name.replace("_label", "_input")) for label in packages]
    if not files:
        raise Absent("this machine shows no temperature of its processor")
    return lambda: max(int(file.read_text()) for file in files) / 1e3


def _clock_rate(watch: Telemetry) -> Callable[[], float]:
    """Of the GPU's multiprocessors, or of the fastest of a dozen cores, in Hz. (psutil also gives what never changes.)

    A core is woken up to be asked, so not all of a server's are."""
    if sys.platform == "darwin":
        raise Absent("macOS publishes no clock rate")
    if watch.device == "gpu":
        nvml, gpu = energy.nvml_gpu()
        return lambda: 1e6 * nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)
    files = sorted(CPUFREQ.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
    if not files:
        raise Absent("this system does not say what its cores are clocked at")
    some = files[:: math.ceil(len(files) / 12)]
    return lambda: 1e3 * max(int(file.read_text()) for file in some)


def _thermal(watch: Telemetry) -> Callable[[], int | None]:
    if snapshot.thermal_level() is None:
        raise Absent("only macOS tells a thermal level")
    return snapshot.thermal_level


def _gpu(watch: Telemetry) -> Callable[[], float]:
    if watch.device == "cpu":
        raise Absent("told only where a GPU is timed")
    if sys.platform == "darwin":
        return lambda: gpu_busy(_said(*IOREG))
    nvml, gpu = energy.nvml_gpu()
    return lambda: float(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu)


def _gpu_due(since_s: float, before_s: float, edge: bool) -> bool:
    # The first second may be about what came before the block; at an edge the GPU has been waited for, and is idle.
    again = sys.platform != "darwin" or since_s // GPU_WINDOW_S > before_s // GPU_WINDOW_S
    return since_s >= GPU_WINDOW_S and not edge and again


def mean(readings: list[float], seconds: float) -> float:
    if not readings:
        raise Absent(f"the GPU was not asked in the {seconds:.2f} s of the block")
    return sum(readings) / len(readings)


def gpu_busy(text: str) -> float:
    """The busiest of the GPUs that `ioreg` lists, in %. (An Ultra's two dies are one GPU to programs.)"""
    statistics = re.findall(r'^[ |]*"PerformanceStatistics" = \{(.*)\}$', text, re.MULTILINE)
    percents = [float(busy) for line in statistics for busy in re.findall(r'"Device Utilization %"=(\d+)', line)]
    if not percents:
        raise Absent("this GPU does not tell how busy it is")
    return max(percents)


def _said(*command: str) -> str:
    text = snapshot.run_command(*command, timeout=2)
    if text is None:
        raise Absent(f"{command[0]} did not answer")
    return text


def _pressure(watch: Telemetry) -> Callable[[], dict[str, int]]:
    if sys.platform == "darwin":
        return lambda: vm_stat(_said("vm_stat"))
    watch.absent |= dict.fromkeys(MAC_PAGES.keys() - LINUX_PAGES.keys(), "only macOS tells what it compresses")
    # psutil would take every page for one of 4 KiB.
    return lambda: _moved(VMSTAT.read_text(), r"^(\w+) (\d+)$", resource.getpagesize(), LINUX_PAGES)


def vm_stat(text: str) -> dict[str, int]:
    """What macOS has moved into and out of swap and its compressor since it started, and what the latter holds."""
    # The size of a page stands in the first line: 16384 on Apple Silicon, 4096 on Intel.
    size = re.match(r"Mach Virtual Memory Statistics: \(page size of (\d+) bytes\)\n", text)
    return _moved(text, r"^([^:]+):\s+(\d+)\.$", int(size[1]) if size else 0, MAC_PAGES)


def _moved(text: str, line: str, page_bytes: int, counters: dict[str, tuple[str, ...]]) -> dict[str, int]:
    pages = {name: int(count) for name, count in re.findall(line, text, re.MULTILINE)}
    if not page_bytes or not pages.keys() >= {key for keys in counters.values() for key in keys}:
        raise Absent("this system does not count what it swaps as is known here")
    return {name: page_bytes * sum(pages[key] for key in keys) for name, keys in counters.items()}


# In the order in which they are read at the end of the block; see `Telemetry`.
SOURCES = {
    "energy": Source({"power_w": "W", "energy_j": "J"}, _energy, least_s=1.0),
    "load": Source({"cpu_busy": "%"}, lambda watch: quiet.own_s, _cpu_busy, _load_due, 0.5),
    "faults": Source({"page_faults": "count", "page_ins": "count"}, lambda watch: _faults, due=at_ends),
    "swap": Source({"swap_bytes": "B"}, lambda watch: lambda: {"swap_bytes": psutil.swap_memory().used}, due=at_ends),
    "footprint": Source({"footprint_peak_bytes": "B"}, _footprint),
    "temperature": Source({"temperature_c": "°C"}, _temperature),
    "thermal": Source({"thermal_level": ""}, _thermal),
    "clock": Source({"clock_hz": "Hz"}, _clock_rate, mean),
    "gpu": Source({"gpu_busy": "%"}, _gpu, mean, _gpu_due),
    "pressure": Source(dict.fromkeys(MAC_PAGES, "B"), _pressure, due=at_ends),
}
