"""The machine's own ceilings, and how far below them a case stays: the roofline model.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore architectures",
Communications of the ACM 52 (4), 2009. A device reaches at most the lower of two roofs: its best rate of operations,
and its memory bandwidth times the operations that are done for a byte. Both ceilings are measured in the same run, by
the notebooks of CEILINGS; a product that another notebook of the run has timed counts as well, if it was faster.
Operations and bytes of a case are counted on paper. Reads records as they are in a journal; times nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pomology.articles import published
from pomology.articles.published import KIT, experiment_of
from pomology.format import plus_minus, quantity_per_s, significant
from pomology.measure.estimate import Estimate
from pomology.report.table import Row, Table
from pomology.results import cases as results_cases
from pomology.results.cases import (
    FLAGS,
    FRAMEWORKS,
    _count,
    _device_name,
    _good,
    achieved,
    chip_name,
    combined,
    comparable,
)
from pomology.results.record import Record

BEST = "Of this machine's best"


def _with_shares(table: Table, heading: str, shares: list[Estimate | None]) -> Table:
    """The same table with a column behind `heading`; the table itself where no row has a share of a ceiling."""
    if not any(shares):
        return table
    place = table.columns.index(heading) + 1
    rows, data = [], []
    for row, numbers, share in zip(table.rows, table.data, shares, strict=True):
        rows.append(replace(row, cells=(*row.cells[:place], _percent(share), *row.cells[place:])))
        bounds = {"share_of_best_low": share.low, "share_of_best_high": share.high} if share and share.low else {}
        data.append(numbers | ({"share_of_best": share.value} | bounds if share else {}))
    said = (
        f"{BEST}: of the best rate that a product reached on this device in this precision, in this run (the notebook "
        "ceilings), in whichever framework.",
        *_over(shares),
    )
    columns = (*table.columns[:place], BEST, *table.columns[place:])
    return replace(table, columns=columns, rows=tuple(rows), notes=(*table.notes, *said), data=tuple(data))


def _percent(share: Estimate | None) -> str:
    """`42.0 % ± 1.2 %`, where the ± is half the interval, in the same points."""
    if share is None:
        return ""
    half = "" if share.low is None else f" ± {significant(max(50 * (share.high - share.low), 0.01), 2)}"
    return f"{significant(100 * share.value)}{half} %"


def _over(shares: Iterable[Estimate | None]) -> list[str]:
    """What a share above 100 % means, if there is one."""
    if not any(share and share.value > 1 for share in shares):
        return []
    return ["More than 100 %: the ceiling was measured while the machine was slower. Run the ceilings again, alone."]


def ceilings_table(records: list[dict], article: str = "") -> Table:
    """The best that this machine reached in this run: operations a second by device and precision, bytes a second.

    article: the one whose devices' peaks come first, as printed.
    """
    best, rows, data, flags = ceilings(records), [], [], set()
    names = {results_cases.kind(record): chip_name(record) for record in records}
    for value in published.values(article=article).to_dict("records") if article else []:
        if value["metric"] == "peak_flops_per_s" and value["si"]:
            rate = f"{value['printed']} {value['unit']}"
            said = f"published, {value['item'].lower()}: {value['note']}"
            rows.append(Row((value["device"], "fp32", rate, "", said), "published"))
            about = {"source": "published", "device": value["device"], "precision": "fp32"}
            data.append(about | {"flops_per_s": value["si"]})
    for kind in ("cpu", "gpu"):
        mine = [(precision, one) for (where, precision), one in sorted(best.rates.items()) if where == kind]
        for precision, one in mine:
            reached = f"{quantity_per_s(one.value, 'FLOP/s')}{plus_minus(one.rate)}"
            rows.append(_ceiling_row(names[kind], precision, one, reached, ""))
            data.append(_ceiling_numbers(kind, precision, one, "flops_per_s"))
        if kind in best.bandwidths:
            one = best.bandwidths[kind]
            reached = f"{quantity_per_s(one.value, 'B/s')}{plus_minus(one.rate)}"
            rows.append(_ceiling_row(names[kind], "", one, "", reached))
            data.append(_ceiling_numbers(kind, "", one, "bytes_per_s"))
        flags |= {flag for _, one in mine for flag in one.record.flags}
    notes = []
    if article:
        notes.append("The article's rates are the makers' peaks, in single precision; this machine's are measured.")
    if best:
        notes.append("± is the 95 % interval within this run; another run may differ by more.")
    else:
        notes.append(NO_CEILINGS)
    if any(record.profile == "smoke" for record in records):
        notes.append("This was a smoke test, with tiny shapes: it has no ceilings.")
    notes += [f"{flag}: {FLAGS.get(flag, flag)}." for flag in sorted(flags)]
    columns = ("Device", "Precision", "Best rate", "Memory bandwidth", "Reached by")
    title = "Peaks of the article's devices, and the ceilings of this machine" if article else "This machine's ceilings"
    return Table(title, columns, tuple(rows), tuple(notes), tuple(data))


NO_CEILINGS = "This run has no ceilings yet: run the notebooks ceilings and ceilings_mlx into the same folder first."


def _ceiling_row(name: str, precision: str, one: Ceiling, rate: str, memory: str) -> Row:
    config = ", ".join(str(value).replace("x", " × ") for key, value in one.record.config.items() if key != "precision")
    framework = FRAMEWORKS.get(one.framework, one.framework)
    by = "; ".join([framework, f"{one.record.experiment}: {config}", *one.record.flags])
    return Row((name, precision, rate, memory, by), "measured")


def _ceiling_numbers(kind: str, precision: str, one: Ceiling, metric: str) -> dict:
    numbers = {metric: one.value, f"{metric}_low": one.rate.low, f"{metric}_high": one.rate.high}
    return {
        "source": "measured",
        "device": kind,
        "precision": precision,
        **numbers,
        "framework": one.record.framework,
    }


@dataclass(frozen=True)
class Point:
    """An experiment's best case on a device: under which roof it lies, and how far below. None is what is not known."""

    name: str
    record: dict
    rate: dict
    share: Estimate | None
    intensity: float | None
    roof: Roof | None


