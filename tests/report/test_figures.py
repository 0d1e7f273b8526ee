"""Figures show the values of the records, in the same colours everywhere.

This file has the article's numbers as typed in; shares and rates are computed by hand.
"""

import io
import os
import re
import subprocess
import sys

import matplotlib
import numpy
import PIL.Image
import pytest
from bs4 import BeautifulSoup
from drawings import (
    COLOURS,
    HERE_CPU,
    HERE_GPU,
    MACHINE,
    TIMES,
    drawn,
    intervals,
    lines,
    marks,
    remark,
    words,
)
from notebook_code import PATHS
from records import metric, rate, record

from pomology.measure.estimate import Estimate
from pomology.paths import root
from pomology.report import figures
from pomology.report.article import Declaration
from pomology.report.figures import (
    MOST_BEYOND,
    MOST_LINES,
    VARIABLES,
    article_figure,
    png,
    svg,
)

pytestmark = pytest.mark.filterwarnings("error")  # warnings would appear in notebooks

CPU, GPU, RIVAL = "M1 Ultra CPU", "M1 Ultra GPU", "2070 Super CUDA"


def test_a_panel_for_each_row_of_settings_and_a_line_for_each_device():
    figure = drawn("vae", MACHINE)
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert titles == ["Batch size 128", "Batch size 5120", "Batch size 64"]
    first, second, third = figure.axes
    own = ["AMD $\\frac{$ CPU, PyTorch", "Apple M9 GPU, PyTorch"]
    assert lines(first) == [CPU, GPU, RIVAL, *own]
    assert words(first) == [
        "3.75 s",
        "8.76 s",
        "6.55 s",
        "4.50 s; open: 0.900 s",
        "30,000 s",
    ]
    # What has no value has no line, and is counted below.
    assert lines(second) == [CPU, GPU, RIVAL] and words(second) == ["1.93 s", "2.00 s", "6.07 s"]
    assert remark(figure) == "cases of this machine without a value: 1 out of memory"
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


def test_values_that_differ_little_are_on_an_axis_from_zero():
    """Table 5: between 108.58 and 212.39 J, of which a logarithmic axis would have few ticks."""
    axis = drawn("energy").axes[0]
    assert axis.get_xscale() == "linear" and axis.get_xlim()[0] == 0
    ticks = [label.get_text() for label in axis.get_xticklabels()]
    assert ticks[0] == "0" and len(ticks) >= 4
    assert {x for x, *_ in marks(axis)} == {114.86, 129.30, 212.39, 108.58}
    far = {"energy_gpu_j_per_step": metric(434.4, unit="J")}  # over 4 times the least
    config = {"model": "whisper-medium", "batch_size": 4}
    axis = drawn("energy", [record("energy", far, config, backend="mps")]).axes[0]
    assert axis.get_xscale() == "log" and axis.get_xlim()[0] > 0


def test_ratios_are_on_a_logarithmic_axis():
    """Half and twice as fast are at equal distances from 1."""
    halves = [Estimate(0.5), Estimate(1.5)]
    line = figures.Line("a", ("measured", "cpu"), "", halves)
    (axis,) = figures.ratios_figure({"": [line]}, "times as fast").axes
    assert axis.get_xscale() == "log"
    (axis,) = figures.points_figure({"": [line]}, "seconds").axes
    assert axis.get_xscale() == "linear"


def test_a_wide_interval_is_cut_with_an_arrow_and_no_panel_is_empty():
    wide = record("vae", {"epoch_s": metric(4.0, 0.01, 4000.0)})
    figure = drawn("vae", [wide, record("vae", {}, {"batch_size": 9}, status="too-slow")])
    first, second = figure.axes
    ends = (1.933 / MOST_BEYOND, 8.76 * MOST_BEYOND)
    assert intervals(first) == [pytest.approx(ends, rel=1e-3)]
    arrows = {line.get_marker() for line in first.lines} & {"<", ">"}
    assert arrows == {"<", ">"} and words(second)
    assert "without a value: 1 too slow" in remark(figure)


