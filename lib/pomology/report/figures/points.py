"""Devices' values with their intervals, a panel for each setting, on one logarithmic axis."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pomology.articles import elsewhere
from pomology.format import bounded
from pomology.measure.estimate import Estimate
from pomology.report.article import comparable
from pomology.report.declaration import Declaration
from pomology.report.figures import style
from pomology.results.pool import Case
from pomology.results.record import Record

LINE_INCHES = 0.26


class Line(NamedTuple):
    """A device's line of a panel; its words stand after the marks, or in place of them.

    kind: `published`, `measured` or `other`, and the device's role.
    """

    label: str
    kind: tuple[str, str]
    words: str
    filled: Sequence[Estimate] = ()
    hollow: Sequence[Estimate] = ()


def article_figure(about: Declaration, records: Iterable[Record]) -> Any:
    """Return a figure with the metric of an article's devices and this machine's.

    A filled mark is the whole epoch with its 95 % interval, a hollow one the computing alone. A
    device without a number shows its status.
    """
    measured = comparable(records, about.metric)
    own = {_title(about, case.config) for case in measured}
    # Of a device in a panel the first row counts: an article prints some twice, and others' rows
    # have the fastest first. Those are drawn in this machine's panels alone.
    printed: dict[tuple[str, str], Line] = {}
    for row in about.published_rows:
        title = _title(about, row["config"])
        line = _published(about, row)
        if line and (title in own or not about.beside):
            printed.setdefault((title, line.label), line)
    panels = defaultdict(list)
    for (title, _), line in printed.items():
        panels[title].append(line)
    for case in measured:
        for line in _measured(about, case):
            panels[_title(about, case.config)].append(line)
    return points_figure(panels, about.drawn.axis, about.drawn.scale)


def _title(about: Declaration, config: dict) -> str:
    """Return the title of the panel of these settings."""
    names = [key for key in about.headings if key in config and key not in about.shared_panel]
    title = ", ".join(f"{about.headings[key].lower()} {config[key]}" for key in names)
    return title[:1].upper() + title[1:] or "In the article"


def _published(about: Declaration, row: dict) -> Line | None:
    """Return the line of a published value, of a time next to rates as operations a second."""
    if about.metric == "flops_per_s" and row["flops_per_s"]:
        label, value = row["label"], row["flops_per_s"]
    elif row["metric"] in (about.metric, "status"):
        label, value = row["device"] or "the article", row["si"]
    else:
        return None
    words = about.drawn.show(value) if value else row["printed"] or row["note"]
    marks = [Estimate(value)] if value else []
    doubtful = elsewhere.SERIOUS.intersection(row.get("faults", ()))
    look = {"hollow" if doubtful else "filled": marks}
    return Line(label, ("published", row["role"]), words, **look)


def _measured(about: Declaration, case: Case) -> Iterator[Line]:
    """Yield the lines of a case: a line for each metric, or else how it ended."""
    shared = [key for key in about.shared_panel if case.config.get(key, "none") != "none"]
    words = [f"{about.headings[key].lower()} {case.config[key]}" for key in shared]
    label = ", ".join([case.first["device"], case.framework, *words])
    kind = ("measured", case.kind)
    metrics = about.series or (about.metric,)
    values = {metric: case.values[metric] for metric in metrics if metric in case.values}
    for metric, whole in values.items():
        if whole.value > 0:
            name = f"{label}, {metric.split('_')[0]}" if about.series else label
            part = case.values.get(f"compute_{metric}")
            apart = part and bounded(part) and bounded(whole) and part.high < whole.low
            parts = [part] if apart else []
            yield Line(name, kind, about.drawn.show(whole.value), [whole], parts)
    if not values and case.status != "ok":
        yield Line(label, kind, case.status)


def points_figure(panels: dict[str, list[Line]], label: str, unit: float = 1.0) -> Any:
    """Return the panels below each other. label: of the axis, whose numbers are in `unit`."""
    if not panels:
        return style.nothing()
    heights = [len(lines) + 1.1 for lines in panels.values()]
    figure = style.figure_of(style.WIDTH, 0.9 + LINE_INCHES * sum(heights))
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    looks = {}
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        axis.set(title=title, ylim=(len(lines) - 0.4, -0.6), xscale="log")
        axis.set_yticks(range(len(lines)), [line.label for line in lines])
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="x")
        for y, line in enumerate(lines):
            name, colour, mark = style.LOOKS.get(line.kind, style.LOOKS["published", ""])
            _draw(axis, y, line, colour, mark)
            looks[name] = {"color": colour, "marker": mark, "linestyle": "none"}
    left, right = axes[0].get_xlim()
    room = max(1.5, (right / left) ** 0.3)  # for words after the last mark
    axes[0].set_xlim(left, room * right)
    axes[-1].set_xlabel(label)
    style.plain_ticks(axes[-1].xaxis, unit)
    style.key(figure, looks)
    return figure


def _draw(axis: Any, y: int, line: Line, colour: str, mark: str) -> None:
    """Draw a line: its marks with their intervals, and its words after all of them."""
    marks = [(each, colour) for each in line.filled] + [(each, "none") for each in line.hollow]
    if not marks:  # words at the left edge
        edge = axis.get_yaxis_transform()
        axis.text(0.01, y, line.words, transform=edge, va="center", style="italic")
        return
    for each, fill in marks:
        if each.low is not None:
            axis.plot((each.low, each.high), (y, y), color=colour, linewidth=2)
        axis.plot(each.value, y, mark, color=colour, markerfacecolor=fill)
    right = max(each.high or each.value for each, _ in marks)
    offset = {"xytext": (8, 0), "textcoords": "offset points"}
    axis.annotate(line.words, (right, y), va="center", **offset)
