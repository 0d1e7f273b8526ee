"""An article's table with this machine in it: rows of text for people, and the same as numbers for a file.

A measured cell carries what it needs to be believed: its interval, whether the epoch ran whole or was estimated from
how many steps, and any flags. A case that did not end well shows its status instead, as the articles do. In the
notebooks of `today/`, what others have timed stands in place of an article's rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from pomology.articles import elsewhere, published
from pomology.format import (
    bounded,
    few,
    quantity_per_s,
    rounded,
    seconds,
    significant,
    slope_text,
    span,
    with_interval,
)
from pomology.measure.estimate import Estimate
from pomology.report import peaks
from pomology.report.declaration import Declaration
from pomology.report.table import YEARS, Row, Table, ends, grouped, notes_of_flags
from pomology.results import cases, metrics
from pomology.results.cases import with_software
from pomology.results.pool import Case, counted_rate, pool
from pomology.results.record import UNTRIED

if TYPE_CHECKING:
    import pandas

RATES = ("flops_per_s", "bytes_per_s")  # of a matmul, and of a pass over memory
TRAININGS = ("epoch_s", "fit_s")  # times that say how they came about
DETAILS = "see the details"
NOT_AVAILABLE = "not told"
NO_VALUE = {"", NOT_AVAILABLE, "not measured", DETAILS, "only in an image"}
# Metrics that only the operating system can report.
FROM_SYSTEM = (
    "temperature_",
    "clock_",
    "peak_memory_",
    "footprint_",
    "allocated_",
    "reserved_",
    "energy_",
    "power_",
)

SMOKE = "This was a smoke test, with tiny shapes: its numbers do not stand beside the article's."
SCALED = "scaled: smaller than in the article. What can be compared is FLOP/s, not times; see the details."
COUNTED = "Published operations a second are counted: the printed speed times the work on paper."


class Column(NamedTuple):
    """A column of the table: a metric, and where an article has a column a framework, which backend's."""

    heading: str
    metric: str
    where: str = ""

    def holds(self, columns: Sequence[Column], framework: str, backend: str) -> bool:
        """Whether a framework and backend stand here: in the most specific column that fits them."""
        place = f"{framework.replace('pytorch', 'torch')} {backend}"
        fitting = [
            column.where
            for column in columns
            if column.metric == self.metric and place.startswith(column.where)
        ]
        return self.where == max(fitting, key=len, default=None)


def article_table(
    about: Declaration, frame: pandas.DataFrame, shares: dict[str, Estimate] | None = None
) -> Table:
    """Return the published rows as printed, in the article's order, then this machine's.

    Args:
        frame: the cases of one experiment, as `frame.of_records` has them.
        shares: case -> the share of this machine's measured peak that it reaches.

    Cases of the profile `smoke` are left out, and where times are compared, those of a smaller model.
    """
    shares = shares or {}
    columns = _columns(about)
    rows, data, notes = (_elsewhere if about.article == published.TODAY else _published)(
        about, columns
    )
    measured = pool(comparable(frame, about.metric))
    shown = [
        case for case in measured if not (case.first["scaled"] and case.last["status"] in UNTRIED)
    ]
    row_shares: list[Estimate | None] = [None] * len(rows)
    for line in grouped(shown, partial(_line_of, about)):
        rows.append(_measured_row(about, columns, line, shares))
        row_shares.append(shares.get(line[0].first["case"]))
        for case in line:
            place = {}
            if about.framework_columns:
                place = {"backend": case.first["backend"], "framework": case.first["framework"]}
            data.append(_numbers(case) | place)
    if len(measured) > len(shown):
        notes.append(
            f"{len(measured) - len(shown)} smaller cases, which were too big or too slow as well, are not shown."
        )
    notes += (
        [f"Data: {origin}." for origin in frame["data_origin"].unique() if origin]
        if len(frame)
        else []
    )
    profiles = set(frame["profile"])
    if "smoke" in profiles:
        notes.append(SMOKE)
    if (frame["scaled"] & (frame["profile"] != "smoke")).any():
        notes.append(SCALED)
    if shown and any(row.get(about.time) for row in data if row["source"] == "published"):
        notes.append(YEARS)
    notes += notes_of_flags(flag for case in shown for flag in case.flags)
    headings = (
        "Device",
        *about.headings.values(),
        *(column.heading for column in columns),
        "Remarks",
    )
    table = Table(about.title or about.name, headings, tuple(rows), tuple(notes), tuple(data))
    if not about.framework_columns:
        rate = next((column.heading for column in columns if column.metric == "flops_per_s"), None)
        if rate and any(row_shares):
            table = peaks.with_shares(table, rate, row_shares)
        table = _without_empty(table, 2 + len(about.headings))
    main = next((column.heading for column in columns if column.metric == about.metric), "")
    return replace(table, meaning=(*_meaning(about, shown, table), *table.meaning), main=main)


