"""What the notebook `prediction` shows: tables and figures in which every predicted number says that it is one.

Its tables have files of their own, and no CSV: nothing predicted is beside what other notebooks have measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pomology import format
from pomology.articles.published import KIT
from pomology.errors import PomologyError
from pomology.prediction import rates, validate
from pomology.prediction.model import Model, Prediction, operators_of, work
from pomology.prediction.rates import Device
from pomology.prediction.validate import Errors
from pomology.report.figures.style import COLOURS, GREY, WIDTH, figure_of, key, nothing, plain_ticks, show, styled
from pomology.report.showing import Report
from pomology.report.table import Table, grouped, save
from pomology.results import cases
from pomology.results.record import Record

TITLES = {"here": "What this machine would do", "machines": "What these machines would do"}
NOT_HERE = ("too-big", "timeout", "out-of-memory")  # how a case ends that is too large or too slow
AGAIN = ("recompute", "gradient_checkpointing")  # settings whose second forward pass is not in a record's operations
NO_CEILINGS = "This run has no ceilings of this machine, which the notebook ceilings measures: nothing is predicted."
SUMS = (
    "Predicted, not measured: from the sums of a step's operations and bytes, and the ceilings of this run. Launches, "
    "and the loading of data, are not in it."
)
COVERED = (
    "The 90 % intervals are those of published times whose device was left out, of which they held {covered:.0%}; "
    "for measured ceilings nobody has counted."
)


class Of(NamedTuple):
    """A device and what is predicted for it."""

    device: Device
    prediction: Prediction


def errors_table(title: str, rows: Iterable[dict]) -> Table:
    """Rows of `Errors.row`."""
    columns = ("Prediction", "n", "Median error", "Mean error", "Within 30 %", "In the 90 % interval")
    lines = []
    for row in rows:
        parts = [f"{100 * row[name]:.0f} %" for name in ("median", "mean", "within_30")]
        covered = "–" if row["covered"] is None else f"{100 * row['covered']:.0f} %"
        lines.append(((row["name"], f"{row['n']:,}", *parts, covered), {}))
    return Table.of(title, columns, lines, ["An error is that of the predicted time, over the measured one."])


def usable(devices: Iterable[Device]) -> tuple[list[Device], list[str]]:
    """Those whose ceilings a device can have, and why the others are left out."""
    good, notes = [], []
    for device in devices:
        try:
            good.append(rates.check(device))
        except PomologyError as error:
            notes.append(f"Left out: {error}.")
    return good, notes


def measured(records: Sequence[Record], run: str) -> tuple[dict[str, Device], list[str]]:
    """The devices of a run by kind, and notes about those that lack."""
    known = rates.measured_devices(records, run)
    good, notes = usable(known.values())
    return {kind: device for kind, device in known.items() if device in good}, notes or [NO_CEILINGS] * (not known)


def beside(records: Sequence[Record], run: str, model: Model) -> tuple[Table, Errors | None]:
    """This run's measured steps and what its own ceilings predict, by experiment; and the errors, or None."""
    devices, notes = measured(records, run)
    pairs = validate.of_run(records, run, model) if devices and not notes else []
    lines = []
    for here in grouped(pairs, lambda pair: (pair[0].experiment, cases.chip_name(pair[0]))):
        ratios = sorted(predicted / step for _, step, predicted in here)
        ends = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        record = here[0][0]
        cells = (record.experiment, cases.chip_name(record), f"{len(here)}", f"{np.median(ratios):.2f}", ends)
        lines.append((cells, {}))
    columns = ("Experiment", "Device", "Times", "Predicted over measured, median", "from to")
    logs = np.log([step / predicted for _, step, predicted in pairs])
    made = Errors(f"this run, {run}", logs) if pairs else None
    notes += [] if pairs or notes else ["No step in fp32 was timed in this run whose operations and bytes are counted."]
    notes += [SUMS] if pairs else []
    return Table.of("This run's steps, and what its ceilings predict of them", columns, lines, notes), made


