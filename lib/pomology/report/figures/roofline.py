"""Where cases lie under the ceilings of a machine.

seaborn draws the points. The roofs and the labels beside a panel, joined to their points, are matplotlib's: seaborn has
neither.
"""

import textwrap
from typing import Any

from pomology.format import quantity_per_s, significant
from pomology.report import roofline
from pomology.report.declaration import Declaration
from pomology.report.figures.style import GREY, WIDTH, key, nothing, plain_ticks, shade, styled
from pomology.results import cases
from pomology.results.record import Record

ROOF_LINES = {"fp32": "solid", "fp16": "dashed", "bf16": "dotted", "tf32": "dashdot"}
PRECISION_MARKS = {"fp32": "o", "fp16": "s", "bf16": "^"}
LABEL_INCHES = 0.15  # from one label to the next


@styled
def roofline_figure(_: Declaration, records: list[Record]) -> Any:
    """Every experiment of a run under the machine's roofs, a panel for each kind of device, both axes logarithmic.

    The sloping roofs are the memory's, dashed of what only reads; the flat ones are the best rates by precision. The
    colour of a point is its framework and device, the mark its precision. Labels stand beside the panel, in the order
    of their heights. Returns a matplotlib Figure.
    """
    from matplotlib.figure import Figure

    best, points = roofline.ceilings(records), roofline.roofline_points(records)
    panels = {}
    for kind in ("cpu", "gpu"):
        roofs = [(precision, ceiling) for (where, precision), ceiling in sorted(best.rates.items()) if where == kind]
        slopes = {traffic: each.value for (where, traffic), each in best.bandwidths.items() if where == kind}
        here = [point for point in points if cases.kind(point.record) == kind]
        if roofs or here:
            panels[kind] = roofs, slopes, here
    if not panels:
        return nothing()
    looks = {}
    for record in (point.record for point in points if point.intensity):
        marker = PRECISION_MARKS.get(cases.precision(record), "D")
        looks[_series(record)] = {"color": shade(record), "marker": marker}
    labels = [len(roofs) + sum(bool(point.intensity) for point in here) for roofs, _, here in panels.values()]
    heights = [max(3.0, LABEL_INCHES * count) for count in labels]
    whole = sum(heights) + 1.15 * len(heights) + 0.25 * -(-len(looks) // 3)
    figure, top = Figure(figsize=(WIDTH, whole)), whole
    for (kind, panel), height in zip(panels.items(), heights, strict=True):
        top -= 0.45
        axis = figure.add_axes((0.1, (top - height) / whole, 0.5, height / whole))
        top -= height + 0.7
        _draw_panel(axis, kind, *panel, looks)
    if looks:
        key(figure, looks, loc="lower center")
    return figure


def _series(record: Record) -> str:
    return f"{cases.framework_name(record)}, {record.backend}, {cases.precision(record)}"


def _draw_panel(axis: Any, kind: str, roofs: list, slopes: dict[str, float], points: list, looks: dict) -> None:
    import seaborn

    slope = max(slopes.values(), default=None)
    drawn = [point for point in points if point.intensity]
    across, rates = [point.intensity for point in drawn], [point.rate.value for point in drawn]
    ridges = [roof.value / slope for _, roof in roofs] if slope else []
    left, right = min(across + ridges, default=1.0) / 4, max(across + ridges, default=1.0) * 4
    heights = rates + [roof.value for _, roof in roofs]
    low, high = min([*heights, *([left * slope] if slope else [])], default=1e9), max(heights, default=1e9)
    axis.set(xscale="log", yscale="log", xlim=(left, right), ylim=(low / 2, high * 2))
    names, labels = [_series(point.record) for point in drawn], []
    palette, markers = ({name: looks[name][what] for name in names} for what in ("color", "marker"))
    form = {"hue": names, "palette": palette, "style": names, "markers": markers, "linewidth": 0, "legend": False}
    if drawn:
        seaborn.scatterplot(x=across, y=rates, ax=axis, zorder=3, s=30, **form)
    for point, name in zip(drawn, names, strict=True):
        if point.rate.low:
            axis.vlines(point.intensity, point.rate.low, point.rate.high, color=palette[name], linewidth=1)
        share = f": {significant(100 * min(point.roof.share, 1), 2)} %" if point.roof else ""
        words = f"{point.name}, {cases.framework_name(point.record)}, {cases.precision(point.record)}{share}"
        labels.append((point.rate.value, point.intensity, words, "normal"))
    for precision, roof in roofs:
        line = {"color": GREY, "linewidth": 1.2, "linestyle": ROOF_LINES.get(precision, "solid")}
        axis.plot([roof.value / slope if slope else left, right], [roof.value] * 2, **line)
        words = f"roof of {precision}: {quantity_per_s(roof.value, 'FLOP/s')}, {cases.framework_name(roof.record)}"
        labels.append((roof.value, right, words, "bold"))
    title = {"cpu": "Processor", "gpu": "GPU"}[kind]
    title += ": " * bool(slopes) + ", ".join(f"{name} {quantity_per_s(slopes[name], 'B/s')}" for name in sorted(slopes))
    highest = max((roof.value for _, roof in roofs), default=right * (slope or 1))
    for traffic, bandwidth in slopes.items():
        ends = [left, highest / bandwidth]
        line = "dashed" if traffic == roofline.READS else "solid"
        axis.plot(ends, [end * bandwidth for end in ends], color=GREY, linewidth=1.2, linestyle=line)
    axis.set(title=title, xlabel="operations per byte, counted on paper", ylabel="GFLOP/s")
    axis.yaxis.set_label_coords(-0.13, 0.5)
    axis.tick_params(labelsize=8)
    axis.grid()
    plain_ticks(axis.xaxis)
    plain_ticks(axis.yaxis, 1e9)
    if without := dict.fromkeys(point.name for point in points if not point.intensity):
        words = textwrap.shorten(f"Not drawn, since their bytes are not counted: {', '.join(without)}", 115)
        axis.annotate(words, (0, 0), (0, -34), "axes fraction", "offset points", fontsize=7, va="top")
    # The labels stand beside the panel, each joined to its place by a line, and make way for each other.
    labels.sort()
    step = LABEL_INCHES / (axis.get_position().height * axis.figure.get_figheight())
    heights = [axis.transAxes.inverted().transform(axis.transData.transform((x, y)))[1] for y, x, _, _ in labels]
    for place in range(1, len(heights)):
        heights[place] = max(heights[place], heights[place - 1] + step)
    ceiling = 1.0  # none above the panel: those below make way
    for place in reversed(range(len(heights))):
        heights[place] = min(heights[place], ceiling)
        ceiling = heights[place] - step
    join = {"arrowstyle": "-", "color": GREY, "linewidth": 0.4, "relpos": (0, 0.5), "shrinkB": 3}
    form = {"textcoords": "axes fraction", "va": "center", "fontsize": 7, "annotation_clip": False, "arrowprops": join}
    for place, (y, x, text, weight) in zip(heights, labels, strict=True):
        axis.annotate(text, (x, y), (1.05, place), weight=weight, **form)