def comparable(frame: pandas.DataFrame, metric: str) -> pandas.DataFrame:
    """Return the cases whose numbers may stand next to published ones: of smaller models only where no times are
    compared."""
    chosen = frame["profile"] != "smoke"
    if metric in TRAININGS:
        chosen &= ~frame["scaled"]
    return frame[chosen]


def _columns(about: Declaration) -> list[Column]:
    split = about.framework_columns or {}
    columns = [Column(heading, about.time, where) for heading, where in split.items()]
    for heading, name in about.shown.items():
        if not split or name != about.time:
            columns.append(Column(heading, name))
    return columns


def _line_of(about: Declaration, case: Case) -> tuple:
    """Return what cases of one line share: where an article has a column a framework, the device and the settings."""
    if about.framework_columns:
        return case.first["device"], json.dumps(case.config, sort_keys=True)
    return (case.first["case"],)


def _without_empty(table: Table, first: int) -> Table:
    """Return the table without the columns from `first` on in which no row has a value; a note names them."""
    if not any(row.kind == "measured" for row in table.rows):
        return table
    kept = []
    lacking: dict[str, list[str]] = {}
    for place, heading in enumerate(table.columns):
        cells = {row.cells[place] for row in table.rows}
        if place < first or place == len(table.columns) - 1 or not cells <= NO_VALUE:
            kept.append(place)
        elif cells != {""}:
            lacking.setdefault(", ".join(sorted(cells - {""})), []).append(heading.lower())
    rows = tuple(
        replace(row, cells=tuple(row.cells[place] for place in kept)) for row in table.rows
    )
    notes = list(table.notes)
    if lacking:
        named = "; ".join(f"{', '.join(headings)} ({why})" for why, headings in lacking.items())
        notes.append(f"Not shown, since no row has a value: {named}.")
    return replace(
        table, columns=tuple(table.columns[place] for place in kept), rows=rows, notes=tuple(notes)
    )


# What was published ---------------------------------------------------------------------------------------------------


def _published(
    about: Declaration, columns: Sequence[Column]
) -> tuple[list[Row], list[dict], list[str]]:
    """Return the rows that print a metric of the columns, their numbers, and notes."""
    sources = {
        column.metric: metrics.metric(column.metric).sources or (column.metric,)
        for column in columns
    }
    wanted = {name for names in sources.values() for name in names}
    if (
        about.metric == "epoch_s"
    ):  # what is printed of a device besides an epoch is in no row of its own
        wanted = {"epoch_s"}
    rows: list[Row] = []
    data: list[dict] = []
    notes: list[str] = []
    for line in grouped(published.rows(experiment=about.experiment), itemgetter("item", "row")):
        printed = [value for value in line if value["metric"] in wanted]
        if not printed:
            continue
        first = line[0]
        device = first["device"] or "the article"
        framework = "" if about.framework_columns else first["framework"]
        version, year = published.software(
            first["article"], first["device"], framework, first["source"]
        )
        if about.metric.endswith("_per_usd"):  # a list of prices
            year = ""
        label = with_software(device, framework, version, year) if first["device"] else device
        cells = [label, *about.cells(first["config"])]
        for column in columns:
            values = [
                value
                for value in line
                if value["metric"] in sources[column.metric]
                and column.holds(columns, value["framework"], value["backend"])
            ]
            last = values[-1] if values else {"printed": "", "note": ""}
            word, _, remark = last["note"].partition("; ")
            cells.append(last["printed"] or word)  # what is printed only in an image has no text
            if remark and not last["printed"]:
                notes.append(f"{first['device'] or 'The article'}: {word}; {remark}.")
        # Words of the article that are not the column's, as FLOPs of multiply-adds.
        words = dict.fromkeys(
            value["note"] for value in printed if value["note"].startswith("the article says")
        )
        rows.append(Row((*cells, "; ".join(words) or "published"), "published"))
        data += _published_numbers(about, line, printed)
    return rows, data, notes


