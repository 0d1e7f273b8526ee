"""How wrong predictions are: each device, or workload, left out of the fit that predicts it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from pomology.extras.prediction.model import Model, Stack, Times, left_out
from pomology.report.table import Table

COLUMNS = ("Prediction", "n", "Median error", "Mean error", "Within 30 %", "In the 90 % interval")


class Errors(NamedTuple):
    """Logarithms of measured over predicted; covered: whether each is in its interval."""

    name: str
    logs: np.ndarray
    covered: np.ndarray | None = None

    def row(self) -> dict[str, float]:
        """Return the errors of predicted over measured: 1 is 100 %."""
        errors = np.abs(np.expm1(-self.logs))
        covered = None if self.covered is None else float(self.covered.mean())
        return {
            "n": len(errors),
            "median": float(np.median(errors)),
            "mean": float(errors.mean()),
            "within_30": float((errors <= 0.3).mean()),
            "covered": covered,
        }

    def part(self, name: str, chosen: Sequence[bool]) -> Errors:
        """Return the errors of a group of times."""
        place = np.array(chosen)
        return Errors(name, self.logs[place], self.covered[place])


def table(title: str, groups: Sequence[Errors]) -> Table:
    """Return a row for each group of times."""
    lines = []
    for group in groups:
        n, *shares = group.row().values()
        texts = ["–" if share is None else f"{100 * share:.0f} %" for share in shares]
        lines.append(((group.name, f"{n:,}", *texts), {}))
    note = "An error is that of the predicted time, over the measured one."
    return Table.of(title, COLUMNS, lines, [note])


def baselines(times: Sequence[Times]) -> list[Errors]:
    """Return the errors of ways that fit nothing.

    One calibrating run scales operations by the time of each other workload on the same device in
    the same precision, in turn.
    """
    stack = Stack.of(times)
    roofline = stack.errors(np.array([1.0] * 8 + [0.0, 1.0]))
    operations = np.log(stack.step_s / stack.work[:, :, 2].sum(1))
    kinds = [(each.device.name, each.precision) for each in times]
    pairs = [
        operations[one] - operations[other]
        for one, other in product(range(len(times)), repeat=2)
        if kinds[one] == kinds[other] and times[one].workload != times[other].workload
    ]
    return [
        Errors("the roofline alone", roofline),
        Errors("operations alone", operations),
        Errors("one calibrating run", np.array(pairs)),
    ]


def validation(times: Sequence[Times]) -> list[Errors]:
    """Return the errors of every way to predict, the best informed last."""
    return [
        *baselines(times),
        Errors("device left out", *left_out(times, "device.name")),
        Errors("device left out, source known", *left_out(times, "device.name", "source")),
        Errors("workload left out", *left_out(times, "workload")),
        Errors("workload left out, device known", *left_out(times, "workload", "device.name")),
    ]


def without_fit(times: Sequence[Times], model: Model, name: str) -> Errors:
    """Return the errors of times that nothing was fitted to."""
    logs = [Stack.of([each]).errors(model.on(each.device).shares)[0] for each in times]
    logs = np.array(logs)
    return Errors(name, logs, (model.spread[0] <= logs) & (logs <= model.spread[1]))


def calibrated(times: Sequence[Times], model: Model, name: str) -> Errors:
    """Return the errors of one device's times, calibrated on its other workloads."""
    shares = model.on(times[0].device).shares
    return Errors(name, *left_out(times, "workload", "device.name", shares, model.spread))


def by_kind(times: Sequence[Times], errors: Errors) -> list[Errors]:
    """Return the errors of groups of times in which predictions differ."""
    small_models = ("mobilenet_v2", "mnasnet1_0")
    groups = {
        "batch of 1 to 8": [each.batch <= 8 for each in times],
        "batch of 9 to 63": [8 < each.batch < 64 for each in times],
        "batch of 64 and more": [each.batch >= 64 for each in times],
        "published before 2020": [each.year < "2020" for each in times],
        "published since 2020": [each.year >= "2020" for each in times],
        "fp32 without matrix units": [each.precision == "fp32" for each in times],
        "TF32": [each.precision == "tf32" for each in times],
        "fp16, bf16, mixed": [each.precision == "half" for each in times],
        "MobileNet, MNASNet": [each.workload in small_models for each in times],
        "Apple GPUs": [each.device.backend == "mps" for each in times],
        "AMD's GPUs": [each.device.name.startswith(("MI", "Radeon")) for each in times],
    }
    return [errors.part(name, chosen) for name, chosen in groups.items()]
