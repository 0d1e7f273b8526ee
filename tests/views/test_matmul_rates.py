"""The figure of rates over sizes: a panel for each precision, with the data sheet's peak."""

from functools import partial

import pytest
from drawings import COLOURS, HERE_CPU, HERE_GPU, curves, drawn, words
from records import metric, product, record, stream

from pomology.report import figures
from pomology.report.peaks import Peak
from pomology.views import matmul_rates

pytestmark = pytest.mark.filterwarnings("error")  # warnings would appear in notebooks

SIZES = (256, 1024, 4096)
M3_MAX = [{"name": "Apple M3 Max", "cores": 40, "memory_bytes": 64 * 2**30}]
MAC_GPU = {"backend": "mps", "chip": "Apple M3 Max"}
MLX_GPU = {"backend": "mlx-gpu", "chip": "Apple M3 Max", "framework": "mlx"}
A100 = {"backend": "cuda", "chip": "NVIDIA A100-SXM4-80GB"}


def matmuls(precision, scale, **where):
    shapes = [f"1x{size}x{size}" for size in SIZES]
    rates = [scale * 1e12 * number for number in (1, 2, 3)]
    pairs = zip(shapes, rates, strict=True)
    return [product(rate, precision, shape, 0.9 * rate, rate, **where) for shape, rate in pairs]


def test_a_panel_for_each_precision_with_a_line_for_each_device_and_framework():
    records = [*matmuls("fp32", 1), *matmuls("fp32", 3, **MAC_GPU), *matmuls("fp32", 4, **MLX_GPU)]
    records += matmuls("fp16", 4, **MAC_GPU)
    others = [stream(9e10), product(5e12, operation="convolution", shape="8x256x28x28")]
    figure = drawn("peaks", [*records, *others], matmul_rates.figure)
    fp32, fp16 = figure.axes
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["fp32", "fp16"]
    lines = [(places, values) for places, values in curves(fp32) if len(places) == 3]
    assert [places for places, _ in lines] == [list(SIZES)] * 3
    assert [values[2] for _, values in lines] == [3e12, 9e12, 12e12]
    assert (256, 256) in [tuple(places) for places, _ in curves(fp32)]  # an interval
    assert fp32.get_xscale() == fp32.get_yscale() == "log"
    assert fp32.get_xlim() == fp16.get_xlim() and fp32.get_xlabel() == matmul_rates.LABEL
    assert "FLOP/s" in figure.get_suptitle()
    shades = {line.get_color() for line in fp32.lines}
    assert shades == {COLOURS["torch", "cpu"], COLOURS["torch", "gpu"], COLOURS["mlx", "gpu"]}
    key = {text.get_text() for text in figure.legends[0].get_texts()}
    assert {"Apple M9 CPU, PyTorch", "Apple M3 Max GPU, PyTorch", "Apple M3 Max GPU, MLX"} <= key


@pytest.mark.parametrize(
    ("where", "gpus", "peaks"),
    [
        (MAC_GPU, M3_MAX, {"fp32": 14.1e12, "fp16": 14.1e12}),
        (A100, (), {"fp32": 19.5e12, "tf32": 156e12, "fp16": 312e12}),
        ({}, M3_MAX, {}),
    ],
)
def test_the_peak_of_the_data_sheet_is_a_line_where_it_is_stated(where, gpus, peaks):
    precisions = ("fp32", "tf32", "fp16")
    records = [one for precision in precisions for one in matmuls(precision, 1, **where)]
    figure = drawn("peaks", records, partial(matmul_rates.figure, gpus=gpus))
    sheets = {}
    for axis in figure.axes:
        level = [line for line in axis.lines if line.get_color() == figures.GREY]
        sheets |= {axis.get_title(loc="left"): line.get_ydata()[0] for line in level}
    assert sheets == peaks
    key = " ".join(text.get_text() for text in figure.legends[0].get_texts())
    assert ("data sheet" in key) == bool(peaks)


