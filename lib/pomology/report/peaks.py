"""The best rates that a run has measured: operations a second by device and precision, bytes a second."""

from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from pomology.format import with_interval
from pomology.measure.estimate import Estimate
from pomology.report.table import Table, ends
from pomology.results import cases, metrics
from pomology.results.record import Record

# Passes over memory, and how many arrays each reads or writes, as STREAM counts them (McCalpin 1995).
STREAMS = {"sum": 1, "dot": 2, "copy": 2, "scale": 2, "add": 3, "triad": 3}
READERS, READS, BOTH = ("sum", "dot", "matvec"), "reads", "reads and writes"
# Bytes of a last-level cache of which the system does not tell the size: an M2 Ultra's has 96 MB, a B200's 126 MB.
UNKNOWN_CACHE = 2**27
BEYOND = 4  # what measures the memory is larger than so many caches (McCalpin 1995)
BEST = "Share of this machine's best"


class Peak(NamedTuple):
    """The best rate that was measured, and the case that reached it."""

    rate: Estimate
    record: Record

    @property
    def value(self) -> float:
        return self.rate.value

    @property
    def rank(self) -> tuple[bool, float]:
        """The higher, the better; another way than the article's counts only where there is no other."""
        return "other-way" not in self.record.flags, self.rate.value


class Peaks(NamedTuple):
    """rates: by kind of device (`cpu`, `gpu`) and precision. bandwidths: by kind, and `READS` or `BOTH`.
    caches: bytes of the last-level cache by kind, where known."""

    rates: dict[tuple[str, str], Peak]
    bandwidths: dict[tuple[str, str], Peak]
    caches: dict[str, float]

    def share(self, rate: Estimate, kind: str, precision: str) -> Estimate | None:
        """Return the share of the peak that a rate is; None without a peak. Above 1 the peak is too low."""
        peak = self.rates.get((kind, precision))
        return peak and rate / peak.rate


def peaks(records: Iterable[Record], smoke: bool = False) -> Peaks:
    """Return the best of a run's cases that time one operator (a setting `operation`). smoke: also of smoke tests.

    Bytes a second come from passes over memory; of reads also from matrices far larger than a cache.
    """
    records = [r for r in records if "operation" in r.config and r.status == "ok"]
    records = [r for r in records if smoke or r.profile != "smoke"]
    caches = {
        cases.kind(r): r.metrics["cache_bytes"].value for r in records if "cache_bytes" in r.metrics
    }
    best = Peaks({}, {}, caches)
    for record in records:
        kind, name = cases.kind(record), record.config["operation"]
        found = [(best.rates, cases.precision(record), "flops_per_s")]
        rate, call = record.metrics.get("bytes_per_s"), record.metrics.get("kernel_s")
        size = rate.value * call.value if rate and call else 0
        if name in STREAMS or (name in READERS and size > BEYOND * caches.get(kind, UNKNOWN_CACHE)):
            found.append((best.bandwidths, READS if name in READERS else BOTH, "bytes_per_s"))
        for known, what, metric in found:
            rate = fastest(record, metric)
            if rate and rate.value > 0:
                peak = Peak(rate, record)
                known[kind, what] = max(known.get((kind, what), peak), peak, key=attrgetter("rank"))
    return best


def fastest(record: Record, name: str) -> Estimate | None:
    """Return a rate in the fastest of its blocks of calls, as STREAM does; without raw times the median."""
    rate, call = record.metrics.get(name), record.metrics.get("kernel_s")
    each_s = [seconds / calls for calls, seconds in record.steady("kernel_s") if calls and seconds]
    if not (rate and call and each_s):
        return rate
    return Estimate(rate.value * call.value / min(each_s), rate.unit, n=len(each_s), covers="exact")


def percent(share: Estimate | None) -> str:
    """Return `42.0 % (40.8 to 43.2 %)`; above 100 % that and a remark."""
    if share is None:
        return ""
    if share.value > 1:
        return (
            "100 %: faster than any product"
            if (share.low or 0) > 1
            else "100 %: not told apart from it"
        )
    high = share.high and min(share.high, 1.0)
    return with_interval(share.replace(unit="x", high=high), metrics.show("share_of_peak"))


def with_shares(table: Table, heading: str, shares: list[Estimate | None]) -> Table:
    """Return the table with a column of shares behind `heading`; the table itself where no row has one."""
    if not any(shares):
        return table
    place = table.columns.index(heading) + 1
    rows, data = [], []
    for row, numbers, share in zip(table.rows, table.data, shares, strict=True):
        rows.append(replace(row, cells=(*row.cells[:place], percent(share), *row.cells[place:])))
        data.append(
            numbers
            | ({"share_of_best": share.value} | ends("share_of_best", share) if share else {})
        )
    note = f"{BEST}: achieved, over the best rate of one operator on this device in this precision, in the whole run."
    columns = (*table.columns[:place], BEST, *table.columns[place:])
    return replace(
        table, columns=columns, rows=tuple(rows), data=tuple(data), meaning=(*table.meaning, note)
    )
