"""Cases over their repeats: mean values with their intervals, and run-to-run variation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from pomology.format import rounded_up
from pomology.measure import epochs, intervals
from pomology.measure.estimate import REPEATS, Estimate
from pomology.results import cases, metrics
from pomology.results.record import Record

EPOCHS = {"epoch_s", "compute_epoch_s", "fit_s", "training_epoch_s"}
LEAST_CLEAN = 2  # repeats without a disturbance, which are then used alone
VARIATION = "between_process_difference"  # the metric of `instrument_check` for it
# Multiple of the measured variation by which 95 % of pairs differ at most (docs/log/2026-11.md).
ALLOWED = 1.9


class Repeats:
    """One case over its repeats, each in a process of its own.

    run: name of its run, "" if it is of one run only. records: of all repeats. first: of the first
    repeat. last: of the last repeat with status `ok`, else of the last one. good: repeat -> values
    by metric, of repeats with status `ok`; they include `metrics.RATIOS`. used: those of `good`
    that nothing disturbed, where these are two or more, else all. left_out: repeat -> flags, of the
    others. in_repeats: metric -> its values in `used`. values: metric -> the mean of these, with
    the interval between them, if none of them lacks it. flags_of: repeat -> flags. flags: of all
    but those that are left out. endings: repeat -> status and reason, of repeats that failed.
    failure: the first of these statuses, "" without any. kind: `cpu` or `gpu`, as requested.
    device: its name in tables. precision: of its matmuls.
    """

    def __init__(self, records: Sequence[Record], run: str = ""):
        succeeded = [record for record in records if record.status == "ok"]
        failed = [record for record in records if record.status != "ok"]
        self.run = run
        self.records = list(records)
        self.first = records[0]
        self.last = (succeeded or records)[-1]
        self.flags_of = {record.repeat: record.flags for record in records}
        self.endings = {record.repeat: (record.status, record.reason or "") for record in failed}
        self.failure = failed[0].status if failed else ""
        self.repeats = len(records)
        self.good_repeats = len(succeeded)
        self.status = "ok" if succeeded else self.last.status
        self.config = self.first.config
        self.framework = cases.framework_name(self.first.framework)
        self.kind = cases.kind(self.first.backend)
        self.device = cases.chip_name(self.first)
        self.precision = cases.precision(self.first)
        self.good: dict[int, dict[str, Estimate]] = {}
        self.in_repeats: dict[str, list[Estimate]] = {}
        for record in succeeded:
            # In each process, before the mean: both parts of a ratio have its disturbances.
            values = dict(record.metrics) | plain_step(record)
            for name in EPOCHS & values.keys():  # older journals have ranges that nobody saw
                values[name] = epochs.without_range(values[name])
            for name, (part, whole) in metrics.RATIOS.items():
                if not {part, whole} <= values.keys():
                    continue
                # Few steps may vary by more than all loading takes; then there is no share.
                if name != "compute_share" or values[part].value <= values[whole].value:
                    values[name] = values[part] / values[whole]
            self.good[record.repeat] = values
        self.used = self._undisturbed()
        self.left_out = {
            repeat: self.flags_of[repeat] for repeat in self.good if repeat not in self.used
        }
        flags = [flags for repeat, flags in self.flags_of.items() if repeat not in self.left_out]
        self.flags = sorted({flag for of_repeat in flags for flag in of_repeat})
        for values in self.used.values():
            for metric, value in values.items():
                self.in_repeats.setdefault(metric, []).append(value)
        self.values = {
            metric: mean_of_repeats(values)
            for metric, values in self.in_repeats.items()
            if len(values) == len(self.used)  # else it would be of other processes than the rest
        }

    @property
    def note(self) -> str:
        """What all repeats that went well have noted: a number of one of them is of no other."""
        noted = [
            (record.note or "").split("; ") for record in self.records if record.status == "ok"
        ]
        parts = noted[-1] if noted else (self.last.note or "").split("; ")
        return "; ".join(part for part in parts if all(part in other for other in noted))

    def _undisturbed(self) -> dict[int, dict[str, Estimate]]:
        """Return the values of the repeats that nothing disturbed, or of all if that is only one.

        The mean with a disturbed one would be a time that no process took.
        """
        clean = {
            repeat: values
            for repeat, values in self.good.items()
            if cases.DISTURBED.isdisjoint(self.flags_of[repeat])
        }
        return clean if len(clean) >= LEAST_CLEAN else self.good


def plain_step(record: Record) -> dict[str, Estimate]:
    """Return the mean seconds of plain steps that alternate with a feature's, if it has some."""
    blocks = record.steady("reference")
    if not blocks:
        return {}
    count = sum(steps for steps, _ in blocks)
    seconds = sum(block_s for _, block_s in blocks) / count
    return {"plain_step_s": Estimate(seconds, "s", n=count, covers="none")}


