"""The house style of plots: every device in the same colour everywhere, readable on white, on black and in print.

Backgrounds are transparent and text is a grey with contrast enough on both white and black. Colours are those of Okabe
and Ito (2008), which colour-blind readers can tell apart; a second mark, the shape, repeats what the colour says.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pomology import format, write_whole
from pomology.articles import layout as articles_layout
from pomology.articles import published
from pomology.report import article, costs, roofline, summary

GREY = "#767676"
COLOURS = {
    "M1 Ultra CPU": "#56B4E9",
    "M1 Ultra GPU": "#0072B2",
    "2070 Super CUDA": "#009E73",
    "this machine, cpu": "#D55E00",
    "this machine, gpu": "#CC79A7",
}
STYLE = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "text.color": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "grid.color": GREY,
    "grid.alpha": 0.25,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 10,
    "text.parse_math": False,  # a chip's name is text, whatever is in it
    "svg.hashsalt": "pomology",  # the same data give the same file
    "svg.fonttype": "none",  # text stays text: it can be read aloud and searched, and takes a tenth of the bytes
}
FONTS = "DejaVu Sans, Verdana, sans-serif"  # the first is as wide as the second, which Macs and phones have


MOST_PANELS = 30  # of a figure: more take minutes to lay out, and nobody looks at them


def epoch_figure(experiment: str, records: list[dict]) -> Any:
    """Seconds per epoch of every device, a panel for each row of the article's settings, on one logarithmic axis.

    A filled mark is the whole epoch with its 95 % interval, a hollow one the computing alone; what has no time shows
    its status. An experiment whose layout names another metric shows that. Returns a matplotlib Figure.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    layout = articles_layout.LAYOUTS[experiment]
    panels = costs.panels(records) if experiment == "costs" else _panels(experiment, records)
    panels, more = panels[:MOST_PANELS], len(panels) - MOST_PANELS
    panels = panels or [("Nothing was measured that can be drawn", [])]
    heights = [len(points) + 1.1 for _, points in panels]
    values = [
        value
        for _, points in panels
        for point in points
        for value in (point["value"], point.get("low"), point.get("high"), point.get("compute"))
        if value
    ]
    low, high = min(values, default=1.0), max(values, default=1.0)
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 0.55 + 0.27 * sum(heights)), layout="constrained")
        axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for axis, (title, points) in zip(axes, panels, strict=True):
            axis.set_title(title, loc="left", fontsize=10, color=GREY)
            axis.set_xscale("log")
            axis.set_xlim(low / 1.6, high * 2 * (high / low) ** 0.3)  # room for the words behind the last mark
            axis.set_ylim(len(points) - 0.4, -0.6)
            axis.set_yticks(range(len(points)), [point["label"] for point in points])
            axis.grid(axis="x", which="major")
            axis.tick_params(axis="y", length=0)
            for place, point in enumerate(points):
                _draw(axis, place, point, low, layout.show)
        axis.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=20))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / layout.unit:,.10g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        if high / low > 200:
            axis.xaxis.set_major_locator(LogLocator(base=10, numticks=12))
        axis.set_xlabel(f"{layout.axis}; {more:,} more settings are in the table only" if more > 0 else layout.axis)
    return figure


PRODUCT_COLOURS = {
    ("torch", "cpu"): "#D55E00",
    ("torch", "gpu"): "#CC79A7",
    ("mlx", "cpu"): "#E69F00",
    ("mlx", "gpu"): "#009E73",
    ("tensorflow", "cpu"): "#56B4E9",
    ("tensorflow", "gpu"): "#0072B2",
}
PRODUCT_MARKS = {"fp32": "o", "fp16": "s", "bf16": "^"}
OPERATIONS = {
    "matmul": "Matrix times matrix (figure 5)",
    "matvec": "Matrix times vector (figure 6)",
    "vjp": "Vector-Jacobian product (figure 7)",
}


def draw(experiment: str, records: list[dict]) -> Any:
    """The figure of an experiment, in the form that suits it. Returns a matplotlib Figure."""
    if experiment == "summary":
        return summary_figure(records)
    if articles_layout.LAYOUTS[experiment].everything:
        return roofline_figure(records)
    if articles_layout.experiment_of(experiment) == "memory_over_time":
        return memory_figure(records)
    kind = products_figure if articles_layout.experiment_of(experiment) == "blas" else epoch_figure
    return kind(experiment, records)