def here(records: Sequence[Record], run: str, model: Model) -> Table:
    """The articles' own models that were too large or too slow in this run, as this machine's ceilings predict them."""
    devices, notes = measured(records, run)
    ended = [r for r in records if r.status in NOT_HERE and r.article != KIT and not r.scaled and r.profile != "smoke"]
    ended = list({(r.experiment, r.case): r for r in ended}.values())  # once for all repeats
    lines, without = [], []
    for record in ended:
        device = devices.get(cases.kind(record))
        known = device and record.framework == "torch" and not any(record.config.get(name) for name in AGAIN)
        made = validate.counted(record, device, model) if known else None
        if made is None:
            without.append(record)
            continue
        ends = f"{format.seconds(made.step_s.low, 2)} to {format.seconds(made.step_s.high, 2)}"
        step = f"predicted {format.seconds(made.step_s.value, 2)}"
        about = (record.experiment, cases.settings(record), device.name, cases.ending(record))
        lines.append(((*about, step, ends, made.bound), {}))
    columns = ("Experiment", "Settings", "Device", "Here", "A step, predicted", "90 % interval", "Most of it")
    if lines:
        notes += [SUMS, f"From the ceilings measured in the run {run}, as if memory were enough.", _held(model)]
    names = [f"{group[0].experiment} ({len(group)})" for group in grouped(without, lambda record: record.experiment)]
    why = "not PyTorch in fp32, no count of operations and bytes, a forward pass twice, or no ceiling of the device"
    notes += [f"Not predicted, {why}: {', '.join(names)}."] if names else []
    notes += [] if ended else ["No model of an article was too large or too slow in this run."]
    return Table.of(f"{TITLES['here']}: predicted, not measured", columns, lines, notes)


def asked(target: str, precision: str) -> tuple[str, int, str, int]:
    """Workload, size, precision and batch of `resnet50 32 224`. Raises PomologyError for what nobody has counted."""
    words, half = target.split(), "half" if precision in rates.HALF else "fp32"
    known = sorted({name for name, _, _ in work()})
    if len(words) != 3 or not all(word.isdecimal() and int(word) for word in words[1:]):
        raise PomologyError(f"model: {target!r} must read `MODEL BATCH SIZE`, as 'resnet50 32 224'")
    name, batch, size = words[0], int(words[1]), int(words[2])
    if (name, size, half) not in work():
        sizes = sorted({each for other, each, _ in work() if other == name})
        right = f"{name} is counted at size {sizes[0]}" if sizes else f"one of {', '.join(known)}"
        raise PomologyError(f"model: {target!r} is not counted in work.csv; must be {right}")
    if precision not in ("fp32", "tf32", *rates.HALF):
        raise PomologyError(f"precision: {precision!r} must be fp32, tf32, fp16, bf16 or amp")
    return name, size, precision, batch


def machines(
    target: str, precision: str, records: Sequence[Record], run: str, model: Model
) -> tuple[list[Of], list[str]]:
    """One model on every device with a data sheet, and on this machine by its ceilings; the fastest first."""
    operators = operators_of(*asked(target, precision))
    own = measured(records, run)[0].values() if precision == "fp32" else []
    good, notes = usable([*rates.published_devices().values(), *own])
    made = [Of(device, model.predict(operators, device, precision)) for device in good]
    return sorted(made, key=lambda each: each.prediction.step_s.value), notes


def machines_table(target: str, precision: str, made: Sequence[Of], notes: Sequence[str], model: Model) -> Table:
    """What was made of `machines`, as a table."""
    lines = []
    for device, (step, bound, _) in made:
        ends = f"{format.seconds(step.low, 2)} to {format.seconds(step.high, 2)}"
        cells = (device.name, f"predicted {format.seconds(step.value, 2)}", ends, bound, device.source)
        lines.append((cells, {}))
    columns = ("Device", "A step, predicted", "90 % interval", "Most of it", "From")
    title = f"{TITLES['machines']}: {target}, {precision}, SGD; predicted, not measured"
    return Table.of(title, columns, lines, [*notes, _held(model)])


