"""Headings and units of metrics, which follow from their names or headings."""

import pytest

from pomology.results import metrics


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


def test_a_heading_is_the_name_without_its_unit():
    names = ("loading_s", "heap_slope_bytes", "launch_s")
    headings = [metrics.Metric(name).heading for name in names]
    assert headings == ["Loading", "Heap growth per step", "Warm launch"]
