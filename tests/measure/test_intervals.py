"""Confidence intervals, checked by hand and by simulation."""

import math

import numpy as np
import pytest
from simulations import clocked, covered, measured, share

from pomology.measure import clock
from pomology.measure.estimate import Estimate
from pomology.measure.intervals import interval, median_interval


@pytest.mark.parametrize("lag", [0.0, 0.8])
@pytest.mark.parametrize(("size", "most"), [(20, 0.985), (60, 0.985)])
def test_intervals_cover_the_true_value_at_any_correlation(lag, size, most):
    # 250 draws: 1.4 percentage points of standard error at 95 %.
    for function in (interval, median_interval):
        assert 0.90 <= covered(function, lag, size, 250) <= most


@pytest.mark.parametrize("function", [interval, median_interval])
def test_fewer_than_twenty_values_get_their_range(function):
    assert function([5.0]) == Estimate(5, "s")
    assert function([3, 1, 2, 2, 2]) == Estimate(2, "s", 1, 3, 5, covers="seen")
    assert function([28.0, 38.0] * 9) == Estimate(33, "s", 28, 38, 18, covers="seen")
    assert function([28.0, 38.0] * 10).covers == "run"
    assert interval([5.0], weights=[40]) == Estimate(5, "s", n=40)
    # If one block has nearly all steps, many blocks still make two batches only.
    assert interval([1.0, 2.0] * 25, weights=[10**4, *[1] * 49]).covers == "seen"


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
    # 100 draws of each: 2.2 percentage points of standard error at 95 %.
    found = measured(lag, 0.01, 100, 0.02)
    assert {each.stopped for each in found} == {"interval", "budget"}
    narrow = [each.seconds for each in found if each.stopped == "interval"]
    assert all(each.high - each.low <= 0.02 * each.value for each in narrow)
    assert share([each.seconds for each in found], 0.01) >= 0.88
    parts = clocked(lag, 0.01, 100, 0.05)
    assert "interval" in {part.stopped for part in parts}
    assert share([clock.interval(part.blocks) for part in parts], 0.01) >= 0.88
    assert share([clock.interval(part.ready_blocks) for part in parts], 0.008) >= 0.88
