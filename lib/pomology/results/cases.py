"""What records have in common: names, flags, the mean of repeats, a line of text."""

import csv
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from pomology.format import FEW, clock_time, few, seconds, with_interval
from pomology.measure import intervals
from pomology.measure.estimate import Estimate
from pomology.paths import RESOURCES
from pomology.results.record import Record

DEVICES = {"cpu": "CPU", "cuda": "CUDA"}
FRAMEWORKS = {"torch": "PyTorch", "tensorflow": "TensorFlow", "mlx": "MLX"}
# What an autocast or a trainer's own name of a precision computes its products in: `bfloat16`,
# `16-mixed`.
PRECISIONS = {"bf": "bf16", "tf32": "tf32", "16": "fp16", "32": "fp32"}
# The number that a case is about is the first of these that it has.
TIMES = {
    "fit_s": "training",
    "pass_s": "pass",
    "epoch_s": "epoch",
    "step_s": "step",
    "forward_s": "forward",
    "kernel_s": "call",
    "launch_s": "launch",
    "backward_s": "backward",
}
# Those with a doubt leave a number without a verdict. Some are in older journals only.
with (RESOURCES / "flags.csv").open(encoding="utf-8") as file:
    LINES = list(csv.DictReader(file))
FLAGS = {line["flag"]: line["meaning"] for line in LINES}
DOUBTS = {line["flag"] for line in LINES if line["doubt"] == "yes"}
JUDGED_STEPS = 50  # fewer losses than these say nothing about whether a model learns
LEAST_CALLS = 6  # with fewer a time of a call has no interval
ORNAMENTS = ("(R)", "(TM)", "(tm)", " Processor", " CPU", "NVIDIA ", "GeForce ")


def config_text(config: dict) -> str:
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in config.items())


def settings(record: Record) -> str:
    return config_text(record.config)


def short_chip(chip: str | None) -> str:
    """`AMD EPYC 7B13`: the processor or GPU without its maker's ornaments."""
    name = chip or "this machine"
    for ornament in ORNAMENTS:
        name = name.replace(ornament, "")
    return name.split(" @ ")[0].strip()


def chip_word(chip: str | None) -> str:
    """`amd-epyc-7b13`: the short name in that of a file."""
    return re.sub("[^a-z0-9]+", "-", short_chip(chip).lower()).strip("-")[:40] or "machine"


def chip_name(record: Record) -> str:
    """`AMD EPYC 7B13 CPU`: the short name, and which device trained."""
    return f"{short_chip(record.chip)} {DEVICES.get(record.backend, 'GPU')}"


def framework_name(case: Any) -> str:
    """`PyTorch`: of a record, or of whatever else has a framework."""
    return FRAMEWORKS.get(case.framework, case.framework)


def with_software(device: str, framework: str, version: str, year: str) -> str:
    """`M1 Ultra GPU (PyTorch 1.12.0, 2022)`: a device, and what is known of its software."""
    name = framework.partition(" ")[0].replace("pytorch", "torch")
    name = FRAMEWORKS.get(name, name)
    known = ", ".join(filter(None, (f"{name} {version.partition('+')[0]}".strip(), year)))
    return f"{device} ({known})" if known else device


def kind(record: Record) -> str:
    """`cpu` or `gpu`: the device that was asked for."""
    return kind_of(record.backend)


def kind_of(backend: str) -> str:
    return "cpu" if backend == "cpu" else "gpu"


def precision(record: Record) -> str:
    """The precision of a case's products, of `16-mixed` or `autocast bf16` the half precision."""
    text = str(record.precision).lower()
    return next((name for part, name in PRECISIONS.items() if part in text), text)


def headline(record: Record) -> str:
    """The name of the metric that a case is about; empty for a case without a time."""
    return next((name for name in TIMES if name in record.metrics), "")


def line(record: Record) -> str:
    """A finished case in one line: what it is about, its loss, remarks and flags."""
    metrics = record.metrics
    about = f"{record.backend}, {settings(record)}" if record.config else record.case
    parts = [f"{record.experiment}: {about}"]
    if record.status != "ok":
        parts.append(f"{record.status} ({record.reason})" if record.reason else record.status)
    else:
        # A loop with a throughput has as many steps as it was told to, and no epochs.
        name = "step_s" if {"throughput", "step_s"} <= metrics.keys() else headline(record)
        if name:
            how = "" if metrics[name].how == "measured" else f" {metrics[name].how}"
            parts.append(f"{TIMES[name]} {with_interval(metrics[name], seconds)}{how}")
    ends = [metrics[name] for name in ("loss_first", "loss_last") if name in metrics]
    if ends:
        parts.append(f"loss {' → '.join(f'{end.value:.4g}' for end in ends)}")
    parts += [record.note, ", ".join(record.flags)]
    if record.seconds is not None:
        parts.append(f"took {clock_time(record.seconds)}")
    return " · ".join(filter(None, parts))


def together(repeats: Sequence[Estimate], counted: Sequence[Estimate] = ()) -> Estimate | None:
    """The mean of repeats with the interval between them; None of none.

    It has no interval where a repeat, and what it counts, rests on too few steps or calls.
    """
    if not repeats:
        return None
    pairs = zip(repeats, counted or repeats, strict=True)
    lacking = [each.n for each, steps in pairs if few(each) and (steps.n or FEW) < FEW]
    mean = mean_of_repeats(repeats)
    return mean.replace(low=None, high=None, n=min(lacking), covers="none") if lacking else mean


def mean_of_repeats(estimates: Sequence[Estimate]) -> Estimate:
    """Return one number of several processes: the geometric mean with the interval between them.

    Processes mostly differ far more than the steps inside one (Kalibera and Jones 2013, "Rigorous
    benchmarking in reasonable time"). Of one process it is the number itself. Where a value is 0
    or less (as of swap, which may shrink), the mean is the arithmetic one.
    """
    first = estimates[0]
    if len(estimates) == 1:
        return first
    numbers = [estimate.value for estimate in estimates]
    geometric = min(numbers) > 0
    values = np.log(numbers) if geometric else np.asarray(numbers, dtype=float)
    mean = float(values.mean())
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    half = intervals.t_quantile(intervals.CONFIDENCE, len(values) - 1) * error
    value, low, high = mean, mean - half, mean + half
    if geometric:
        value, low, high = exp(value), exp(low), exp(high)
    if min(numbers) == max(numbers):  # without the rounding of logarithms
        value = low = high = first.value
    if min(numbers) >= 0:  # as of counts
        low = max(low, 0.0)
    measured = all(estimate.how == "measured" for estimate in estimates)
    how = "measured" if measured else "estimated"
    return Estimate(value, first.unit, low, high, len(values), how, "repeats")


def exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf  # larger than any float
