"""Where cases lie under the ceilings of a machine."""

from __future__ import annotations

import textwrap
from typing import Any

from pomology import format
from pomology.report import roofline
from pomology.report.figures.style import GREY, STYLE, _framework, _key, _style
from pomology.results import cases as results_cases

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

    best, points = roofline.ceilings(records), roofline.roofline_points(records)
    kinds = [kind for kind in ("cpu", "gpu") if any(_of_kind(kind, best, points))]
    drawn = [point for point in points if point.intensity]
    series = dict.fromkeys(
        (p.record["framework"], p.record["backend"], results_cases.precision(p.record)) for p in drawn
    )
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


def _of_kind(kind: str, best: roofline.Ceilings, points: list[roofline.Point]) -> tuple[list, list]:
    """The flat roofs and the points of a kind of device."""
    roofs = [(precision, one) for (where, precision), one in sorted(best.rates.items()) if where == kind]
    return roofs, [point for point in points if results_cases.kind(point.record) == kind]


def _draw_roofs(axis: Any, kind: str, best: roofline.Ceilings, points: list[roofline.Point]) -> None:
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
        precision = results_cases.precision(record)
        axis.plot([point.intensity], [height], **_style(record["framework"], record["backend"], precision))
        share = f": {format.significant(100 * point.roof.share, 2)} %" if point.roof else ""
        name = f"{point.name}, {_framework(record['framework'])}, {precision}{share}"
        labels.append((height, point.intensity, name, "normal"))
    _label(axis, sorted(labels))


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
