"""The best rates of a run, and shares of them, against arithmetic done by hand."""

import pytest
from records import cached, matvec, metric, product, rate, record, stream

from pomology.report import peaks


def of_blocks(calls_s, **more):
    """A product of 1 GFLOP whose blocks of two calls took so long a call."""
    middle_s = sorted(calls_s)[len(calls_s) // 2]
    known = product(1e9 / middle_s, **more)
    known.metrics["kernel_s"] = metric(middle_s, unit="s")
    return known.replace(blocks={"kernel_s": {"steady": [[2, 2 * call_s] for call_s in calls_s]}})


def test_a_peak_is_the_best_over_sizes_frameworks_and_notebooks():
    records = [product(50e9), product(80e9, shape="1x9x9"), product(40e9, "fp16")]
    records += [product(99e9, status="mismatch"), product(5e12, profile="smoke")]
    records += [product(70e9, framework="mlx"), product(60e9, "fp16", experiment="another")]
    records += [product(900e9, backend="mps"), product(1200e9, backend="mlx-gpu")]
    best = peaks.peaks([*records, record("vae", rate(7e12))])
    wanted = {("cpu", "fp32"): 80e9, ("cpu", "fp16"): 60e9, ("gpu", "fp32"): 1200e9}
    assert {key: peak.value for key, peak in best.rates.items()} == wanted
    assert not best.bandwidths and not peaks.peaks([]).rates


def test_it_is_the_rate_of_the_fastest_block():
    steady, lucky = of_blocks([0.5, 0.5, 0.5]), of_blocks([0.8, 0.4, 0.9])
    for turn in ([steady, lucky], [lucky, steady]):
        rate, fastest = peaks.peaks(turn).rates["cpu", "fp32"]
        assert fastest == lucky  # others only slow it down
        assert (rate.value, rate.n, rate.covers) == (pytest.approx(1e9 / 0.4), 3, "exact")


def test_each_kind_of_traffic_has_a_peak_and_what_a_cache_holds_raises_none():
    records = [stream(8e9, "copy"), stream(9e9), stream(7e9, "add"), stream(90e9, backend="mps")]
    records += [cached(12e9, "sum", 32), stream(11e9, "dot"), matvec(40, 77e9), matvec(127, 20e9)]
    wanted = {("cpu", "reads and writes"): 9e9, ("gpu", "reads and writes"): 90e9}
    wanted["cpu", "reads"] = 12e9
    found = peaks.peaks(records).bandwidths
    assert {key: peak.value for key, peak in found.items()} == wanted
    # A matrix larger than four caches is no cache's; an unknown cache may be as large as any.
    assert peaks.peaks([*records, matvec(129, 13e9)]).bandwidths["cpu", "reads"].value == 13e9
    assert ("gpu", "reads") not in peaks.peaks([matvec(530, 13e9, backend="mps")]).bandwidths


def test_a_share_is_of_the_device_in_its_precision():
    best = peaks.peaks([product(100e9, low=80e9, high=125e9)])
    share = best.share(metric(25e9, 20e9, 30e9, "FLOP/s"), "cpu", "fp32")
    assert (share.value, share.low, share.high) == pytest.approx((0.25, 20 / 125, 30 / 80))
    assert best.share(share, "gpu", "fp32") is best.share(share, "cpu", "bf16") is None


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (0.42, 0.408, 0.432, "42.0 % (40.8 to 43.2 %)"),
        (0.97, 0.93, 1.01, "97.0 % (93.0 to 100 %)"),
        (1.02, 0.99, 1.05, "over 100 %"),
        (0.5, None, None, "50.0 %"),
    ],
)
def test_no_share_is_shown_above_all(value, low, high, text):
    assert peaks.percent(metric(value, low, high).replace(n=20)) == text
