"""How wrong predictions are: each device, and each workload, left out of the fit that predicts it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pomology.prediction import rates
from pomology.prediction.model import Model, Observed, Prediction, Stack, effects, fit
from pomology.prediction.operators import Operator
from pomology.results import cases
from pomology.results.record import Record

INTERVAL = (5, 95)  # percentiles


class Errors(NamedTuple):
    """logs: measured over predicted, by observation. covered: by the interval from the others; None without one."""

    name: str
    logs: np.ndarray
    covered: np.ndarray | None = None

    def row(self) -> dict:
        """Median error, mean error, share within 30 %, and share that the 90 % interval covers; 1 is all."""
        off = np.abs(np.expm1(-self.logs))  # of predicted, over measured
        ok = np.isfinite(off)
        numbers = {"median": np.median(off[ok]), "mean": off[ok].mean(), "within_30": (off[ok] <= 0.3).mean()}
        covered = None if self.covered is None else float(self.covered[ok].mean())
        return (
            {"name": self.name, "n": int(ok.sum())} | {k: float(v) for k, v in numbers.items()} | {"covered": covered}
        )


def left_out(
    observed: Sequence[Observed], group: Callable[[Observed], str], keys: Callable | None, name: str
) -> Errors:
    """Each group predicted from the others: the shares fitted again, and the effects of `keys` (none: one for all).

    The interval is from residuals that were left out too: the others' in the same way, a group at a time.
    """
    names, step_s = np.array([group(seen) for seen in observed]), np.array([seen.step_s for seen in observed])
    marks = [keys(seen) if keys else () for seen in observed]
    stack, logs = Stack([seen.work for seen in observed]), np.full(len(observed), np.nan)
    for each in np.unique(names):
        out = names == each
        some = _part(stack, ~out)
        shares = fit(some, step_s[~out])
        left = np.log(step_s / stack.parts(shares).sum(1))
        if keys:
            inside = [mark for mark, gone in zip(marks, out, strict=True) if not gone]
            known = effects(left[~out], inside).of([mark for mark, gone in zip(marks, out, strict=True) if gone])
        else:
            known = np.median(left[~out])
        logs[out] = left[out] - known
    covered = np.zeros(len(logs), bool)
    for each in np.unique(names):
        out = names == each
        low, high = np.percentile(logs[~out], INTERVAL)
        covered[out] = (logs[out] >= low) & (logs[out] <= high)
    return Errors(name, logs, covered)


def _part(stack: Stack, chosen: np.ndarray) -> Stack:
    part = Stack.__new__(Stack)
    part.all = stack.all[chosen]
    return part


def by_device(seen: Observed) -> str:
    return seen.device.name


def by_workload(seen: Observed) -> str:
    return seen.workload


def of_both(seen: Observed) -> tuple:
    """A device, with and without matrix units, and a source likewise: its software and its way to time."""
    units = seen.precision != "fp32"
    return (seen.device.name, (seen.device.name, units), seen.source, (seen.source, units))


def baselines(observed: Sequence[Observed]) -> list[Errors]:
    """The roofline and operations alone, with every share 1; and operations alone, scaled by each other workload of a
    device in the same precision, in turn: one calibrating run."""
    step_s, stack = np.array([seen.step_s for seen in observed]), Stack([seen.work for seen in observed])
    roof = np.log(step_s / stack.parts(np.array([1.0] * 6 + [0.0])).sum(1))
    alone = np.log(step_s / stack.all[:, :, 1].sum(1))
    pairs = []
    for place, seen in enumerate(observed):
        for other, run in enumerate(observed):
            same = (run.device.name, run.precision) == (seen.device.name, seen.precision)
            if same and run.workload != seen.workload:
                pairs.append(alone[place] - alone[other])
    named = ("the roofline alone", roof), ("operations alone", alone)
    return [*(Errors(name, logs) for name, logs in named), Errors("one calibrating run", np.array(pairs))]


def validation(observed: Sequence[Observed]) -> list[Errors]:
    """Every way to predict, the best informed last."""
    ways = [("device left out", by_device, None), ("device left out, source known", by_device, of_both)]
    ways += [("workload left out", by_workload, None), ("workload left out, device known", by_workload, of_both)]
    return [*baselines(observed), *(left_out(observed, group, keys, name) for name, group, keys in ways)]


def fitted(observed: Sequence[Observed]) -> Model:
    """What predicts a device that has no measured times: fitted to all, its interval from devices left out."""
    step_s, stack = np.array([seen.step_s for seen in observed]), Stack([seen.work for seen in observed])
    shares = fit(stack, step_s)
    shift = float(np.median(np.log(step_s / stack.parts(shares).sum(1))))
    errors = left_out(observed, by_device, None, "")
    low, high = np.percentile(errors.logs, INTERVAL)
    return Model(shares, shift, (float(low), float(high)), len(observed), errors.row()["covered"])


# Groups of times in which predictions differ.
KINDS: dict[str, Callable[[Observed], bool]] = {
    "batch of 1 to 8": lambda seen: seen.batch <= 8,
    "batch of 9 to 63": lambda seen: 8 < seen.batch < 64,
    "batch of 64 and more": lambda seen: seen.batch >= 64,
    "published before 2020": lambda seen: seen.year < "2020",
    "published since 2020": lambda seen: seen.year >= "2020",
    "fp32 without matrix units": lambda seen: seen.precision == "fp32",
    "TF32": lambda seen: seen.precision == "tf32",
    "fp16, bf16, mixed": lambda seen: seen.precision == "half",
    "MobileNet, MNASNet": lambda seen: seen.workload in ("mobilenet_v2", "mnasnet1_0"),
    "Apple GPUs": lambda seen: seen.device.backend == "mps",
    "AMD's GPUs": lambda seen: seen.device.name.startswith(("MI", "Radeon")),
}


def by_kind(observed: Sequence[Observed], errors: Errors) -> list[Errors]:
    """The errors of small batches, old software, depthwise convolutions, and each precision; none of an empty group."""
    made = []
    for name, chosen in KINDS.items():
        here = np.array([chosen(seen) for seen in observed])
        if here.any():
            made.append(Errors(name, errors.logs[here], errors.covered[here]))
    return made


def failures(observed: Sequence[Observed], errors: Errors) -> list[dict]:
    """Where predictions fail, a row for each of KINDS."""
    return [each.row() for each in by_kind(observed, errors)]


def counted(record: Record, device: rates.Device, model: Model) -> Prediction | None:
    """A step in fp32 from the sums of operations and bytes that a record keeps, so of two operators, with no launch;
    None where it keeps none."""
    if cases.precision(record) != "fp32" or not (record.flops_per_step and record.bytes_per_step):
        return None
    whole = [Operator("product", record.flops_per_step, 0, 0, 0)]
    whole.append(Operator("elementwise", 0, record.bytes_per_step, 0, 0))
    return model.predict(whole, device)


def of_run(records: Sequence[Record], run: str, model: Model) -> list[tuple[Record, float, float]]:
    """Cases of a run that were timed, with seconds of a step as measured and as predicted from the run's own ceilings,
    as `counted` has them."""
    devices, made = rates.measured_devices(records, run), []
    for record in records:
        device, step = devices.get(cases.kind(record)), record.metrics.get("step_s")
        asked = record.status == "ok" and record.framework == "torch"
        if device and step and asked and (prediction := counted(record, device, model)):
            made.append((record, step.value, prediction.step_s.value))
    return made
