"""Draw the roofline: the best case of each experiment, and the roofs of each device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas

from pomology.format import quantity, significant
from pomology.report import figures
from pomology.results.record import Record
from pomology.views.roofline.roofs import Roofs
from pomology.views.roofline.table import points

LABELLED = 8  # points of a panel with the highest rates; the table has all
PANEL_INCHES = 4.0


def roofline_figure(records: Iterable[Record], best: Roofs) -> Any:
    """Return a matplotlib Figure with a panel for each kind of device, both axes logarithmic.

    Sloping roofs are memory bandwidths, flat roofs are peak FLOP/s by precision. A framework has a
    colour. The labels of the fastest points, and of the roofs, are next to a panel, in the order of
    their heights.
    """
    table = points(records, best)
    table = table[table["intensity"].gt(0)]
    if table.empty:
        return figures.nothing()
    panels = table.groupby("kind")
    figure = figures.figure_of(figures.WIDTH, PANEL_INCHES * len(panels) + 0.5)
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    looks: dict[str, dict] = {}
    for axis, (kind, rows) in zip(axes, panels, strict=True):
        looks |= _draw(axis, kind, rows, best)
    looks["roof: peak FLOP/s"] = {"color": figures.GREY}
    looks["roof: memory bandwidth"] = {"color": figures.GREY, "linestyle": "dashed"}
    figures.key(figure, looks)
    return figure


def _draw(axis: Any, kind: str, rows: pandas.DataFrame, best: Roofs) -> dict[str, dict]:
    """Draw a panel, and return the looks of its frameworks. rows: its `points`."""
    labels = []
    looks = {}
    for rank, point in enumerate(rows.sort_values("value", ascending=False).itertuples()):
        text = f"{point.name}, {point.precision}"
        if point.limit:
            text += f": {significant(100 * min(point.share_of_roof, 1), 2)} % of its roof"
        if rank < LABELLED:
            labels.append((point.value, point.intensity, text))
        colour = figures.LOOKS.get((point.framework, kind), figures.OTHER)["colour"]
        form = {"color": colour, "marker": "o", "linestyle": "none"}
        looks[f"{point.case.framework}, {kind.upper()}"] = form
        axis.plot(point.intensity, point.value, markersize=5, **form)
    axis.set(xscale="log", yscale="log", title=kind.upper())
    axis.set(xlabel="operations per byte (estimated)", ylabel="GFLOP/s")
    ends = np.array(axis.get_xlim()) * (0.5, 2)
    peaks = {name: peak.rate.value for (of, name), peak in best.rates.items() if of == kind}
    memory = {name: peak.rate.value for (of, name), peak in best.bandwidths.items() if of == kind}
    for precision, rate in peaks.items():
        axis.plot(ends, [rate] * 2, color=figures.GREY)
        labels.append((rate, ends[1], f"roof of {precision}: {quantity(rate, 'FLOP/s')}"))
    for traffic, bandwidth in memory.items():
        roof = np.minimum(ends * bandwidth, max(peaks.values(), default=np.inf))
        axis.plot(roof / bandwidth, roof, color=figures.GREY, linestyle="dashed")
        label = f"memory bandwidth, {traffic}: {quantity(bandwidth, 'B/s')}"
        labels.append((roof[1], roof[1] / bandwidth, label))
    axis.grid()
    figures.plain_ticks(axis.xaxis)
    figures.plain_ticks(axis.yaxis, 1e9)
    join = {"arrowstyle": "-", "color": figures.GREY, "linewidth": 0.4, "relpos": (0, 0.5)}
    form = {"textcoords": "axes fraction", "va": "center", "fontsize": 8, "arrowprops": join}
    # Labels are at equal distances, since those of near points would overlap.
    heights = np.linspace(0, 1, len(labels))
    for height, (rate, intensity, text) in zip(heights, sorted(labels), strict=True):
        axis.annotate(text, (intensity, rate), (1.05, height), annotation_clip=False, **form)
    return looks
