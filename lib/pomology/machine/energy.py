"""Energy counters of Apple and NVIDIA, and the joules of a training step computed from them."""

import contextlib
import math
import os
import platform
import sys
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from pomology.machine import messages, snapshot
from pomology.measure.estimate import Estimate

APPLE_RAILS = {"cpu": "cpu_total_mj", "gpu": "gpu_mj", "dram": "dram_mj"}
# macOS 27 publishes all energy but the GPU's twice in about 2.1 s (lablup/all-smi #410 and #415).
APPLE_PERIOD_S = 0.01
APPLE_SLOW_PERIOD_S = 2.1
NVML_PERIOD_S = 0.1

MAX_ERROR = 0.25  # a number with a larger relative error is omitted
# No domain takes more on average: a Mac Studio's power supply has 480 W, and no GPU has 2 kW.
APPLE_MOST_W = 500.0
NVIDIA_MOST_W = 2000.0
STILL_S = 5.0  # a counter that stands still so long, and for two of its periods, is stuck
SPACING_S = 0.1  # between readings in steady steps; a reading may take some milliseconds


class Absent(Exception):
    """A source that this machine does not have; the text is the reason in plain words."""


class Meter(NamedTuple):
    """Energy meter. rails: update interval of each power domain. joules: reads the counters.

    most_w: power of a domain that none can exceed.
    """

    rails: dict[str, float]
    joules: Callable[[], dict[str, float]]
    most_w: float = NVIDIA_MOST_W


def meter(kind: str) -> Meter:
    """Return the energy meter of a device, "cpu" or "gpu". Raises Absent if there is none."""
    if sys.platform == "darwin":
        apple = _apple_meter()
        if kind not in apple.rails:
            raise Absent(f"zeus-apple-silicon does not count all of the {kind} of this chip")
        return apple
    if kind == "cpu":
        raise Absent("on Linux only root may read the energy counters of a CPU")
    nvml, gpu = nvml_gpu()
    energy_mj = nvml.nvmlDeviceGetTotalEnergyConsumption
    try:
        energy_mj(gpu)
    except nvml.NVMLError as error:  # of a GPU before Volta, or a Jetson
        raise Absent(f"this GPU does not count its energy: {error}") from error
    return Meter({"gpu": NVML_PERIOD_S}, lambda: {"gpu": energy_mj(gpu) / 1e3})


def _apple_meter() -> Meter:
    """Return the meter of an Apple chip, with macOS's estimates of energy in steps of 1 mJ."""
    if snapshot.sysctl("kern.hv_vmm_present") == 1:
        # Without counters the library would end this process.
        raise Absent("not read in a virtual machine, which may lack energy counters")
    try:
        import zeus_apple_silicon

        monitor = zeus_apple_silicon.AppleEnergyMonitor()
        first = monitor.get_cumulative_energy()  # any field may be None
    except ImportError as error:
        raise Absent("zeus-apple-silicon is not installed") from error
    except (RuntimeError, ValueError, OSError) as error:
        raise Absent(f"macOS does not open its energy counters: {error}") from error
    slow = int(platform.mac_ver()[0].split(".")[0] or 0) >= 27
    ultra = "Ultra" in (snapshot.chip() or "")
    periods_s = {}
    for rail, field in APPLE_RAILS.items():
        # Version 1.1.0 overwrites the CPU counters of an Ultra's first die with the second's.
        if (ultra and rail == "cpu") or getattr(first, field) is None:
            continue
        periods_s[rail] = APPLE_SLOW_PERIOD_S if slow and rail != "gpu" else APPLE_PERIOD_S

    def joules() -> dict[str, float]:
        counters = monitor.get_cumulative_energy()
        return {rail: getattr(counters, APPLE_RAILS[rail]) / 1e3 for rail in periods_s}

    return Meter(periods_s, joules, APPLE_MOST_W)


def nvml_gpu() -> tuple[Any, Any]:
    """Return NVML and its handle of the GPU that this process computes on. Raises Absent.

    NVML numbers GPUs by their bus, CUDA the fastest first, so a number does not name a GPU.
    """
    try:
        import pynvml
    except ImportError as error:
        raise Absent("nvidia-ml-py is not installed") from error
    # CUDA's first device is the first number or UUID of this variable. A UUID says more than a
    # number, and PyTorch tells that of its device.
    name = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    torch = sys.modules.get("torch")  # a process has one framework
    if torch and torch.cuda.is_available():
        name = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    try:
        pynvml.nvmlInit()
        if name.isdecimal() and pynvml.nvmlDeviceGetCount() > 1:
            remedy = "CUDA_VISIBLE_DEVICES=GPU-... with its UUID of `nvidia-smi -L` names one"
            raise Absent(f"CUDA may use any of several GPUs; {remedy}")
        if name.isdecimal():
            gpu = pynvml.nvmlDeviceGetHandleByIndex(int(name))
        else:
            gpu = pynvml.nvmlDeviceGetHandleByUUID(name)
    except pynvml.NVMLError as error:
        reason = messages.fault(str(error)) or error
        raise Absent(f"NVML finds no GPU that CUDA may use: {reason}") from error
    with contextlib.suppress(pynvml.NVMLError, AttributeError):  # GPUs and versions without MIG
        if name.startswith("MIG") or pynvml.nvmlDeviceGetMigMode(gpu)[0] == 1:
            raise Absent("a MIG instance shares the counters of its GPU with other instances")
    return pynvml, gpu


