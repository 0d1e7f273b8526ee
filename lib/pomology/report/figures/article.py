"""An article's devices and this machine's: what the figure of an experiment shows of each."""

from collections import defaultdict
from typing import Any

from pomology.articles import elsewhere, published
from pomology.format import rounded
from pomology.measure.estimate import Estimate
from pomology.report import costs
from pomology.report.article import drawn, resolved
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
    panels = defaultdict[str, list[Line]](list)

    def title_of(config: dict) -> str:
        apart = {key: heading for key, heading in about.headings.items() if key in config.keys() - about.shared_panel}
        title = ", ".join(f"{heading.lower()} {config[key]}" for key, heading in apart.items())
        return title[:1].upper() + title[1:] or "In the article"

    seen, usable = set(), cases.comparable(records, about.metric)
    for row in drawn(about, usable):
        key = (row["device"], str(row["config"]))
        if row["metric"] in (about.metric, "status") and key not in seen:  # a row that is printed twice is one device
            seen.add(key)
            label, kind = row["device"] or "the article", ("published", row["role"])
            # What has no number is shown as the words that are printed.
            words = row["printed"] or row.get("note", "")
            line = value_line(label, kind, row["si"], about.drawn.show) if row["si"] else Line(label, kind, words)
            if elsewhere.SERIOUS.intersection(row.get("faults", ())):
                line.marks = [Mark(mark.number, "hollow") for mark in line.marks]
            if len(each := row.get("each", ())) > 1:
                line.marks += [Mark(Estimate(value), "small") for value in each]
            panels[title_of(row["config"])].append(line)
    for other, settings in (about.published_rates or {}).items():
        for row in published.rows(experiment=other):
            if row["flops"] and row["si"]:
                framework, _, version = row["framework"].partition(" ")
                label = cases.with_software(row["device"], framework, version.partition(".dev")[0], "")
                label += ", with batch norm" * (other == "rasbt_vgg16")  # not quite the model of its panel
                line = value_line(label, ("published", row["role"]), row["flops"] / row["si"], about.drawn.show)
                panels[title_of(row["config"] | settings)].append(line)
    several = len({record.framework for record in records}) > 1
    for repeats in cases.groups(usable):
        panels[title_of(repeats[0].config)] += _measured(about, repeats, several)
    panels = {title: lines for title, lines in panels.items() if lines}
    return points_figure(panels, about.drawn.axis, about.drawn.scale)


def _measured(about: Declaration, repeats: list[Record], several: bool) -> list[Line]:
    """The lines of a case. several: there are several frameworks, so that each is named."""
    first, show = repeats[0], about.drawn.show
    kind = ("measured", cases.kind(first))
    shared = [(about.headings[key].lower(), first.config.get(key, "none")) for key in about.shared_panel]
    settings = (f"{heading} {value}" for heading, value in shared if value != "none")
    framework = [cases.framework_name(first)] if several else []
    label = ", ".join([cases.chip_name(first), *framework, *settings])
    parts = {metric.split("_")[0]: _marks(repeats, metric) for metric in about.series}
    # The article's own case shows why it has no number; each smaller one that was too big as well need not.
    if any(parts.values()) or (about.series and first.scaled):
        shown = {part: marks for part, marks in parts.items() if marks}
        return [Line(f"{label}, {part}", kind, rounded(marks[0].number, show), marks) for part, marks in shown.items()]
    if not (marks := _marks(repeats, about.metric)):
        return [Line(label, kind, repeats[-1].status)]
    compute = _marks(repeats, f"compute_{about.metric}", "hollow")[:1]
    compute = [mark for mark in compute if resolved(mark.number, marks[0].number)]
    words = [rounded(marks[0].number, show), *(f"computing {rounded(mark.number, show)}" for mark in compute)]
    return [Line(label, kind, ", ".join(words), [*marks, *compute])]


def _marks(repeats: list[Record], metric: str, look: str = "filled") -> list[Mark]:
    """The mean of the repeats, and each of them where there are several."""
    mean = cases.combined(repeats, metric)
    if mean is None or not mean.value > 0:
        return []
    each = [record.metrics[metric] for record in repeats if record.status == "ok" and metric in record.metrics]
    # Without their own intervals, which are within a run.
    strip = [Mark(Estimate(number.value), "small") for number in each if number.value > 0] if len(each) > 1 else []
    return [Mark(mean, look), *strip]


@styled
def costs_figure(declared: Declaration, records: list[Record]) -> Any:
    """Peak and achieved operations a second for a dollar, of every device with a price."""
    peaks: dict[str, Line] = {}
    achieved = []
    for offer in costs.offers(records):
        here = ("measured", "cpu" if offer.device.endswith(" CPU") else "gpu")
        about = here if offer.maker == "here" else ("published", "gpu" if offer.maker == "Apple" else "rival")
        if offer.price_usd and offer.peak_flops_per_s:
            value = offer.peak_flops_per_s / offer.price_usd
            peaks.setdefault(offer.device, value_line(offer.device, about, value, declared.drawn.show))
        if offer.price_usd and offer.flops_per_s:
            label = f"{offer.device}: {offer.work}, batch {offer.batch_size}"
            achieved.append(value_line(label, about, offer.flops_per_s / offer.price_usd, declared.drawn.show))
    panels = {"Peak": list(peaks.values()), "Achieved in training GPT-2-large, table 4": achieved}
    return points_figure(panels, declared.drawn.axis, declared.drawn.scale)
