"""Figures: what is drawn is what the records hold, in the same colours everywhere, and every word can be read.

The article's numbers are typed in here, from the article; shares and rates are worked out by hand.
"""

from __future__ import annotations

import itertools
import math
import re
from xml.etree import ElementTree

import declared
import numpy
import pytest
from records import metric, product, rate, record, stream

from pomology.report import costs, summary
from pomology.report.figures import draw, memory, points, ranking, style
from pomology.report.figures.summary import peaks_figure
from pomology.report.ranking import Ranking

pytestmark = pytest.mark.filterwarnings("error")  # none may appear in a notebook

CPU, GPU, RIVAL = "M1 Ultra CPU", "M1 Ultra GPU", "2070 Super CUDA"
HERE_CPU, HERE_GPU = style.COLOURS["this machine's processor"], style.COLOURS["this machine's GPU"]
NOTHING = "Nothing was measured that can be drawn"


def trace(columns, rows, **more):
    return record(**more, memory_trace={"columns": ["step", *columns], "rows": rows, "warmup": 1})


MACHINE = [
    record(metrics={"epoch_s": metric(4.5, 3.6, 5.4), "compute_epoch_s": metric(0.9, 0.8, 1.0)}, chip="AMD Ryzen 9"),
    record(metrics={"epoch_s": metric(3e4, 1.5e4, 4.5e4)}, backend="mps"),
    record(status="out-of-memory", config={"batch_size": 5120}),
    record(metrics={"epoch_s": metric(0.002)}, config={"batch_size": 64}),
    record(metrics={"epoch_s": metric(1.0)}, config={"batch_size": 32}, profile="smoke"),
]
BOTH = ({}, {"backend": "mps"}, {"backend": "mlx-gpu", "framework": "mlx"})
RUN = [
    *(product(80e9 * times, **more) for times, more in zip((1, 20, 30), BOTH, strict=True)),
    *(stream(5e9 * times, **more) for times, more in zip((1, 20), BOTH, strict=False)),
    *(
        record(name, rate(4e9 * times, 3e9 * times, 5e9 * times), flops_per_step=4, bytes_per_step=number + 1, **more)
        for number, name in enumerate(("vae", "dcgan", "siamese", "cnn", "energy", "model_sizes"))
        for times, more in zip((2, 40, 60), BOTH, strict=True)
    ),
]
STEPS = [[0, 10.0, 5e9, None, 100], [1, 12.0, 6e9, None, 200], [3, 18.0, 7e9, None, 900]]
TRACED = [
    trace(["t_s", "footprint_bytes", "allocated_bytes", "page_faults"], STEPS, config={"load": load}, **more)
    for load in ("easy", "near")
    for more in BOTH
]
OPERATIONS = (("matmul", "8x9x9", {}), ("matvec", "4096x32000", {}), ("vjp", "8x9", {"about": {"wrt": "left"}}))
PRODUCTS = [
    product(value, precision, shape, 0.9 * value, 1.1 * value, operation=name, experiment="blas_torch", **where, **more)
    for value, where in zip((1.234e9, 5e10, 7e11), BOTH, strict=True)
    for precision in ("fp32", "fp16", "bf16")
    for name, shape, more in OPERATIONS
]
SOLD = record("gpt2_pretraining_torch", rate(5e12), config={"model": "gpt2-large", "batch_size": 4})
PRICED = costs.priced([SOLD, product(8e9)], 9, 3e3)


def drawn(experiment, records=()):
    """The figure, laid out as in a file."""
    if experiment == "ranking":
        made = ranking.ranking_figure(Ranking(records).places(GPU), GPU)
    elif experiment == "peaks":
        made = peaks_figure(summary.reaches(list(records)))
    else:
        made = draw(declared.of(experiment), list(records))
    style.styled(made.draw_without_rendering)()
    return made


def words(axis):
    return [text.get_text() for text in axis.texts]


def lines(axis):
    return [label.get_text() for label in axis.get_yticklabels()]


def titles(figure):
    return [axis.get_title(loc="left") for axis in figure.axes]


