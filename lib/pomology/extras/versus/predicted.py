"""Predicted ratios of two devices with a data sheet, for the workloads of `pomology predict`."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from statistics import geometric_mean
from typing import NamedTuple

from pomology.articles import devices as names
from pomology.extras.prediction import devices, model, workloads
from pomology.extras.prediction.workloads import Target
from pomology.measure.estimate import Estimate

PRECISION = "fp32"  # without TF32, which Apple's GPUs lack
HALF = "bf16"  # a data sheet has one peak for both half precisions


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
def steps(device: str, precision: str = PRECISION) -> tuple[Step, ...]:
    """Return the predicted steps of all workloads on a device, none without a data sheet.

    They are not calibrated by the device's own times, as `pomology predict` does: only some devices
    have such times, of other work, and a ratio needs both sides made alike.
    """
    if device not in names.sheets():
        return ()
    predicted = []
    for row in workloads.rows():
        target = workloads.parse(row["example"])
        predicted_time = time(device, target, precision)
        predicted.append(Step(row["example"], row["title"], target.batch_size, predicted_time))
    return tuple(predicted)


def time(device: str, target: Target, precision: str = PRECISION) -> Estimate:
    """Return the predicted time of a step on a device with a data sheet."""
    hardware = devices.with_data_sheet(device).device
    work = workloads.count(target, precision, hardware.backend)
    return model.fitted().predict(work, hardware, precision)[0]


def ratios(first: str, second: str, precision: str = PRECISION) -> list[Ratio]:
    """Return the ratios at all workloads, the largest first; none without both data sheets."""
    both = zip(steps(first, precision), steps(second, precision), strict=False)
    results = [Ratio(one.example, one.title, one.time, other.time) for one, other in both]
    return sorted(results, key=lambda ratio: -ratio.value)


def mean(all_ratios: Sequence[Ratio]) -> float:
    """Return the geometric mean of ratios."""
    return geometric_mean([ratio.value for ratio in all_ratios])
