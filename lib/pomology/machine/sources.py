"""What a `Sampler` reads of the machine, besides energy: an entry of `SOURCES` for each source.

A source is opened when the block begins, which raises Absent where it cannot be read here. What it
does not know is left out of the metrics.
"""

import math
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import psutil

from pomology.machine import energy, memory, quiet, snapshot
from pomology.machine.energy import Absent

HWMON = Path("/sys/class/hwmon")
CPUFREQ = Path("/sys/devices/system/cpu")
VMSTAT = Path("/proc/vmstat")
IOREG = ("ioreg", "-r", "-d", "1", "-w", "0", "-c", "IOAccelerator")
# What pages are counted under which names, in Linux's file and by macOS's command.
LINUX_PAGES = {"swapped_bytes": ("pswpin", "pswpout")}
MAC_PAGES = {
    "swapped_bytes": ("Swapins", "Swapouts"),
    "compressed_bytes": ("Compressions", "Decompressions"),
    "compressor_bytes": ("Pages occupied by compressor",),
}
# A driver says how busy its GPU was over up to the last second; on a Mac the question takes a
# process of its own.
GPU_WINDOW_S = 1.0
LOAD_LEAST_S = 0.5  # shorter blocks are not resolved by ticks of 10 ms
# Traffic above both counts as a shortage of memory: bytes in all, and bytes a second. Systems move a
# little at all times. A disk that swapped single pages at 100 MB/s, or a core that compressed at 1 GB/s,
# would be busy for 1 % of the time.
SHORTAGE = (("swapped_bytes", 10e6, 1e6), ("compressed_bytes", 100e6, 10e6))

Values = dict[str, float]


class Source(NamedTuple):
    """One thing that is read.

    units: of its metrics. open: given the kind of device, returns what reads it. values: of the
    readings and the block's seconds, returns the metrics, or raises Absent. at_ends, within: where
    it is read. counts_readings: whether a metric's n counts only the readings of this source.
    """

    units: dict[str, str]
    open: Callable[[str], Callable[[], Any]]
    values: Callable[[list[Any], float], Values]
    at_ends: bool = True
    within: bool = True
    counts_readings: bool = False


def _highest(name: str) -> Callable[[list[Any], float], Values]:
    def values(readings: list[float], seconds: float) -> Values:
        return {name: max(readings)}

    return values


def _mean(name: str) -> Callable[[list[Any], float], Values]:
    def values(readings: list[float], seconds: float) -> Values:
        if not readings:
            raise Absent(f"the GPU was not asked in the {seconds:.2f} s of the block")
        return {name: sum(readings) / len(readings)}

    return values


def _growth(readings: list[dict[str, float]], seconds: float) -> Values:
    """Return by how much counters have grown from one end of the block to the other."""
    first = readings[0]
    last = readings[-1]
    return {name: last[name] - first[name] for name in first}


def _cpu_busy(readings: list[float], seconds: float) -> Values:
    if seconds < LOAD_LEAST_S:
        raise Absent(f"the block took {seconds:.2f} s; {LOAD_LEAST_S:g} s are needed")
    used_s = readings[-1] - readings[0]
    return {"cpu_busy": 100 * used_s / seconds / (psutil.cpu_count() or 1)}


def _load(kind: str) -> Callable[[], float]:
    return quiet.own_s


def _faults(kind: str) -> Callable[[], dict[str, int]]:
    def read() -> dict[str, int]:
        minor, page_ins = memory.page_faults()
        return {"page_faults": minor + page_ins, "page_ins": page_ins}

    return read


def _swap(kind: str) -> Callable[[], dict[str, int]]:
    return lambda: {"swap_bytes": psutil.swap_memory().used}


def _footprint(kind: str) -> Callable[[], int]:
    return memory.footprint()[1]


def _temperature(kind: str) -> Callable[[], float]:
    """Read the temperature of the GPU, or of the hottest processor package, in °C."""
    if sys.platform == "darwin":
        raise Absent("macOS has no public temperature sensor")
    if kind == "gpu":
        nvml, gpu = energy.nvml_gpu()
        return lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)
    # The files are listed once: psutil would look through all sensors of the machine each time.
    files: list[Path] = []
    for chip in sorted(HWMON.glob("hwmon*")):
        if (chip / "name").read_text().strip() not in ("coretemp", "k10temp", "zenpower"):
            continue
        labels = {label.read_text().strip(): label for label in sorted(chip.glob("temp*_label"))}
        # AMD: Tdie is the temperature, Tctl on some models that plus an offset.
        wanted = "Tdie" if "Tdie" in labels else ("Package id", "Tctl")
        for text, label in labels.items():
            if text.startswith(wanted):
                files.append(label.with_name(label.name.replace("_label", "_input")))
    if not files:
        raise Absent("this machine shows no temperature of its processor")
    return lambda: max(int(file.read_text()) for file in files) / 1e3


