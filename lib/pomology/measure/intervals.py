"""Intervals, drift, growth and comparisons of times that correlate and differ between processes.

"Faster" and "slower" rest on one number per process: processes mostly differ far more than the
steps inside one (Kalibera and Jones 2013, "Rigorous benchmarking in reasonable time"). Times that
are NaN, infinite or negative raise ValueError. The derivations are in docs/findings.md.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special  # here: its import must not fall into a timed loop

from pomology.measure.estimate import Estimate

BATCHES = 40  # values that an interval is made of, at most
VALUES_LEAST = 6  # below, no spread is known
CONFIDENCE = 0.95
SLOPE_BLOCKS = 9  # a few long ones: each must hold what one part of a trace has to do with the next
DRIFT_THRESHOLD = 0.10  # an absolute `drift` above this is worth a flag
RESOLUTION = 1e-9  # repeats that differ less count as equal: that is the rounding of logarithms
# Two sets of five processes of one thing were called different by Welch's t in 9.3 % of draws: the
# machine had changed in between. A variance of this share of a process's own makes that 5 % again.
BETWEEN_SETS = 0.19


class Comparison(NamedTuple):
    """What the repeats of `a` and of `b` show about `a` relative to `b`.

    ratio: geometric mean of a over that of b; below 1, a takes less time. verdict: "faster",
    "slower" or "no difference shown".
    """

    ratio: Estimate
    verdict: str


class Difference(NamedTuple):
    """The difference of the mean logarithms of two sets of repeats, with its standard error.

    n: repeats of the smaller set.
    """

    mean: float
    error: float
    dof: float
    n: int

    @property
    def p_value(self) -> float:
        """Two-sided, of the hypothesis that the ratio is 1."""
        return float(2 * special.stdtr(self.dof, -abs(self.mean / self.error)))

    def judged(self, confidence: float = CONFIDENCE) -> Comparison:
        """Return what these repeats show."""
        half_width = t_quantile(confidence, self.dof) * self.error
        low = self.mean - half_width
        high = self.mean + half_width
        verdict = "no difference shown"
        if high < 0:
            verdict = "faster"
        elif low > 0:
            verdict = "slower"
        ratio = Estimate(exp(self.mean), "", exp(low), exp(high), self.n, covers="repeats")
        return Comparison(ratio, verdict)


@lru_cache(maxsize=4096)
def t_quantile(confidence: float, dof: float) -> float:
    """Return the t with P(|T| <= t) = `confidence` for Student's t."""
    return float(special.stdtrit(dof, (1 + confidence) / 2))


def _times(values: ArrayLike, positive: bool = False) -> np.ndarray:
    array = np.asarray(values, dtype=float)
    good = np.isfinite(array) & (array > 0 if positive else array >= 0)
    if array.ndim != 1 or not good.all():
        bound = "above 0" if positive else "not negative"
        raise ValueError(f"times must be finite, one-dimensional and {bound}")
    return array


def interval(durations: ArrayLike, weights: ArrayLike | None = None) -> Estimate:
    """Return the mean time per step with its 95 % interval within this run; none below 6 values.

    durations: seconds per step in time order or, with `weights` (steps per block), means of blocks.
    Of normal values with a lag-1 correlation of 0 to 0.8, it covers 92 to 97.5 % from 20 values on,
    and 92 to 99 % below.
    """
    times = _times(durations)
    steps = np.ones_like(times) if weights is None else _times(weights, positive=True)
    mean = float(times @ steps / steps.sum())
    count = round(steps.sum())
    half_width = _half_width(times, steps, mean, 12)
    if half_width is None:
        return Estimate(mean, "s", n=count)
    return Estimate(mean, "s", max(mean - half_width, 0.0), mean + half_width, count)


def median_interval(durations: ArrayLike) -> Estimate:
    """Return the median of seconds per call, in time order, with its interval within this run.

    Woodruff 1952: the interval of the mean of "this call took less than the median" says how far
    from 1/2 the rank of the true median may be; the values there are the bounds. Of few values that
    may be beyond the extremes, and the bounds are then so many times as far away. It covers 91 to
    98 %, below 20 values 91 to 99.6 %.
    """
    times = _times(durations)
    median = float(np.median(times))
    shorter = np.where(times == median, 0.5, times < median)
    reach = _half_width(shorter, np.ones_like(times), 0.5, 20)
    if reach is None:
        return Estimate(median, "s", n=times.size)
    low, high = np.quantile(times, [max(0.5 - reach, 0.0), min(0.5 + reach, 1.0)])
    beyond = max(2 * reach, 1.0)
    low = max(median - (median - low) * beyond, 0.0)
    high = median + (high - median) * beyond
    return Estimate(median, "s", float(low), float(high), times.size)


