"""The declaration of an experiment, and the tables of published and of all measured values."""

import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType, SimpleNamespace
from typing import Any

from pomology.articles import published
from pomology.format import IN_PROCESS, quantity, seconds, with_interval
from pomology.measure.estimate import Estimate
from pomology.report import peaks
from pomology.report.table import MOST_ROWS, YEARS, Row, Table, intervals, numbers, value_text
from pomology.results import cases, metrics
from pomology.results.comparing import bounded
from pomology.results.record import Record
from pomology.results.repeats import Repeats, pool, speed_ratio

EPOCH = (
    "epoch_s",
    "compute_epoch_s",
    "compute_share",
    "samples_per_s",
    "temperature_c",
    "peak_memory_bytes",
    "power_w",
)
RELATIVE = ("times_fp32", "times_cpu")  # speeds relative to another case, in every table
TIMED = ("device", "framework", "backend")
TRAININGS = ("epoch_s", "fit_s")  # times whose note says how they were measured
SLOPES = ("footprint_slope_bytes", "resident_slope_bytes", "page_faults_slope")
LEAST_STEPS = 10  # behind a slope that a table shows
NAMED = 4  # devices of a published note
NEAREST = 4  # published rows on each side of this machine's that an excerpt has
FOLDED = 3  # cases without a value, from which on a table has them behind a click
SMOKE = "Smoke tests have tiny shapes; this table leaves them out."
NUMBER = "n: the steps, calls or samples behind a value; without it, one."
SCALED = (
    "scaled: a smaller model or batch than published; compare only FLOP/s. The details have its "
    "times."
)
LEFT_OUT = (
    "Cases with a smaller model or batch than published are not in this table, since their times "
    "compare with no other's. The details have them."
)


@dataclass(frozen=True)
class Declaration:
    """The declaration of an experiment by its notebook.

    name: of the notebook and the experiment. settings: the keys of a case's config that have a
    column, each alone or with its heading; by default see `of_cases`. columns: metrics, likewise;
    by default those of an epoch. figure: the drawn metric; by default the first column with an
    axis, else the first one. series: metrics with their own lines in the figure. shared_panel:
    settings whose values share a panel. over: the setting of a figure's horizontal axis, if its
    subject is a curve. claims_of: other experiments whose claims it tests, too.
    beside: a function of the name that returns rows to compare with, in the form of
    `published.rows`, in place of the article's. opens_report: the report begins with the items of
    this notebook.
    """

    name: str
    article: str = ""
    title: str = ""
    settings: Sequence = ()
    columns: Sequence = EPOCH
    figure: str = ""
    series: Sequence[str] = ()
    shared_panel: Sequence[str] = ()
    over: str = ""
    claims_of: Sequence[str] = ()
    beside: Callable[[str], list[dict]] | None = None
    opens_report: bool = False

    @functools.cached_property
    def printed(self) -> Sequence[dict]:
        """The published rows of the table in the order of the article, or those of `beside`."""
        if self.beside:
            return self.beside(self.name)
        return published.rows(experiment=self.name)

    @functools.cached_property
    def headings(self) -> dict[str, str]:
        """The headings of the settings: key -> heading."""
        keys = self.settings or dict.fromkeys(key for row in self.printed for key in row["config"])
        return dict((key, metrics.words(key)) if isinstance(key, str) else key for key in keys)

    def of_cases(self, configs: Iterable[dict]) -> "Declaration":
        """Return the declaration with a column for each setting that tells cases apart.

        configs: of the cases. Where no settings are declared, those of the published rows come
        first; without such rows every setting of the cases has a column.
        """
        if self.settings:
            return self
        configs = list(configs)
        names = distinct(configs) if self.printed else itertools.chain(*configs)
        return replace(self, settings=tuple(dict.fromkeys([*self.headings, *names])))

    def texts(self, config: dict) -> dict[str, str]:
        """Return the settings of a case or a published row, by heading."""
        return {heading: str(config.get(key, "")) for key, heading in self.headings.items()}

    def cells(self, device: str, config: dict, notes: str) -> dict[str, str]:
        """Return a row of the table by heading, with empty texts for the metrics."""
        columns = dict.fromkeys(self.metric_columns, "")
        return {"Device": device} | self.texts(config) | columns | {"Notes": notes}

    @functools.cached_property
    def metric_columns(self) -> dict[str, str]:
        """The columns of metrics: heading -> metric.

        Some need no declaration, and a table leaves out empty ones: the shares of the measured peak
        and of the data sheet's, after FLOP/s, and at the end the speeds of RELATIVE.
        """
        columns = {}
        for column in self.columns:
            name, heading = (column, "") if isinstance(column, str) else column
            columns[heading or metrics.Metric(name).heading] = name
            if name == "flops_per_s":
                columns[peaks.BEST] = peaks.SHARE
                columns[metrics.Metric(peaks.SHEET).heading] = peaks.SHEET
        for name in RELATIVE:
            columns[metrics.Metric(name).heading] = name
        return columns

    def condition(self, metric: str) -> str:
        """Return what a column's heading says of all its values after a comma: `compute only`."""
        known = metrics.Metric(metric).heading  # may have a comma, too
        headings = [heading for heading, name in self.metric_columns.items() if name == metric]
        return next((each.partition(", ")[2] for each in headings if each != known), "")

    @functools.cached_property
    def metric(self) -> str:
        """The metric that the figure draws."""
        names = [*self.metric_columns.values()]
        with_axis = (name for name in names if metrics.Metric(name).axis)
        return self.figure or next(with_axis, names[0])

    @functools.cached_property
    def time(self) -> str:
        """The metric that ratios of devices and of frameworks compare."""
        names = (self.metric, *self.metric_columns.values())
        return next((name for name in metrics.WHOLE if name in names), "step_s")

    @property
    def claims(self) -> list[SimpleNamespace]:
        """The claims about the experiments; for article `kit` the claims of all articles."""
        article = None if self.article == published.KIT else self.article
        experiments = {self.name, *self.claims_of}
        claims = published.claims(article=article)
        return [claim for claim in claims if experiments & set(claim.experiments)]


