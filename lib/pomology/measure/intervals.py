"""Intervals, epoch estimates, drift and comparisons of times that are autocorrelated and differ between processes.

Steps of one process (`interval`, `median_interval`, `epoch_estimate`, `drift`, `stop`): in time order, since neighbours
resemble each other. Their intervals speak of that stretch of that process only: "within this run".

One number per process (`compare`): the only ground for "faster" or "slower". Processes mostly differ far more than the
steps inside one, so steps of several processes are never pooled, and repeats go to the level where the variation is
(Kalibera & Jones 2013, "Rigorous benchmarking in reasonable time").

A quantity that may grow (`slope`): memory or a counter, step by step.

Times are in seconds. Bad values (NaN, infinite, negative, wrong shape) raise ValueError. Needs numpy only.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pomology.measure.estimate import Estimate

BATCHES = 20
CONFIDENCE = 0.95
SLOPE_BLOCKS = 9  # a few long blocks: each must hold what one part of a trace has to do with the next
DRIFT_THRESHOLD = 0.10  # an absolute `drift` above this is worth a flag
POWER = 0.80

# Repeats that differ less than this count as equal: no clock tells so little, but the rounding of logarithms would.
RESOLUTION = 1e-9

# Five processes and then five others, of one thing on a quiet machine, were called different by Welch's t in 9.3 % of
# draws, in place of the 5 % of processes that ran in turn or at random: the machine had changed between the two sets.
# A variance of this share of a process's own, added to that of the difference, makes 5 % of the 9.3 % again.
BETWEEN_SETS = 0.19


@dataclass(frozen=True)
class Comparison:
    """What the repeats of `a` and of `b` show about `a` relative to `b` (see `compare`)."""

    ratio: Estimate | None  # geometric mean of a over geometric mean of b: below 1, a takes less time
    verdict: str  # "faster", "slower", "no difference shown" or "cannot be told"
    p_value: float | None = None  # two-sided, of the hypothesis that the ratio is 1
    smallest_detectable: float | None = None  # above 1; its inverse where a is the faster one


class Difference(NamedTuple):
    """Of the mean logarithms of two sets of repeats: its estimate, its standard error and the degrees of freedom of
    that; n: repeats of the smaller set."""

    mean: float
    error: float
    dof: float
    n: int

    @property
    def p_value(self) -> float:
        """Two-sided, of the hypothesis that there is none."""
        return t_p_value(self.mean / self.error, self.dof)

    def judged(self, confidence: float = CONFIDENCE, margin: float = 0.0) -> Comparison:
        """See `compare`."""
        critical, band = t_quantile(confidence, self.dof), math.log1p(margin)
        low, high = self.mean - critical * self.error, self.mean + critical * self.error
        verdict = "faster" if high < -band else "slower" if low > band else "no difference shown"
        power = t_quantile(2 * POWER - 1, self.dof)  # one-sided
        detectable = band + (critical + power) * self.error / (1 - 1 / (4 * self.dof))
        ratio = Estimate(exp(self.mean), "", exp(low), exp(high), self.n, covers="repeats")
        return Comparison(ratio, verdict, self.p_value, exp(detectable))


def _incomplete_beta(x: float, y: float, a: float, b: float) -> float:
    """Regularised incomplete beta function I_x(a, b), y = 1 - x: continued fraction (DLMF 8.17.22), Lentz's method."""
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side only
        return 1 - _incomplete_beta(y, x, b, a)
    if x <= 0:
        return 0.0
    front = math.exp(a * math.log(x) + b * math.log(y) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)) / a
    c, d, fraction = 1.0, 0.0, 1.0
    for m in range(1, 10_000):
        odd = -(a + m - 1) * (a + b + m - 1) * x / ((a + 2 * m - 2) * (a + 2 * m - 1))
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        for term in (odd, even):
            d = 1 / (1 + term * d)
            c = 1 + term / c
            fraction *= c * d
        if abs(c * d - 1) < 1e-14:
            return front / fraction
    raise ArithmeticError(f"incomplete beta function did not converge at x={x}, a={a}, b={b}")


# Student's t stands here rather than in scipy, of which the kit would need these two functions only: a large dependency
# that nothing else here names, loaded by every process that measures.
def t_p_value(t: float, dof: float) -> float:
    """P(|T| > |t|) for Student's t with `dof` degrees of freedom (fractional allowed)."""
    dof = min(dof, 1e7)  # nearly normal: the quantiles beyond agree to 2e-7, and lgamma keeps its digits
    return _incomplete_beta(dof / (dof + t * t), t * t / (dof + t * t), dof / 2, 0.5)


