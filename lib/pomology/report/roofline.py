"""The machine's own ceilings, and how far below them a case stays: the roofline model.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore architectures",
Communications of the ACM 52 (4), 2009. A device reaches at most the lower of two roofs: its best rate of operations,
and its memory bandwidth times the operations that are done for a byte, which are counted on paper.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import NamedTuple

from pomology.articles import published
from pomology.articles.published import KIT, experiment_of
from pomology.format import quantity, quantity_per_s, significant, with_interval
from pomology.measure.estimate import Estimate
from pomology.report.table import Table, ends, flag_notes
from pomology.results import cases, metrics
from pomology.results.cases import achieved, chip_name, comparable, framework_name, groups
from pomology.results.record import Record

BEST = "Share of this machine's best"
FASTER = "faster than any product"
ABOVE = (
    "Shares are clipped at 100 % of the ceiling. Faster than any product: the ceiling is too low (run the ceilings "
    "again, alone), or an operator took fewer operations than are counted."
)
FASTEST = (
    "A ceiling is the rate of the fastest of its timed blocks of calls, as STREAM reports its passes; other rates are "
    "medians. Another run may differ."
)
NO_CEILINGS = "This run has no ceilings yet: run the notebooks ceilings and ceilings_mlx into the same folder first."

CEILINGS = ("ceilings", "ceilings_mlx")
SOURCES = (*CEILINGS, "blas_torch", "blas_mlx")  # a product of any notebook counts, if it was faster

# Passes over memory, and how many arrays each reads or writes, as STREAM counts them: without what a processor fetches
# of a line that it is going to overwrite. What only reads has a roof of its own.
STREAMS = {"sum": 1, "dot": 2, "copy": 2, "scale": 2, "add": 3, "triad": 3}
READERS, READS, BOTH = ("sum", "dot", "matvec"), "reads", "reads and writes"
# Where the system does not say how large its last-level cache is: an M2 Ultra's has 96 MB, NVIDIA's B200 has 126 MB.
# What measures the memory must be four times as large as a cache (McCalpin 1995).
UNKNOWN_CACHE, BEYOND = 2**27, 4


class Ceiling(NamedTuple):
    """The best that was measured: operations or bytes a second, and the case that reached it."""

    rate: Estimate
    record: Record

    @property
    def value(self) -> float:
        return self.rate.value

    @property
    def rank(self) -> tuple[bool, float]:
        """The higher, the better; another way than the article's only where there is no other. What else speaks against
        a number makes it too slow, never too fast."""
        return "other-way" not in self.record.flags, self.value


class Ceilings(NamedTuple):
    """rates: operations a second by kind of device (`cpu`, `gpu`) and precision. bandwidths: bytes a second by kind of
    device and of traffic, `READS` or `BOTH`. caches: bytes of the last-level cache by kind of device, where known."""

    rates: dict[tuple[str, str], Ceiling]
    bandwidths: dict[tuple[str, str], Ceiling]
    caches: dict[str, float]

    def __bool__(self) -> bool:
        return bool(self.rates or self.bandwidths)

    def over(self, record: Record) -> Ceiling | None:
        """The best rate of a case's device in its precision."""
        return self.rates.get((cases.kind(record), cases.precision(record)))

    def in_caches(self, record: Record) -> float:
        """How many last-level caches hold what a step or a call moves; 0 where nobody counted that."""
        rate, call = (record.metrics.get(name) for name in ("bytes_per_s", "kernel_s"))
        moved = record.bytes_per_step or (rate.value * call.value if rate and call else 0)
        return moved / self.caches.get(cases.kind(record), UNKNOWN_CACHE)


def ceilings(records: Iterable[Record], smoke: bool = False) -> Ceilings:
    """The best that a run has measured, by `Ceiling.rank`, over its frameworks and repeats, at its start and end.

    smoke: also what smoke tests have measured. Operations a second come from products, on a processor also from a
    convolution, bytes a second from passes over large arrays, and of reads also from matrices that meet a vector and
    are too large for a cache.
    """
    records = [r for r in records if r.experiment in SOURCES and r.status == "ok" and (smoke or r.profile != "smoke")]
    sizes = {cases.kind(r): r.metrics["cache_bytes"].value for r in records if "cache_bytes" in r.metrics}
    best = Ceilings({}, {}, sizes)
    for record in records:
        large = traffic(record) == READS and best.in_caches(record) > BEYOND
        found = [(best.rates, cases.precision(record), fastest(record, "flops_per_s"))]
        if large or record.config.get("operation") in STREAMS:
            found.append((best.bandwidths, traffic(record), fastest(record, "bytes_per_s")))
        for known, which, rate in found:
            if rate and rate.value > 0:
                key, new = (cases.kind(record), which), Ceiling(rate, record)
                known[key] = max(known.get(key, new), new, key=lambda ceiling: ceiling.rank)
    return best


