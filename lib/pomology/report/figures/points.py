"""Marks of devices with their intervals, a panel for each setting, on one logarithmic axis."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pomology.measure.estimate import Estimate
from pomology.report.figures.style import COLOURS, DEVICES, GREY, MARKS, device_key, figure_of, nothing, plain_ticks

MOST_PANELS = 30  # of a figure: more take minutes to lay out, and nobody looks at them
LINE_INCHES = 0.26
DODGE = 0.25  # how far marks of one line stand above and below it, where it has several


@dataclass(frozen=True)
class Mark:
    """A value and its interval. hollow: drawn as an outline. small: one of several repeats, behind their mean."""

    number: Estimate
    hollow: bool = False
    small: bool = False


@dataclass
class Line:
    """A line of a panel. words: behind the marks, or in place of them. peak: the device's best, an upright stroke."""

    label: str
    source: str  # published or measured
    role: str  # cpu, gpu, or rival where it is published
    words: str
    marks: list[Mark] = field(default_factory=list)
    peak: float | None = None

    @property
    def device(self) -> str:
        return DEVICES.get((self.source, self.role), DEVICES["published", ""])

    @property
    def reach(self) -> list[float]:
        """All that is drawn of it on a logarithmic axis."""
        numbers = (mark.number for mark in self.marks)
        values = [value for number in numbers for value in (number.value, number.low, number.high)]
        return [value for value in (*values, self.peak) if value and value > 0]


def value_line(label: str, about: tuple[str, str], value: float, show: Callable[[float], str]) -> Line:
    """A line with one mark, which has no interval. about: source and role."""
    return Line(label, *about, show(value), [Mark(Estimate(value))])


def points_figure(panels: dict[str, list[Line]], label: str, unit: float = 1.0, key: bool = False) -> Any:
    """The panels, below each other. label: of the axis, whose numbers are in `unit`. key: explain colours and marks.

    Returns a matplotlib Figure.
    """
    shown, more = dict(list(panels.items())[:MOST_PANELS]), len(panels) - MOST_PANELS
    if not shown:
        return nothing()
    reach = [value for lines in shown.values() for line in lines for value in line.reach]
    low, high = min(reach, default=1.0), max(reach, default=1.0)
    limits = low / 1.6, high * 2 * (high / low) ** 0.3  # room for the words behind the last mark
    heights = [len(lines) + 1.1 for lines in shown.values()]
    figure = figure_of(8, 0.55 + LINE_INCHES * sum(heights) + 0.35 * key)
    axes = figure.subplots(len(shown), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (title, lines) in zip(axes, shown.items(), strict=True):
        axis.set_title(title)
        axis.set_xscale("log")
        axis.set_xlim(limits)
        axis.set_ylim(len(lines) - 0.4, -0.6)
        axis.grid(axis="x")
        draw_lines(axis, lines)
        axis.set_yticks(range(len(lines)), [line.label for line in lines])
        axis.tick_params(axis="y", length=0)
    plain_ticks(axis.xaxis, unit)
    axis.set_xlabel(f"{label}; {more:,} more settings are in the table only" if more > 0 else label)
    if key:
        device_key(figure, (line.device for lines in shown.values() for line in lines))
    return figure


def draw_lines(axis: Any, lines: list[Line]) -> None:
    """The lines of a panel, from top to bottom."""
    for place, line in enumerate(lines):
        if line.peak:
            axis.plot([min(line.reach), line.peak], [place] * 2, color=GREY, linewidth=0.6)
            axis.plot([line.peak], [place], "|", color=GREY, markersize=9, markeredgewidth=1.6)
        # Words stand behind all that is drawn, a wide interval too, or where the marks would be.
        form = {"textcoords": "offset points", "va": "center", "fontsize": 9}
        right = max(line.reach, default=axis.get_xlim()[0])
        axis.annotate(line.words, (right, place), (8, 0), style="normal" if line.reach else "italic", **form)
    draw_marks(axis, ((line.device, place, line.marks) for place, line in enumerate(lines)))


def draw_marks(axis: Any, marked: Iterable[tuple[str, float, list[Mark]]], size: float = 45) -> None:
    """Marks of devices at their places on the other axis. What one line has several of is moved apart a little.

    The intervals are those of the journal. seaborn's own (of pointplot) would be computed from the marks, and its dodge
    moves by colour, which here is the device's: so marks and intervals are given their places.
    """
    import pandas
    import seaborn

    rows = []
    for device, place, marks in marked:
        levels = list(dict.fromkeys("repeats" if mark.small else number for number, mark in enumerate(marks)))
        for number, mark in enumerate(marks):
            level = levels.index("repeats" if mark.small else number) - (len(levels) - 1) / 2
            y = place + DODGE * level / max(1, (len(levels) - 1) / 2)
            # An interval down to zero has no end on a logarithmic axis: it is drawn to the edge.
            low = mark.number.low if mark.number.low is None else max(mark.number.low, axis.get_xlim()[0])
            rows.append((device, y, mark.number.value, low, mark.number.high, mark.hollow, mark.small))
    frame = pandas.DataFrame(rows, columns=["device", "y", "value", "low", "high", "hollow", "small"])
    look = {"y": "y", "hue": "device", "hue_order": list(COLOURS), "palette": COLOURS, "ax": axis, "legend": False}
    ends = frame[frame["high"].notna()].melt(["device", "y"], ["low", "high"], value_name="x", ignore_index=False)
    if len(ends):
        span = {"units": ends.index, "estimator": None, "solid_capstyle": "butt", "linewidth": 2}
        seaborn.lineplot(ends, x="x", **span, **look)
    for hollow, small, area in ((False, True, size / 8), (False, False, size), (True, False, size)):
        chosen = frame[(frame["hollow"] == hollow) & (frame["small"] == small)]
        if len(chosen):
            marks = {"style": "device", "style_order": list(MARKS), "markers": MARKS, "linewidth": 0, "s": area}
            seaborn.scatterplot(chosen, x="value", zorder=3, **marks, **look)
            if hollow:
                drawn = axis.collections[-1]
                drawn.set(edgecolor=drawn.get_facecolor(), facecolor="none", linewidth=1)
    axis.set(xlabel=None, ylabel=None)