def _published_numbers(
    about: Declaration, line: Sequence[dict], printed: Sequence[dict]
) -> list[dict]:
    source = {"source": "published", "device": line[0]["device"]}
    config = line[0]["config"]
    if about.framework_columns:
        return [
            source
            | {"backend": value["backend"]}
            | config
            | {about.time: value["si"], "status": value["status"]}
            for value in printed
        ]
    numbers = {value["metric"]: value["si"] for value in line if value["si"] is not None}
    return [source | config | numbers | {"status": printed[-1]["status"]}]


def _elsewhere(
    about: Declaration, columns: Sequence[Column]
) -> tuple[list[Row], list[dict], list[str]]:
    """Return the same of what others have timed, in `today/`: by precision, the fastest first.

    Of several measurements of a device in one precision, at whatever batch size, the fastest is a row.
    """
    rows = []
    data = []

    def setting(value: dict) -> tuple:
        others = [value["config"].get(name) for name in about.headings if name != "batch_size"]
        serious = frozenset(elsewhere.SERIOUS.intersection(value["faults"]))
        framework = value["framework"].partition(" ")[0]
        return value["device"], framework, value["precision"], serious, value["workload"], *others

    def speed(value: dict) -> float:
        return value["flops_per_s"] or 0.0

    groups = grouped(sorted(about.beside, key=speed, reverse=True), setting)
    for measurements in sorted(
        groups, key=lambda group: elsewhere.PRECISIONS.index(group[0]["precision"])
    ):
        value = measurements[0]
        texts = {value["metric"]: f"{value['bound']}{value['value']:,.6g} {value['unit']}"}
        if value["flops_per_s"]:
            texts["flops_per_s"] = quantity_per_s(value["flops_per_s"], "FLOP/s")
        cells = [texts.get(column.metric, "") for column in columns]
        if value["metric"] not in [column.metric for column in columns]:
            what = cases.TIMES.get(value["metric"], value["metric"])
            cells[0] = f"{texts[value['metric']]} ({what})"
        others = {key: each for key, each in value["config"].items() if key not in about.headings}
        faults = [elsewhere.FAULTS[fault] for fault in value["faults"]]
        remarks = [value["source"], cases.config_text(others), *faults]
        if len(measurements) > 1:
            remarks.insert(0, f"the fastest of {len(measurements)} measurements")
        label = elsewhere_label(value)
        text = "; ".join(filter(None, remarks))
        rows.append(Row((label, *about.cells(value["config"]), *cells, text), "published"))
        numbers = {"source": value["source"], "device": value["device"]} | value["config"]
        numbers[value["metric"]] = value["si"]
        if value["flops_per_s"]:
            numbers["flops_per_s"] = value["flops_per_s"]
        data.append(numbers | {"status": "ok"})
    known = [
        elsewhere.sources()[name]
        for name in dict.fromkeys(value["source"] for value in about.beside)
    ]
    notes = [
        COUNTED,
        *("{id}: {title}, {author}, {date}, {url}.".format_map(source) for source in known),
    ]
    return rows, data, notes if rows else []


def elsewhere_label(value: dict[str, Any]) -> str:
    """Return `V100 16 GB (PyTorch 1.7.1, 2020)`: a device of another source, and what it was timed with."""
    name, _, version = value["framework"].partition(" ")
    if name.replace("pytorch", "torch") not in cases.FRAMEWORKS:
        version = f"{name} {version}".strip()
    return with_software(value["device"], name, version, value["year"][:4])


