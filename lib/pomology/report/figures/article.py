"""An article's devices and this machine's: what the figure of an experiment shows of each."""

from __future__ import annotations

from typing import Any

from pomology.articles import published
from pomology.measure.estimate import Estimate
from pomology.report.declaration import Declaration
from pomology.report.figures.points import Line, Mark, points_figure, value_line
from pomology.report.figures.style import styled
from pomology.results import cases
from pomology.results.record import Record


@styled
def article_figure(about: Declaration, records: list[Record]) -> Any:
    """The metric of every device, a panel for each row of the article's settings.

    A filled mark is the whole epoch with its 95 % interval, a hollow one the computing alone; small ones are the
    repeats. What has no time shows its status. Returns a matplotlib Figure.
    """
    return points_figure(panels(about, records), about.drawn.axis, about.drawn.scale)


def panels(about: Declaration, records: list[Record]) -> dict[str, list[Line]]:
    """For each row of settings, in the article's order, the lines to draw."""
    made: dict[str, list[Line]] = {}

    def panel(config: dict) -> list[Line]:
        apart = {key: heading for key, heading in about.headings.items() if key not in about.shared_panel}
        title = ", ".join(f"{heading.lower()} {config[key]}" for key, heading in apart.items() if key in config)
        return made.setdefault(title[:1].upper() + title[1:] or "In the article", [])

    seen = set()
    for row in published.rows(experiment=about.experiment):
        key = (row["device"], str(row["config"]))
        if row["metric"] in (about.metric, "status") and key not in seen:  # a row that is printed twice is one device
            seen.add(key)
            label, kind = row["device"] or "the article", ("published", row["role"])
            # What has no number is shown as the words that are printed.
            words = Line(label, *kind, row["printed"] or row["note"])
            panel(row["config"]).append(value_line(label, kind, row["si"], about.drawn.show) if row["si"] else words)
    for other, settings in (about.published_rates or {}).items():
        for row in published.rows(experiment=other):
            if row["flops"] and row["si"]:
                name, _, version = row["framework"].partition(" ")
                by = version[:4] or cases.FRAMEWORKS.get(name.replace("pytorch", "torch"), name)
                label, rate = f"{row['device']}, {by}", row["flops"] / row["si"]
                line = value_line(label, ("published", row["role"]), rate, about.drawn.show)
                panel(row["config"] | settings).append(line)
    several = len({record.framework for record in records}) > 1
    for repeats in cases.groups(cases.comparable(records, about.metric)):
        panel(repeats[0].config).extend(_measured(about, repeats, several))
    return {title: lines for title, lines in made.items() if lines}


def _measured(declared: Declaration, repeats: list[Record], several: bool) -> list[Line]:
    """The lines of a case. several: there are several frameworks, so that each is named."""
    first = repeats[0]
    name = cases.chip_name(first) + (f", {cases.FRAMEWORKS.get(first.framework, first.framework)}" * several)
    shared = [
        (declared.headings[key].lower(), first.config[key]) for key in declared.shared_panel if key in first.config
    ]
    label = ", ".join([name, *(f"{heading} {value}" for heading, value in shared if value != "none")])
    about = ("measured", cases.kind(first))
    parts = {metric.split("_")[0]: _marks(repeats, metric) for metric in declared.series}
    # The article's own case shows why it has no number; each smaller one that was too big as well need not.
    if any(parts.values()) or (declared.series and first.scaled):
        shown = {part: marks for part, marks in parts.items() if marks}
        return [
            Line(f"{label}, {part}", *about, declared.drawn.show(marks[0].number.value), marks)
            for part, marks in shown.items()
        ]
    marks, compute = _marks(repeats, declared.metric), _marks(repeats, f"compute_{declared.metric}", hollow=True)[:1]
    words = declared.drawn.show(marks[0].number.value) if marks else repeats[-1].status
    words += f", computing {declared.drawn.show(compute[0].number.value)}" if marks and compute else ""
    return [Line(label, *about, words, [*marks, *compute] if marks else [])]


def _marks(repeats: list[Record], metric: str, hollow: bool = False) -> list[Mark]:
    """The mean of the repeats, and each of them where there are several."""
    mean = cases.combined(repeats, metric)
    if mean is None or not mean.value > 0:
        return []
    each = [record.metrics[metric] for record in repeats if record.status == "ok" and metric in record.metrics]
    # Without their own intervals, which are within a run.
    strip = [Mark(Estimate(number.value), small=True) for number in each if number.value > 0] if len(each) > 1 else []
    return [Mark(mean, hollow), *strip]