def marks(axis):
    """Of every mark: its place across, line, colour, whether it is filled, and area."""
    from matplotlib.colors import to_hex

    shown = []
    for collection in (one for one in axis.collections if hasattr(one, "get_sizes")):
        places, filled = collection.get_offsets(), len(collection.get_facecolors()) > 0
        colours = collection.get_facecolors() if filled else collection.get_edgecolors()
        for (x, y), rgba in zip(places, itertools.cycle(colours), strict=False):
            hue, area = to_hex(rgba).upper(), collection.get_sizes()[0]
            shown.append((float(f"{x:.9g}"), round(float(y)), hue, filled, area))
    return shown


def intervals(axis):
    ends = (tuple(float(f"{x:.6g}") for x in line.get_xdata()) for line in axis.lines)
    return sorted(tuple(sorted(pair)) for pair in ends if len(set(pair)) == 2)


# Devices and settings -------------------------------------------------------------------------------------------------


def test_a_panel_for_each_row_of_settings_and_a_line_for_each_device():
    figure = drawn("vae", MACHINE)
    assert titles(figure) == ["Batch size 128", "Batch size 5120", "Batch size 64"]
    first, second, third = figure.axes
    assert lines(first) == [CPU, GPU, RIVAL, "AMD Ryzen 9 CPU", "Apple M9 GPU"]
    assert words(first) == ["3.75 s", "8.76 s", "6.55 s", "4.5 s, computing 0.90 s", "30,000 s"]
    assert (lines(second)[-1], words(second)) == ("Apple M9 CPU", ["1.93 s", "2.00 s", "6.07 s", "out-of-memory"])
    assert (lines(third), words(third)) == (["Apple M9 CPU"], ["2.00 ms"])
    assert {axis.get_xscale() for axis in figure.axes} == {"log"} and "seconds per epoch" in third.get_xlabel()
    # Values and intervals are the records', and the computing alone is hollow.
    assert intervals(first) == [(0.8, 1.0), (3.6, 5.4), (1.5e4, 4.5e4)]
    shown = {(x, y): (hue, filled) for x, y, hue, filled, _ in marks(first)}
    expected = {(3.746, 0): (style.COLOURS["processors"], True)}
    expected |= {(8.76, 1): (style.COLOURS["Apple GPUs"], True)}
    expected |= {(6.555, 2): (style.COLOURS["other GPUs"], True)}
    expected |= {(4.5, 3): (HERE_CPU, True), (0.9, 3): (HERE_CPU, False), (3e4, 4): (HERE_GPU, True)}
    assert shown == expected
    # An interval that reaches down to nought is drawn to the edge.
    first = drawn("vae", [record(metrics={"epoch_s": metric(4.5, 0.0, 9.0)})]).axes[0]
    assert intervals(first) == [(pytest.approx(first.get_xlim()[0], rel=1e-5), 9.0)] and first.get_xlim()[0] > 0.1


def test_repeats_are_one_line_with_each_of_them_small_behind_their_mean():
    values = (2.0, 2.2, 2.42)
    repeats = [record(metrics={"epoch_s": metric(value)}, repeat=number) for number, value in enumerate(values)]
    first = drawn("vae", repeats).axes[0]
    assert words(first)[3:] == ["2.2 s"]
    # The geometric mean; t is 4.303 with 2 degrees of freedom, and the logarithms are 0.0953 apart.
    half = math.exp(4.303 * math.log(1.1) / math.sqrt(3))
    assert intervals(first) == [pytest.approx((2.2 / half, 2.2 * half), rel=1e-3)]
    (mean, area), *each = sorted(((x, area) for x, y, _, _, area in marks(first) if y == 3), key=lambda one: -one[1])
    assert mean == pytest.approx(2.2) and sorted(x for x, _ in each) == list(values)
    assert all(small < area / 4 for _, small in each)


def test_what_failed_in_the_article_is_shown_in_its_words():
    small, large = drawn("dcgan").axes
    assert words(small)[1] == words(large)[1] == "Runtime error (Bug)"
    panels = drawn("transformer_lm").axes
    assert [lines(axis) for axis in panels] == [[CPU, GPU, RIVAL]] * 5  # the row that is printed twice is drawn once
    assert "DNF (Out of Memory)" in words(panels[-1])
    assert panels[0].get_title(loc="left") == "Batch size 20, embedding size 200, layers 2, hidden size 200"


