"""Energy counters: Apple's, NVIDIA's, and those of x86 processors."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from pomology.machine import snapshot

POWERCAP = Path("/sys/class/powercap")
APPLE_RAILS = {"cpu": "cpu_total_mj", "gpu": "gpu_mj", "dram": "dram_mj", "ane": "ane_mj"}


class Absent(Exception):
    """A source cannot be read here; the text says why in plain words."""


class AppleMeter:
    """Energy of an Apple chip as macOS estimates it, without root: the whole chip, not this process. Steps of 1 mJ.

    `rails` are those that this chip counts (any field of the library may be None); `missing` says why one is not used.
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
        if "cpu" in self.rails and "Ultra" in (snapshot.chip() or ""):
            version = re.findall(r"\d+", metadata.version("zeus-apple-silicon"))
            if [int(number) for number in version] <= [1, 1, 0]:
                self.missing["cpu"] = "zeus-apple-silicon up to 1.1.0 counts the CPU of one of an Ultra's two dies"
                self.rails.remove("cpu")
        if not self.rails:
            raise Absent("macOS's energy counters are empty on this chip")

    def energy_j(self) -> float:
        now = self._monitor.get_cumulative_energy()
        return sum(getattr(now, APPLE_RAILS[rail]) for rail in self.rails) / 1e3


class NvmlMeter:
    """Energy of the first visible NVIDIA GPU: its own counter, or where it has none its power integrated over reads."""

    name, rails = "nvml", ("gpu",)

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._nvml, self._gpu = nvml_gpu()
        self._clock, self._last, self._sum_j, self._counts = clock, None, 0.0, True
        try:
            self.energy_j()
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
        before, power_before_w = self._last or (now, power_w)
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
            self._sum_uj += now - before + self._range[counter] * (now < before)
        return self._sum_uj / 1e6


def meters(device: str | None = None) -> tuple[list[Any], dict[str, str]]:
    """The energy meters that answer here for a device ("cpu", "gpu", None for both), and why the others do not.

    A meter has a `name`, `rails` (what it covers) and `energy_j()`, a running total in joules. On a Mac one meter
    covers the whole chip, the device at the least; elsewhere RAPL covers the CPU and NVML the GPU.
    """
    by_device = {"cpu": [RaplMeter], "gpu": [NvmlMeter], None: [RaplMeter, NvmlMeter]}
    answering, absent = [], {}
    for kind in [AppleMeter] if sys.platform == "darwin" else by_device[device]:
        try:
            meter = kind()
            if kind is AppleMeter and device not in (None, *meter.rails):
                raise Absent(meter.missing.get(device, f"this chip does not tell the energy of its {device}"))
            answering.append(meter)
        except Absent as reason:
            absent[kind.name] = str(reason)
    return answering, absent


def nvml_gpu() -> tuple[Any, Any]:
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