def products_figure(experiment: str, records: list[dict]) -> Any:
    """Achieved FLOP/s of every product, a panel for each operation: the colour is framework and device, the mark the
    precision. What has no number is a cross at the foot of its panel. Returns a matplotlib Figure.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    layout = articles_layout.LAYOUTS[experiment]
    cases = article.groups(article.comparable(records, layout.metric))
    series = list(dict.fromkeys((one[0]["framework"], one[0]["backend"], one[0]["precision"]) for one in cases))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 9), layout="constrained")
        for axis, (operation, title) in zip(figure.subplots(3, 1), OPERATIONS.items(), strict=True):
            mine = [one for one in cases if one[0]["config"]["operation"] == operation]
            names = list(dict.fromkeys(_product_name(one[0]) for one in mine))
            axis.set_title(title, loc="left", fontsize=10, color=GREY)
            axis.set_yscale("log")
            axis.set_ylabel("GFLOP/s", fontsize=9)
            axis.grid(axis="y", which="major")
            axis.set_xticks(range(len(names)), names, fontsize=8, rotation=45 if len(names) > 8 else 0)
            axis.tick_params(axis="x", length=0)
            axis.set_xlim(-0.6, max(len(names), 1) - 0.4)
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
            axis.yaxis.set_minor_formatter(NullFormatter())
            for repeats in mine:
                first, found = repeats[0], article.combined(repeats, layout.metric)
                number = series.index((first["framework"], first["backend"], first["precision"]))
                place = names.index(_product_name(first)) + (number + 0.5) / len(series) * 0.7 - 0.35
                _mark(axis, place, first, found, layout.unit)
            low, high = axis.get_ylim()
            if high / low < 100:
                axis.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=20))
        handles = [_key(*one) for one in series]
        if handles:
            figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


LOADS = {"easy": "A training that fits easily", "near": "One near the limit"}
# Quantity -> (its columns of a trace and their lines, its unit, what it is counted from).
MEMORY_PANELS = {
    "Memory (GB)": ({"footprint_bytes": "solid", "allocated_bytes": "dashed", "reserved_bytes": "dotted"}, 1e9, False),
    "Page faults (thousands)": ({"page_faults": "solid"}, 1e3, True),
}


def memory_figure(records: list[dict]) -> Any:
    """Memory and page faults after each step, as `memory_trace` keeps them: a row of panels for each quantity, a column
    for each load. The colour is framework and device. Returns a matplotlib Figure.

    Page faults are those since the first step ended. The warm-up is shaded: no slope is taken there.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    traced = [record for record in records if record["profile"] != "smoke" and record.get("memory_trace")]
    loads = [load for load in LOADS if any(record["config"].get("load") == load for record in traced)] or ["easy"]
    shown: dict[str, str] = {}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 5.5), layout="constrained")
        panels = figure.subplots(len(MEMORY_PANELS), len(loads), sharex="col", squeeze=False)
        for row, (label, (lines, unit, from_first)) in zip(panels, MEMORY_PANELS.items(), strict=True):
            row[0].set_ylabel(label, fontsize=9)
            for axis, load in zip(row, loads, strict=True):
                axis.grid(axis="y")
                axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
                axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
                for record in (one for one in traced if one["config"].get("load") == load):
                    kind = "cpu" if record["backend"] == "cpu" else "gpu"
                    colour = PRODUCT_COLOURS.get((record["framework"], kind), GREY)
                    shown[f"{_framework(record['framework'])}, {record['backend']}"] = colour
                    for column, line in lines.items():
                        steps, values = _trace(record, column)
                        lowest = values[0] if from_first and values else 0
                        values = [(value - lowest) / unit for value in values]
                        axis.plot(steps, values, color=colour, linestyle=line, linewidth=1.2)
                    if lines:
                        axis.axvspan(-0.5, record["memory_trace"]["warmup"] - 0.5, color=GREY, alpha=0.08, linewidth=0)
                axis.set_ylim(0, 1.08 * axis.get_ylim()[1])  # a flat line would be cut in half at the top
        for axis, load in zip(panels[0], loads, strict=True):
            axis.set_title(LOADS[load] if traced else "Nothing was measured that can be drawn", loc="left", fontsize=10)
        for axis in panels[-1]:
            axis.set_xlabel("step")
        handles = [Line2D([], [], color=colour, label=name) for name, colour in shown.items()]
        drawn = MEMORY_PANELS["Memory (GB)"][0].items()
        handles += [
            Line2D([], [], color=GREY, linestyle=line, label=column.removesuffix("_bytes"))
            for column, line in drawn
            if any(_trace(record, column)[1] for record in traced)
        ]
        if handles:
            figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


