"""Measured peaks of a run: the highest rates of single operators, and shares of them."""

import functools
import math
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pomology.articles import published
from pomology.measure.estimate import Estimate
from pomology.results import cases, metrics
from pomology.results.record import Record

DENSE = ("matmul", "vjp", "convolution")  # compute-bound operators, which measure peak FLOP/s
TOO_FAST = 1.5  # times the peak; Winograd convolutions need fewer operations than are counted
SHARE = "share_of_best"  # metric: share of this machine's measured peak
BEST = metrics.words(SHARE)


class Peak(NamedTuple):
    """A measured peak, and the record of the case that reached it."""

    rate: Estimate
    record: Record


Peaks = dict[tuple[str, str], Peak]  # by device kind, `cpu` or `gpu`, and precision or traffic


def best(
    records: Iterable[Record],
    metric: str = "flops_per_s",
    group: Callable[[Record], str] = cases.precision,
) -> Peaks:
    """Return the peaks among the cases that time one operator (with a setting `operation`).

    A rate is that of the fastest timing block, as in STREAM, or the median without raw times.
    group: returns the precision or traffic of a case, or "" to exclude it, as smoke tests are.
    """
    found: Peaks = {}
    for record in records:
        operation = record.config.get("operation")
        timed = metric in record.metrics and (operation in DENSE or metric != "flops_per_s")
        sound = record.status == "ok" and "too-fast" not in record.flags
        if not (operation and timed and sound) or record.profile == "smoke":
            continue
        rate = record.metrics[metric]
        call = record.metrics.get("kernel_s")
        each_s = [s / calls for calls, s in record.steady("kernel_s") if calls and s]
        if call and each_s:
            fastest = rate.value * call.value / min(each_s)
            rate = Estimate(fastest, rate.unit, n=len(each_s), covers="exact")
        place = (cases.kind(record.backend), group(record))
        if place[1] and (place not in found or rate.value > found[place].rate.value):
            found[place] = Peak(rate, record)
    return found


def limit(records: Iterable[Record], kind: str, chip: str, precision: str) -> float:
    """Return the FLOP/s above which a device's result is implausible; infinity if unknown.

    The limit is 1.5 times the higher of the data sheet's peak and the peak that `records` of a run
    measured. fp32 may be computed as TF32, and autocast in any precision.
    """
    among = ("fp32", "tf32") if precision == "fp32" else ("fp32", "tf32", "fp16", "bf16", "half")
    sound = [record for record in records if not cases.DOUBTS.intersection(record.flags)]
    peaks = best(sound).items()
    rates = [peak.rate.value for (of, name), peak in peaks if of == kind and name in among]
    rates += [rate for name, rate in data_sheet(chip).items() if kind == "gpu" and name in among]
    return TOO_FAST * max(rates, default=math.inf)


@functools.cache
def data_sheet(chip: str) -> dict[str, float]:
    """Return the highest peak FLOP/s of a GPU's variants by `fp32`, `tf32` and `half`, if known."""
    sheets = published.read("datasheets.csv")
    lines = [line for line in sheets if model_name(line["device"]) == model_name(chip)]
    texts = {name: [line[f"{name}_tflops"] for line in lines] for name in ("fp32", "tf32", "half")}
    return {
        name: 1e12 * max(float(x or 0) for x in each) for name, each in texts.items() if any(each)
    }


def model_name(name: str) -> str:
    """Return `a100` for `NVIDIA A100-SXM4-80GB` and `A100 80 GB SXM`, `m2 max` for `M2 Max GPU`."""
    short = re.sub("Apple |Tesla ", "", cases.short_chip(name))
    return re.sub(r"[ -](GPU|PCI|SXM|\d+ ?GB|\().*", "", short).lower()
