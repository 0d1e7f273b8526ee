"""Intervals of times in one process, where neighbours correlate.

Where the numbers here come from is in docs/log/2026-11.md, "How the intervals are made".
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special  # here: its import must not fall into a timed loop

from pomology.measure.estimate import Estimate

BATCHES = 40  # values that an interval is made of, at most
VALUES_LEAST = 6  # below, nothing is said of the correlation of neighbours
VALUES_ENOUGH = 20  # of fewer values the least and the greatest stand in place of an interval
CONFIDENCE = 0.95


def t_quantile(confidence: float, dof: float) -> float:
    """Return the t with P(|T| <= t) = `confidence` for Student's t."""
    return float(special.stdtrit(dof, (1 + confidence) / 2))


def interval(durations: ArrayLike, weights: ArrayLike | None = None) -> Estimate:
    """Return the mean time per step with its 95 % interval within this run.

    Of fewer than 20 values the range that was seen stands in place of an interval. durations:
    seconds per step in time order or, with `weights` (steps per block), means of blocks.
    """
    times = np.asarray(durations, dtype=float)
    steps = np.ones_like(times) if weights is None else np.asarray(weights, dtype=float)
    mean = float(times @ steps / steps.sum())
    count = round(steps.sum())
    half = half_width(times, steps, mean, 12)
    if half is None or times.size < VALUES_ENOUGH:
        return _seen(mean, times, count)
    return Estimate(mean, "s", *_near(times, mean - half, mean + half), count)


def median_interval(durations: ArrayLike) -> Estimate:
    """Return the median of seconds per call, in time order, with its interval within this run.

    Of fewer than 20 values the range that was seen stands in place of an interval. Woodruff 1952:
    the interval of the mean of "this call took less than the median" says how far from 1/2 the rank
    of the true median may be; the values there are the bounds. Where that is beyond the extremes,
    the bounds are so many times as far away.
    """
    times = np.asarray(durations, dtype=float)
    median = float(np.median(times))
    if times.size < VALUES_ENOUGH:
        return _seen(median, times, times.size)
    shorter = np.where(times == median, 0.5, times < median)
    reach = half_width(shorter, np.ones_like(times), 0.5, 20)
    low, high = np.quantile(times, [max(0.5 - reach, 0.0), min(0.5 + reach, 1.0)])
    beyond = max(2 * reach, 1.0)
    bounds = _near(times, median - (median - low) * beyond, median + (high - median) * beyond)
    return Estimate(median, "s", *bounds, times.size)


def _seen(value: float, times: np.ndarray, n: int) -> Estimate:
    """Return a value with the range of the times that it is made of, if there are several."""
    if times.size < 2:
        return Estimate(value, "s", n=n)
    return Estimate(value, "s", float(times.min()), float(times.max()), n, covers="seen")


def _near(times: np.ndarray, low: float, high: float) -> tuple[float, float]:
    """Return bounds that leave what was seen by no more than its width, and do not reach 0."""
    least, greatest = float(times.min()), float(times.max())
    width = greatest - least
    return max(float(low), least - min(width, least / 2)), min(float(high), greatest + width)


def half_width(values: np.ndarray, steps: np.ndarray, mean: float, raised: float) -> float | None:
    """Return half the 95 % interval of the mean of values, each of so many steps; None below 6.

    raised: by how much of itself over n the correlation of neighbours is raised.
    """
    total = steps.sum()
    if values.size > BATCHES:  # a value belongs to the batch that its middle step falls into
        batch = ((np.cumsum(steps) - steps / 2) * (BATCHES / total)).astype(int)
        starts = np.flatnonzero(np.diff(batch, prepend=-1))
        sums = np.add.reduceat(values * steps, starts)
        steps = np.add.reduceat(steps, starts)
        values = sums / steps
    n = steps.size
    if n < VALUES_LEAST:
        return None
    deviations = (values - mean) * np.sqrt(steps)
    squares = deviations @ deviations
    lag = deviations[:-1] @ deviations[1:] / squares if squares else 0.0
    r = min(max(lag * (1 + raised / n) + 60 / n**2, 0.0), 0.95)
    shares = np.sqrt(steps / total)
    distances = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    f = shares @ r**distances @ shares
    return t_quantile(CONFIDENCE, n - 1) * math.sqrt(squares / (n - f) * f / total)