def fastest(record: Record, name: str) -> Estimate | None:
    """A rate of a case in its fastest block of calls, n blocks in all; where the raw times are gone, in the median one.

    The best of what was seen is what STREAM (McCalpin 1995) reports, too: others only slow it down."""
    rate, call = record.metrics.get(name), record.metrics.get("kernel_s")
    if not (rate and call):
        return rate
    each_s = [seconds / calls for calls, seconds in record.steady("kernel_s") if calls and seconds]
    if not each_s:
        return rate
    return Estimate(rate.value * call.value / min(each_s), rate.unit, n=len(each_s), covers="exact")


def traffic(record: Record) -> str:
    """What a case does to memory."""
    return READS if record.config.get("operation") in READERS else BOTH


def share(record: Record, best: Ceilings, rate: Estimate | None = None) -> Estimate | None:
    """How much of its device's best rate in its precision a case reaches; 1 is all of it. More, which
    `clipped` takes away, says that the ceiling is too low.

    rate: in place of the record's own. None for a smoke test, and where the run lacks such a ceiling or the case such
    a rate. The interval takes in both intervals."""
    rate, ceiling = rate or achieved(record), best.over(record)
    return None if rate is None or ceiling is None or record.profile == "smoke" else rate / ceiling.rate


def clipped(share: Estimate) -> Estimate:
    """A share as it is shown: of a ceiling nothing is more than all."""
    ends = {name: getattr(share, name) for name in ("value", "low", "high")}
    return share.replace(**{name: end and min(end, 1.0) for name, end in ends.items()})


def intensity(record: Record) -> float | None:
    """Operations for a byte, counted on paper: of a training step by what each of its operators reads and writes, of a
    product by its operands and result. None where the bytes were not counted."""
    flops, moved = record.flops_per_step or 0, record.bytes_per_step or 0
    if flops <= 0 or moved <= 0:
        flops, moved = (getattr(record.metrics.get(name), "value", 0) for name in ("flops_per_s", "bytes_per_s"))
    return flops / moved if flops > 0 and moved > 0 else None


class Roof(NamedTuple):
    """What limits a case by the model, `compute` or `memory`, the rate that this allows, and the share of it. What is
    `cache-resident` waits for no memory, so computing is the roof that is left."""

    limit: str
    flops_per_s: float
    share: float


def roof(record: Record, best: Ceilings, rate: Estimate | None = None) -> Roof | None:
    """The lower of the two roofs above a case, and its share of it; None where one of them is not known. The memory's
    is that of the case's own kind of traffic."""
    rate, operations, ceiling = rate or achieved(record), intensity(record), best.over(record)
    bandwidth = best.bandwidths.get((cases.kind(record), traffic(record)))
    resident = 0 < best.in_caches(record) <= 1
    if None in (rate, operations, ceiling) or not (bandwidth or resident) or record.profile == "smoke":
        return None
    slope = operations * bandwidth.value if bandwidth else 0.0
    limit = "compute" if slope >= ceiling.value else "cache-resident" if resident else "memory"
    lower = slope if limit == "memory" else ceiling.value
    return Roof(limit, lower, rate.value / lower)


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
        above, operation = roof(record, best, rate), record.config.get("operation") or ""
        # What a cache holds is another case than what comes from memory, and the faster one.
        cached = ", cache-resident" * bool(operation and above and above.limit == "cache-resident")
        name = f"{experiment_of(record.experiment)} {operation}".strip() + cached
        key = (cases.kind(record), name, record.framework, record.backend, cases.precision(record))
        if key not in points or rate.value > points[key].rate.value:
            points[key] = Point(name, record, rate, share(record, best, rate), intensity(record), above)
    return [points[key] for key in sorted(points)]


def rated(records: Iterable[Record], without: Iterable[str]) -> list[tuple[Record, Estimate]]:
    """The cases of a run that have operations a second, smoke tests and these notebooks left out: of each its first
    record that ended well, and its rate over the repeats."""
    usable = comparable(records, "flops_per_s")
    good = [record for record in usable if record.status == "ok" and record.experiment not in without]
    rates = ((repeats[0], rate_of(repeats)) for repeats in groups(good))
    return [(record, rate) for record, rate in rates if rate]


def rate_of(repeats: Iterable[Record]) -> Estimate | None:
    """Operations a second of a case, of several repeats together."""
    return cases.together([rate for rate in map(achieved, repeats) if rate and rate.value > 0])


def with_shares(table: Table, heading: str, shares: list[Estimate | None]) -> Table:
    """The same table with a column behind `heading`; the table itself where no row has a share of a ceiling."""
    if not any(shares):
        return table
    place = table.columns.index(heading) + 1
    rows, data = [], []
    for row, numbers, share in zip(table.rows, table.data, shares, strict=True):
        rows.append(replace(row, cells=(*row.cells[:place], percent(share), *row.cells[place:])))
        data.append(numbers | ({"share_of_best": share.value} | ends("share_of_best", share) if share else {}))
    note = (
        f"{BEST}: achieved, over the best rate that a matrix product, or on a processor a convolution, reached on this "
        "device in this precision, in any notebook and framework of this run; the table of ceilings names them."
    )
    meaning = (*table.meaning, note, *[ABOVE] * any(share and share.value > 1 for share in shares))
    columns = (*table.columns[:place], BEST, *table.columns[place:])
    return replace(table, columns=columns, rows=tuple(rows), data=tuple(data), meaning=meaning)


