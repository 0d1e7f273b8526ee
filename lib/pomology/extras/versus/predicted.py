"""Predicted ratios of two devices with a data sheet, for the workloads of `pomology predict`."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple

from pomology.articles import devices as names
from pomology.extras.prediction import devices, model, times, workloads
from pomology.measure.estimate import Estimate
from pomology.paths import read_csv

PREDICTIONS = Path(__file__).with_name("predictions.csv")  # `make docs` writes it
PRECISION = "fp32"  # without TF32, which Apple's GPUs lack


class Ratio(NamedTuple):
    """How many times as fast a device is predicted to be at a workload, with a 90 % interval."""

    example: str
    title: str
    first: Estimate
    second: Estimate

    @property
    def value(self) -> float:
        return self.second.value / self.first.value

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval, as if the errors of both devices were independent."""
        spread = [_spread(estimate) for estimate in (self.first, self.second)]
        below = math.hypot(spread[0][1], spread[1][0])
        above = math.hypot(spread[0][0], spread[1][1])
        return self.value * math.exp(-below), self.value * math.exp(above)


def _spread(estimate: Estimate) -> tuple[float, float]:
    """Return how far the bounds are below and above a value, as logarithms."""
    low, high = estimate.bounds
    return math.log(estimate.value / low), math.log(high / estimate.value)


class Step(NamedTuple):
    """A predicted training step of a workload. batch_size: its samples."""

    example: str
    title: str
    batch_size: int
    time: Estimate


@functools.cache
def _kept() -> dict[str, tuple[Step, ...]]:
    """Return the steps of `predictions.csv` by device."""
    by_device: dict[str, list[Step]] = defaultdict(list)
    titles = {row["example"]: row["title"] for row in workloads.rows()}
    for line in read_csv(PREDICTIONS):
        time = Estimate(float(line["step_s"]), "s", float(line["low_s"]), float(line["high_s"]))
        example = line["example"]
        batch_size = workloads.parse(example).batch_size
        by_device[line["device"]].append(Step(example, titles[example], batch_size, time))
    return {device: tuple(of_device) for device, of_device in by_device.items()}


def steps(device: str) -> tuple[Step, ...]:
    """Return the predicted steps of all workloads on a device, none without a data sheet."""
    return _kept().get(device, ())


def rows() -> Iterator[dict[str, str]]:
    """Yield the rows of predictions.csv, of all devices with a data sheet; this takes a minute."""
    for device in names.sheets():
        yield from rows_of(device)


def rows_of(device: str) -> Iterator[dict[str, str]]:
    """Yield the rows of predictions.csv of a device."""
    measured = times.published()
    hardware = devices.with_data_sheet(device).device
    for row in workloads.rows():
        step = workloads.parse(row["example"])
        # As `pomology predict` does: the device's times at other workloads calibrate it.
        fit = model.fitted().calibrated(hardware, measured, step.workload)
        work = workloads.count(step, PRECISION, hardware.backend)
        time = fit.predict(work, hardware, PRECISION)[0]
        numbers = {"step_s": time.value, "low_s": time.low, "high_s": time.high}
        texts = {name: f"{number:.5g}" for name, number in numbers.items()}
        yield {"device": device, "example": row["example"]} | texts


def ratios(first: str, second: str) -> list[Ratio]:
    """Return the ratios at all workloads, the largest first; none without both data sheets."""
    both = zip(steps(first), steps(second), strict=False)
    results = [Ratio(one.example, one.title, one.time, other.time) for one, other in both]
    return sorted(results, key=lambda ratio: -ratio.value)


def mean(all_ratios: Sequence[Ratio]) -> float:
    """Return the geometric mean of ratios."""
    return geometric_mean([ratio.value for ratio in all_ratios])
