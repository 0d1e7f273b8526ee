"""Intervals, epoch estimates, drift and comparisons of times that are autocorrelated and differ between processes.

Steps of one process (`interval`, `median_interval`, `epoch_estimate`, `drift`, `stop`): in time order, since neighbours
resemble each other. Their intervals speak of that stretch of that process only: "within this run".

One number per process (`compare`): the only ground for "faster" or "slower". Processes mostly differ far more than the
steps inside one, so steps of several processes are never pooled, and repeats go to the level where the variation is
(Kalibera & Jones 2013, "Rigorous benchmarking in reasonable time").

Times are in seconds. Bad values (NaN, infinite, negative, wrong shape) raise ValueError. Needs numpy only.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

BATCHES = 20
CONFIDENCE = 0.95
DRIFT_THRESHOLD = 0.10  # an absolute `drift` above this is worth a flag
POWER = 0.80

# Repeats that differ less than this count as equal: no clock tells so little, but the rounding of logarithms would.
RESOLUTION = 1e-9


@dataclass(frozen=True)
class Interval:
    """An estimate in seconds and its confidence bounds; the bounds are None where one value alone tells no spread."""

    mean: float  # the estimate: mean time per step, median (`median_interval`) or time per epoch (`epoch_estimate`)
    low: float | None
    high: float | None
    n: int  # steps that it rests on
    batches: int  # batches that the bounds rest on


@dataclass(frozen=True)
class Comparison:
    """What the repeats of `a` and of `b` show about `a` relative to `b` (see `compare`)."""

    ratio: float | None  # geometric mean of a over geometric mean of b: below 1, a takes less time
    low: float | None
    high: float | None
    verdict: str  # "faster", "slower", "no difference shown" or "cannot be told"
    p_value: float | None  # two-sided, of the hypothesis that the ratio is 1
    smallest_detectable: float | None  # above 1; its inverse where a is the faster one
    n_a: int
    n_b: int


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
    durations: ArrayLike, batches: int = BATCHES, confidence: float = CONFIDENCE, weights: ArrayLike | None = None
) -> Interval:
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
        return Interval(mean, None, None, round(total), 1)
    batch_steps, batch_seconds = steps, times * steps
    if times.size >= batches:  # a value belongs to the batch that its middle step falls into
        batch = ((np.cumsum(steps) - steps / 2) * (batches / total)).astype(int)
        starts = np.flatnonzero(np.diff(batch, prepend=-1))
        batch_steps, batch_seconds = np.add.reduceat(steps, starts), np.add.reduceat(times * steps, starts)
    deviations = batch_seconds / batch_steps - mean
    dof = batch_steps.size - 1
    half_width = t_quantile(confidence, dof) * math.sqrt(batch_steps @ deviations**2 / dof / total)
    return Interval(mean, max(mean - half_width, 0.0), mean + half_width, round(total), batch_steps.size)


def median_interval(durations: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
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
        return Interval(median, None, None, rank.n, rank.batches)
    reach = rank.high - rank.mean
    low, high = np.quantile(times, [max(0.5 - reach, 0.0), min(0.5 + reach, 1.0)])
    return Interval(median, float(low), float(high), rank.n, rank.batches)


def epoch_estimate(first_step_s: float, interval: Interval, steps: float) -> Interval:
    """Seconds of an epoch of `steps` steps: the first one as timed, the others at the mean of the steady steps.

    `steps` may be fractional: a last partial batch counts as its fraction of a step. An epoch is a sum, so the mean is
    what estimates it (a median leaves the slow steps out). The bounds are those of the mean: the epoch as expected of
    this stretch of this process, with the first step taken as exact.
    """
    if not (math.isfinite(first_step_s) and first_step_s >= 0 and math.isfinite(steps) and steps > 0):
        raise ValueError(f"an epoch needs first_step_s >= 0 and steps > 0, got {first_step_s!r} and {steps!r}")
    others = max(steps - 1, 0)
    bounds = (None if step_s is None else first_step_s + others * step_s for step_s in (interval.low, interval.high))
    return Interval(first_step_s + others * interval.mean, *bounds, interval.n, interval.batches)


def drift(durations: ArrayLike) -> float | None:
    """Median of the last third over median of the first third, minus 1: above 0 where the run became slower.

    `durations` are seconds per step or block means. None with fewer than 9, or where the first third took no time.
    """
    times = _times(durations)
    third = times.size // 3
    if third < 3 or (first := float(np.median(times[:third]))) == 0:
        return None
    return float(np.median(times[-third:])) / first - 1


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
    found = interval(times, batches, weights=weights)
    return found.n >= minimum_steps and found.high - found.mean <= target * found.mean


def compare(
    a: ArrayLike, b: ArrayLike, paired: bool = False, confidence: float = CONFIDENCE, margin: float = 0.0
) -> Comparison:
    """Whether `a` takes less or more time than `b`; both hold one number in seconds per process (repeat), all above 0.

    The ratio is a / b of the geometric means, its interval that of the difference of mean logarithms: by Welch's t
    (Welch 1947), or the paired t if `paired` (a[i] and b[i] ran in one round). The verdict is about `a`: "faster" if
    the whole interval lies below 1 / (1 + margin), "slower" if above 1 + margin, else "no difference shown", which is
    not "equal"; "cannot be told", and no interval, with fewer than 2 repeats on a side.

    `smallest_detectable` is the ratio that so many repeats would have told from 1 in 80 % of cases: at 95 % confidence
    (1 + margin) exp((t_0.975 + t_0.80) se), the usual approximation of the noncentral t, with the standard error freed
    from the small-sample bias 1 - 1 / (4 dof). It rests on the spread of these very repeats: few make it uncertain.
    """
    log_a, log_b = np.log(_times(a, "a", positive=True)), np.log(_times(b, "b", positive=True))
    n_a, n_b = log_a.size, log_b.size
    if paired and n_a != n_b:
        raise ValueError(f"paired repeats must be equally many, got {n_a} and {n_b}")
    if not 0 <= margin < math.inf:
        raise ValueError(f"margin must be 0 or more, got {margin!r}")
    difference = float(log_a.mean() - log_b.mean()) if n_a and n_b else None
    if min(n_a, n_b) < 2:
        ratio = None if difference is None else math.exp(difference)
        return Comparison(ratio, None, None, "cannot be told", None, None, n_a, n_b)
    if paired:
        variance = max(float(np.var(log_a - log_b, ddof=1)), RESOLUTION**2) / n_a
        dof = n_a - 1
    else:
        part_a, part_b = (max(float(np.var(x, ddof=1)), RESOLUTION**2) / x.size for x in (log_a, log_b))
        variance = part_a + part_b
        dof = variance**2 / (part_a**2 / (n_a - 1) + part_b**2 / (n_b - 1))
    error, critical, band = math.sqrt(variance), t_quantile(confidence, dof), math.log1p(margin)
    low, high = difference - critical * error, difference + critical * error
    verdict = "faster" if high < -band else "slower" if low > band else "no difference shown"
    power = t_quantile(2 * POWER - 1, dof)  # one-sided
    detectable = band + (critical + power) * error / (1 - 1 / (4 * dof))
    ratio, low, high, detectable = (math.exp(x) for x in (difference, low, high, detectable))
    return Comparison(ratio, low, high, verdict, t_p_value(difference / error, dof), detectable, n_a, n_b)
