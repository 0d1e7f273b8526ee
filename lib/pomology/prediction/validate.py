"""How wrong predictions are: each device, and each workload, left out of the fit that predicts it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pomology.prediction.model import Model, Observed, Stack, effects, fit

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
    names, step_s = np.array([group(one) for one in observed]), np.array([one.step_s for one in observed])
    marks = [keys(one) if keys else () for one in observed]
    stack, logs = Stack([one.work for one in observed]), np.full(len(observed), np.nan)
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


def by_device(one: Observed) -> str:
    return one.device.name


def by_workload(one: Observed) -> str:
    return one.workload


def of_both(one: Observed) -> tuple:
    """A device, with and without matrix units, and a source likewise: its software and its way to time."""
    units = one.precision != "fp32"
    return (one.device.name, (one.device.name, units), one.source, (one.source, units))


def baselines(observed: Sequence[Observed]) -> list[Errors]:
    """The roofline and operations alone, with every share 1; and operations alone, scaled by each other workload of a
    device in the same precision, in turn: one calibrating run."""
    step_s, stack = np.array([one.step_s for one in observed]), Stack([one.work for one in observed])
    roof = np.log(step_s / stack.parts(np.array([1.0] * 6 + [0.0])).sum(1))
    alone = np.log(step_s / stack.all[:, :, 1].sum(1))
    pairs = []
    for place, one in enumerate(observed):
        for other, run in enumerate(observed):
            same = (run.device.name, run.precision) == (one.device.name, one.precision)
            if same and run.workload != one.workload:
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
    step_s, stack = np.array([one.step_s for one in observed]), Stack([one.work for one in observed])
    shares = fit(stack, step_s)
    shift = float(np.median(np.log(step_s / stack.parts(shares).sum(1))))
    errors = left_out(observed, by_device, None, "")
    low, high = np.percentile(errors.logs, INTERVAL)
    return Model(shares, shift, (float(low), float(high)))


def failures(observed: Sequence[Observed], errors: Errors) -> list[dict]:
    """Where predictions fail: the errors of small batches, old software, depthwise convolutions, and each precision."""
    kinds: dict[str, Callable[[Observed], bool]] = {
        "batch of 1 to 8": lambda one: one.batch <= 8,
        "batch of 9 to 63": lambda one: 8 < one.batch < 64,
        "batch of 64 and more": lambda one: one.batch >= 64,
        "published before 2020": lambda one: one.year < "2020",
        "published since 2020": lambda one: one.year >= "2020",
        "fp32 without matrix units": lambda one: one.precision == "fp32",
        "TF32": lambda one: one.precision == "tf32",
        "fp16, bf16, mixed": lambda one: one.precision == "half",
        "MobileNet, MNASNet": lambda one: one.workload in ("mobilenet_v2", "mnasnet1_0"),
        "Apple GPUs": lambda one: one.device.backend == "mps",
        "AMD's GPUs": lambda one: one.device.name.startswith(("MI", "Radeon")),
    }
    rows = []
    for name, chosen in kinds.items():
        here = np.array([chosen(one) for one in observed])
        if here.any():
            rows.append(Errors(name, errors.logs[here], errors.covered[here]).row())
    return rows
