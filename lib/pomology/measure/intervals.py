"""Intervals, epoch estimates, drift and comparisons of times that are autocorrelated and differ between processes.

Steps of one process, in time order, tell of that stretch of that process. "Faster" and "slower" rest on one number per
process: processes mostly differ far more than the steps inside one (Kalibera & Jones 2013, "Rigorous benchmarking in
reasonable time"). Times are in seconds; bad ones (NaN, infinite, negative) raise ValueError."""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special  # here: its import must not fall into a timed loop

from pomology.measure.estimate import Estimate

BATCHES = 40  # values that an interval is made of, at most
VALUES_LEAST = 6  # below, no spread is known: fewer say next to nothing of how neighbours correlate
CONFIDENCE = 0.95
SLOPE_BLOCKS = 9  # a few long blocks: each must hold what one part of a trace has to do with the next
DRIFT_THRESHOLD = 0.10  # an absolute `drift` above this is worth a flag
POWER = 0.80
# Process times have heavier tails than normal ones. The ratio that 84 % of normal ones would show was shown by 78 to
# 81 % of those timed in three series, of seven kinds of work on a virtual AMD EPYC (`make bench`, part claims).
POWER_OF_NORMAL = 0.84
# Repeats that differ less than this count as equal: no clock tells so little, but the rounding of logarithms would.
RESOLUTION = 1e-9
# Five processes and then five others, of one thing on a quiet machine, were called different by Welch's t in 9.3 % of
# draws, in place of the 5 % of processes that ran in turn or at random: the machine had changed between the two sets.
# A variance of this share of a process's own, added to that of the difference, makes 5 % of the 9.3 % again.
BETWEEN_SETS = 0.19
_NORMAL = NormalDist()


class Comparison(NamedTuple):
    """What the repeats of `a` and of `b` show about `a` relative to `b` (see `Difference.judged`)."""

    ratio: Estimate  # geometric mean of a over geometric mean of b: below 1, a takes less time
    verdict: str  # "faster", "slower" or "no difference shown"
    smallest_detectable: float  # above 1; its inverse where a is the faster one


class Difference(NamedTuple):
    """Of the mean logarithms of two sets of repeats, with its standard error. n: repeats of the smaller set."""

    mean: float
    error: float
    dof: float
    n: int

    @property
    def p_value(self) -> float:
        """Two-sided, of the hypothesis that the ratio is 1."""
        return t_p_value(self.mean / self.error, self.dof)

    @property
    def power(self) -> float:
        """In which share of comparisons whose true standard error is this one a true difference of this mean is shown,
        by itself: the tail of the noncentral t, as the mean of normal tails over what the error is estimated at."""
        critical = t_quantile(CONFIDENCE, self.dof)
        shift = abs(self.mean) / self.error
        return float(1 - special.nctdtr(self.dof, shift, critical))

    def judged(self, confidence: float = CONFIDENCE) -> Comparison:
        """Whether `a` takes less or more time than `b`: "faster" if the interval of the ratio of their geometric means
        is below 1, "slower" if above. `smallest_detectable`: the true ratio that so many other repeats show in 80 % of
        cases, by the spread of these.

        It is exp(K se), where Z + K s > critical s' in 84 % of cases (`POWER_OF_NORMAL`): Z is normal, s² and s'² are
        the variances that these repeats and the others come out at, over the true one, each χ² / dof. `widest` is the
        84 % quantile of s' / s. With 3 repeats K is 1.8 times what it would be if the spread were known. The forms of
        the quantile and of the sum were found by drawing; they hold from 1 degree of freedom on."""
        critical = t_quantile(confidence, self.dof)
        low, high = self.mean - critical * self.error, self.mean + critical * self.error
        verdict = "faster" if high < 0 else "slower" if low > 0 else "no difference shown"
        normal = _NORMAL.inv_cdf(POWER_OF_NORMAL)
        widest = math.exp(normal * (1 + 1 / (3 * self.dof)) / math.sqrt(self.dof))
        detectable = (critical + math.hypot(critical * (widest - 1), normal)) * self.error
        ratio = Estimate(exp(self.mean), "", exp(low), exp(high), self.n, covers="repeats")
        return Comparison(ratio, verdict, exp(detectable))


def t_p_value(t: float, dof: float) -> float:
    """Return P(|T| > |t|) for Student's t with `dof` degrees of freedom, which may be fractional."""
    return float(2 * special.stdtr(dof, -abs(t)))


@lru_cache(maxsize=4096)
def t_quantile(confidence: float, dof: float) -> float:
    """Return the t with P(|T| <= t) = `confidence` for Student's t; `dof` may be fractional."""
    return float(special.stdtrit(dof, (1 + confidence) / 2))


def _times(values: ArrayLike, positive: bool = False) -> np.ndarray:
    array = np.asarray(values, dtype=float)
    good = np.isfinite(array) & (array > 0 if positive else array >= 0)
    if array.ndim != 1 or not good.all():
        raise ValueError(f"times must be finite, one-dimensional and {'above 0' if positive else 'not negative'}")
    return array