def test_parts_of_a_case_are_lines_of_their_own_and_what_is_too_big_is_shown_once():
    passes = {"forward_flops_per_s": metric(2e11), "backward_flops_per_s": metric(3e11)}
    large, small = ({"model": name, "batch_size": 1, "lora": False} for name in ("gpt2-large", "gpt2"))
    cases = [record("gpt2_finetuning", status="too-big", config=large)]
    cases += [record("gpt2_finetuning", passes, config=small, scaled=True)]
    cases += [record("gpt2_finetuning", status="too-big", config=small | {"batch_size": 2}, scaled=True)]
    figure = drawn("gpt2_finetuning", cases)
    assert titles(figure) == [f"Model {name}, batch size 1, lora False" for name in ("gpt2-large", "gpt2")]
    refused, scaled = figure.axes
    assert words(refused) == ["too-big"] and not marks(refused)
    assert lines(scaled) == ["Apple M9 CPU, forward", "Apple M9 CPU, backward"]
    assert [x for x, *_ in marks(scaled)] == [2e11, 3e11]


def test_published_times_stand_beside_as_operations_a_second():
    config = {"model": "gpt2-large", "batch_size": 8, "context_size": 1024}
    where = ({"backend": "mps", "framework": "torch"}, {"backend": "mlx-gpu", "framework": "mlx"})
    cases = [record(f"gpt2_pretraining_{one['framework']}", rate(4e12), config=config, **one) for one in where]
    first = drawn("gpt2_pretraining", cases).axes[0]
    assert first.get_title(loc="left") == "Model gpt2-large, batch size 8, context 1024"
    places = {lines(first)[y]: x for x, y, *_ in marks(first)}
    expected = {"M2 Ultra (MLX)": 40.06e12 / 2.710, "A6000 (PyTorch)": 40.06e12 / 2.771}
    assert {name: places[name] for name in expected} == pytest.approx(expected, rel=1e-3)
    assert places["Apple M9 GPU, MLX"] == places["Apple M9 GPU, PyTorch"] == 4e12


def test_cpu_and_gpu_of_a_network_share_a_panel():
    config = {"model": "resnet50", "mode": "training"}
    cases = [record("device_check", rate(125e9), config=config | {"batch_size": 4}, scaled=True)]
    cases += [record("device_check", rate(2e12), config=config | {"batch_size": 64}, backend="mps")]
    (axis,) = drawn("device_check", cases).axes
    assert lines(axis) == ["Apple M9 CPU, batch size 4", "Apple M9 GPU, batch size 64"]
    assert [x for x, *_ in marks(axis)] == [125e9, 2e12]


def test_every_priced_device_is_drawn_once_and_each_pass():
    peak, achieved = drawn("costs", PRICED).axes
    assert (len(lines(peak)), len(lines(achieved))) == (7 + 1, 7 + 1)
    assert 39e12 / 4650 in [pytest.approx(x) for x, *_ in marks(peak)]
    assert [hue for _, _, hue, *_ in marks(peak)].count(HERE_CPU) == 1


def test_of_very_many_settings_the_axis_counts_those_that_are_not_drawn(monkeypatch):
    monkeypatch.setattr(points, "MOST_PANELS", 2)
    many = [record(metrics={"epoch_s": metric(1.0)}, config={"batch_size": size}) for size in range(1000, 2300)]
    figure = drawn("vae", many)
    assert len(figure.axes) == 2 and figure.axes[-1].get_xlabel().endswith("1,300 more settings are in the table only")


# Products -------------------------------------------------------------------------------------------------------------


