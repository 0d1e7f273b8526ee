"""What a device can reach: its peaks and its bandwidth, of a maker's data sheet or of a run's own ceilings."""

from __future__ import annotations

import difflib
import functools
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pomology.articles import published
from pomology.errors import PomologyError
from pomology.extras.prediction.operators import Operator
from pomology.format import one_line
from pomology.report import roofline
from pomology.results import cases
from pomology.results.record import Record

UNREAD = "typed from memory, not read against a text"
HALF = ("fp16", "bf16", "amp", "half")
SINGLE = {"addition", "bernoulli", "batch_norm", "max_pool", "index_put", "depthwise"}  # operators in `ceilings`
# What no device is beyond: operations and bytes a second, seconds of a launch.
BOUNDS = {"FLOP/s": (1e7, 1e17), "B/s": (1e7, 1e15), "s": (1e-9, 1.0)}
# From where a processor's times calibrate: shares of its measured ceilings, in the order of `model.START`, and how many
# launches by themselves an operator of a training takes. Round values, near those of single operators on one processor.
CPU_SHARES = (0.8, 0.8, 0.08, 0.8, 0.8, 0.8, 0.5, 0.5)
CPU_LAUNCHES = 2.3
# Where a run has timed single operators too, these rates are taken, not shares: of an addition COLD, since other
# operators use the caches in between; and a convolution moves its data REORDERED times, as oneDNN changes their layout.
CPU_TIMED = (0.8, 0.8, 1.0, 0.8, 0.8, 0.8, 1.0, 1.0)
COLD, REORDERED = 0.6, 2
# By how much models that the kit lacks missed their predictions on a processor, measured over predicted, as logarithms:
# from ceilings alone all of ten on one processor are between the first two. With single operators 77 of 80 are between
# the others, of forty models on two processors; on the second, which had no part in choosing them, 38 of its 40. The
# list is in tests/unseen.py. Nobody has tried that on a chip of another maker than TRIED, such as Apple's.
CPU_UNSEEN, CPU_UNSEEN_TIMED, TRIED = (-0.58, 0.86), (-0.43, 0.405), ("AMD ", "Intel ")


class Device(NamedTuple):
    """flops_per_s: by precision; published ones have `fp32`, `tf32` and `half`, None where it has none of its own.
    bytes_per_s: of its memory. measured: whether these are a run's own ceilings. launch_s: of one kernel, where a run
    has timed it. convolution: of a processor's convolutions in fp32, which another library computes than products.
    single: what a run has timed of single operators on its processor, by names of SINGLE: bytes of the largest tensor,
    and bytes a second, of `depthwise` operations a second."""

    name: str
    flops_per_s: dict[str, float | None]
    bytes_per_s: float
    backend: str
    source: str
    measured: bool = False
    launch_s: float | None = None
    convolution: float | None = None
    single: Mapping[str, Sequence[tuple[float, float]]] = {}

    @property
    def unseen(self) -> tuple[float, float]:
        """Of a processor: the narrowest interval of a model that the kit lacks."""
        return CPU_UNSEEN_TIMED if self.single and self.name.startswith(TRIED) else CPU_UNSEEN

    def single_rate(self, name: str, largest: float) -> float:
        """The rate of a single operator whose largest tensor has so many bytes: between those that were timed."""
        sizes, reached = zip(*self.single[name], strict=True)
        return float(np.exp(np.interp(math.log(largest), np.log(sizes), np.log(reached))))

    def traffic(self, operator: Operator) -> float:
        """Bytes a second of an operator, as far as this device has more than one rate: that of an addition of its size,
        or of the slower operator that it is like. What makes no new tensor waits for no new memory."""
        if not self.single:
            return self.bytes_per_s
        if not operator.largest:
            return CPU_SHARES[-1] * self.bytes_per_s
        rate = COLD * self.single_rate("addition", operator.largest)
        rate = rate if operator.fresh else max(rate, self.bytes_per_s)
        return min(rate, self.single_rate(operator.like, operator.largest)) if operator.like else rate

    def rate(self, precision: str) -> tuple[float, bool]:
        """The peak in a precision, and whether matrix units reach it; fp32's of a data sheet that has none. Raises
        PomologyError where a run has not measured it."""
        fp32, peak = self.flops_per_s["fp32"], self.flops_per_s.get("fp16" if precision == "amp" else precision)
        if self.measured and not peak:
            known = ", ".join(sorted(self.flops_per_s))
            raise PomologyError(f"{precision}: {self.name} must have a ceiling in it in {self.source}; it has {known}")
        peak = peak or (self.flops_per_s.get("half") if precision in HALF else None)
        units = precision != "fp32" and bool(self.flops_per_s.get("tf32") or (peak or 0) > 2.5 * (fp32 or 1))
        return (peak or fp32 or 0.0), units and peak is not None


