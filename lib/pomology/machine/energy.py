"""Energy counters: Apple's and NVIDIA's; joules per step from them."""

import itertools
import math
import os
import platform
import sys
import threading
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from pomology.machine import snapshot
from pomology.measure.estimate import Estimate

APPLE_RAILS = {"cpu": "cpu_total_mj", "gpu": "gpu_mj", "dram": "dram_mj"}
# macOS 27 publishes all but the GPU's energy twice in some 2.1 s (lablup/all-smi #410, #415, seen
# on M1 Ultra and M5 Max).
APPLE_PERIOD_S = 0.01
APPLE_SLOW_PERIOD_S = 2.1
NVML_PERIOD_S = 0.1

COARSE = 0.25  # a number that may be wrong by a larger share is left out
SPACING_S = 0.1  # between readings in steady steps, of which each may take some milliseconds


class Absent(Exception):
    """A source cannot be read here; the text says why in plain words."""


class Meter(NamedTuple):
    """rails: what it covers -> seconds between two movements of its counter.

    joules: returns a running total of each rail. missing: rails that are not used -> why.
    """

    rails: dict[str, float]
    joules: Callable[[], dict[str, float]]
    missing: dict[str, str]


def meter(kind: str) -> Meter:
    """Return the energy meter of a device, "cpu" or "gpu". Raises Absent where there is none."""
    if sys.platform == "darwin":
        apple = apple_meter()
        if kind in apple.missing:
            raise Absent(apple.missing[kind])
        return apple
    if kind == "cpu":
        raise Absent("on Linux only root may read the energy counters of a processor")
    return nvml_meter()


def apple_meter() -> Meter:
    """Return the meter of a whole Apple chip: energy as macOS estimates it, in steps of 1 mJ."""
    if snapshot.virtual_machine():
        # Where there are no counters, the library would end this process.
        raise Absent("not asked in a virtual machine, which need not have energy counters")
    try:
        import zeus_apple_silicon
    except ImportError as error:
        raise Absent("zeus-apple-silicon is not installed") from error
    try:
        monitor = zeus_apple_silicon.AppleEnergyMonitor()
        first = monitor.get_cumulative_energy()  # of which any field may be None
    except (RuntimeError, ValueError, OSError) as error:
        raise Absent(f"macOS does not open its energy counters: {error}") from error
    slow = int(platform.mac_ver()[0].split(".")[0] or 0) >= 27
    periods_s = {}
    missing = {}
    for rail, field in APPLE_RAILS.items():
        if getattr(first, field) is None:
            missing[rail] = f"zeus-apple-silicon finds no energy counter of the {rail} on this chip"
        elif rail == "cpu" and "Ultra" in (snapshot.chip() or ""):
            missing[rail] = "zeus-apple-silicon 1.1.0 counts the CPU of one of an Ultra's two dies"
        else:
            periods_s[rail] = APPLE_SLOW_PERIOD_S if slow and rail != "gpu" else APPLE_PERIOD_S

    def joules() -> dict[str, float]:
        now = monitor.get_cumulative_energy()
        return {rail: getattr(now, APPLE_RAILS[rail]) / 1e3 for rail in periods_s}

    return Meter(periods_s, joules, missing)


def nvml_meter() -> Meter:
    """Return the meter of the first visible NVIDIA GPU: the counter of Volta and later."""
    nvml, gpu = nvml_gpu()

    def joules() -> dict[str, float]:
        return {"gpu": nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3}

    try:
        joules()
    except nvml.NVMLError as error:
        raise Absent(f"this NVIDIA GPU does not count its energy: {error}") from error
    return Meter({"gpu": NVML_PERIOD_S}, joules, {})


def nvml_gpu() -> tuple[Any, Any]:
    """Return NVML and its handle of the first GPU that CUDA may use."""
    try:
        import pynvml
    except ImportError as error:
        raise Absent("nvidia-ml-py is not installed") from error
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    try:
        pynvml.nvmlInit()
        if first.isdecimal():
            return pynvml, pynvml.nvmlDeviceGetHandleByIndex(int(first))
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(first)
    except pynvml.NVMLError as error:
        raise Absent(f"NVML finds no GPU that CUDA may use: {error}") from error


class Reading(NamedTuple):
    """When it was, how many steady steps had ended, and each rail's counter in joules."""

    seconds: float
    steps: int
    joules: dict[str, float]


Span = tuple[Reading, Reading]