def pool(records: Iterable[Record], run: str = "") -> list[Repeats]:
    """Return the cases of a run's records, in order of first appearance. run: its name."""
    by_case: dict[tuple[str, str], dict[int, Record]] = {}
    for record in records:
        by_case.setdefault((record.experiment, record.case), {})[record.repeat] = record
    return [Repeats([*repeats.values()], run) for repeats in by_case.values()]


def speed_ratio(case: Repeats, other: Repeats, metric: str) -> Estimate | None:
    """Return a case's speed relative to another in a metric of seconds, process by process."""
    ratios = [
        other.used[repeat][metric] / values[metric]
        for repeat, values in case.used.items()
        if metric in values and metric in other.used.get(repeat, {})
    ]
    return mean_of_repeats(ratios) if ratios else None


def run_to_run(pooled: Iterable[Repeats]) -> dict[tuple[str, str], float]:
    """Return the run-to-run variation measured by `instrument_check`, by run and kind of device.

    It is a relative difference: 90 % of pairs of single runs of the same training step, each in a
    process of its own, differ by less. `instrument_check` estimates it from timings in fresh
    processes, by Student's t of their logarithms; repeats of the notebook have the geometric mean
    of their estimates. Smoke runs have none, since their steps are too few.
    """
    measured = _with_variation(pooled)
    return {(case.run, case.kind): case.values[VARIATION].value for case in measured}


def _with_variation(pooled: Iterable[Repeats]) -> list[Repeats]:
    """Return the cases that have measured the run-to-run variation."""
    return [case for case in pooled if VARIATION in case.values and case.first.profile != "smoke"]


def run_to_run_by_kind(records: Iterable[Record]) -> dict[str, float]:
    """Return the run-to-run variation of one run by kind of device, see `run_to_run`."""
    checks = [record for record in records if VARIATION in record.metrics]
    return {kind: share for (_, kind), share in run_to_run(pool(checks)).items()}


def variation_text(pooled: Iterable[Repeats]) -> str:
    """Return the run-to-run variation of one run in the words of every page.

    See `run_to_run`. It has two digits, rounded up, so that it stays a bound; of several repeats
    the lowest and the highest value follow.
    """
    texts = []
    for case in _with_variation(pooled):
        of_repeats = sorted(estimate.value for estimate in case.in_repeats[VARIATION])
        share = case.values[VARIATION].value
        text = f"{rounded_up(100 * share)} % on the {case.kind.upper()}"
        if len(of_repeats) > 1:
            ends = [rounded_up(100 * of_repeats[place]) for place in (0, -1)]
            text += f" ({ends[0]} to {ends[1]} % in {len(of_repeats)} repeats)"
        texts.append(text)
    if not texts:
        return "Not measured: the notebook instrument_check measures it, except as a smoke test."
    return (
        f"90 % of pairs of single runs of a step differ by less than {' and '.join(texts)}: "
        "smaller differences between two single runs show nothing."
    )


def allowed(variations: Sequence[float]) -> float:
    """Return the 95th percentile of the factor between two equal single runs.

    variations: `run_to_run` of both machines; their logarithms add in squares.
    """
    return math.exp(ALLOWED * math.sqrt(np.mean(np.log1p(variations) ** 2)))


def mean_of_repeats(estimates: Sequence[Estimate]) -> Estimate:
    """Return the geometric mean over processes, with the interval of the typical process.

    It holds the median process in 93 to 97 % of draws, and the mean one less often if slow ones are
    rare (docs/log/2026-11.md). Processes mostly differ far more than steps within one (Kalibera and
    Jones 2013). A single one keeps its value and interval. Two have the range of both: Student's t
    would be 13 times as wide, and says nothing that the two values do not. If a value may be
    negative, as a slope, the mean is arithmetic.
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
    measured = all(estimate.how == "measured" for estimate in estimates)
    how = "measured" if measured else "estimated"
    if len(estimates) < REPEATS:
        return Estimate(mean, first.unit, min(numbers), max(numbers), values.size, how, "seen")
    return Estimate(mean, first.unit, low, high, values.size, how, "repeats")