def passes_figure(records: list[dict]) -> Any:
    """Seconds of each step above and memory after it below, as `memory_trace` keeps them, a column for each case that
    has one. Returns a matplotlib Figure."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    traced = [one for one in records if one["profile"] != "smoke" and len(_trace_of(one)) > 1]
    lines = MEMORY_PANELS["Memory (GB)"][0]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        panels = figure.subplots(2, max(1, len(traced)), sharex="col", sharey="row", squeeze=False)
        for axis in panels.flat:
            axis.grid(axis="y")
            axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        panels[0][0].set_ylabel("Seconds of a step", fontsize=9)
        panels[1][0].set_ylabel("Memory (GB)", fontsize=9)
        if not traced:
            panels[0][0].set_title("Nothing was measured that can be drawn", loc="left", fontsize=10)
        for (above, below), record in zip(panels.T, traced, strict=False):
            kind = "cpu" if record["backend"] == "cpu" else "gpu"
            colour = COLOURS[f"this machine, {kind}"]
            config = record["config"]
            above.set_title(f"{article.chip_name(record)}\n{config['model']}, batch {config['batch_size']}", fontsize=9)
            steps, ends = _trace(record, "t_s")
            pairs = itertools.pairwise(zip(steps, ends, strict=True))
            each = [(end - begin) / (last - first) for (first, begin), (last, end) in pairs]
            above.plot(steps[1:], each, "o-", color=colour)
            for column, line in lines.items():
                steps, values = _trace(record, column)
                label = column.removesuffix("_bytes") if steps else None
                below.plot(steps, [value / 1e9 for value in values], color=colour, linestyle=line, label=label)
            below.set_xlabel("step")
            below.legend(frameon=False, fontsize=8)
        for axis in panels[:, 0]:
            axis.set_ylim(0, 1.1 * axis.get_ylim()[1])
    return figure


def _trace_of(record: dict) -> list:
    return record.get("memory_trace", {}).get("rows", [])


def _trace(record: dict, column: str) -> tuple[list[int], list[float]]:
    """The steps and values of a column of a trace of memory; nothing where it was not read in every step."""
    trace = record["memory_trace"]
    names = trace["columns"]
    values = [row[names.index(column)] for row in trace["rows"]] if column in names else [None]
    return ([], []) if None in values else ([row[names.index("step")] for row in trace["rows"]], values)


ROOF_LINES = {"fp32": "solid", "fp16": "dashed", "bf16": "dotted", "tf32": "dashdot"}
LABEL_INCHES = 0.15  # from one label to the next


def roofline_figure(records: list[dict]) -> Any:
    """Every experiment of a run under the machine's roofs, a panel for each kind of device, both axes logarithmic.

    The sloping roof is the memory bandwidth, the flat ones are the best rates by precision. The colour of a point is
    its framework and device, the mark its precision. Labels stand beside the panel, in the order of their heights.
    Returns a matplotlib Figure.
    """
    import matplotlib
    from matplotlib.figure import Figure

    best, points = roofline.ceilings(records), article.roofline_points(records)
    kinds = [kind for kind in ("cpu", "gpu") if any(_of_kind(kind, best, points))]
    drawn = [point for point in points if point.intensity]
    series = dict.fromkeys((p.record["framework"], p.record["backend"], roofline.precision(p.record)) for p in drawn)
    labels = [sum(map(len, _of_kind(kind, best, drawn))) for kind in kinds]
    heights = [max(3.0, LABEL_INCHES * count) for count in labels] or [1.0]
    legend = 0.25 * -(-len(series) // 3)
    with matplotlib.rc_context(STYLE):
        whole = sum(heights) + 1.15 * len(heights) + legend
        figure, top = Figure(figsize=(8, whole)), whole
        for number, height in enumerate(heights):
            top -= 0.45
            axis = figure.add_axes((0.1, (top - height) / whole, 0.5, height / whole))
            top -= height + 0.7
            if kinds:
                _draw_roofs(axis, kinds[number], best, points)
            else:
                axis.set_title("Nothing was measured that can be drawn", loc="left", fontsize=10, color=GREY)
        if series:
            handles = [_key(*one) for one in series]
            figure.legend(handles=handles, loc="lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _of_kind(kind: str, best: roofline.Ceilings, points: list[article.Point]) -> tuple[list, list]:
    """The flat roofs and the points of a kind of device."""
    roofs = [(precision, one) for (where, precision), one in sorted(best.rates.items()) if where == kind]
    return roofs, [point for point in points if roofline.kind(point.record) == kind]


def _draw_roofs(axis: Any, kind: str, best: roofline.Ceilings, points: list[article.Point]) -> None:
    """One panel. Rates are in GFLOP/s."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    roofs, mine = _of_kind(kind, best, points)
    slope = best.bandwidths[kind].value / 1e9 if kind in best.bandwidths else None
    drawn = [point for point in mine if point.intensity]
    ridges = [one.value / 1e9 / slope for _, one in roofs] if slope else []
    across = [point.intensity for point in drawn] + ridges or [1.0]
    left, right = min(across) / 4, max(across) * 4
    heights = [point.rate["value"] / 1e9 for point in drawn] + [one.value / 1e9 for _, one in roofs]
    low = min([*heights, *([left * slope] if slope else [])], default=1.0)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlim(left, right)
    axis.set_ylim(low / 2, max(heights, default=1.0) * 2)
    axis.set_xlabel("operations a byte, counted on paper", fontsize=9)
    axis.set_ylabel("GFLOP/s", fontsize=9)
    axis.yaxis.set_label_coords(-0.13, 0.5)
    axis.tick_params(labelsize=8)
    axis.grid(which="major")
    for one in (axis.xaxis, axis.yaxis):
        one.set_major_locator(LogLocator(base=10, numticks=12))
        one.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        one.set_minor_formatter(NullFormatter())
    bottom, top = axis.get_ylim()
    if top / bottom < 100:
        axis.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=20))
    title = {"cpu": "Processor", "gpu": "GPU"}[kind]
    if slope:
        title += f": memory {format.quantity_per_s(slope * 1e9, 'B/s')}"
        ends = [left, max(ridges, default=right)]
        axis.plot(ends, [end * slope for end in ends], color=GREY, linewidth=1.2)
    names = dict.fromkeys(point.name for point in mine if not point.intensity)
    axis.set_title(title, loc="left", fontsize=10, color=GREY)
    if names:
        words = textwrap.shorten(f"Not drawn, since their bytes are not counted: {', '.join(names)}", 230)
        words = textwrap.fill(words, 115)  # what is longer than two lines would stand on what is below
        axis.annotate(words, (0, 0), (0, -34), "axes fraction", "offset points", fontsize=7, color=GREY, va="top")
    labels = []
    for precision, one in roofs:
        height = one.value / 1e9
        begins = height / slope if slope else left
        line = {"color": GREY, "linewidth": 1.2, "linestyle": ROOF_LINES.get(precision, "solid")}
        axis.plot([begins, right], [height] * 2, **line)
        shown = format.quantity_per_s(one.value, "FLOP/s")
        labels.append((height, right, f"roof of {precision}: {shown}, {_framework(one.framework)}", "bold"))
    for point in drawn:
        record, height = point.record, point.rate["value"] / 1e9
        precision = roofline.precision(record)
        axis.plot([point.intensity], [height], **_style(record["framework"], record["backend"], precision))
        share = f": {format.significant(100 * point.roof.share, 2)} %" if point.roof else ""
        name = f"{point.name}, {_framework(record['framework'])}, {precision}{share}"
        labels.append((height, point.intensity, name, "normal"))
    _label(axis, sorted(labels))