def test_a_cell_for_every_product_with_its_rate_and_interval_or_its_status():
    config = {"operation": "matvec", "shape": "4x4", "precision": "fp32"}
    figure = drawn("blas", [*PRODUCTS, record("blas_torch", status="too-big", config=config)])
    *panels, bar = figure.axes
    assert [title.partition(" (")[0] for title in titles(figure)[:3]] == [
        *("Matrix times matrix", "Matrix times vector", "Vector-Jacobian product")
    ]
    assert [lines(axis) for axis in panels] == [["8×9×9"], ["4096×32000", "4×4"], ["8×9 ∂a"]]
    columns = [label.get_text().split("\n") for label in panels[-1].get_xticklabels()]
    assert columns[0] == ["PyTorch", "cpu", "fp32"] and columns[-1] == ["MLX", "mlx-gpu", "bf16"] and len(columns) == 9
    cells = numpy.ma.getdata(panels[0].collections[0].get_array()).ravel()
    assert list(cells) == pytest.approx([1.234] * 3 + [50] * 3 + [700] * 3)
    assert words(panels[0])[0] == "1.23\n± 10 %"
    assert words(panels[1]).count("too-big") == 1 and len(words(panels[1])) == 9 + 1
    assert bar.get_xlabel() == declared.of("blas").drawn.axis


# Memory ---------------------------------------------------------------------------------------------------------------


def curves(axis):
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in axis.lines if len(line.get_xdata())]


def test_memory_and_page_faults_of_every_load_and_none_of_a_smoke_test():
    smoke = trace(["footprint_bytes"], [[0, 1e9], [1, 2e9]], config={"load": "easy"}, profile="smoke")
    figure = drawn("memory_over_time", [TRACED[0], TRACED[2], TRACED[3], smoke])
    assert titles(figure)[:2] == list(memory.LOADS.values())
    easy, near, faults, _ = figure.axes
    assert [axis.get_ylabel() for axis in (easy, faults)] == ["Memory (GB)", "Page faults (thousands)"]
    assert curves(easy) == 2 * [([0, 1, 3], [5.0, 6.0, 7.0])] and curves(near) == curves(easy)[:1]
    assert curves(faults) == 2 * [([0, 1, 3], pytest.approx([0, 0.1, 0.8]))]
    assert {line.get_color() for line in easy.lines if len(line.get_xdata())} == {HERE_CPU, style.SHADES["mlx", "gpu"]}
    key = [text.get_text() for text in figure.legends[0].get_texts()]
    assert key == ["PyTorch, cpu", "MLX, mlx-gpu", "footprint"]  # allocated was not read in every step
    assert drawn("memory_over_time", [smoke]).texts[0].get_text() == NOTHING


def test_seconds_between_the_ends_of_steps_above_the_memory():
    rows = [[0, 10.0, 5e9], [1, 12.0, 6e9], [3, 18.0, 7e9]]
    case = trace(["t_s", "footprint_bytes"], rows, config={"model": "whisper-large", "batch_size": 32})
    above, below = memory.passes_figure([case, record()]).axes
    assert curves(above) == [([1, 3], [2.0, 3.0])] and curves(below) == [([0, 1, 3], [5.0, 6.0, 7.0])]
    assert above.get_ylabel() == "Seconds per step" and "whisper-large, batch 32" in above.get_title(loc="left")
    assert memory.passes_figure([record()]).texts[0].get_text() == NOTHING


# Roofs ----------------------------------------------------------------------------------------------------------------


def test_roofs_stand_where_they_were_measured():
    for experiment in ("blas", "roofline"):
        assert drawn(experiment).texts[0].get_text() == NOTHING
    case = record("vae", rate(10e9, 8e9, 12e9), flops_per_step=4 * 10**9, bytes_per_step=10**9)
    (axis,) = drawn("roofline", [product(80e9), stream(5e9), case]).axes
    flat, slope = [line for line in axis.lines if len(line.get_xdata())]
    assert slope.get_ydata()[1] == pytest.approx(80e9) and slope.get_xdata()[1] == pytest.approx(16)  # 80 / 5
    assert list(flat.get_ydata()) == [80e9, 80e9] and flat.get_xdata()[0] == pytest.approx(16)
    assert [(x, y) for x, y, *_ in marks(axis)] == [(4, 10e9)]
    assert [[*map(tuple, one.vertices)] for one in axis.collections[-1].get_paths()] == [[(4, 8e9), (4, 12e9)]]
    assert "vae, PyTorch, fp32: 50 %" in words(axis)  # of 4 x 5 = 20 GFLOP/s
    left, right, low, high = *axis.get_xlim(), *axis.get_ylim()
    assert left < 4 < right and low < 10e9 < high
    for part in ([product(8e9)], [product(8e9), stream(8e9)], [record("vae", rate(1e9))]):
        assert len(drawn("roofline", part).axes) == 1