def test_a_measured_peak_is_a_line_with_its_rate_and_an_operator_that_is_no_matmul():
    """The answer has the fastest block, which may be of another operator than the figure's."""
    records = [*matmuls("fp32", 1), *matmuls("fp32", 3, **MAC_GPU), *matmuls("bf16", 2)]
    convolution = product(5e12, operation="convolution", shape="8x256x28x28")
    rates = {("cpu", "fp32"): Peak(metric(5e12), convolution)}
    rates |= {("gpu", "fp32"): Peak(metric(9.5e12), records[5])}
    rates |= {("cpu", "fp16"): Peak(metric(1e12), convolution)}  # of no panel
    figure = drawn("peaks", records, partial(matmul_rates.figure, rates=rates))
    fp32, bf16 = figure.axes
    assert words(fp32) == ["9.50 TFLOP/s", "5.00 TFLOP/s (convolution)"] and words(bf16) == []
    level = {line.get_color(): line.get_ydata()[0] for line in fp32.lines[-2:]}
    assert level == {HERE_CPU: 5e12, HERE_GPU: 9.5e12}
    box, axis = fp32.texts[0].get_window_extent(), fp32.get_window_extent()
    assert axis.y0 < box.y0 and box.y1 <= axis.y1 + 1
    key = [text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()]
    assert {f"peak of the {kind}: fastest timing block" for kind in ("CPU", "GPU")} <= {*key}


@pytest.mark.parametrize("share", [1.0, 0.9, 0.5, 0.1])
def test_the_words_of_two_peaks_never_meet(share):
    """`drawn` looks for texts that cross."""
    records = [*matmuls("fp32", 1), *matmuls("fp32", 3, **MAC_GPU), *matmuls("fp32", 0.01)[:1]]
    rates = {("gpu", "fp32"): Peak(metric(9e12), records[5])}
    rates |= {("cpu", "fp32"): Peak(metric(share * 9e12), records[2])}
    (fp32,) = drawn("peaks", records, partial(matmul_rates.figure, rates=rates)).axes
    assert len(words(fp32)) == 2


def test_panels_are_of_equal_size():
    precisions = ("fp32", "fp16", "bf16")
    records = [one for precision in precisions for one in matmuls(precision, 1)]
    boxes = [a.get_window_extent() for a in drawn("peaks", records, matmul_rates.figure).axes]
    first, second, third = boxes
    assert third.x0 == pytest.approx(first.x0, abs=1) and third.y1 < first.y0
    for box in (second, third):
        assert (box.width, box.height) == pytest.approx((first.width, first.height), abs=1)


def test_sizes_without_a_rate_are_counted_and_smoke_tests_are_left_out():
    config = {"operation": "matmul", "shape": "1x8192x8192", "precision": "fp32"}
    late = record("peaks", status="too-slow", config=config)
    figure = drawn("peaks", [*matmuls("fp32", 1), late], matmul_rates.figure)
    assert figure.legends[0].get_title().get_text().endswith("1 too slow")
    assert len(figure.axes) == 1 and words(figure.axes[0]) == []
    smoke = matmuls("fp32", 1, profile="smoke")
    assert drawn("peaks", smoke, matmul_rates.figure) is None


def test_matvecs_and_gradients_are_lines_over_the_size_of_square_matrices():
    def case(operation, shape, value, precision="fp32", **more):
        more |= {"operation": operation, "experiment": "blas"}
        return product(value, precision, shape, 0.9 * value, 1.1 * value, **more)

    records = [case("matvec", "128x128", 1e9), case("matvec", "512x512", 4e9)]
    records += [case("matvec", "128x4096", 9e9), case("matmul", "8x2000x2000", 9e9)]
    left = {"about": {"wrt": "left"}}
    records += [case("vjp", f"8x1024x{n}", n * 1e9, "fp16", **left) for n in (128, 512)]
    records += [case("vjp", f"8x1024x{n}", n * 1e9, **left) for n in (128, 512)]
    records.append(case("vjp", "8x1024x128", 1e9, "bf16", **left))  # one size only
    figure = drawn("blas", records, matmul_rates.shapes_figure)
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert titles[0] == "matvec, fp32\nn × n"
    assert titles[1:] == [f"vjp left, {name}\n8 × 1024 × n" for name in ("fp16", "fp32")]
    assert curves(figure.axes[0])[0] == ([128, 512], [1e9, 4e9])
    assert curves(figure.axes[1])[0] == ([128, 512], [128e9, 512e9])
    assert drawn("blas", [], matmul_rates.shapes_figure) is None
