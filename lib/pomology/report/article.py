"""The declaration of an experiment, and the tables of published and of all measured values."""

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

from pomology.articles import published
from pomology.format import quantity, seconds, with_interval
from pomology.report import peaks
from pomology.report.table import INTERVALS, YEARS, Row, Table, numbers, value_text
from pomology.results import cases, metrics
from pomology.results.cases import Case, pool, speed_ratio
from pomology.results.frame import of_records
from pomology.results.record import Record

EPOCH = ("epoch_s", "compute_epoch_s", "compute_share", "temperature_c", "peak_memory_bytes")
EPOCH += ("power_w",)
TIMED = ("device", "framework", "backend")
TRAININGS = ("epoch_s", "fit_s")  # times whose note says how they were measured
SMOKE = "Smoke tests have tiny shapes; this table leaves them out."
SCALED = "scaled: a smaller variant of the model; compare only FLOP/s. The details have its times."


@dataclass(frozen=True)
class Declaration:
    """The declaration of an experiment by its notebook.

    name: of the notebook and the experiment. settings: the keys of a case's config that have a
    column, each alone or with its heading; by default those of the published rows. columns:
    metrics, likewise; by default those of an epoch. figure: the drawn metric; by default the first
    column with an axis. series: metrics with their own lines in the figure. shared_panel: settings
    whose values share a panel. claims_of: other experiments whose claims it tests, too. beside: a
    function of the name that returns rows to compare with, in the form of `published.rows`, in
    place of the article's. opens_report: the report begins with the items of this notebook.
    """

    name: str
    article: str = ""
    title: str = ""
    settings: Sequence = ()
    columns: Sequence = EPOCH
    figure: str = ""
    series: Sequence[str] = ()
    shared_panel: Sequence[str] = ()
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

    def texts(self, config: dict) -> dict[str, str]:
        """Return the settings of a case or a published row, by heading."""
        return {heading: str(config.get(key, "")) for key, heading in self.headings.items()}

    def cells(self, device: str, config: dict, notes: str) -> dict[str, str]:
        """Return a row of the table by heading, with empty texts for the metrics."""
        columns = dict.fromkeys(self.shown, "")
        return {"Device": device} | self.texts(config) | columns | {"Notes": notes}

    @functools.cached_property
    def shown(self) -> dict[str, str]:
        """The columns: heading -> metric; the share of the measured peak follows a rate."""
        shown = {}
        for column in self.columns:
            name, heading = (column, "") if isinstance(column, str) else column
            shown[heading or metrics.Metric(name).heading] = name
            if name == "flops_per_s":
                shown[peaks.BEST] = peaks.SHARE
        return shown | {metrics.Metric(name).heading: name for name in ("times_fp32", "times_cpu")}

    @functools.cached_property
    def metric(self) -> str:
        """The metric that the figure draws."""
        drawn = (name for name in self.shown.values() if metrics.Metric(name).axis)
        return self.figure or next(drawn, "epoch_s")

    @functools.cached_property
    def time(self) -> str:
        """The metric that ratios of devices and of frameworks compare."""
        names = (self.metric, *self.shown.values())
        return next((name for name in metrics.WHOLE if name in names), "step_s")

    @property
    def claims(self) -> list[SimpleNamespace]:
        """The claims about the experiments; for article `kit` the claims of all articles."""
        article = None if self.article == published.KIT else self.article
        experiments = {self.name, *self.claims_of}
        claims = published.claims(article=article)
        return [claim for claim in claims if experiments & set(claim.experiments)]


def article_table(about: Declaration, records: Sequence[Record], best: peaks.Peaks) -> Table:
    """Return the table of published rows, in the article's order, and then of measured cases.

    records: the cases of one experiment. best: measured peaks of this machine, for shares of them.
    """
    lines = defaultdict(list)
    for value in about.printed:
        lines[value["line"]].append(value)
    rows = [_published(about, values) for values in lines.values()]
    rows = [row for row in rows if any(row.cells[heading] for heading in about.shown)]
    measured = comparable(records, about.metric)
    by_work = {_work(case): case for case in measured}
    rows += [_measured(about, case, by_work, best) for case in measured]
    shown = [name for heading, name in about.shown.items() if any(r.cells[heading] for r in rows)]
    return Table(about.title or about.name, rows, _notes(about, records, measured, shown))


def comparable(records: Iterable[Record], metric: str = "") -> list[Case]:
    """Return the cases that published values may be compared with: no smoke, no scaled times."""
    chosen = [record for record in records if record.profile != "smoke"]
    if metric in TRAININGS:
        chosen = [record for record in chosen if not record.scaled]
    return pool(of_records(chosen))


def _published(about: Declaration, values: Sequence[dict]) -> Row:
    """Return the row of published values that have the same `line`."""
    first = values[0]
    remarks = dict.fromkeys(value["remark"] for value in values if value["remark"])
    notes = "; ".join(remarks) or "published"
    cells = about.cells(cases.with_software(first), first["config"], notes)
    data = {"source": "published"} | {name: first[name] for name in TIMED}
    data |= {"origin": first["source"], **first["config"], "status": first["status"]}
    for value in values:
        for heading, metric in about.shown.items():
            if value["metric"] in metrics.Metric(metric).sources:
                cells[heading] = value["printed"] or value["note"]  # values in images have no text
            elif metric == "flops_per_s" and value["flops_per_s"] and not cells[heading]:
                cells[heading] = quantity(value["flops_per_s"], "FLOP/s")
        if value["si"] is not None:
            data[value["metric"]] = value["si"]
        if value["flops_per_s"]:
            data.setdefault("flops_per_s", value["flops_per_s"])
    if {metric for heading, metric in about.shown.items() if cells[heading]} == {"flops_per_s"}:
        time = cases.TIMES.get(first["metric"], first["metric"])  # the rate was computed from it
        cells[next(iter(about.shown))] = f"{first['printed']} ({time})"
    return Row(cells, data, "published")


