"""Measured peaks of a run, and shares of them, compared with values computed by hand."""

import pytest
from msgspec.structs import replace
from records import metric, product, rate, record

from pomology.report import peaks


def of_blocks(calls_s, **more):
    """Return a matmul of 1 GFLOP with timing blocks of two calls. calls_s: seconds per call."""
    middle_s = sorted(calls_s)[len(calls_s) // 2]
    known = product(1e9 / middle_s, **more)
    known.metrics["kernel_s"] = metric(middle_s, unit="s")
    return replace(known, blocks={"kernel_s": {"steady": [[2, 2 * call_s] for call_s in calls_s]}})


def test_a_peak_is_the_best_over_sizes_frameworks_and_notebooks():
    records = [product(50e9), product(80e9, shape="1x9x9"), product(40e9, "fp16")]
    records += [product(99e9, status="mismatch"), product(5e12, profile="smoke")]
    records += [product(6e12, operation="matvec")]  # memory-bound
    records += [product(70e9, framework="mlx"), product(60e9, "fp16", experiment="another")]
    records += [product(900e9, backend="mps"), product(1200e9, backend="mlx-gpu")]
    best = peaks.best([*records, record("vae", rate(7e12))])
    wanted = {("cpu", "fp32"): 80e9, ("cpu", "fp16"): 60e9, ("gpu", "fp32"): 1200e9}
    assert {key: peak.rate.value for key, peak in best.items()} == wanted
    assert not peaks.best([])


def test_a_peak_is_the_rate_of_the_fastest_block():
    steady, lucky = of_blocks([0.5, 0.5, 0.5]), of_blocks([0.8, 0.4, 0.9])
    for turn in ([steady, lucky], [lucky, steady]):
        rate, fastest = peaks.best(turn)["cpu", "fp32"]
        assert fastest == lucky  # interference only slows blocks down
        assert (rate.value, rate.n, rate.covers) == (pytest.approx(1e9 / 0.4), 3, "exact")


@pytest.mark.parametrize(
    ("kind", "chip", "precision", "peak"),
    [
        ("gpu", "Apple M2 Max", "fp32", 13.6e12),
        ("gpu", "NVIDIA A100-SXM4-80GB", "fp32", 156e12),  # as TF32
        ("gpu", "NVIDIA H100 80GB HBM3", "fp16", 989e12),  # of its variants, SXM
        ("gpu", "NVIDIA GeForce RTX 2070 SUPER", "fp16", 36.2e12),
        ("gpu", "Apple M5", "fp32", 16.2e12),  # as TF32, at most at the rate of half precision
        ("gpu", "Apple M9", "fp32", float("inf")),  # no data sheet
        ("cpu", "Apple M2 Max", "fp32", 100e12),  # measured
    ],
)
def test_the_limit_is_by_data_sheet_or_measured_peak(kind, chip, precision, peak):
    records = [product(100e12), product(900e12, flags=["too-fast"])]
    assert peaks.limit(records, kind, chip, precision) == 1.5 * peak
