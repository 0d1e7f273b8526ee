"""The roofline model as tables, from the frame of a run and its best rates."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pomology.articles.published import KIT, rows
from pomology.format import quantity, quantity_per_s, significant, with_interval
from pomology.measure.estimate import Estimate
from pomology.report import peaks
from pomology.report.article import achieved
from pomology.report.peaks import BOTH, READERS, READS, UNKNOWN_CACHE, Peaks
from pomology.report.table import Table, ends, notes_of_flags
from pomology.results import cases
from pomology.results.pool import Case, pool

if TYPE_CHECKING:
    import pandas

NO_PEAKS = "This run has no peaks yet: run the notebook peaks into the same folder first."
COUNTED = (
    "Operations per byte: what each operator of a step reads and writes by itself, and the "
    "optimiser's update. Fused operators and caches move less, so a case may be above the memory's "
    "roof: its share is clipped at 100 %."
)


class Point(NamedTuple):
    """An experiment's best case on a device, and the roof that is above it.

    intensity: operations per byte, 0 where the bytes are not counted. limit: `compute`, `memory` or
    `cache-resident`; empty where a roof is not known. roof: FLOP/s.
    """

    name: str
    case: Case
    rate: Estimate
    share: Estimate | None
    intensity: float
    limit: str = ""
    roof: float = 0.0

    @property
    def framework(self) -> str:
        return self.case.framework

    @property
    def precision(self) -> str:
        return self.case.first["precision"]

    @property
    def share_of_roof(self) -> Estimate | None:
        return Estimate.count(self.rate.value / self.roof) if self.limit else None


def points(frame: pandas.DataFrame, best: Peaks) -> list[Point]:
    """Return the best case of each experiment, operation, framework, device and precision.

    frame: of one run. Smoke tests are left out, and the cases that measure the peaks.
    """
    found: dict[tuple, Point] = {}
    for case in pool(frame[frame.profile.ne("smoke")]):
        rate, operation = achieved(case), case.config.get("operation") or ""
        if rate and not (case.first["article"] == KIT and operation):
            point = _point(case, rate, operation, best)
            key = (
                case.kind,
                point.name,
                case.first["framework"],
                case.first["backend"],
                point.precision,
            )
            if key not in found or rate.value > found[key].rate.value:
                found[key] = point
    return [found[key] for key in sorted(found)]


def _point(case: Case, rate: Estimate, operation: str, best: Peaks) -> Point:
    flops, moved = case.first["flops_per_step"], case.first["bytes_per_step"]
    bandwidth, call = case.values.get("bytes_per_s"), case.values.get("kernel_s")
    if not (flops and moved) and bandwidth:
        flops, moved = rate.value, bandwidth.value
    intensity = flops / moved if flops and moved else 0.0
    size = case.first["bytes_per_step"] or (
        bandwidth.value * call.value if bandwidth and call else 0
    )
    resident = 0 < size <= best.caches.get(case.kind, UNKNOWN_CACHE)
    name = f"{case.first['experiment']} {operation}".strip()
    precision = case.first["precision"]
    point = Point(name, case, rate, best.share(rate, case.kind, precision), intensity)
    peak = best.rates.get((case.kind, precision))
    memory = best.bandwidths.get((case.kind, READS if operation in READERS else BOTH))
    if not (peak and intensity) or not (memory or resident):
        return point
    slope = intensity * memory.rate.value if memory else 0.0
    if slope >= peak.rate.value:
        return point._replace(limit="compute", roof=peak.rate.value)
    if not resident:
        return point._replace(limit="memory", roof=slope)
    name += ", cache-resident" if operation else ""
    return point._replace(limit="cache-resident", roof=peak.rate.value, name=name)


def roofline_table(frame: pandas.DataFrame, best: Peaks) -> Table:
    """Return the best case of every experiment with its roof; the notes name what is not there."""
    found, lines = points(frame, best), []
    for point in found:
        first, config = point.case.first, point.case.config
        words = [f"{name.replace('_', ' ')} {value}" for name, value in config.items() if value]
        cells = (
            point.name,
            f"{first['device']}, {point.framework}",
            point.precision,
            ", ".join(words),
        )
        cells += (rate_text(point.rate), peaks.percent(point.share) or "no peak")
        cells += (significant(point.intensity) if point.intensity else "not counted", point.limit)
        remarks = ["scaled"] if first["scaled"] else []
        cells += (peaks.percent(point.share_of_roof), ", ".join([*remarks, *point.case.flags]))
        row = {
            "experiment": first["experiment"],
            "case": first["case"],
            "flops_per_s": point.rate.value,
        }
        row |= (
            {"share_of_best": point.share.value} | ends("share", point.share) if point.share else {}
        )
        row |= {"flops_per_byte": point.intensity or None, "limit": point.limit}
        row |= {"roof_flops_per_s": point.roof or None}
        row |= {"share_of_roof": point.share_of_roof.value} if point.limit else {}
        lines.append((cells, row, "measured"))
    held = sorted({point.case.kind for point in found if point.limit == "cache-resident"})
    sizes = ", ".join(quantity(best.caches.get(kind, UNKNOWN_CACHE), "B") for kind in held)
    meaning = [COUNTED] if lines else []
    meaning += [f"Cache-resident: the data fit the last-level cache ({sizes})."] if held else []
    shown = {point.case.first["experiment"] for point in found}
    other = frame[frame.article.ne(KIT) & ~frame.experiment.isin(shown)]
    reasons = other.status.replace("ok", "no operations were counted")
    reasons = reasons.mask(other.profile.eq("smoke"), "smoke test")
    missing = other.experiment.groupby(reasons, sort=False).unique()
    notes = [f"Not in the table ({why}): {', '.join(names)}." for why, names in missing.items()]
    notes += notes_of_flags(flag for point in found for flag in point.case.flags)
    columns = ("Experiment", "Device", "Precision", "Best case", "Achieved", peaks.BEST)
    columns += ("Operations per byte", "Limited by", "Share of that roof", "Remarks")
    title = "How far each experiment is below the roofs"
    return Table.of(title, columns, lines, [*notes, "" if best.rates else NO_PEAKS], meaning)


def rate_text(rate: Estimate, unit: str = "FLOP/s") -> str:
    """Return `84.0 GFLOP/s ± 2.1 %`."""
    return with_interval(rate, partial(quantity_per_s, unit=unit))


def peaks_table(best: Peaks, article: str = "") -> Table:
    """Return the best rates of a run. article: the one whose printed peaks come first."""
    lines = []
    for row in rows(article):
        if row["metric"] == "peak_flops_per_s" and row["si"]:
            by = f"published, {row['item'].lower()}: {row['note']}"
            cells = (row["device"], "fp32", f"{row['printed']} {row['unit']}", "", by)
            numbers = {"source": "published", "device": row["device"], "precision": "fp32"}
            lines.append((cells, numbers | {"flops_per_s": row["si"]}, "published"))
    known = [(*key, "flops_per_s", peak) for key, peak in sorted(best.rates.items())]
    known += [(*key, "bytes_per_s", peak) for key, peak in sorted(best.bandwidths.items())]
    for kind, what, metric, (rate, record) in sorted(known, key=lambda row: row[0]):
        by = f"{cases.framework_name(record)}; {record.experiment}: {cases.settings(record)}"
        by += f"; the fastest of {rate.n} blocks" if rate.covers == "exact" else ""
        both = (rate_text(rate), "") if metric == "flops_per_s" else ("", rate_text(rate, "B/s"))
        cells = (cases.chip_name(record), what, *both, "; ".join([by, *record.flags]))
        numbers = {"source": "measured", "device": kind, "precision": what}
        numbers |= {"framework": record.framework, metric: rate.value, "blocks": rate.n}
        lines.append((cells, numbers, "measured"))
    columns = ("Device", "Precision, or traffic", "Best rate", "Memory bandwidth", "Reached by")
    flags = [flag for *_, peak in known for flag in peak.record.flags]
    notes = ["" if known else NO_PEAKS, *notes_of_flags(flags)]
    meaning = (
        ["A measured peak is the rate of the fastest of its timed blocks of calls."]
        if known
        else []
    )
    meaning += ["A published one is the maker's, in single precision."] if article else []
    return Table.of("Peaks", columns, lines, notes, meaning)
