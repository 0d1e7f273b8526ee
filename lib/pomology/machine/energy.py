"""Energy counters: Apple's, NVIDIA's, and those of x86 processors."""

from __future__ import annotations

import itertools
import os
import platform
import sys
import threading
from collections import namedtuple
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pomology.machine import snapshot
from pomology.measure import intervals
from pomology.measure.estimate import Estimate

POWERCAP = Path("/sys/class/powercap")
APPLE_RAILS = {"cpu": "cpu_total_mj", "gpu": "gpu_mj", "dram": "dram_mj", "ane": "ane_mj"}
# macOS 27 publishes all but the GPU's energy twice in some 2.1 s (lablup/all-smi #410, #415, seen on M1 Ultra, M5 Max).
APPLE_SLOW_S = 2.0
EDGE = 20  # a reading that no movement dates is up to a period late: 5 % of a window of so many periods
COST = 200  # readings are so many times as far apart as one takes


class Absent(Exception):
    """A source cannot be read here; the text says why in plain words."""


# rails: what it covers -> seconds between two movements of its counter. joules(): of each rail, a running total.
# missing: rails that are not used -> why.
Meter = namedtuple("Meter", "name rails joules missing")


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

    def joules() -> dict[str, float]:
        now = monitor.get_cumulative_energy()
        return {rail: getattr(now, APPLE_RAILS[rail]) / 1e3 for rail in rails}

    slow = int(platform.mac_ver()[0].split(".")[0] or 0) >= 27
    return Meter("apple", {rail: APPLE_SLOW_S if slow and rail != "gpu" else 0.01 for rail in rails}, joules, missing)


def nvml_meter() -> Meter:
    """Energy of the first visible NVIDIA GPU, by the counter that Volta and later have."""
    nvml, gpu = nvml_gpu()

    def joules() -> dict[str, float]:
        return {"gpu": nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3}

    try:
        joules()
    except nvml.NVMLError as error:
        raise Absent(f"this NVIDIA GPU does not count its energy: {error}") from error
    return Meter("nvml", {"gpu": 0.1}, joules, {})


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

    return Meter("rapl", dict.fromkeys(sums_uj, 0.001), joules, {})


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


class Reading(NamedTuple):
    """Of each rail's counter, in joules, when so many steps had ended."""

    t_s: float
    steps: int
    joules: dict[str, float]


class Window(NamedTuple):
    """Between two readings."""

    steps: int
    seconds: float
    joules: dict[str, float]


class Counters:
    """The energy counters of a device. Called, they give a Reading; `mark` also reads them where steady blocks of steps
    begin and end. rails: what they cover; after `values`, without those that stand still. missing: other rails -> why.
    Raises Absent where no meter answers."""

    def __init__(self, device: str, clock: Callable[[], float]):
        self.meters, absent = meters(device)
        if not self.meters:
            raise Absent("; ".join(absent.values()))
        self.device, self.clock, self._lock = device, clock, threading.Lock()
        self.periods_s = {rail: period_s for meter in self.meters for rail, period_s in meter.rails.items()}
        self.missing = {rail: why for meter in self.meters for rail, why in meter.missing.items()}
        self.rails, self._stretches, self._stretch, self._due_s = list(self.periods_s), list[list[Reading]](), None, 0.0

    def __call__(self, steps: int = 0) -> Reading:
        with self._lock:  # of the thread that reads all sources, and of the one that takes the steps
            now_s = self.clock()
            return Reading(now_s, steps, {rail: j for meter in self.meters for rail, j in meter.joules().items()})

    def mark(self, stretch: Hashable, steps: int) -> None:
        """Read them where a steady block begins or ends, after so many steady steps, if the last time was not just
        now. stretch: another one where something else came between two blocks."""
        if new := stretch != self._stretch:
            self._stretches.append([])
            self._stretch = stretch
        readings = self._stretches[-1]
        if new or (self.clock() >= self._due_s and steps > readings[-1].steps):
            readings.append(self(steps))
            self._due_s = self.clock() + COST * (self.clock() - readings[-1].t_s)

    def values(self, readings: list[Reading], seconds: float) -> dict[str, Estimate | str]:
        """Joules of a steady step, of each rail and of all, with their interval over windows; watts over these windows,
        or where there are none over all readings, without an interval. What cannot be told has its reason. Raises
        Absent if the device's own counter stood still."""
        still = [rail for rail in self.rails if readings[-1].joules[rail] <= readings[0].joules[rail]]
        still = [rail for rail in still if seconds >= 2 * self.periods_s[rail]]
        if self.device in still or len(still) == len(self.rails):
            raise Absent("the energy counter did not move")
        self.rails[:] = [rail for rail in self.rails if rail not in still]  # whoever opened this holds the list
        made: dict[str, Estimate | str] = {f"power_{rail}_w": "its counter stood still" for rail in still}
        slowest = max(self.rails, key=self.periods_s.__getitem__)
        for infix, rails, edge in [*((f"{rail}_", [rail], rail) for rail in self.rails), ("", self.rails, slowest)]:
            steady, whole = (windows(each, edge, self.periods_s[edge]) for each in (self._stretches, [readings]))
            why = f"the counter of the {edge} moved too seldom"
            if self._stretches and (infix != "gpu_" or self.device == "gpu"):  # a GPU that rests takes no steps
                of_steps = _mean(steady, rails, "steps", "J") if steady else f"{why} while steady steps ran"
                made[f"energy_{infix}j_per_step"] = of_steps
            made[f"power_{infix}w"] = why
            if steady or whole:
                watts = _mean(steady or whole, rails, "seconds", "W")
                unknown = {} if steady else {"low": None, "high": None, "covers": "none"}
                made[f"power_{infix}w"] = watts.replace(**unknown)
        joules = sum(readings[-1].joules[rail] - readings[0].joules[rail] for rail in self.rails)
        return made | {"energy_j": Estimate(joules, "J", n=len(readings))}


def windows(stretches: Sequence[Sequence[Reading]], rail: str, period_s: float) -> list[Window]:
    """Windows between movements of a rail's counter, each as long as its period, and as the longest time in which it
    was read and had not moved. What a counter shows is as old as its last movement, so no other moment dates it; but
    for the begin of a stretch whose first block takes `EDGE` periods."""
    edges, least_s = [], period_s
    for stretch in stretches:
        moved = [k for k in range(1, len(stretch)) if stretch[k].joules[rail] > stretch[k - 1].joules[rail]]
        if len(stretch) > 1 and stretch[1].t_s - stretch[0].t_s >= EDGE * period_s:
            moved.insert(0, 0)
        waits_s = (stretch[b].t_s - stretch[a].t_s for a, b in itertools.pairwise(moved) if b > a + 1)
        least_s = max(least_s, *waits_s, 0.0)
        edges.append([stretch[k] for k in moved])
    whole = []
    for each in filter(None, edges):
        begin = each[0]
        for end in each:
            if end.t_s - begin.t_s >= least_s:
                grew = {name: end.joules[name] - before for name, before in begin.joules.items()}
                whole.append(Window(end.steps - begin.steps, end.t_s - begin.t_s, grew))
                begin = end
    return whole


def _mean(some: Sequence[Window], rails: Sequence[str], per: str, unit: str) -> Estimate:
    """Joules of these rails per step or second of the windows."""
    weights = [getattr(window, per) for window in some]
    each = [sum(window.joules[rail] for rail in rails) / w for window, w in zip(some, weights, strict=True)]
    return intervals.interval(each, weights).replace(unit=unit, n=len(some))


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