ROLE_COLOURS = {
    ("published", "cpu"): COLOURS["M1 Ultra CPU"],
    ("published", "gpu"): COLOURS["M1 Ultra GPU"],
    ("published", "rival"): COLOURS["2070 Super CUDA"],
    ("measured", "cpu"): COLOURS["this machine, cpu"],
    ("measured", "gpu"): COLOURS["this machine, gpu"],
}
ROLE_NAMES = {
    ("published", "cpu"): "the articles' processors",
    ("published", "gpu"): "the articles' Apple GPUs",
    ("published", "rival"): "the articles' NVIDIA GPUs",
    ("measured", "cpu"): "this machine's processor",
    ("measured", "gpu"): "this machine's GPU",
}


COMPACT_INCHES, COMPACT_POINTS = 5.2, 10  # where a phone shows it 340 pixels wide, text is still 9 pixels high
ROLE_MARKS = {("published", "cpu"): "^", ("published", "gpu"): "o", ("published", "rival"): "s"}  # else a diamond


def summary_figure(records: list[dict], compact: bool = False) -> Any:
    """What every device achieves on every workload, on one logarithmic axis, with its peak and its best share of it.

    A panel for each workload, a line for each device and framework, a mark for each of its settings. Circles are the
    articles' devices and diamonds this machine's, with their 95 % intervals. Returns a matplotlib Figure.

    compact: for the top of a page, also on a phone: a line for each workload that the articles have timed (of a run
    with none of these, for all that it has), a mark for each device at its fastest, and its share of the peak beside.
    """
    if compact:
        return _compact_figure(summary.rates(records))
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    panels = _summary_panels(summary.rates(records))
    heights = [len(lines) + 1.1 for lines in panels.values()]
    drawn = [one for lines in panels.values() for line in lines.values() for one in line]
    ends = [value / 1e12 for one in drawn for value in (one.flops_per_s, one.peak_flops_per_s) if value]
    low, high = min(ends), max(ends)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 0.9 + 0.23 * sum(heights)), layout="constrained")
        axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for axis, (title, lines) in zip(axes, panels.items(), strict=True):
            axis.set_title(title, loc="left", fontsize=10, color=GREY)
            axis.set_xscale("log")
            axis.set_xlim(low / 1.6, high * 2 * (high / low) ** 0.25)  # room for the words behind the last mark
            axis.set_ylim(len(lines) - 0.4, -0.6)
            axis.set_yticks(range(len(lines)), list(lines), fontsize=8)
            axis.grid(axis="x", which="major")
            axis.tick_params(axis="y", length=0)
            axis.xaxis.set_minor_locator(NullLocator())  # hundreds of strokes, of no use
            for place, line in enumerate(lines.values()):
                _draw_rates(axis, place, line)
        axis.xaxis.set_major_locator(LogLocator(base=10, numticks=12))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axis.set_xlabel("achieved TFLOP/s (more is faster); upright: the peak")
        keys = [key for key in ROLE_COLOURS if any((one.source, one.role) == key for one in drawn)]
        handles = [
            Line2D([], [], linestyle="none", marker=_rate_mark(key[0]), color=ROLE_COLOURS[key], label=ROLE_NAMES[key])
            for key in keys
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _compact_figure(rates: list[summary.Rate]) -> Any:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    theirs = {one.workload for one in rates if one.source == "published"}
    ours = {one.workload for one in rates if one.source == "measured"}
    fastest: dict[tuple, summary.Rate] = {}
    for one in sorted(rates, key=lambda one: one.flops_per_s):
        if one.workload in theirs or not ours & theirs:
            fastest[one.workload, one.source, one.role, one.device] = one
    shown = list(fastest.values())
    drawn = {one.workload for one in shown}
    lines = [name for name in dict.fromkeys(one.workload for one in rates) if name in drawn]
    keys = [key for key in ROLE_COLOURS if any((one.source, one.role) == key for one in shown)]
    # Within a line, from top to bottom: this machine's processor and GPU far apart, since each has its share behind it.
    order = [("measured", "cpu"), *(key for key in ROLE_COLOURS if key[0] == "published"), ("measured", "gpu")]
    places = {key: 0.45 + 0.11 * number for number, key in enumerate(order)}
    with matplotlib.rc_context(STYLE | {"font.size": COMPACT_POINTS}):
        figure = Figure(figsize=(COMPACT_INCHES, 1.4 + 0.5 * len(lines)), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        left.set_xscale("log")
        for axis, title in ((left, "trillion operations a second"), (right, "share of the peak")):
            axis.set_title(title, loc="left", fontsize=COMPACT_POINTS, color=GREY)
            axis.set_ylim(len(lines), 0)
            axis.yaxis.set_major_locator(FixedLocator(range(len(lines))))
            axis.tick_params(axis="y", length=0, labelleft=False)
            axis.grid(which="major")
            axis.spines["left"].set_visible(False)
        for number, name in enumerate(lines):
            words = summary.WORKLOADS.get(name, name.replace("_", " "))
            left.text(0, number + 0.06, words, transform=left.get_yaxis_transform(), va="top", fontsize=COMPACT_POINTS)
        for one in shown:
            _draw_compact(left, right, one, lines.index(one.workload) + places.get((one.source, one.role), 0.66))
        left.xaxis.set_major_locator(LogLocator(base=10, numticks=12))
        left.xaxis.set_minor_locator(NullLocator())
        left.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        right.set_xlim(-0.03, max([1.0, *(one.share_high or one.share for one in shown if one.share)]) * 1.04)
        right.xaxis.set_major_locator(FixedLocator([0, 0.5, 1]))
        right.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))
        looks = [{"marker": ROLE_MARKS.get(key, "D"), "color": ROLE_COLOURS[key]} for key in keys]
        handles = [
            Line2D([], [], linestyle="none", markersize=5, label=ROLE_NAMES[key], **look)
            for key, look in zip(keys, looks, strict=True)
        ]
        form = {"ncols": 2, "frameon": False, "fontsize": COMPACT_POINTS, "handletextpad": 0.2}
        figure.legend(handles=handles, loc="outside lower left", **form)
    return figure


