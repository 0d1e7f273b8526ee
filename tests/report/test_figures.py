"""Figures show the values of the records, in the same colours everywhere.

This file has the article's numbers as typed in; shares and rates are computed by hand.
"""

import declared
import heatmap
import numpy
import pytest
import traces
from matplotlib import _pylab_helpers
from records import metric, product, rate, record

from pomology.report import figures
from pomology.report.figures import article_figure
from pomology.results import metrics

pytestmark = pytest.mark.filterwarnings("error")  # warnings would appear in notebooks

CPU, GPU, RIVAL = "M1 Ultra CPU", "M1 Ultra GPU", "2070 Super CUDA"
COLOURS = {kind: look["colour"] for kind, look in figures.LOOKS.items()}
HERE_CPU, HERE_GPU = COLOURS["measured", "cpu"], COLOURS["measured", "gpu"]
NOTHING = "Nothing was measured that can be drawn"
TIMES = {"epoch_s": metric(4.5, 3.6, 5.4), "compute_epoch_s": metric(0.9, 0.8, 1.0)}
MACHINE = [
    record(metrics=TIMES, chip="AMD $\\frac{$"),
    record(metrics={"epoch_s": metric(3e4, 1.5e4, 4.5e4)}, backend="mps"),
    record(status="out-of-memory", config={"batch_size": 5120}),
    *(
        record(metrics={"epoch_s": metric(value)}, config={"batch_size": 64}, repeat=repeat)
        for repeat, value in enumerate((0.002, 0.0022, 0.00242))
    ),
    record(metrics={"epoch_s": metric(1.0)}, config={"batch_size": 32}, profile="smoke"),
]
BOTH = ({}, {"backend": "mps"}, {"backend": "mlx-gpu", "framework": "mlx"})
OPERATIONS = (
    ("8x9x9", {"operation": "matmul"}),
    ("4096x32000", {"operation": "matvec"}),
    ("8x9", {"operation": "vjp", "about": {"wrt": "left"}}),
)
PRODUCTS = [
    product(value, precision, shape, 0.9 * value, 1.1 * value, experiment="blas", **where, **more)
    for value, where in zip((1.234e9, 5e10, 7e11), BOTH, strict=True)
    for precision in ("fp32", "fp16", "bf16")
    for shape, more in OPERATIONS
]


def trace(load, **more):
    columns = ["step", "t_s", "footprint_bytes", "allocated_bytes", "page_faults"]
    rows = [[0, 10.0, 5e9, None, 100], [1, 12.0, 6e9, None, 200], [3, 18.0, 7e9, None, 900]]
    return record(config={"load": load}, memory_trace={"columns": columns, "rows": rows}, **more)


def drawn(experiment, records=(), draw=article_figure):
    """Return the figure with its layout."""
    figure = draw(declared.of(experiment), list(records))
    figure.draw_without_rendering()
    # A notebook would display pyplot's figures twice, and a Mac would open a window for them.
    assert not _pylab_helpers.Gcf.figs
    return figure


def words(axis):
    return [text.get_text() for text in axis.texts]


def lines(axis):
    return [label.get_text() for label in axis.get_yticklabels()]


def marks(axis):
    """Return each marker's x, y, colour, and fill colour."""
    shown = [line for line in axis.lines if line.get_linestyle() == "None"]
    return [
        (*line.get_xdata(), *line.get_ydata(), line.get_color(), line.get_markerfacecolor())
        for line in shown
    ]


def intervals(axis):
    return sorted(tuple(line.get_xdata()) for line in axis.lines if line.get_marker() == "None")


def curves(axis):
    return [tuple(map(list, line.get_data())) for line in axis.lines]


