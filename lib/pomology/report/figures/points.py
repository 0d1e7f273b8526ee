"""Marks of devices with their intervals, a panel for each setting, on one logarithmic axis."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pomology.measure.estimate import Estimate
from pomology.report.figures import style

MOST_PANELS = 30  # of a figure: more take minutes to lay out, and nobody looks at them
LINE_INCHES = 0.26
DODGE = 0.25  # how far marks of one line stand above and below it, where it has several
AREAS = {
    "small": 1 / 8,
    "filled": 1,
    "hollow": 1,
}  # of a mark's looks, each drawn above those before it


class Mark(NamedTuple):
    """A value and its interval. look: `filled`, `hollow`, or `small` for one of several repeats, behind their mean."""

    number: Estimate
    look: str = "filled"


@dataclass
class Line:
    """A line of a panel. about: `published` or `measured`, and the device's role. words: behind the marks, or in place
    of them. peak: the device's best, an upright stroke."""

    label: str
    about: tuple[str, str]
    words: str
    marks: list[Mark] = field(default_factory=list)
    peak: float | None = None

    @property
    def device(self) -> str:
        return style.DEVICES.get(self.about, "other devices")

    @property
    def reach(self) -> list[float]:
        """All that is drawn of it on a logarithmic axis."""
        values = [
            value
            for mark in self.marks
            for value in (mark.number.value, mark.number.low, mark.number.high)
        ]
        return [value for value in (*values, self.peak) if value and value > 0]


def value_line(
    label: str, about: tuple[str, str], value: float, show: Callable[[float], str]
) -> Line:
    """A line with one mark, which has no interval."""
    return Line(label, about, show(value), [Mark(Estimate(value))])


def points_figure(panels: dict[str, list[Line]], label: str, unit: float = 1.0) -> Any:
    """The panels, below each other. label: of the axis, whose numbers are in `unit`. The key names colours."""
    shown, more = dict(list(panels.items())[:MOST_PANELS]), len(panels) - MOST_PANELS
    if not shown:
        return style.nothing()
    everything = [line for lines in shown.values() for line in lines]
    reach = [value for line in everything for value in line.reach] or [1.0]
    low, high = min(reach), max(reach)
    heights = [len(lines) + 1.1 for lines in shown.values()]
    figure = style.figure_of(style.WIDTH, 0.55 + LINE_INCHES * sum(heights) + 0.35)
    axes = figure.subplots(len(shown), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (title, lines) in zip(axes, shown.items(), strict=True):
        limits = (
            low / 1.6,
            high * 2 * (high / low) ** 0.3,
        )  # room for the words behind the last mark
        axis.set(title=title, ylim=(len(lines) - 0.4, -0.6), xscale="log", xlim=limits)
        axis.grid(axis="x")
        for place, line in enumerate(lines):
            if line.peak:
                axis.plot(
                    [min(line.reach), line.peak], [place] * 2, color=style.GREY, linewidth=0.6
                )
                axis.plot(
                    [line.peak], [place], "|", color=style.GREY, markersize=9, markeredgewidth=1.6
                )
            # Words stand behind all that is drawn, a wide interval too, or where the marks would be.
            form = {"textcoords": "offset points", "va": "center", "fontsize": 9}
            right, slant = max(line.reach, default=limits[0]), "normal" if line.reach else "italic"
            axis.annotate(line.words, (right, place), (8, 0), style=slant, **form)
        draw_marks(axis, ((line.device, place, line.marks) for place, line in enumerate(lines)))
        axis.set_yticks(range(len(lines)), [line.label for line in lines])
        axis.tick_params(axis="y", length=0)
    style.plain_ticks(axis.xaxis, unit)
    axis.set_xlabel(f"{label}; {more:,} more settings are in the table only" if more > 0 else label)
    style.device_key(figure, (line.device for line in everything))
    return figure


def draw_marks(
    axis: Any, marked: Iterable[tuple[str, float, list[Mark]]], size: float = 45
) -> None:
    """Marks of devices at their places on the other axis. What one line has several of is moved apart a little.

    The intervals are those of the journal. seaborn's own (of pointplot) would be computed from the marks, and its dodge
    moves by colour, which here is the device's: so marks and intervals are given their places.
    """
    import pandas
    import seaborn

    rows = []
    for device, place, marks in marked:
        names = ["repeats" if mark.look == "small" else number for number, mark in enumerate(marks)]
        levels = list(dict.fromkeys(names))
        middle = (len(levels) - 1) / 2
        for name, (number, look) in zip(names, marks, strict=True):
            y = place + DODGE * (levels.index(name) - middle) / max(1, middle)
            # An interval down to zero has no end on a logarithmic axis: it is drawn to the edge.
            low = number.low if number.low is None else max(number.low, axis.get_xlim()[0])
            rows.append((device, y, number.value, low, number.high, look))
    frame = pandas.DataFrame(rows, columns=["device", "y", "value", "low", "high", "look"])
    form = {
        "y": "y",
        "hue": "device",
        "hue_order": list(style.COLOURS),
        "palette": style.COLOURS,
        "ax": axis,
    }
    form |= {"legend": False}
    shapes = {
        "style": "device",
        "style_order": list(style.MARKS),
        "markers": style.MARKS,
        "linewidth": 0,
    }
    # Where an axis has no label, seaborn makes all its ticks to see whether it needs one: a third of a figure's time.
    axis.set(xlabel=" ", ylabel=" ")
    ends = frame[frame["high"].notna()].melt(
        ["device", "y"], ["low", "high"], value_name="x", ignore_index=False
    )
    if len(ends):
        span = {"units": ends.index, "estimator": None, "solid_capstyle": "butt", "linewidth": 2}
        seaborn.lineplot(ends, x="x", **span, **form)
    for look, share in AREAS.items():
        if len(chosen := frame[frame["look"] == look]):
            seaborn.scatterplot(chosen, x="value", zorder=3, s=share * size, **shapes, **form)
            if look == "hollow":
                drawn = axis.collections[-1]
                drawn.set(edgecolor=drawn.get_facecolor(), facecolor="none", linewidth=1)
    axis.set(xlabel=None, ylabel=None)
