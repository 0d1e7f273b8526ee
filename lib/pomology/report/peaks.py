"""Measured peaks of a run: the highest rates of single operators, and shares of them."""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pomology.articles import devices
from pomology.errors import PomologyError
from pomology.measure.estimate import Estimate
from pomology.results import cases, metrics
from pomology.results.record import Record

DENSE = ("matmul", "vjp", "convolution")  # compute-bound operators, which measure peak FLOP/s
TOO_FAST = 1.5  # times the peak; Winograd convolutions need fewer operations than are counted
SHARE = "share_of_best"  # metric: share of this machine's measured peak
BEST = metrics.words(SHARE)
SHEET = "share_of_sheet"  # metric: share of the data sheet's peak, which is called MFU


class Peak(NamedTuple):
    """A measured peak, and the record of the case that reached it."""

    rate: Estimate
    record: Record


Peaks = dict[tuple[str, str], Peak]  # by device kind, `cpu` or `gpu`, and precision or traffic


def best(
    records: Iterable[Record],
    metric: str = "flops_per_s",
    group: Callable[[Record], str] = cases.precision,
    memory_bound: bool = False,
) -> Peaks:
    """Return the peaks among the cases that time one operator (with a setting `operation`).

    A rate is that of the fastest timing block, as in STREAM, or the median without raw times.
    group: returns the precision or traffic of a case, or "" to exclude it, as smoke tests are.
    memory_bound: whether the FLOP/s of memory-bound operators count, too.
    """
    peaks: Peaks = {}
    for record in records:
        operation = record.config.get("operation")
        counts = operation in DENSE or memory_bound or metric != "flops_per_s"
        timed = metric in record.metrics and counts
        sound = record.status == "ok" and "too-fast" not in record.flags
        if not (operation and timed and sound) or record.profile == "smoke":
            continue
        rate = record.metrics[metric]
        call = record.metrics.get("kernel_s")
        steady = record.steady("kernel_s")
        calls_s = [seconds / calls for calls, seconds in steady if calls and seconds]
        # The recorded rate is that of the median call.
        if call and calls_s:
            fastest = rate.value * call.value / min(calls_s)
            rate = Estimate(fastest, rate.unit, n=len(calls_s), covers="exact")
        kind, name = cases.kind(record.backend), group(record)
        if name and ((kind, name) not in peaks or rate.value > peaks[kind, name].rate.value):
            peaks[kind, name] = Peak(rate, record)
    return peaks


def has_share(case: Any) -> bool:
    """Return whether a case, a `Repeats`, has a share of the peak.

    The rate of a memory-bound operator may exceed that of a small matrix product, and says nothing
    of arithmetic; one that is too fast is no rate.
    """
    dense = case.config.get("operation", "") in ("", *DENSE)
    return "flops_per_s" in case.values and dense and "too-fast" not in case.flags


def limit(records: Iterable[Record], kind: str, chip: str, precision: str) -> float:
    """Return the FLOP/s above which a device's result is implausible; infinity if unknown.

    The limit is 1.5 times the higher of the data sheet's peak and the peak that `records` of a run
    measured. fp32 may be computed as TF32, and autocast in any precision.
    """
    return limit_of(best_of_sound(records), kind, chip, precision)


def best_of_sound(records: Iterable[Record], *chosen: Any) -> Peaks:
    """Return the peaks among the cases without a doubtful flag. chosen: arguments of `best`."""
    sound = (record for record in records if not cases.DOUBTS.intersection(record.flags))
    return best(sound, *chosen)


def limit_of(peaks: Peaks, kind: str, chip: str, precision: str) -> float:
    """Return `limit` by measured peaks, those of `best_of_sound`."""
    names = ("fp32", "tf32") if precision == "fp32" else ("fp32", "tf32", "fp16", "bf16", "half")
    rates = [peaks[kind, name].rate.value for name in names if (kind, name) in peaks]
    if kind == "gpu":
        sheet = data_sheet(chip)
        rates += [sheet[name] for name in names if name in sheet]
    return TOO_FAST * max(rates, default=math.inf)


def own_sheet(
    case: Any, gpus: Sequence[Mapping[str, Any]], true_fp32: bool = False
) -> float | None:
    """Return the peak FLOP/s of the data sheet for a case on a GPU; None where it is not clear.

    gpus: the machine's, from `snapshot.gpus`, which tell sizes of one chip from each other. A GPU
    with TF32 may compute some of fp32 in it, so there is no one peak for fp32, unless `true_fp32`
    says that TF32 is off.
    """
    chip = case.first.chip or ""
    if case.kind != "gpu" or not chip:
        return None
    try:
        device = devices.resolve(chip, devices.with_data_sheet(), gpus).name
    except PomologyError:
        return None
    if devices.parse(device).cores not in (None, *(gpu.get("cores") for gpu in gpus)):
        return None
    line = devices.sheets()[device]
    precision = {"fp16": "half", "bf16": "half"}.get(case.precision, case.precision)
    as_tf32 = tf32_bound(line) and not true_fp32 and case.config.get("tf32") != "off"
    if precision == "fp32" and as_tf32:
        return None
    tflops = line.get(f"{precision}_tflops")
    return 1e12 * float(tflops) if tflops else None


def tf32_bound(line: Mapping[str, str]) -> str:
    """Return the TFLOP/s that TF32 cannot exceed by a line of datasheets.csv, "" without TF32.

    No source has the TF32 rate of an M5, which computes it in its matrix units; their rate in half
    precision bounds it.
    """
    units = line["maker"] == "apple" and float(line["half_tflops"]) > float(line["fp32_tflops"])
    return line["half_tflops"] if units else line["tf32_tflops"]


@functools.cache
def data_sheet(chip: str) -> dict[str, float]:
    """Return the highest peak FLOP/s of a GPU's variants by `fp32`, `tf32` and `half`, if known."""
    variants = devices.variants(chip, devices.with_data_sheet())
    lines = [devices.sheets()[name] for name in variants]
    peaks = {}
    for precision in ("fp32", "tf32", "half"):
        tf32 = precision == "tf32"
        texts = [tf32_bound(line) if tf32 else line[f"{precision}_tflops"] for line in lines]
        tflops = [float(text) for text in texts if text]
        if tflops:
            peaks[precision] = 1e12 * max(tflops)
    return peaks
