"""What the machine did while a block of code ran: energy, temperature, memory, page faults, swap, load.

One daemon thread reads all sources, by default twice a second, which takes about 0.1 % of a core (where a Mac's GPU is
timed, it also runs `ioreg` once a second):

    device.fence()                                  # nothing from before may still run
    with Telemetry(device=device.kind) as telemetry:
        ...
        device.fence()                              # everything from inside must have ended
    telemetry.metrics()                             # {"power_w": {"value": 31.2, "unit": "W", ...}, ...}

Energy is the difference of a counter between the first and the last reading, so without the two fences work is billed
to the wrong block. What a source cannot tell is left out of the metrics, and `absent` says why.
"""

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
import threading
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from pomology.machine import snapshot

POWERCAP = Path("/sys/class/powercap")
HWMON = Path("/sys/class/hwmon")
VMSTAT = Path("/proc/vmstat")

# Shorter blocks are not resolved: NVML renews its energy every 0.1 s, systems count CPU time in ticks of 10 ms a core.
LEAST_S = {"energy": 1.0, "load": 0.5}
MOST_SAMPLES = 4096
MOST_TRACED = 1000  # rows of a trace of memory
# A driver tells how busy its GPU was over up to the last second; on a Mac the question takes a process of its own.
GPU_WINDOW_S = 1.0
# Traffic above both counts as a shortage of memory: bytes in all, and bytes a second. Systems always move a little. A
# disk that swapped single pages at 100 MB/s, or a core that compressed at 1 GB/s, would be busy for 1 % of the time.
SWAPPING, COMPRESSING = (10e6, 1e6), (100e6, 10e6)

METRICS = {  # source: what becomes of it
    "energy": ("power_w", "energy_j"),
    "load": ("foreign_load", "cpu_busy"),
    "faults": ("page_faults", "page_ins"),
    "swap": ("swap_bytes",),
    "pressure": ("swapped_bytes", "compressed_bytes", "compressor_bytes"),
    "footprint": ("footprint_peak_bytes",),
    "temperature": ("temperature_c",),
    "thermal": ("thermal_level",),
    "gpu": ("gpu_busy",),
}
AT_EDGES = ("faults", "swap", "pressure")
APPLE_RAILS = {"cpu": "cpu_total_mj", "gpu": "gpu_mj", "dram": "dram_mj", "ane": "ane_mj"}
UNITS = {
    **{"power_w": "W", "energy_j": "J", "page_faults": "count", "page_ins": "count", "temperature_c": "°C"},
    **{"cpu_busy": "%", "gpu_busy": "%"},
}


class Absent(Exception):
    """A source cannot be read here; the text says why in plain words."""


class Sample(NamedTuple):
    """One reading; `power_w` is the mean since the sample before. None is what was not or could not be read."""

    t_s: float
    footprint_bytes: int | None
    power_w: float | None
    temperature_c: float | None
    gpu_busy: float | None


class AppleMeter:
    """Energy of an Apple chip as macOS estimates it, without root: the whole chip, not this process. Steps of 1 mJ.

    `rails` are those that this chip tells; `missing` says why one of them is left out. Read with zeus-apple-silicon, of
    which any field may be None.
    """

    name = "apple"

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}
        if snapshot.virtual_machine():
            # The library does not look whether there are counters; where there are none it would end this process.
            raise Absent("not asked in a virtual machine, which need not have energy counters")
        try:
            from zeus_apple_silicon import AppleEnergyMonitor

            self._monitor = AppleEnergyMonitor()
            first = self._monitor.get_cumulative_energy()
        except ImportError as error:
            raise Absent("zeus-apple-silicon is not installed") from error
        except (RuntimeError, ValueError, OSError) as error:  # ValueError: a unit that it does not know
            raise Absent(f"macOS does not open its energy counters: {error}") from error
        self.rails = [rail for rail, field in APPLE_RAILS.items() if getattr(first, field) is not None]
        if "cpu" in self.rails and "Ultra" in (snapshot.chip() or "") and not _sums_dies():
            self.missing["cpu"] = "zeus-apple-silicon up to 1.1.0 counts the CPU of one of an Ultra's two dies"
            self.rails.remove("cpu")
        if not self.rails:
            raise Absent("macOS's energy counters are empty on this chip")

    def energy_j(self) -> float:
        now = self._monitor.get_cumulative_energy()
        told_mj = [getattr(now, APPLE_RAILS[rail]) for rail in self.rails]
        if None in told_mj:
            raise Absent("macOS no longer tells its energy counters")
        return sum(told_mj) / 1e3


