"""Tables of the roofline and of the measured peaks of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas

from pomology.articles.published import KIT
from pomology.format import significant, with_interval
from pomology.measure.estimate import Estimate
from pomology.report import peaks
from pomology.report.article import numbered
from pomology.report.table import MOST_ROWS, Row, Table
from pomology.results import cases, metrics
from pomology.results.record import Record
from pomology.results.repeats import Repeats, pool
from pomology.views.roofline.roofs import BOTH, READERS, READS, UNKNOWN_CACHE, Roofs

NO_PEAKS = "This run has no measured peaks; run the notebook peaks into the same folder first."
COUNTED = (
    "Operations per byte: the operations of a step over the bytes that each operator and the "
    "optimizer read and write. Fused operators and caches move fewer bytes, so a case may exceed "
    "the memory roof (over 100 %). Cache-resident: the memory roof does not apply."
)
ENDS = 5  # rows of each end in an excerpt
KEY = ["kind", "name", "framework", "backend", "precision"]


def points(records: Iterable[Record], best: Roofs) -> pandas.DataFrame:
    """Return the best case of each experiment, operation, framework, device and precision.

    records: of one run. Smoke tests and the cases that measure peaks are excluded. Columns: KEY and
    `case`; `rate` and `share` of the measured peak, Estimates; `intensity` in operations per byte,
    0 without byte counts; `limit`, `compute`, `memory` or `cache-resident`, "" without a roof;
    `share_of_roof`.
    """
    rows = []
    for case in pool(record for record in records if record.profile != "smoke"):
        rate = case.values.get("flops_per_s")
        if rate and not (case.first.article == KIT and case.config.get("operation")):
            rows.append(_point(case, rate, best))
    columns = [*KEY, "case", "rate", "value", "share", "intensity", "limit", "share_of_roof"]
    table = pandas.DataFrame(rows, columns=columns).sort_values("value", ascending=False)
    return table.drop_duplicates(KEY).sort_values(KEY)


def _point(case: Repeats, rate: Estimate, best: Roofs) -> dict:
    """Return a case as a row of `points`."""
    first = case.first
    operation = case.config.get("operation") or ""
    peak = best.rates.get((case.kind, case.precision))
    row = {
        "framework": first.framework,
        "backend": first.backend,
        "precision": case.precision,
        "kind": case.kind,
        "case": case,
        "rate": rate,
        "value": rate.value,
        "name": f"{first.experiment} {operation}".strip(),
        "share": rate / peak.rate if peak and peaks.has_share(case) else None,
        "intensity": 0.0,
        "limit": "",
    }
    bandwidth, call = map(case.values.get, ("bytes_per_s", "kernel_s"))
    size = first.bytes_per_step or (bandwidth.value * call.value if bandwidth and call else 0)
    if first.flops_per_step and first.bytes_per_step:
        row["intensity"] = first.flops_per_step / first.bytes_per_step
    elif bandwidth:
        row["intensity"] = rate.value / bandwidth.value
    memory = best.bandwidths.get((case.kind, READS if operation in READERS else BOTH))
    if not (peak and memory and row["intensity"]):
        return row  # `share_of_roof` is NaN
    slope = row["intensity"] * memory.rate.value
    roof = peak.rate.value
    row["limit"] = "compute"
    if slope < roof and 0 < size <= best.caches.get(case.kind, UNKNOWN_CACHE):
        row["limit"] = "cache-resident"
        row["name"] += ", cache-resident" if operation else ""
    elif slope < roof:
        row["limit"], roof = "memory", slope
    return row | {"share_of_roof": rate.value / roof}


def roofline_table(records: Iterable[Record], best: Roofs) -> Table:
    """Return a table of the best case of each experiment with its roof."""
    rows = []
    percent = metrics.Metric(peaks.SHARE).show
    for point in points(records, best).itertuples():
        first = point.case.first
        config = {name: value for name, value in point.case.config.items() if value}
        notes = ["scaled"] if first.scaled else []
        cells = {
            "Experiment": point.name,
            "Device": f"{point.case.device}, {point.case.framework}",
            "Precision": point.precision,
            "Best case": cases.config_text(config),
            "Achieved": with_interval(point.rate, metrics.Metric("flops_per_s").show),
            peaks.BEST: _share(point),
            "Operations per byte": significant(point.intensity) if point.intensity else "",
            "Limited by": point.limit,
            "Share of that roof": percent(point.share_of_roof) if point.limit else "",
            "Notes": ", ".join([*notes, *point.case.flags]),
        }
        numbers = {
            "case": first.case,
            "flops_per_s": point.value,
            "flops_per_byte": point.intensity,
            "share_of_roof": point.share_of_roof,
            "share_of_best": point.share and point.share.value,
        }
        rows.append(Row(cells, numbers, "measured"))
    notes = [COUNTED] if best.rates else [COUNTED, NO_PEAKS]
    if len(rows) > MOST_ROWS:
        with_roof = [row for row in rows if row.cells["Limited by"]]
        with_roof.sort(key=lambda row: row.data["share_of_roof"], reverse=True)
        rows = numbered(rows, [*with_roof[:ENDS], *with_roof[-ENDS:]])
        notes.append(f"The excerpt has the {ENDS} highest and the {ENDS} lowest shares of a roof.")
    return Table("Experiments and their roofs", rows, notes)


def _share(point: Any) -> str:
    """Return the share of the measured peak of a row of `points`, or why it has none."""
    if point.share:
        return with_interval(point.share, metrics.Metric(peaks.SHARE).show)
    if "too-fast" in point.case.flags:
        return "too fast to be one"
    return "no peak" if peaks.has_share(point.case) else "not compared"


def peaks_table(best: Roofs) -> Table:
    """Return a table of the measured peaks of a run, with the cases that reached them."""
    rows = []
    for name, measured in (("flops_per_s", best.rates), ("bytes_per_s", best.bandwidths)):
        for (_, group), (rate, record) in sorted(measured.items()):
            framework = cases.framework_name(record.framework)
            texts = {
                "Device": cases.chip_name(record),
                "Precision or traffic": group,
                "Measured peak": with_interval(rate, metrics.Metric(name).show),
                "Reached by": f"{framework}: {cases.config_text(record.config)}",
                "Notes": ", ".join(record.flags),
            }
            rows.append(Row(texts, {name: rate.value, "blocks": rate.n}, "measured"))
    meaning = "A measured peak is the rate in the fastest timing block."
    return Table("Measured peaks", rows, [meaning if rows else NO_PEAKS])