@lru_cache(maxsize=4096)
def t_quantile(confidence: float, dof: float) -> float:
    """Two-sided critical value of Student's t: the t with P(|T| <= t) = `confidence`, for any (fractional) `dof` > 0.

    Newton's method from 0: the tail is convex there, so every step falls short of the root, but for rounding.
    """
    if not 0 < confidence < 1 or not dof > 0:
        raise ValueError(f"confidence must lie between 0 and 1 and dof above 0, got {confidence!r} and {dof!r}")
    dof = min(dof, 1e7)
    log_density = math.lgamma((dof + 1) / 2) - math.lgamma(dof / 2) - 0.5 * math.log(dof * math.pi)
    t, step = 0.0, math.inf
    while step > 1e-12 * t:
        density = math.exp(log_density - (dof + 1) / 2 * math.log1p(t * t / dof))
        step = (t_p_value(t, dof) - (1 - confidence)) / (2 * density)
        t += step
    return t


def _times(values: ArrayLike, name: str = "durations", positive: bool = False) -> np.ndarray:
    array = np.asarray(values, dtype=float)
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {array.shape}")
    good = np.isfinite(array) & (array > 0 if positive else array >= 0)
    if not good.all():
        wanted = "finite and above 0" if positive else "finite and not negative"
        raise ValueError(f"{name} must be {wanted}, got {array[~good][0]}")
    return array


def interval(
    durations: ArrayLike,
    batches: int = BATCHES,
    confidence: float = CONFIDENCE,
    weights: ArrayLike | None = None,
    unit: str = "s",
) -> Estimate:
    """Mean time per step and its within-run interval by the method of batch means (Law & Kelton, "Simulation modeling
    and analysis"): means of long batches are nearly independent although steps are not.

    `durations`: seconds per step in time order or, with `weights` (steps per block), means of blocks of that many
    steps; the mean is total seconds over total steps. From `batches` values on, neighbours are joined to `batches`
    batches of nearly equal step counts (fewer where one block is longer than a batch); below, each value is a batch;
    one value alone has no bounds. Bounds: Student's t with batches - 1 degrees of freedom, a batch mean's variance
    taken as inverse to its steps (s²/batches where all are equal); the lower one is never below 0.
    """
    times = _times(durations)
    steps = np.ones_like(times) if weights is None else _times(weights, "weights", positive=True)
    if steps.shape != times.shape:
        raise ValueError(f"weights must be one per duration: got {steps.size} for {times.size}")
    if times.size == 0 or batches < 2:
        raise ValueError(f"an interval needs at least 1 duration and 2 batches, got {times.size} and {batches}")
    total = steps.sum()
    mean = float(times @ steps / total)
    if times.size == 1:
        return Estimate(mean, unit, n=round(total))
    batch_steps, batch_seconds = steps, times * steps
    if times.size >= batches:  # a value belongs to the batch that its middle step falls into
        batch = ((np.cumsum(steps) - steps / 2) * (batches / total)).astype(int)
        starts = np.flatnonzero(np.diff(batch, prepend=-1))
        batch_steps, batch_seconds = np.add.reduceat(steps, starts), np.add.reduceat(times * steps, starts)
    deviations = batch_seconds / batch_steps - mean
    dof = batch_steps.size - 1
    half_width = t_quantile(confidence, dof) * math.sqrt(batch_steps @ deviations**2 / dof / total)
    return Estimate(mean, unit, max(mean - half_width, 0.0), mean + half_width, round(total))


def median_interval(durations: ArrayLike, confidence: float = CONFIDENCE, unit: str = "s") -> Estimate:
    """Median time of a kernel and its within-run interval; `durations` are seconds per call, in time order.

    An order-statistic interval whose ranks allow for autocorrelation (Woodruff 1952, with batch means in place of the
    binomial variance): the batch-means interval of "this call took less than the median" says how far from 1/2 the rank
    of the true median may lie, and the values at those ranks are the bounds. No shape is assumed; ties count half.
    """
    times = _times(durations)
    if times.size == 0:
        raise ValueError("a median needs at least 1 duration")
    median = float(np.median(times))
    rank = interval(np.where(times == median, 0.5, times < median), BATCHES, confidence)
    if rank.high is None:
        return Estimate(median, unit, n=rank.n)
    reach = rank.high - rank.value
    low, high = np.quantile(times, [max(0.5 - reach, 0.0), min(0.5 + reach, 1.0)])
    return Estimate(median, unit, float(low), float(high), rank.n)


