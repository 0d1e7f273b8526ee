"""Energy counters, Apple's and NVIDIA's, and joules of a training step from them."""

import math
import os
import platform
import sys
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
    """rails: seconds between two movements of a counter, by what it covers. joules: reads them."""

    rails: dict[str, float]
    joules: Callable[[], dict[str, float]]


def meter(kind: str) -> Meter:
    """Return the energy meter of a device, "cpu" or "gpu". Raises Absent where there is none."""
    if sys.platform == "darwin":
        apple = _apple_meter()
        if kind not in apple.rails:
            raise Absent(f"zeus-apple-silicon does not count all of the {kind} of this chip")
        return apple
    if kind == "cpu":
        raise Absent("on Linux only root may read the energy counters of a processor")
    nvml, gpu = nvml_gpu()
    energy_mj = nvml.nvmlDeviceGetTotalEnergyConsumption  # Volta and later count it
    return Meter({"gpu": NVML_PERIOD_S}, lambda: {"gpu": energy_mj(gpu) / 1e3})


def _apple_meter() -> Meter:
    """Return the meter of an Apple chip: energy as macOS estimates it, in steps of 1 mJ."""
    if snapshot.sysctl("kern.hv_vmm_present") == 1:
        # Where there are no counters, the library would end this process.
        raise Absent("not asked in a virtual machine, which need not have energy counters")
    try:
        import zeus_apple_silicon

        monitor = zeus_apple_silicon.AppleEnergyMonitor()
        first = monitor.get_cumulative_energy()  # of which any field may be None
    except ImportError as error:
        raise Absent("zeus-apple-silicon is not installed") from error
    except (RuntimeError, ValueError, OSError) as error:
        raise Absent(f"macOS does not open its energy counters: {error}") from error
    slow = int(platform.mac_ver()[0].split(".")[0] or 0) >= 27
    periods_s = {}
    for rail, field in APPLE_RAILS.items():
        # Version 1.1.0 overwrites the CPU counters of an Ultra's first die with the second's.
        half = rail == "cpu" and "Ultra" in (snapshot.chip() or "")
        if not half and getattr(first, field) is not None:
            periods_s[rail] = APPLE_SLOW_PERIOD_S if slow and rail != "gpu" else APPLE_PERIOD_S

    def joules() -> dict[str, float]:
        now = monitor.get_cumulative_energy()
        return {rail: getattr(now, APPLE_RAILS[rail]) / 1e3 for rail in periods_s}

    return Meter(periods_s, joules)


def nvml_gpu() -> tuple[Any, Any]:
    """Return NVML and its handle of the first GPU that CUDA may use."""
    try:
        import pynvml
    except ImportError as error:
        raise Absent("nvidia-ml-py is not installed") from error
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
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


class EnergyCounter:
    """The energy counters of a device from now on, and in its steady steps.

    rails: what they cover. missing: numbers that are too uncertain -> why. Raises Absent where no
    meter answers.
    """

    def __init__(self, kind: str, clock: Callable[[], float]):
        self._kind = kind
        self._clock = clock
        self._periods_s, self._joules = meter(kind)
        self.rails = list(self._periods_s)
        self.missing: dict[str, str] = {}
        self._first = self._read()
        self._spans: dict[Hashable, tuple[Reading, Reading]] = {}  # first and last of a stretch

    def steady(self, stretch: Hashable, steps: int) -> None:
        """Note that a steady block begins or ends, after so many steady steps.

        stretch: another one where something else ran between two blocks.
        """
        begin, last = self._spans.get(stretch, (None, None))
        if begin is None:
            now = self._read(steps)
            self._spans[stretch] = (now, now)
        elif self._clock() - last.seconds >= SPACING_S:
            self._spans[stretch] = (begin, self._read(steps))

    def metrics(self) -> dict[str, Estimate]:
        """Return joules of a steady step, and watts: of steady steps, else from begin to now.

        Raises Absent if a counter stood still.
        """
        last = self._read()
        for rail in self.rails:
            long = last.seconds - self._first.seconds >= 2 * self._periods_s[rail]
            if long and last.joules[rail] == self._first.joules[rail]:
                raise Absent(f"the energy counter of the {rail} stood still")
        spans = [(begin, end) for begin, end in self._spans.values() if end.steps > begin.steps]
        steps = sum(end.steps - begin.steps for begin, end in spans)
        spans = spans or [(self._first, last)]
        seconds = sum(end.seconds - begin.seconds for begin, end in spans)
        wanted = {"power_w": (self.rails, seconds, "W")}
        if steps:
            wanted["energy_j_per_step"] = (self.rails, steps, "J")
            if self._kind == "gpu":
                wanted["energy_gpu_j_per_step"] = (["gpu"], steps, "J")
        found = {}
        for name, (rails, amount, unit) in wanted.items():
            # A reading is as old as the last movement of its counter, so each of n spans may be
            # wrong by up to two periods of power, and all of them by sqrt(n) times as much.
            period_s = max(self._periods_s[rail] for rail in rails)
            share = 2 * period_s * math.sqrt(len(spans)) / seconds
            if share > COARSE:
                why = f"a counter that moves every {period_s:g} s is too coarse for {seconds:.3g} s"
                self.missing[name] = why
                continue
            used = [end.joules[rail] - begin.joules[rail] for begin, end in spans for rail in rails]
            value = sum(used) / amount
            half = share * value
            found[name] = Estimate(value, unit, value - half, value + half, n=max(1, steps))
        return found

    def _read(self, steps: int = 0) -> Reading:
        return Reading(self._clock(), steps, self._joules())