def _draw_compact(left: Any, right: Any, one: summary.Rate, height: float) -> None:
    """One device at its fastest on one workload. Rates are in TFLOP/s."""
    key = (one.source, one.role)
    colour, mark = ROLE_COLOURS.get(key, GREY), ROLE_MARKS.get(key, "D")
    for axis, value, low, high in (
        (left, one.flops_per_s / 1e12, one.low and one.low / 1e12, one.high and one.high / 1e12),
        (right, one.share, one.share_low, one.share_high),
    ):
        if value is None:
            continue
        if low and high:
            axis.plot([low, high], [height] * 2, color=colour, linewidth=2)
        axis.plot([value], [height], mark, color=colour, markersize=5)
    if one.source == "measured" and one.share is not None:
        words = f"{format.significant(100 * one.share, 2)} %"
        place = {"transform": right.get_yaxis_transform(), "ha": "left", "va": "center"}
        right.text(1.03, height, words, fontsize=COMPACT_POINTS, color=colour, **place)


def _summary_panels(rates: list[summary.Rate]) -> dict[str, dict[str, list[summary.Rate]]]:
    """Title of a panel -> name of a line -> its rates; this machine's own workloads share the last panel."""
    several = {(one.workload, one.framework) for one in rates}
    panels: dict[str, dict[str, list[summary.Rate]]] = {}
    for one in rates:
        known = one.workload in summary.WORKLOADS
        kind = "CPU" if one.role == "cpu" else "GPU"
        words = [one.device] if known else [one.workload.replace("_", " "), kind]
        if sum(workload == one.workload for workload, _ in several) > 1:
            words.append(_framework(one.framework))
        words += [one.precision] if one.precision != "fp32" else []
        panel = panels.setdefault(summary.WORKLOADS.get(one.workload, summary.MEASURED_ONLY), {})
        panel.setdefault(", ".join(words), []).append(one)
    return panels


