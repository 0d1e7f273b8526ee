"""Predicted ratios of two devices with a data sheet, for the workloads of `pomology predict`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import geometric_mean
from typing import NamedTuple

from pomology.extras.prediction import model, times, workloads
from pomology.extras.prediction.devices import Hardware
from pomology.measure.estimate import Estimate

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


def ratios(first: Hardware, second: Hardware) -> list[Ratio]:
    """Return the ratios at all workloads, the largest first."""
    measured = times.published()
    results = []
    for row in workloads.rows():
        step = workloads.parse(row["example"])
        predicted = []
        for device in (first, second):
            # As `pomology predict` does: the device's times at other workloads calibrate it.
            fit = model.fitted().calibrated(device, measured, step.workload)
            work = workloads.count(step, PRECISION, device.backend)
            predicted.append(fit.predict(work, device, PRECISION)[0])
        results.append(Ratio(row["example"], row["title"], *predicted))
    return sorted(results, key=lambda ratio: -ratio.value)


def mean(all_ratios: Sequence[Ratio]) -> float:
    """Return the geometric mean of ratios."""
    return geometric_mean([ratio.value for ratio in all_ratios])
