"""The machine's own ceilings, and how far below them a case stays: the roofline model.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore architectures",
Communications of the ACM 52 (4), 2009. A device reaches at most the lower of two roofs: its best rate of operations,
and its memory bandwidth times the operations that are done for a byte, which are counted on paper.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from pomology.articles import published
from pomology.articles.published import KIT, experiment_of
from pomology.format import quantity_per_s, significant, with_interval
from pomology.measure import intervals
from pomology.measure.estimate import Estimate
from pomology.report.table import Table, flag_notes
from pomology.results import cases, metrics
from pomology.results.cases import achieved, chip_name, comparable, framework_name, groups
from pomology.results.record import Record

BEST = "Of this machine's best"
NO_CEILINGS = "This run has no ceilings yet: run the notebooks ceilings and ceilings_mlx into the same folder first."

CEILINGS = ("ceilings", "ceilings_mlx")
SOURCES = (*CEILINGS, "blas_torch", "blas_mlx")  # a product of any notebook counts, if it was faster

# STREAM's kernels by name, and how many arrays each reads or writes. As STREAM counts them: what a processor fetches
# of a line that it is going to overwrite is not counted.
STREAMS = {"copy": 2, "scale": 2, "add": 3, "triad": 3}


class Ceiling(NamedTuple):
    """The best that was measured: operations or bytes a second, and the case that reached it."""

    rate: Estimate
    record: Record

    @property
    def value(self) -> float:
        return self.rate.value


class Ceilings(NamedTuple):
    """rates: operations a second by kind of device (`cpu`, `gpu`) and precision. bandwidths: bytes a second by kind."""

    rates: dict[tuple[str, str], Ceiling]
    bandwidths: dict[str, Ceiling]

    def __bool__(self) -> bool:
        return bool(self.rates or self.bandwidths)

    def over(self, record: Record) -> Ceiling | None:
        """The best rate of a case's device in its precision."""
        return self.rates.get((cases.kind(record), cases.precision(record)))


def ceilings(records: Iterable[Record]) -> Ceilings:
    """The best that a run has measured, over its frameworks and repeats, without smoke tests.

    Best = highest lower end of the interval, so that numbers which scatter widely, as where other programs were
    running, are not mistaken for a rate that this machine can hold. Operations a second come from products, bytes a
    second from passes over large arrays only: a product's matrix may stay in a cache.
    """
    best = Ceilings({}, {})
    for record in records:
        if record.status != "ok" or record.profile == "smoke" or record.experiment not in SOURCES:
            continue
        kind, stream = cases.kind(record), record.config.get("operation") in STREAMS
        known, key = (best.bandwidths, kind) if stream else (best.rates, (kind, cases.precision(record)))
        rate = record.metrics.get("bytes_per_s" if stream else "flops_per_s")
        if rate and rate.value > 0:
            held = (ceiling for ceiling in (known.get(key), Ceiling(rate, record)) if ceiling)
            known[key] = max(held, key=lambda ceiling: ceiling.value if ceiling.rate.low is None else ceiling.rate.low)
    return best


def share(record: Record, best: Ceilings, rate: Estimate | None = None) -> Estimate | None:
    """How much of its device's best rate in its precision a case reaches; 1 is all of it.

    rate: in place of the record's own. None for a smoke test, and where the run lacks such a ceiling or the case such
    a rate. The interval takes in both intervals."""
    rate, ceiling = rate or achieved(record), best.over(record)
    return None if rate is None or ceiling is None or record.profile == "smoke" else rate / ceiling.rate


def intensity(record: Record) -> float | None:
    """Operations for a byte, counted on paper: of a training step by what each of its operators reads and writes, of a
    product by its operands and result. None where the bytes were not counted."""
    flops, moved = record.flops_per_step or 0, record.bytes_per_step or 0
    if flops <= 0 or moved <= 0:
        flops, moved = (getattr(record.metrics.get(name), "value", 0) for name in ("flops_per_s", "bytes_per_s"))
    return flops / moved if flops > 0 and moved > 0 else None


class Roof(NamedTuple):
    """What limits a case by the model, `compute` or `memory`, the rate that this allows, and the share of it."""

    limit: str
    flops_per_s: float
    share: float


