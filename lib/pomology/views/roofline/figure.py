"""Draw the roofline: the best case of each experiment, and the roofs of each device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas

from pomology.format import quantity, significant
from pomology.report import figures
from pomology.results.record import Record
from pomology.views.roofline.roofs import BOTH, READS, Roofs
from pomology.views.roofline.table import points

TRAFFIC = {READS: "dotted", BOTH: "dashed"}  # lines of the bandwidths
LABELLED = 8  # points of a panel with the highest rates; the table has all
PANEL_INCHES = 2.8
NEAR = 1.6  # ratio of two roofs that share a label
# Where the number of a point may be: the middle of it, in points from the middle of the point.
PLACES = [
    (x, y) for radius in (9, 15, 21) for x in (radius, 0, -radius) for y in (radius, 0, -radius)
]
PLACES = [place for place in PLACES if place != (0, 0)]
# Points from the middle of a number to that of a point, and of another number. More is no better.
FROM_POINT, FROM_NUMBER = 9, 13
NAMES = 60  # characters of a line of names
NO_BREAK = "\u00a0"
SIZE_POINTS = (275, 200)  # of a panel, about


def roofline_figure(records: Iterable[Record], best: Roofs) -> Any:
    """Return a Figure with a panel for each kind of device, both axes logarithmic, or None.

    Sloping roofs are memory bandwidths, flat roofs are peak FLOP/s by precision. A framework has a
    colour. The fastest points have a number, and their names are below the axis.
    """
    table = points(records, best)
    table = table[table["intensity"].gt(0)]
    if table.empty:
        return None
    panels = table.groupby("kind")
    figure = figures.figure_of(figures.WIDTH, 2 + PANEL_INCHES * len(panels))
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    looks: dict[str, dict] = {}
    for axis, (kind, rows) in zip(axes, panels, strict=True):
        looks |= _draw(axis, kind, rows, best)
    figures.key(figure, looks, "%: the share of its roof that a case reaches")
    figures.fit_height(figure, axes, PANEL_INCHES * len(panels))
    return figure


def _draw(axis: Any, kind: str, rows: pandas.DataFrame, best: Roofs) -> dict[str, dict]:
    """Draw a panel, and return the looks of its frameworks and bandwidths.

    rows: its `points`.
    """
    looks: dict[str, dict] = {}
    fastest = []
    names = []
    for rank, point in enumerate(rows.sort_values("value", ascending=False).itertuples()):
        text = f"{point.name}, {point.precision}"
        if point.limit:
            text += f": {significant(100 * min(point.share_of_roof, 1), 2)} %"
        colour = figures.LOOKS.get((point.framework, kind), figures.OTHER)["colour"]
        form = {"color": colour, "marker": "o", "linestyle": "none"}
        looks[f"{point.case.framework}, {kind.upper()}"] = form
        axis.plot(point.intensity, point.value, markersize=5, **form)
        if rank < LABELLED:
            number = str(rank + 1)
            names.append(f"{number} {text}".replace(" ", NO_BREAK))
            fastest.append((number, point.intensity, point.value))
    below = ["operations per byte (estimated)", figures.wrapped("; ".join(names), NAMES)]
    axis.set(xscale="log", yscale="log", title=kind.upper())
    axis.set(xlabel="\n".join(below), ylabel="FLOP/s")
    ends = np.array(axis.get_xlim()) * (0.5, 2)
    peaks = {name: peak.rate.value for (of, name), peak in best.rates.items() if of == kind}
    memory = {name: peak.rate.value for (of, name), peak in best.bandwidths.items() if of == kind}
    for rate in peaks.values():
        axis.plot(ends, [rate] * 2, color=figures.GREY, zorder=1)
    for traffic, bandwidth in memory.items():
        roof = np.minimum(ends * bandwidth, max(peaks.values(), default=np.inf))
        form = {"color": figures.GREY, "linestyle": TRAFFIC.get(traffic, "dashed")}
        axis.plot(roof / bandwidth, roof, zorder=1, **form)
        looks[f"{kind.upper()}, {traffic}: {quantity(bandwidth, 'B/s')}"] = form
    axis.set_xlim(*ends)
    low, high = axis.get_ylim()
    axis.set_ylim(low, 2 * high)  # with room for the label of the highest roof
    for rate, names in _labels_of_roofs(peaks).items():
        text = ", ".join(f"{name} {quantity(peaks[name], 'FLOP/s')}" for name in names)
        near = rows[rows["value"].between(rate, 3 * rate)]["intensity"]
        middle = np.sqrt(ends[0] * ends[1])
        # On the side with fewer points.
        right = near.gt(middle).sum() < near.lt(middle).sum()
        form = {
            "textcoords": "offset points",
            "ha": "right" if right else "left",
            "size": figures.SIZE,
        }
        axis.annotate(text, (ends[int(right)], rate), (-3 if right else 3, 3), **form)
    _draw_numbers(axis, fastest, rows)
    axis.grid()
    figures.plain_ticks(axis.xaxis)
    figures.plain_ticks(axis.yaxis)
    return looks


def _draw_numbers(
    axis: Any, fastest: list[tuple[str, float, float]], rows: pandas.DataFrame
) -> None:
    """Draw the numbers of points, each where it is farthest from the points and other numbers.

    fastest: number, operations per byte and FLOP/s. rows: all points of the panel.
    """
    low, high = np.log([axis.get_xlim(), axis.get_ylim()]).T
    needed = [FROM_POINT] * len(rows)
    taken = (np.log(rows[["intensity", "value"]]) - low) / (high - low) * SIZE_POINTS
    taken = taken.to_numpy(dtype=float)
    for number, intensity, value in fastest:
        point = (np.log([intensity, value]) - low) / (high - low) * SIZE_POINTS
        free = [(np.hypot(*(taken - point - place).T) / needed).min() for place in PLACES]
        place = PLACES[int(np.argmax(np.minimum(free, 1)))]
        taken, needed = np.vstack([taken, point + place]), [*needed, FROM_NUMBER]
        form = {"textcoords": "offset points", "ha": "center", "va": "center", "size": figures.SIZE}
        leader = {"arrowstyle": "-", "color": figures.GREY, "linewidth": 0.6}
        leader |= {"shrinkA": 0, "shrinkB": 2, "relpos": (0.5, 0.5)}
        axis.annotate(number, (intensity, value), place, **form, arrowprops=leader)


def _labels_of_roofs(peaks: dict[str, float]) -> dict[float, list[str]]:
    """Return the precisions whose roofs share a label, by the rate of the highest of them."""
    labels: dict[float, list[str]] = {}
    for name, rate in sorted(peaks.items(), key=lambda peak: -peak[1]):
        above = next(reversed(labels), np.inf)
        if above / rate < NEAR:
            labels[above].append(name)
        else:
            labels[rate] = [name]
    return labels
