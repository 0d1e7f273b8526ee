"""Errors of predictions, by cross-validation: a fit without a device or workload predicts it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pomology.extras.prediction.devices import MAKERS, Hardware
from pomology.extras.prediction.model import (
    DEVICE_LEFT_OUT,
    HELD_BY,
    Model,
    errors_of,
    fit,
    inside,
    left_out,
    spreads,
    summary,
)
from pomology.report.figures import GREY, LOOKS, WIDTH, figure_of, plain_ticks
from pomology.report.table import Row, Table

if TYPE_CHECKING:
    import pandas

HEADINGS = (
    *("Prediction", "n", "Devices", "Median error", "Mean error", "Within 30 %"),
    "In the 90 % interval",
)
CALIBRATED = "calibrated on the device's other workloads"
PRECISIONS = ("fp32", "tf32", "half")  # those of published times
NOTES = (
    "Error: predicted minus measured time, over the measured time. In brackets: the 95 % interval",
    "of the median by a bootstrap over devices. Half: fp16 or bf16. Each precision has an interval",
    "of its own.",
    "A run without measured peaks, or without steps in fp32, has no predictions.",
)


def validation(times: pandas.DataFrame) -> dict[str, pandas.DataFrame]:
    """Return published times with `error` and `inside`, by the kind of cross-validation.

    Two kinds have groups of a precision, too; that without the device has groups of a maker.
    """
    import pandas

    by_device = left_out(times, "device")
    parts = []
    for device, of_device in times.groupby("device", sort=False):
        if of_device["workload"].nunique() > 1:
            others = by_device[by_device["device"].ne(device)]
            limits = spreads(others, "device")
            parts.append(left_out(of_device, "workload", fit(others), HELD_BY, limits))
    calibrated = pandas.concat(parts)
    return {
        DEVICE_LEFT_OUT: by_device,
        **by_precision(DEVICE_LEFT_OUT, by_device),
        **by_maker(DEVICE_LEFT_OUT, by_device),
        "source left out": left_out(times, "source"),
        "workload left out": left_out(times, "workload"),
        CALIBRATED: calibrated,
        **by_precision(CALIBRATED, calibrated),
    }


def by_precision(title: str, times: pandas.DataFrame) -> dict[str, pandas.DataFrame]:
    """Return the times of each precision by the names of their groups."""
    precisions = times["precision"]
    return {f"{title}: {name}": times[precisions.eq(name)] for name in PRECISIONS}


def by_maker(title: str, times: pandas.DataFrame) -> dict[str, pandas.DataFrame]:
    """Return the times of each maker, and of its precisions, by the names of their groups."""
    groups = {}
    for maker, name in MAKERS.items():
        own = times[times["maker"].eq(maker)]
        groups[f"{title}: {name}"] = own
        for precision in PRECISIONS:
            part = own[own["precision"].eq(precision)]
            if len(part):
                groups[f"{title}: {name}, {precision}"] = part
    return groups


def run_errors(
    of_run: pandas.DataFrame, peaks: Mapping[str, Hardware], model: Model
) -> dict[str, pandas.DataFrame]:
    """Return a run's times with their errors, by device: from its peaks alone, and calibrated."""
    groups = {}
    for device in peaks.values():
        times = of_run[of_run["device"].eq(device.name)]
        if times.empty:
            continue
        alone = times.assign(error=errors_of(times, model.numbers))
        alone["inside"] = inside(alone, model.spreads)
        groups[f"{device.name}: peaks alone"] = alone
        calibrated = left_out(times, "workload", model.numbers, HELD_BY, model.spreads)
        groups[f"{device.name}: calibrated on other workloads"] = calibrated
    return groups


def cells(numbers: Mapping[str, float]) -> tuple[str, ...]:
    """Return a `summary` as texts for the columns after the first one."""
    median, mean, within, covered = (
        f"{100 * numbers[name]:.0f} %" for name in ("median", "mean", "within_30", "covered")
    )
    low, high = 100 * numbers["median_low"], 100 * numbers["median_high"]
    # A single device has no range.
    ranged = median if math.isnan(low) else f"{median} ({low:.0f} to {high:.0f})"
    return f"{numbers['n']:,}", str(numbers["devices"]), ranged, mean, within, covered


def table(title: str, groups: Mapping[str, pandas.DataFrame]) -> Table:
    """Return a table with a row for each group of times."""
    rows = []
    for name, times in groups.items():
        numbers = summary(times)
        texts = (name, *cells(numbers))
        rows.append(Row(dict(zip(HEADINGS, texts, strict=True)), {"prediction": name} | numbers))
    return Table(title, rows, NOTES)


def figure(times: pandas.DataFrame, title: str) -> Any:
    """Return a scatter plot of predicted and measured times of a step, with a band of 30 %."""
    drawn = figure_of(WIDTH, WIDTH + 0.5)
    axis = drawn.add_subplot()
    predicted = times["step_s"] * np.exp(-times["error"])
    apple = times["maker"].eq("apple")
    # The few points of Apple GPUs are larger, and on top of the others.
    for role, chosen, size in (("rival", ~apple, 8), ("gpu", apple, 26)):
        look = LOOKS["published", role]
        form = {"color": look["colour"], "marker": look["mark"], "label": look["name"]}
        form |= {"edgecolors": "white", "linewidths": 0.3, "zorder": 2 + apple[chosen].any()}
        axis.scatter(times["step_s"][chosen], predicted[chosen], s=size, **form)
    axis.set(xscale="log", yscale="log", title=title, aspect="equal")
    axis.set(xlabel="measured seconds of a step", ylabel="predicted seconds of a step")
    ends = [
        min(axis.get_xlim()[0], axis.get_ylim()[0]),
        max(axis.get_xlim()[1], axis.get_ylim()[1]),
    ]
    axis.plot(ends, ends, color=GREY, label="equal")
    low, high = ([factor * end for end in ends] for factor in (0.7, 1.3))
    axis.fill_between(ends, low, high, color=GREY, alpha=0.2, label="within 30 %")
    axis.set(xlim=ends, ylim=ends)
    plain_ticks(axis.xaxis)
    plain_ticks(axis.yaxis)
    drawn.legend(loc="outside lower center", ncols=2)
    return drawn
