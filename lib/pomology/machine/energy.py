"""Energy counters: Apple's, NVIDIA's, and those of x86 processors."""

import os
import platform
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

from pomology.machine import snapshot

POWERCAP = Path("/sys/class/powercap")
APPLE_RAILS = {"cpu": "cpu_total_mj", "gpu": "gpu_mj", "dram": "dram_mj", "ane": "ane_mj"}
# macOS 27 publishes all but the GPU's energy twice in some 2.1 s (lablup/all-smi #410, #415, seen on M1 Ultra, M5 Max).
APPLE_SLOW_S = 2.0


class Absent(Exception):
    """A source cannot be read here; the text says why in plain words."""


# rails: what it covers -> seconds between two movements of its counter. joules(): of each rail, a running total.
# missing: rails that are not used -> why.
Meter = namedtuple("Meter", "rails joules missing")


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
    why = "zeus-apple-silicon finds no energy counter of the {} on this chip"  # or macOS has another name for it by now
    missing = {rail: why.format(rail) for rail, field in APPLE_RAILS.items() if getattr(first, field) is None}
    if "cpu" not in missing and "Ultra" in (snapshot.chip() or ""):
        missing["cpu"] = "zeus-apple-silicon 1.1.0 counts the CPU of one of an Ultra's two dies"
    if not (rails := [rail for rail in APPLE_RAILS if rail not in missing]):
        raise Absent("macOS's energy counters are empty on this chip")

    def joules() -> dict[str, float]:
        now = monitor.get_cumulative_energy()
        return {rail: getattr(now, APPLE_RAILS[rail]) / 1e3 for rail in rails}

    slow = int(platform.mac_ver()[0].split(".")[0] or 0) >= 27
    return Meter({rail: APPLE_SLOW_S if slow and rail != "gpu" else 0.01 for rail in rails}, joules, missing)


def nvml_meter() -> Meter:
    """Energy of the first visible NVIDIA GPU, by the counter that Volta and later have."""
    nvml, gpu = nvml_gpu()

    def joules() -> dict[str, float]:
        return {"gpu": nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3}

    try:
        joules()
    except nvml.NVMLError as error:
        raise Absent(f"this NVIDIA GPU does not count its energy: {error}") from error
    return Meter({"gpu": 0.1}, joules, {})


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
    rails = {counter: "dram" if names[counter.parent] == "dram" else "cpu" for counter in last}
    sums_uj = dict.fromkeys(sorted(set(rails.values())), 0)

    def joules() -> dict[str, float]:
        for counter, before in last.items():
            now = last[counter] = int(counter.read_text())
            sums_uj[rails[counter]] += now - before + ranges[counter] * (now < before)
        return {rail: sum_uj / 1e6 for rail, sum_uj in sums_uj.items()}

    return Meter(dict.fromkeys(sums_uj, 0.001), joules, {})


def meter(device: str) -> Meter:
    """The energy meter of a device, "cpu" or "gpu". Raises Absent where none answers."""
    if sys.platform != "darwin":
        return nvml_meter() if device == "gpu" else rapl_meter()
    apple = apple_meter()
    if device in apple.missing:
        raise Absent(apple.missing[device])
    return apple


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
