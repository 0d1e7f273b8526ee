"""What bounds a training, argued by hand from a machine of round numbers."""

import pytest
from records import metric, product, rate, record, stream

from pomology.views import diagnosis
from pomology.views.diagnosis import BELOW
from pomology.views.roofline.roofs import roofs

# 1 TFLOP/s, 100 GB/s, and 10 µs for a launch.
PEAKS = [
    product(1e12, backend="mps"),
    product(2e12, precision="fp16", backend="mps"),
    stream(100e9, backend="mps"),
    record("kernel_launch", {"launch_stream_s": metric(1e-5)}, {}, article="kit", backend="mps"),
]
LARGE = 2**30  # bytes that fit no cache


def training(step_s: float, flops: float, moved: float = 0, launches: int = 0, **changes):
    """A step of 128 samples that takes so long on data that are on the device already."""
    metrics = rate(flops / step_s) | {"step_s": metric(step_s)}
    metrics |= changes.pop("metrics", {})
    counts = {"flops_per_step": int(flops), "bytes_per_step": int(moved) or None}
    counts["launches_per_step"] = launches or None
    return record("vae", metrics, **{"backend": "mps"} | counts | changes)


def diagnosed(*records):
    return diagnosis.table(records, roofs(records))


def loading(compute_s: float, epoch_s: float) -> dict:
    return {"compute_epoch_s": metric(compute_s), "epoch_s": metric(epoch_s)}


# A training, what bounds it, and a word of what would help.
ARGUED = [
    # 0.5 of 1 s are arithmetic, and fp16 is twice as fast.
    (training(1.0, 0.5e12, 10 * LARGE), "arithmetic", "half precision"),
    (training(1.0, 1.0e12, precision="fp16"), "arithmetic", "nothing here"),
    (training(1.0, 0.2e12), "arithmetic" + BELOW, "a larger batch"),
    # 64 GB at 100 GB/s are 0.69 s.
    (training(1.0, 0.3e12, 64 * LARGE), "memory traffic", "fused operators"),
    (training(1.0, 0.1e12, 20 * LARGE), "memory traffic" + BELOW, "compilation"),
    # 1,000 launches are 10 ms of 12.
    (training(0.012, 1e9, 2**20, launches=1000), "launches", "a fused optimizer"),
    (training(0.05, 1e9, 2**20, launches=1000), "launches" + BELOW, "a fused optimizer"),
    (training(1.0, 0.05e12, LARGE, launches=1000), "none of these", "a profile"),
    # Half of the epoch is loading, whatever the step does.
    (training(1.0, 0.5e12, metrics=loading(5.0, 10.0)), "loading", "more workers"),
    (training(1.0, 0.5e12, metrics=loading(8.0, 10.0)), "arithmetic", "half precision"),
    (training(1.0, 0.5e12, flags=["swapping"]), "swapping", "a smaller batch"),
    (training(1.0, 0.5e12, flags=["contended"]), "not judged: contended", "nothing disturbs"),
    # 200 GB would take 2 s: most of them came from a cache.
    (training(1.0, 0.05e12, 200 * LARGE), "none of these", "a profile"),
]


@pytest.mark.parametrize(("case", "bound_by", "action"), ARGUED)
def test_what_bounds_a_training(case, bound_by, action):
    (row,) = diagnosed(*PEAKS, case).rows
    assert row.cells["Bound by"] == row.data["bound_by"] == bound_by
    assert action in row.cells["What would help"]


def test_the_parts_are_shares_of_the_step():
    case = training(1.0, 0.3e12, 64 * LARGE, launches=1000)
    (row,) = diagnosed(*PEAKS, case).rows
    cells = [row.cells[name] for name in ("Step", "Arithmetic", "Memory traffic", "Launches")]
    assert cells == ["1.00 s", "30 %", "69 %", "1.0 %"]
    assert row.data["arithmetic_s"] == pytest.approx(0.3)


def test_a_part_without_its_measurement_is_not_known():
    case = training(1.0, 0.3e12, 64 * LARGE, launches=1000)
    (row,) = diagnosed(case).rows
    assert row.cells["Not known"] == (
        "arithmetic (peaks measures it), memory traffic (peaks measures it), "
        "launches (kernel_launch measures it)"
    )
    assert row.cells["Bound by"] == "none of these"


def test_what_is_no_training_has_no_row():
    without_flops = record("vae", {"step_s": metric(1.0)}, backend="mps")
    smoke = training(1.0, 0.5e12, profile="smoke")
    table = diagnosed(*PEAKS, without_flops, smoke)
    assert table.rows == [] and list(table.notes) == []