# All devices ----------------------------------------------------------------------------------------------------------


def test_the_summary_has_every_device_with_its_peak_and_share():
    figure = drawn("summary", RUN)
    vae = figure.axes[titles(figure).index("Variational autoencoder (VAE)")]
    assert lines(vae)[-3:] == ["Apple M9 CPU, PyTorch", "Apple M9 GPU, PyTorch", "Apple M9 GPU, MLX"]
    assert words(vae)[-3:] == ["10 %", "6.7 %", "10 %"] and "no peak known" in words(vae)
    here = {(x, y) for x, y, hue, *_ in marks(vae) if hue in (HERE_CPU, HERE_GPU)}
    assert {x for x, _ in here} == {8e9, 160e9, 240e9}
    assert (6e9, 10e9) in intervals(vae)
    peaks = [line.get_xdata()[0] for line in vae.lines if line.get_marker() == "|"]
    assert {80e9, 2400e9} <= set(peaks)
    assert titles(figure)[-1] == "Timed on this machine only"


def test_every_device_is_a_row_of_the_peaks_with_its_name_and_its_median():
    """VAE's epoch is 0.1968 TFLOP: 12 of 80 GFLOP/s in 16.4 s. The other two are computing alone."""
    about = {"config": {"batch_size": 5120}}
    whole = record("vae", rate(8e9) | {"epoch_s": metric(16.4)}, **about)
    gpu = [record(name, rate(of), backend="mps", **about) for name, of in (("vae", 1e10), ("dcgan", 3e10))]
    records = [product(80e9), product(1e12, backend="mps"), whole, *gpu]
    here, theirs = drawn("peaks", records).axes
    assert lines(here) == ["Apple M9 CPU", "Apple M9 GPU"] and "M1 Ultra GPU" in lines(theirs)
    assert words(here) == ["15 %, one model", "2.0 %, median of 2 models, computing alone"]
    shown = {(round(x, 3), y): filled for x, y, _, filled, _ in marks(here)}
    assert shown == {(0.15, 0): True, (0.1, 0): False, (0.01, 1): False, (0.03, 1): False}
    assert {line.get_xdata()[0] for line in here.lines if line.get_marker() == "|"} == {1}
    said = summary.slowest(summary.reaches(records))
    assert said.startswith("The Apple M9 GPU is slow for its peak: it reaches 1.0 %")
    assert "the Apple M9 CPU 10 % of its own (one model, computing alone)" in said


# Of all figures -------------------------------------------------------------------------------------------------------

SHOWN = {"vae": MACHINE, "dcgan": [], "transformer_lm": [], "costs": PRICED, "blas": PRODUCTS}
SHOWN |= {"memory_over_time": TRACED, "roofline": RUN, "summary": RUN, "peaks": RUN, "ranking": MACHINE}


def readable(figure):
    """Every text of a figure that is seen."""
    texts = list(figure.texts)
    for axis in figure.axes:
        texts += [axis.title, axis._left_title, axis.xaxis.label, axis.yaxis.label, *axis.texts]
        for side, (low, high) in ((axis.xaxis, axis.get_xlim()), (axis.yaxis, sorted(axis.get_ylim()))):
            ticks = side.get_major_ticks()
            texts += [tick.label1 for tick in ticks if low <= tick.get_loc() <= high and tick.label1.get_visible()]
    for legend in figure.legends:
        texts += legend.get_texts()
    return [text for text in texts if text.get_visible() and text.get_text()]


@pytest.mark.parametrize("experiment", SHOWN)
def test_no_word_leaves_the_figure_or_stands_on_another(experiment):
    from matplotlib.text import Text

    figure = drawn(experiment, SHOWN[experiment])
    # Of the words alone: an annotation's own extent takes in its line.
    boxes = [(text.get_text(), Text.get_window_extent(text)) for text in readable(figure)]
    assert len(boxes) > 8
    for name, box in boxes:
        assert -1 <= box.x0 < box.x1 <= figure.bbox.x1 + 1 and -1 <= box.y0 < box.y1 <= figure.bbox.y1 + 1, name
    for (name, box), (other, place) in itertools.combinations(boxes, 2):
        across = min(box.x1, place.x1) - max(box.x0, place.x0)
        assert across <= 1 or min(box.y1, place.y1) - max(box.y0, place.y0) <= 2, f"{name} and {other}"


