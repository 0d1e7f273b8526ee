"""An article's devices and this machine's: what the figure of an experiment shows of each."""

from __future__ import annotations

from collections import defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pomology.articles import elsewhere, published
from pomology.format import rounded
from pomology.measure.estimate import Estimate
from pomology.report.article import comparable, resolved
from pomology.report.declaration import Declaration
from pomology.report.figures.points import Line, Mark, points_figure, value_line
from pomology.report.figures.style import styled
from pomology.results.pool import Case, pool

if TYPE_CHECKING:
    import pandas


@styled
def article_figure(about: Declaration, frame: pandas.DataFrame) -> Any:
    """Return a figure with the metric of every device, a panel for each row of the article's settings.

    A filled mark is the whole epoch with its 95 % interval, a hollow one the computing alone; small ones are the
    repeats. What has no time shows its status.
    """
    panels = defaultdict[str, list[Line]](list)
    cases_here = pool(comparable(frame, about.metric))
    for row in _published(about, cases_here):
        panels[_title(about, row["config"])].append(_published_line(about, row))
    if about.metric == "flops_per_s" and about.article != published.TODAY:
        for row in about.beside:
            if row["flops_per_s"]:
                rate = row | {"device": row["label"], "si": row["flops_per_s"]}
                panels[_title(about, row["config"])].append(_published_line(about, rate))
    several = frame["framework"].nunique() > 1
    for case in cases_here:
        panels[_title(about, case.config)] += _measured(about, case, several)
    return points_figure(
        {title: lines for title, lines in panels.items() if lines},
        about.drawn.axis,
        about.drawn.scale,
    )


def _title(about: Declaration, config: dict) -> str:
    """Return the title of the panel of these settings."""
    names = config.keys() - set(about.shared_panel)
    title = ", ".join(
        f"{heading.lower()} {config[key]}"
        for key, heading in about.headings.items()
        if key in names
    )
    return title[:1].upper() + title[1:] or "In the article"


def _published(about: Declaration, measured: list[Case]) -> list[dict]:
    """Return the published rows of the figure: of others' measurements those with settings of this machine's cases."""
    if about.article == published.TODAY:
        panels = {_title(about, case.config) for case in measured}
        rows = [row for row in about.beside if row["flops_per_s"]]
        rows = [row for row in rows if not panels or _title(about, row["config"]) in panels]
        fastest: dict[tuple, dict] = {}
        for row in sorted(rows, key=itemgetter("flops_per_s")):
            fastest[row["label"], _title(about, row["config"])] = row
        return [
            row | {"device": label, "si": row["flops_per_s"]} for (label, _), row in fastest.items()
        ]
    rows = {}
    for row in about.beside:
        if row["metric"] in (about.metric, "status"):
            rows.setdefault((row["device"], str(row["config"])), row)  # some are printed twice
    return list(rows.values())


def _published_line(about: Declaration, row: dict) -> Line:
    label = row["device"] or "the article"
    kind = ("published", row["role"])
    if not row["si"]:
        return Line(
            label, kind, row["printed"] or row["note"]
        )  # what has no number is shown as it is printed
    line = value_line(label, kind, row["si"], about.drawn.show)
    if elsewhere.SERIOUS.intersection(row.get("faults", ())):
        line.marks = [Mark(mark.number, "hollow") for mark in line.marks]
    return line


def _measured(about: Declaration, case: Case, several: bool) -> list[Line]:
    """Return the lines of a case. several: there are several frameworks, so that each is named."""
    show = about.drawn.show
    kind = ("measured", case.kind)
    labels = [case.first["device"]]
    if several:
        labels.append(case.framework)
    for key in about.shared_panel:
        setting = case.config.get(key, "none")
        if setting != "none":
            labels.append(f"{about.headings[key].lower()} {setting}")
    label = ", ".join(labels)
    parts = {metric.split("_")[0]: _marks(case, metric) for metric in about.series}
    # The article's own case shows why it has no number; each smaller one that was too big as well need not.
    if any(parts.values()) or (about.series and case.first["scaled"]):
        return [
            Line(f"{label}, {part}", kind, rounded(marks[0].number, show), marks)
            for part, marks in parts.items()
            if marks
        ]
    marks = _marks(case, about.metric)
    if not marks:
        return [Line(label, kind, case.last["status"])]
    words = [rounded(marks[0].number, show)]
    compute = _marks(case, f"compute_{about.metric}", "hollow")[:1]
    if compute and resolved(compute[0].number, marks[0].number):
        words.append(f"computing {rounded(compute[0].number, show)}")
        marks += compute
    return [Line(label, kind, ", ".join(words), marks)]


def _marks(case: Case, metric: str, look: str = "filled") -> list[Mark]:
    """Return the mean of the repeats, and each of them where there are several."""
    mean = case.values.get(metric)
    if mean is None or not mean.value > 0:
        return []
    marks = [Mark(mean, look)]
    if len(case.each[metric]) > 1:
        # Without their own intervals, which are within a run.
        marks += [
            Mark(Estimate(number.value), "small")
            for number in case.each[metric]
            if number.value > 0
        ]
    return marks
