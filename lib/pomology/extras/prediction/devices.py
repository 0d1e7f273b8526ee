"""What a device can reach: its peaks of a data sheet, or what a run has measured."""

from __future__ import annotations

import difflib
import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pomology.articles import published
from pomology.errors import PomologyError
from pomology.extras.prediction.operators import Operator
from pomology.format import one_line
from pomology.report.peaks import BOTH, peaks
from pomology.results import cases
from pomology.results.pool import counted_rate
from pomology.results.record import Record

HALF = ("fp16", "bf16", "half")
# Single operators that the notebook of ceilings times on a processor.
SINGLE = {"addition", "bernoulli", "batch_norm", "max_pool", "index_put", "depthwise"}
# Where a processor's fit starts: shares of its ceilings, in the order of `model.START`, and
# launches that an operator takes. They are round values near those of one processor's operators.
CPU_SHARES = (0.8, 0.8, 1.0, 0.8, 0.8, 0.8, 1.0, 1.0)
CPU_LAUNCHES = 2.3
# Other operators use the caches meanwhile, so an addition has COLD of its rate. A convolution moves
# its data REORDERED times, as oneDNN changes their layout.
COLD = 0.6
REORDERED = 2
# The share of the bandwidth where only the sums of a step are known.
SUMMED = 0.5
# The least interval of a user's model on a processor, in logarithms of measured over predicted. It
# held at least 77 of 80 models on two processors (docs/prediction.md).
CPU_UNSEEN = (-0.58, 0.86)


class Device(NamedTuple):
    """A device and its ceilings."""

    name: str
    flops_per_s: Mapping[str, float | None]  # by precision; of a data sheet fp32, tf32 and half
    bytes_per_s: float
    backend: str
    source: str
    measured: bool = False  # by a run
    launch_s: float | None = None  # of one kernel
    convolution: float | None = None  # operations a second of a processor's convolutions
    # Of SINGLE: bytes of the largest tensor, and bytes a second (depthwise: operations).
    single: Mapping[str, Sequence[tuple[float, float]]] = {}

    def single_rate(self, name: str, largest: float) -> float:
        """Return the rate of a single operator at a size, between the sizes that were timed."""
        sizes, rates = zip(*self.single[name], strict=True)
        return float(np.exp(np.interp(math.log(largest), np.log(sizes), np.log(rates))))

    def traffic(self, operator: Operator) -> float:
        """Return the bytes a second that an operator reaches."""
        if not self.single:
            return self.bytes_per_s
        if not operator.largest:
            return SUMMED * self.bytes_per_s
        rate = COLD * self.single_rate("addition", operator.largest)
        if not operator.fresh:  # it waits for no new memory
            rate = max(rate, self.bytes_per_s)
        if operator.like:
            rate = min(rate, self.single_rate(operator.like, operator.largest))
        return rate

    def rate(self, precision: str) -> tuple[float, bool]:
        """Return the peak in a precision, and whether matrix units reach it."""
        fp32 = self.flops_per_s["fp32"]
        peak = self.flops_per_s.get(precision)
        if self.measured and not peak:
            raise PomologyError(f"{precision}: {self.name} has no ceiling in it in {self.source}")
        if not peak and precision in HALF:
            peak = self.flops_per_s.get("half")
        if not peak:
            return fp32, False
        units = self.flops_per_s.get("tf32") or peak > 2.5 * fp32
        return peak, precision != "fp32" and bool(units)


def chosen(name: str, devices: Mapping[str, Device]) -> Device:
    """Return the device of this name. Raises PomologyError, which names the closest."""
    if name not in devices:
        names = ", ".join(difflib.get_close_matches(name, devices, 3, 0) or devices)
        raise PomologyError(f"--on {one_line(name)}: no such device; close to it: {names}")
    return devices[name]


@functools.cache
def published_devices() -> dict[str, Device]:
    """Return the devices with a data sheet, by name."""
    devices = {}
    for line in published.read("datasheets.csv"):
        tflops = {name: line[f"{name}_tflops"] for name in ("fp32", "tf32", "half")}
        peaks = {name: float(text) * 1e12 if text else None for name, text in tflops.items()}
        backend = "mps" if line["maker"] == "apple" else "cuda"
        checked = line["checked"] or "typed from memory, not read against a text"
        source = f"published peaks ({checked})"
        bandwidth = float(line["bandwidth_gb_s"]) * 1e9
        devices[line["device"]] = Device(line["device"], peaks, bandwidth, backend, source)
    return devices


def measured_devices(records: Sequence[Record], run: str) -> dict[str, Device]:
    """Return the devices of a run that has measured ceilings, by `cpu` and `gpu`."""
    devices = {}
    convolutions = [r for r in records if r.config.get("operation") == "convolution"]
    others = [r for r in records if r.config.get("operation") != "convolution"]
    best = peaks(others)
    convolved = peaks(convolutions)
    for kind in ("cpu", "gpu"):
        bandwidth = best.bandwidths.get((kind, BOTH))
        fp32 = best.rates.get((kind, "fp32"))
        convolution = convolved.rates.get((kind, "fp32"))
        single = _single(records) if kind == "cpu" else {}
        if not bandwidth or not fp32 or (kind == "cpu" and not single):
            continue
        launches = [
            record.metrics["launch_stream_s"].value
            for record in records
            if record.experiment == "kernel_launch" and record.status == "ok"
            if record.framework == "torch"
            if cases.kind(record) == kind
        ]
        devices[kind] = Device(
            name=cases.chip_name(fp32.record),
            flops_per_s={name: each.value for (of, name), each in best.rates.items() if of == kind},
            bytes_per_s=bandwidth.value,
            backend="cpu" if kind == "cpu" else fp32.record.backend.rpartition("-")[2],
            source=f"the ceilings measured in the run {run}",
            measured=True,
            launch_s=min(launches, default=None),
            convolution=convolution and convolution.value,
            single=single,
        )
    return devices


def timed_steps(records: Sequence[Record]) -> list[tuple[Record, float]]:
    """Return the timed cases of a run, each with its operations a second."""
    usable = [
        record for record in cases.comparable(records, "flops_per_s") if record.status == "ok"
    ]
    timed = []
    for repeats in cases.groups(usable):
        known = []
        for record in repeats:
            counted = counted_rate(record.flops_per_step, record.metrics.get("step_s"))
            known.append(record.metrics.get("flops_per_s", counted))
        known = [rate for rate in known if rate and rate.value > 0]
        if known and "operation" not in repeats[0].config:
            timed.append((repeats[0], cases.together(known).value))
    return timed


def _single(records: Sequence[Record]) -> dict[str, list[tuple[float, float]]]:
    """Return `Device.single` of a run, of repeats the median."""
    rates: dict[str, dict[float, list[float]]] = {}
    for record in records:
        name = record.config.get("operation")
        if record.experiment != "peaks" or record.status != "ok" or name not in SINGLE:
            continue
        rate = record.metrics["flops_per_s" if name == "depthwise" else "bytes_per_s"]
        size = 4.0 * math.prod(map(int, record.config["shape"].split("x")))
        rates.setdefault(name, {}).setdefault(size, []).append(rate.value)
    if rates.keys() != SINGLE:
        return {}
    return {
        name: sorted((size, statistics.median(repeats)) for size, repeats in sizes.items())
        for name, sizes in rates.items()
    }