def _half_width(values: np.ndarray, steps: np.ndarray, mean: float, raised: float) -> float | None:
    """Return half the interval of the mean of `values`, each of so many steps; None below 6.

    Neighbours are joined to at most 40 batches. Let a batch mean have the variance v / its steps,
    and two of them the correlation r^distance. Then Σ steps deviation² has the expectation
    v (n - F), and the mean the variance v F / all steps, with F = ΣΣ sqrt(share_i share_j)
    r^|i - j|; Student's t has n - 1 degrees of freedom. The lag-1 correlation of few values comes
    out too small: r is 1 + raised / n times as large, plus 60 / n², from 0 to 0.95. Simulation
    found these numbers; values of 0 and 1 need a larger `raised`.
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


def drift(durations: ArrayLike) -> float | None:
    """Return by which share the middle or the last third is slower than the first.

    Whichever differs more counts; 0 within the noise, which is without a third's own trend. None
    with fewer than 18 durations, or where the first third took no time.
    """
    times = _times(durations)
    third = times.size // 3
    if third < VALUES_LEAST or not times[:third].any():
        return None
    means = []
    halves = []
    for part in (times[:third], times[third:-third], times[-third:]):
        place = np.arange(part.size) - (part.size - 1) / 2
        level = part - place * (place @ part) / (place @ place)
        means.append(float(part.mean()))
        halves.append(_half_width(level, np.ones_like(part), means[-1], 12))
    resolved = [0.0]
    for later in (1, 2):
        change = means[later] - means[0]
        if abs(change) > math.hypot(halves[later], halves[0]):
            resolved.append(change)
    return max(resolved, key=abs) / means[0]


def slope(values: ArrayLike, steps: ArrayLike, resolution: float = 0.0) -> Estimate:
    """Return by how much a quantity grows a step, with an interval that holds for memory.

    values: 3 or more, one at each of `steps`, which rise. resolution: the smallest change that they
    show. Memory stays, and then jumps: a least-squares fit would be far too sure. So the slope is
    that from the first of 9 blocks to the last, and the differences of neighbours have a t interval
    (Ibragimov and Mueller 2010), widened since those of a random walk correlate by
    (m² - 1) / (2 (2 m² + 1)) for blocks of m values (Working 1960). The half-width is never less
    than the largest jump, or the resolution, over the steps.
    """
    y = np.asarray(values, dtype=float)
    x = np.asarray(steps, dtype=float)
    if y.size < 3 or not np.isfinite(y).all() or not (np.diff(x) > 0).all():
        raise ValueError("a slope needs at least 3 values, which are finite, at steps that rise")
    blocks = np.array_split(np.arange(y.size), min(SLOPE_BLOCKS, y.size))
    means = np.array([y[block].mean() for block in blocks])
    places = np.array([x[block].mean() for block in blocks])
    span = places[-1] - places[0]
    per_step = float((means[-1] - means[0]) / span)
    lengths = np.diff(places)
    deviations = np.diff(means) / lengths - per_step
    dof = len(blocks) - 2
    size = y.size / len(blocks)
    correlation = (size**2 - 1) / (2 * (2 * size**2 + 1))
    error = math.sqrt((1 + 2 * correlation) * (lengths @ deviations**2) / dof / span)
    least = max(float(np.abs(np.diff(y)).max()), resolution) / span
    half_width = float(max(t_quantile(CONFIDENCE, dof) * error, least))
    return Estimate(per_step, "", per_step - half_width, per_step + half_width, y.size)


def repeats(estimates: Sequence[Estimate]) -> Estimate:
    """Return one number of several processes: the geometric mean with the interval between them.

    Of one process it is the number itself. Where a value is 0 or less (as of swap, which may
    shrink), the mean is the arithmetic one.
    """
    first = estimates[0]
    if len(estimates) == 1:
        return first
    numbers = [estimate.value for estimate in estimates]
    geometric = min(numbers) > 0
    values = np.log(numbers) if geometric else np.asarray(numbers, dtype=float)
    mean = float(values.mean())
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    half = t_quantile(CONFIDENCE, len(values) - 1) * error
    value, low, high = mean, mean - half, mean + half
    if geometric:
        value, low, high = exp(value), exp(low), exp(high)
    if min(numbers) == max(numbers):  # without the rounding of logarithms
        value = low = high = first.value
    if min(numbers) >= 0:  # as of counts
        low = max(low, 0.0)
    measured = all(estimate.how == "measured" for estimate in estimates)
    how = "measured" if measured else "estimated"
    return Estimate(value, first.unit, low, high, len(values), how, "repeats")


def difference(a: ArrayLike, b: ArrayLike, between: float = 0.0) -> Difference | None:
    """Return that of the mean logarithms of `a` and `b`, by Welch's t (Welch 1947).

    a, b: one number in seconds per process; with fewer than 2 on a side it is None. between: how
    much the means of two sets differ beyond what their spread tells, as a variance in units of that
    of one process: 0 for processes in turn, `BETWEEN_SETS` for one set after the other.
    """
    sides = [np.log(_times(side, positive=True)) for side in (a, b)]
    sizes = [logs.size for logs in sides]
    if min(sizes) < 2:
        return None
    variances = []
    squares = 0.0
    for logs in sides:
        spread = max(float(np.var(logs, ddof=1)), RESOLUTION**2)
        variances.append(spread * (1 / logs.size + between / 2))
        squares += variances[-1] ** 2 / (logs.size - 1)
    mean = float(sides[0].mean() - sides[1].mean())
    dof = sum(variances) ** 2 / squares
    return Difference(mean, math.sqrt(sum(variances)), dof, min(sizes))


def joint_confidence(p_values: Sequence[float]) -> float:
    """Return the confidence at which intervals show which of several rows differ.

    Of the rows whose interval at this confidence leaves 1 out, at most 5 % are wrong on average
    (Benjamini and Hochberg 1995; Benjamini and Yekutieli 2005). One row: 95 %.
    """
    from scipy.stats import false_discovery_control  # half a second, which only this needs

    rate = 1 - CONFIDENCE
    passed = sum(false_discovery_control(p_values) <= rate)
    return float(1 - rate * max(passed, 1) / len(p_values))


def exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf  # larger than any float