def epoch_estimate(first_step_s: float, step: Estimate, steps: float) -> Estimate:
    """Seconds of an epoch of `steps` steps: the first one as timed, the others at the mean of the steady steps.

    `steps` may be fractional: a last partial batch counts as its fraction of a step. An epoch is a sum, so the mean is
    what estimates it (a median leaves the slow steps out). The bounds are those of the mean: the epoch as expected of
    this stretch of this process, with the first step taken as exact.
    """
    if not (math.isfinite(first_step_s) and first_step_s >= 0 and math.isfinite(steps) and steps > 0):
        raise ValueError(f"an epoch needs first_step_s >= 0 and steps > 0, got {first_step_s!r} and {steps!r}")
    return (Estimate.count(first_step_s, "s") + max(steps - 1, 0) * step).replace(how="estimated")


def drift(durations: ArrayLike) -> float | None:
    """Median of the last third over median of the first third, minus 1: above 0 where the run became slower.

    `durations` are seconds per step or block means. None with fewer than 9, or where the first third took no time.
    """
    times = _times(durations)
    third = times.size // 3
    if third < 3 or (first := float(np.median(times[:third]))) == 0:
        return None
    return float(np.median(times[-third:])) / first - 1


def slope(
    values: ArrayLike, steps: ArrayLike, resolution: float = 0.0, confidence: float = CONFIDENCE, unit: str = ""
) -> Estimate:
    """By how much a quantity grows a step, in its own unit, with an interval that holds for memory and counters.

    values: at least 3, in time order; one at each of `steps`, which rise. resolution: the smallest change that the
    values can show, as a page of memory. Leave warm-up out beforehand. `n` is the number of values.

    A trace of memory is no line with independent errors: it stays, and then jumps. A least-squares fit takes its
    hundreds of equal values for as many witnesses, and is far too sure. Here the trace is cut into 9 blocks (fewer than
    9 values: each is one); the slope is the last block's mean minus the first's, over the steps between; and the
    differences of neighbouring blocks are the few witnesses that a t interval rests on (Ibragimov and Mueller 2010,
    "t-statistic based correlation and heterogeneity robust inference"). Where the quantity wanders, as a sum of
    increments does, differences of means of neighbouring blocks of m values have the correlation
    (m² - 1) / (2 (2 m² + 1)) (Working 1960, "Note on the correlation of first differences of averages in a random
    chain"), for which the variance is made larger. Where it wavers around a line they are negatively correlated, and
    the interval is too wide, never too narrow.

    The half-width is never less than the largest jump between two neighbouring values, or the resolution, over the
    steps: one jump more or less at the ends must not decide. What no value shows is not covered: memory that jumps
    once in a thousand steps looks flat in a hundred, and of a growth by fewer than some eight jumps of chance the
    interval is short of 95 %.
    """
    y, x = (np.asarray(given, dtype=float) for given in (values, steps))
    if y.ndim != 1 or y.shape != x.shape or y.size < 3:
        raise ValueError(f"a slope needs 3 values or more and a step for each, got shapes {y.shape} and {x.shape}")
    if not (np.isfinite(y).all() and np.isfinite(x).all() and (np.diff(x) > 0).all() and 0 <= resolution < math.inf):
        raise ValueError("a slope needs finite values, steps that rise, and a resolution of 0 or more")
    blocks = np.array_split(np.arange(y.size), min(SLOPE_BLOCKS, y.size))
    means, places = (np.array([array[block].mean() for block in blocks]) for array in (y, x))
    lengths, span = np.diff(places), places[-1] - places[0]
    per_step = float(means[-1] - means[0]) / span
    deviations, dof, size = np.diff(means) / lengths - per_step, len(blocks) - 2, y.size / len(blocks)
    correlation = (size**2 - 1) / (2 * (2 * size**2 + 1))
    error = math.sqrt((1 + 2 * correlation) * (lengths @ deviations**2) / dof / span)
    least = max(float(np.abs(np.diff(y)).max()), resolution) / span
    half_width = float(max(t_quantile(confidence, dof) * error, least))
    return Estimate(float(per_step), unit, float(per_step) - half_width, float(per_step) + half_width, y.size)


def stop(
    durations: ArrayLike,
    target: float = 0.02,
    minimum_steps: int = 100,
    batches: int = BATCHES,
    weights: ArrayLike | None = None,
) -> bool:
    """Whether enough was measured: at least `minimum_steps` steps in at least `batches` values (a few agree by chance
    now and then, and who asks after every block finds that moment), with the half-width of their 95 % `interval` at
    most `target` times the mean. `durations` and `weights` as there.
    """
    times = _times(durations)
    if times.size < max(batches, 2):
        return False
    step = interval(times, batches, weights=weights)
    return step.n >= minimum_steps and step.high - step.value <= target * step.value