def roof(record: Record, best: Ceilings, rate: Estimate | None = None) -> Roof | None:
    """The lower of the two roofs above a case, and its share of it; None where one of them is not known."""
    rate, operations, ceiling = rate or achieved(record), intensity(record), best.over(record)
    bandwidth = best.bandwidths.get(cases.kind(record))
    if None in (rate, operations, ceiling, bandwidth) or record.profile == "smoke":
        return None
    slope = operations * bandwidth.value
    lower = min(ceiling.value, slope)
    return Roof("memory" if slope < ceiling.value else "compute", lower, rate.value / lower)


class Point(NamedTuple):
    """An experiment's best case on a device: which roof is above it, and how far. None is what is not known."""

    name: str
    record: Record
    rate: Estimate
    share: Estimate | None
    intensity: float | None
    roof: Roof | None


def roofline_points(records: Iterable[Record]) -> list[Point]:
    """The best case of every experiment, operation, framework, device and precision, by operations a second, also of
    smaller models than the article's; without smoke tests and the ceilings themselves."""
    records = list(records)
    best, points = ceilings(records), {}
    for record, rate in rated(records, without=CEILINGS):
        name = f"{experiment_of(record.experiment)} {record.config.get('operation') or ''}".strip()
        key = (cases.kind(record), name, record.framework, record.backend, cases.precision(record))
        if key not in points or rate.value > points[key].rate.value:
            shares = share(record, best, rate), intensity(record), roof(record, best, rate)
            points[key] = Point(name, record, rate, *shares)
    return [points[key] for key in sorted(points)]


def rated(records: Iterable[Record], without: Iterable[str]) -> list[tuple[Record, Estimate]]:
    """The cases of a run that have operations a second, smoke tests and these notebooks left out: of each its first
    record that ended well, and its rate over the repeats."""
    usable = (record for record in comparable(records, "flops_per_s") if record.experiment not in without)
    good = (record for record in usable if record.status == "ok")
    rates = ((repeats[0], rate_of(repeats)) for repeats in groups(good))
    return [(record, rate) for record, rate in rates if rate]


def rate_of(repeats: Iterable[Record]) -> Estimate | None:
    """Operations a second of a case, of several repeats together."""
    rates = [rate for rate in map(achieved, repeats) if rate and rate.value > 0]
    return intervals.repeats(rates) if rates else None


def with_shares(table: Table, heading: str, shares: list[Estimate | None]) -> Table:
    """The same table with a column behind `heading`; the table itself where no row has a share of a ceiling."""
    if not any(shares):
        return table
    place = table.columns.index(heading) + 1
    rows, data = [], []
    for row, numbers, share in zip(table.rows, table.data, shares, strict=True):
        rows.append(replace(row, cells=(*row.cells[:place], percent(share), *row.cells[place:])))
        shown = {"share_of_best": share.value} if share else {}
        shown |= {"share_of_best_low": share.low, "share_of_best_high": share.high} if share and share.low else {}
        data.append(numbers | shown)
    note = (
        f"{BEST}: of the best rate that a product reached on this device in this precision, in this run (the notebook "
        "ceilings), in whichever framework."
    )
    columns, notes = (*table.columns[:place], BEST, *table.columns[place:]), (*table.notes, note, *_above_all(shares))
    return replace(table, columns=columns, rows=tuple(rows), notes=notes, data=tuple(data))


def percent(share: Estimate | None) -> str:
    """`42.0 % (40.8 to 43.2 %)`."""
    return "" if share is None else with_interval(share.replace(unit="x"), metrics.show("share_of_peak"))


def _above_all(shares: Iterable[Estimate | None]) -> list[str]:
    if not any(share and share.value > 1 for share in shares):
        return []
    return ["More than 100 %: the ceiling was measured while the machine was slower. Run the ceilings again, alone."]


def _reached(rate: Estimate, unit: str) -> str:
    return with_interval(rate, partial(quantity_per_s, unit=unit))


