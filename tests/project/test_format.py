"""Formatted numbers, with expected texts typed in by hand."""

import math

import pytest
from records import metric

from pomology import format


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
