"""Cases over their repeats: names, flags, mean values and intervals, as tables show them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pomology.format import clock_time, seconds, with_interval
from pomology.measure import intervals
from pomology.measure.estimate import Estimate
from pomology.paths import RESOURCES, read_csv
from pomology.results import metrics
from pomology.results.record import Record

if TYPE_CHECKING:
    import pandas

DEVICES = {"cpu": "CPU", "cuda": "CUDA"}
FRAMEWORKS = {"torch": "PyTorch", "tensorflow": "TensorFlow", "mlx": "MLX"}
# Part of a trainer's name, such as `bfloat16` or `16-mixed` -> precision of matmuls.
PRECISIONS = {"bf": "bf16", "tf32": "tf32", "16": "fp16", "32": "fp32"}
# A case's main metric is the first of these that it has.
TIMES = {"fit_s": "training", "pass_s": "pass", "epoch_s": "epoch", "step_s": "step"}
TIMES |= {"forward_s": "forward", "kernel_s": "call", "launch_s": "launch"}
TIMES |= {"backward_s": "backward"}
# A flag of `DOUBTS` leaves a number without a verdict. Some flags are in older journals only.
FLAG_ROWS = read_csv(RESOURCES / "flags.csv")
FLAGS = {row["flag"]: row["meaning"] for row in FLAG_ROWS}
DOUBTS = {row["flag"] for row in FLAG_ROWS if row["doubt"] == "yes"}
JUDGED_STEPS = 50  # fewer losses do not show whether a model learns
LEAST_CALLS = 6  # with fewer, the time of a call has no interval
# Multiple of the measured variation by which 95 % of pairs differ at most (docs/log/2026-11.md).
ALLOWED = 1.9
# Parts of a chip's name that add nothing: trademarks, makers and the clock.
REDUNDANT = re.compile(r"\((R|TM|tm)\)| Processor| CPU|NVIDIA |GeForce | @ .*")


def config_text(config: dict) -> str:
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in config.items())


def short_chip(chip: str | None) -> str:
    """Return a chip's short name, such as `AMD EPYC 7B13`."""
    return REDUNDANT.sub("", chip or "this machine").strip()


def chip_word(chip: str | None) -> str:
    """Return a chip's short name for file names, such as `amd-epyc-7b13`."""
    return re.sub("[^a-z0-9]+", "-", short_chip(chip).lower()).strip("-")[:40] or "machine"


def chip_name(record: Record) -> str:
    """Return a record's chip and device, such as `AMD EPYC 7B13 CPU`."""
    return f"{short_chip(record.chip)} {DEVICES.get(record.backend, 'GPU')}"


def framework_name(framework: str) -> str:
    """Return a framework's official name, such as `PyTorch` for `torch`."""
    return FRAMEWORKS.get(framework, framework)


def with_software(row: dict[str, Any]) -> str:
    """Return the device of a row with its known software: `M1 Ultra GPU (PyTorch 1.12.0, 2022)`."""
    if not row["device"]:
        return "the article"
    name = framework_name(row["framework"].partition(" ")[0].replace("pytorch", "torch"))
    version = row["framework_version"].partition("+")[0]
    known = ", ".join(filter(None, (f"{name} {version}".strip(), str(row["year"]))))
    return f"{row['device']} ({known})" if known else row["device"]


def kind(backend: str) -> str:
    """Return `cpu` or `gpu`, the requested kind of device."""
    return "cpu" if backend == "cpu" else "gpu"


def precision(record: Record) -> str:
    """Return the precision of a case's matmuls; half for `16-mixed` and `autocast bf16`."""
    text = str(record.precision).lower()
    return next((name for part, name in PRECISIONS.items() if part in text), text)


def headline(record: Record) -> str:
    """Return the name of a case's main metric; "" for a case without a time."""
    return next((name for name in TIMES if name in record.metrics), "")


def line(record: Record) -> str:
    """Return a finished case in one line: main metric, loss, notes and flags."""
    metrics = record.metrics
    about = f"{record.backend}, {config_text(record.config)}" if record.config else record.case
    parts = [f"{record.experiment}: {about}"]
    # A loop with a throughput has a fixed number of steps, and no epochs.
    name = "step_s" if {"throughput", "step_s"} <= metrics.keys() else headline(record)
    if record.status != "ok":
        parts.append(f"{record.status} ({record.reason})" if record.reason else record.status)
    elif name:
        how = "" if metrics[name].how == "measured" else f" {metrics[name].how}"
        parts.append(f"{TIMES[name]} {with_interval(metrics[name], seconds)}{how}")
    ends = [f"{metrics[name].value:.4g}" for name in ("loss_first", "loss_last") if name in metrics]
    if ends:
        parts.append(f"loss {' → '.join(ends)}")
    parts += [record.note, ", ".join(record.flags)]
    if record.seconds is not None:
        parts.append(f"took {clock_time(record.seconds)}")
    return " · ".join(filter(None, parts))


