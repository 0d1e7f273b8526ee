"""Errors of predictions, by cross-validation: a fit without a device or workload predicts it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pomology.extras.prediction.devices import Hardware
from pomology.extras.prediction.model import HELD_BY, Model, errors_of, fit, interval, left_out
from pomology.report.figures import figure_of, plain_ticks
from pomology.report.table import Row, Table

if TYPE_CHECKING:
    import pandas

HEADINGS = ("Prediction", "n", "Median error", "Mean error", "Within 30 %", "In the 90 % interval")
DEVICE_LEFT_OUT = "device left out"
NOTES = (
    "Error: predicted minus measured time, over the measured time.",
    "A run without measured peaks, or without steps in fp32, has no predictions.",
)


def validation(times: pandas.DataFrame) -> dict[str, pandas.DataFrame]:
    """Return published times with `error` and `inside`, by the kind of cross-validation."""
    import pandas

    by_device = left_out(times, "device")
    calibrated = []
    for device, of_device in times.groupby("device", sort=False):
        if of_device["workload"].nunique() > 1:
            others = by_device[by_device["device"].ne(device)]
            spread = interval(others["error"], others["device"])
            calibrated.append(left_out(of_device, "workload", fit(others), HELD_BY, spread))
    return {
        DEVICE_LEFT_OUT: by_device,
        "workload left out": left_out(times, "workload"),
        "calibrated on the device's other workloads": pandas.concat(calibrated),
    }


def run_errors(
    of_run: pandas.DataFrame, peaks: Mapping[str, Hardware], model: Model
) -> dict[str, pandas.DataFrame]:
    """Return a run's times with their errors, by device: from its peaks alone, and calibrated."""
    groups = {}
    for device in peaks.values():
        times = of_run[of_run["device"].eq(device.name)]
        if times.empty:
            continue
        errors = errors_of(times, model.numbers)
        inside = (model.spread[0] <= errors) & (errors <= model.spread[1])
        groups[f"{device.name}: peaks alone"] = times.assign(error=errors, inside=inside)
        calibrated = left_out(times, "workload", model.numbers, HELD_BY, model.spread)
        groups[f"{device.name}: calibrated on other workloads"] = calibrated
    return groups


def summary(times: pandas.DataFrame) -> dict[str, float]:
    """Return statistics of the relative errors of predicted times: 1 is 100 %."""
    errors = np.abs(np.expm1(-times["error"]))
    return {
        "n": len(errors),
        "median": float(errors.median()),
        "mean": float(errors.mean()),
        "within_30": float((errors <= 0.3).mean()),
        "covered": float(times["inside"].mean()),
    }


def table(title: str, groups: Mapping[str, pandas.DataFrame]) -> Table:
    """Return a table with a row for each group of times."""
    rows = []
    for name, times in groups.items():
        numbers = summary(times)
        count, *shares = numbers.values()
        cells = (name, f"{count:,}", *(f"{100 * share:.0f} %" for share in shares))
        rows.append(Row(dict(zip(HEADINGS, cells, strict=True)), {"prediction": name} | numbers))
    return Table(title, rows, NOTES)


def figure(times: pandas.DataFrame, title: str) -> Any:
    """Return a scatter plot of predicted and measured times, with the line of equality."""
    drawn = figure_of(5, 5)
    axis = drawn.add_subplot()
    axis.scatter(times["step_s"], times["step_s"] * np.exp(-times["error"]), s=6)
    axis.axline((1, 1), slope=1, color="grey")
    axis.set(xscale="log", yscale="log", xlabel="measured s", ylabel="predicted s", title=title)
    plain_ticks(axis.xaxis)
    plain_ticks(axis.yaxis)
    return drawn
