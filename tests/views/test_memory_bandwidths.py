"""The figure of memory bandwidths: medians and fastest blocks of passes, by device."""

import pytest
from drawings import HERE_CPU, HERE_GPU, drawn, lines, marks, remark, words
from records import metric, product, record, stream

from pomology.report.figures import WITHOUT
from pomology.views import memory_bandwidths

pytestmark = pytest.mark.filterwarnings("error")  # warnings would appear in notebooks


def draw(_, records):
    return memory_bandwidths.figure(records)


def timed(operation, gb_per_s, fastest, **more):
    """A pass of 1 GB whose median call has this rate, and whose fastest block has another."""
    values = {"bytes_per_s": metric(gb_per_s * 1e9, unit="B/s"), "kernel_s": metric(1 / gb_per_s)}
    blocks = {"kernel_s": {"steady": [[2, 2 / gb_per_s], [2, 2 / fastest], [2, 3 / gb_per_s]]}}
    config = {"operation": operation, "shape": "512 MB", "precision": "fp32"}
    return record("peaks", values, config, article="kit", blocks=blocks, **more)


def test_a_panel_for_each_device_and_framework_with_medians_and_fastest_blocks():
    gpu = {"backend": "mlx-gpu", "framework": "mlx"}
    records = [
        timed("copy", 40.0, 50.0),
        timed("sum", 60.0, 66.0),
        timed("add", 300.0, 330.0, **gpu),
    ]
    figure = drawn("peaks", [*records, product(1e12)], draw)
    cpu, other = figure.axes
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert titles == ["Apple M9 CPU, PyTorch", "Apple M9 GPU, MLX"]
    assert lines(cpu) == ["copy", "sum, reads"] and lines(other) == ["add"]
    assert words(cpu) == ["40.0 GB/s (50.0)", "60.0 GB/s (66.0)"]
    assert words(other) == ["300 GB/s (330)"]
    drawn_marks = {(round(x / 1e9, 6), colour, fill) for x, _, colour, fill in marks(cpu)}
    medians = {(40.0, HERE_CPU, HERE_CPU), (60.0, HERE_CPU, HERE_CPU)}
    assert drawn_marks == medians | {(50.0, HERE_CPU, "none"), (66.0, HERE_CPU, "none")}
    assert {colour for *_, colour, _ in marks(other)} == {HERE_GPU}
    assert other.get_xlabel() == "GB/s (higher is better)"
    key = [text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()]
    assert "open: fastest block, in brackets" in key


def test_of_repeats_the_fastest_block_is_that_of_all():
    records = [timed("copy", 40.0, 50.0), timed("copy", 44.0, 47.0, repeat=1)]
    (axis,) = drawn("peaks", records, draw).axes
    assert words(axis)[0].endswith("GB/s (50.0)")


def test_a_pass_without_a_bandwidth_is_counted_and_smoke_tests_are_left_out():
    config = {"operation": "triad", "shape": "512 MB", "precision": "fp32"}
    large = record("peaks", status="too-big", config=config)
    figure = drawn("peaks", [stream(9e10, "copy"), large], draw)
    assert f"{WITHOUT}1 too big" in remark(figure)
    assert draw("", [stream(9e10, "copy", profile="smoke")]) is None
    assert draw("", [large]) is None