def interval(durations: ArrayLike, weights: ArrayLike | None = None) -> Estimate:
    """Mean time per step, and its 95 % within-run interval, for neighbours that correlate; none below 6 values.

    durations: seconds per step in time order or, with `weights` (steps per block), means of blocks of so many steps.
    Of normal values with a lag-1 correlation of 0 to 0.8, the mean is inside in 92 to 97.5 % of cases from 20 values
    on, and in 92 to 99 % below (`make bench`, part coverage). It cannot know what it has not seen: a wander that is
    slower than all the values, or slow steps so rare that a hundred hold a handful."""
    times = _times(durations)
    steps = np.ones_like(times) if weights is None else _times(weights, positive=True)
    mean, count = float(times @ steps / steps.sum()), round(steps.sum())
    half_width = _half_width(times, steps, mean, 12)
    if half_width is None:
        return Estimate(mean, "s", n=count)
    return Estimate(mean, "s", max(mean - half_width, 0.0), mean + half_width, count)


def median_interval(durations: ArrayLike) -> Estimate:
    """Median of seconds per call, in time order, and its within-run interval; no shape is assumed, ties count half.

    Woodruff 1952: the interval of the mean of "this call took less than the median" says how far from 1/2 the rank of
    the true median may be; its values are the bounds. Of few values that may be beyond the extremes, and the bounds are
    then so many times as far away. The median is inside in 91 to 98 % of cases, and below 20 values in 91 to 99.6 %."""
    times = _times(durations)
    median = float(np.median(times))
    reach = _half_width(np.where(times == median, 0.5, times < median), np.ones_like(times), 0.5, 20)
    if reach is None:
        return Estimate(median, "s", n=times.size)
    low, high = np.quantile(times, [max(0.5 - reach, 0.0), min(0.5 + reach, 1.0)])
    beyond = max(2 * reach, 1.0)
    bounds = max(median - (median - low) * beyond, 0.0), median + (high - median) * beyond
    return Estimate(median, "s", *map(float, bounds), times.size)


def _half_width(values: np.ndarray, steps: np.ndarray, mean: float, raised: float) -> float | None:
    """Of the interval of the mean of `values`, each that of so many steps; None with fewer than 6.

    Neighbours are joined to at most 40 batches of nearly equal step counts. Let a batch mean have the variance v / its
    steps, and two of them the correlation r^distance. Then Σ steps deviation² has the expectation v (n - F), and the
    mean the variance v F / all steps, with F = ΣΣ sqrt(share_i share_j) r^|i - j|; Student's t has n - 1 degrees of
    freedom. The lag-1 correlation of few values comes out too small, and scatters: r is 1 + raised / n times as large,
    plus 60 / n², from 0 to 0.95. These numbers were found by simulation, as those that cover; values of 0 and 1 need a
    larger `raised`, since their correlation fades more slowly."""
    total = steps.sum()
    if values.size > BATCHES:  # a value belongs to the batch that its middle step falls into
        batch = ((np.cumsum(steps) - steps / 2) * (BATCHES / total)).astype(int)
        starts = np.flatnonzero(np.diff(batch, prepend=-1))
        sums, steps = np.add.reduceat(values * steps, starts), np.add.reduceat(steps, starts)
        values = sums / steps
    if (n := steps.size) < VALUES_LEAST:
        return None
    deviations = (values - mean) * np.sqrt(steps)
    squares = deviations @ deviations
    lag = deviations[:-1] @ deviations[1:] / squares if squares else 0.0
    r = min(max(lag * (1 + raised / n) + 60 / n**2, 0.0), 0.95)
    shares = np.sqrt(steps / total)
    f = shares @ r ** np.abs(np.subtract.outer(np.arange(n), np.arange(n))) @ shares
    return t_quantile(CONFIDENCE, n - 1) * math.sqrt(squares / (n - f) * f / total)


def drift(durations: ArrayLike) -> float | None:
    """Mean of the middle or the last third, whichever differs more, over that of the first third, minus 1: above 0
    where the run became slower, and 0 where that is within the noise: the interval of the difference, without what a
    third drifts by itself. None with fewer than 18 durations, of which a third has no interval, or where the first
    third took no time."""
    times = _times(durations)
    third = times.size // 3
    if third < VALUES_LEAST or not times[:third].any():
        return None
    means, halves = [], []
    for part in (times[:third], times[third:-third], times[-third:]):
        place = np.arange(part.size) - (part.size - 1) / 2
        level = part - place * (place @ part) / (place @ place)
        means.append(float(part.mean()))
        halves.append(_half_width(level, np.ones_like(part), means[-1], 12))
    changes = [means[later] - means[0] for later in (1, 2)]
    resolved = [x for x, half in zip(changes, halves[1:], strict=True) if abs(x) > math.hypot(half, halves[0])]
    return max(resolved, key=abs, default=0.0) / means[0]