# What was measured ----------------------------------------------------------------------------------------------------


def _measured_row(
    about: Declaration, columns: Sequence[Column], line: list[Case], shares: dict[str, Estimate]
) -> Row:
    """Return the row of a case, or of the same settings in several frameworks."""
    first = line[0].first
    alone = (
        len({case.first["framework"] for case in line}) == 1
    )  # else each has a column of its own
    framework = (first["framework"], first["framework_version"]) if alone else ("", "")
    cells = [
        with_software(first["device"], *framework, str(first["year"])),
        *about.cells(line[0].config),
    ]
    for column in columns:
        texts = []
        for case in line:
            if not column.holds(columns, case.first["framework"], case.first["backend"]):
                continue
            text = _cell(about, column, case, shares.get(case.first["case"]))
            if text and len(line) > 1 and not column.where:
                text = f"{case.framework} {text}"
            texts.append(text)
        text = "; ".join(filter(None, texts))
        cells.append("" if text == DETAILS and DETAILS in cells else text)
    failed = not line[0].good_repeats
    if failed and not about.framework_columns and "status" not in about.shown.values():
        names = [column.metric for column in columns]
        place = names.index(about.time) if about.time in names else 0
        cells[1 + len(about.headings) + place] = line[0].status
    remarks = dict.fromkeys(remark for case in line for remark in _remarks(about, case))
    return Row((*cells, "; ".join(remarks)), "measured")


def _cell(about: Declaration, column: Column, case: Case, share: Estimate | None) -> str:
    name = column.metric
    split = bool(about.framework_columns)
    if name == "status":
        return "yes" if case.good_repeats else case.status
    if split and name == "flops_per_s":
        # An article with a column a framework has devices from a laptop's to a server's: rates differ a hundredfold.
        show = metrics.show(name, "Operations")
        value = achieved(case)
    else:
        show = metrics.show(name, column.heading)
        sources = metrics.metric(name).sources or (name,)
        value = next((case.values[source] for source in sources if case.values.get(source)), None)
        if name in ("epoch_s", "fit_s") and _prints_minutes(about.experiment, name):
            show = metrics.MINUTES
    if value is None:
        return _lacking(case, column, split)
    if case.first["scaled"] and name in metrics.PASSES:
        return "scaled" if column.where else DETAILS
    if name.endswith(metrics.SLOPES):
        return slope_text(value)
    if name in TRAININGS and few(value):
        return f"about {rounded(value, show)}{_step_range(case)}"
    whole = case.values.get(name.removeprefix("compute_")) if name.startswith("compute_") else None
    if whole and not resolved(value, whole):
        word = "repeat" if value.covers == "repeats" else "step"
        return f"not told apart ({value.n} {word}{'' if value.n == 1 else 's'})"
    start = case.values.get(name.replace("_end_", "_start_")) if "_end_" in name else None
    if start:
        return f"{show(start.value)} → {show(value.value)}"
    text = with_interval(value, show)
    if split and name == "flops_per_s" and share:
        text += f" ({peaks.percent(share)} of the best)"
    if name == "accuracy" and case.last["data"] == "stand-in":
        text += " (of the stand-in)"
    return text


def _prints_minutes(experiment: str, metric: str) -> bool:
    """Whether the article prints this time in minutes."""
    rows = [row for row in published.rows(experiment=experiment) if row["metric"] == metric]
    return {row["unit"] for row in rows if row["printed"]} == {"min"}


def _lacking(case: Case, column: Column, split: bool) -> str:
    """Return what stands in place of a value that was not measured."""
    if column.where:
        return case.last["status"]
    measured_other = column.metric in RATES and any(
        rate in case.each for rate in RATES
    )  # a copy has no operations
    if not case.good_repeats or measured_other or split:
        return ""
    return NOT_AVAILABLE if column.metric.startswith(FROM_SYSTEM) else "not measured"


def _step_range(case: Case) -> str:
    """Return the shortest and longest step: few steps have no interval."""
    fastest = case.last["fastest_step_s"]
    if fastest is None:
        return ""
    return f" (steps of {span(fastest, case.last['slowest_step_s'], partial(seconds, digits=2))})"