def _rate_mark(source: str) -> str:
    return "D" if source == "measured" else "o"


def _draw_rates(axis: Any, place: int, line: list[summary.Rate]) -> None:
    """One device on one workload. Rates are in TFLOP/s."""
    best = max(line, key=lambda one: one.flops_per_s)
    colour, mark = ROLE_COLOURS.get((best.source, best.role), GREY), _rate_mark(best.source)
    # The share stands behind all that is drawn, a wide interval too.
    right, peak = max(one.high or one.flops_per_s for one in line) / 1e12, best.peak_flops_per_s
    if peak:
        ends = [min(one.flops_per_s for one in line) / 1e12, peak / 1e12]
        axis.plot(ends, [place] * 2, color=GREY, linewidth=0.6)
        axis.plot([peak / 1e12], [place], "|", color=GREY, markersize=9, markeredgewidth=1.6)
        right = max(right, peak / 1e12)
    for one in line:
        if one.low and one.high:
            axis.plot([one.low / 1e12, one.high / 1e12], [place] * 2, color=colour, linewidth=2.5)
        axis.plot([one.flops_per_s / 1e12], [place], mark, color=colour, markersize=5.5, alpha=0.85)
    share = f"{format.significant(100 * best.share, 2)} %" if best.share is not None else "no peak known"
    form = {"xytext": (8, 0), "textcoords": "offset points", "va": "center", "fontsize": 8, "color": GREY}
    axis.annotate(share, (right, place), **form)


def _framework(name: str) -> str:
    return article.FRAMEWORKS.get(name, name)


def _label(axis: Any, labels: list[tuple[float, float, str, str]]) -> None:
    """Write labels (height, place across, text, weight), sorted, beside a panel, each joined to its place by a line."""
    inches = axis.get_position().height * axis.figure.get_figheight()
    step = LABEL_INCHES / inches
    heights = [axis.transAxes.inverted().transform(axis.transData.transform((x, y)))[1] for y, x, _, _ in labels]
    for places, sign in ((range(1, len(heights)), 1), (range(len(heights) - 2, -1, -1), -1)):
        if sign < 0 and heights:
            heights[-1] = min(heights[-1], 1.0)  # none above the panel: those below make room
        for place in places:
            bound = heights[place - sign] + sign * step
            heights[place] = max(heights[place], bound) if sign > 0 else min(heights[place], bound)
    for place, (y, x, text, weight) in zip(heights, labels, strict=True):
        axis.annotate(
            text,
            (x, y),
            xytext=(1.05, place),
            textcoords="axes fraction",
            va="center",
            fontsize=7,
            color=GREY,
            weight=weight,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.4, "relpos": (0, 0.5), "shrinkB": 3},
        )


