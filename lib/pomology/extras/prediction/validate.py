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
NOTHING = "Nothing is predicted of this run: it has no ceilings, or no steps in fp32."
NOTE = "Predicted from the ceilings of this run and its times of other workloads, without loading."


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
    note = "An error is that of the predicted time, over the measured one."
    return Table.of(title, COLUMNS, lines, [note])


def validation(times: Sequence[Times]) -> list[Errors]:
    """Return the errors of published times, from fits without their device or workload."""
    names = [each.device.name for each in times]
    workloads = [each.workload for each in times]
    return [
        Errors("device left out", *left_out(times, names)),
        Errors("workload left out", *left_out(times, workloads)),
    ]


def own_errors(own: RunTimes, run: str, model: Model) -> list[Errors]:
    """Return a run's errors by device: from its ceilings, and calibrated on other workloads."""
    groups = []
    for name in dict.fromkeys(step.device.name for _, step in own):
        steps = [step for _, step in own if step.device.name == name]
        shares = model.on(steps[0].device).shares
        logs = Stack.of(steps).errors(shares)
        inside = (model.spread[0] <= logs) & (logs <= model.spread[1])
        groups.append(Errors(f"{run}, {name}: ceilings alone", logs, inside))
        workloads = [step.workload for step in steps]
        errors = left_out(steps, workloads, shares, model.spread)
        groups.append(Errors(f"{run}, {name}: calibrated on other workloads", *errors))
    return groups


def own_steps(own: RunTimes, groups: Sequence[Errors]) -> Table:
    """Return predicted over measured times of a run, by experiment; groups: of `own_errors`."""
    lines = []
    names = dict.fromkeys(step.device.name for _, step in own)
    for place, name in enumerate(names):
        experiments = np.array([each.experiment for each, step in own if step.device.name == name])
        alone, calibrated = groups[2 * place : 2 * place + 2]
        for experiment in dict.fromkeys(experiments.tolist()):
            part = experiments == experiment
            before = np.exp(-alone.logs[part])
            after = np.exp(-calibrated.logs[part])
            ratios = (f"{np.median(before):.2f}", f"{np.median(after):.2f}")
            ends = f"{after.min():.2f} to {after.max():.2f}"
            lines.append(((experiment, name, str(part.sum()), *ratios, ends), {}))
    ratios = ("Predicted over measured, by ceilings", "calibrated", "from to")
    title = "This run's steps, and what is predicted of them"
    columns = ("Experiment", "Device", "Times", *ratios)
    return Table.of(title, columns, lines, [NOTE if lines else NOTHING])


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
