"""An article's table with this machine in it: rows of text for people, and as numbers for a file.

A measured cell carries what it needs to be believed: its interval, whether the epoch ran whole or
was estimated from how many steps, and any flags. A case that did not end well shows its status
instead, as the articles do. In the notebooks of `today/`, what others have timed stands in place of
an article's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING

from pomology.format import bounded, quantity, significant
from pomology.measure.estimate import Estimate
from pomology.report import peaks
from pomology.report.declaration import Declaration
from pomology.report.table import (
    INTERVALS,
    YEARS,
    Table,
    grouped,
    notes_of_flags,
    numbers,
    value_text,
)
from pomology.results import cases, metrics
from pomology.results.cases import with_software
from pomology.results.pool import Case, counted_rate, pool

if TYPE_CHECKING:
    import pandas

TRAININGS = ("epoch_s", "fit_s")  # times that say how they came about

SMOKE = "This was a smoke test, with tiny shapes: its numbers do not stand beside the article's."
SCALED = (
    "scaled: smaller than in the article. What can be compared is FLOP/s, not times, which are in "
    "the details."
)
COUNTED = "Published operations a second are counted: the work on paper over the printed time."
# What the numbers of a column mean, by its metric.
MEANING = {
    "compute_epoch_s": "“Of it computing” is an epoch of the same loop on batches that are on the "
    "device already; not told apart: no shorter than the whole epoch beyond the intervals of both.",
    "peak_memory_bytes": "Memory is the whole process on a CPU, and what the framework reserved on "
    "a GPU; the article does not say which.",
    "footprint_slope_bytes": "In brackets: the 95 % interval of a slope over the steps behind the "
    "warm-up. One that holds 0 shows neither growth nor its absence.",
    peaks.SHARE: f"{peaks.BEST}: achieved, over the best rate of one operator on this device in "
    "this precision, in the whole run.",
}


def article_table(
    about: Declaration, frame: pandas.DataFrame, best: peaks.Peaks | None = None
) -> Table:
    """Return the published rows as printed, in the article's order, then this machine's.

    Cases of the profile `smoke` are left out, and where times are compared, those of a smaller
    model. frame: the cases of one experiment, as `frame.of_records` has them. best: this machine's
    measured peaks, of which a case reaches a share.
    """
    printed = [_published(about, values) for values in grouped(about.beside, itemgetter("line"))]
    measured = pool(comparable(frame, about.metric))
    lines = [line for line in printed if line]
    lines += [_measured(about, case, best) for case in measured]
    order = ("Device", *about.headings.values(), *about.shown, "Remarks")
    table = Table.of_texts(about.title or about.name, lines, order)
    kept = {metric: heading for heading, metric in about.shown.items() if heading in table.columns}
    meaning = []
    if any(case.good_repeats for case in measured):
        meaning = [INTERVALS, *(MEANING[metric] for metric in kept if metric in MEANING)]
    notes = _notes(about, frame, table, kept)
    notes += notes_of_flags(flag for case in measured for flag in case.flags)
    main = kept.get(about.metric, "")
    return replace(table, notes=tuple(notes), meaning=tuple(meaning), main=main)


def comparable(frame: pandas.DataFrame, metric: str) -> pandas.DataFrame:
    """Return the cases whose numbers may stand next to published ones.

    Those of smaller models are left out where times are compared.
    """
    chosen = frame["profile"] != "smoke"
    if metric in TRAININGS:
        chosen &= ~frame["scaled"]
    return frame[chosen]


def achieved(case: Case) -> Estimate | None:
    """Return the operations a second of a case; None if it failed, or nobody counted them."""
    if "flops_per_s" in case.values:
        return case.values["flops_per_s"]
    flops = case.first["flops_per_step"]
    rates = [counted_rate(flops, step) for step in case.each.get("step_s", ())]
    return cases.together([rate for rate in rates if rate])


def values_of(case: Case, best: peaks.Peaks | None) -> dict[str, Estimate]:
    """Return the values of a case by metric, with its rate and the share of the peak that it is."""
    values = dict(case.values)
    rate = achieved(case)
    if rate:
        values["flops_per_s"] = rate
        share = best and best.share(rate, case.kind, case.first["precision"])
        if share:
            values[peaks.SHARE] = share
    return values


def resolved(part: Estimate, whole: Estimate) -> bool:
    """Return whether a part is smaller than the whole beyond the intervals of both."""
    return bounded(part) and bounded(whole) and part.high < whole.low


def _published(about: Declaration, values: Sequence[dict]) -> tuple | None:
    """Return texts by heading, numbers and kind of a printed row; None without a column's text."""
    first = values[0]
    row = {"source": "published", "device": first["device"], "framework": first["framework"]}
    row |= {"backend": first["backend"], "origin": first["source"], **first["config"]}
    row["status"] = first["status"]
    texts: dict[str, str] = {}
    for value in values:
        for heading, metric in about.shown.items():
            if value["metric"] in (metric, *metrics.metric(metric).sources):
                # What is printed only in an image has no text.
                texts[heading] = value["printed"] or value["note"]
            elif metric == "flops_per_s" and value["flops_per_s"]:
                texts.setdefault(heading, quantity(value["flops_per_s"], "FLOP/s"))
        if value["si"] is not None:
            row[value["metric"]] = value["si"]
        if value["flops_per_s"]:
            row.setdefault("flops_per_s", value["flops_per_s"])
    if not texts:
        return None
    if {about.shown[heading] for heading in texts} == {"flops_per_s"}:
        what = cases.TIMES.get(first["metric"], first["metric"])  # it has no column here
        texts[next(iter(about.shown))] = f"{first['printed']} ({what})"
    remarks = dict.fromkeys(value["remark"] for value in values if value["remark"])
    texts |= {"Device": first["label"], "Remarks": "; ".join(remarks) or "published"}
    return texts | about.texts(first["config"]), row, "published"


