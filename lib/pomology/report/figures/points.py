"""Marks of devices with their intervals, a panel for each setting, on one logarithmic axis."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pomology.measure.estimate import Estimate
from pomology.report.figures import style

MOST_PANELS = 30  # of a figure: more take minutes to lay out, and nobody looks at them
LINE_INCHES = 0.26
DODGE = 0.25  # how far marks of one line stand above and below it, where it has several


class Mark(NamedTuple):
    """A value and its interval. look: `filled` or `hollow`."""

    number: Estimate
    look: str = "filled"


class Line(NamedTuple):
    """A line of a panel.

    about: `published` or `measured`, and the device's role. words: behind the marks, or in place of
    them. peak: the device's best, an upright stroke. repeats: what the first mark is the mean of.
    """

    label: str
    about: tuple[str, str]
    words: str
    marks: Sequence[Mark] = ()
    peak: float | None = None
    repeats: Sequence[float] = ()

    @property
    def device(self) -> str:
        return style.DEVICES.get(self.about, "other devices")

    @property
    def reach(self) -> list[float]:
        """All that is drawn of it on a logarithmic axis."""
        ends = [end for mark in self.marks for end in (mark.number.low, mark.number.high)]
        values = [mark.number.value for mark in self.marks]
        return [
            value for value in (*values, *ends, *self.repeats, self.peak) if value and value > 0
        ]


def value_line(
    label: str, about: tuple[str, str], value: float, show: Callable[[float], str]
) -> Line:
    """Return a line with one mark, which has no interval."""
    return Line(label, about, show(value), [Mark(Estimate(value))])


def points_figure(panels: dict[str, list[Line]], label: str, unit: float = 1.0) -> Any:
    """Return the panels below each other. label: of the axis, whose numbers are in `unit`."""
    shown = dict(list(panels.items())[:MOST_PANELS])
    if not shown:
        return style.nothing()
    lines = [line for panel in shown.values() for line in panel]
    reach = [value for line in lines for value in line.reach] or [1.0]
    low, high = min(reach), max(reach)
    limits = (low / 1.6, high * 2 * (high / low) ** 0.3)  # room for words behind the last mark
    heights = [len(panel) + 1.1 for panel in shown.values()]
    figure = style.figure_of(style.WIDTH, 0.9 + LINE_INCHES * sum(heights))
    axes = figure.subplots(len(shown), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (title, panel) in zip(axes, shown.items(), strict=True):
        axis.set(title=title, ylim=(len(panel) - 0.4, -0.6), xscale="log", xlim=limits)
        axis.grid(axis="x")
        axis.set_yticks(range(len(panel)), [line.label for line in panel])
        axis.tick_params(axis="y", length=0)
        for place, line in enumerate(panel):
            _draw(axis, place, line)
    if len(panels) > len(shown):
        label += f"; {len(panels) - len(shown):,} more settings are in the table only"
    axes[-1].set_xlabel(label)
    style.plain_ticks(axes[-1].xaxis, unit)
    style.device_key(figure, (line.device for line in lines))
    return figure


def _draw(axis: Any, place: int, line: Line) -> None:
    """Draw a line: its peak, its marks with their intervals, its repeats, its words."""
    edge, _ = axis.get_xlim()
    if line.peak:
        ends = (min(line.reach), line.peak)
        axis.plot(ends, (place, place), color=style.GREY, linewidth=0.6)
        look = {"markersize": 9, "markeredgewidth": 1.6}
        axis.plot(line.peak, place, "|", color=style.GREY, **look)
    colour = style.COLOURS[line.device]
    shape = style.MARKS[line.device]
    spread = DODGE if len(line.marks) > 1 else 0
    for number, mark in enumerate(line.marks):
        y = place + spread * (2 * number / max(1, len(line.marks) - 1) - 1)
        value, low, high = mark.number.value, mark.number.low, mark.number.high
        if high is not None:
            # An interval down to zero has no end on a logarithmic axis: it is drawn to the edge.
            span = (max(low, edge), high)
            axis.plot(span, (y, y), color=colour, linewidth=2, solid_capstyle="butt")
        fill = "none" if mark.look == "hollow" else colour
        axis.plot(value, y, shape, color=colour, markerfacecolor=fill)
    below = [place + DODGE] * len(line.repeats)
    axis.plot(line.repeats, below, shape, color=colour, markersize=2, linestyle="none")
    # Words stand behind all that is drawn, a wide interval too, or where the marks would be.
    right = max(line.reach, default=edge)
    slant = "normal" if line.reach else "italic"
    form = {"textcoords": "offset points", "va": "center", "fontsize": 9, "style": slant}
    axis.annotate(line.words, (right, place), (8, 0), **form)
