"""Means over repeats, ratios of cases, and how numbers are shown."""

import math

import pytest
import records
from records import metric

from pomology import format
from pomology.measure.estimate import Estimate
from pomology.results import cases, metrics
from pomology.results.frame import of_records


def test_a_ratio_is_taken_in_each_process():
    """One case is twice as fast in each of three repeats, which differ by a factor of 4."""
    slow, fast = ([step_s * factor for step_s in (1.0, 2, 4)] for factor in (1, 0.5))
    both = [
        records.record(
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


@pytest.mark.parametrize(
    ("name", "heading", "value", "text"),
    [
        ("launch_s", "", 0.012, "12.0 ms"),
        ("launch_s", "Cold launch (ms)", 0.012, "12.0"),
        ("epoch_s", "Minutes per epoch", 405, "6.75 min"),
        ("flops_per_s", "", 1.25e12, "1.25 TFLOP/s"),
        ("footprint_slope_bytes", "", 256e6, "256 MB"),
        ("energy_j_per_step", "", 129.3, "129 J"),
        ("parameters", "", 652_824, "652,824"),
        ("parameters", "Parameters (M)", 769e6, "769.000"),
        ("memory_bytes", "RAM (GB)", 2**34, "16"),
        ("times_cpu", "", 2.5, "2.50×"),
        ("of_your_own", "", 2.5, "2.50"),
    ],
)
def test_a_value_has_the_unit_of_its_name_or_of_its_heading(name, heading, value, text):
    assert metrics.Metric(name).show(value, heading) == text


@pytest.mark.parametrize(
    ("show", "values", "text"),
    [
        (format.seconds, (9.996,), "10.0 s"),
        (format.significant, (123_456, 2), "120,000"),
        (format.quantity, (1.234e12, "FLOP/s"), "1.23 TFLOP/s"),
        (format.clock_time, (59.5,), "1:00 min"),
        (format.clock_time, (math.inf,), "not known"),
        (format.with_interval, (metric(1234.5, 1199.1, 1269.9), format.seconds), "1,234 s ± 2.9 %"),
        (format.with_interval, (metric(153, 46.8, 260.1), format.seconds), "153 s (46.8 to 260 s)"),
        # A measured time without an interval is exact, and an estimated one is not.
        (format.with_interval, (metric(4.567), format.seconds), "4.57 s"),
        (format.with_interval, (metric(4.567, how="estimated"), format.seconds), "about 4.57 s"),
        (
            format.with_interval,
            (metric(0.0317, 0.028, 0.038).replace(covers="seen"), format.seconds),
            "31.7 ms (28.0 to 38.0 ms seen)",
        ),
    ],
)
def test_numbers_are_rounded_and_have_a_unit_that_fits(show, values, text):
    assert show(*values) == text