def repeats(estimates: Sequence[Estimate]) -> Estimate:
    """One number per process: of one the number itself, of several the geometric mean with the 95 % interval between
    them. Where a value is 0 or less (as of swap, which may shrink), the mean is the arithmetic one.
    """
    if len(estimates) == 1:
        return estimates[0]
    ratios = all(estimate.value > 0 for estimate in estimates)
    values = [math.log(estimate.value) if ratios else estimate.value for estimate in estimates]
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    half = t_quantile(CONFIDENCE, len(values) - 1) * deviation / math.sqrt(len(values))
    value, low, high = (exp(x) if ratios else x for x in (mean, mean - half, mean + half))
    how = "measured" if all(estimate.how == "measured" for estimate in estimates) else "estimated"
    return Estimate(value, estimates[0].unit, low, high, len(values), how, "repeats")


def difference(a: ArrayLike, b: ArrayLike, paired: bool = False, between: float = 0.0) -> Difference | None:
    """Of the mean logarithms of a and b, as Welch's or the paired t takes it; see `compare`. None with fewer than 2
    repeats on a side."""
    a, b = (np.log(_times(x, name, positive=True)) for x, name in ((a, "a"), (b, "b")))
    if paired and a.size != b.size:
        raise ValueError(f"paired repeats must be equally many, got {a.size} and {b.size}")
    if not 0 <= between < math.inf:
        raise ValueError(f"between must be 0 or more, got {between!r}")
    if min(a.size, b.size) < 2:
        return None
    mean = float(a.mean() - b.mean())
    if paired:
        return Difference(mean, math.sqrt(_variance(a - b) / a.size), a.size - 1, a.size)
    parts = [_variance(x) * (1 / x.size + between / 2) for x in (a, b)]
    dof = sum(parts) ** 2 / sum(part**2 / (x.size - 1) for part, x in zip(parts, (a, b), strict=True))
    return Difference(mean, math.sqrt(sum(parts)), dof, min(a.size, b.size))


def _variance(logs: np.ndarray) -> float:
    return max(float(np.var(logs, ddof=1)), RESOLUTION**2)


def joint_confidence(p_values: Sequence[float], rate: float = 1 - CONFIDENCE) -> float:
    """The confidence at which the intervals of several rows tell which of them differ, judged together.

    Benjamini and Hochberg 1995, "Controlling the false discovery rate": of the rows that are called different, a share
    of at most `rate` is not, on average; and where no row differs, one is called so in at most that share of tables.
    That holds for rows that go up and down together as well (Benjamini and Yekutieli 2001). Of m rows the k-th smallest
    p value is laid against k rate / m; the largest k that passes sets the level for all, so that a row is called
    different if and only if its interval at this confidence leaves 1 out (as Benjamini and Yekutieli 2005 choose the
    intervals of what was selected). One row: 1 - rate.
    """
    count = len(p_values)
    passed = [k for k, p in enumerate(sorted(p_values), start=1) if p <= k * rate / count]
    return 1 - rate * (passed[-1] if passed else 1) / max(count, 1)


def compare(
    a: ArrayLike,
    b: ArrayLike,
    paired: bool = False,
    confidence: float = CONFIDENCE,
    margin: float = 0.0,
    between: float = 0.0,
) -> Comparison:
    """Whether `a` takes less or more time than `b`; both hold one number in seconds per process (repeat), all above 0.

    The ratio is a / b of the geometric means, its interval that of the difference of mean logarithms: by Welch's t
    (Welch 1947), or the paired t if `paired` (a[i] and b[i] ran in one round). The verdict is about `a`: "faster" if
    the whole interval lies below 1 / (1 + margin), "slower" if above 1 + margin, else "no difference shown", which is
    not "equal"; "cannot be told", and no interval, with fewer than 2 repeats on a side.

    between: how much the means of two sets of processes differ beyond what their spread tells, as a variance in units
    of that of one process: 0 for processes that ran in turn, `BETWEEN_SETS` for one set after the other.

    `smallest_detectable` is the ratio that so many repeats would have told from 1 in 80 % of cases: at 95 % confidence
    (1 + margin) exp((t_0.975 + t_0.80) se), the usual approximation of the noncentral t, with the standard error freed
    from the small-sample bias 1 - 1 / (4 dof). It rests on the spread of these very repeats: few make it uncertain.
    """
    if not 0 <= margin < math.inf:
        raise ValueError(f"margin must be 0 or more, got {margin!r}")
    shown = difference(a, b, paired, between)
    if shown is not None:
        return shown.judged(confidence, margin)
    known = len(a) and len(b)
    return Comparison(Estimate(exp(float(np.log(a).mean() - np.log(b).mean()))) if known else None, "cannot be told")


def exp(x: float) -> float:
    """e to the x; infinite where that is larger than any float."""
    return math.exp(x) if x < 700 else math.inf
