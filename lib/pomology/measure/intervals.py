"""95 % confidence intervals of times in one process, in which consecutive times correlate.

docs/log/2026-11.md has the source of the constants: "How the intervals are made" and "One stall
was the bound of a median".
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special  # here: its import must not fall into a timed loop

from pomology.measure.estimate import Estimate

BATCHES = 40  # most values in an interval: longer series are averaged into this many batches
VALUES_LEAST = 6  # fewer do not show the correlation of consecutive values
VALUES_FOR_INTERVAL = 20  # fewer get their range in place of an interval
CONFIDENCE = 0.95
STALLS = 0.06  # share of calls, the slowest, that are no bound of a median: of 20 calls, one
STRETCH = 2.0  # largest factor on the distance of a bound from the median


def t_quantile(confidence: float, dof: float) -> float:
    """Return the t with P(|T| <= t) = `confidence` for Student's t-distribution."""
    return float(special.stdtrit(dof, (1 + confidence) / 2))


def interval(durations: ArrayLike, weights: ArrayLike | None = None) -> Estimate:
    """Return the mean time per step with its 95 % interval within this run.

    Fewer than 20 values get their range in place of an interval, and none if they are means of
    several steps, whose range is no time that a step took. durations: seconds per step in time
    order or, with `weights` (steps per block), means of blocks.
    """
    times = np.asarray(durations, dtype=float)
    steps = np.ones_like(times) if weights is None else np.asarray(weights, dtype=float)
    mean = float(times @ steps / steps.sum())
    count = round(steps.sum())
    half = half_width(times, steps, mean, 12)
    if half is None or times.size < VALUES_FOR_INTERVAL:
        single = steps.max() <= 1
        return _with_range(mean, times, count) if single else Estimate(mean, "s", n=count)
    return Estimate(mean, "s", *_clipped(times, mean - half, mean + half), count)


def median_interval(durations: ArrayLike) -> Estimate:
    """Return the median of seconds per call, with its 95 % interval within this run.

    durations: in time order. Fewer than 20 values get their range in place of an interval. The
    method is Woodruff 1952. The interval of the share of calls below the median says how far the
    true median's rank may be from 1/2, and the values at these ranks are the bounds. The slowest
    6 % of calls may be stalls and are no bound. If the ranks reach beyond the extremes, each bound
    is at least as far from the median as the nearer one, times a factor of at most 2.
    """
    times = np.asarray(durations, dtype=float)
    median = float(np.median(times))
    if times.size < VALUES_FOR_INTERVAL:
        return _with_range(median, times, times.size)
    # For each call, whether it is below the median. Of one at the median, the share with which half
    # of all calls are below it: with a coarse timer many are equal.
    below, equal = times < median, times == median
    share = (times.size / 2 - below.sum()) / max(equal.sum(), 1)
    shorter = np.where(equal, share, below)
    reach = half_width(shorter, np.ones_like(times), 0.5, 20)
    low, high = np.quantile(times, [max(0.5 - reach, 0.0), min(0.5 + reach, 1 - STALLS)])
    # The farther bound may be at another speed or a stall, so it is not scaled.
    least = min(median - low, high - median) * min(max(2 * reach, 1.0), STRETCH)
    bounds = _clipped(times, min(low, median - least), max(high, median + least))
    return Estimate(median, "s", *bounds, times.size)


def _with_range(value: float, times: np.ndarray, count: int) -> Estimate:
    """Return a value with the range of its times, if there are several. count: steps or calls."""
    if times.size < 2:
        return Estimate(value, "s", n=count)
    return Estimate(value, "s", float(times.min()), float(times.max()), count, covers="seen")


def _clipped(times: np.ndarray, low: float, high: float) -> tuple[float, float]:
    """Return bounds that exceed the range of times by at most its width, and are above 0."""
    least, greatest = float(times.min()), float(times.max())
    width = greatest - least
    return max(float(low), least - min(width, least / 2)), min(float(high), greatest + width)


def half_width(values: np.ndarray, steps: np.ndarray, mean: float, raised: float) -> float | None:
    """Return half the 95 % interval of the mean of values of `steps` each; None below 6 values.

    values, steps: (n,), in time order. raised: the correlation of consecutive values is multiplied
    by 1 + raised / n.

    A value has the variance v over its steps, and two values have the correlation r^|i - j|. Then
    the sum of steps * deviation² has the expectation v (n - F), and the mean has the variance v F
    over all steps, with F = ΣΣ √(share_i share_j) r^|i - j|. Student's t has n - 1 degrees of
    freedom.
    """
    total = steps.sum()
    if values.size > BATCHES:  # a value belongs to the batch of its middle step
        batch = ((np.cumsum(steps) - steps / 2) * (BATCHES / total)).astype(int)
        starts = np.flatnonzero(np.diff(batch, prepend=-1))
        sums = np.add.reduceat(values * steps, starts)
        steps = np.add.reduceat(steps, starts)
        values = sums / steps
    count = steps.size
    if count < VALUES_LEAST:
        return None
    deviations = (values - mean) * np.sqrt(steps)
    squares = deviations @ deviations
    lag_1 = deviations[:-1] @ deviations[1:] / squares if squares else 0.0
    # The correlation of few values is estimated too low; simulation gave these two additions.
    correlation = min(max(lag_1 * (1 + raised / count) + 60 / count**2, 0.0), 0.95)
    roots = np.sqrt(steps / total)
    distances = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
    factor = roots @ correlation**distances @ roots
    variance = squares / (count - factor) * factor / total
    return t_quantile(CONFIDENCE, count - 1) * math.sqrt(variance)