def _product_name(record: dict) -> str:
    wrt = {"left": " ∂a", "right": " ∂b"}.get(record["config"].get("wrt", ""), "")
    return record["config"]["shape"].replace("x", "×") + wrt


def _style(framework: str, backend: str, precision: str) -> dict[str, Any]:
    colour = PRODUCT_COLOURS.get((framework, "cpu" if backend == "cpu" else "gpu"), GREY)
    return {"color": colour, "marker": PRODUCT_MARKS.get(precision, "D"), "linestyle": "none", "markersize": 5}


def _mark(axis: Any, place: float, record: dict, found: dict | None, unit: float) -> None:
    style = _style(record["framework"], record["backend"], record["precision"])
    if found is None:
        style |= {"marker": "x", "transform": axis.get_xaxis_transform(), "clip_on": False}
        axis.plot([place], [0.03], **style)
        return
    axis.plot([place], [found["value"] / unit], **style)
    if found["low"] and found["high"]:
        axis.plot([place] * 2, [found["low"] / unit, found["high"] / unit], color=style["color"], linewidth=1)


def _key(framework: str, backend: str, precision: str) -> Any:
    from matplotlib.lines import Line2D

    label = f"{article.FRAMEWORKS.get(framework, framework)}, {backend}, {precision}"
    return Line2D([], [], label=label, **_style(framework, backend, precision))


def _draw(axis: Any, place: int, point: dict, low: float, show: Callable[[float], str]) -> None:
    colour = COLOURS.get(point["colour"], GREY)
    if point["value"] is None:
        axis.text(low / 1.4, place, point["status"], va="center", ha="left", color=GREY, style="italic", fontsize=9)
        return
    marker = "D" if point["ours"] else "o"
    if point.get("high"):
        # An interval down to zero has no end on a logarithmic axis: it is drawn to the edge.
        ends = [max(point["low"], axis.get_xlim()[0]), point["high"]]
        axis.plot(ends, [place, place], color=colour, linewidth=2, solid_capstyle="butt")
    if point.get("compute"):
        axis.plot([point["compute"]], [place], marker, markersize=7, markerfacecolor="none", markeredgecolor=colour)
    axis.plot([point["value"]], [place], marker, markersize=7, color=colour)
    right = max(filter(None, (point["value"], point.get("high"), point.get("compute"))))
    computing = f", computing {show(point['compute'])}" if point.get("compute") else ""
    axis.annotate(
        show(point["value"]) + computing,
        (right, place),
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
        color=GREY,
    )


def _panels(experiment: str, records: list[dict]) -> list[tuple[str, list[dict]]]:
    """For each row of settings, in the article's order, the points to draw."""
    layout = articles_layout.LAYOUTS[experiment]
    panels: dict[str, list[dict]] = {}

    def panel(config: dict) -> list[dict]:
        apart = {key: heading for key, heading in layout.settings.items() if key not in layout.together}
        words = [f"{heading.lower()} {config[key]}" for key, heading in apart.items() if key in config]
        title = ", ".join(words)
        return panels.setdefault(title[:1].upper() + title[1:] or "In the article", [])

    seen = set()
    for value in published.values(experiment=articles_layout.experiment_of(experiment)).to_dict("records"):
        label = value["device"] or "the article"
        point = {"label": label, "colour": value["device"], "ours": False, "value": value["si"]}
        if value["metric"] in (layout.metric, "status"):  # what has no number is shown as the words that are printed
            point["status"] = value["printed"] or value["note"]
            key = (value["device"], str(value["config"]))
            if key not in seen:  # a row that is printed twice is one device
                panel(value["config"]).append(point)
            seen.add(key)
    for other in layout.derived:
        for value in published.values(experiment=other.experiment).to_dict("records"):
            meant = all(value["config"].get(key) == wanted for key, wanted in other.only.items())
            if meant and value["metric"] == other.metric and value["si"]:
                name, _, version = value["framework"].partition(" ")
                told = version[:4] or article.FRAMEWORKS.get(name.replace("pytorch", "torch"), name)
                point = {"label": f"{value['device']}, {told}", "colour": value["device"], "ours": False}
                panel(other.config).append(point | {"value": other.flops / value["si"]})
    several = len({record["framework"] for record in records}) > 1
    for repeats in article.groups(article.comparable(records, layout.metric)):
        first, epoch = repeats[0], article.combined(repeats, layout.metric)
        compute = article.combined(repeats, f"compute_{layout.metric}")
        kind = "cpu" if first["backend"] == "cpu" else "gpu"
        shared = [key for key in layout.together if key in first["config"]]
        shared = [f"{layout.settings[key].lower()} {first['config'][key]}" for key in shared]
        name = article.chip_name(first)
        if several:
            name += f", {article.FRAMEWORKS.get(first['framework'], first['framework'])}"
        label = ", ".join([name, *(words for words in shared if not words.endswith(" none"))])
        point = {"label": label, "colour": f"this machine, {kind}", "ours": True}
        found = {part: article.combined(repeats, metric) for part, metric in layout.parts.items()}
        for part, rate in found.items():
            if rate:
                bounds = {key: rate[key] for key in ("value", "low", "high")}
                panel(first["config"]).append(point | bounds | {"label": f"{label}, {part}"})
        # The article's own case shows why it has no number; each smaller one that was too big as well need not.
        if any(found.values()) or (layout.parts and first["scaled"]):
            continue
        panel(first["config"]).append(
            point
            | {
                "value": epoch and epoch["value"],
                "low": epoch and epoch["low"],
                "high": epoch and epoch["high"],
                "compute": compute and compute["value"],
                "status": repeats[-1]["status"],
            }
        )
    return list(panels.items())