def test_a_crowded_panel_has_this_machine_between_its_neighbours():
    images = {"throughput": metric(9.5, 9.4, 9.6, "images/s")}
    around = record("resnet50", images, {"batch_size": 64, "precision": "fp32"})
    figure = drawn("resnet50", [around])
    (axis,) = figure.axes
    names, values = lines(axis), [x for x, *_ in marks(axis)]
    assert len(names) <= MOST_LINES and values == sorted(values, reverse=True)
    own = names.index("Apple M9 CPU, PyTorch, batch size 64")
    assert 0 < own < len(names) - 1 and values[own] == 9.5
    assert "9.50 images/s" in words(axis) and "images per second (higher is better)" in (
        axis.get_xlabel()
    )
    assert "more devices in the table" in remark(figure)


def test_many_devices_are_ordered_by_their_values_and_few_as_in_the_article():
    config = {"batch_size": 32, "image_size": 224}
    case = record("rasbt_vgg16", {"flops_per_s": metric(1e12, unit="FLOP/s")}, config)
    (axis,) = drawn("rasbt_vgg16", [case], figures.rates_figure).axes
    rates = [x for x, *_ in marks(axis)]
    assert len(rates) > figures.IN_ORDER and rates == sorted(rates, reverse=True)
    assert lines(axis)[rates.index(1e12)].startswith("Apple M9 CPU")
    epoch = record("rasbt_vgg16", {"epoch_s": metric(4.5)}, config)
    (axis,) = drawn("rasbt_vgg16", [epoch]).axes
    times = [x for x, *_ in marks(axis)]
    assert times == sorted(times)
    first, _ = drawn("vae", [record("vae")]).axes
    assert lines(first)[:3] == ["M1 Ultra CPU", "M1 Ultra GPU", "2070 Super CUDA"]


def test_over_a_setting_each_device_is_a_line():
    about = Declaration("vae", over="batch_size", columns=["epoch_s"])
    records = [
        record(
            "vae", {"epoch_s": metric(seconds, 0.9 * seconds, 1.1 * seconds)}, {"batch_size": size}
        )
        for size, seconds in ((5120, 3.0), (128, 4.0))
    ]
    failed = record("vae", {}, {"batch_size": 9}, status="too-slow")
    figure = article_figure(about, [*records, failed])
    (axis,) = figure.axes
    curves = [(*map(tuple, (line.get_xdata(), line.get_ydata())),) for line in axis.lines]
    assert ((128, 5120), (4.0, 3.0)) in curves
    assert ((128, 5120), (3.746, 1.933)) in curves  # the article's CPU
    assert ((128, 128), (3.6, 4.4)) in curves  # an interval
    assert axis.get_xlabel() == "batch size"
    # The remark is part of the key, so neither lies on the other.
    title = figure.legends[0].get_title().get_text()
    assert title == "cases of this machine without a value: 1 too slow"
    names = [text.get_text() for text in axis.figure.legends[0].get_texts()]
    assert {"M1 Ultra CPU", "2070 Super CUDA", "Apple M9 CPU, PyTorch"} <= {*names}


def test_of_two_frameworks_on_a_device_the_second_has_open_markers():
    """A single point has no line whose dashes would tell it."""
    about = Declaration("vae", over="batch_size", columns=["epoch_s"])
    both = [
        record("vae", {"epoch_s": metric(2.0)}, {"batch_size": 128}, framework=framework)
        for framework in ("torch", "mlx")
    ]
    figure = article_figure(about, both)
    own = [line for line in figure.axes[0].lines if line.get_color() == HERE_CPU]
    assert [line.get_markerfacecolor() for line in own] == [HERE_CPU, "none"]
    key = {text.get_text(): handle for text, handle in zip(*keys_of(figure), strict=True)}
    assert key["Apple M9 CPU, MLX"].get_markerfacecolor() == "none"


def keys_of(figure):
    """Return the texts and the handles of a figure's key."""
    legend = figure.legends[0]
    return legend.get_texts(), legend.legend_handles


def test_a_framework_without_a_loader_has_an_open_marker_and_says_so():
    epoch = {"compute_epoch_s": metric(2.0, 1.9, 2.1)}
    mlx = record(metrics=epoch, backend="mlx-gpu", framework="mlx")
    first, _ = drawn("vae", [mlx]).axes
    assert lines(first)[-1] == "Apple M9 GPU, MLX" and words(first)[-1] == "2.00 s, compute only"
    assert marks(first)[-1] == (2.0, 3, HERE_GPU, "none") and intervals(first) == [(1.9, 2.1)]