def _work(case: Case, **changes: str) -> tuple:
    """Return a key that is equal for comparable cases. changes: values to replace in it."""
    about = {"kind": case.kind, "precision": case.first["precision"]} | case.config | changes
    return case.first["framework"], *sorted(map(str, about.items()))


def _measured(about: Declaration, case: Case, by_work: dict[tuple, Case], best: peaks.Peaks) -> Row:
    """Return the row of a case, with its status if it failed. by_work: all cases by `_work`."""
    first = case.first
    values = dict(case.values)
    peak = best.get((case.kind, first["precision"]))
    if peak and "flops_per_s" in values:
        values[peaks.SHARE] = values["flops_per_s"] / peak.rate
    for name, changes in (("times_cpu", {"kind": "cpu"}), ("times_fp32", {"precision": "fp32"})):
        other = by_work.get(_work(case, **changes))
        ratio = speed_ratio(case, other, about.time) if other not in (None, case) else None
        if ratio:
            values[name] = ratio
    cells = about.cells(cases.with_software(first), case.config, _note(about, case))
    for heading, metric in about.shown.items():
        sources = metrics.Metric(metric).sources
        value = next((values[name] for name in sources if name in values), None)
        cells[heading] = value_text(metric, value, heading) if value else ""
        if metric == "status":  # the first failure of all repeats
            good = "inconclusive" if "too-noisy" in case.flags else "yes"
            cells[heading] = next((status for status, _ in case.endings.values()), good)
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


def _note(about: Declaration, case: Case) -> str:
    """Return how the numbers of a case were measured, or why they are missing, and its flags."""
    last = case.last
    notes = []
    time = case.values.get(about.metric)
    if time and about.metric in TRAININGS:
        how = time.how
        if how == "estimated":
            how += f" from {last['steady_steps']} steps"
            how += f" of {last['epoch_steps']:,.0f}" if last["epoch_steps"] else ""
        elif about.metric == "epoch_s" and "step_s" in case.values:
            how += f", a step in {with_interval(case.values['step_s'], seconds)}"
        notes += [how, "synthetic data" if last["data"] == "stand-in" else last["data"]]
    if about.metric.startswith("energy_") and last["rails"]:
        notes.append(f"counted: {last['rails']}")
    notes += [last["reason"], last["note"]]
    if case.repeats > 1:
        notes.append(f"{case.good_repeats} of {case.repeats} repeats")
    if case.good_repeats and last["scaled"]:
        notes.append("scaled")
    return "; ".join([*filter(None, notes), *case.flags])


def _notes(
    about: Declaration, records: Sequence[Record], measured: Sequence[Case], shown: Sequence[str]
) -> list[str]:
    """Return the notes under a table: intervals, metrics, data, published values and flags."""
    notes = [INTERVALS] if any(case.good_repeats for case in measured) else []
    notes += filter(None, (metrics.Metric(metric).meaning for metric in shown))
    origins = dict.fromkeys(record.data_origin for record in records if record.data_origin)
    notes += [f"Data: {origin}." for origin in origins]
    notes += [SMOKE] if any(each.profile == "smoke" for each in records) else []
    notes += [SCALED] if any(each.scaled and each.profile != "smoke" for each in records) else []
    notes += [YEARS] if measured and about.printed else []
    published_notes = dict.fromkeys(
        row["note"]
        for row in about.printed
        if row["note"] and row["si"] is not None and (row["metric"] in shown or row["flops_per_s"])
    )
    notes += [f"Published: {note}." for note in published_notes]
    flags = sorted({flag for case in measured for flag in case.flags})
    return notes + [f"{flag}: {cases.FLAGS.get(flag, flag)}." for flag in flags]


def details_table(records: Iterable[Record], title: str = "All measured values") -> Table:
    """Return a table of all values of cases, and statuses: a column per repeat."""
    pooled = pool(of_records(records))
    repeats = sorted({repeat for case in pooled for repeat in case.flags_of})
    rows = []
    for case in pooled:
        lines = []
        for name in case.each:
            timed = {repeat: values for repeat, values in case.good.items() if name in values}
            texts = {repeat: value_text(name, values[name]) for repeat, values in timed.items()}
            lines.append((metrics.words(metrics.Metric(name).heading), texts))
        ends = {repeat: ": ".join(filter(None, end)) for repeat, end in case.endings.items()}
        lines += [("Status", ends)] if ends else []
        cells = {"Device": case.first["device"], "Framework": case.framework}
        cells["Case"] = cases.config_text(case.config)
        for name, texts in lines:
            shown = {f"Repeat {repeat + 1}": texts.get(repeat, "") for repeat in repeats}
            rows.append(Row(cells | {"Quantity": name} | shown))
    return Table(title, rows, [INTERVALS] if rows else [])