class Reading(NamedTuple):
    """Time of a reading, steady steps completed by then, and joules of each power domain."""

    seconds: float
    steps: int
    joules: dict[str, float]


class EnergyCounter:
    """Energy counters of a device, read from its creation on and in steady steps.

    rails: power domains. missing: metric -> why it has no value. Raises Absent.
    """

    def __init__(self, kind: str, clock: Callable[[], float]):
        self._kind = kind
        self._clock = clock
        self._periods_s, self._joules, self._most_w = meter(kind)
        self.rails = list(self._periods_s)
        self.missing: dict[str, str] = {}
        self._broken: dict[str, str] = {}  # power domain -> what is wrong with its counter
        self._first = self._read()
        self._last = self._first  # that was watched
        self._moved_s = dict.fromkeys(self.rails, self._first.seconds)
        # First and last reading of each stretch of consecutive steady blocks.
        self._spans: dict[Hashable, tuple[Reading, Reading]] = {}

    def steady(self, stretch: Hashable, steps: int) -> None:
        """Read the counters where a steady block begins or ends. steps: steady steps so far.

        stretch: key of consecutive blocks; it differs if other work ran between two blocks.
        """
        begin, last = self._spans.get(stretch, (None, None))
        if begin is None:
            reading = self._read(steps)
            self._spans[stretch] = (reading, reading)
        elif self._clock() - last.seconds >= SPACING_S:
            self._spans[stretch] = (begin, self._read(steps))

    def watch(self) -> None:
        """Read the counters at any time, and note what cannot be: see `metrics`."""
        reading = self._read()
        seconds = reading.seconds - self._last.seconds
        for rail in self.rails:
            joules = reading.joules[rail] - self._last.joules[rail]
            still_s = reading.seconds - self._moved_s[rail]
            # A GPU that nobody uses may draw nothing for seconds; a CPU and memory never do.
            may_rest = rail == "gpu" and self._kind == "cpu"
            if joules:
                self._moved_s[rail] = reading.seconds
            elif still_s >= max(STILL_S, 2 * self._periods_s[rail]) and not may_rest:
                self._note_broken(rail, f"stood still for {still_s:.3g} s")
            if math.isnan(joules):
                self._note_broken(rail, "is no number")
            if joules < 0:
                self._note_broken(rail, f"fell by {-joules:.3g} J")
            # An update may hold the energy of a whole period more.
            if joules > self._most_w * (seconds + self._periods_s[rail]):
                self._note_broken(rail, f"rose by {joules:.3g} J within {seconds:.3g} s")
        self._last = reading

    def _note_broken(self, rail: str, what: str) -> None:
        self._broken.setdefault(rail, f"the energy counter of the {rail} {what}")

    def metrics(self) -> dict[str, Estimate]:
        """Return joules per steady step, and power in these or else overall.

        A domain whose counter fell, stood still or rose beyond all power counts for none of them.
        """
        self.watch()
        last = self._last
        # A counter that stands still over two of its periods is broken, not of an idle device.
        for rail in self.rails:
            long = last.seconds - self._first.seconds >= 2 * self._periods_s[rail]
            if long and last.joules[rail] == self._first.joules[rail]:
                self._note_broken(rail, "did not move")
        spans = [(begin, end) for begin, end in self._spans.values() if end.steps > begin.steps]
        steps = sum(end.steps - begin.steps for begin, end in spans)
        spans = spans or [(self._first, last)]
        seconds = sum(end.seconds - begin.seconds for begin, end in spans)
        # Metric -> its power domains, by what their joules are divided, and its unit.
        definitions = {"power_w": (self.rails, seconds, "W")}
        if steps:
            definitions["energy_j_per_step"] = (self.rails, steps, "J")
            if self._kind == "gpu":
                definitions["energy_gpu_j_per_step"] = (["gpu"], steps, "J")
        metrics = {}
        for name, (rails, divisor, unit) in definitions.items():
            reasons = [self._broken[rail] for rail in rails if rail in self._broken]
            if reasons:
                self.missing[name] = reasons[0]
                continue
            # A reading is as old as its counter's last update, so each of n spans may be wrong by
            # up to two periods of power, and their sum by sqrt(n) times as much.
            period_s = max(self._periods_s[rail] for rail in rails)
            error = 2 * period_s * math.sqrt(len(spans)) / seconds
            if error > MAX_ERROR:
                reason = f"its counter updates every {period_s:g} s, too rarely for {seconds:.3g} s"
                self.missing[name] = reason
                continue
            joules = [
                end.joules[rail] - begin.joules[rail] for begin, end in spans for rail in rails
            ]
            value = sum(joules) / divisor
            half = error * value
            metrics[name] = Estimate(value, unit, value - half, value + half, n=max(1, steps))
        return metrics

    def _read(self, steps: int = 0) -> Reading:
        return Reading(self._clock(), steps, self._joules())
