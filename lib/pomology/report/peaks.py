"""The best rates that a run has measured: operations and bytes a second."""

from collections.abc import Iterable
from typing import NamedTuple

from pomology.format import with_interval
from pomology.measure.estimate import Estimate
from pomology.results import cases, metrics
from pomology.results.record import Record

# Passes over memory, and how many arrays each reads or writes (STREAM, McCalpin 1995).
STREAMS = {"sum": 1, "dot": 2, "copy": 2, "scale": 2, "add": 3, "triad": 3}
READERS, READS, BOTH = ("sum", "dot", "matvec"), "reads", "reads and writes"
# Bytes of a last-level cache of which the system does not tell the size: an M2 Ultra's has 96 MB,
# a B200's 126 MB.
UNKNOWN_CACHE = 2**27
BEYOND = 4  # what measures the memory is larger than so many caches (McCalpin 1995)
SHARE = "share_of_best"  # of the best rate here, that a case reaches
BEST = metrics.words(SHARE)


class Peak(NamedTuple):
    """The best rate that was measured, and the case that reached it."""

    rate: Estimate
    record: Record

    @property
    def value(self) -> float:
        return self.rate.value


class Peaks(NamedTuple):
    """rates: by kind of device (`cpu`, `gpu`) and precision. bandwidths: by kind, and `READS` or
    `BOTH`. caches: bytes of the last-level cache by kind, where known.
    """

    rates: dict[tuple[str, str], Peak]
    bandwidths: dict[tuple[str, str], Peak]
    caches: dict[str, float]

    def share(self, rate: Estimate, kind: str, precision: str) -> Estimate | None:
        """Return the share of the peak that a rate is; above 1 the peak is too low."""
        peak = self.rates.get((kind, precision))
        return peak and rate / peak.rate


def peaks(records: Iterable[Record]) -> Peaks:
    """Return the best of a run's cases that time one operator (a setting `operation`).

    Bytes a second come from passes over memory; of reads also from matrices far larger than a
    cache. Smoke tests are left out.
    """
    best = Peaks({}, {}, {})
    good = [record for record in records if record.status == "ok" and record.profile != "smoke"]
    operators = [record for record in good if "operation" in record.config]
    for record in operators:
        if "cache_bytes" in record.metrics:
            best.caches[cases.kind(record)] = record.metrics["cache_bytes"].value
    for record in operators:
        kind = cases.kind(record)
        operation = record.config["operation"]
        _keep_best(best.rates, (kind, cases.precision(record)), record, "flops_per_s")
        rate = record.metrics.get("bytes_per_s")
        call = record.metrics.get("kernel_s")
        size = rate.value * call.value if rate and call else 0
        large = size > BEYOND * best.caches.get(kind, UNKNOWN_CACHE)
        if operation in STREAMS or (operation in READERS and large):
            traffic = READS if operation in READERS else BOTH
            _keep_best(best.bandwidths, (kind, traffic), record, "bytes_per_s")
    return best


def _keep_best(
    found: dict[tuple[str, str], Peak], key: tuple[str, str], record: Record, metric: str
) -> None:
    """Keep the rate of a record's fastest block of calls, as STREAM does, if it is the best.

    Without raw times its rate is the median.
    """
    rate = record.metrics.get(metric)
    call = record.metrics.get("kernel_s")
    each_s = [seconds / calls for calls, seconds in record.steady("kernel_s") if calls and seconds]
    if rate and call and each_s:
        fastest = rate.value * call.value / min(each_s)
        rate = Estimate(fastest, rate.unit, n=len(each_s), covers="exact")
    if rate and rate.value > (found[key].value if key in found else 0):
        found[key] = Peak(rate, record)


def percent(share: Estimate | None) -> str:
    """Return `42.0 % (40.8 to 43.2 %)`; `over 100 %` of what was faster than any product."""
    if share is None:
        return ""
    if share.value > 1:
        return "over 100 %"
    high = share.high and min(share.high, 1.0)
    return with_interval(share.replace(unit="x", high=high), metrics.show("share_of_peak"))