class Case:
    """One case over its repeats.

    first: columns of its first repeat. last: columns of the last repeat with status `ok`, else of
    the last one. good: repeat -> values by metric, of repeats with status `ok`; they include
    `metrics.RATIOS`. each: metric -> its values in `good`. values: metric -> the mean of these,
    with the interval between them. flags_of: repeat -> flags. endings: repeat -> status and reason,
    of the other repeats. kind: `cpu` or `gpu`, as requested.
    """

    def __init__(self, repeats: list[list[dict[str, Any]]]):
        """repeats: the rows of a frame for each repeat, one per metric."""
        firsts = [rows[0] for rows in repeats]
        well = [rows for rows in repeats if rows[0]["status"] == "ok"]
        failed = [row for row in firsts if row["status"] != "ok"]
        self.first = firsts[0]
        self.last = (well or repeats)[-1][0]
        self.flags_of = {row["repeat"]: (row["flags"] or "").split() for row in firsts}
        self.endings = {row["repeat"]: (row["status"], row["reason"] or "") for row in failed}
        self.repeats = len(repeats)
        self.good_repeats = len(well)
        self.flags = sorted({flag for flags in self.flags_of.values() for flag in flags})
        self.status = "ok" if well else self.last["status"]
        self.config = self.first["config"]
        self.framework = framework_name(self.first["framework"])
        self.kind = kind(self.first["backend"])
        fields = Estimate.__struct_fields__
        self.good: dict[int, dict[str, Estimate]] = {}
        self.each: dict[str, list[Estimate]] = {}
        for rows in well:
            timed = [row for row in rows if row["metric"]]
            values = {row["metric"]: Estimate(*map(row.get, fields)) for row in timed}
            self.good[rows[0]["repeat"]] = values
            for name, (part, whole) in metrics.RATIOS.items():
                if {part, whole} <= values.keys():
                    values[name] = values[part] / values[whole]
            for metric, value in values.items():
                self.each.setdefault(metric, []).append(value)
        self.values = {metric: mean_of_repeats(found) for metric, found in self.each.items()}


def speed_ratio(case: Case, other: Case, metric: str) -> Estimate | None:
    """Return a case's speed relative to another in a metric of seconds, process by process."""
    ratios = [
        other.good[repeat][metric] / values[metric]
        for repeat, values in case.good.items()
        if metric in values and metric in other.good.get(repeat, {})
    ]
    return mean_of_repeats(ratios) if ratios else None


def run_to_run(found: Iterable[Case]) -> dict[tuple[str, str], float]:
    """Return the run-to-run variation measured by `instrument_check`, by run and kind of device.

    It is the 90th percentile of the relative difference between two runs.
    """
    name = "between_process_difference"
    measured = [case for case in found if name in case.values]
    return {(case.first["run"], case.kind): case.values[name].value for case in measured}


def allowed(variations: Sequence[float]) -> float:
    """Return the 95th percentile of the factor between two equal single runs.

    variations: `run_to_run` of both machines; their logarithms add in squares.
    """
    return math.exp(ALLOWED * math.sqrt(np.mean(np.log1p(variations) ** 2)))


def pool(frame: pandas.DataFrame) -> list[Case]:
    """Return the cases of a frame, in order of first appearance."""
    found: dict[tuple, dict[int, list[dict]]] = {}
    for row in frame.astype(object).where(frame.notna(), None).to_dict("records"):
        row["config"] = json.loads(row["config"])
        case = (row["run"], row["experiment"], row["case"])
        found.setdefault(case, {}).setdefault(row["repeat"], []).append(row)
    return [Case(list(repeats.values())) for repeats in found.values()]


def mean_of_repeats(estimates: Sequence[Estimate]) -> Estimate:
    """Return the geometric mean over processes, with the interval between them.

    Processes mostly differ far more than steps within one (Kalibera and Jones 2013). A single one
    keeps its value and interval. If a value may be negative, as a slope, the mean is arithmetic.
    """
    first = estimates[0]
    if len(estimates) == 1:
        return first
    numbers = [estimate.value for estimate in estimates]
    lows = [estimate.low for estimate in estimates if estimate.low is not None]
    geometric = min(numbers) > 0 and min(lows, default=0) >= 0
    values = np.log(numbers) if geometric else np.asarray(numbers, dtype=float)
    error = values.std(ddof=1) / math.sqrt(values.size)
    half = intervals.t_quantile(intervals.CONFIDENCE, values.size - 1) * error
    ends = values.mean() + half * np.array([0, -1, 1])
    with np.errstate(over="ignore"):  # a bound may exceed the largest float
        mean, low, high = map(float, np.exp(ends) if geometric else ends)
    if min(numbers) == max(numbers):  # avoid the rounding of logarithms
        mean = low = high = first.value
    if min([*numbers, *lows]) >= 0:  # counts cannot be negative
        low = max(low, 0.0)
    how = "measured" if {each.how for each in estimates} == {"measured"} else "estimated"
    return Estimate(mean, first.unit, low, high, values.size, how, "repeats")