def roofline_points(records: list[dict]) -> list[Point]:
    """The best case of every experiment, operation, framework, device and precision, by operations a second.

    Cases of a smaller model than the article's count too, since operations a second are what they can be compared by;
    those of a smoke test and the ceilings themselves do not.
    """
    best, found = ceilings(records), {}
    for repeats in _cases_of_a_run(comparable(records, "flops_per_s")):
        first, rate = _good(repeats)[0] if _good(repeats) else repeats[0], _rate(repeats)
        if rate is None or first.experiment in CEILINGS:
            continue
        operation = first.config.get("operation")
        name = experiment_of(first.experiment) + (f" {operation}" if operation else "")
        key = (results_cases.kind(first), name, first.framework, first.backend, results_cases.precision(first))
        if key not in found or rate.value > found[key].rate.value:
            limit = roof(first, best, rate)
            found[key] = Point(name, first, rate, share(first, best, rate), intensity(first), limit)
    return [found[key] for key in sorted(found)]


def _cases_of_a_run(records: list[dict]) -> list[list[dict]]:
    """Repeats together, as `groups`, of several experiments, whose cases may have one name."""
    found: dict[tuple[str, str], list[dict]] = {}
    for record in records:
        found.setdefault((record.experiment, record.case), []).append(record)
    return list(found.values())


def _rate(repeats: list[dict]) -> dict | None:
    """Operations a second of a case, of several repeats together."""
    rates = [(record, results_cases.achieved(record)) for record in repeats]
    made = [record.replace(metrics={"flops_per_s": rate}) for record, rate in rates if rate is not None]
    return combined(made, "flops_per_s")


def roofline_table(records: list[dict]) -> Table:
    """Where the best case of every experiment lies under this machine's roofs, a row each."""
    points, rows, data = roofline_points(records), [], []
    for point in points:
        record, roof, share = point.record, point.roof, point.share
        said = [*(["scaled"] if record.scaled else []), *record.flags]
        rows.append(
            Row(
                (
                    point.name,
                    _device_name(record, True),
                    results_cases.precision(record),
                    ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in record.config.items() if value),
                    f"{quantity_per_s(point.rate.value, 'FLOP/s')}{plus_minus(point.rate)}",
                    _percent(share) or "no ceiling",
                    significant(point.intensity) if point.intensity else "not counted",
                    roof.limit if roof else "",
                    f"{significant(100 * roof.share)} %" if roof else "",
                    ", ".join(said),
                ),
                "measured",
            )
        )
        about = {"experiment": record.experiment, "case": record.case, "flops_per_s": point.rate.value}
        shares = {"share_of_best": share.value, "low": share.low, "high": share.high} if share else {}
        roofs = {"limit": roof.limit, "roof_flops_per_s": roof.flops_per_s, "share_of_roof": roof.share} if roof else {}
        data.append({**about, **shares, "flops_per_byte": point.intensity, **roofs})
    columns = ("Experiment", "Device", "Precision", "Best case", "Achieved", BEST, "Operations a byte", "Limited by")
    columns += ("Of that roof", "Remarks")
    notes = _roofline_notes(records, points)
    return Table("Where each experiment lies", columns, tuple(rows), tuple(notes), tuple(data))


