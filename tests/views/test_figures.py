"""Figures of views show the values of the records, in the same colours as those of articles."""

import numpy
import pandas
import pytest
from drawings import (
    BOTH,
    COLOURS,
    HERE_CPU,
    MACHINE,
    crossings,
    curves,
    drawn,
    lines,
    markup,
    words,
)
from records import product, rate, record, run_of

from pomology.extras.prediction import validation
from pomology.results import metrics
from pomology.views import costs, heat_map, memory_traces, ranking
from pomology.views.roofline.figure import roofline_figure
from pomology.views.roofline.roofs import roofs

pytestmark = pytest.mark.filterwarnings("error")  # warnings would appear in notebooks

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


def test_a_cell_for_every_matmul_with_its_rate_and_what_has_none_is_counted():
    config = {"operation": "matvec", "shape": "4x4", "precision": "fp32"}
    too_big = record("blas", status="too-big", config=config)
    cpu, gpu, bar = drawn("blas", [*PRODUCTS, too_big], heat_map.figure).axes
    assert [axis.get_title(loc="left") for axis in (cpu, gpu)] == ["CPU", "GPU"]
    rows = ["matmul 8×9×9", "matvec 4096×32000", "matvec 4×4", "vjp left 8×9"]
    assert lines(cpu) == rows and lines(gpu) == [rows[0], rows[1], rows[3]]
    precisions = [label.get_text() for label in gpu.get_xticklabels()]
    assert precisions == 2 * ["fp32", "fp16", "bf16"]
    frameworks = [label.get_text() for label in gpu.get_xticklabels(minor=True)]
    assert frameworks == ["PyTorch", "MLX"]
    for axis, count, rates in ((cpu, 4, [1.234] * 3), (gpu, 3, [50] * 3 + [700] * 3)):
        cells = numpy.ma.getdata(axis.collections[0].get_array()).reshape(count, len(rates))
        assert list(cells[0]) == pytest.approx(rates)
    assert words(cpu)[0] == "1.23" and words(cpu).count(heat_map.WITHOUT) == 1
    assert len(words(cpu)) == 3 * 3 + 1 and len(words(gpu)) == 3 * 6
    assert bar.get_title(loc="left") == f"{heat_map.WITHOUT}: 1 too big"
    assert bar.get_xlabel() == metrics.Metric("flops_per_s").axis.replace("FLOP", "GFLOP")
    assert drawn("blas", [], heat_map.figure) is None


def test_a_number_that_is_wider_than_its_cell_is_a_bound():
    slow = product(4e6, shape="2x3x3", experiment="blas")
    cpu, _ = drawn("blas", [PRODUCTS[0], slow], heat_map.figure).axes
    assert words(cpu) == ["1.23", "< 0.01"]


def test_memory_and_page_faults_of_every_load_and_none_of_a_smoke_test():
    smoke, near = trace("easy", profile="smoke"), trace("near")
    traced = [trace("easy", **where) for where in (BOTH[0], BOTH[2])]
    figure = drawn("memory", [*traced, near, smoke], memory_traces.figure)
    names = ["GB, load easy", "page faults, load easy", "GB, load near", "page faults, load near"]
    # A framework has panels of its own, since it may make far fewer steps; MLX comes last.
    names = [f"{name}, PyTorch" for name in names] + [f"{name}, MLX" for name in names[:2]]
    assert [axis.get_ylabel().replace("\n", " ") for axis in figure.axes] == names
    easy, faults, *_, easy_mlx, _ = figure.axes
    assert curves(easy) == curves(easy_mlx) == [([0, 1, 3], [5.0, 6.0, 7.0])]
    assert curves(faults) == [([0, 1, 3], [0, 100, 800])]
    colours = [axis.lines[0].get_color() for axis in (easy, easy_mlx)]
    assert colours == [HERE_CPU, COLOURS["mlx", "gpu"]]
    key = {text.get_text() for text in figure.legends[0].get_texts()}
    assert key == {"PyTorch, cpu", "MLX, mlx-gpu", "footprint"}  # allocated was not always read
    assert drawn("memory", [smoke], memory_traces.figure) is None
    grown, *_ = drawn("memory", traced[:1], memory_traces.growth_figure).axes
    assert grown.get_ylabel().replace("\n", " ") == "MB since step 0, smoothed, load easy"
    assert curves(grown) == [([0, 1, 3], [0.0, 1000.0, 2000.0])]
    steps_s = memory_traces.figure(None, [near], lambda config: "scenario 3", timed=True).axes[2]
    assert steps_s.get_ylabel() == "s per step, scenario 3" and curves(steps_s)[0][1][1:] == [2, 3]


def predictions():
    columns = {"step_s": [2e-4, 0.03, 7.0], "error": [0.1, -0.2, 0.3]}
    times = pandas.DataFrame(columns | {"maker": ["apple", "nvidia", "nvidia"]})
    own = {"A chip CPU: peaks alone": times, "A chip CPU: calibrated on other workloads": times}
    return validation.figure(times, "title", own)


def roofline():
    step = record(metrics=rate(5e9), flops_per_step=2 * 10**9, bytes_per_step=10**9)
    return roofline_figure([step], roofs([product(100e9)]))


def ranking_of_devices():
    return ranking.ranking_figure([run_of(*MACHINE)], "M1 Ultra GPU")


def prices():
    rates = {"peak_flops_per_s": 2e12, "flops_per_s": 9e10, "batch_size": 4}
    device = {"device": "one", "maker": "here", "role": "gpu", "work": "gpt2-large"} | rates
    device["framework"] = "MLX"
    return costs.figure(pandas.DataFrame([device | {"price_usd": price} for price in (9, 3e4)]))


OTHERS = [predictions, roofline, ranking_of_devices, prices]


@pytest.mark.parametrize("draw", OTHERS)
def test_ticks_of_other_figures_are_plain_numbers(draw):
    figure = draw()
    figure.draw_without_rendering()
    assert figure.axes and markup(figure) == [] and crossings(figure) == []
