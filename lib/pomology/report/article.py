"""An article's table with this machine in it: rows of text for people, and the same as numbers for a file.

A measured cell carries what it needs to be believed: its interval, whether the epoch ran whole or was estimated from
how many steps, and any flags. A case that did not end well shows its status instead, as the articles do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pomology.articles import published
from pomology.format import plus_minus, slope_text
from pomology.report import declaration, roofline
from pomology.report.declaration import Declaration
from pomology.report.table import Row, Table
from pomology.results import metrics
from pomology.results.cases import FLAGS, FRAMEWORKS, _device_name, _good, chip_name, combined, comparable, groups

RATES = ("flops_per_s", "bytes_per_s")  # of a product and of a pass over memory

# Where nothing stands there, it is the system that does not say it.
UNTOLD = ("temperature_", "peak_memory_", "footprint_", "allocated_", "reserved_", "energy_", "power_")


@dataclass(frozen=True)
class Column:
    """A column of an article's table: a metric, where the article has one a framework only of that one's times."""

    heading: str
    metric: str
    where: str = ""


def article_table(experiment: str | Declaration, records: list[dict], best: roofline.Ceilings | None = None) -> Table:
    """Published rows as printed, in the article's order, then this machine's.

    `records` are the finished cases of one experiment. Of several repeats the geometric mean is shown. Cases of the
    profile `smoke` are left out, and where whole times are compared those of a smaller model than the article's. best:
    this machine's ceilings; a table of operations a second shows the share of them that they are.
    """
    about = declaration.of(experiment)
    if about.whole_run:
        return roofline.ceilings_table(records, "001")
    columns = _columns(about)
    rows, data, notes = _published_lines(about, columns)
    times = about.metric in ("epoch_s", "fit_s")
    usable = comparable(records) if times else [record for record in records if record.profile != "smoke"]
    shown = [repeats for repeats in groups(usable) if not (repeats[0].scaled and repeats[-1].status == "too-big")]
    share = best if best and about.name not in roofline.CEILINGS else None
    rates = {id(repeats): roofline.share(repeats[0], share, roofline._rate(repeats)) for repeats in shown if share}
    several = len({record.framework for record in records}) > 1
    for line in _lines(about, shown):
        first = line[0][0]
        name = chip_name(first) if about.framework_columns else _device_name(first, several)
        cells = [name, *(str(first.config.get(key, "")) for key in about.headings)]
        for column in columns:
            here = [
                repeats
                for repeats in line
                if _column_of(columns, column, repeats[0].framework, repeats[0].backend) == column
            ]
            texts = [_cell(column, repeats, about) for repeats in here]
            if len(line) > 1 and not column.where:
                texts = [f"{_framework(one[0])} {text}" for one, text in zip(here, texts, strict=True) if text]
            if column.metric == "flops_per_s" and about.framework_columns:
                texts = [
                    text + (f" ({roofline._percent(rates.get(id(one)))} of the best)" if rates.get(id(one)) else "")
                    for one, text in zip(here, texts, strict=False)
                ]
            cells.append("; ".join(filter(None, texts)))
        if not about.framework_columns and not _good(line[0]) and "status" not in about.shown.values():
            cells[1 + len(about.headings)] = line[0][-1].status
        remarks = dict.fromkeys(remark for repeats in line for remark in _remarks(about, repeats))
        rows.append(Row((*cells, "; ".join(remarks)), "measured"))
        for repeats in line:
            data.append(_numbers(repeats))
            if about.framework_columns:
                data[-1] |= {"backend": repeats[0].backend, "framework": repeats[0].framework}
    notes += _notes(about, records, usable, rows)
    refused = len(groups(usable)) - len(shown)
    if refused:
        notes.append(f"Too big as well were {refused} smaller cases, not shown; where they were tried, it says why.")
    notes += flag_notes(record for repeats in shown for record in repeats)
    headings = ("Device", *about.headings.values(), *(column.heading for column in columns), "Remarks")
    table = Table(about.title or about.name, headings, tuple(rows), tuple(notes), tuple(data))
    heading = next((column.heading for column in columns if column.metric == "flops_per_s"), None)
    if share and heading and not about.framework_columns:
        ours = [rates[id(repeats)] for repeats in shown]
        return roofline._with_shares(table, heading, [None] * (len(rows) - len(ours)) + ours)
    return table


def flag_notes(records: Iterable[dict]) -> list[str]:
    """What the flags of these cases mean."""
    return [f"{flag}: {FLAGS.get(flag, flag)}." for flag in sorted({f for record in records for f in record.flags})]


def _framework(record: dict) -> str:
    return FRAMEWORKS.get(record.framework, record.framework)


def _columns(about: Declaration) -> list[Column]:
    columns = [Column(heading, name) for heading, name in about.shown.items()]
    if about.framework_columns:
        times = [Column(heading, about.time, where) for heading, where in about.framework_columns.items()]
        return times + [column for column in columns if column.metric != about.time]
    return columns


def _column_of(columns: Sequence[Column], column: Column, framework: str, backend: str) -> Column:
    """Of columns of one metric, that of a framework and backend: the most exact one that fits."""
    place = f"{framework.replace('pytorch', 'torch')} {backend}"
    fits = [one for one in columns if one.metric == column.metric and place.startswith(one.where)]
    return max(fits, key=lambda one: len(one.where))


@dataclass
class _Printed:
    """A row that an article prints, with the values of its metrics."""

    device: str
    config: dict
    values: list[dict] = field(default_factory=list)


def _published_lines(about: Declaration, columns: Sequence[Column]) -> tuple[list[Row], list[dict], list[str]]:
    """The rows that print a metric of the columns: as text, as numbers, and what else is said of them."""
    lines: dict[tuple, _Printed] = {}
    for value in published.rows(experiment=about.experiment):
        line = lines.setdefault((value["item"], value["row"]), _Printed(value["device"], value["config"]))
        line.values.append(value)
    rows, data, notes = [], [], []
    sources = {column.metric: metrics.metric(column.metric).sources or (column.metric,) for column in columns}
    names = {name for alternatives in sources.values() for name in alternatives}
    # What is printed of a device beside an epoch is in no row of its own.
    names = {"epoch_s"} if about.metric == "epoch_s" else names
    for line in lines.values():
        printed = [value for value in line.values if value["metric"] in names]
        if not printed:
            continue
        cells = [line.device or "the article", *(str(line.config.get(key, "")) for key in about.headings)]
        for column in columns:
            here = [value for value in line.values if value["metric"] in sources[column.metric]]
            if column.where:
                places = [(value["framework"], value["backend"]) for value in here]
                here = [
                    v for v, place in zip(here, places, strict=True) if _column_of(columns, column, *place) == column
                ]
            word, _, more = here[-1]["note"].partition("; ") if here else ("", "", "")
            # What is printed in an image only is there without a text.
            cells.append((here[-1]["printed"] or word) if here else "")
            if more and not here[-1]["printed"]:
                notes.append(f"{line.device or 'The article'}: {word}; {more}.")
        rows.append(Row((*cells, "published"), "published"))
        about_it = {"source": "published", "device": line.device}
        if about.framework_columns:
            data += [
                about_it
                | {"backend": value["backend"], **line.config, about.time: value["si"], "status": value["status"]}
                for value in printed
            ]
            continue
        numbers = {value["metric"]: value["si"] for value in line.values if value["si"] is not None}
        data.append(about_it | line.config | numbers | {"status": printed[-1]["status"]})
    return rows, data, notes


def _lines(about: Declaration, shown: list[list[dict]]) -> list[list[list[dict]]]:
    """Cases that share a row: each its own, or where the article has a column a framework those of one setting."""
    if not about.framework_columns:
        return [[repeats] for repeats in shown]
    lines: dict[tuple, list[list[dict]]] = {}
    for repeats in shown:
        key = (chip_name(repeats[0]), json.dumps(repeats[0].config, sort_keys=True))
        lines.setdefault(key, []).append(repeats)
    return list(lines.values())


def measured(repeats: list[dict], name: str) -> dict | None:
    """A metric of a case, from the first of its sources that is there."""
    sources = metrics.metric(name).sources or (name,)
    return next((found for found in (combined(repeats, source) for source in sources) if found), None)


def _cell(column: Column, repeats: list[dict], about: Declaration) -> str:
    name, good = column.metric, _good(repeats)
    # An article with a column a framework has devices from a laptop's to a server's, whose rates differ a hundredfold.
    heading = "Operations" if about.framework_columns and name == "flops_per_s" else column.heading
    show = metrics.show(name, heading)
    if name == "status":
        return "yes" if good else repeats[-1].status
    value = roofline._rate(repeats) if about.framework_columns and name == "flops_per_s" else measured(repeats, name)
    if value is None:
        if column.where:
            return repeats[-1].status
        # A copy does no operations.
        other_rate = name in RATES and any(rate in (good or repeats)[-1].metrics for rate in RATES)
        if not good or other_rate or about.framework_columns:
            return ""
        return "not told" if name.startswith(UNTOLD) else "not measured"
    if repeats[0].scaled and name in metrics.PASSES:
        return "scaled" if column.where else "see the details"
    if name.endswith(metrics.SLOPES):
        return slope_text(value)
    begun = combined(repeats, name.replace("_end_", "_start_")) if "_end_" in name else None
    if begun:
        return f"{show(begun.value)} → {show(value.value)}"
    return f"{show(value.value)}{plus_minus(value)}"


def _remarks(about: Declaration, repeats: list[dict]) -> list[str]:
    """How the numbers of a case came about, why there are none, and its flags."""
    good = _good(repeats)
    last, how = (good or repeats)[-1], []
    time = about.metric if about.metric in ("epoch_s", "fit_s") else ""
    if time and good and time in last.metrics:
        value = combined(repeats, time)
        steps = sum(count for count, _ in (last.blocks or {}).get("training", {}).get("steady", []))
        how = ["measured" if value.how == "measured" else f"estimated from {steps} steps", last.data]
    endings = ((record.status, record.reason) for record in repeats if record.status != "ok")
    others = dict.fromkeys(": ".join(filter(None, ending)) for ending in endings)
    count = f"{len(good)} of {len(repeats)} repeats ({', '.join(others)})" if others else f"{len(repeats)} repeats"
    parts = [*how, last.reason, last.note, count if len(repeats) > 1 else ""]
    parts += ["scaled"] if good and last.scaled else []
    return [*filter(None, parts), *sorted({flag for record in repeats for flag in record.flags})]


def _notes(about: Declaration, records: list[dict], usable: list[dict], rows: list[Row]) -> list[str]:
    notes = []
    several = max((len(_good(repeats)) for repeats in groups(usable)), default=0)
    if several > 1:
        notes.append(f"± is the 95 % interval between {several} repeats, each in a process of its own.")
    elif any("±" in cell for row in rows for cell in row.cells):
        notes.append(
            "± is the 95 % interval within this run; another run may differ by more (REPEATS=5 tells by how much)."
        )
    if about.framework_columns:
        notes.append("Published: seconds, as printed.")
    shown = about.shown.values()
    if usable and "compute_epoch_s" in shown:
        notes.append("“Of it computing” is an epoch of the same loop on batches that are on the device already.")
    if usable and "peak_memory_bytes" in shown:
        notes.append(
            "Memory is the whole process on a CPU, and what the framework reserved on a GPU; the article does not say "
            "which."
        )
    origins = dict.fromkeys(record.data_origin for record in records if record.data_origin)
    notes += [f"Data: {origin}." for origin in origins]
    if any(record.profile == "smoke" for record in records):
        notes.append("This was a smoke test, with tiny shapes: its numbers do not stand beside the article's.")
    if any(record.scaled and record.profile != "smoke" for record in records):
        notes.append("scaled: smaller than in the article. What can be compared is FLOP/s, not times; see the details.")
    if usable and any(name.endswith(metrics.SLOPES) for name in shown):
        notes.append(
            "In brackets: the 95 % interval of a slope over the steps behind the warm-up. One that holds 0 shows "
            "neither growth nor its absence."
        )
    return notes


def _numbers(repeats: list[dict]) -> dict:
    first, good = repeats[0], _good(repeats)
    row = {"source": "measured", "device": chip_name(first), **first.config}
    for name in dict.fromkeys(name for record in repeats for name in record.metrics):
        value = combined(repeats, name)
        if value:
            row |= {name: value.value}
            if value.low is not None:
                row |= {f"{name}_low": value.low, f"{name}_high": value.high}
            if name in ("epoch_s", "compute_epoch_s", "fit_s"):
                row[f"{name}_how"] = value.how
    flags = sorted({flag for record in repeats for flag in record.flags})
    row["status"] = "ok" if good else repeats[-1].status
    return row | {"repeats": len(good or repeats), "flags": " ".join(flags)}