def ceilings_table(records: list[Record], article: str = "") -> Table:
    """The best that this machine reached in this run: operations a second by device and precision, bytes a second.

    article: the one whose devices' peaks come first, as printed.
    """
    best, lines = ceilings(records), []
    names = {cases.kind(record): chip_name(record) for record in records}
    for value in published.rows(article):
        if value["metric"] == "peak_flops_per_s" and value["si"]:
            by = f"published, {value['item'].lower()}: {value['note']}"
            cells = (value["device"], "fp32", f"{value['printed']} {value['unit']}", "", by)
            about = {"source": "published", "device": value["device"], "precision": "fp32"}
            lines.append((cells, about | {"flops_per_s": value["si"]}, "published"))
    for kind in ("cpu", "gpu"):
        here = [(precision, rate, "flops") for (where, precision), rate in sorted(best.rates.items()) if where == kind]
        here += [("", best.bandwidths[kind], "bytes")] if kind in best.bandwidths else []
        for precision, ceiling, what in here:
            record, rate = ceiling.record, ceiling.rate
            settings = (str(value).replace("x", " × ") for key, value in record.config.items() if key != "precision")
            by = "; ".join([framework_name(record), f"{record.experiment}: {', '.join(settings)}", *record.flags])
            both = (_reached(rate, "FLOP/s"), "") if what == "flops" else ("", _reached(rate, "B/s"))
            metric = f"{what}_per_s"
            numbers = {metric: rate.value, f"{metric}_low": rate.low, f"{metric}_high": rate.high}
            about = {"source": "measured", "device": kind, "precision": precision}
            numbers |= {"framework": record.framework}
            lines.append(((names[kind], precision, *both, by), about | numbers, "measured"))
    makers = "The article's rates are the makers' peaks, in single precision; this machine's are measured."
    notes = [
        article and makers,
        "± is the 95 % interval within this run; another run may differ by more." if best else NO_CEILINGS,
        any(record.profile == "smoke" for record in records)
        and "This was a smoke test, with tiny shapes: it has no ceilings.",
        *flag_notes(ceiling.record for ceiling in best.rates.values()),
    ]
    columns = ("Device", "Precision", "Best rate", "Memory bandwidth", "Reached by")
    title = "Peaks of the article's devices, and the ceilings of this machine" if article else "This machine's ceilings"
    return Table.of(title, columns, lines, notes)


def roofline_table(records: list[Record]) -> Table:
    """Under which of this machine's roofs the best case of every experiment is, a row each; the notes name what is not
    in it, with the reason."""
    points, lines = roofline_points(records), []
    for name, record, rate, share, operations, roof in points:
        cells = (
            name,
            f"{chip_name(record)}, {framework_name(record)}",
            cases.precision(record),
            ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in record.config.items() if value),
            _reached(rate, "FLOP/s"),
            percent(share) or "no ceiling",
            significant(operations) if operations else "not counted",
            *((roof.limit, f"{significant(100 * roof.share)} %") if roof else ("", "")),
            ", ".join([*(["scaled"] if record.scaled else []), *record.flags]),
        )
        about = {"experiment": record.experiment, "case": record.case, "flops_per_s": rate.value}
        shares = {"share_of_best": share.value, "low": share.low, "high": share.high} if share else {}
        roofs = {"limit": roof.limit, "roof_flops_per_s": roof.flops_per_s, "share_of_roof": roof.share} if roof else {}
        lines.append((cells, about | shares | {"flops_per_byte": operations} | roofs, "measured"))
    columns = ("Experiment", "Device", "Precision", "Best case", "Achieved", BEST, "Operations a byte", "Limited by")
    columns += ("Of that roof", "Remarks")
    notes = [] if ceilings(records) else [NO_CEILINGS]
    if points:
        notes.append(
            "Operations a byte are counted on paper: what each operator of a step reads and writes by itself, and the "
            "optimiser's update. Fused operators and caches move less, so a case may stand above the memory's roof."
        )
    notes += _above_all(point.share for point in points)
    shown = {*CEILINGS, *(point.record.experiment for point in points)}
    without: dict[str, dict[str, None]] = {}
    for record in records:
        if record.experiment not in shown and record.article != KIT:
            reason = "smoke test" if record.profile == "smoke" else record.status
            reason = "no operations were counted" if reason == "ok" else reason
            without.setdefault(reason, {})[record.experiment] = None
    notes += [f"Not in the table ({reason}): {', '.join(names)}." for reason, names in without.items()]
    notes += flag_notes(point.record for point in points)
    return Table.of("Where each experiment lies", columns, lines, notes)
