"""Energy counters: Apple's, NVIDIA's, and those of x86 processors."""

from __future__ import annotations

import os
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

from pomology.machine import snapshot

POWERCAP = Path("/sys/class/powercap")
APPLE_RAILS = {"cpu": "cpu_total_mj", "gpu": "gpu_mj", "dram": "dram_mj", "ane": "ane_mj"}


class Absent(Exception):
    """A source cannot be read here; the text says why in plain words."""


# rails: what it covers. energy_j(): a running total in joules. missing: rails that are not used -> why.
Meter = namedtuple("Meter", "name rails energy_j missing")


def apple_meter() -> Meter:
    """Energy of an Apple chip as macOS estimates it, without root: the whole chip, not this process. Steps of 1 mJ."""
    if snapshot.virtual_machine():
        # The library does not look whether there are counters; where there are none it would end this process.
        raise Absent("not asked in a virtual machine, which need not have energy counters")
    try:
        import zeus_apple_silicon

        monitor = zeus_apple_silicon.AppleEnergyMonitor()
        first = monitor.get_cumulative_energy()  # of which any field may be None
    except ImportError as error:
        raise Absent("zeus-apple-silicon is not installed") from error
    except (RuntimeError, ValueError, OSError) as error:  # ValueError: a unit that it does not know
        raise Absent(f"macOS does not open its energy counters: {error}") from error
    rails, missing = [rail for rail, field in APPLE_RAILS.items() if getattr(first, field) is not None], {}
    if "cpu" in rails and "Ultra" in (snapshot.chip() or ""):
        missing["cpu"] = "zeus-apple-silicon 1.1.0 counts the CPU of one of an Ultra's two dies"
        rails.remove("cpu")
    if not rails:
        raise Absent("macOS's energy counters are empty on this chip")

    def energy_j() -> float:
        now = monitor.get_cumulative_energy()
        return sum(getattr(now, APPLE_RAILS[rail]) for rail in rails) / 1e3

    return Meter("apple", rails, energy_j, missing)


def nvml_meter() -> Meter:
    """Energy of the first visible NVIDIA GPU, by the counter that Volta and later have."""
    nvml, gpu = nvml_gpu()

    def energy_j() -> float:
        return nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3

    try:
        energy_j()
    except nvml.NVMLError as error:
        raise Absent(f"this NVIDIA GPU does not count its energy: {error}") from error
    return Meter("nvml", ["gpu"], energy_j, {})


def rapl_meter() -> Meter:
    """Energy of all processor packages, and of memory where counted, from Linux's powercap files."""
    # The zones `core` and `uncore` are within a package and `psys` around it. Counters wrap after minutes to hours.
    try:
        names = {folder: (folder / "name").read_text().strip() for folder in sorted(POWERCAP.glob("intel-rapl:*"))}
        zones = [folder for folder, name in names.items() if name.startswith("package") or name == "dram"]
        last = {zone / "energy_uj": int((zone / "energy_uj").read_text()) for zone in zones}
        ranges = {zone / "energy_uj": int((zone / "max_energy_range_uj").read_text()) for zone in zones}
    except PermissionError as error:
        raise Absent("this system lets only root read the RAPL energy counters") from error
    except OSError as error:
        raise Absent(f"the RAPL energy counters do not answer: {error}") from error
    if not zones:
        raise Absent("this machine shows no RAPL energy counters")
    sum_uj = 0

    def energy_j() -> float:
        nonlocal sum_uj
        for counter, before in last.items():
            now = last[counter] = int(counter.read_text())
            sum_uj += now - before + ranges[counter] * (now < before)
        return sum_uj / 1e6

    return Meter("rapl", ["cpu package"] + ["dram"] * ("dram" in names.values()), energy_j, {})


def meters(device: str | None = None) -> tuple[list[Meter], dict[str, str]]:
    """The energy meters that answer here for a device ("cpu", "gpu", None for both), and why the others do not."""
    kinds = [rapl_meter] * (device != "gpu") + [nvml_meter] * (device != "cpu")
    answering, absent = [], {}
    for kind in [apple_meter] if sys.platform == "darwin" else kinds:
        name = kind.__name__.removesuffix("_meter")
        try:
            meter = kind()
            if name == "apple" and device not in (None, *meter.rails):
                raise Absent(meter.missing.get(device, f"this chip does not tell the energy of its {device}"))
            answering.append(meter)
        except Absent as reason:
            absent[name] = str(reason)
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