def test_published_times_are_shown_as_flops_per_second():
    config = {"model": "gpt2-large", "batch_size": 8, "context_size": 1024}
    where = ({"backend": "mps", "framework": "torch"}, {"backend": "mlx-gpu", "framework": "mlx"})
    cases = [record("gpt2_pretraining", rate(4e12), config=config, **one) for one in where]
    first = drawn("gpt2_pretraining", cases).axes[0]
    assert first.get_title(loc="left") == "gpt2-large"
    places = {lines(first)[y]: x for x, y, *_ in marks(first)}
    # The article trains it at several batch sizes, which its rows therefore have.
    expected = {
        "M2 Ultra (MLX, 2025), batch size 8": 40.06e12 / 2.710,
        "A6000 (PyTorch, 2025), batch size 8": 40.06e12 / 2.771,
    }
    assert {name: places[name] for name in expected} == pytest.approx(expected, rel=1e-3)
    ours = [place for name, place in places.items() if name.startswith("Apple M9 GPU")]
    assert ours == [4e12, 4e12]


def test_a_smaller_batch_is_drawn_by_its_flops_per_second():
    config = {"batch_size": 2, "image_size": 224}
    values = {"epoch_s": metric(28_500.0), "flops_per_s": metric(152e9, unit="FLOP/s")}
    case = record("rasbt_vgg16", config=config, scaled=True, metrics=values)
    own = lambda draw: [  # noqa: E731
        text
        for axis in drawn("rasbt_vgg16", [case], draw).axes
        for label, text in zip(lines(axis), words(axis), strict=True)
        if "batch size 2" in label
    ]
    assert own(figures.rates_figure) == ["152 GFLOP/s"]
    assert own(figures.article_figure) == []  # its epoch is no epoch of batches of 32


def test_passes_have_lines_and_a_framework_without_their_times_one_of_the_step():
    config = {"model": "gpt2", "batch_size": 4, "lora": True, "offload": "none"}
    rates = {name: metric(1e12, unit="FLOP/s") for name in ("forward", "backward")}
    passes = {f"{name}_flops_per_s": value for name, value in rates.items()} | rate(2e12)
    torch = record("gpt2_finetuning", passes, config=config, backend="mps")
    mlx = record("gpt2_finetuning", rate(3e12), config=config, backend="mlx-gpu", framework="mlx")
    (panel,) = drawn("gpt2_finetuning", [torch, mlx]).axes
    shown = dict(zip(lines(panel), words(panel), strict=True))
    assert list(shown.items())[-3:] == [
        ("Apple M9 GPU, PyTorch, forward", "1.00 TFLOP/s"),
        ("Apple M9 GPU, PyTorch, backward", "1.00 TFLOP/s"),
        ("Apple M9 GPU, MLX, step", "3.00 TFLOP/s"),
    ]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_ticks_of_the_figure_of_published_values_are_plain_numbers(path):
    drawn(path.stem)  # which looks at them


HOSTILE = """
text.usetex: True
axes.prop_cycle: cycler("color", ["k"])
font.size: 30
svg.fonttype: path
savefig.bbox: tight
savefig.dpi: 10
savefig.transparent: True
path.simplify_threshold: 1
backend: tkagg
"""
DRAW = """
import hashlib, locale, sys
if sys.argv[1:]:  # as where a decimal is a comma
    locale.localeconv = lambda: {"decimal_point": ",", "thousands_sep": ".", "grouping": [3, 0]}
from drawings import MACHINE, drawn
from pomology.report import figures
for name in ("vae", "kernel_launch"):
    figure = drawn(name, MACHINE)
    pictures = figures.svg(figure).encode(), figures.png(figure).data
    print(*(hashlib.sha256(picture).hexdigest() for picture in pictures))
"""


