"""An article's devices and this machine's: what the figure of an experiment shows of each."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from pomology.articles import elsewhere, published
from pomology.format import rounded
from pomology.measure.estimate import Estimate
from pomology.report.article import comparable, resolved
from pomology.report.declaration import Declaration
from pomology.report.figures.points import Line, Mark, points_figure
from pomology.report.figures.style import styled
from pomology.results.pool import Case, pool

if TYPE_CHECKING:
    import pandas


@styled
def article_figure(about: Declaration, frame: pandas.DataFrame) -> Any:
    """Return a figure with the metric of every device, a panel for each row of settings.

    A filled mark is the whole epoch with its 95 % interval, a hollow one the computing alone; small
    ones are the repeats. A device without a number shows its status.
    """
    measured = pool(comparable(frame, about.metric))
    several = frame["framework"].nunique() > 1
    lines = _published(about, measured)
    for case in measured:
        lines += [(case.config, each) for each in _measured_lines(about, case, several)]
    panels = defaultdict(list)
    for config, line in lines:
        panels[_title(about, config)].append(line)
    return points_figure(panels, about.drawn.axis, about.drawn.scale)


def _title(about: Declaration, config: dict) -> str:
    """Return the title of the panel of these settings."""
    names = config.keys() - set(about.shared_panel)
    parts = [
        f"{heading.lower()} {config[key]}"
        for key, heading in about.headings.items()
        if key in names
    ]
    title = ", ".join(parts)
    return title[:1].upper() + title[1:] or "In the article"


def _published(about: Declaration, measured: list[Case]) -> list[tuple[dict, Line]]:
    """Return the published devices of the figure, each with its settings."""
    lines = {}
    for row in about.beside:
        if about.article != published.TODAY and row["metric"] in (about.metric, "status"):
            line = _published_line(about, row["device"] or "the article", row, row["si"])
            # Some are printed twice.
            lines.setdefault((row["device"], str(row["config"])), (row["config"], line))
    found = list(lines.values())
    if about.metric == "flops_per_s":
        found += _counted(about, measured)
    return found


def _counted(about: Declaration, measured: list[Case]) -> list[tuple[dict, Line]]:
    """Return published times as operations a second, of each device and settings the fastest.

    In `today/` those with settings of this machine's cases, if it has any.
    """
    panels = {_title(about, case.config) for case in measured}
    everything = about.article != published.TODAY or not panels
    fastest = {}
    for row in about.beside:  # others' rows have the fastest first
        panel = _title(about, row["config"])
        if row["flops_per_s"] and (everything or panel in panels):
            fastest.setdefault((row["label"], panel), row)
    return [
        (row["config"], _published_line(about, label, row, row["flops_per_s"]))
        for (label, _), row in fastest.items()
    ]


def _published_line(about: Declaration, label: str, row: dict, value: float | None) -> Line:
    """Return a published value as a line: hollow if its fault is serious; as printed if none."""
    kind = ("published", row["role"])
    if not value:
        return Line(label, kind, row["printed"] or row["note"])
    doubtful = elsewhere.SERIOUS.intersection(row.get("faults", ()))
    mark = Mark(Estimate(value), "hollow" if doubtful else "filled")
    return Line(label, kind, about.drawn.show(value), [mark])


def _measured_lines(about: Declaration, case: Case, several: bool) -> list[Line]:
    """Return the lines of a case. several: there are several frameworks, so that each is named."""
    words = [case.first["device"]]
    if several:
        words.append(case.framework)
    shared = [key for key in about.shared_panel if case.config.get(key, "none") != "none"]
    words += [f"{about.headings[key].lower()} {case.config[key]}" for key in shared]
    label = ", ".join(words)
    parts = {metric: f"{label}, {metric.split('_')[0]}" for metric in about.series}
    lines = [_measured_line(about, case, name, metric) for metric, name in parts.items()]
    lines = [line for line in lines if line]
    # The article's own case shows why it has no number; a smaller one need not.
    if lines or (about.series and case.first["scaled"]):
        return lines
    line = _measured_line(about, case, label, about.metric)
    return [line or Line(label, ("measured", case.kind), case.last["status"])]


def _measured_line(about: Declaration, case: Case, label: str, metric: str) -> Line | None:
    """Return a metric of a case as a line, with the computing alone where that is told apart."""
    show = about.drawn.show
    whole = case.values.get(metric)
    if whole is None or not whole.value > 0:
        return None
    words = rounded(whole, show)
    marks = [Mark(whole)]
    part = case.values.get(f"compute_{metric}")
    if part and resolved(part, whole):
        words += f", computing {rounded(part, show)}"
        marks.append(Mark(part, "hollow"))
    repeats = [number.value for number in case.each[metric] if number.value > 0]
    repeats = repeats if len(repeats) > 1 else []
    return Line(label, ("measured", case.kind), words, marks, repeats=repeats)
