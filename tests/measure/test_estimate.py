"""Arithmetic on estimates with intervals."""

import math

import pytest

from pomology.measure.estimate import Estimate, estimate, total


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
