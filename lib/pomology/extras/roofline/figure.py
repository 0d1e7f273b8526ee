"""The roofline as a figure: the best case of every experiment under the roofs of each device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pomology.extras.roofline.table import Point, points
from pomology.format import quantity_per_s, significant
from pomology.report.figures import style
from pomology.report.peaks import READS, Peaks
from pomology.results import cases

if TYPE_CHECKING:
    import pandas

LINES = {"fp32": "solid", "fp16": "dashed", "bf16": "dotted", "tf32": "dashdot"}
LABEL_INCHES = 0.15  # from one label to the next
TITLES = {"cpu": "Processor", "gpu": "GPU"}


@style.styled
def roofline_figure(frame: pandas.DataFrame, best: Peaks) -> Any:
    """Return a matplotlib Figure with a panel for each kind of device, both axes logarithmic.

    The sloping roofs are the memory's, dashed of what only reads; the flat ones are the best rates
    by precision. Labels stand beside a panel, in the order of their heights.
    """
    found = [point for point in points(frame, best) if point.intensity]
    present = {point.case.kind for point in found} | {kind for kind, _ in best.rates}
    kinds = [kind for kind in TITLES if kind in present]
    if not kinds:
        return style.nothing()
    here = {kind: [point for point in found if point.case.kind == kind] for kind in kinds}
    heights = [max(3.0, LABEL_INCHES * (len(here[kind]) + len(best.rates))) for kind in kinds]
    figure = style.figure_of(style.WIDTH, sum(heights) + len(heights))
    axes = figure.subplots(len(kinds), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, kind, height in zip(axes, kinds, heights, strict=True):
        _panel(axis, here[kind], kind, best, LABEL_INCHES / height)
    return figure


def _panel(axis: Any, found: list[Point], kind: str, best: Peaks, step: float) -> None:
    import seaborn

    roofs = {precision: peak for (of, precision), peak in sorted(best.rates.items()) if of == kind}
    slopes = {
        traffic: peak.rate.value for (of, traffic), peak in best.bandwidths.items() if of == kind
    }
    tops = [peak.rate.value for peak in roofs.values()] or [
        max(point.rate.value for point in found)
    ]
    across = [point.intensity for point in found]
    across += [top / slope for top in tops for slope in slopes.values()]
    left, right = min(across, default=1) / 4, max(across, default=1) * 4
    rates = [point.rate.value for point in found]
    lowest = min([*rates, *tops, *(left * slope for slope in slopes.values())])
    limits = {"xlim": (left, right), "ylim": (lowest / 2, max(rates + tops) * 2)}
    axis.set(xscale="log", yscale="log", **limits)
    labels, names, palette = [], [], {}
    for point in found:
        name = f"{point.framework}, {point.case.first['backend']}, {point.precision}"
        names.append(name)
        palette[name] = style.shade(SimpleNamespace(**point.case.first))
        share = point.share_of_roof
        words = f"{point.name}, {point.framework}, {point.precision}"
        words += f": {significant(100 * min(share.value, 1), 2)} %" if share else ""
        labels.append((point.rate.value, point.intensity, words, "normal"))
        if point.rate.low:
            axis.vlines(point.intensity, point.rate.low, point.rate.high, color=palette[name])
    if found:
        look = {"hue": names, "style": names, "palette": palette, "s": 30, "zorder": 3}
        seaborn.scatterplot(x=across[: len(found)], y=rates, ax=axis, **look)
        seaborn.move_legend(axis, "lower right")
    for precision, peak in roofs.items():
        top = peak.rate.value
        start = top / max(slopes.values()) if slopes else left
        axis.plot(
            [start, right], [top] * 2, color=style.GREY, linestyle=LINES.get(precision, "solid")
        )
        words = f"roof of {precision}: {quantity_per_s(top, 'FLOP/s')}, {cases.framework_name(peak.record)}"
        labels.append((top, right, words, "bold"))
    for traffic, slope in slopes.items():
        end = max(tops) / slope
        line = "dashed" if traffic == READS else "solid"
        axis.plot([left, end], [left * slope, end * slope], color=style.GREY, linestyle=line)
    memory = [
        f"{traffic} {quantity_per_s(slope, 'B/s')}" for traffic, slope in sorted(slopes.items())
    ]
    title = f"{TITLES[kind]} {', '.join(memory)}"
    axis.set(title=title, xlabel="operations per byte, counted on paper", ylabel="GFLOP/s")
    axis.grid()
    style.plain_ticks(axis.xaxis)
    style.plain_ticks(axis.yaxis, 1e9)
    _label(axis, sorted(labels), step)


def _label(axis: Any, labels: list[tuple], step: float) -> None:
    """Write labels (y, x, text, weight) beside a panel, joined to their places, a step apart."""
    places: list[float] = []
    for y, x, _, _ in labels:
        height = axis.transAxes.inverted().transform(axis.transData.transform((x, y)))[1]
        places.append(max(height, places[-1] + step) if places else height)
    top = 1.0  # those that were pushed above the panel push the others down again
    for number in reversed(range(len(places))):
        places[number] = min(places[number], top)
        top = places[number] - step
    join = {"arrowstyle": "-", "color": style.GREY, "linewidth": 0.4, "relpos": (0, 0.5)}
    form = {"textcoords": "axes fraction", "va": "center", "fontsize": 7, "arrowprops": join}
    for place, (y, x, text, weight) in zip(places, labels, strict=True):
        axis.annotate(text, (x, y), (1.05, place), weight=weight, annotation_clip=False, **form)
