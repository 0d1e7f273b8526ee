"""The roofline model as tables, from the frame of a run and its best rates."""

from __future__ import annotations

from functools import partial

import pandas

from pomology.articles.published import KIT
from pomology.format import quantity, significant, with_interval
from pomology.measure.estimate import Estimate, estimate
from pomology.report import peaks
from pomology.report.article import achieved
from pomology.report.peaks import BOTH, READERS, READS, UNKNOWN_CACHE, Peaks
from pomology.report.table import Table, ends, notes_of_flags
from pomology.results import cases
from pomology.results.pool import Case, pool

NO_PEAKS = "This run has no peaks yet: run the notebook peaks into the same folder first."
COUNTED = (
    "Operations per byte: what each operator of a step reads and writes by itself, and the "
    "optimiser's update. Fused operators and caches move less, so a case may be above the memory's "
    "roof: its share is over 100 %."
)
RESIDENT = "Cache-resident: the data fit the last-level cache, so the memory is no roof."
KEY = ["kind", "name", "framework", "backend", "precision"]


def points(frame: pandas.DataFrame, best: Peaks) -> pandas.DataFrame:
    """Return the best case of each experiment, operation, framework, device and precision.

    frame: of one run. Smoke tests are left out, and the cases that measure the peaks. Columns: the
    `case` and KEY; its `rate`, and its `share` of the best rate, Estimates; `intensity`, operations
    per byte, 0 where the bytes are not counted; `limit`, `compute`, `memory` or `cache-resident`,
    empty where a roof is not known; `roof` in FLOP/s, and `share_of_roof`.
    """
    found = []
    for case in pool(frame[frame["profile"].ne("smoke")]):
        rate = achieved(case)
        if rate and not (case.first["article"] == KIT and case.config.get("operation")):
            found.append(_point(case, rate, best))
    columns = [*KEY, "case", "rate", "value", "share", "intensity", "limit", "roof"]
    table = pandas.DataFrame(found, columns=columns).sort_values("value", ascending=False)
    table = table.drop_duplicates(KEY).sort_values(KEY)
    return table.assign(share_of_roof=table["value"] / table["roof"])


def _point(case: Case, rate: Estimate, best: Peaks) -> dict:
    """Return a case as a row of `points`."""
    first = case.first
    operation = case.config.get("operation") or ""
    row = {name: first[name] for name in ("framework", "backend", "precision")}
    row |= {"kind": case.kind, "case": case, "rate": rate, "value": rate.value}
    row["name"] = f"{first['experiment']} {operation}".strip()
    row["share"] = best.share(rate, case.kind, first["precision"])
    row |= {"intensity": 0.0, "limit": "", "roof": float("nan")}
    bandwidth = case.values.get("bytes_per_s")
    call = case.values.get("kernel_s")
    size = first["bytes_per_step"] or (bandwidth.value * call.value if bandwidth and call else 0)
    if first["flops_per_step"] and first["bytes_per_step"]:
        row["intensity"] = first["flops_per_step"] / first["bytes_per_step"]
    elif bandwidth:
        row["intensity"] = rate.value / bandwidth.value
    peak = best.rates.get((case.kind, first["precision"]))
    memory = best.bandwidths.get((case.kind, READS if operation in READERS else BOTH))
    resident = 0 < size <= best.caches.get(case.kind, UNKNOWN_CACHE)
    if not peak or not row["intensity"] or not (memory or resident):
        return row
    slope = row["intensity"] * memory.value if memory else 0.0
    if slope >= peak.value:
        return row | {"limit": "compute", "roof": peak.value}
    if not resident:
        return row | {"limit": "memory", "roof": slope}
    row["name"] += ", cache-resident" if operation else ""
    return row | {"limit": "cache-resident", "roof": peak.value}


def roofline_table(frame: pandas.DataFrame, best: Peaks) -> Table:
    """Return the best case of every experiment with its roof; the notes name what is not there."""
    found = points(frame, best)
    lines = []
    for point in found.itertuples():
        first = point.case.first
        config = {name: value for name, value in point.case.config.items() if value}
        share_of_roof = estimate(point.share_of_roof) if point.limit else None
        cells = (
            point.name,
            f"{first['device']}, {point.case.framework}",
            point.precision,
            cases.config_text(config),
            rate_text(point.rate),
            peaks.percent(point.share) or "no peak",
            significant(point.intensity) if point.intensity else "not counted",
            point.limit,
            peaks.percent(share_of_roof),
            ", ".join(filter(None, ["scaled" if first["scaled"] else "", *point.case.flags])),
        )
        numbers = {
            "experiment": first["experiment"],
            "case": first["case"],
            "flops_per_s": point.value,
            "share_of_best": point.share and point.share.value,
            **ends("share", point.share),
            "flops_per_byte": point.intensity or None,
            "limit": point.limit,
            "roof_flops_per_s": point.roof if point.limit else None,
            "share_of_roof": point.share_of_roof if point.limit else None,
        }
        lines.append((cells, numbers, "measured"))
    notes = [COUNTED] if lines else []
    notes += [RESIDENT] if found["limit"].eq("cache-resident").any() else []
    shown = {case.first["experiment"] for case in found["case"]}
    other = frame[frame["article"].ne(KIT) & ~frame["experiment"].isin(shown)]
    reasons = other["status"].replace("ok", "no operations were counted")
    reasons = reasons.mask(other["profile"].eq("smoke"), "smoke test")
    missing = other["experiment"].groupby(reasons, sort=False).unique()
    notes += [f"Not in the table ({why}): {', '.join(names)}." for why, names in missing.items()]
    notes += notes_of_flags(flag for case in found["case"] for flag in case.flags)
    columns = ("Experiment", "Device", "Precision", "Best case", "Achieved", peaks.BEST)
    columns += ("Operations per byte", "Limited by", "Share of that roof", "Remarks")
    title = "How far each experiment is below the roofs"
    return Table.of(title, columns, lines, [*notes, "" if best.rates else NO_PEAKS])


def rate_text(rate: Estimate, unit: str = "FLOP/s") -> str:
    """Return `84.0 GFLOP/s ± 2.1 %`."""
    return with_interval(rate, partial(quantity, unit=unit))


def peaks_table(best: Peaks) -> Table:
    """Return the best rates of a run, and what reached them."""
    measured = [(key, "flops_per_s", peak) for key, peak in sorted(best.rates.items())]
    measured += [(key, "bytes_per_s", peak) for key, peak in sorted(best.bandwidths.items())]
    lines = []
    for (kind, what), metric, (rate, record) in sorted(measured, key=lambda row: row[0][0]):
        by = f"{cases.framework_name(record)}; {record.experiment}: {cases.settings(record)}"
        by += f"; the fastest of {rate.n} blocks" if rate.covers == "exact" else ""
        flops = rate_text(rate) if metric == "flops_per_s" else ""
        moved = rate_text(rate, "B/s") if metric == "bytes_per_s" else ""
        cells = (cases.chip_name(record), what, flops, moved, "; ".join([by, *record.flags]))
        numbers = {"device": kind, "precision": what, "framework": record.framework}
        lines.append((cells, numbers | {metric: rate.value, "blocks": rate.n}, "measured"))
    columns = ("Device", "Precision, or traffic", "Best rate", "Memory bandwidth", "Reached by")
    flags = [flag for *_, peak in measured for flag in peak.record.flags]
    meaning = "A measured peak is the rate of the fastest of its timed blocks of calls."
    notes = [meaning if measured else NO_PEAKS, *notes_of_flags(flags)]
    return Table.of("Peaks", columns, lines, notes)