def slope(values: ArrayLike, steps: ArrayLike, resolution: float = 0.0) -> Estimate:
    """By how much a quantity grows a step, in its own unit, with an interval that holds for memory and counters.

    values: 3 or more, without warm-up; one at each of `steps`, which rise. resolution: the smallest change they show.

    Memory stays, and then jumps: a least-squares fit would be far too sure. So the slope is that from the first of 9
    blocks to the last, and the differences of neighbours have a t interval (Ibragimov and Mueller 2010, "t-statistic
    based correlation and heterogeneity robust inference"), widened since those of a random walk correlate by
    (m² - 1) / (2 (2 m² + 1)) for blocks of m values (Working 1960, "Note on the correlation of first differences of
    averages in a random chain"). The half-width is never less than the largest jump, or the resolution, over the steps.
    Of a growth by fewer than some eight jumps, the interval is short of 95 %."""
    y, x = (np.asarray(given, dtype=float) for given in (values, steps))
    if y.size < 3 or not np.isfinite(y).all() or not (np.diff(x) > 0).all():
        raise ValueError("a slope needs at least 3 values, which are finite, at steps that rise")
    blocks = np.array_split(np.arange(y.size), min(SLOPE_BLOCKS, y.size))
    means, places = (np.array([array[block].mean() for block in blocks]) for array in (y, x))
    lengths, span = np.diff(places), places[-1] - places[0]
    per_step = float((means[-1] - means[0]) / span)
    deviations, dof, size = np.diff(means) / lengths - per_step, len(blocks) - 2, y.size / len(blocks)
    correlation = (size**2 - 1) / (2 * (2 * size**2 + 1))
    error = math.sqrt((1 + 2 * correlation) * (lengths @ deviations**2) / dof / span)
    least = max(float(np.abs(np.diff(y)).max()), resolution) / span
    half_width = float(max(t_quantile(CONFIDENCE, dof) * error, least))
    return Estimate(per_step, "", per_step - half_width, per_step + half_width, y.size)


def repeats(estimates: Sequence[Estimate]) -> Estimate:
    """One number per process: of one the number itself, of several the geometric mean with the 95 % interval between
    them. Where a value is 0 or less (as of swap, which may shrink), the mean is the arithmetic one."""
    if len(estimates) == 1:
        return estimates[0]
    ratios = all(estimate.value > 0 for estimate in estimates)
    values = [math.log(estimate.value) if ratios else estimate.value for estimate in estimates]
    mean = sum(values) / len(values) if max(values) > min(values) else values[0]  # a sum would round
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    half = t_quantile(CONFIDENCE, len(values) - 1) * deviation / math.sqrt(len(values))
    value, low, high = (exp(x) if ratios else x for x in (mean, mean - half, mean + half))
    value, low, high = (value, low, high) if half else 3 * (estimates[0].value,)
    low = max(low, 0.0) if min(estimate.value for estimate in estimates) >= 0 else low  # as of counts
    how = "measured" if all(estimate.how == "measured" for estimate in estimates) else "estimated"
    return Estimate(value, estimates[0].unit, low, high, len(values), how, "repeats")


def difference(a: ArrayLike, b: ArrayLike, paired: bool = False, between: float = 0.0) -> Difference | None:
    """Of the mean logarithms of `a` and `b`, which hold one number in seconds per process (repeat), all above 0, by
    Welch's t (Welch 1947), or the paired t if `paired` (a[i] and b[i] ran in one round); None with fewer than 2 repeats
    on a side. between: how much the means of two sets of processes differ beyond what their spread tells, as a variance
    in units of that of one process: 0 for processes that ran in turn, `BETWEEN_SETS` for one set after the other."""
    a, b = (np.log(_times(x, positive=True)) for x in (a, b))
    if min(a.size, b.size) < 2:
        return None

    def variance(logs: np.ndarray) -> float:
        return max(float(np.var(logs, ddof=1)), RESOLUTION**2)

    mean = float(a.mean() - b.mean())
    if paired:
        return Difference(mean, math.sqrt(variance(a - b) / a.size), a.size - 1, a.size)
    parts = [variance(x) * (1 / x.size + between / 2) for x in (a, b)]
    dof = sum(parts) ** 2 / sum(part**2 / (x.size - 1) for part, x in zip(parts, (a, b), strict=True))
    return Difference(mean, math.sqrt(sum(parts)), dof, min(a.size, b.size))


def joint_confidence(p_values: Sequence[float]) -> float:
    """The confidence at which the intervals of several rows show which of them differ, judged together: of the rows
    called different, at most 5 % are not, on average (Benjamini and Hochberg 1995, "Controlling the false discovery
    rate"), even if rows go up and down together (Benjamini and Yekutieli 2001). Of m rows the k-th smallest p value is
    compared with k 5 % / m; the largest k that passes sets the level for all: a row is different if its interval at
    this confidence leaves 1 out (Benjamini and Yekutieli 2005). One row: 95 %."""
    rate, count = 1 - CONFIDENCE, len(p_values)
    passed = [k for k, p in enumerate(sorted(p_values), start=1) if p <= k * rate / count]
    return 1 - rate * (passed[-1] if passed else 1) / count


def exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf  # larger than any float