def keep(report: Report, name: str, shown: Table) -> Table:
    """Save a table for the page, as HTML and JSON."""
    save(shown, report.out / "tables" / f"{report.name}-{name}", report.sources(name), numbers=False)
    return shown


def _held(model: Model) -> str:
    return COVERED.format(covered=model.covered).replace("%;", " %;")


HOLLOW = {"marker": "o", "markerfacecolor": "none", "linestyle": "none"}
BLUE, ORANGE = COLOURS["Apple GPUs"], COLOURS["this machine's processor"]


@styled
def errors_figure(groups: Sequence[Errors], title: str) -> Any:
    """Predicted over measured, a row for each group: a hollow median, and bars of half and of 90 % of its times."""
    groups = [group for group in groups if np.isfinite(group.logs).any()]
    if not groups:
        return nothing()
    figure = figure_of(WIDTH, 1.2 + 0.28 * len(groups))
    axis = figure.subplots()
    axis.axvspan(0.7, 1.3, color=GREY, alpha=0.12, linewidth=0)
    axis.axvline(1, color=GREY, linewidth=0.8)
    for place, group in enumerate(groups):
        ratios = np.exp(-group.logs[np.isfinite(group.logs)])
        low, near, middle, far, high = np.percentile(ratios, (5, 25, 50, 75, 95))
        colour = ORANGE if group.covered is None else BLUE
        axis.plot([low, high], [place, place], color=colour, linewidth=1)
        axis.plot([near, middle / 1.03], [place, place], color=colour, linewidth=4, solid_capstyle="butt")
        axis.plot([middle * 1.03, far], [place, place], color=colour, linewidth=4, solid_capstyle="butt")
        axis.plot([middle], [place], color=colour, markersize=8, **HOLLOW)
    axis.set(xscale="log", title=title, xlabel="predicted over measured time (1 is right; grey: within 30 %)")
    axis.set_yticks(range(len(groups)), [f"{group.name} ({int(np.isfinite(group.logs).sum()):,})" for group in groups])
    axis.set_ylim(len(groups) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x")
    plain_ticks(axis.xaxis)
    key(
        figure,
        {
            "median, predicted": HOLLOW | {"color": GREY},
            "middle half": {"linestyle": "-", "linewidth": 4, "color": GREY},
            "90 % of the times": {"linestyle": "-", "color": GREY},
        },
    )
    return figure


@styled
def machines_figure(made: Sequence[Of], title: str) -> Any:
    """Predicted steps with their 90 % intervals: hollow, the fastest first; diamonds are of measured ceilings."""
    if not made:
        return nothing()
    figure = figure_of(WIDTH, 1.3 + 0.2 * len(made))
    axis = figure.subplots()
    looks = {False: {"marker": "o", "color": BLUE}, True: {"marker": "D", "color": ORANGE}}
    for place, (device, (step, _, _)) in enumerate(made):
        look = looks[device.measured]
        for ends in ((step.low, step.value / 1.06), (step.value * 1.06, step.high)):
            axis.plot([1e3 * end for end in ends], [place, place], color=look["color"], linewidth=1.2)
        axis.plot([1e3 * step.value], [place], markersize=6, **HOLLOW | look)
    axis.set(xscale="log", title=title, xlabel="predicted time of a step, ms; less is faster")
    axis.set_yticks(range(len(made)), [device.name for device, _ in made], fontsize=8)
    axis.set_ylim(len(made) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x")
    plain_ticks(axis.xaxis)
    names = {False: "predicted from published peaks", True: "predicted from this run's ceilings"}
    there = sorted({device.measured for device, _ in made})
    key(figure, {f"{names[each]}, 90 % interval": HOLLOW | looks[each] for each in there})
    return figure


def shown_figure(report: Report, name: str, figure: Any) -> Any:
    """Save a figure for the page, and give what a notebook displays."""
    return show(figure, report.out / "figures" / f"{report.name}-{name}.svg")
