"""What the notebook `prediction` shows: tables and a figure in which every predicted number says that it is one.

Its tables have files of their own, and no CSV: nothing predicted is beside what other notebooks have measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pomology import format
from pomology.articles.published import KIT
from pomology.errors import PomologyError
from pomology.extras.prediction import rates, rows, validate
from pomology.extras.prediction.model import Model, Observed, Prediction
from pomology.extras.prediction.rates import Device
from pomology.extras.prediction.validate import Errors
from pomology.report.display import Report
from pomology.report.figures.style import COLOURS, WIDTH, figure_of, key, nothing, plain_ticks, styled
from pomology.report.table import Table, grouped
from pomology.results import cases
from pomology.results.record import UNTRIED, Record

NOT_HERE = (*UNTRIED, "timeout", "out-of-memory")  # how a case ends that is too large or too slow
NO_CEILINGS = "This run has no ceilings of this machine, which the notebook ceilings measures: nothing is predicted."
SUMS = "Predicted, not measured: from the ceilings of this run, and its times of other workloads. Loading is not in it."


class Of(NamedTuple):
    """A device, what is predicted for it, and on how many of its times that is calibrated."""

    device: Device
    prediction: Prediction
    times: int


def errors_table(title: str, groups: Iterable[Errors]) -> Table:
    """A row for each group of times."""
    columns = ("Prediction", "n", "Median error", "Mean error", "Within 30 %", "In the 90 % interval")
    lines = []
    for row in (errors.row() for errors in groups):
        parts = [f"{100 * row[name]:.0f} %" for name in ("median", "mean", "within_30")]
        covered = "–" if row["covered"] is None else f"{100 * row['covered']:.0f} %"
        lines.append(((row["name"], f"{row['n']:,}", *parts, covered), {}))
    return Table.of(title, columns, lines, ["An error is that of the predicted time, over the measured one."])


def usable(devices: Iterable[Device], precision: str = "fp32") -> tuple[list[Device], list[str]]:
    """Those whose ceilings a device can have, in this precision, and why the others are left out."""
    good, notes = [], []
    for device in devices:
        try:
            rates.check(device).rate(precision)
            good.append(device)
        except PomologyError as error:
            notes.append(f"Left out: {error}.")
    return good, notes


class Own(NamedTuple):
    """A run's devices by kind, its times on them, and notes about what lacks."""

    devices: dict[str, Device]
    seen: list[tuple[Record, Observed]]
    notes: list[str]


def own(records: Sequence[Record], run: str) -> Own:
    """What predictions for the machine of a run rest on."""
    known = rates.measured_devices(records, run)
    good, notes = usable(known.values())
    devices = {kind: device for kind, device in known.items() if device in good}
    seen = rows.of_run(records, run, devices)
    return Own(devices, seen, notes or [NO_CEILINGS] * (not known))


def beside(own: Own, run: str, model: Model) -> tuple[Table, list[Errors]]:
    """This run's steps, by experiment, and what its ceilings predict of them, alone and calibrated on other workloads;
    and the errors of both."""
    lines, made = [], []
    for device in own.devices.values():
        pairs = [pair for pair in own.seen if pair[1].device is device]
        if not pairs:
            continue
        seen = [each for _, each in pairs]
        alone = validate.kept_back(seen, model, f"{run}, {device.name}: ceilings alone")
        others = validate.of_device(seen, model, f"{run}, {device.name}: calibrated on other workloads")
        made += [alone, others]
        logs = zip(pairs, alone.logs, others.logs, strict=True)
        for here in grouped(logs, lambda each: each[0][0].experiment):
            both = [np.exp(-np.array([each[at] for each in here])) for at in (1, 2)]
            ends = f"{both[1].min():.2f} to {both[1].max():.2f}"
            middles = [f"{np.median(ratios):.2f}" for ratios in both]
            lines.append(((here[0][0][0].experiment, device.name, f"{len(here)}", *middles, ends), {}))
    columns = ("Experiment", "Device", "Times", "Predicted over measured, by ceilings", "calibrated", "from to")
    lacking = "No step in fp32 was timed in this run whose operations and bytes are counted."
    notes = [*own.notes, *[lacking] * (not lines and not own.notes), *[SUMS] * bool(lines)]
    return Table.of("This run's steps, and what is predicted of them", columns, lines, notes), made


def here(records: Sequence[Record], own: Own, model: Model) -> Table:
    """The articles' own models that were too large or too slow in this run, as this machine's ceilings predict them."""
    ended = [r for r in records if r.status in NOT_HERE and r.article != KIT and not r.scaled and r.profile != "smoke"]
    ended = list({(r.experiment, r.case): r for r in ended}.values())  # once for all repeats
    lines, without, held, notes = [], [], {}, list(own.notes)
    seen, informed = [each for _, each in own.seen], {}
    for record in ended:
        device, counted = own.devices.get(cases.kind(record)), rows.sums(record)
        if not device or not counted:
            without.append(record)
            continue
        if (of := (device.name, rows.workload_of(record))) not in informed:
            informed[of] = model.calibrated(device, seen, of[1])
        known = informed[of]
        made, held[device.name] = known.predict(counted, device), known.held
        ends = f"{format.seconds(made.step_s.low, 2)} to {format.seconds(made.step_s.high, 2)}"
        step = f"predicted {format.seconds(made.step_s.value, 2)}"
        about = (record.experiment, cases.settings(record), device.name, record.status)
        lines.append(((*about, step, ends, made.bound), {}))
    columns = ("Experiment", "Settings", "Device", "Here", "A step, predicted", "90 % interval", "Most of it")
    if lines:
        sources = ", ".join(device.source for device in own.devices.values())
        notes += [SUMS, f"From {sources}, as if memory were enough.", *(f"{name}: {held[name]}." for name in held)]
    names = [f"{group[0].experiment} ({len(group)})" for group in grouped(without, lambda record: record.experiment)]
    why = "not PyTorch in fp32, no count of operations and bytes, a forward pass twice, or no ceiling of the device"
    notes += [f"Not predicted, {why}: {', '.join(names)}."] if names else []
    notes += [] if ended else ["No model of an article was too large or too slow in this run."]
    return Table.of("What this machine would do: predicted, not measured", columns, lines, notes)


