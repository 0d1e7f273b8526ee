"""The machine's own ceilings, and how far below them a case stays: the roofline model.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore architectures",
Communications of the ACM 52 (4), 2009. A device reaches at most the lower of two roofs: its best rate of operations,
and its memory bandwidth times the operations that are done for a byte. Both ceilings are measured in the same run, by
the notebooks of CEILINGS; a product that another notebook of the run has timed counts as well, if it was faster.
Operations and bytes of a case are counted on paper. Reads records as they are in a journal; times nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CEILINGS = ("ceilings", "ceilings_mlx")
SOURCES = (*CEILINGS, "blas_torch", "blas_mlx")
# STREAM's kernels by name, and how many arrays each reads or writes. As STREAM counts them: what a processor fetches
# of a line that it is going to overwrite is not counted.
STREAMS = {"copy": 2, "scale": 2, "add": 3, "triad": 3}
# What an autocast or a trainer's own name of a precision computes its products in; the longer names first.
PRECISIONS = (("bf16", "bf16"), ("bfloat16", "bf16"), ("tf32", "tf32"), ("fp16", "fp16"), ("float16", "fp16"))
PRECISIONS += (("fp32", "fp32"), ("float32", "fp32"), ("16", "fp16"), ("32", "fp32"))


@dataclass(frozen=True)
class Ceiling:
    """The best that was measured: operations or bytes a second, its 95 % interval, and what reached it."""

    value: float
    low: float | None
    high: float | None
    framework: str
    experiment: str
    config: dict[str, Any]
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ceilings:
    """rates: operations a second by kind of device (`cpu`, `gpu`) and precision. bandwidths: bytes a second by kind."""

    rates: dict[tuple[str, str], Ceiling]
    bandwidths: dict[str, Ceiling]

    def __bool__(self) -> bool:
        return bool(self.rates or self.bandwidths)


@dataclass(frozen=True)
class Share:
    """A rate over a ceiling, with the interval that both intervals together allow; None where one has none."""

    value: float
    low: float | None
    high: float | None
    ceiling: Ceiling


@dataclass(frozen=True)
class Roof:
    """What limits a case by the model, `compute` or `memory`, the rate that this allows, and the share of it."""

    limit: str
    flops_per_s: float
    share: float


def kind(record: dict) -> str:
    """`cpu` or `gpu`: the device that was asked for."""
    return "cpu" if record["backend"] == "cpu" else "gpu"


def precision(record: dict) -> str:
    """The precision of a case's products: of autocast (`16-mixed`, `autocast bf16`) the half precision it names."""
    text = str(record["precision"]).lower()
    return next((name for part, name in PRECISIONS if part in text), text)


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
        if record["status"] != "ok" or record["profile"] == "smoke" or record["experiment"] not in SOURCES:
            continue
        if record["config"].get("operation") not in STREAMS:
            _best(rates, (kind(record), precision(record)), record, "flops_per_s")
        else:
            _best(bandwidths, kind(record), record, "bytes_per_s")
    return Ceilings(rates, bandwidths)


def _best(found: dict, key: Any, record: dict, name: str) -> None:
    metric = record["metrics"].get(name)
    if metric is None or metric["value"] <= 0:
        return
    surely = metric["value"] if metric["low"] is None else metric["low"]
    if key in found and surely <= (found[key].value if found[key].low is None else found[key].low):
        return
    bounds = (metric["low"], metric["high"])
    about = (record["framework"], record["experiment"], record["config"], tuple(record["flags"]))
    found[key] = Ceiling(metric["value"], *bounds, *about)


def achieved(record: dict) -> dict | None:
    """The operations a second of a case, as a metric; None if it did not end well, or nobody counted them."""
    metrics, flops = record["metrics"], _count(record, "flops_per_step")
    if record["status"] != "ok":
        return None
    if "flops_per_s" in metrics:
        return metrics["flops_per_s"]
    if "step_s" not in metrics or flops is None or not metrics["step_s"]["value"] > 0:
        return None
    step = metrics["step_s"]
    bounded = None not in (step["low"], step["high"]) and step["low"] > 0
    low, high = (flops / step["high"], flops / step["low"]) if bounded else (None, None)
    return {**step, "value": flops / step["value"], "unit": "FLOP/s", "low": low, "high": high}


def share(record: dict, best: Ceilings, rate: dict | None = None) -> Share | None:
    """How much of its device's best rate in its precision a case reaches; 1 is all of it.

    rate: in place of the record's own, as of several repeats together. None for a smoke test, and where the run lacks
    such a ceiling or the case such a rate. The interval takes in both intervals.
    """
    rate = rate or achieved(record)
    ceiling = best.rates.get((kind(record), precision(record)))
    if rate is None or ceiling is None or record["profile"] == "smoke":
        return None
    low = high = None
    if None not in (rate["low"], rate["high"], ceiling.low, ceiling.high) and ceiling.low > 0:
        low, high = rate["low"] / ceiling.high, rate["high"] / ceiling.low
    return Share(rate["value"] / ceiling.value, low, high, ceiling)


def intensity(record: dict) -> float | None:
    """Operations for a byte that is read or written, counted on paper; None where the bytes were not counted.

    Of a training step by what each of its operators reads and writes; of a product by its operands and result.
    """
    flops, moved = _count(record, "flops_per_step"), _count(record, "bytes_per_step")
    if flops is not None and moved is not None:
        return flops / moved
    rates = [record["metrics"].get(name) for name in ("flops_per_s", "bytes_per_s")]
    if None in rates or not all(rate["value"] > 0 for rate in rates):
        return None
    return rates[0]["value"] / rates[1]["value"]


def roof(record: dict, best: Ceilings, rate: dict | None = None) -> Roof | None:
    """The lower of the two roofs above a case, and its share of it; None where one of them is not known."""
    rate, operations = rate or achieved(record), intensity(record)
    ceiling, bandwidth = best.rates.get((kind(record), precision(record))), best.bandwidths.get(kind(record))
    if None in (rate, operations, ceiling, bandwidth) or record["profile"] == "smoke":
        return None
    slope = operations * bandwidth.value
    lower = min(ceiling.value, slope)
    return Roof("memory" if slope < ceiling.value else "compute", lower, rate["value"] / lower)


def _count(record: dict, key: str) -> int | None:
    """A count of a record above 0; what somebody else's journal has in its place is none."""
    value = record.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def rate(amount: float, seconds: Any, unit: str) -> dict[str, Any]:
    """`amount` over a time (an Interval of seconds), as the arguments of `case.metric`: value, unit, low, high, n."""
    bounds = {"low": amount / seconds.high, "high": amount / seconds.low} if seconds.low else {}
    return {"value": amount / seconds.mean, "unit": unit, "n": seconds.n, **bounds}


def cache_bytes(folder: Path | None = None) -> int | None:
    """The last-level cache of this processor, where the system tells (Linux); None elsewhere, as on a Mac.

    folder: where the system lists the caches, one folder each.
    """
    if folder is None:
        if sys.platform != "linux":
            return None
        folder = Path("/sys/devices/system/cpu/cpu0/cache")
    sizes = [place.read_text().strip() for place in folder.glob("index*/size")]
    counts = [int(size[:-1]) * 1024 for size in sizes if size[:-1].isdigit() and size.endswith("K")]
    return max(counts, default=None)