def distinct(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings that tell cases apart, in their order. configs: of the cases."""
    names = dict.fromkeys(itertools.chain(*configs))
    return [name for name in names if len({str(config.get(name)) for config in configs}) > 1]


def article_table(
    declaration: Declaration,
    records: Sequence[Record],
    gpus: Sequence[Mapping[str, Any]] = (),
    variations: Mapping[str, float] = MappingProxyType({}),
) -> Table:
    """Return the table of published rows, in the article's order, and then of measured cases.

    From FOLDED on, cases without a value stand behind a click. A long table has an excerpt.

    records: the cases of one experiment. gpus: this machine's, for shares of their data sheets.
    variations: the run-to-run variation by kind of device, which bounds ratios of single runs.
    """
    lines = defaultdict(list)
    for value in declaration.printed:
        lines[value["line"]].append(value)
    measured = comparable(records, declaration.metric)
    declaration = declaration.of_cases(case.config for case in measured)
    rows, doubtful = [], set()
    for values in lines.values():
        row = _published(declaration, values)
        # An article also prints values that this table has no column for.
        if any(row.cells[name] for name in declaration.metric_columns):
            rows.append(row)
            if any(published.SERIOUS.intersection(value.get("faults", ())) for value in values):
                doubtful.add(id(row))
    by_work = cases_by_work(measured)
    rates = {}
    # Where the status is a column, it is what the table is of.
    has_status = "status" in declaration.metric_columns.values()
    folds = not has_status and sum(not case.good_repeats for case in measured) >= FOLDED
    for case in measured:
        values = case.values | _relative(declaration, case, by_work, variations)
        if peaks.has_share(case):
            rates[len(rows)] = (case.kind, case.precision, case.values["flops_per_s"])
        sheet = peaks.own_sheet(case, gpus)
        if sheet and "flops_per_s" in case.values:
            values[peaks.SHEET] = case.values["flops_per_s"] / sheet
        folded = folds and not case.good_repeats
        rows.append(_measured(declaration, case, values)._replace(folded=folded))
    filled = [
        metric
        for heading, metric in declaration.metric_columns.items()
        if any(row.cells[heading] for row in rows)
    ]
    notes = intervals([row for row in rows if row.kind == "measured"])
    notes += _notes(declaration, records, measured, filled)
    if len(rows) > MOST_ROWS:
        rows = with_excerpt(rows, declaration.metric, doubtful)
    return Table(declaration.title or declaration.name, rows, notes, rates)


def with_excerpt(
    rows: Sequence[Row], metric: str, doubtful: Container[int] = frozenset()
) -> list[Row]:
    """Return rows, some with their number in an excerpt: this machine's, and published ones nearby.

    These have the same precision; the highest value comes first. Without any published row it has
    the fastest row of each operation, framework and precision. doubtful: ids of published rows with
    a known problem, which it is without.
    """
    valued = [row for row in rows if row.data and row.data.get(metric)]
    valued.sort(key=lambda row: row.data[metric], reverse=True)
    chosen: set[int] = set()
    for own in (row for row in valued if row.kind == "measured"):
        precision = own.data.get("precision")
        published_rows = [
            row
            for row in valued
            if row.kind == "published"
            and row.data.get("precision") == precision
            and id(row) not in doubtful
        ]
        above = sum(row.data[metric] > own.data[metric] for row in published_rows)
        near = published_rows[max(0, above - NEAREST) : above + NEAREST]
        chosen |= {id(row) for row in [own, *near] if near}
    if not any(row.kind == "published" for row in rows):
        chosen = {id(row) for row in _fastest_of_operations(valued)}
    return numbered(rows, [row for row in valued if id(row) in chosen])


def _fastest_of_operations(valued: Sequence[Row]) -> list[Row]:
    """Return the first row of each operation, framework and precision. valued: fastest first."""
    fastest: dict[tuple, Row] = {}
    for row in valued:
        names = ("operation", "framework", "precision")
        if row.data.get("operation"):
            fastest.setdefault(tuple(row.data.get(name) for name in names), row)
    return [*fastest.values()]


def numbered(rows: Sequence[Row], excerpt: Sequence[Row]) -> list[Row]:
    """Return rows, those of an excerpt with their numbers in it."""
    numbers_of = {id(row): number for number, row in enumerate(excerpt, start=1)}
    return [row._replace(excerpt=numbers_of.get(id(row), 0)) for row in rows]


def comparable(records: Iterable[Record], metric: str = "") -> list[Repeats]:
    """Return the cases that published values may be compared with: no smoke, no scaled times."""
    chosen = [record for record in records if record.profile != "smoke"]
    # Of a smaller model only FLOP/s compare.
    if metric in TRAININGS:
        chosen = [record for record in chosen if not record.scaled]
    return pool(chosen)


def _published(declaration: Declaration, values: Sequence[dict]) -> Row:
    """Return the row of published values that have the same `line`."""
    first = values[0]
    columns = declaration.metric_columns
    remarks = dict.fromkeys(value["remark"] for value in values if value["remark"])
    notes = "; ".join(remarks) or "published"
    cells = declaration.cells(cases.published_device(first), first["config"], notes)
    data = {
        "source": "published",
        **{name: first[name] for name in TIMED},
        "origin": first["source"],
        **first["config"],
        "status": first["status"],
    }
    for value in values:
        for heading, metric in columns.items():
            if value["metric"] in metrics.Metric(metric).sources:
                cells[heading] = _printed(value, heading)
            elif metric == "flops_per_s" and value["flops_per_s"] and not cells[heading]:
                cells[heading] = quantity(value["flops_per_s"], "FLOP/s")
        if value["si"] is not None:
            data[value["metric"]] = value["si"]
        for name in ("flops_per_s", "throughput"):
            if value.get(name):
                data.setdefault(name, value[name])
    # A rate that was computed from a printed time is shown with this time, which has no column.
    if {metric for heading, metric in columns.items() if cells[heading]} == {"flops_per_s"}:
        time = cases.TIMES.get(first["metric"], first["metric"])
        cells[next(iter(columns))] = f"{first['printed']} ({time})"
    return Row(cells, data, "published")


def _printed(value: dict, heading: str) -> str:
    """Return a published value as printed, with the unit that stands elsewhere in the article."""
    text = value["printed"] or value["note"]  # values in images have no text
    bare = value["si"] is not None and re.fullmatch(r"[<~]?[\d.,]+", text)
    # A heading such as `Cold launch (ms)` or `Minutes per epoch` has the unit.
    if not bare or "(" in heading or heading.startswith("Minutes") or value["unit"] == "count":
        return text
    return f"{text} {value['unit']}"


def cases_by_work(measured: Iterable[Repeats]) -> dict[tuple, Repeats]:
    """Return cases by what they computed, in which framework and on which kind of device."""
    return {_work(case): case for case in measured}


def relative_speed(
    case: Repeats,
    by_work: dict[tuple, Repeats],
    metric: str,
    variations: Mapping[str, float],
    **changes: str,
) -> Estimate | None:
    """Return a case's speed relative to one that differs in `changes` alone, such as `kind`.

    variations: see `article_table`.
    """
    other = by_work.get(_work(case, **changes))
    ratio = speed_ratio(case, other, metric) if other not in (None, case) else None
    return ratio and bounded(ratio, variations, (case.kind, other.kind))


def _work(case: Repeats, **changes: str) -> tuple:
    """Return a key that is equal for comparable cases. changes: values to replace in it."""
    settings = {"kind": case.kind, "precision": case.precision} | case.config | changes
    return case.first.framework, *sorted(map(str, settings.items()))


def _measured(declaration: Declaration, case: Repeats, values: dict[str, Estimate]) -> Row:
    """Return the row of a case with these values, or with its status if it failed."""
    first = case.first
    cells = _measured_cells(declaration, case, values)
    data = {
        "source": "measured",
        "device": case.device,
        "framework": first.framework,
        "backend": first.backend,
        **case.config,
    }
    for name, value in values.items():
        data |= numbers(name, value)
        if name in (*TRAININGS, "compute_epoch_s"):
            data[f"{name}_how"] = value.how
    data |= {"status": case.status, "repeats": len(case.used) or case.repeats}
    return Row(cells, data | {"flags": " ".join(case.flags)}, "measured")


def _relative(
    declaration: Declaration,
    case: Repeats,
    by_work: dict[tuple, Repeats],
    variations: Mapping[str, float],
) -> dict[str, Estimate]:
    """Return the speeds of a case relative to the CPU and to fp32."""
    values = {}
    for name, changes in (("times_cpu", {"kind": "cpu"}), ("times_fp32", {"precision": "fp32"})):
        ratio = relative_speed(case, by_work, declaration.time, variations, **changes)
        if ratio:
            values[name] = ratio
    return values


def _measured_cells(
    declaration: Declaration, case: Repeats, values: dict[str, Estimate]
) -> dict[str, str]:
    """Return the texts of a case by heading. values: of the case, with relative ones."""
    first = case.first
    columns = declaration.metric_columns
    year = first.started[:4]
    device = cases.with_software(case.device, first.framework, first.framework_version, year)
    cells = declaration.cells(device, case.config, _note(declaration, case))
    for heading, metric in columns.items():
        sources = metrics.Metric(metric).sources
        if case.kind == "cpu":  # MLX counts what it has reserved there, too
            sources = tuple(name for name in sources if name != "reserved_peak_bytes")
        value = next((values[name] for name in sources if name in values), None)
        cells[heading] = value_text(metric, value, heading) if value else ""
        if value and metric in SLOPES and case.last.metrics[metric].n < LEAST_STEPS:
            cells[heading] = "too few steps"  # pools still fill
        if metric == "status":  # the first failure of all repeats
            good = "inconclusive" if "too-noisy" in case.flags else "yes"
            cells[heading] = case.failure or good
    # The status of a failed case is in place of its time.
    if not case.good_repeats and "status" not in columns.values():
        times = (heading for heading, metric in columns.items() if metric == declaration.time)
        cells[next(times, next(iter(columns)))] = case.status
    return cells


def extrapolated(case: Repeats, metric: str) -> str:
    """Return from how many steps the time of a training was estimated, and of how many."""
    used = [record for record in case.records if record.repeat in case.used]
    steps = sorted(sum(count for count, _ in record.steady()) for record in used)
    if not steps[-1]:
        return "estimated"
    ends = " to ".join(f"{count:,.0f}" for count in dict.fromkeys((steps[0], steps[-1])))
    total = case.last.blocks.get("training", {}).get("epoch_steps")
    # Of several epochs some frameworks count the steps of one, and others all.
    if total and metric == "epoch_s":
        return f"estimated from {ends} of {total:,.0f} steps"
    return f"estimated from {ends} step{'s' * (steps[-1] > 1)}"


def ended_after_first_step(case: Repeats) -> bool:
    """Return whether a time limit left a training that went well without a steady step."""
    training = case.last.blocks.get("training", {})
    limited = training.get("stopped") == "limit" and not training.get("steady")
    return case.status == "ok" and limited and bool(training.get("first_step_s"))


def _note(declaration: Declaration, case: Repeats) -> str:
    """Return how the numbers of a case were measured, or why they are missing, and its flags."""
    last = case.last
    notes = []
    time = case.values.get(declaration.metric)
    if time and declaration.metric in TRAININGS:
        how = time.how
        if how == "estimated":
            how = extrapolated(case, declaration.metric)
        elif declaration.metric == "epoch_s" and "step_s" in case.values:
            how += f", a step in {with_interval(case.values['step_s'], seconds)}"
        data = {"stand-in": "synthetic data", "none": ""}  # an MLX twin's note tells its inputs
        notes += [how, data.get(last.data, last.data)]
    if not time and ended_after_first_step(case):
        first_s = last.blocks["training"]["first_step_s"]
        notes.append(f"the time limit came after the first step, of {seconds(first_s)}")
    if declaration.metric.startswith("energy_") and last.rails:
        notes.append(f"counted: {', '.join(last.rails)}")
    notes += [last.reason, case.note]
    if case.repeats > 1:
        notes.append(f"{len(case.used)} of {case.repeats} repeats")
        if case.good_repeats:
            notes += sorted({f"another one {status}" for status, _ in case.endings.values()})
        notes += [f"left out: {_left_out(declaration, case)}"] if case.left_out else []
    if case.good_repeats and last.scaled:
        notes.append("scaled")
    return "; ".join([*filter(None, notes), *case.flags])


def _left_out(declaration: Declaration, case: Repeats) -> str:
    """Return the values that no mean has, with the flags for which they are left out."""
    texts = []
    for repeat, flags in case.left_out.items():
        value = case.good[repeat].get(declaration.metric)
        shown = metrics.Metric(declaration.metric).show(value.value) if value else ""
        reasons = ", ".join(flag for flag in flags if flag in cases.DISTURBED)
        texts.append(f"{shown} ({reasons})" if shown else reasons)
    return ", ".join(texts)


def _notes(
    declaration: Declaration,
    records: Sequence[Record],
    measured: Sequence[Repeats],
    filled: Sequence[str],
) -> list[str]:
    """Return the notes under a table: metrics, data, published values and flags."""
    notes = [*filter(None, (metrics.Metric(metric).meaning for metric in filled))]
    origins = dict.fromkeys(record.data_origin for record in records if record.data_origin)
    notes += [f"Data: {origin}." for origin in origins]
    notes += [SMOKE] if any(record.profile == "smoke" for record in records) else []
    scaled = [record for record in records if record.scaled and record.profile != "smoke"]
    if scaled:
        notes.append(LEFT_OUT if declaration.metric in TRAININGS else SCALED)
    notes += [YEARS] if measured and declaration.printed else []
    devices_of: dict[str, dict[str, None]] = defaultdict(dict)
    for row in declaration.printed:
        if row["note"] and row["si"] is not None and _shows(row, filled):
            devices_of[row["note"]][row["device"]] = None
    for note, names in devices_of.items():
        # A source of `beside` has its name in the note.
        few = len(names) <= NAMED and all(names) and not declaration.beside
        where = f" ({', '.join(names)})" if few else ""
        notes.append(f"Published{where}: {note}.")
    flags = sorted({flag for case in measured for flag in case.flags})
    return notes + [f"{flag}: {cases.FLAGS.get(flag, flag)}." for flag in flags]


def _shows(row: dict, filled: Sequence[str]) -> bool:
    """Return whether a table with these metrics shows what a published row's note is about."""
    # FLOP/s are computed from a time that may have no column, and whose print is not seen then.
    of_rate = "flops_per_s" in filled and row["flops_per_s"] and not row["note"].startswith("bold")
    return row["metric"] in filled or bool(of_rate)


def _with_number(metric: str, value: Estimate) -> str:
    """Return a value with the number of steps, calls or samples that it rests on, if several."""
    text = value_text(metric, value, in_process=IN_PROCESS)
    counted = value.covers == "exact" or value.n in (None, 1)
    return text if counted else f"{text}, n = {value.n:,}"


def details_table(records: Iterable[Record], title: str = "All measured values") -> Table:
    """Return a table of all values of cases, and statuses: a column per repeat."""
    pooled = pool(records)
    repeats = sorted({repeat for case in pooled for repeat in case.flags_of})
    rows = []
    # What is zero everywhere, such as swap, says nothing of a case.
    nonzero = {
        name
        for case in pooled
        for values in case.good.values()
        for name, value in values.items()
        if value.value
    }
    shown = nonzero - metrics.HIDDEN
    for case in pooled:
        lines = []
        for name in (name for name in case.in_repeats if name in shown):
            timed = {repeat: values for repeat, values in case.good.items() if name in values}
            texts = {repeat: _with_number(name, values[name]) for repeat, values in timed.items()}
            lines.append((metrics.words(metrics.Metric(name).heading), texts))
        ends = {repeat: ": ".join(filter(None, end)) for repeat, end in case.endings.items()}
        lines += [("Status", ends)] if ends else []
        cells = {
            "Device": case.device,
            "Framework": case.framework,
            "Case": cases.config_text(case.config),
        }
        for name, texts in lines:
            by_repeat = {f"Repeat {repeat + 1}": texts.get(repeat, "") for repeat in repeats}
            rows.append(Row(cells | {"Quantity": name} | by_repeat))
    zero = {name for case in pooled for name in case.in_repeats} - nonzero - metrics.HIDDEN
    notes = [*intervals(rows), NUMBER] if rows else []
    if zero:
        headings = sorted(metrics.words(metrics.Metric(name).heading) for name in zero)
        notes.append(f"Zero in all cases: {', '.join(headings)}.")
    return Table(title, rows, notes)
