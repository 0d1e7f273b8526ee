"""How wrong predictions are: each device, and each workload, left out of the fit that predicts it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pomology.extras.prediction.model import Model, Observed, Stack, alike, fit, left_out, span


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
        return {"name": self.name, "n": int(ok.sum()), **{k: float(v) for k, v in numbers.items()}, "covered": covered}


def baselines(observed: Sequence[Observed]) -> list[Errors]:
    """The roofline and operations alone, with every share 1; and operations alone, scaled by each other workload of a
    device in the same precision, in turn: one calibrating run."""
    stack = Stack(observed)
    alone, pairs = np.log(stack.step_s / stack.all[:, :, 2].sum(1)), []
    for place, seen in enumerate(observed):
        for other, run in enumerate(observed):
            same = (run.device.name, run.precision) == (seen.device.name, seen.precision)
            if same and run.workload != seen.workload:
                pairs.append(alone[place] - alone[other])
    named = ("the roofline alone", stack.left(np.array([1.0] * 8 + [0.0, 1.0]))), ("operations alone", alone)
    return [*(Errors(name, logs) for name, logs in named), Errors("one calibrating run", np.array(pairs))]


def validation(observed: Sequence[Observed]) -> list[Errors]:
    """Every way to predict, the best informed last."""
    ways = [("device left out", "device.name", ""), ("device left out, source known", "device.name", "source")]
    ways += [("workload left out", "workload", ""), ("workload left out, device known", "workload", "device.name")]
    return [*baselines(observed), *(Errors(name, *left_out(observed, group, known)) for name, group, known in ways)]


def kept_back(seen: Sequence[Observed], model: Model, name: str) -> Errors:
    """Times that nothing was fitted to, by a model and its interval."""
    logs = np.array([Stack([each]).left(model.on(each.device).shares)[0] for each in seen])
    return Errors(name, logs, (model.spread[0] <= logs) & (logs <= model.spread[1]))


def of_device(seen: Sequence[Observed], model: Model, name: str) -> Errors:
    """The times of one device, each calibrated on its others of other workloads, as `Model.calibrated` does."""
    shares = model.on(seen[0].device).shares
    return Errors(name, *left_out(seen, "workload", "device.name", shares, model.spread))


def fitted(observed: Sequence[Observed]) -> Model:
    """What predicts a device that has no measured times: fitted to all, its interval from devices left out."""
    logs, inside = left_out(observed, "device.name")
    low, high = span(logs, alike([seen.device.name for seen in observed])).tolist()
    return Model(fit(Stack(observed)), (low, high), len(observed), float(inside.mean()))


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
    chosen = {name: np.array([of(seen) for seen in observed]) for name, of in KINDS.items()}
    return [Errors(name, errors.logs[here], errors.covered[here]) for name, here in chosen.items() if here.any()]