def _sums_dies() -> bool:
    """Whether the installed zeus-apple-silicon adds up the CPU counters of several dies; 1.1.0 keeps the last one."""
    try:
        version = metadata.version("zeus-apple-silicon")
    except metadata.PackageNotFoundError:
        return False
    return [int(number) for number in re.findall(r"\d+", version)] > [1, 1, 0]


class NvmlMeter:
    """Energy of the first visible NVIDIA GPU: its own counter, or where it has none its power integrated over reads."""

    name = "nvml"
    rails = ("gpu",)

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._nvml, self._gpu = _nvml_gpu()
        self._clock, self._last, self._sum_j = clock, None, 0.0
        try:
            self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu)
            self._counts = True
        except self._nvml.NVMLError:
            self._counts = False
        try:
            self.energy_j()
        except self._nvml.NVMLError as error:
            raise Absent(f"this NVIDIA GPU tells neither energy nor power: {error}") from error

    def energy_j(self) -> float:
        if self._counts:
            return self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu) / 1e3
        now, power_w = self._clock(), self._nvml.nvmlDeviceGetPowerUsage(self._gpu) / 1e3
        if self._last is not None:
            before, power_before_w = self._last
            self._sum_j += (now - before) * (power_w + power_before_w) / 2
        self._last = now, power_w
        return self._sum_j


class RaplMeter:
    """Energy of all processor packages, and of memory where counted, from Linux's powercap files.

    The zones `core` and `uncore` are within a package and `psys` around it: adding them would count twice. The counters
    wrap around after minutes to hours, so they must be read more often than that.
    """

    name = "rapl"

    def __init__(self) -> None:
        try:
            names = {folder: (folder / "name").read_text().strip() for folder in sorted(POWERCAP.glob("intel-rapl:*"))}
            zones = [folder for folder, name in names.items() if name.startswith("package") or name == "dram"]
            self._last = {zone / "energy_uj": int((zone / "energy_uj").read_text()) for zone in zones}
            self._range = {zone / "energy_uj": int((zone / "max_energy_range_uj").read_text()) for zone in zones}
        except PermissionError as error:
            raise Absent("this system lets only root read the RAPL energy counters") from error
        except OSError as error:
            raise Absent(f"the RAPL energy counters do not answer: {error}") from error
        if not zones:
            raise Absent("this machine shows no RAPL energy counters")
        self.rails = ["cpu package"] + ["dram"] * ("dram" in names.values())
        self._sum_uj = 0

    def energy_j(self) -> float:
        for counter, before in self._last.items():
            now = self._last[counter] = int(counter.read_text())
            self._sum_uj += now - before if now >= before else now - before + self._range[counter]
        return self._sum_uj / 1e6


def meters(device: str | None = None) -> tuple[list[Any], dict[str, str]]:
    """The energy meters that answer here for a device ("cpu", "gpu", None for both), and why the others do not.

    A meter has a `name`, `rails` (what it covers) and `energy_j()`, a running total in joules. On a Mac one meter
    covers the whole chip, the device at the least; elsewhere RAPL covers the CPU and NVML the GPU.
    """
    by_device = {"cpu": [RaplMeter], "gpu": [NvmlMeter], None: [RaplMeter, NvmlMeter]}
    found, absent = [], {}
    for meter in [AppleMeter] if sys.platform == "darwin" else by_device[device]:
        try:
            opened = meter()
            if meter is AppleMeter and device not in (None, *opened.rails):
                raise Absent(opened.missing.get(device, f"this chip does not tell the energy of its {device}"))
            found.append(opened)
        except Absent as reason:
            absent[meter.name] = str(reason)
    return found, absent


