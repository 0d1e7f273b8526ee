"""Confidence intervals, checked by hand and by simulation, and arithmetic with them."""

import math

import numpy as np
import pytest
from fakes import Clock
from scipy import special

from pomology.measure import calls, clock
from pomology.measure.estimate import Estimate, estimate, total
from pomology.measure.intervals import interval, median_interval

KINDS = ("normal", "lognormal", "lag 0.6", "lag 0.8", "stalls", "shift with stalls", "two speeds")


def autoregressive(draws: int, length: int, lag: float, seed: int = 1) -> np.ndarray:
    """Return standard normal AR(1) series, one per row."""
    noise = np.random.default_rng(seed).standard_normal((length, draws))
    for step in range(1, length):
        noise[step] = lag * noise[step - 1] + math.sqrt(1 - lag**2) * noise[step]
    return noise.T


def process(kind: str, size: int, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Return series of one kind, one per row, and the true median of each."""
    random = np.random.default_rng(size)
    noise = 0.03 * random.standard_normal((draws, size))
    if kind in ("lag 0.6", "lag 0.8"):
        noise = 0.03 * autoregressive(draws, size, float(kind.removeprefix("lag ")), seed=size)
    if kind == "lognormal":
        return np.exp(10 * noise), np.ones(draws)
    time = (np.arange(size) + 0.5) / size
    levels = np.ones((draws, size))
    if kind == "shift with stalls":
        levels[time > random.random((draws, 1))] = 1.2
    elif kind == "two speeds":
        levels = random.choice([1, 1.3], (draws, size))
    elif kind == "drift":
        levels += 0.1 * time
    times = levels * (1 + noise)
    if "stalls" in kind:
        times[random.random((draws, size)) < 0.003] *= 1000
    # Of all noise on all levels of a row; levels that are drawn for each call are the same in all.
    spread = 1 + 0.03 * special.ndtri((np.arange(99) + 0.5) / 99)
    rows = [[1, 1.3]] * draws if kind == "two speeds" else levels[:, :: max(1, size // 200)]
    return times, np.array([np.median(np.multiply.outer(row, spread)) for row in rows])


def share(found, truth: float) -> float:
    """How many of the intervals hold the truth; each must have bounds."""
    return float(np.mean([each.low <= truth <= each.high for each in found]))


@pytest.mark.parametrize("lag", [0.0, 0.8])
@pytest.mark.parametrize("size", [20, 60])
def test_intervals_cover_the_true_value_at_any_correlation(lag, size):
    """Values are normal around 1 and ± 10 %."""
    rows = 1 + 0.1 * autoregressive(250, size, lag, seed=size)
    for function in (interval, median_interval):
        # 250 draws: 1.4 percentage points of standard error at 95 %.
        assert 0.90 <= share(map(function, rows), 1.0) <= 0.985


@pytest.mark.parametrize("kind", [*KINDS, "drift"])
@pytest.mark.parametrize("size", [20, 1000])
def test_the_interval_of_a_median_covers_it_and_is_not_as_wide_as_a_stall(kind, size):
    """Calls have 3 % noise; the shift is 20 %, and 0.3 % of calls take 1000 times as long."""
    # 300 draws: 1.3 percentage points of standard error at 95 %.
    times, truth = process(kind, size, 300)
    each = [median_interval(row) for row in times]
    low, high = np.array([(one.low, one.high) for one in each]).T
    values = np.array([one.value for one in each])
    assert np.mean((low <= truth) & (truth <= high)) >= 0.92 - 0.013
    assert np.all((low <= values) & (values <= high))
    if (kind, size) != ("lognormal", 20):  # 20 values with 30 % noise say less
        assert np.mean(high < 1.3 * values) >= 0.95


def test_ties_of_a_coarse_timer_have_an_interval():
    """A timer of 41 ns, as on Apple silicon."""
    assert median_interval([82e-9] * 30) == Estimate(82e-9, "s", 82e-9, 82e-9, 30)
    ticks = np.tile([2, 2, 3, 2, 3, 2, 2, 3, 4, 2], 20)
    tied = median_interval(41e-9 * ticks)
    assert (tied.value, tied.low, tied.high) == pytest.approx((82e-9, 82e-9, 82e-9))
    split = median_interval(41e-9 * np.tile([2, 3, 3, 2], 50))
    assert (split.value, split.low, split.high) == pytest.approx((102.5e-9, 82e-9, 123e-9))


@pytest.mark.parametrize("function", [interval, median_interval])
def test_fewer_than_twenty_values_get_their_range(function):
    assert function([5.0]) == Estimate(5, "s")
    assert function([3, 1, 2, 2, 2]) == Estimate(2, "s", 1, 3, 5, covers="seen")
    assert function([28.0, 38.0] * 9) == Estimate(33, "s", 28, 38, 18, covers="seen")
    assert function([28.0, 38.0] * 10).covers == "run"
    assert interval([5.0], weights=[40]) == Estimate(5, "s", n=40)
    # If one block has nearly all steps, many blocks still make two batches only.
    # The range of means of many steps is no time that a step took.
    assert interval([1.0, 2.0] * 25, weights=[10**4, *[1] * 49]).covers == "none"


def test_the_interval_by_hand():
    # Alternating deviations of ±1 correlate by -(n - 1) / n. They count as independent, F = 1, with
    # variance n / (n - F).
    n = 30
    t = 2.0452296421
    found = interval(np.tile([9.0, 11.0], n // 2))
    assert found.high - 10 == pytest.approx(t * math.sqrt(1 / (n - 1)))
    # ±1 in halves correlate by (n - 3) / n, which is raised beyond the upper limit of 0.95.
    r = 0.95
    found = interval(np.repeat([9.0, 11.0], n // 2))
    f = sum(r ** abs(i - j) for i in range(n) for j in range(n)) / n
    assert found.high - 10 == pytest.approx(t * math.sqrt(f / (n - f)))


@pytest.mark.parametrize("lag", [0.0, 0.8])
def test_intervals_at_which_measure_and_the_clock_stop_cover_the_true_value(lag):
    """Calls and steps take 10 ms ± 2 and 5 % in simulated time, steps on ready batches 8 ms."""
    # 100 draws of each: 2.2 percentage points of standard error at 95 %.
    found = []
    for row in 0.01 * (1 + 0.02 * autoregressive(100, 3000, lag)):
        now, times = Clock(), iter(row.tolist())
        found.append(calls.measure(lambda now=now, times=times: now.pass_s(next(times)), clock=now))
    assert {each.stopped for each in found} == {"interval", "budget"}
    narrow = [each.seconds for each in found if each.stopped == "interval"]
    assert all(each.high - each.low <= 0.02 * each.value for each in narrow)
    assert share([each.seconds for each in found], 0.01) >= 0.88
    parts = []
    for row in 0.01 * (1 + 0.05 * autoregressive(100, 4000, lag)):
        now = Clock()
        timing = clock.StepClock(clock=now, budget_s=4.0, to_device=lambda batch: batch)
        for seconds, _ in zip(row.tolist(), timing.steps(range(10**6)), strict=False):
            now.pass_s(seconds * (0.8 if timing.on_ready else 1))
        parts.append(timing.parts["training"])
    assert "interval" in {part.stopped for part in parts}
    assert share([clock.interval(part.blocks) for part in parts], 0.01) >= 0.88
    assert share([clock.interval(part.ready_blocks) for part in parts], 0.008) >= 0.88


def test_arithmetic_keeps_the_interval_and_its_kind():
    step = Estimate(2.0, "s", 1.25, 2.5, 40)
    rate = estimate(10, "FLOP") / step
    assert rate == Estimate(5.0, "FLOP/s", 4.0, 8.0, 40)
    assert 3 * step + 1 == Estimate(7.0, "s", 4.75, 8.5, 40)
    ratio = step / Estimate(1.0, "s", 0.5, 2.0, 3, covers="repeats")
    assert (ratio.low, ratio.high, ratio.unit, ratio.n, ratio.covers) == (0.625, 5.0, "", 3, "run")
    assert (estimate(6) / estimate(3)) == estimate(2.0)
    for unknown in (step * Estimate(2.0), step / Estimate(1.0, "s", -1.0, 3.0)):
        assert (unknown.low, unknown.high, unknown.covers) == (None, None, "none")
    assert Estimate(2.0).bounds == (-math.inf, math.inf) and estimate(2).bounds == (2, 2)
    with pytest.raises(ZeroDivisionError):
        step / 0
    few = 2 * Estimate(2.0, "s", 1.0, 4.0, 8, covers="seen")
    assert (few.low, few.high, few.covers, few.metric()["covers"]) == (2.0, 8.0, "seen", "seen")


def test_a_total_adds_half_widths_in_squares_and_keeps_unknown_spread_unknown():
    terms = [Estimate(10.0, "s", 7.0, 13.0, 9), Estimate(20.0, "s", 16.0, 24.0, 5, "estimated")]
    assert total(terms) == Estimate(30.0, "s", 25.0, 35.0, 9, "estimated")
    assert total([*terms, Estimate(0.4, "s")]).covers == "none"
    assert total([*terms, Estimate(0.3, "s")]).high == pytest.approx(35.3)
    skewed = [Estimate(10.0, "s", 9.0, 13.0, 9), Estimate(9.0, "s", covers="exact")]
    assert total(skewed) == Estimate(19.0, "s", 18.0, 22.0, 9)
