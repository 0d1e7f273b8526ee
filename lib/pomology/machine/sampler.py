"""What the machine did while a block of code ran: energy, temperature, memory, page faults, swap, load.

One daemon thread reads all sources, by default twice a second, which takes about 0.1 % of a core (where a Mac's GPU is
timed, it also runs `ioreg` once a second):

    device.synchronize()                                  # nothing from before may still run
    with Telemetry(device=device.kind) as telemetry:
        ...
        device.synchronize()                              # everything from inside must have ended
    telemetry.metrics()                             # {"power_w": {"value": 31.2, "unit": "W", ...}, ...}

Energy is the difference of a counter between the first and the last reading, so without the two fences work is billed
to the wrong block. What a source cannot tell is left out of the metrics, and `absent` says why.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from pomology.machine import energy, snapshot
from pomology.machine import memory as machine_memory
from pomology.machine.energy import Absent, _nvml_gpu
from pomology.machine.memory import _footprint, _swapped_bytes, _usages, _vm_stat

HWMON = Path("/sys/class/hwmon")

# Shorter blocks are not resolved: NVML renews its energy every 0.1 s, systems count CPU time in ticks of 10 ms a core.
LEAST_S = {"energy": 1.0, "load": 0.5}

MOST_SAMPLES = 4096

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

UNITS = {
    **{"power_w": "W", "energy_j": "J", "page_faults": "count", "page_ins": "count", "temperature_c": "°C"},
    **{"cpu_busy": "%", "gpu_busy": "%"},
}


class Sample(NamedTuple):
    """One reading; `power_w` is the mean since the sample before. None is what was not or could not be read."""

    t_s: float
    footprint_bytes: int | None
    power_w: float | None
    temperature_c: float | None
    gpu_busy: float | None


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
        if not machine_memory._live_children():
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
        found, absent = energy.meters(self.device)
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
        answer = snapshot.run_command(*command, timeout=2)
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
        for pid in machine_memory._live_children():
            with contextlib.suppress(psutil.NoSuchProcess):  # ended, not yet waited for: what it last had used stands
                used = psutil.Process(pid).cpu_times()
                self._children_s[pid] = used.user + used.system + used.children_user + used.children_system
            own_s += self._children_s.get(pid, 0.0)
        return now, busy_s, own_s


def _gpu_busy(text: str) -> float:
    """The busiest of the GPUs that `ioreg` lists, in %. (An Ultra's two dies are one GPU to programs.)"""
    statistics = re.findall(r'^[ |]*"PerformanceStatistics" = \{(.*)\}$', text, re.MULTILINE)
    told = [re.search(r'"Device Utilization %"=(\d+)', line) for line in statistics]
    percents = [float(found[1]) for found in told if found]
    if not percents:
        raise Absent("this GPU does not tell how busy it is" if text.strip() else "macOS lists no GPU")
    return max(percents)


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
