"""Errors of predictions, by cross-validation: a fit without a device or workload predicts it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

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
from pomology.report.answer import Answer
from pomology.report.figures import (
    GREY,
    KEY_COLUMNS,
    LONG_NAME,
    LOOKS,
    WIDTH,
    figure_of,
    plain_ticks,
    wrapped,
)
from pomology.report.table import Row, Table

if TYPE_CHECKING:
    import pandas

HEADINGS = (
    *("Prediction", "n", "Devices", "Median error", "Mean error", "Within 30 %"),
    "In the 90 % interval",
)
CALIBRATED = "calibrated on the device's other workloads"
ALONE, BY_OTHERS = "peaks alone", "calibrated on other workloads"  # predictions of a run's times
# How times are predicted, in the words of a sentence.
PREDICTED_FROM = {
    DEVICE_LEFT_OUT: "from those of other devices",
    ALONE: "from its measured peaks alone",
    BY_OTHERS: "from these peaks and its other workloads",
}
PRECISIONS = ("fp32", "tf32", "half")  # those of published times
NOTES = (
    "Error: the size of predicted minus measured time, over the measured time. In brackets: the",
    "95 % interval of the median by a bootstrap over devices. Half: fp16 or bf16. Each precision",
    "has an interval of its own.",
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
            if 0 < len(part) < len(own):
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
        groups[f"{device.name}: {ALONE}"] = alone
        calibrated = left_out(times, "workload", model.numbers, HELD_BY, model.spreads)
        groups[f"{device.name}: {BY_OTHERS}"] = calibrated
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


def answer(
    groups: Mapping[str, pandas.DataFrame],
    spreads: Mapping[str, Sequence[float]] = MappingProxyType({}),
) -> Answer:
    """Return the median error of each group of times, and how many are in their 90 % interval.

    groups: by subject and kind of prediction, such as `Published times: device left out`. spreads:
    of the fit, by precision, see `model.spreads`.
    """
    short, texts = [], []
    for name, times in groups.items():
        numbers = summary(times)
        ends = [100 * numbers[each] for each in ("median_low", "median_high")]
        median, covered = (f"{100 * numbers[each]:.0f} %" for each in ("median", "covered"))
        evidence = f"n = {numbers['n']:,}"
        if not math.isnan(ends[0]):  # a single device has no range
            span = "{:.0f} to {:.0f} %".format(*ends)
            evidence = f"95 % interval {span} by a bootstrap over devices; {evidence}"
        too_short = 100 * times["error"].gt(0).mean()
        subject, _, how = name.partition(": ")
        what = f"predicted {PREDICTED_FROM.get(how, how)}"
        whose = "published times" if how == DEVICE_LEFT_OUT else f"the {subject}"
        short.append(f"{median} for {whose}, {what}")
        texts.append(
            f"{subject}, {what}: the median error is {median} ({evidence}); {too_short:.0f} % of "
            f"the predictions are too short, and {covered} of the times are in their 90 % interval."
        )
    if spreads:
        low, high = (math.exp(end) for end in spreads["fp32"])
        texts.append(f"A 90 % interval in fp32 is {low:.2g} to {high:.2g} times the prediction.")
    return Answer(f"The typical (median) error is {'; '.join(short)}.", texts)


class Points(NamedTuple):
    """Points of a panel: times with their errors, and how they look.

    form: arguments of matplotlib's `scatter`, with the label of the key.
    """

    times: pandas.DataFrame
    form: dict[str, Any]


def figure(
    times: pandas.DataFrame, title: str, own: Mapping[str, pandas.DataFrame] = MappingProxyType({})
) -> Any:
    """Return scatter plots of predicted and measured times of a step, with a band of 30 %.

    times, title: of the published ones. own: groups of this run's times, see `run_errors`, which
    have a panel if there are any.
    """
    panels = {f"Published times: {title}": _published_points(times)}
    if own:
        panels["This run, PyTorch in fp32"] = [_own_points(*group) for group in own.items()]
    drawn = figure_of(WIDTH, len(panels) * (WIDTH - 0.2) + 0.8)
    handles = {}
    for axis, (name, shown) in zip(
        drawn.subplots(len(panels), 1, squeeze=False)[:, 0], panels.items(), strict=True
    ):
        _draw(axis, name, shown)
        handles |= {handle.get_label(): handle for handle in axis.get_legend_handles_labels()[0]}
    drawn.legend(handles=[*handles.values()], loc="outside lower center", ncols=KEY_COLUMNS)
    return drawn


def _published_points(times: pandas.DataFrame) -> list[Points]:
    """Return the points of NVIDIA's and AMD's GPUs, and on top of them the few of Apple's."""
    apple = times["maker"].eq("apple")
    shown = []
    for role, chosen, size in (("rival", ~apple, 8), ("gpu", apple, 26)):
        look = LOOKS["published", role]
        form = {"color": look["colour"], "marker": look["mark"], "label": look["name"], "s": size}
        edges = {"edgecolors": "white", "linewidths": 0.3, "zorder": 2 + apple[chosen].any()}
        shown.append(Points(times[chosen], form | edges))
    return shown


def _own_points(name: str, times: pandas.DataFrame) -> Points:
    """Return the points of a group of `run_errors`: open from peaks alone, else filled."""
    device, _, how = name.partition(": ")
    look = LOOKS["measured", "cpu" if device.endswith("CPU") else "gpu"]
    colour = look["colour"]
    fill = "none" if how == ALONE else colour
    label = wrapped(f"{look['name']}, {how}", LONG_NAME)
    form = {"facecolors": fill, "edgecolors": colour, "linewidths": 0.8, "s": 18}
    return Points(times, form | {"marker": look["mark"], "label": label, "zorder": 3})


def _draw(axis: Any, title: str, shown: Sequence[Points]) -> None:
    """Draw a panel: its points, the line on which both times are equal, and the band of 30 %."""
    for times, form in shown:
        axis.scatter(times["step_s"], times["step_s"] * np.exp(-times["error"]), **form)
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