def percent(share: Estimate | None) -> str:
    """`42.0 % (40.8 to 43.2 %)`; above 100 %, that and a remark."""
    if share is None:
        return ""
    if share.value > 1:
        within = "within its interval" if share.low else "above it" if share.covers == "exact" else "no interval"
        return f"100 %: {FASTER if share.low and share.low > 1 else within}"
    return with_interval(clipped(share).replace(unit="x"), metrics.show("share_of_peak"))


def rate_text(rate: Estimate, unit: str = "FLOP/s") -> str:
    """`84.0 GFLOP/s ± 2.1 %`."""
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
    ranked = [(*key, "flops_per_s", ceiling) for key, ceiling in sorted(best.rates.items())]
    ranked += [(*key, "bytes_per_s", ceiling) for key, ceiling in sorted(best.bandwidths.items())]
    for kind, which, metric, (rate, record) in sorted(ranked, key=itemgetter(0)):
        settings = (str(value).replace("x", " × ") for key, value in record.config.items() if key != "precision")
        best_of = [f"the fastest of {rate.n} blocks"] * (rate.covers == "exact")
        case = f"{record.experiment}: {', '.join(settings)}"
        by = "; ".join([framework_name(record), case, *best_of, *record.flags])
        both = (rate_text(rate), "") if metric == "flops_per_s" else ("", rate_text(rate, "B/s"))
        numbers = {metric: rate.value, "blocks": rate.n}
        about = {"source": "measured", "device": kind, "precision": which, "framework": record.framework}
        lines.append(((names[kind], which, *both, by), about | numbers, "measured"))
    makers = "The article's rates are the makers' peaks, in single precision; this machine's are measured."
    smoke = any(record.profile == "smoke" for record in records)
    notes = [
        None if best else NO_CEILINGS,
        smoke and "This was a smoke test, with tiny shapes: it has no ceilings.",
        *flag_notes(ceiling.record for known in best[:2] for ceiling in known.values()),
    ]
    columns = ("Device", "Precision, or traffic", "Best rate", "Memory bandwidth", "Reached by")
    title = "Peaks of the article's devices, and the ceilings of this machine" if article else "This machine's ceilings"
    return Table.of(title, columns, lines, notes, [article and makers, best and FASTEST])


def roofline_table(records: list[Record]) -> Table:
    """Under which of this machine's roofs the best case of every experiment is, a row each; the notes name what is not
    in it, with the reason."""
    points, best, lines = roofline_points(records), ceilings(records), []
    for name, record, rate, share, operations, roof in points:
        settings = (f"{key.replace('_', ' ')} {value}" for key, value in record.config.items() if value)
        cells = (name, f"{chip_name(record)}, {framework_name(record)}", cases.precision(record), ", ".join(settings))
        cells += (rate_text(rate), percent(share) or "no ceiling")
        cells += (significant(operations) if operations else "not counted",)
        cells += (roof.limit, percent(Estimate.count(roof.share))) if roof else ("", "")
        about = {"experiment": record.experiment, "case": record.case, "flops_per_s": rate.value}
        shares = {"share_of_best": share.value, "low": share.low, "high": share.high} if share else {}
        roofs = {"limit": roof.limit, "roof_flops_per_s": roof.flops_per_s, "share_of_roof": roof.share} if roof else {}
        numbers = about | shares | {"flops_per_byte": operations} | roofs
        lines.append(((*cells, ", ".join([*["scaled"] * record.scaled, *record.flags])), numbers, "measured"))
    columns = ("Experiment", "Device", "Precision", "Best case", "Achieved", BEST, "Operations per byte", "Limited by")
    columns += ("Share of that roof", "Remarks")
    resident = {cases.kind(point.record) for point in points if point.roof and point.roof.limit == "cache-resident"}
    sizes = ", ".join(quantity(best.caches.get(kind, UNKNOWN_CACHE), "B") for kind in sorted(resident))
    meaning = [
        points
        and "Operations per byte, on paper: what each operator of a step reads and writes by itself, and the "
        "optimiser's update. Fused operators and caches move less, so a case may be above the memory's roof: its "
        "share is clipped at 100 %. What only reads, as a matrix that meets a vector, is compared with the "
        "memory's rate of reads.",
        resident and f"Cache-resident: the data fit the last-level cache ({sizes}): the memory is no roof.",
        any(point.share and point.share.value > 1 for point in points) and ABOVE,
    ]
    shown = {*CEILINGS, *(point.record.experiment for point in points)}
    without: dict[str, dict[str, None]] = {}
    for record in records:
        if record.experiment not in shown and record.article != KIT:
            reason = "smoke test" if record.profile == "smoke" else record.status
            reason = "no operations were counted" if reason == "ok" else reason
            without.setdefault(reason, {})[record.experiment] = None
    notes = [None if best else NO_CEILINGS]
    notes += [f"Not in the table ({reason}): {', '.join(names)}." for reason, names in without.items()]
    notes += flag_notes(point.record for point in points)
    return Table.of("How far each experiment is below the roofs", columns, lines, notes, meaning)
