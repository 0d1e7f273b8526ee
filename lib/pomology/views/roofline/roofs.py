"""The roofs of a run: its measured peaks in FLOP/s and in B/s."""

from collections.abc import Sequence
from typing import NamedTuple

from pomology.report import peaks
from pomology.report.peaks import Peaks
from pomology.results import cases
from pomology.results.record import Record

# Operations on large arrays -> number of arrays that they read or write (STREAM, McCalpin 1995).
STREAMS = {"sum": 1, "dot": 2, "copy": 2, "scale": 2, "add": 3, "triad": 3}
READERS, READS, BOTH = ("sum", "dot", "matvec"), "reads", "reads and writes"
# Assumed bytes of a last-level cache of unknown size: an M2 Ultra's has 96 MB, a B200's 126 MB.
UNKNOWN_CACHE = 2**27
BEYOND = 4  # a memory benchmark needs arrays larger than this many caches (McCalpin 1995)


class Roofs(NamedTuple):
    """The roofs of a run's devices.

    rates: by kind of device and precision. bandwidths: by kind, and `READS` or `BOTH`. caches:
    bytes of the last-level cache by kind, if known. memory_bound: the fastest operators of
    precisions without a peak.
    """

    rates: Peaks
    bandwidths: Peaks
    caches: dict[str, float]
    memory_bound: Peaks


def roofs(records: Sequence[Record]) -> Roofs:
    """Return the roofs of a run from its cases that time one operator.

    Bandwidths are from operations on large arrays; that of reads also from matrix-vector products
    with matrices much larger than a cache. A precision in which a memory-bound operator is faster
    than every dense one has no peak: some CPUs have no fast matrix products in half precision.
    """
    caches = {
        cases.kind(record.backend): record.metrics["cache_bytes"].value
        for record in records
        if record.status == "ok" and record.profile != "smoke" and "cache_bytes" in record.metrics
    }

    def traffic(record: Record) -> str:
        operation = record.config["operation"]
        call = record.metrics.get("kernel_s")
        size = record.metrics["bytes_per_s"].value * call.value if call else 0
        large = size > BEYOND * caches.get(cases.kind(record.backend), UNKNOWN_CACHE)
        if operation in STREAMS or (operation in READERS and large):
            return READS if operation in READERS else BOTH
        return ""

    dense = peaks.best(records)
    fastest = peaks.best(records, memory_bound=True)
    rates = {key: peak for key, peak in dense.items() if fastest[key].record is peak.record}
    without = {key: fastest[key] for key in dense if key not in rates}
    return Roofs(rates, peaks.best(records, "bytes_per_s", traffic), caches, without)
