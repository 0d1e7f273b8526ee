"""An article's table with this machine in it: rows of text for people, and the same as numbers for a file.

A measured cell carries what it needs to be believed: its interval, whether the epoch ran whole or was estimated from
how many steps, and any flags. A case that did not end well shows its status instead, as the articles do. In the
notebooks of `today/`, what others have timed stands in place of an article's rows.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import NamedTuple

from pomology.articles import elsewhere, published
from pomology.format import bounded, few, quantity_per_s, rounded, seconds, significant, slope_text, span, with_interval
from pomology.measure.estimate import Estimate
from pomology.report import declaration, roofline
from pomology.report.declaration import Declaration
from pomology.report.table import YEARS, Row, Table, ends, flag_notes, grouped
from pomology.results import cases, metrics
from pomology.results.cases import chip_name, combined, good_of, with_software
from pomology.results.record import UNTRIED, Record

RATES = ("flops_per_s", "bytes_per_s")  # of a product and of a pass over memory
DETAILS = "see the details"  # once a row
TRAININGS = ("epoch_s", "fit_s")  # times that stand beside published ones, and say how they came about
# Where nothing stands there, it is the system that does not say it.
UNTOLD = ("temperature_", "clock_", "peak_memory_", "footprint_", "allocated_", "reserved_", "energy_", "power_")

# What stands in a table in place of a value.
NOT_TOLD = "not told"
NO_VALUE = {"", NOT_TOLD, "not measured", DETAILS, "only in an image"}

ELSEWHERE = (
    "A published row is a device with a framework in a precision: of several measurements the least and the most.",
    "Published operations a second are counted: the printed speed times the work on paper.",
)


class Column(NamedTuple):
    """A column of an article's table: a metric, where the article has one a framework only of that one's times."""

    heading: str
    metric: str
    where: str = ""

    def holds(self, columns: Sequence[Column], framework: str, backend: str) -> bool:
        """Whether a framework and backend stand here: of the columns of a metric in the most exact that fits them."""
        place = f"{framework.replace('pytorch', 'torch')} {backend}"
        fits = [column.where for column in columns if column.metric == self.metric and place.startswith(column.where)]
        return self.where == max(fits, key=len, default=None)


def article_table(experiment: str | Declaration, records: list[Record], best: roofline.Ceilings | None = None) -> Table:
    """Published rows as printed, in the article's order, then this machine's.

    `records` are the finished cases of one experiment. Of several repeats the geometric mean is shown. Cases of the
    profile `smoke` are left out, and where whole times are compared those of a smaller model than the article's. best:
    this machine's ceilings; a table of operations a second shows the share of them that they are.
    """
    about = declaration.of(experiment)
    if about.whole_run:
        return roofline.ceilings_table(records, "001")
    split = about.framework_columns or {}
    columns = [Column(heading, about.time, where) for heading, where in split.items()]
    columns += [Column(heading, name) for heading, name in about.shown.items() if not split or name != about.time]
    rows, data, notes = (_elsewhere if about.article == published.TODAY else _published)(about, columns)
    usable = cases.comparable(records, "" if about.metric in TRAININGS else "flops_per_s")
    groups = cases.groups(usable)
    shown = [repeats for repeats in groups if not (repeats[0].scaled and repeats[-1].status in UNTRIED)]
    shares: dict[str, Estimate | None] = {}
    if best and about.name not in roofline.CEILINGS:
        shares = {repeats[0].case: roofline.share(repeats[0], best, roofline.rate_of(repeats)) for repeats in shown}

    def line_of(repeats: list[Record]) -> tuple:  # where the article has a column a framework, settings share a line
        first = repeats[0]
        return (chip_name(first), json.dumps(first.config, sort_keys=True)) if split else (first.case,)

    of_rows: list[Estimate | None] = [None] * len(rows)
    for line in grouped(shown, line_of):
        first = line[0][0]
        alone = len({repeats[0].framework for repeats in line}) == 1  # else each has a column of its own
        software = (first.framework, first.framework_version) if alone else ("", "")
        cells = [with_software(chip_name(first), *software, first.started[:4]), *about.cells(first.config)]
        for column in columns:
            texts = []
            for repeats in line:
                case = repeats[0]
                if column.holds(columns, case.framework, case.backend):
                    text = _cell(about, column, repeats, shares.get(case.case))
                    named = text and len(line) > 1 and not column.where
                    texts.append(f"{cases.framework_name(case)} {text}" if named else text)
            text = "; ".join(filter(None, texts))
            cells.append("" if text == DETAILS and DETAILS in cells else text)
        if not split and not good_of(line[0]) and "status" not in about.shown.values():
            place = next((place for place, column in enumerate(columns) if column.metric == about.time), 0)
            cells[1 + len(about.headings) + place] = line[0][-1].status
        remarks = dict.fromkeys(remark for repeats in line for remark in _remarks(about, repeats))
        rows.append(Row((*cells, "; ".join(remarks)), "measured"))
        of_rows.append(shares.get(first.case))
        for repeats in line:
            where = {"backend": repeats[0].backend, "framework": repeats[0].framework} if split else {}
            data.append(_numbers(repeats) | where)
    if refused := len(groups) - len(shown):
        notes.append(f"{refused} smaller cases, which were too big or too slow as well, are not shown.")
    notes += dict.fromkeys(f"Data: {record.data_origin}." for record in records if record.data_origin)
    if any(record.profile == "smoke" for record in records):
        notes.append("This was a smoke test, with tiny shapes: its numbers do not stand beside the article's.")
    if any(record.scaled and record.profile != "smoke" for record in records):
        notes.append("scaled: smaller than in the article. What can be compared is FLOP/s, not times; see the details.")
    notes += [YEARS] * (bool(shown) and any(row.get(about.time) for row in data if row["source"] == "published"))
    notes += flag_notes(record for repeats in shown for record in repeats)
    headings = ("Device", *about.headings.values(), *(column.heading for column in columns), "Remarks")
    table = Table(about.title or about.name, headings, tuple(rows), tuple(notes), tuple(data))
    if not split:
        rate = next((column.heading for column in columns if column.metric == "flops_per_s"), None)
        table = roofline.with_shares(table, rate, of_rows) if rate else table
        table = _without_empty(table, 2 + len(about.headings))
    return replace(table, meaning=(*_meaning(about, usable, table), *table.meaning))


def _without_empty(table: Table, first: int) -> Table:
    """The same without the columns from `first` on in which no row has a value; a note names them, with the reasons."""
    if not any(row.kind == "measured" for row in table.rows):
        return table
    kept, lacking = [], {}
    for place, (heading, *cells) in enumerate(zip(table.columns, *(row.cells for row in table.rows), strict=True)):
        if place < first or place == len(table.columns) - 1 or not set(cells) <= NO_VALUE:
            kept.append(place)
        elif reason := ", ".join(sorted({*cells} - {""})):
            lacking.setdefault(reason, []).append(heading.lower())
    rows = tuple(replace(row, cells=tuple(row.cells[place] for place in kept)) for row in table.rows)
    named = "; ".join(f"{', '.join(of)} ({why})" for why, of in lacking.items())
    notes = [f"Not shown, since no row has a value: {named}."] * bool(lacking)
    columns = tuple(table.columns[place] for place in kept)
    return replace(table, columns=columns, rows=rows, notes=(*table.notes, *notes))


# What was published ---------------------------------------------------------------------------------------------------


def _published(about: Declaration, columns: Sequence[Column]) -> tuple[list[Row], list[dict], list[str]]:
    """The rows that print a metric of the columns: as text, as numbers, and what else is said of them."""
    sources = {column.metric: metrics.metric(column.metric).sources or (column.metric,) for column in columns}
    # What is printed of a device beside an epoch is in no row of its own.
    names = {"epoch_s"} if about.metric == "epoch_s" else {name for names in sources.values() for name in names}
    rows, data, notes = [], [], []
    for line in grouped(published.rows(experiment=about.experiment), itemgetter("item", "row")):
        printed = [value for value in line if value["metric"] in names]
        if not printed:
            continue
        device, config = line[0]["device"], line[0]["config"]
        by = "" if about.framework_columns else line[0]["framework"]
        version, year = published.software(line[0]["article"], device, by, line[0]["source"])
        year = "" if about.experiment == "costs" else year  # a list of prices
        cells = [with_software(device, by, version, year) if device else "the article", *about.cells(config)]
        for column in columns:
            here = [value for value in line if value["metric"] in sources[column.metric]]
            here = [value for value in here if column.holds(columns, value["framework"], value["backend"])]
            last = here[-1] if here else {"printed": "", "note": ""}
            word, _, more = last["note"].partition("; ")
            cells.append(last["printed"] or word)  # what is printed in an image only is there without a text
            if more and not last["printed"]:
                notes.append(f"{device or 'The article'}: {word}; {more}.")
        # A word of the article that is not the column's, as FLOPs of multiply-adds.
        words = dict.fromkeys(value["note"] for value in printed if value["note"].startswith("the article says"))
        rows.append(Row((*cells, "; ".join(words) or "published"), "published"))
        source = {"source": "published", "device": device}
        if about.framework_columns:
            for value in printed:
                numbers = {about.time: value["si"], "status": value["status"]}
                data.append(source | {"backend": value["backend"]} | config | numbers)
        else:
            numbers = {value["metric"]: value["si"] for value in line if value["si"] is not None}
            data.append(source | config | numbers | {"status": printed[-1]["status"]})
    return rows, data, notes


def _elsewhere(about: Declaration, columns: Sequence[Column]) -> tuple[list[Row], list[dict], list[str]]:
    """The same of what others have timed, in `today/`.

    A time of another piece of work, as an epoch, stands in the first column with its name. The remarks of a row are how
    many measurements it is of, their sources, the settings that have no column, and what is wrong with them.
    """
    names = [column.metric for column in columns]
    times = {*names} - {"throughput", "flops_per_s"}

    def apart(row: dict) -> tuple:  # of times that have a column those with the same settings alone are one row
        if row["metric"] in times:
            return row["workload"], row["metric"], str(row["config"])
        return row["workload"], *(row["config"].get(name) for name in about.headings if name != "batch_size")

    rows, data = [], []
    for alike in _alike(about, apart):
        first, origins = alike[0], dict.fromkeys(row["source"] for row in alike)
        keys = dict.fromkeys(key for row in alike for key in row["config"])
        config = {key: _between(row["config"][key] for row in alike if key in row["config"]) for key in keys}
        counted = [row["flops_per_s"] for row in alike if row["flops_per_s"]]
        held = {"flops_per_s": _between(counted, partial(quantity_per_s, unit="FLOP/s"))}
        for of in grouped(alike, itemgetter("metric")):
            show = partial("{:,.6g} {unit}".format, unit=of[0]["unit"])
            held[of[0]["metric"]] = of[0]["bound"] + _between((row["value"] for row in of), show)
        texts = [held.get(name, "") for name in names]
        if not held.keys() & {*names} - {"flops_per_s"}:
            what = cases.TIMES.get(first["metric"], first["metric"])
            texts[0] = f"by the {what}" if len(alike) > 1 else f"{held[first['metric']]} ({what})"
        faults = {fault: None for row in alike for fault in row["faults"] if fault != "one-run" or len(alike) == 1}
        rest = cases.config_text({key: value for key, value in config.items() if key not in about.headings})
        remarks = [f"{len(alike)} measurements"] * (len(alike) > 1) + [", ".join(origins), rest]
        remarks = "; ".join(filter(None, (*remarks, *map(elsewhere.FAULTS.get, faults))))
        rows.append(Row((_with_software(alike), *about.cells(config), *texts, remarks), "published"))
        numbers = {"source": " ".join(origins), "device": first["device"], "measurements": len(alike)} | config
        for name in names:
            key = "flops_per_s" if name == "flops_per_s" else "si"
            if each := [row[key] for row in alike if row[key] and name in (key, row["metric"])]:
                numbers |= {name: statistics.median_low(each), f"{name}_least": min(each), f"{name}_most": max(each)}
        data.append(numbers | {"status": "ok"})
    known = [elsewhere.sources()[name] for name in dict.fromkeys(row["source"] for row in about.beside)]
    sources = ["{id}: {title}, {author}, {date}, {url}.".format_map(source) for source in known]
    return rows, data, [*ELSEWHERE, *sources] if rows else []


def drawn(about: Declaration, records: Iterable[Record]) -> list[dict]:
    """The published rows of the figure; in `today/` each the fastest of its measurements, with all of them in `each`,
    and where this machine has panels, of those alone."""
    if about.article != published.TODAY:
        return about.beside
    apart = [key for key in about.headings if key not in about.shared_panel]

    def panel(config: dict) -> tuple:
        return tuple(config.get(key) for key in apart)

    here, rows = {panel(record.config) for record in records}, []
    for alike in _alike(about, lambda row: panel(row["config"])):
        each = [row["flops_per_s"] for row in alike if row["flops_per_s"]]
        if each and (not here or panel(alike[0]["config"]) in here):
            shown = {"device": _with_software(alike), "metric": about.metric, "si": max(each)}
            rows.append(alike[0] | shown | {"each": each})
    return rows


def _alike(about: Declaration, apart: Callable[[dict], tuple]) -> list[list[dict]]:
    """The published rows that are shown as one, by precision and speed: what a device with a framework does in a
    precision, with the same serious faults. apart: what else tells two rows apart."""

    def same(row: dict) -> tuple:
        serious = frozenset(elsewhere.SERIOUS.intersection(row["faults"]))
        return row["device"], row["framework"].partition(" ")[0], row["precision"], serious, *apart(row)

    def order(alike: list[dict]) -> tuple[int, float]:
        fastest = max(row["flops_per_s"] or 0 for row in alike)
        return elsewhere.PRECISIONS.index(alike[0]["precision"]), -fastest

    return sorted(grouped(about.beside, same), key=order)


def _with_software(alike: Sequence[dict]) -> str:
    """`V100 16 GB (PyTorch, 2020 to 2022)`: the version where all have one."""
    texts, years = {row["framework"] for row in alike}, _between(int(row["year"]) for row in alike)
    name, _, version = min(texts).partition(" ")
    if name.replace("pytorch", "torch") not in cases.FRAMEWORKS:
        version = f"{name} {version}".strip()
    return with_software(alike[0]["device"], name, version if len(texts) == 1 else "", years)


def _between(values: Iterable, show: Callable[[float], str] = str) -> str:
    """`64 to 512`; of words `random or ImageNet`; of more than three how many there are."""
    kinds = list(dict.fromkeys(values))
    if kinds and all(isinstance(kind, (int, float)) for kind in kinds):
        return span(min(kinds), max(kinds), show)
    return " or ".join(map(str, kinds)) if len(kinds) <= 3 else f"{len(kinds)} kinds"


# What was measured ----------------------------------------------------------------------------------------------------


def _cell(about: Declaration, column: Column, repeats: list[Record], share: Estimate | None) -> str:
    name, good, split = column.metric, good_of(repeats), bool(about.framework_columns)
    if name == "status":
        return "yes" if good else repeats[-1].status
    if split and name == "flops_per_s":
        # An article with a column a framework has devices from a laptop's to a server's: rates differ a hundredfold.
        show, value = metrics.show(name, "Operations"), roofline.rate_of(repeats)
    else:
        known = (combined(repeats, source) for source in metrics.metric(name).sources or (name,))
        show, value = metrics.show(name, column.heading), next(filter(None, known), None)
        printed = (row for row in published.rows(experiment=about.experiment) if row["metric"] == name)
        show = metrics.MINUTES if {row["unit"] for row in printed if row["printed"]} == {"min"} else show
    if value is None:
        # A copy does no operations.
        other_rate = name in RATES and any(rate in (good or repeats)[-1].metrics for rate in RATES)
        lacking = NOT_TOLD if name.startswith(UNTOLD) else "not measured"
        return repeats[-1].status if column.where else "" if not good or other_rate or split else lacking
    if repeats[0].scaled and name in metrics.PASSES:
        return "scaled" if column.where else DETAILS
    if name.endswith(metrics.SLOPES):
        return slope_text(value)
    if name in TRAININGS and few(value):  # no interval, which few steps cannot have, but their shortest and longest
        times = [spent / count for record in good for count, spent in record.steady() if count]
        steps = f" (steps of {span(min(times), max(times), partial(seconds, digits=2))})" if times else ""
        return f"about {rounded(value, show)}{steps}"
    whole = combined(repeats, name.removeprefix("compute_")) if name.startswith("compute_") else None
    if whole and not resolved(value, whole):
        return f"not told apart ({value.n} {'repeat' if value.covers == 'repeats' else 'step'}{'s' * (value.n != 1)})"
    begun = combined(repeats, name.replace("_end_", "_start_")) if "_end_" in name else None
    if begun:
        return f"{show(begun.value)} → {show(value.value)}"
    of_best = f" ({roofline.percent(share)} of the best)" if split and name == "flops_per_s" and share else ""
    stand_in = " (of the stand-in)" if name == "accuracy" and good[-1].data == "stand-in" else ""
    return f"{with_interval(value, show)}{of_best}{stand_in}"


def resolved(part: Estimate, whole: Estimate) -> bool:
    """Whether a part is smaller than the whole beyond the intervals of both."""
    return bounded(part) and bounded(whole) and part.high < whole.low


def _remarks(about: Declaration, repeats: list[Record]) -> list[str]:
    """How the numbers of a case came about, why there are none, and its flags."""
    good = good_of(repeats)
    last, how = (good or repeats)[-1], []
    if about.metric in TRAININGS and good and about.metric in last.metrics:
        training = (last.blocks or {}).get("training", {})
        steps = sum(count for count, _ in last.steady())
        seen = steps / training["epoch_steps"] if training.get("epoch_steps") else 1.0
        seen = f", {significant(100 * seen, 2)} % of the epoch" if seen < 1 else ""
        whole = combined(repeats, about.metric).how == "measured"
        how = ["measured" if whole else f"estimated from {steps} step{'s' * (steps != 1)}{seen}", last.data]
    # Each repeat words the reason of the last in numbers of its own.
    endings = [(r.status, r.reason if r.status != last.status else "") for r in repeats if r.status != "ok"]
    others = ", ".join(dict.fromkeys(": ".join(filter(None, words)) for words in endings))
    count = f"{len(good)} of {len(repeats)} repeats ({others})" if others else f"{len(repeats)} repeats"
    if about.metric.startswith("energy_") and last.rails:
        how.append(f"counted: {', '.join(last.rails)}")
    parts = [*how, last.reason, last.note, len(repeats) > 1 and count, good and last.scaled and "scaled"]
    return [*filter(None, parts), *_flags(repeats)]


def _flags(repeats: list[Record]) -> list[str]:
    return sorted({flag for record in repeats for flag in record.flags})


def _meaning(about: Declaration, usable: list[Record], table: Table) -> list[str]:
    several = max((len(good_of(repeats)) for repeats in cases.groups(usable)), default=0)
    shown = [name for heading, name in about.shown.items() if usable and heading in table.columns]
    cells = [cell for row in table.rows for cell in row.cells]
    meaning = [
        several > 1 and f"± is the 95 % interval between {several} repeats, each in a process of its own.",
        several < 2
        and any("±" in cell for cell in cells)
        and "± is the 95 % interval within this run; another run may differ by more (REPEATS=5 tells by how much).",
        about.framework_columns and "Published: seconds, as printed.",
        "compute_epoch_s" in shown
        and "“Of it computing” is an epoch of the same loop on batches that are on the device already; not told apart: "
        "no shorter than the whole epoch beyond the intervals of both.",
        any(cell.startswith("about ") for cell in cells)
        and "about: fewer than 6 steps or calls give no interval; of one wider than ± 50 % the bounds are shown.",
        "peak_memory_bytes" in shown
        and "Memory is the whole process on a CPU, and what the framework reserved on a GPU; the article does not say "
        "which.",
        any(name.endswith(metrics.SLOPES) for name in shown)
        and "In brackets: the 95 % interval of a slope over the steps behind the warm-up. One that holds 0 shows "
        "neither growth nor its absence.",
    ]
    return [*filter(None, meaning)]


def _numbers(repeats: list[Record]) -> dict:
    first, good = repeats[0], good_of(repeats)
    row = {"source": "measured", "device": chip_name(first), **first.config}
    for name in dict.fromkeys(name for record in repeats for name in record.metrics):
        if value := combined(repeats, name):
            row |= {name: value.value} | ends(name, value)
            row |= {f"{name}_how": value.how} if name in (*TRAININGS, "compute_epoch_s") else {}
    status = "ok" if good else repeats[-1].status
    return row | {"status": status, "repeats": len(good or repeats), "flags": " ".join(_flags(repeats))}
