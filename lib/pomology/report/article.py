"""An article's table with this machine in it: rows of text for people, and as numbers for a file.

A case that did not end well shows its status, as in the articles. In the notebooks of `today/`,
what others have timed stands in place of an article's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING

from pomology.format import bounded, quantity
from pomology.measure.estimate import Estimate, estimate
from pomology.report import peaks
from pomology.report.declaration import Declaration
from pomology.report.table import (
    INTERVALS,
    YEARS,
    Table,
    ends,
    grouped,
    notes_of_flags,
    value_text,
)
from pomology.results import cases, metrics
from pomology.results.cases import with_software
from pomology.results.pool import Case, pool

if TYPE_CHECKING:
    import pandas

TRAININGS = ("epoch_s", "fit_s")  # times that say how they came about
SPEEDUP = "Times the CPU's speed"  # of a GPU, with the same settings

SMOKE = "Smoke tests, with tiny shapes, do not stand beside the article's numbers."
SCALED = "scaled: a smaller model; compare its FLOP/s. A table of times leaves it to the details."
# What the numbers of a column mean, by its metric.
MEANING = {
    "compute_epoch_s": "“Of it computing” is an epoch of the same loop on batches that are on the "
    "device already.",
    "flops_per_s": "Published operations a second are counted: the work on paper over the printed "
    "time.",
    "peak_memory_bytes": "Memory is the whole process on a CPU, what the framework reserved on "
    "a GPU; the article does not say which.",
    "footprint_slope_bytes": "Growth: a slope over the steps behind the warm-up, with its 95 % "
    "interval. One that holds 0 shows neither growth nor its absence.",
    peaks.SHARE: f"{peaks.BEST}: achieved, over the best rate of one operator in the whole run, on "
    "this device in this precision.",
}


def article_table(
    about: Declaration, frame: pandas.DataFrame, best: peaks.Peaks | None = None
) -> Table:
    """Return the published rows as printed, in the article's order, then this machine's.

    frame: the cases of one experiment, as `frame.of_records` has them. best: this machine's
    measured peaks, of which a case reaches a share.
    """
    measured = pool(comparable(frame, about.metric))
    lines = [_published(about, values) for values in grouped(about.beside, itemgetter("line"))]
    lines = [line for line in lines if line]
    on_cpu = {_work(case): case for case in measured if case.kind == "cpu"}
    lines += [_measured(about, case, on_cpu.get(_work(case)), best) for case in measured]
    columns = ("Device", *about.headings.values(), *about.shown, SPEEDUP, "Remarks")
    table = Table.of(about.title or about.name, columns, lines)
    shown = [metric for heading, metric in about.shown.items() if heading in table.columns]
    return replace(table, notes=_notes(about, frame, measured, shown))


def comparable(frame: pandas.DataFrame, metric: str) -> pandas.DataFrame:
    """Return the cases that may stand beside published ones: no smoke, no smaller model's time."""
    chosen = frame["profile"] != "smoke"
    if metric in TRAININGS:
        chosen &= ~frame["scaled"]
    return frame[chosen]


def achieved(case: Case) -> Estimate | None:
    """Return the operations a second of a case; None if it failed, or nobody counted them."""
    if "flops_per_s" in case.values:
        return case.values["flops_per_s"]
    flops = case.first["flops_per_step"]
    steps = case.each.get("step_s", ()) if flops else ()
    return cases.together([estimate(flops, "FLOP") / step for step in steps])


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
    if {about.shown[heading] for heading in texts} == {"flops_per_s"}:  # made of a time
        what = cases.TIMES.get(first["metric"], first["metric"])
        texts[next(iter(about.shown))] = f"{first['printed']} ({what})"
    remarks = dict.fromkeys(value["remark"] for value in values if value["remark"])
    texts |= {"Device": first["label"], "Remarks": "; ".join(remarks) or "published"}
    return texts | about.texts(first["config"]), row, "published"