@pytest.mark.long
def test_a_matplotlibrc_and_a_locale_change_no_byte_of_a_figure(tmp_path):
    """The user's own file counts for JupyterLab and is not read in a run."""
    (tmp_path / "matplotlibrc").write_text(HOSTILE)
    (tmp_path / "own").mkdir()
    unimportable = f"{HOSTILE}axes.formatter.use_locale: True\n"
    (tmp_path / "own" / "matplotlibrc").write_text(unimportable)
    paths = {
        "PYTHONPATH": os.pathsep.join(str(root() / name) for name in ("lib", "tests", "setup"))
    }
    user = {"MATPLOTLIBRC": str(tmp_path), "MPLBACKEND": "tkagg", "LC_ALL": "de_DE.UTF-8"}
    user |= {"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "10"}

    def start(environment: dict[str, str], *arguments: str) -> subprocess.Popen:
        command = [sys.executable, "-c", DRAW, *arguments]
        pipes = {"stdout": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, env=os.environ | paths | environment, **pipes)

    in_a_run = user | {"MPLCONFIGDIR": str(tmp_path / "own")} | VARIABLES
    started = start({}), start(user, "comma"), start(in_a_run, "comma")
    plain, in_lab, of_run = [process.communicate()[0] for process in started]
    assert plain == in_lab == of_run and len(set(plain.split())) == 4


def test_a_users_settings_of_matplotlib_change_no_figure():
    plain = svg(drawn("vae", MACHINE))
    changed = {"text.usetex": True, "lines.linewidth": 9.0, "axes.grid": True, "font.size": 30.0}
    matplotlib.rcParams.update(changed)
    assert svg(drawn("vae", MACHINE)) == plain


def crossed():
    """A figure whose words lie on a dark line."""
    figure = figures.figure_of(3, 1)
    axis = figure.subplots()
    axis.plot([0, 1], [0.5, 0.5], color="black", linewidth=1)
    axis.text(0.3, 0.5, "words", va="center")
    return figure, axis


def test_all_text_of_a_drawing_has_a_halo_in_light_and_dark_mode():
    drawing = svg(drawn("vae", MACHINE))
    (style,) = BeautifulSoup(drawing, "html.parser").find_all("style")
    texts = BeautifulSoup(drawing, "html.parser").find_all("text")
    assert {"4.50 s; open:", "0.900 s"} <= {text.get_text() for text in texts}  # two lines
    light, dark = style.get_text().split("@media screen and (prefers-color-scheme: dark)")
    for name in {name for text in texts for name in text["class"]}:
        assert re.search(rf"\.{name} {{[^}}]*fill: {figures.INK}", light)
        for mode in (light, dark):
            assert re.search(rf"text\.{name}\b[^{{]*{{[^}}]* stroke: #", mode)
    assert "paint-order: stroke" in light and "stroke: #ffffff" in light
    assert "#ffffff" not in dark


def test_a_drawing_is_compact_and_has_all_its_words_and_marks():
    hostile = 'x" style="fill: red" id="i0" 0.123456 url(#i1)'
    figure = drawn("vae", [record(metrics=TIMES, chip=hostile)])
    drawing = svg(figure)
    whole = io.StringIO()
    figure.savefig(whole, format="svg")
    original = whole.getvalue()[whole.getvalue().index("<svg") :]
    assert len(drawing) < len(original) / 2
    compact, plain = (BeautifulSoup(text, "html.parser") for text in (drawing, original))
    for name in ("text", "path", "use", "clippath"):
        assert len(compact.find_all(name)) == len(plain.find_all(name)) > 0
    words = [text.get_text() for text in compact.find_all("text")]
    assert words == [text.get_text() for text in plain.find_all("text")]
    assert any("0.123456" in text for text in words)
    names = {one["id"] for one in compact.find_all(id=True)}
    assert names == set(re.findall(r'(?:href="|url\()#(\w+)', re.sub(r">[^<]*<", "><", drawing)))
    styled = {name for one in compact.find_all(class_=True) for name in one["class"]}
    assert styled == set(re.findall(r"^\.(\w+) {", drawing, re.MULTILINE))


def test_a_drawing_leaves_out_what_xml_cannot_have():
    axis = (figure := figures.figure_of(3, 1)).subplots()
    axis.set_title("a \x1b[31mchip\x00 of 2 GB")
    with pytest.warns(UserWarning, match="Glyph"):
        drawing = svg(figure)
    assert "a [31mchip of 2 GB" in drawing


def test_on_a_dark_page_lines_are_brighter_but_no_cell_of_a_heat_map():
    figure, axis = crossed()
    axis.pcolormesh([[0.0, 1.0]], cmap="viridis")
    axis.plot([0, 1], [0, 1], color=HERE_CPU)
    light, dark = svg(figure).split("@media screen and (prefers-color-scheme: dark)")
    (line,) = re.findall(rf"^\.(\w+) {{.*stroke: {HERE_CPU.lower()}", light, re.MULTILINE)
    assert f".{line} {{ stroke: #ff7f00 }}" in dark
    cells = re.findall(r"^\.(\w+) { fill: #(?:440154|fde725) }", light, re.MULTILINE)
    assert len(cells) == 2 and not any(f".{cell} " in dark for cell in cells)


def test_long_labels_stand_above_their_rows_and_short_ones_left_of_them():
    short, long = "Apple M9 CPU, PyTorch", "a workload with a long name, " * 3 + "batch size 128"
    bounds = {}
    for label in (short, long):
        line = figures.Line(label, ("measured", "cpu"), "1.00 s", [Estimate(1.0)])
        figure = figures.points_figure({"A title": [line, line]}, "seconds")
        figure.draw_without_rendering()
        (axis,) = figure.axes
        texts = axis.get_yticklabels()
        assert [text.get_text().replace("\n", " ") for text in texts] == [label, label]
        bounds[label] = [text.get_window_extent() for text in texts], axis.get_window_extent()
    (first, second), axis = bounds[short]
    assert first.x1 < axis.x0 and second.x1 < axis.x0
    (first, second), axis = bounds[long]
    assert first.x0 >= axis.x0 - 1 and first.y0 > second.y1
    assert first.y1 < axis.y1 + 6 and second.y0 > axis.y0  # the title begins 8 above the axis


@pytest.mark.parametrize(
    ("text", "most", "lines"),
    [
        ("", 9, [""]),
        ("short", 9, ["short"]),
        ("Model whisper-tiny, batch size 4", 30, ["Model whisper-tiny,", "batch size 4"]),
        ("a-word-that-is-too-long b", 9, ["a-word-that-is-too-long", "b"]),
    ],
)
def test_lines_of_a_text_are_few_and_of_about_equal_length(text, most, lines):
    assert figures.wrapped(text, most).split("\n") == lines


def test_words_of_a_picture_have_a_white_halo_and_a_white_ground():
    figure, axis = crossed()
    image = PIL.Image.open(io.BytesIO(png(figure).data)).convert("L")
    grey = numpy.asarray(image).astype(int)
    assert grey[0, 0] == 255
    # The line is dark beside the words, and interrupted by the halo between their letters.
    figure.draw_without_rendering()
    scale = image.width / figure.bbox.width
    box = axis.texts[0].get_window_extent()
    middle = int(image.height - scale * axis.transData.transform((0, 0.5))[1])
    start, end = int(scale * box.x0), int(scale * box.x1)
    assert grey[middle, start - 30 : start - 10].max() < 100
    assert grey[middle, start:end].max() > 200
    assert axis.texts[0].get_path_effects() in (None, [])  # so that a drawing keeps text


def test_a_picture_has_words_for_who_cannot_see_it():
    picture = figures.png(drawn("vae", [record()]))
    said = "Figure: seconds per epoch (lower is better). Panels: Batch size 128; Batch size 5120"
    assert picture.alt == said


def test_values_have_the_unit_of_the_table():
    config = {"batch_size": 32, "image_size": 224}
    (axis,) = drawn("rasbt_vgg16", [record("rasbt_vgg16", TIMES | {}, config)]).axes
    minutes = dict(zip(lines(axis), words(axis), strict=True))
    assert minutes["Titan V"] == "5.03 min"
    assert axis.get_xlabel().startswith("minutes per epoch")
    ticks = [label.get_text() for label in axis.get_xticklabels()]
    assert len(ticks) > 2 and {*ticks} <= {"0.01", "0.1", "1", "10", "100", "1,000", "10,000"}


def test_panels_of_one_line_are_joined():
    cases = [
        record("capabilities", {"speedup": metric(ratio, unit="")}, {"feature": feature})
        for feature, ratio in (("fp32", 1.0), ("fp16", 0.5), ("autocast", 2.0))
    ]
    (axis,) = drawn("capabilities", cases).axes
    assert axis.get_title(loc="left") == "Apple M9 CPU, PyTorch"
    shown = {line: x for line, (x, *_) in zip(lines(axis), marks(axis), strict=True)}
    assert shown == {"fp32": 1.0, "fp16": 0.5, "autocast": 2.0}
    dashed = [line for line in axis.lines if line.get_linestyle() == "--"]
    assert [tuple(line.get_xdata()) for line in dashed] == [(1, 1)]
