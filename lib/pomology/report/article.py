"""An article's table with this machine in it: rows of text for people, and as numbers for a file.

A case that did not end well shows its status, as in the articles.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from pomology.format import quantity
from pomology.report import peaks
from pomology.report.declaration import Declaration
from pomology.report.table import INTERVALS, YEARS, Row, Table, numbers, value_text
from pomology.results import cases, metrics
from pomology.results.frame import of_records
from pomology.results.pool import Case, pool
from pomology.results.record import Record

TIMED = ("device", "framework", "backend")  # what was timed
TRAININGS = ("epoch_s", "fit_s")  # times that say how they came about

SMOKE = "Smoke tests, with tiny shapes, do not stand beside the article's numbers."
SCALED = "scaled: a smaller model; compare its FLOP/s. A table of times leaves it to the details."


def article_table(
    about: Declaration, records: Sequence[Record], best: peaks.Peaks | None = None
) -> Table:
    """Return the published rows as printed, in the article's order, then this machine's.

    records: the cases of one experiment. best: this machine's measured peaks, of which a case
    reaches a share.
    """
    lines = defaultdict(list)
    for value in about.published_rows:
        lines[value["line"]].append(value)
    rows = [_published(about, values) for values in lines.values()]
    rows = [row for row in rows if any(row.cells[heading] for heading in about.shown)]
    measured = comparable(records, about.metric)
    on_cpu = {_work(case): case for case in measured if case.kind == "cpu"}
    rows += [_measured(about, case, on_cpu.get(_work(case)), best) for case in measured]
    shown = [name for heading, name in about.shown.items() if any(r.cells[heading] for r in rows)]
    return Table(about.title or about.name, rows, _notes(about, records, measured, shown))


def comparable(records: Iterable[Record], metric: str) -> list[Case]:
    """Return the cases that may stand beside published ones: no smoke, no smaller model's time."""
    chosen = [record for record in records if record.profile != "smoke"]
    if metric in TRAININGS:
        chosen = [record for record in chosen if not record.scaled]
    return pool(of_records(chosen))


def _published(about: Declaration, values: Sequence[dict]) -> Row:
    """Return a printed row, of which values are those with one `line`."""
    first = values[0]
    remarks = dict.fromkeys(value["remark"] for value in values if value["remark"])
    cells = about.cells(first["label"], first["config"], "; ".join(remarks) or "published")
    data = {"source": "published"} | {name: first[name] for name in TIMED}
    data |= {"origin": first["source"], **first["config"], "status": first["status"]}
    for value in values:
        for heading, metric in about.shown.items():
            if value["metric"] in metrics.metric(metric).sources:
                # What is printed only in an image has no text.
                cells[heading] = value["printed"] or value["note"]
            elif metric == "flops_per_s" and value["flops_per_s"] and not cells[heading]:
                cells[heading] = quantity(value["flops_per_s"], "FLOP/s")
        if value["si"] is not None:
            data[value["metric"]] = value["si"]
        if value["flops_per_s"]:
            data.setdefault("flops_per_s", value["flops_per_s"])
    if {metric for heading, metric in about.shown.items() if cells[heading]} == {"flops_per_s"}:
        what = cases.TIMES.get(first["metric"], first["metric"])  # that the rate is made of
        cells[next(iter(about.shown))] = f"{first['printed']} ({what})"
    return Row(cells, data, "published")


def _work(case: Case) -> tuple:
    """Return what a CPU and a GPU have in common that may be compared."""
    return case.first["framework"], case.first["precision"], str(case.config)


def _measured(about: Declaration, case: Case, on_cpu: Case | None, best: peaks.Peaks | None) -> Row:
    """Return the row of a case. on_cpu: the same on the CPU."""
    first = case.first
    values = dict(case.values)
    peak = (best or {}).get((case.kind, first["precision"]))
    if peak and "flops_per_s" in values:
        values[peaks.SHARE] = values["flops_per_s"] / peak.rate
    if case.kind == "gpu" and on_cpu and {about.time} <= values.keys() & on_cpu.values.keys():
        values["times_cpu"] = on_cpu.values[about.time] / values[about.time]
    software = (first["framework"], first["framework_version"], str(first["year"]))
    device = cases.with_software(first["device"], *software)
    cells = about.cells(device, case.config, _remarks(about, case))
    for heading, metric in about.shown.items():
        sources = metrics.metric(metric).sources
        value = next((values[name] for name in sources if name in values), None)
        cells[heading] = value_text(metric, value, heading) if value else ""
        if metric == "status":  # of several repeats the first that did not end well
            good = "cannot be told" if "too-noisy" in case.flags else "yes"
            failed = [status for status, _ in case.endings.values()]
            cells[heading] = failed[0] if failed else good
    if not case.good_repeats and "status" not in about.shown.values():
        times = (heading for heading, metric in about.shown.items() if metric == about.time)
        cells[next(times, next(iter(about.shown)))] = case.status
    data = {"source": "measured"} | {name: first[name] for name in TIMED} | case.config
    for name, value in values.items():
        data |= numbers(name, value)
        if name in (*TRAININGS, "compute_epoch_s"):
            data[f"{name}_how"] = value.how
    data |= {"status": case.status, "repeats": case.good_repeats or case.repeats}
    return Row(cells, data | {"flags": " ".join(case.flags)}, "measured")


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
    about: Declaration, records: Sequence[Record], measured: Sequence[Case], shown: Sequence[str]
) -> list[str]:
    """Return what the numbers mean, where they are from, and what they may be compared with."""
    notes = [INTERVALS] if any(case.good_repeats for case in measured) else []
    notes += filter(None, (metrics.metric(metric).meaning for metric in shown))
    origins = dict.fromkeys(record.data_origin for record in records if record.data_origin)
    notes += [f"Data: {origin}." for origin in origins]
    notes += [SMOKE] if any(each.profile == "smoke" for each in records) else []
    notes += [SCALED] if any(each.scaled and each.profile != "smoke" for each in records) else []
    notes += [YEARS] if measured and about.published_rows else []
    remarks = dict.fromkeys(
        row["note"]
        for row in about.published_rows
        if row["note"] and row["si"] is not None and (row["metric"] in shown or row["flops_per_s"])
    )
    notes += [f"Published: {remark}." for remark in remarks]
    flags = sorted({flag for case in measured for flag in case.flags})
    return notes + [f"{flag}: {cases.FLAGS.get(flag, flag)}." for flag in flags]
