"""An article's devices and this machine's: what the figure of an experiment shows of each."""

from __future__ import annotations

from typing import Any

from pomology.articles import published
from pomology.report.figures.points import Line, Mark, points_figure
from pomology.report.figures.style import styled
from pomology.results import cases


@styled
def article_figure(layout: Any, experiment: str, records: list[dict]) -> Any:
    """The metric of every device, a panel for each row of the article's settings.

    A filled mark is the whole epoch with its 95 % interval, a hollow one the computing alone; small ones are the
    repeats. What has no time shows its status. Returns a matplotlib Figure.
    """
    return points_figure(panels(layout, experiment, records), layout.axis, layout.unit)


def panels(layout: Any, experiment: str, records: list[dict]) -> dict[str, list[Line]]:
    """For each row of settings, in the article's order, the lines to draw."""
    made: dict[str, list[Line]] = {}

    def panel(config: dict) -> list[Line]:
        apart = {key: heading for key, heading in layout.settings.items() if key not in layout.together}
        title = ", ".join(f"{heading.lower()} {config[key]}" for key, heading in apart.items() if key in config)
        return made.setdefault(title[:1].upper() + title[1:] or "In the article", [])

    seen = set()
    for row in published.values(experiment=experiment).to_dict("records"):
        key = (row["device"], str(row["config"]))
        if row["metric"] in (layout.metric, "status") and key not in seen:  # a row that is printed twice is one device
            seen.add(key)
            # What has no number is shown as the words that are printed.
            words = layout.show(row["si"]) if row["si"] else row["printed"] or row["note"]
            marks = [Mark(row["si"])] if row["si"] else []
            panel(row["config"]).append(Line(row["device"] or "the article", "published", row["role"], words, marks))
    for other in layout.derived:
        for row in published.values(experiment=other.experiment).to_dict("records"):
            meant = all(row["config"].get(key) == wanted for key, wanted in other.only.items())
            if meant and row["metric"] == other.metric and row["si"]:
                name, _, version = row["framework"].partition(" ")
                by = version[:4] or cases.FRAMEWORKS.get(name.replace("pytorch", "torch"), name)
                rate = other.flops / row["si"]
                line = Line(f"{row['device']}, {by}", "published", row["role"], layout.show(rate), [Mark(rate)])
                panel(other.config).append(line)
    several = len({record["framework"] for record in records}) > 1
    for repeats in cases.groups(cases.comparable(records, layout.metric)):
        panel(repeats[0]["config"]).extend(_measured(layout, repeats, several))
    return {title: lines for title, lines in made.items() if lines}


def _measured(layout: Any, repeats: list[dict], several: bool) -> list[Line]:
    """The lines of a case. several: there are several frameworks, so that each is named."""
    first = repeats[0]
    name = cases.chip_name(first) + (f", {cases.FRAMEWORKS.get(first['framework'], first['framework'])}" * several)
    shared = [(layout.settings[key].lower(), first["config"][key]) for key in layout.together if key in first["config"]]
    label = ", ".join([name, *(f"{heading} {value}" for heading, value in shared if value != "none")])
    about = ("measured", cases.kind(first))
    parts = {part: _marks(repeats, metric) for part, metric in layout.parts.items()}
    # The article's own case shows why it has no number; each smaller one that was too big as well need not.
    if any(parts.values()) or (layout.parts and first["scaled"]):
        shown = {part: marks for part, marks in parts.items() if marks}
        return [Line(f"{label}, {part}", *about, layout.show(marks[0].value), marks) for part, marks in shown.items()]
    marks, compute = _marks(repeats, layout.metric), _marks(repeats, f"compute_{layout.metric}", hollow=True)[:1]
    words = layout.show(marks[0].value) if marks else repeats[-1]["status"]
    words += f", computing {layout.show(compute[0].value)}" if marks and compute else ""
    return [Line(label, *about, words, [*marks, *compute] if marks else [])]


def _marks(repeats: list[dict], metric: str, hollow: bool = False) -> list[Mark]:
    """The mean of the repeats, and each of them where there are several."""
    mean = cases.combined(repeats, metric)
    if mean is None or not mean.value > 0:
        return []
    each = [record["metrics"][metric]["value"] for record in repeats if metric in record["metrics"]]
    strip = [Mark(value, small=True) for value in each if value > 0] if len(each) > 1 else []
    return [Mark(mean.value, mean.low, mean.high, hollow), *strip]
