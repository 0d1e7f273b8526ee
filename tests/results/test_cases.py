"""Means over repeats, and ratios of cases."""

import fakes
import pytest

from pomology.measure.estimate import Estimate
from pomology.results import cases
from pomology.results.frame import of_records


def test_a_ratio_is_taken_in_each_process():
    """One case is twice as fast in each of three repeats, which differ by a factor of 4."""
    slow, fast = ([step_s * factor for step_s in (1.0, 2, 4)] for factor in (1, 0.5))
    both = [
        fakes.record(
            case=name,
            repeat=repeat,
            metrics={"epoch_s": Estimate(times[repeat]), "compute_epoch_s": Estimate(fast[repeat])},
        )
        for name, times in (("slow", slow), ("fast", fast))
        for repeat in range(3)
    ]
    first, second = cases.pool(of_records(both))
    ratio = cases.speed_ratio(second, first, "epoch_s")
    assert (ratio.value, ratio.low, ratio.high, ratio.covers) == (2, 2, 2, "repeats")
    assert first.values["compute_share"].bounds == (0.5, 0.5)


def test_slopes_that_may_be_0_have_an_interval_that_may_include_0():
    """Mean 2, standard error 0.577, and Student's t of two degrees of freedom is 4.303."""
    mean = cases.mean_of_repeats([Estimate(value, "B", -9, 9, 20) for value in (1, 2, 3)])
    assert (mean.value, mean.low, mean.high) == pytest.approx((2, -0.484, 4.484), abs=1e-3)
    # Counted bytes are equal in all repeats, and not rounded.
    same = cases.mean_of_repeats([Estimate(22_345_678_901, "B", n=None)] * 3)
    assert (same.value, same.low, same.high) == (22_345_678_901,) * 3
