"""Intervals, drift, growth and comparisons: by hand, and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from simulations import clocked, covered, measured, share

from pomology.measure import clock, intervals
from pomology.measure.estimate import Estimate
from pomology.measure.intervals import (
    difference,
    drift,
    interval,
    median_interval,
    slope,
    t_quantile,
)


@pytest.mark.parametrize("lag", [0.0, 0.8])
@pytest.mark.parametrize(("size", "most"), [(6, 0.997), (20, 0.985), (60, 0.985)])
def test_intervals_cover_whatever_neighbours_have_to_do_with_each_other(lag, size, most):
    # 250 draws: 1.4 percentage points of standard error at 95 %.
    for function in (interval, median_interval):
        assert 0.90 <= covered(function, lag, size, 250) <= most


@pytest.mark.parametrize("function", [interval, median_interval])
def test_fewer_than_six_values_have_no_bounds(function):
    assert function([5.0]) == function([5.0] * 5).replace(n=1) == Estimate(5, "s")
    assert function([3, 1, 2, 2, 2]) == Estimate(2, "s", n=5)
    assert function([5.0, 5.0]).covers == "none"
    assert function([5.0] * 6) == Estimate(5, "s", 5, 5, 6) and function([5.0] * 6).covers == "run"
    assert function([1, 2, 3, 4, 5, 90]).low == 0  # never below
    assert interval([5.0], weights=[40]) == Estimate(5, "s", n=40)
    # Six blocks of which one holds nearly all steps are one batch of two, whatever their number.
    assert interval([1.0, 2.0] * 25, weights=[10**4, *[1] * 49]).low is None


def test_the_interval_by_hand():
    # Deviations ±1 in turn correlate by -(n - 1) / n: as independent ones, F = 1, with variance
    # n / (n - F).
    n = 30
    t = 2.0452296421
    found = interval(np.tile([9.0, 11.0], n // 2))
    assert found.high - 10 == pytest.approx(t * math.sqrt(1 / (n - 1)))
    # ±1 in halves correlate by (n - 3) / n, which is raised beyond the most that is believed, 0.95.
    r = 0.95
    found = interval(np.repeat([9.0, 11.0], n // 2))
    f = sum(r ** abs(i - j) for i in range(n) for j in range(n)) / n
    assert found.high - 10 == pytest.approx(t * math.sqrt(f / (n - f)))


@pytest.mark.parametrize("lag", [0.0, 0.8])
def test_what_measure_and_the_clock_stop_at_covers(lag):
    # 100 draws of each: 2.2 percentage points of standard error at 95 %.
    found = measured(lag, 0.01, 100, 0.02)
    assert {each.stopped for each in found} == {"interval", "budget"}
    assert share([each.seconds for each in found], 0.01) >= 0.88
    parts = clocked(lag, 0.01, 100, 0.05)
    assert "interval" in {part.stopped for part in parts}
    assert share([clock.interval(part.blocks) for part in parts], 0.01) >= 0.88
    assert share([clock.interval(part.ready_blocks) for part in parts], 0.008) >= 0.88


BAD = {
    "shape": lambda: interval([[1.0, 2.0]]),
    "NaN": lambda: interval([1.0, math.nan]),
    "infinite": lambda: median_interval([1.0, math.inf]),
    "negative": lambda: drift([-1.0]),
    "weights too few": lambda: interval([1.0, 2.0], weights=[1]),
    "weight of nothing": lambda: interval([1.0, 2.0], weights=[1, 0]),
    "one time, and that 0": lambda: difference([0.0], [1.0]),
}


@pytest.mark.parametrize("call", BAD.values(), ids=BAD)
def test_bad_input_is_refused(call):
    with pytest.raises(ValueError):
        call()


def test_drift_is_the_ratio_of_thirds_where_it_is_more_than_their_noise():
    assert drift([1.0] * 17) is drift([0.0] * 18) is None
    assert drift([1.0] * 12 + [2.0] * 6) == pytest.approx(1.0)
    assert drift([2.0] * 7 + [1.0] * 14) == pytest.approx(-0.5)
    assert drift([2.0] * 6 + [9.0] * 6 + [2.0] * 6) == pytest.approx(3.5)  # and came back
    generator = np.random.default_rng(3)
    noise = generator.normal(1.0, 0.1, (400, 60))
    assert np.mean([abs(drift(times)) > 0.1 for times in noise]) <= 0.01
    slower = noise * np.where(np.arange(60) < 30, 1.0, 1.2)
    assert np.mean([abs(drift(times)) > 0.1 for times in slower]) >= 0.95


def test_a_difference_is_welchs_t_of_the_logarithms():
    a, b = np.exp([1.0, 2, 3]), np.exp([2.0, 4, 6])
    welch = stats.ttest_ind(np.log(a), np.log(b), equal_var=False)
    apart = difference(a, b)
    found = apart.judged()
    assert found.ratio.value == pytest.approx(math.exp(-2))
    assert apart.p_value == pytest.approx(welch.pvalue)
    bounds = math.log(found.ratio.low), math.log(found.ratio.high)
    assert bounds == pytest.approx(welch.confidence_interval())
    assert (found.verdict, found.ratio.n) == ("no difference shown", 3)
    assert found.ratio.covers == "repeats"
    assert difference(a, 9 * b).judged().verdict == "faster"


def test_rows_judged_together_are_those_of_the_papers_example():
    """Benjamini and Hochberg 1995, section 4.1: of 15 p values the four smallest pass at 5 %."""
    p_values = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344]
    p_values += [0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0000]
    assert intervals.joint_confidence(p_values[::-1]) == pytest.approx(1 - 4 * 0.05 / 15)
    assert intervals.joint_confidence([0.9]) == pytest.approx(0.95)
    # The largest p value that passes takes the smaller ones with it.
    assert intervals.joint_confidence([0.045, 0.04]) == pytest.approx(0.95)


def test_sets_that_ran_one_after_the_other_have_a_wider_interval():
    a, b = [1.0, 1.1, 1.25], [2.0, 2.3, 2.4]
    variance = np.var(np.log(a), ddof=1) + np.var(np.log(b), ddof=1)
    for between in (0.0, 0.19, 2.0):
        shown = intervals.difference(a, b, between=between)
        assert shown.mean == pytest.approx(np.log(a).mean() - np.log(b).mean())
        assert shown.error == pytest.approx(np.sqrt(variance * (1 / 3 + between / 2)))
        half = t_quantile(0.99, shown.dof) * shown.error
        assert math.log(shown.judged(0.99).ratio.high) == pytest.approx(shown.mean + half)


def test_repeats_have_the_geometric_mean_and_the_interval_between_them():
    several = intervals.repeats([Estimate(x, "s", x / 2, 2 * x, 50) for x in (1.0, 2.0, 4.0)])
    half = 4.3026527297 * math.log(2) / math.sqrt(3)
    bounds = [pytest.approx(2 * math.exp(x)) for x in (-half, half)]
    assert several == Estimate(pytest.approx(2), "s", *bounds, 3, covers="repeats")
    alone = Estimate(1.0, "s", 0.9, 1.1, 50, "estimated")
    assert intervals.repeats([alone]) == alone
    # Swap may shrink.
    mixed = intervals.repeats([Estimate(-1.0, "B"), Estimate(2.0, "B", how="estimated")])
    assert (mixed.value, mixed.how) == (0.5, "estimated")
    assert mixed.low == pytest.approx(0.5 - 12.7062047362 * 1.5)


pytestmark = pytest.mark.usefixtures("quiet_machine")


def random_walk(rng, steps, rho, per_step):
    noise = rng.standard_normal(steps + 300)
    for step in range(1, len(noise)):
        noise[step] += rho * noise[step - 1]
    return noise[300:] + per_step * np.arange(steps)


SERIES = {  # name -> a trace, and its growth a step
    "autocorrelated": lambda rng: (random_walk(rng, 300, 0.9, 0.02), 0.02),
    "wandering": lambda rng: (np.cumsum(rng.normal(0.02, 1, 300)), 0.02),
    "wandering, six values": lambda rng: (np.cumsum(rng.normal(0.02, 1, 6)), 0.02),
    "stairs": lambda rng: (np.floor((np.arange(300) + rng.uniform(0, 40)) / 40), 1 / 40),
    "sawtooth": lambda rng: ((np.arange(300) + rng.uniform(0, 70)) % 70 / 70, 0.0),
}


@pytest.mark.parametrize("name", SERIES)
def test_the_interval_of_a_slope_holds_the_truth_nine_times_in_ten(name):
    rng = np.random.default_rng(3)
    hits, draws = 0, 400
    for _ in range(draws):
        values, truth = SERIES[name](rng)
        found = slope(values, np.arange(len(values)))
        hits += found.low <= truth <= found.high
    assert hits / draws >= 0.90