def check(device: Device) -> Device:
    """The same device. Raises PomologyError for a ceiling that is no number, or that no device has."""
    known = [(f"{name} operations", value, "FLOP/s") for name, value in device.flops_per_s.items()]
    known += [("memory bandwidth", device.bytes_per_s, "B/s"), ("launch", device.launch_s, "s")]
    known += [("convolution", device.convolution, "FLOP/s")]
    for name, timed in device.single.items():
        known += [(name, rate, "FLOP/s" if name == "depthwise" else "B/s") for _, rate in timed]
    for name, value, unit in known:
        low, high = BOUNDS[unit]
        if value is not None and not low <= value <= high:
            about = f"{device.name}, {name}: {value:.3g} {unit}, of {device.source}"
            raise PomologyError(f"{about}; must be {low:.0e} to {high:.0e} {unit}, so nothing is predicted")
    return device


def chosen(name: str, known: Mapping[str, Device]) -> Device:
    """The device of this name. Raises PomologyError, which names the closest."""
    if name not in known:
        close = difflib.get_close_matches(name, known, 3, 0.4) or sorted(known)[:3]
        raise PomologyError(f"--on {one_line(name)}: no such device; close to it: {', '.join(close)}")
    return known[name]


@functools.cache
def published_devices() -> dict[str, Device]:
    """Devices with a data sheet, by the name that the published rows have for them."""
    made = {}
    for line in published.read("datasheets.csv"):
        tflops = {name: line[f"{name}_tflops"] for name in ("fp32", "tf32", "half")}
        peaks = {name: float(text) * 1e12 if text else None for name, text in tflops.items()}
        backend = "mps" if line["maker"] == "apple" else "cuda"
        source = f"published peaks ({line['checked'] or UNREAD})"
        made[line["device"]] = Device(line["device"], peaks, float(line["bandwidth_gb_s"]) * 1e9, backend, source)
    return made


def measured_devices(records: Sequence[Record], run: str) -> dict[str, Device]:
    """The devices of a run that has timed products and memory, by `cpu` and `gpu`; none of a run without ceilings."""
    by_operator = {True: [], False: []}
    for record in records:
        by_operator[record.config.get("operation") == "convolution"].append(record)
    best, made = roofline.ceilings(by_operator[False]), {}
    convolutions = roofline.ceilings(by_operator[True]).rates
    for kind in ("cpu", "gpu"):
        bandwidth, fp32 = best.bandwidths.get((kind, roofline.BOTH)), best.rates.get((kind, "fp32"))
        if bandwidth and fp32:
            peaks: dict[str, float | None] = {name: each.value for (of, name), each in best.rates.items() if of == kind}
            ok = [r for r in records if r.experiment == "kernel_launch_torch" and r.status == "ok"]
            launches = [r.metrics["launch_stream_s"].value for r in ok if cases.kind(r) == kind]
            backend = "cpu" if kind == "cpu" else fp32.record.backend.rpartition("-")[2]
            source = f"the ceilings measured in the run {run}"
            launch = min(launches, default=None)
            convolved = convolutions.get((kind, "fp32"))
            about = cases.chip_name(fp32.record), peaks, bandwidth.value, backend, source, True, launch
            made[kind] = Device(*about, convolved and convolved.value, _single(records) if kind == "cpu" else {})
    return made


def _single(records: Sequence[Record]) -> dict[str, list[tuple[float, float]]]:
    """`Device.single` of a run's processor, of repeats the median; empty where one of SINGLE lacks."""
    made: dict[str, dict[float, list[float]]] = {}
    for record in records:
        name, shape = record.config.get("operation"), str(record.config.get("shape"))
        rate = record.metrics.get("flops_per_s" if name == "depthwise" else "bytes_per_s")
        timed = record.experiment == "ceilings" and record.status == "ok" and name in SINGLE and rate
        if timed and re.fullmatch(r"[1-9]\d{0,8}(x[1-9]\d{0,8}){1,3}", shape):  # a stranger's run may have any text
            size = 4.0 * math.prod(map(int, shape.split("x")))
            made.setdefault(name, {}).setdefault(size, []).append(rate.value)
    if made.keys() != SINGLE:
        return {}
    return {name: sorted((size, statistics.median(of)) for size, of in sizes.items()) for name, sizes in made.items()}
