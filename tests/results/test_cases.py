"""Means over repeats, ratios of cases, and how numbers are shown."""

import math

import pytest
import records
from records import metric

from pomology import format
from pomology.measure.estimate import Estimate
from pomology.results import metrics, repeats


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
    first, second = repeats.pool(both)
    ratio = repeats.speed_ratio(second, first, "epoch_s")
    assert (ratio.value, ratio.low, ratio.high, ratio.covers) == (2, 2, 2, "repeats")
    assert first.values["compute_share"].bounds == (0.5, 0.5)


def test_slopes_that_may_be_0_have_an_interval_that_may_include_0():
    """Mean 2, standard error 0.577, and Student's t of two degrees of freedom is 4.303."""
    mean = repeats.mean_of_repeats([Estimate(value, "B", -9, 9, 20) for value in (1, 2, 3)])
    assert (mean.value, mean.low, mean.high) == pytest.approx((2, -0.484, 4.484), abs=1e-3)
    # Counted bytes are equal in all repeats, and not rounded.
    same = repeats.mean_of_repeats([Estimate(22_345_678_901, "B", n=None)] * 3)
    assert (same.value, same.low, same.high) == (22_345_678_901,) * 3


def check_of_variation(share, repeat=0, **more):
    values = {repeats.VARIATION: Estimate(share)}
    return records.record("instrument_check", metrics=values, repeat=repeat, **more)


def test_run_to_run_variation_is_one_sentence_with_two_digits_rounded_up():
    """The geometric mean of 0.1, 0.16 and 0.27 is 0.16287 (by hand)."""
    on_cpu = [check_of_variation(x, i, backend="cpu") for i, x in enumerate((0.1, 0.16, 0.27))]
    on_gpu = check_of_variation(0.0301, case="gpu", backend="mps")
    smoke = check_of_variation(9.0, case="smoke", backend="cpu", profile="smoke")
    pooled = repeats.pool([*on_cpu, on_gpu, smoke])
    assert repeats.run_to_run(pooled) == {
        ("", "cpu"): pytest.approx(0.16287, rel=1e-4),
        ("", "gpu"): 0.0301,
    }
    assert repeats.variation_text(pooled) == (
        "90 % of pairs of single runs of a step differ by less than 17 % on the CPU (10 to 27 % in "
        "3 repeats) and 3.1 % on the GPU: smaller differences between two single runs show nothing."
    )
    assert repeats.variation_text(repeats.pool([smoke])).startswith("Not measured: ")


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
        ("trained_parameters", "", 762_321_920, "762,321,920"),
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
        (format.quantity, (-0.3, "B"), "0 B"),
        (format.rounded_up, (16.0001,), "17"),
        (format.rounded_up, (17.0,), "17"),
        (format.rounded_up, (8.51,), "8.6"),
        (format.rounded_up, (9.96,), "10"),
        (format.rounded_up, (121.0,), "130"),
        (format.rounded_up, (0.0421,), "0.043"),
        (format.rounded_up, (0.0,), "0"),
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


TIMES = [0.0050, 0.189, 0.0052]  # of three processes; other programs disturbed the second


def test_a_disturbed_repeat_is_in_no_mean_where_two_others_are_clean():
    """The mean of 5.0, 189 and 5.2 ms would be 17.0 ms, a time that no process took."""
    flags = [[], ["contended", "few-steps"], ["few-steps"]]
    runs = [
        records.record(metrics={"step_s": metric(time)}, flags=one, repeat=number)
        for number, (time, one) in enumerate(zip(TIMES, flags, strict=True))
    ]
    (case,) = repeats.pool(runs)
    assert case.values["step_s"].value == pytest.approx((0.0050 * 0.0052) ** 0.5)
    assert case.left_out == {1: ["contended", "few-steps"]} and case.flags == ["few-steps"]
    assert (case.good_repeats, [*case.used]) == (3, [0, 2])
    # Of two repeats one is not enough to leave the other out.
    (few,) = repeats.pool(runs[:2])
    assert few.values["step_s"].value == pytest.approx((0.0050 * 0.189) ** 0.5)
    assert few.left_out == {} and few.flags == ["contended", "few-steps"]


def test_two_repeats_have_their_range_and_three_an_interval():
    """With one degree of freedom Student's t is 12.7 standard errors: from 0.1 ms to 160 days."""
    estimates = [Estimate(seconds, "s", seconds, seconds) for seconds in (16.8, 123.0)]
    mean = repeats.mean_of_repeats(estimates)
    assert mean.value == pytest.approx((16.8 * 123.0) ** 0.5)
    assert (mean.low, mean.high, mean.n, mean.covers) == (16.8, 123.0, 2, "seen")
    mean = repeats.mean_of_repeats([*estimates, Estimate(40.0, "s", 39.0, 41.0)])
    assert mean.covers == "repeats" and mean.low < 16.8