def contended(foreign_load: float | None) -> bool:
    """Whether others used enough of the machine to spoil a measurement: over 0.1 core and over 2.5 % of all.

    What is not known is not held against a measurement.
    """
    return foreign_load is not None and foreign_load > max(0.1, 0.025 * (psutil.cpu_count() or 1))


class Telemetry:
    """Watch the machine while a block runs; one use each. device: "cpu" or "gpu", which decides the meter on PCs.

    After the block: `metrics()`; `foreign_load` (cores that other processes used, mean), `thermal_level` (highest, see
    `machine.thermal_level`), `rails` (what the energy covers), `flags` (of `swapping` and `compressing` those that
    hold), `footprint_source`, `seconds`, `samples`, `thread_s` (CPU time of the sampling thread itself), `absent`
    (metric or attribute -> why it is missing).

    The process means this one and its multiprocessing children (DataLoader workers). Its footprint is macOS's physical
    footprint, as in Activity Monitor, else resident memory, where pages that forked workers share count once; see
    `_Resident`. A peak between two samples is not seen. Children's page faults count when they have ended. Energy and
    temperature are the machine's: others' work is in them.

    Memory, on Linux and on macOS (psutil 7.2.2 and xnu 11417 read for it):
    `page_faults`: all of the process, of pages of 16 KiB on Apple Silicon and mostly 4 KiB elsewhere.
    `page_ins`: those of them that needed the disk. On Linux that includes pages that were swapped out; macOS counts
    pages of files only, but also those that it had read ahead.
    `swap_bytes`: by how much the machine's swap space in use grew. It can shrink while the machine swaps, so it proves
    little. psutil's `sin` and `sout` are swap on Linux, but on macOS every page-in and page-out; not used.
    `swapped_bytes`: what the machine moved into and out of swap; over 10 MB and 1 MB a second is `swapping`.
    `compressed_bytes`: memory that macOS compressed or decompressed, which it does long before it swaps; over 100 MB
    and 10 MB a second is `compressing`. `compressor_bytes`: by how much the memory grew that holds what is compressed.

    `cpu_busy`: what the process used of all the machine's hardware threads, in %. `gpu_busy`: the part of the time in
    which the GPU did anything for anyone, as its driver says, in %: the mean of samples from the first second on. It
    does not tell how much of the GPU was used; on a Mac not at which clock either, and what span macOS looks at is not
    documented.
    """

    def __init__(
        self, interval_s: float = 0.5, device: str = "cpu", clock: Callable[[], float] = time.perf_counter
    ) -> None:
        if device not in ("cpu", "gpu") or not interval_s > 0:
            raise ValueError(f"device must be cpu or gpu and interval_s above 0, not {device!r} and {interval_s!r}")
        self.interval_s, self.device = interval_s, device
        self.foreign_load: float | None = None
        self.thermal_level: int | None = None
        self.footprint_source: str | None = None
        self.seconds: float | None = None
        self.thread_s: float | None = None
        self.rails: list[str] = []
        self.flags: list[str] = []
        self.absent: dict[str, str] = {}
        self._clock = clock
        self._sources: dict[str, Callable[[], Any]] = {}
        self._first: dict[str, Any] | None = None
        self._last: dict[str, Any] | None = None
        self._peaks: dict[str, float] = {}
        self._count, self._stride, self._trace = 0, 1, []
        self._children_s: dict[int, float] = {}
        self._asked_faults = [0, 0]
        self._gpu_every_s, self._gpu_next_s, self._gpu_told = 0.0, 0.0, []
        self._metrics: dict[str, dict[str, Any]] | None = None
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._stop, self._ready = threading.Event(), threading.Event()

    def __enter__(self) -> Telemetry:
        self._open()
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        self._close()

    def metrics(self) -> dict[str, dict[str, Any]]:
        """Name -> value, unit, low and high (None: one block has no interval), n (samples), how."""
        if self._metrics is None:
            raise ValueError("telemetry has no metrics before its block has ended")
        return self._metrics

    @property
    def samples(self) -> list[Sample]:
        """The trace, for plots; of long blocks every second, fourth, ... sample is kept."""
        samples, before = [], None
        for row in self._trace:
            power_w = None
            # The last reading comes when the block ends; right behind another one it would give a wild power.
            if "energy" in row and before and "energy" in before and row["t"] - before["t"] > self.interval_s / 2:
                power_w = (row["energy"] - before["energy"]) / (row["t"] - before["t"])
            t_s = row["t"] - self._trace[0]["t"]
            samples.append(Sample(t_s, row.get("footprint"), power_w, row.get("temperature"), row.get("gpu")))
            before = row
        return samples

    def _open(self) -> None:
        openers = {  # in the order in which they are read at the end of the block; see _sample
            "energy": self._open_energy,
            "load": lambda: self._cpu_s,
            "faults": lambda: self._page_faults,
            "swap": lambda: lambda: psutil.swap_memory().used,
            "footprint": self._open_footprint,
            "temperature": lambda: _open_temperature(self.device),
            "thermal": _open_thermal,
            "gpu": self._open_gpu,
            "pressure": self._open_pressure,
        }
        for name, opener in openers.items():
            try:
                self._sources[name] = opener()
            except Exception as error:  # see _sample
                self._drop(name, error)

    def _run(self) -> None:
        try:
            self._sample(edge=True)
            self._ready.set()
            while not self._stop.wait(self.interval_s):
                self._sample()
            self._sample(edge=True)
        finally:
            self.thread_s = time.thread_time()
            self._ready.set()

    def _sample(self, edge: bool = False) -> None:
        """Read the sources; what only changes over the block counts is read at its two edges.

        They are read backwards at the beginning: energy and load lie close around the block, and what takes a process
        of its own lies outside.
        """
        begins = self._first is None
        row: dict[str, Any] = {} if begins else {"t": self._clock()}
        left_out = self._left_out(edge, row.get("t"))
        sources = list(self._sources.items())
        for name, read in reversed(sources) if begins else sources:
            if name in left_out:
                continue
            try:
                row[name] = read()
            except Exception as error:  # whatever a driver raises must not end the case that is being measured
                self._drop(name, error)
        if begins:
            row["t"] = self._clock()
            self._gpu_next_s = row["t"] + GPU_WINDOW_S
        if "gpu" in row:
            self._gpu_told.append(row["gpu"])
            self._gpu_next_s = row["t"] + self._gpu_every_s
        for name in {"footprint", "temperature", "thermal"} & row.keys():
            self._peaks[name] = max(row[name], self._peaks.get(name, row[name]))
        self._first, self._last = self._first or row, row
        if self._count % self._stride == 0:
            self._keep(row)
            if len(self._trace) > MOST_SAMPLES:
                self._trace, self._stride = self._trace[::2], self._stride * 2
        self._count += 1

    def _left_out(self, edge: bool, now_s: float | None) -> set[str]:
        """The sources that are not read this time."""
        if edge:
            return {"gpu"}  # it has just been waited for, and is idle
        left_out = set(AT_EDGES)
        # A child's CPU time is noted while it lives: macOS does not tell it between its end and the wait for it.
        if not _live_children():
            left_out.add("load")
        if now_s is None or now_s < self._gpu_next_s:
            left_out.add("gpu")
        return left_out

    def _close(self) -> None:
        first, last = self._first, self._last
        if self._trace[-1]["t"] != last["t"]:
            self._keep(last)
        self.seconds = last["t"] - first["t"]
        for name, least_s in LEAST_S.items():
            if name in self._sources and self.seconds < least_s:
                self._drop(name, f"the block took {self.seconds:.2f} s; {least_s:g} s are needed")
        values: dict[str, float] = {}
        if "energy" in self._sources:
            energy_j = last["energy"] - first["energy"]
            if energy_j > 0:
                values |= {"power_w": energy_j / self.seconds, "energy_j": energy_j}
            else:
                self._drop("energy", "the energy counter did not move")
        if "load" in self._sources:
            wall_s, busy_s, own_s = (after - before for before, after in zip(first["load"], last["load"], strict=True))
            self.foreign_load = max(0.0, (busy_s - own_s) / wall_s)
            values["cpu_busy"] = 100 * own_s / wall_s / (psutil.cpu_count() or 1)
        if "faults" in self._sources:
            minor, major = (after - before for before, after in zip(first["faults"], last["faults"], strict=True))
            values |= {"page_faults": minor + major, "page_ins": major}
        if "swap" in self._sources:
            values["swap_bytes"] = last["swap"] - first["swap"]
        if "pressure" in self._sources:
            values |= {name: last["pressure"][name] - before for name, before in first["pressure"].items()}
            moved = {"swapping": ("swapped_bytes", SWAPPING), "compressing": ("compressed_bytes", COMPRESSING)}
            for flag, (name, (least, least_per_s)) in moved.items():
                if values.get(name, 0) > max(least, least_per_s * self.seconds):
                    self.flags.append(flag)
        if "gpu" in self._sources and not self._gpu_told:
            self._drop("gpu", f"the block took {self.seconds:.2f} s; {GPU_WINDOW_S + self.interval_s:g} s are needed")
        if "gpu" in self._sources:
            values["gpu_busy"] = sum(self._gpu_told) / len(self._gpu_told)
        for name in self._peaks.keys() & self._sources.keys():
            values[METRICS[name][0]] = self._peaks[name]
        self.thermal_level = values.pop("thermal_level", None)
        form = {"low": None, "high": None, "n": self._count, "how": "measured"}
        self._metrics = {
            name: {"value": value, "unit": UNITS.get(name, "B"), **form} for name, value in sorted(values.items())
        }
        if "gpu_busy" in self._metrics:
            self._metrics["gpu_busy"]["n"] = len(self._gpu_told)

    def _keep(self, row: dict[str, Any]) -> None:
        kept = ("t", "energy", "footprint", "temperature", "gpu")
        self._trace.append({name: row[name] for name in kept if name in row})

    def _drop(self, source: str, reason: str | Exception) -> None:
        if isinstance(reason, Exception) and not isinstance(reason, Absent):
            reason = f"failed after {self._count} samples: {type(reason).__name__}: {reason}"
        self._sources.pop(source, None)
        if source == "energy":
            self.rails = []
        self.absent |= dict.fromkeys(METRICS[source], str(reason))

    def _open_energy(self) -> Callable[[], float]:
        found, absent = meters(self.device)
        if not found:
            raise Absent("; ".join(absent.values()))
        self.rails = [rail for meter in found for rail in meter.rails]
        for meter in found:
            self.absent |= {f"energy of the {rail}": why for rail, why in getattr(meter, "missing", {}).items()}
        return lambda: sum(meter.energy_j() for meter in found)

    def _open_footprint(self) -> Callable[[], int]:
        self.footprint_source, footprint = _footprint()
        return footprint

    def _open_gpu(self) -> Callable[[], float]:
        if self.device == "cpu":
            raise Absent("told only where a GPU is timed")
        if sys.platform == "darwin":
            self._gpu_every_s = GPU_WINDOW_S

            def busy() -> float:
                return _gpu_busy(self._ask("ioreg", "-r", "-d", "1", "-w", "0", "-c", "IOAccelerator"))
        else:
            nvml, gpu = _nvml_gpu()

            def busy() -> float:
                return float(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu)

        busy()  # if it cannot, it says so now
        return busy

    def _open_pressure(self) -> Callable[[], dict[str, int]]:
        if sys.platform == "darwin":
            return lambda: _vm_stat(self._ask("vm_stat"))
        _swapped_bytes()
        self.absent |= dict.fromkeys(("compressed_bytes", "compressor_bytes"), "only macOS tells what it compresses")
        return lambda: {"swapped_bytes": _swapped_bytes()}

    def _ask(self, *command: str) -> str:
        """What a command prints. Its page faults are not the block's."""
        answer = snapshot.ask(*command, timeout=2)
        if answer.usage is not None:
            self._asked_faults[0] += answer.usage.ru_minflt
            self._asked_faults[1] += answer.usage.ru_majflt
        if answer.text is None:
            raise Absent(f"{command[0]} did not answer")
        return answer.text

    def _page_faults(self) -> tuple[int, int]:
        """Minor faults, and major ones, which macOS calls page-ins."""
        usages, (minor, major) = _usages(), self._asked_faults
        return sum(usage.ru_minflt for usage in usages) - minor, sum(usage.ru_majflt for usage in usages) - major

    def _cpu_s(self) -> tuple[float, float, float]:
        """Now, CPU seconds of the machine, CPU seconds of this process and its children, ended ones included."""
        now, busy_s = self._clock(), snapshot.cpu_busy_s()
        own_s = sum(usage.ru_utime + usage.ru_stime for usage in _usages())
        for pid in _live_children():
            with contextlib.suppress(psutil.NoSuchProcess):  # ended, not yet waited for: what it last had used stands
                used = psutil.Process(pid).cpu_times()
                self._children_s[pid] = used.user + used.system + used.children_user + used.children_system
            own_s += self._children_s.get(pid, 0.0)
        return now, busy_s, own_s


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
            ("footprint_bytes",): lambda: _footprint()[1],
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
        found: dict[str, int | None] = dict.fromkeys(self._names)
        for names, source in list(self._sources.items()):
            try:
                told = source()
            except Exception as error:  # see _drop
                self._drop(names, error)
                continue
            found |= dict(zip(names, told if isinstance(told, tuple) else (told,), strict=True))
        return found

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
        told = {"step": self.steps, "t_s": round(self._clock() - self._since, 6)} | self._device() | self._read()
        self._last = tuple(told.get(name) for name in self.COLUMNS)
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
        found: dict[str, dict[str, Any]] = {}
        for name, values in zip(self.COLUMNS, zip(*rows, strict=True), strict=True) if rows else ():
            if name in ("step", "t_s", "swap_used_bytes") or None in values:
                continue
            memory = name.endswith("_bytes")
            short, unit, ending = (name.removesuffix("_bytes"), "B", "_bytes") if memory else (name, "count", "")
            if len(values) >= 3:
                # The system gives a process pages; frameworks count what they were asked for.
                pages = name in ("footprint_bytes", "resident_bytes")
                grows = intervals.slope(values, [row[0] for row in rows], mmap.PAGESIZE if pages else 1)
                bounds = {"low": grows.low, "high": grows.high, "n": grows.n}
                found[f"{short}_slope{ending}"] = {"value": grows.mean, "unit": unit, **bounds, "how": "measured"}
            if memory:
                for end, value in (("start", values[0]), ("end", values[-1])):
                    form = {"low": None, "high": None, "n": 1, "how": "measured"}
                    found[f"{short}_{end}_bytes"] = {"value": value, "unit": unit, **form}
        return found


