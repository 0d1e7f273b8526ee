"""The roofline as a figure: the best case of every experiment under the roofs of each device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas

from pomology.extras.roofline.table import points
from pomology.format import quantity, significant
from pomology.report.figures import style
from pomology.report.peaks import READS, Peaks
from pomology.results import cases

LINES = {"fp32": "solid", "fp16": "dashed", "bf16": "dotted", "tf32": "dashdot"}
LABEL_INCHES = 0.17  # from one label to the next
TITLES = {"cpu": "Processor", "gpu": "GPU"}


def roofline_figure(frame: pandas.DataFrame, best: Peaks) -> Any:
    """Return a matplotlib Figure with a panel for each kind of device, both axes logarithmic.

    The sloping roofs are the memory's, dashed of what only reads; the flat ones are the best rates
    by precision. Labels stand beside a panel, in the order of their heights.
    """
    found = points(frame, best)
    found = found[found["intensity"].gt(0)]
    panels = {}
    for kind in TITLES:
        own = found[found["kind"].eq(kind)]
        rates = {name: peak for (of, name), peak in best.rates.items() if of == kind}
        bandwidths = {
            name: peak.value for (of, name), peak in best.bandwidths.items() if of == kind
        }
        if len(own) or rates:
            panels[kind] = (own, rates, bandwidths)
    if not panels:
        return style.nothing()
    heights = [max(3, LABEL_INCHES * (len(own) + len(rates))) for own, rates, _ in panels.values()]
    figure = style.figure_of(style.WIDTH, sum(heights) + len(heights))
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, kind in zip(axes, panels, strict=True):
        _draw(axis, kind, *panels[kind])
    return figure


def _draw(axis: Any, kind: str, found: pandas.DataFrame, rates: dict, bandwidths: dict) -> None:
    """Draw a panel. found: its points; rates: its Peaks by precision; bandwidths: by traffic."""
    tops = [peak.value for peak in rates.values()] or [found["value"].max()]
    ridges = [top / bandwidth for top in tops for bandwidth in bandwidths.values()]
    across = [*found["intensity"], *ridges] or [1.0]
    left, right = min(across) / 4, max(across) * 4
    lowest = min([*found["value"], *tops, *(left * rate for rate in bandwidths.values())])
    highest = max([*found["value"], *tops])
    limits = {"xlim": (left, right), "ylim": (lowest / 2, highest * 2)}
    axis.set(xscale="log", yscale="log", **limits)
    labels = []
    for point in found.itertuples():
        framework = point.case.framework
        text = f"{point.name}, {framework}, {point.precision}"
        if point.limit:
            text += f": {significant(100 * min(point.share_of_roof, 1), 2)} %"
        labels.append((point.value, point.intensity, text, "normal"))
        colour = style.SHADES.get((point.framework, kind), style.GREY)
        if point.rate.low:
            axis.vlines(point.intensity, point.rate.low, point.rate.high, color=colour)
        axis.plot(point.intensity, point.value, "o", color=colour, markersize=5, label=framework)
    for precision, peak in rates.items():
        start = peak.value / max(bandwidths.values()) if bandwidths else left
        line = LINES.get(precision, "solid")
        axis.plot([start, right], [peak.value] * 2, color=style.GREY, linestyle=line)
        reached = f"{quantity(peak.value, 'FLOP/s')}, {cases.framework_name(peak.record)}"
        labels.append((peak.value, right, f"roof of {precision}: {reached}", "bold"))
    for traffic, bandwidth in bandwidths.items():
        ends = np.array([left, max(tops) / bandwidth])
        line = "dashed" if traffic == READS else "solid"
        axis.plot(ends, ends * bandwidth, color=style.GREY, linestyle=line)
    memory = [f"{name} {quantity(rate, 'B/s')}" for name, rate in sorted(bandwidths.items())]
    axis.set(title=f"{TITLES[kind]} {', '.join(memory)}", ylabel="GFLOP/s")
    axis.set_xlabel("operations per byte, counted on paper")
    handles, names = axis.get_legend_handles_labels()
    shown = dict(zip(names, handles, strict=True))
    axis.legend(shown.values(), shown.keys(), loc="lower right")
    axis.grid()
    style.plain_ticks(axis.xaxis)
    style.plain_ticks(axis.yaxis, 1e9)
    join = {"arrowstyle": "-", "color": style.GREY, "linewidth": 0.4, "relpos": (0, 0.5)}
    form = {"textcoords": "axes fraction", "va": "center", "fontsize": 7, "arrowprops": join}
    places = np.linspace(0, 1, len(labels))
    for place, (y, x, text, weight) in zip(places, sorted(labels), strict=True):
        axis.annotate(text, (x, y), (1.05, place), weight=weight, annotation_clip=False, **form)