def _work(case: Case) -> tuple:
    """Return what a CPU and a GPU have in common that may be compared."""
    return case.first["framework"], case.first["precision"], str(case.config)


def _measured(
    about: Declaration, case: Case, on_cpu: Case | None, best: peaks.Peaks | None
) -> tuple:
    """Return texts by heading, numbers and kind of a case. on_cpu: the same on the CPU."""
    first = case.first
    values = dict(case.values)
    rate = achieved(case)
    if rate:
        values["flops_per_s"] = rate
        share = best and best.share(rate, case.kind, first["precision"])
        values |= {peaks.SHARE: share} if share else {}
    if case.kind == "gpu" and on_cpu and {about.time} <= values.keys() & on_cpu.values.keys():
        values["times_cpu"] = on_cpu.values[about.time] / values[about.time]
    texts = {}
    for heading, metric in {**about.shown, SPEEDUP: "times_cpu"}.items():
        names = metrics.metric(metric).sources or (metric,)
        value = next((values[name] for name in names if name in values), None)
        texts[heading] = value_text(metric, value, heading) if value else ""
        if metric == "status":  # of several repeats the first that did not end well
            good = "cannot be told" if "too-noisy" in case.flags else "yes"
            texts[heading] = case.endings[0][0] if case.endings else good
    if not case.good_repeats and "status" not in about.shown.values():
        times = (heading for heading, metric in about.shown.items() if metric == about.time)
        texts[next(times, next(iter(about.shown)))] = case.status
    software = (first["framework"], first["framework_version"], str(first["year"]))
    texts |= {"Device": with_software(first["device"], *software)}
    texts |= {"Remarks": _remarks(about, case)} | about.texts(case.config)
    row = {"source": "measured", "device": first["device"], "framework": first["framework"]}
    row |= {"backend": first["backend"], **case.config}
    for name, value in values.items():
        row |= {name: value.value} | ends(name, value)
        if name in (*TRAININGS, "compute_epoch_s"):
            row[f"{name}_how"] = value.how
    row |= {"status": case.status, "repeats": case.good_repeats or case.repeats}
    return texts, row | {"flags": " ".join(case.flags)}, "measured"


def _remarks(about: Declaration, case: Case) -> str:
    """Return how the numbers of a case came about, why there are none, and its flags."""
    last = case.last
    remarks = []
    time = case.values.get(about.metric)
    if time and about.metric in TRAININGS:
        how = time.how
        if how == "estimated":
            how += f" from {last['steady_steps']} steps"
            how += f" of {last['epoch_steps']:,.0f}" if last["epoch_steps"] else ""
        remarks += [how, last["data"]]
    if about.metric.startswith("energy_") and last["rails"]:
        remarks.append(f"counted: {last['rails']}")
    remarks += [last["reason"], last["note"]]
    if case.repeats > 1:
        remarks.append(f"{case.good_repeats} of {case.repeats} repeats")
    if case.good_repeats and last["scaled"]:
        remarks.append("scaled")
    return "; ".join([*filter(None, remarks), *case.flags])


def _notes(
    about: Declaration, frame: pandas.DataFrame, measured: Sequence[Case], shown: Sequence[str]
) -> tuple[str, ...]:
    """Return what the numbers mean, where they are from, and what they may be compared with."""
    notes = [INTERVALS] if any(case.good_repeats for case in measured) else []
    notes += [MEANING[metric] for metric in shown if metric in MEANING]
    notes += [f"Data: {origin}." for origin in frame["data_origin"].unique() if origin]
    smoke = frame["profile"] == "smoke"
    notes += [SMOKE] if smoke.any() else []
    notes += [SCALED] if frame["scaled"][~smoke].any() else []
    notes += [YEARS] if measured and about.beside else []
    remarks = dict.fromkeys(
        row["note"]
        for row in about.beside
        if row["note"] and row["si"] is not None and (row["metric"] in shown or row["flops_per_s"])
    )
    notes += [f"Published: {remark}." for remark in remarks]
    return (*notes, *notes_of_flags(flag for case in measured for flag in case.flags))