def asked(target: str, precision: str) -> tuple[str, int, str, int]:
    """Workload, size, precision and batch of `resnet50 32 224`. Raises PomologyError for what nobody has counted."""
    words, half = target.split(), "half" if precision in rates.HALF else "fp32"
    known = sorted({name for name, _, _ in rows.work()})
    if len(words) != 3 or not all(word.isdecimal() and int(word) for word in words[1:]):
        raise PomologyError(f"model: {target!r} must read `MODEL BATCH SIZE`, as 'resnet50 32 224'")
    name, batch, size = words[0], int(words[1]), int(words[2])
    if (name, size, half) not in rows.work():
        sizes = sorted({each for other, each, _ in rows.work() if other == name})
        right = f"{name} is counted at size {sizes[0]}" if sizes else f"one of {', '.join(known)}"
        raise PomologyError(f"model: {target!r} is not counted in work.csv; must be {right}")
    if precision not in ("fp32", "tf32", *rates.HALF):
        raise PomologyError(f"precision: {precision!r} must be fp32, tf32, fp16, bf16 or amp")
    return name, size, precision, batch


def machines(target: str, precision: str, own: Own, model: Model) -> tuple[list[Of], list[str]]:
    """One model on every device with a data sheet, and on this machine by its ceilings; the fastest first. Each is
    calibrated on the times of other workloads that are known of it."""
    operators = rows.operators_of(*asked(target, precision))
    good, notes = usable([*rates.published_devices().values(), *own.devices.values()], precision)
    seen, made = [*rows.elsewheres(), *(each for _, each in own.seen)], []
    for device in good:
        known = model.calibrated(device, seen, target.split()[0])
        made.append(Of(device, known.predict(operators, device, precision), known.times if known.workloads else 0))
    return sorted(made, key=lambda each: each.prediction.step_s.value), notes


def machines_table(target: str, precision: str, made: Sequence[Of], notes: Sequence[str], model: Model) -> Table:
    """What was made of `machines`, as a table."""
    lines = []
    for device, (step, bound, _), times in made:
        ends = f"{format.seconds(step.low, 2)} to {format.seconds(step.high, 2)}"
        source = device.source + f"; calibrated on {times} times of other workloads" * bool(times)
        lines.append(((device.name, f"predicted {format.seconds(step.value, 2)}", ends, bound, source), {}))
    columns = ("Device", "A step, predicted", "90 % interval", "Most of it", "From")
    title = f"What these machines would do: {target}, {precision}, SGD; predicted, not measured"
    return Table.of(title, columns, lines, [*notes, f"Where nothing is calibrated, {model.held}."])


def keep(report: Report, name: str, shown: Table) -> Table:
    """Save a table for the page, as HTML and JSON."""
    return report.save(shown, name)


HOLLOW = {"marker": "o", "markerfacecolor": "none", "linestyle": "none"}
BLUE, ORANGE = COLOURS["Apple GPUs"], COLOURS["this machine's processor"]


@styled
def machines_figure(made: Sequence[Of], title: str) -> Any:
    """Predicted steps with their 90 % intervals: hollow, the fastest first; diamonds are of measured ceilings."""
    if not made:
        return nothing()
    figure = figure_of(WIDTH, 1.3 + 0.2 * len(made))
    axis = figure.subplots()
    axis.set(xscale="log", title=title, xlabel="predicted time of a step, ms; less is faster")
    axis.set_yticks(range(len(made)), [device.name for device, *_ in made], fontsize=8)
    axis.set_ylim(len(made) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x")
    looks = {False: {"marker": "o", "color": BLUE}, True: {"marker": "D", "color": ORANGE}}
    for place, (device, (step, _, _), _) in enumerate(made):
        look = looks[device.measured]
        for ends in ((step.low, step.value / 1.06), (step.value * 1.06, step.high)):
            axis.plot([1e3 * end for end in ends], [place, place], color=look["color"], linewidth=1.2)
        axis.plot([1e3 * step.value], [place], markersize=6, **HOLLOW | look)
    plain_ticks(axis.xaxis)
    sources = {False: "predicted from published peaks", True: "predicted from this run's ceilings"}
    there = sorted({device.measured for device, *_ in made})
    key(figure, {f"{sources[each]}, 90 % interval": HOLLOW | looks[each] for each in there})
    return figure


def shown_figure(report: Report, name: str, figure: Any) -> Any:
    """Save a figure for the page, and give what a notebook displays."""
    return report.save(figure, name)