def _own_faults() -> tuple[int, int]:
    """All page faults of this process, and those of them that needed the disk."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt, usage.ru_majflt


def _live_children() -> list[int]:
    # multiprocessing.active_children() would also collect the ended ones, behind the back of the thread that waits for
    # them: PyTorch would then learn only late that a worker was killed.
    processes = [child._popen for child in list(multiprocessing.process._children)]
    return [process.pid for process in processes if process is not None and process.returncode is None]


def _usages() -> list[Any]:
    """What this process has used, and its children that have ended."""
    return [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]


def _swapped_bytes() -> int:
    """What Linux has moved into and out of swap since it started. (psutil would take every page for one of 4 KiB.)"""
    try:
        pages = dict(line.split() for line in VMSTAT.read_text().splitlines())
        return (int(pages["pswpin"]) + int(pages["pswpout"])) * mmap.PAGESIZE
    except (OSError, KeyError) as error:
        raise Absent("this system does not count what it swaps") from error


def _vm_stat(text: str) -> dict[str, int]:
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


def _gpu_busy(text: str) -> float:
    """The busiest of the GPUs that `ioreg` lists, in %. (An Ultra's two dies are one GPU to programs.)"""
    statistics = re.findall(r'^[ |]*"PerformanceStatistics" = \{(.*)\}$', text, re.MULTILINE)
    told = [re.search(r'"Device Utilization %"=(\d+)', line) for line in statistics]
    percents = [float(found[1]) for found in told if found]
    if not percents:
        raise Absent("this GPU does not tell how busy it is" if text.strip() else "macOS lists no GPU")
    return max(percents)


class _RusageInfo(ctypes.Structure):
    """`struct rusage_info_v0` of macOS's <sys/resource.h>."""

    _fields_ = [
        ("uuid", ctypes.c_uint8 * 16),
        *((name, ctypes.c_uint64) for name in ("user", "system", "idle_wakeups", "interrupt_wakeups", "page_ins")),
        *((name, ctypes.c_uint64) for name in ("wired", "resident", "footprint", "started", "ended")),
    ]


def _footprint() -> tuple[str, Callable[[], int]]:
    """Where the footprint comes from, and a function that gives that of this process and its living children."""
    if sys.platform != "darwin":
        return "resident memory", _Resident()
    read = _physical_reader()
    return "physical footprint", lambda: read(os.getpid()) + _sum_of_living(read)


def _sum_of_living(read: Callable[[int], int]) -> int:
    total = 0
    for pid in _live_children():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):  # ended since it was listed
            total += read(pid)
    return total