def _measured(about: Declaration, case: Case, best: peaks.Peaks | None) -> tuple:
    """Return texts by heading, numbers and kind of a case."""
    first = case.first
    values = values_of(case, best)
    shown = about.shown
    texts = {heading: _text(case, metric, heading, values) for heading, metric in shown.items()}
    if not case.good_repeats and "status" not in shown.values():
        places = [heading for heading, metric in shown.items() if metric == about.time]
        texts[next(iter(places or shown))] = case.status
    software = (first["framework"], first["framework_version"], str(first["year"]))
    texts |= {"Device": with_software(first["device"], *software)}
    texts |= {"Remarks": _remarks(about, case)} | about.texts(case.config)
    row = {"source": "measured", "device": first["device"], "framework": first["framework"]}
    row |= {"backend": first["backend"], **case.config, **numbers(values)}
    for name in {*TRAININGS, "compute_epoch_s"} & values.keys():
        row[f"{name}_how"] = values[name].how
    row |= {"status": case.status, "repeats": case.good_repeats or case.repeats}
    return texts, row | {"flags": " ".join(case.flags)}, "measured"


def _text(case: Case, metric: str, heading: str, values: dict[str, Estimate]) -> str:
    """Return the cell of a case, "" for what was not measured."""
    if metric == "status":
        # Of several repeats the first that did not end well is shown.
        ending = case.endings[0][0] if case.endings else "yes"
        return "cannot be told" if ending == "yes" and "too-noisy" in case.flags else ending
    names = metrics.metric(metric).sources or (metric,)
    value = next((values[name] for name in names if name in values), None)
    if value is None:
        return ""
    if case.first["scaled"] and metric in metrics.PASSES:
        return "scaled"
    whole = values.get(metric.removeprefix("compute_"))
    if metric.startswith("compute_") and whole and not resolved(value, whole):
        counted = "repeat" if value.covers == "repeats" else "step"
        return f"not told apart ({value.n} {counted}{'' if value.n == 1 else 's'})"
    start = values.get(metric.replace("_end_", "_start_"))
    if "_end_" in metric and start:
        show = metrics.show(metric, heading)
        return f"{show(start.value)} → {show(value.value)}"
    return value_text(metric, value, heading)


def _remarks(about: Declaration, case: Case) -> str:
    """Return how the numbers of a case came about, why there are none, and its flags."""
    last = case.last
    remarks = []
    time = case.values.get(about.metric)
    if time and about.metric in TRAININGS:
        remarks += [_how(time, last["steady_steps"], last["epoch_steps"]), last["data"]]
    if about.metric.startswith("energy_") and last["rails"]:
        remarks.append(f"counted: {last['rails']}")
    remarks += [last["reason"], last["note"]]
    if case.repeats > 1:
        endings = ", ".join(dict.fromkeys(status for status, _ in case.endings))
        count = f"{case.good_repeats} of {case.repeats}" if endings else str(case.repeats)
        remarks.append(f"{count} repeats" + (f" ({endings})" if endings else ""))
    if case.good_repeats and last["scaled"]:
        remarks.append("scaled")
    return "; ".join([*filter(None, remarks), *case.flags])


def _how(time: Estimate, steps: int, epoch_steps: float | None) -> str:
    """Return `measured`, or `estimated from 400 steps, 85 % of the epoch`."""
    if time.how == "measured":
        return "measured"
    text = f"estimated from {steps} step{'' if steps == 1 else 's'}"
    share = steps / epoch_steps if epoch_steps else 1.0
    return text if share >= 1 else f"{text}, {significant(100 * share, 2)} % of the epoch"


def _notes(
    about: Declaration, frame: pandas.DataFrame, table: Table, kept: dict[str, str]
) -> list[str]:
    """Return where data and published numbers are from, and what they may be compared with."""
    printed = [row for row in table.data if row["source"] == "published"]
    notes = [f"Data: {origin}." for origin in frame["data_origin"].unique() if origin]
    if (frame["profile"] == "smoke").any():
        notes.append(SMOKE)
    if (frame["scaled"] & (frame["profile"] != "smoke")).any():
        notes.append(SCALED)
    if len(printed) < len(table.data):
        shown = [heading for heading in about.shown if heading not in table.columns]
        empty = [heading for heading in shown if heading != peaks.BEST]
        if empty:
            notes.append(f"Not measured, and so without a column: {', '.join(empty).lower()}.")
        if any(row.get(about.time) for row in printed):
            notes.append(YEARS)
    if "flops_per_s" in kept and any(row.get("flops_per_s") for row in printed):
        notes.append(COUNTED)
    shown = [row for row in about.beside if row["metric"] in kept or row["flops_per_s"]]
    remarks = dict.fromkeys(row["note"] for row in shown if row["note"] and row["si"] is not None)
    return notes + [f"Published: {remark}." for remark in remarks]