def achieved(case: Case) -> Estimate | None:
    """Return the operations a second of a case; None if it did not end well, or nobody counted them."""
    if "flops_per_s" in case.values:
        return case.values["flops_per_s"]
    rates = [
        counted_rate(case.first["flops_per_step"], step) for step in case.each.get("step_s", ())
    ]
    return cases.together([rate for rate in rates if rate])


def resolved(part: Estimate, whole: Estimate) -> bool:
    """Return whether a part is smaller than the whole beyond the intervals of both."""
    return bounded(part) and bounded(whole) and part.high < whole.low


def _remarks(about: Declaration, case: Case) -> list[str]:
    """Return how the numbers of a case came about, why there are none, and its flags."""
    last = case.last
    remarks = []
    if about.metric in TRAININGS and about.metric in case.values:
        if case.values[about.metric].how == "measured":
            remarks.append("measured")
        else:
            steps = last["steady_steps"]
            text = f"estimated from {steps} step{'' if steps == 1 else 's'}"
            share = steps / last["epoch_steps"] if last["epoch_steps"] else 1.0
            if share < 1:
                text += f", {significant(100 * share, 2)} % of the epoch"
            remarks.append(text)
        remarks.append(last["data"])
    if about.metric.startswith("energy_") and last["rails"]:
        remarks.append(f"counted: {', '.join(last['rails'])}")
    remarks += [last["reason"], last["note"]]
    if case.repeats > 1:
        remarks.append(_count(case))
    if case.good_repeats and last["scaled"]:
        remarks.append("scaled")
    return [*filter(None, remarks), *case.flags]


def _count(case: Case) -> str:
    """Return `2 of 3 repeats (timeout)`: how many repeats ended well, and how the others ended."""
    if not case.endings:
        return f"{case.repeats} repeats"
    texts = []
    for status, reason in case.endings:
        texts.append(f"{status}: {reason}" if reason and status != case.last["status"] else status)
    return f"{case.good_repeats} of {case.repeats} repeats ({', '.join(dict.fromkeys(texts))})"


def _meaning(about: Declaration, shown: Sequence[Case], table: Table) -> list[str]:
    """Return the sentences that say what the numbers of the table mean."""
    several = max((case.good_repeats for case in shown), default=0)
    names = [name for heading, name in about.shown.items() if shown and heading in table.columns]
    cells = [cell for row in table.rows for cell in row.cells]
    meaning = []
    if several > 1:
        meaning.append(
            f"± is the 95 % interval between {several} repeats, each in a process of its own."
        )
    elif any("±" in cell for cell in cells):
        meaning.append(
            "± is the 95 % interval within this run; another run may differ by more (REPEATS=5 tells by how much)."
        )
    if about.framework_columns:
        meaning.append("Published: seconds, as printed.")
    if "compute_epoch_s" in names:
        meaning.append(
            "“Of it computing” is an epoch of the same loop on batches that are on the device already; not told apart: "
            "no shorter than the whole epoch beyond the intervals of both."
        )
    if any(cell.startswith("about ") for cell in cells):
        meaning.append(
            "about: fewer than 6 steps or calls give no interval; of one wider than ± 50 % the bounds are shown."
        )
    if "peak_memory_bytes" in names:
        meaning.append(
            "Memory is the whole process on a CPU, and what the framework reserved on a GPU; the article does not say "
            "which."
        )
    if any(name.endswith(metrics.SLOPES) for name in names):
        meaning.append(
            "In brackets: the 95 % interval of a slope over the steps behind the warm-up. One that holds 0 shows "
            "neither growth nor its absence."
        )
    return meaning


def _numbers(case: Case) -> dict[str, Any]:
    """Return a case as numbers, for a file."""
    row = {"source": "measured", "device": case.first["device"], **case.config}
    for name, value in case.values.items():
        row |= {name: value.value} | ends(name, value)
        if name in (*TRAININGS, "compute_epoch_s"):
            row[f"{name}_how"] = value.how
    count = case.good_repeats or case.repeats
    return row | {"status": case.status, "repeats": count, "flags": " ".join(case.flags)}