def test_a_device_has_one_colour_and_one_mark_in_every_figure():
    from matplotlib.colors import to_hex

    shapes = {}
    for experiment in ("vae", "costs", "summary"):
        # Not laid out, which takes seconds.
        figure = draw(declared.of(experiment), SHOWN[experiment])
        for collection in (one for axis in figure.axes for one in axis.collections):
            for rgba, path in zip(collection.get_facecolors(), collection.get_paths(), strict=False):
                shapes.setdefault(to_hex(rgba).upper(), set()).add(path.vertices.tobytes())
    assert set(shapes) == set(style.COLOURS.values()) - {style.GREY, style.COLOURS["other people's machines"]}
    assert all(len(paths) == 1 for paths in shapes.values()) and len(set.union(*shapes.values())) == len(shapes)
    roofs = {hue for axis in draw(declared.of("roofline"), RUN).axes for _, _, hue, *_ in marks(axis)}
    assert roofs == {HERE_CPU, HERE_GPU, style.SHADES["mlx", "gpu"]}


def test_the_svg_is_the_same_each_time_small_and_refers_to_nothing_outside(tmp_path):
    from matplotlib import _pylab_helpers

    # The layout solver's last digits depend on where in memory things happen to be.
    first, place = style.svg(draw(declared.of("vae"), MACHINE)), tmp_path / "figures" / "vae-epoch.svg"
    assert style.save(draw(declared.of("vae"), MACHINE), place).data.lstrip().startswith("<svg")
    assert len(first) < 32_000
    # A notebook would show what pyplot keeps a second time, and a Mac would open a window for it.
    assert not _pylab_helpers.Gcf.figs
    nasty = record(metrics={"epoch_s": metric(1.0)}, chip='</text><script>alert("$1")</script> $\\frac{')
    for text in (first, style.svg(draw(declared.of("vae"), [nasty]))):
        root = ElementTree.fromstring(text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        for element in root.iter():
            assert element.tag.rsplit("}")[-1] not in {"script", "image", "foreignObject", "iframe", "a"}
            for name, value in element.attrib.items():
                assert not name.startswith("on")
                assert value.startswith("#") if name.endswith("href") else True
                assert all(place.startswith("#") for place in re.findall(r"url\(([^)]*)\)", value))


def test_rate_over_time_and_what_was_traced_of_heat():
    """A GPU that keeps 70 % of its rate from the fourth minute on, at 75 °C; nothing is drawn of what nobody told."""
    blocks = {"step_s": {"steady": [[60, 60.0]] * 3 + [[42, 60.0]] * 7}}
    samples = [[60.0 * k, 1e9, None, 75.0 if k > 3 else 50.0, 90.0, 1.5e9 if k > 3 else 2e9, None] for k in range(11)]
    about = {"backend": "cuda", "blocks": blocks, "trace": samples, "config": {"minutes": 10}}
    metrics = {"step_first_s": metric(1.0), "rate_left": metric(0.7)}
    figure = drawn("sustained_load", [record("sustained_load", metrics, **about)])
    panels = {axis.get_ylabel(): axis for axis in figure.axes}
    assert list(panels) == ["% of the first rate", "Temperature (°C)", "Clock (GHz)"]
    lines = {label: axis.lines[0] for label, axis in panels.items()}
    assert lines["% of the first rate"].get_xdata().tolist() == [k + 0.5 for k in range(10)]  # middles of the windows
    assert lines["% of the first rate"].get_ydata().tolist() == pytest.approx([100] * 3 + [70] * 7)
    assert lines["Clock (GHz)"].get_ydata().tolist() == [2.0] * 4 + [1.5] * 7
    assert {line.get_color() for line in lines.values()} == {HERE_GPU}
    old = [sample[:5] for sample in samples]  # as traces were before
    figure = drawn("sustained_load", [record("sustained_load", metrics, **about | {"trace": old})])
    assert [axis.get_ylabel() for axis in figure.axes] == ["% of the first rate", "Temperature (°C)"]