class EnergyCounter:
    """The energy counters of a device while a block runs, and in its steady steps.

    rails: what they cover. missing: other rails -> why. Raises Absent where no meter answers.
    """

    def __init__(self, kind: str, clock: Callable[[], float]):
        self._kind = kind
        self._clock = clock
        self._periods_s, self._joules, self.missing = meter(kind)
        self.rails = list(self._periods_s)
        self._stretch: Hashable = None
        self._steady: list[list[Reading]] = []  # the first and the last reading of each stretch
        self._lock = threading.Lock()  # the sampler's thread reads, and the one that takes steps

    def read(self, steps: int = 0) -> Reading:
        """Read the counters now."""
        with self._lock:
            return Reading(self._clock(), steps, self._joules())

    def steady(self, stretch: Hashable, steps: int) -> None:
        """Note that a steady block begins or ends, after so many steady steps.

        stretch: another one where something else ran between two blocks.
        """
        if stretch != self._stretch:
            self._stretch = stretch
            begin = self.read(steps)
            self._steady.append([begin, begin])
        elif self._clock() - self._steady[-1][1].seconds >= SPACING_S:
            self._steady[-1][1] = self.read(steps)

    def metrics(self, first: Reading, last: Reading) -> dict[str, Estimate | str]:
        """Return joules of a steady step and watts, of each rail and of all, or why there is none.

        first, last: readings around the block, for where there were no steady steps. Raises Absent
        if the device's own counter stood still.
        """
        found: dict[str, Estimate | str] = {}
        seconds = last.seconds - first.seconds
        for rail in list(self.rails):
            moved = last.joules[rail] > first.joules[rail]
            if not moved and seconds >= 2 * self._periods_s[rail]:
                found[f"power_{rail}_w"] = "its counter stood still"
                self.rails.remove(rail)
        if self._kind not in self.rails:
            raise Absent("the energy counter stood still")
        steady = [(begin, end) for begin, end in self._steady if end.steps > begin.steps]
        steps = sum(end.steps - begin.steps for begin, end in steady)
        spans = steady or [(first, last)]
        spans_s = sum(end.seconds - begin.seconds for begin, end in spans)
        groups = {f"{rail}_": [rail] for rail in self.rails} | {"": self.rails}
        for infix, rails in groups.items():
            if steps and (infix != "gpu_" or self._kind == "gpu"):  # a GPU at rest takes no steps
                found[f"energy_{infix}j_per_step"] = self._per(steps, "J", spans, rails)
            found[f"power_{infix}w"] = self._per(spans_s, "W", spans, rails)
        return found

    def _per(self, amount: float, unit: str, spans: list[Span], rails: list[str]) -> Estimate | str:
        """Return the energy of spans over their steps or seconds, or why it is too uncertain.

        A reading is as old as the last movement of its counter, so each of n spans may be wrong by
        up to two periods of power, and all of them by sqrt(n) times as much.
        """
        seconds = sum(end.seconds - begin.seconds for begin, end in spans)
        joules = 0.0
        error = 0.0
        for rail in rails:
            used = sum(end.joules[rail] - begin.joules[rail] for begin, end in spans)
            joules += used
            error += used * 2 * self._periods_s[rail] * math.sqrt(len(spans)) / seconds
        if error > COARSE * joules:
            slowest_s = max(self._periods_s[rail] for rail in rails)
            return f"a counter that moves every {slowest_s:g} s is too coarse for {seconds:.3g} s"
        low = max(joules - error, 0.0) / amount
        high = (joules + error) / amount
        steps = sum(end.steps - begin.steps for begin, end in spans)
        return Estimate(joules / amount, unit, low, high, n=max(1, steps))

    def powers(self, readings: list[Reading], least_s: float) -> dict[float, float]:
        """Return watts of all rails between movements of the slowest, by the time of their end.

        least_s: what lies closer together gives none.
        """
        slowest = max(self.rails, key=self._periods_s.__getitem__)
        watts = {}
        begin = None  # not the first reading: how old that is matters where a counter moves seldom
        for before, now in itertools.pairwise(readings):
            if now.joules[slowest] <= before.joules[slowest]:
                continue
            if begin and now.seconds - begin.seconds >= least_s:
                used = sum(now.joules.values()) - sum(begin.joules.values())
                watts[now.seconds] = used / (now.seconds - begin.seconds)
            begin = now
        return watts