def test_a_panel_for_each_row_of_settings_and_a_line_for_each_device():
    figure = drawn("vae", MACHINE)
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert titles == ["Batch size 128", "Batch size 5120", "Batch size 64"]
    first, second, third = figure.axes
    own = ["AMD $\\frac{$ CPU, PyTorch", "Apple M9 GPU, PyTorch"]
    assert lines(first) == [CPU, GPU, RIVAL, *own]
    assert words(first) == ["3.75 s", "8.76 s", "6.55 s", "4.50 s", "30,000 s"]
    assert lines(second)[-1] == "Apple M9 CPU, PyTorch"
    assert words(second) == ["1.93 s", "2.00 s", "6.07 s", "out-of-memory"]
    # Repeats are one line at their mean.
    assert (lines(third), words(third)) == (["Apple M9 CPU, PyTorch"], ["2.20 ms"])
    assert [x for x, *_ in marks(third)] == pytest.approx([0.0022]) and len(intervals(third)) == 1
    assert {axis.get_xscale() for axis in figure.axes} == {"log"}
    assert "seconds per epoch" in third.get_xlabel()
    # Values and intervals are the records', and compute only has an open marker.
    assert intervals(first) == [(0.8, 1.0), (3.6, 5.4), (1.5e4, 4.5e4)]
    published = [COLOURS["published", role] for role in ("cpu", "gpu", "rival")]
    values = [(3.746, 0), (8.76, 1), (6.555, 2)]
    expected = {(*value, c, c) for value, c in zip(values, published, strict=True)}
    expected |= {(4.5, 3, HERE_CPU, HERE_CPU), (0.9, 3.2, HERE_CPU, "none")}
    assert set(marks(first)) == expected | {(3e4, 4, HERE_GPU, HERE_GPU)}


def test_published_times_are_shown_as_flops_per_second():
    config = {"model": "gpt2-large", "batch_size": 8, "context_size": 1024}
    where = ({"backend": "mps", "framework": "torch"}, {"backend": "mlx-gpu", "framework": "mlx"})
    cases = [record("gpt2_pretraining", rate(4e12), config=config, **one) for one in where]
    first = drawn("gpt2_pretraining", cases).axes[0]
    assert first.get_title(loc="left") == "Model gpt2-large, batch size 8"
    places = {lines(first)[y]: x for x, y, *_ in marks(first)}
    expected = {"M2 Ultra (MLX, 2025)": 40.06e12 / 2.710, "A6000 (PyTorch, 2025)": 40.06e12 / 2.771}
    assert {name: places[name] for name in expected} == pytest.approx(expected, rel=1e-3)
    ours = [place for name, place in places.items() if name.startswith("Apple M9 GPU")]
    assert ours == [4e12, 4e12]


def test_a_cell_for_every_matmul_with_its_rate_and_interval_or_its_status():
    config = {"operation": "matvec", "shape": "4x4", "precision": "fp32"}
    too_big = record("blas", status="too-big", config=config)
    axis, bar = drawn("blas", [*PRODUCTS, too_big], heatmap.figure).axes
    rows = ["matmul 8×9×9", "matvec 4096×32000", "matvec 4×4", "vjp left 8×9"]
    assert lines(axis) == rows
    columns = [label.get_text().split("\n") for label in axis.get_xticklabels()]
    assert columns[0] == ["PyTorch", "cpu", "fp32"] and columns[-1] == ["MLX", "mlx-gpu", "bf16"]
    cells = numpy.ma.getdata(axis.collections[0].get_array()).reshape(len(rows), 9)
    assert list(cells[0]) == pytest.approx([1.234] * 3 + [50] * 3 + [700] * 3)
    assert words(axis)[0] == "1.23 ± 10 %"
    assert words(axis).count("too-big") == 1 and len(words(axis)) == 3 * 9 + 1
    assert bar.get_xlabel() == metrics.Metric("flops_per_s").axis
    assert drawn("blas", [], heatmap.figure).texts[0].get_text() == NOTHING


def test_memory_and_page_faults_of_every_load_and_none_of_a_smoke_test():
    smoke, near = trace("easy", profile="smoke"), trace("near")
    traced = [trace("easy", **where) for where in (BOTH[0], BOTH[2])]
    figure = drawn("memory", [*traced, near, smoke], traces.figure)
    names = ["GB, load easy", "1,000 faults, load easy", "GB, load near", "1,000 faults, load near"]
    assert [axis.get_ylabel() for axis in figure.axes] == names
    easy, faults, *_ = figure.axes
    assert curves(easy) == 2 * [([0, 1, 3], [5.0, 6.0, 7.0])]
    assert curves(faults) == 2 * [([0, 1, 3], pytest.approx([0, 0.1, 0.8]))]
    assert {line.get_color() for line in easy.lines} == {HERE_CPU, COLOURS["mlx", "gpu"]}
    key = {text.get_text() for text in figure.legends[0].get_texts()}
    assert key == {"PyTorch, cpu", "MLX, mlx-gpu", "footprint"}  # allocated was not always read
    assert drawn("memory", [smoke], traces.figure).texts[0].get_text() == NOTHING
    steps_s = traces.figure(None, [near], lambda config: "scenario 3", timed=True).axes[2]
    assert steps_s.get_ylabel() == "s per step, scenario 3" and curves(steps_s)[0][1][1:] == [2, 3]