def _clock_rate(kind: str) -> Callable[[], float]:
    """Read the clock of the GPU's multiprocessors, or of the fastest of a dozen cores, in Hz.

    A core is woken up to be asked, so not all of a server's are.
    """
    if sys.platform == "darwin":
        raise Absent("macOS publishes no clock rate")
    if kind == "gpu":
        nvml, gpu = energy.nvml_gpu()
        return lambda: 1e6 * nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)
    files = sorted(CPUFREQ.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
    if not files:
        raise Absent("this system does not say what its cores are clocked at")
    some = files[:: math.ceil(len(files) / 12)]
    return lambda: 1e3 * max(int(file.read_text()) for file in some)


def _thermal(kind: str) -> Callable[[], int | None]:
    if snapshot.thermal_level() is None:
        raise Absent("only macOS tells a thermal level")
    return snapshot.thermal_level


def _gpu(kind: str) -> Callable[[], float | None]:
    """Read how busy the GPU is, in %: on a Mac once a second, and not in the first second.

    That one may be about what came before the block.
    """
    if kind == "cpu":
        raise Absent("told only where a GPU is timed")
    if sys.platform == "darwin":
        every_s = GPU_WINDOW_S

        def ask() -> float:
            return gpu_busy(_output(*IOREG))

    else:
        every_s = 0.0
        nvml, gpu = energy.nvml_gpu()

        def ask() -> float:
            return float(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu)

    next_s = perf_counter() + GPU_WINDOW_S

    def read() -> float | None:
        nonlocal next_s
        if perf_counter() < next_s:
            return None
        next_s = perf_counter() + every_s
        return ask()

    return read


def gpu_busy(text: str) -> float:
    """Return how busy the busiest of the GPUs is that `ioreg` lists, in %."""
    # An Ultra's two dies are one GPU to programs.
    lines = re.findall(r'^[ |]*"PerformanceStatistics" = \{(.*)\}$', text, re.MULTILINE)
    percents = re.findall(r'"Device Utilization %"=(\d+)', "\n".join(lines))
    if not percents:
        raise Absent("this GPU does not tell how busy it is")
    return max(map(float, percents))


def _output(*command: str) -> str:
    text = snapshot.run_command(*command, timeout=2)
    if text is None:
        raise Absent(f"{command[0]} did not answer")
    return text


def _pressure(kind: str) -> Callable[[], dict[str, int]]:
    if sys.platform == "darwin":
        return lambda: vm_stat(_output("vm_stat"))

    def read() -> dict[str, int]:
        # psutil would take every page for one of 4 KiB.
        pages = re.findall(r"^(\w+) (\d+)$", VMSTAT.read_text(), re.MULTILINE)
        return _bytes_of(pages, resource.getpagesize(), LINUX_PAGES)

    return read


def vm_stat(text: str) -> dict[str, int]:
    """Return the bytes that macOS has moved into and out of swap and its compressor.

    Also what the compressor holds.
    """
    # The size of a page stands in the first line: 16384 on Apple Silicon, 4096 on Intel.
    first = r"Mach Virtual Memory Statistics: \(page size of (\d+) bytes\)\n"
    size = re.match(first, text)
    pages = re.findall(r"^([^:]+):\s+(\d+)\.$", text, re.MULTILINE)
    return _bytes_of(pages, int(size[1]) if size else 0, MAC_PAGES)


def _bytes_of(lines: list[tuple[str, str]], page_bytes: int, counters: dict[str, tuple[str, ...]]) -> dict[str, int]:
    pages = {name: int(count) for name, count in lines}
    needed = {key for keys in counters.values() for key in keys}
    if not page_bytes or not needed <= pages.keys():
        raise Absent("this system does not count what it swaps as is known here")
    return {name: page_bytes * sum(pages[key] for key in keys) for name, keys in counters.items()}


# In the order in which they are read at the end of the block.
SOURCES = {
    "load": Source({"cpu_busy": "%"}, _load, _cpu_busy),
    "faults": Source({"page_faults": "count", "page_ins": "count"}, _faults, _growth, within=False),
    "swap": Source({"swap_bytes": "B"}, _swap, _growth, within=False),
    "footprint": Source({"footprint_peak_bytes": "B"}, _footprint, _highest("footprint_peak_bytes")),
    "temperature": Source({"temperature_c": "°C"}, _temperature, _highest("temperature_c")),
    "thermal": Source({"thermal_level": ""}, _thermal, _highest("thermal_level")),
    "clock": Source({"clock_hz": "Hz"}, _clock_rate, _mean("clock_hz"), counts_readings=True),
    "gpu": Source({"gpu_busy": "%"}, _gpu, _mean("gpu_busy"), at_ends=False, counts_readings=True),
    "pressure": Source(dict.fromkeys(MAC_PAGES, "B"), _pressure, _growth, within=False),
}