def _roofline_notes(records: list[dict], points: list[Point]) -> list[str]:
    """What a reader has to know of the table, and what is not in it, with the reason."""
    notes = [] if ceilings(records) else [NO_CEILINGS]
    if points:
        notes.append(
            "Operations a byte are counted on paper: what each operator of a step reads and writes by itself, and the "
            "optimiser's update. Fused operators and caches move less, so a case may stand above the memory's roof."
        )
    notes += _over(point.share for point in points)
    shown = {point.record.experiment for point in points}
    rest = [r for r in records if r.experiment not in (*shown, *CEILINGS) and r.article != KIT]
    without: dict[str, dict[str, None]] = {}
    for record in rest:
        reason = "smoke test" if record.profile == "smoke" else record.status
        reason = "no operations were counted" if reason == "ok" else reason
        without.setdefault(reason, {})[record.experiment] = None
    notes += [f"Not in the table ({reason}): {', '.join(names)}." for reason, names in without.items()]
    flags = {flag for point in points for flag in point.record.flags}
    notes += [f"{flag}: {FLAGS.get(flag, flag)}." for flag in sorted(flags)]
    return notes


CEILINGS = ("ceilings", "ceilings_mlx")

SOURCES = (*CEILINGS, "blas_torch", "blas_mlx")

# STREAM's kernels by name, and how many arrays each reads or writes. As STREAM counts them: what a processor fetches
# of a line that it is going to overwrite is not counted.
STREAMS = {"copy": 2, "scale": 2, "add": 3, "triad": 3}


@dataclass(frozen=True)
class Ceiling:
    """The best that was measured: operations or bytes a second, and the case that reached it."""

    rate: Estimate
    record: Record

    @property
    def value(self) -> float:
        return self.rate.value

    @property
    def framework(self) -> str:
        return self.record.framework


@dataclass(frozen=True)
class Ceilings:
    """rates: operations a second by kind of device (`cpu`, `gpu`) and precision. bandwidths: bytes a second by kind."""

    rates: dict[tuple[str, str], Ceiling]
    bandwidths: dict[str, Ceiling]

    def __bool__(self) -> bool:
        return bool(self.rates or self.bandwidths)


@dataclass(frozen=True)
class Roof:
    """What limits a case by the model, `compute` or `memory`, the rate that this allows, and the share of it."""

    limit: str
    flops_per_s: float
    share: float


def ceilings(records: Iterable[dict]) -> Ceilings:
    """The best that a run has measured, over its frameworks; of several repeats the best.

    The best is that whose interval ends highest at its lower end, so that numbers which scatter widely, as where other
    programs were running, are not taken for a rate that this machine can hold.

    Operations a second come from products, bytes a second from passes over large arrays only: a product's matrix may
    stay in a cache. What did not end well is left out, and so is a smoke test, whose shapes are too small.
    """
    rates: dict[tuple[str, str], Ceiling] = {}
    bandwidths: dict[str, Ceiling] = {}
    for record in records:
        if record.status != "ok" or record.profile == "smoke" or record.experiment not in SOURCES:
            continue
        if record.config.get("operation") not in STREAMS:
            _best(rates, (results_cases.kind(record), results_cases.precision(record)), record, "flops_per_s")
        else:
            _best(bandwidths, results_cases.kind(record), record, "bytes_per_s")
    return Ceilings(rates, bandwidths)


def _best(found: dict, key: Any, record: dict, name: str) -> None:
    if name not in record.metrics:
        return
    rate = record.metrics[name]
    if rate.value > 0 and (key not in found or _surely(rate) > _surely(found[key].rate)):
        found[key] = Ceiling(rate, record)


def _surely(rate: Estimate) -> float:
    return rate.value if rate.low is None else rate.low


def share(record: dict, best: Ceilings, rate: dict | None = None) -> Estimate | None:
    """How much of its device's best rate in its precision a case reaches; 1 is all of it.

    rate: in place of the record's own, as of several repeats together. None for a smoke test, and where the run lacks
    such a ceiling or the case such a rate. The interval takes in both intervals.
    """
    rate = rate or achieved(record)
    ceiling = best.rates.get((results_cases.kind(record), results_cases.precision(record)))
    if rate is None or ceiling is None or record.profile == "smoke":
        return None
    return rate / ceiling.rate


def intensity(record: dict) -> float | None:
    """Operations for a byte that is read or written, counted on paper; None where the bytes were not counted.

    Of a training step by what each of its operators reads and writes; of a product by its operands and result.
    """
    flops, moved = _count(record.flops_per_step), _count(record.bytes_per_step)
    if flops is not None and moved is not None:
        return flops / moved
    rates = [record.metrics.get(name) for name in ("flops_per_s", "bytes_per_s")]
    if None in rates or not all(rate.value > 0 for rate in rates):
        return None
    return rates[0].value / rates[1].value


def roof(record: dict, best: Ceilings, rate: dict | None = None) -> Roof | None:
    """The lower of the two roofs above a case, and its share of it; None where one of them is not known."""
    rate, operations = rate or achieved(record), intensity(record)
    ceiling, bandwidth = (
        best.rates.get((results_cases.kind(record), results_cases.precision(record))),
        best.bandwidths.get(results_cases.kind(record)),
    )
    if None in (rate, operations, ceiling, bandwidth) or record.profile == "smoke":
        return None
    slope = operations * bandwidth.value
    lower = min(ceiling.value, slope)
    return Roof("memory" if slope < ceiling.value else "compute", lower, rate.value / lower)