def pictures(images: Any, titles: Any = ()) -> Any:
    """A row of pictures (arrays of height x width, or height x width x 3 between 0 and 1), for a look at the data."""
    import matplotlib
    from IPython.display import SVG
    from matplotlib.figure import Figure

    images = list(images)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(0.8 * len(images), 1.0), layout="constrained")
        for number, axis in enumerate(figure.subplots(1, len(images), squeeze=False)[0]):
            axis.imshow(images[number], cmap="gray", interpolation="nearest")
            axis.set_axis_off()
            if number < len(titles):
                axis.set_title(titles[number], fontsize=8)
    return SVG(data=svg(figure))


def svg(figure: Any) -> str:
    """A figure as an SVG element."""
    import io

    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context(STYLE):
        # The last digits of what the layout solver finds vary; they would end up in the names of clip paths.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for axis in figure.axes:
            axis.set_position([round(bound, 4) for bound in axis.get_position().bounds])
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return _small(buffer.getvalue())


def _small(text: str) -> str:
    """The same drawing in a fifth of the bytes: no metadata, no names that nothing refers to, hundredths of a point."""
    from xml.etree import ElementTree

    # A text may hold what no XML may, as somebody's journal can.
    text = re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\N{REPLACEMENT CHARACTER}", text)
    root = ElementTree.fromstring(text[text.index("<svg") :])
    _slim(root, set(re.findall(r"#([\w-]+)", text)))
    about = {"xmlns": "http://www.w3.org/2000/svg", "font-family": FONTS, "stroke-linejoin": "round"}
    root.attrib = about | {name: root.get(name) for name in ("width", "height", "viewBox")}
    return ElementTree.tostring(root, encoding="unicode")


def _slim(element: Any, used: set[str]) -> None:
    """used: the identifiers that something refers to."""
    element.tag = element.tag.rpartition("}")[2]
    about = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
    if about.get("id") not in used:
        about.pop("id", None)
    style = [part.split(":", 1) for part in about.pop("style", "").split(";") if ":" in part]
    style = {name.strip(): value.strip() for name, value in style if name.strip() != "font-family"}
    for name in {"d", "x", "y", "transform", "points"} & about.keys():
        about[name] = re.sub(r"-?\d+\.\d+", lambda one: f"{round(float(one[0]), 2):g}", about[name])
        about[name] = " ".join(re.sub(r"\s*([A-Za-z,()])\s*", r"\1", about[name]).split())
    if about.get("transform", "").startswith("rotate(-0 "):
        del about["transform"]
    if style:
        about["style"] = ";".join(f"{name}:{value}" for name, value in style.items())
    element.attrib = about
    if element.tag != "text":
        element.text = None
    kept: list[Any] = []
    for child in element:
        _slim(child, used)
        child.tail = None
        unseen = child.tag == "path" and child.get("style") == "fill:none" and "id" not in child.attrib
        if child.tag in ("metadata", "style") or unseen:
            continue
        bare = child.tag in ("g", "defs") and not child.attrib
        kept += list(child) if bare and child.tag == "g" else [child] if len(child) or not bare else []
    element[:] = kept


def show(figure: Any, path: Path) -> Any:
    """Save a figure as SVG, whole or not at all, and give what a notebook displays."""
    from IPython.display import SVG

    text = svg(figure)
    write_whole(path, text)
    return SVG(data=text)
