"""How wrong predictions are: each device, or workload, left out of the fit that predicts it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pomology.extras.prediction.model import Model, Stack, Times, left_out
from pomology.extras.prediction.times import RunTimes
from pomology.report.figures.style import figure_of, styled
from pomology.report.table import Table

COLUMNS = ("Prediction", "n", "Median error", "Mean error", "Within 30 %", "In the 90 % interval")


class Errors(NamedTuple):
    """Logarithms of measured over predicted; covered: whether each is in its interval."""

    name: str
    logs: np.ndarray
    covered: np.ndarray

    def row(self) -> dict[str, float]:
        """Return the errors of predicted over measured: 1 is 100 %."""
        errors = np.abs(np.expm1(-self.logs))
        return {
            "n": len(errors),
            "median": float(np.median(errors)),
            "mean": float(errors.mean()),
            "within_30": float((errors <= 0.3).mean()),
            "covered": float(self.covered.mean()),
        }


def table(title: str, groups: Sequence[Errors]) -> Table:
    """Return a row for each group of times."""
    lines = []
    for group in groups:
        n, *shares = group.row().values()
        lines.append(((group.name, f"{n:,}", *(f"{100 * share:.0f} %" for share in shares)), {}))
    notes = [
        "An error is that of the predicted time, over the measured one.",
        "Of a run without ceilings, or without steps in fp32, nothing is predicted.",
    ]
    return Table.of(title, COLUMNS, lines, notes)


def validation(times: Sequence[Times]) -> list[Errors]:
    """Return the errors of published times, from fits without their device or workload."""
    names = [each.device.name for each in times]
    workloads = [each.workload for each in times]
    return [
        Errors("device left out", *left_out(times, names)),
        Errors("workload left out", *left_out(times, workloads)),
    ]


def own_errors(own: RunTimes, run: str, model: Model) -> list[Errors]:
    """Return a run's errors: by device from its ceilings, and calibrated on other workloads.

    The calibrated ones are then parted by experiment.
    """
    groups = []
    for name in dict.fromkeys(step.device.name for _, step in own):
        pairs = [(record, step) for record, step in own if step.device.name == name]
        steps = [step for _, step in pairs]
        shares = model.on(steps[0].device).shares
        logs = Stack.of(steps).errors(shares)
        inside = (model.spread[0] <= logs) & (logs <= model.spread[1])
        groups.append(Errors(f"{run}, {name}: ceilings alone", logs, inside))
        workloads = [step.workload for step in steps]
        logs, inside = left_out(steps, workloads, shares, model.spread)
        groups.append(Errors(f"{run}, {name}: calibrated on other workloads", logs, inside))
        experiments = np.array([record.experiment for record, _ in pairs])
        for experiment in dict.fromkeys(experiments.tolist()):
            part = experiments == experiment
            groups.append(Errors(f"{name}: {experiment}", logs[part], inside[part]))
    return groups


@styled
def figure(times: Sequence[Times], errors: Errors) -> Any:
    """Return predicted against measured times of the same steps, with the line where they agree."""
    measured = np.array([each.step_s for each in times])
    drawn = figure_of(5, 5)
    axis = drawn.add_subplot()
    axis.scatter(measured, measured * np.exp(-errors.logs), s=6)
    axis.axline((1, 1), slope=1, color="grey")
    axis.set(xscale="log", yscale="log", xlabel="measured s", ylabel="predicted s")
    axis.set_title(errors.name)
    return drawn
