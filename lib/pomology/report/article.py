"""What a notebook declares of its experiment, and the article's table with this machine in it."""

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

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
TIMED = ("device", "framework", "backend")  # what was timed
TRAININGS = ("epoch_s", "fit_s")  # times that say how they came about
SMOKE = "Smoke tests, with tiny shapes, do not stand beside the article's numbers."
SCALED = "scaled: a smaller model; compare its FLOP/s. A table of times leaves it to the details."


@dataclass(frozen=True)
class Declaration:
    """What a notebook says of its experiment, which has the notebook's name.

    settings: the keys of a case's config that tell rows apart, each alone or with its heading; left
    out, those of the published rows. columns: metrics, likewise; left out, those of an epoch.
    figure: the metric that it draws; left out, the first column with an axis. series: metrics that
    are marks of their own in it. shared_panel: settings that share a panel of it. claims_of: other
    experiments whose claims no notebook of their own would show. beside: a function of the name
    that returns other rows than the article's, as `printed` has them. opens_report: whether the
    report begins with what this notebook shows.
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
    def printed(self) -> list[dict]:
        """The published rows of its table, in the order of the article, with these keys more.

        label: the device, and what it was timed with. line: what is equal in the values of one row
        of the article. flops_per_s: the operations on paper over the printed time, None where
        either is missing. remark: why a value is no number.
        """
        if self.beside:
            return self.beside(self.name)
        rows = []
        for row in published.rows(experiment=self.name):
            label = cases.with_software(
                row["device"], row["framework"], row["version"], row["year"]
            )
            timed = row["flops"] and row["si"] and row["si_unit"] == "s"
            added = {
                "label": label if row["device"] else "the article",
                "line": (row["item"], row["row"], row["framework"], row["backend"]),
                "flops_per_s": row["flops"] / row["si"] if timed else None,
                "remark": row["note"] if row["printed"] and row["si"] is None else "",
            }
            rows.append(row | added)
        return rows

    @functools.cached_property
    def headings(self) -> dict[str, str]:
        """Of the settings: key -> heading."""
        keys = self.settings or dict.fromkeys(key for row in self.printed for key in row["config"])
        return dict((key, metrics.words(key)) if isinstance(key, str) else key for key in keys)

    def texts(self, config: dict) -> dict[str, str]:
        """Return the settings of a case or a published row, by heading."""
        return {heading: str(config.get(key, "")) for key, heading in self.headings.items()}

    def cells(self, device: str, config: dict, remarks: str) -> dict[str, str]:
        """Return a row of its table by heading, without the texts of its columns."""
        columns = dict.fromkeys(self.shown, "")
        return {"Device": device} | self.texts(config) | columns | {"Remarks": remarks}

    @functools.cached_property
    def shown(self) -> dict[str, str]:
        """The columns: heading -> metric; behind a rate its share of the peak."""
        shown = {}
        for column in self.columns:
            name, heading = (column, "") if isinstance(column, str) else column
            shown[heading or metrics.Metric(name).heading] = name
            if name == "flops_per_s":
                shown[peaks.BEST] = peaks.SHARE
        return shown | {metrics.Metric(name).heading: name for name in ("times_fp32", "times_cpu")}

    @functools.cached_property
    def metric(self) -> str:
        """What the figure draws."""
        drawn = (name for name in self.shown.values() if metrics.Metric(name).axis)
        return self.figure or next(drawn, "epoch_s")

    @functools.cached_property
    def time(self) -> str:
        """What ratios of devices and of frameworks compare."""
        names = (self.metric, *self.shown.values())
        return next((name for name in metrics.WHOLE if name in names), "step_s")

    @property
    def claims(self) -> list[published.Claim]:
        """The article's claims about it; of the kit's own experiments, every article's."""
        article = None if self.article == published.KIT else self.article
        experiments = {self.name, *self.claims_of}
        claims = published.claims(article=article)
        return [claim for claim in claims if experiments & set(claim.experiments)]


def article_table(
    about: Declaration, records: Sequence[Record], best: peaks.Peaks | None = None
) -> Table:
    """Return the published rows as printed, in the article's order, then this machine's.

    records: the cases of one experiment. best: peaks of this machine, of which a case has a share.
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
            if value["metric"] in metrics.Metric(metric).sources:
                cells[heading] = value["printed"] or value["note"]  # an image has no text
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


def _work(case: Case, **changes: str) -> tuple:
    """Return what two cases have in common that may be compared, but for the changes."""
    about = {"kind": case.kind, "precision": case.first["precision"]} | case.config | changes
    return case.first["framework"], *sorted(map(str, about.items()))


def _measured(
    about: Declaration, case: Case, by_work: dict[tuple, Case], best: peaks.Peaks | None
) -> Row:
    """Return the row of a case, or of how it failed. by_work: all cases."""
    first = case.first
    values = dict(case.values)
    peak = (best or {}).get((case.kind, first["precision"]))
    if peak and "flops_per_s" in values:
        values[peaks.SHARE] = values["flops_per_s"] / peak.rate
    for name, changes in (("times_cpu", {"kind": "cpu"}), ("times_fp32", {"precision": "fp32"})):
        other = by_work.get(_work(case, **changes))
        ratio = speed_ratio(case, other, about.time) if other not in (None, case) else None
        if ratio:
            values[name] = ratio
    software = (first["framework"], first["framework_version"], str(first["year"]))
    device = cases.with_software(first["device"], *software)
    cells = about.cells(device, case.config, _remarks(about, case))
    for heading, metric in about.shown.items():
        sources = metrics.Metric(metric).sources
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
        elif about.metric == "epoch_s" and "step_s" in case.values:
            how += f", a step in {with_interval(case.values['step_s'], seconds)}"
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
    notes += filter(None, (metrics.Metric(metric).meaning for metric in shown))
    origins = dict.fromkeys(record.data_origin for record in records if record.data_origin)
    notes += [f"Data: {origin}." for origin in origins]
    notes += [SMOKE] if any(each.profile == "smoke" for each in records) else []
    notes += [SCALED] if any(each.scaled and each.profile != "smoke" for each in records) else []
    notes += [YEARS] if measured and about.printed else []
    remarks = dict.fromkeys(
        row["note"]
        for row in about.printed
        if row["note"] and row["si"] is not None and (row["metric"] in shown or row["flops_per_s"])
    )
    notes += [f"Published: {remark}." for remark in remarks]
    flags = sorted({flag for case in measured for flag in case.flags})
    return notes + [f"{flag}: {cases.FLAGS.get(flag, flag)}." for flag in flags]