class _Resident:
    """Resident memory of this process, and with it what its living children add to that, on Linux; in bytes.

    A forked worker begins with all pages of its parent, and eight of them would count these nine times. So of children
    only the pages that nobody shares are added (what they share among themselves alone is left out). To tell these the
    kernel walks through all of them, a tenth of a second for some gigabytes: it is asked so seldom that this takes a
    fiftieth of the time at most, and in between what the children add stays what it was.
    """

    SHARE = 1 / 50

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._next_s, self._added = clock, -math.inf, 0

    def __call__(self) -> int:
        own = psutil.Process().memory_info().rss
        if not _live_children():
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


def _nvml_gpu() -> tuple[Any, Any]:
    """NVML and its handle of the first GPU that CUDA may use. (CUDA and NVML can number mixed GPUs differently.)"""
    try:
        import pynvml
    except ImportError as error:
        raise Absent("nvidia-ml-py is not installed") from error
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if not first.isdecimal() and not first.startswith(("GPU-", "MIG-")):
        raise Absent("CUDA_VISIBLE_DEVICES hides the GPU")
    try:
        pynvml.nvmlInit()
        by_index, by_uuid = pynvml.nvmlDeviceGetHandleByIndex, pynvml.nvmlDeviceGetHandleByUUID
        return pynvml, by_index(int(first)) if first.isdecimal() else by_uuid(first)
    except pynvml.NVMLError as error:
        raise Absent(f"no NVIDIA driver answers: {error}") from error


def _open_temperature(device: str) -> Callable[[], float]:
    """Of the GPU, or of the hottest processor package, in °C."""
    if sys.platform == "darwin":
        raise Absent("macOS has no public temperature sensor")
    if device == "gpu":
        nvml, gpu = _nvml_gpu()
        return lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)
    # The files are found once: psutil would look through all sensors of the machine at every sample.
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


def _open_thermal() -> Callable[[], int]:
    if snapshot.thermal_level() is None:
        raise Absent("only macOS tells a thermal level" if sys.platform != "darwin" else "macOS tells no thermal level")
    return snapshot.thermal_level
