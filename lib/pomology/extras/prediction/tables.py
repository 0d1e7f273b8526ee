"""The tables of the notebook `prediction`: every predicted number in them says that it is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pomology.articles.published import KIT
from pomology.errors import PomologyError
from pomology.extras.prediction import devices, times, validate
from pomology.extras.prediction.devices import Device
from pomology.extras.prediction.model import Model
from pomology.extras.prediction.times import RunTimes
from pomology.extras.prediction.validate import Errors
from pomology.format import seconds
from pomology.measure.estimate import Estimate
from pomology.report.table import Table
from pomology.results import cases
from pomology.results.record import UNTRIED, Record

TOO_LARGE = (*UNTRIED, "timeout", "out-of-memory")  # how a case ends that is too large or too slow
NOTHING = "Nothing is predicted of this run: it has no ceilings, or no steps in fp32."
SUMS = (
    "Predicted, not measured: from the ceilings of this run, and its times of other workloads, "
    "without loading, and as if memory were enough."
)
STEP = ("A step, predicted", "90 % interval", "Most of it")

Devices = Mapping[str, Device]  # of a run, by `cpu` and `gpu`


def own_steps(own: RunTimes, run: str, model: Model) -> tuple[Table, list[Errors]]:
    """Return what is predicted of a run's steps, by its ceilings alone and calibrated."""
    lines = []
    groups = []
    for name in dict.fromkeys(step.device.name for _, step in own):
        pairs = [(record, step) for record, step in own if step.device.name == name]
        steps = [step for _, step in pairs]
        alone = validate.without_fit(steps, model, f"{run}, {name}: ceilings alone")
        known = validate.calibrated(steps, model, f"{run}, {name}: calibrated on other workloads")
        groups += [alone, known]
        experiments = np.array([record.experiment for record, _ in pairs])
        for experiment in dict.fromkeys(experiments.tolist()):
            part = experiments == experiment
            before = np.exp(-alone.logs[part])
            after = np.exp(-known.logs[part])
            ratios = (f"{np.median(before):.2f}", f"{np.median(after):.2f}")
            ends = f"{after.min():.2f} to {after.max():.2f}"
            lines.append(((experiment, name, str(part.sum()), *ratios, ends), {}))
    ratios = ("Predicted over measured, by ceilings", "calibrated", "from to")
    title = "This run's steps, and what is predicted of them"
    columns = ("Experiment", "Device", "Times", *ratios)
    return Table.of(title, columns, lines, [SUMS if lines else NOTHING]), groups


def too_large(records: Sequence[Record], known: Devices, own: RunTimes, model: Model) -> Table:
    """Return what a run's ceilings predict of the articles' models that were too much for it."""
    ended = {}
    for record in records:
        smaller = record.scaled or record.profile == "smoke" or record.article == KIT
        if record.status in TOO_LARGE and not smaller:
            ended[record.experiment, record.case] = record  # once for all repeats
    lines = []
    held = {}
    without = []
    for record in ended.values():
        device = known.get(cases.kind(record))
        step = times.sums(record)
        if not device or not step:
            without.append(record.experiment)
            continue
        steps = [each for _, each in own]
        fitted = model.calibrated(device, steps, times.workload_of(record))
        made = fitted.predict(step, device)
        held[device.name] = f"{device.name}: {fitted.held}."
        names = (record.experiment, cases.settings(record), device.name, record.status)
        lines.append(((*names, *_texts(made.step_s), made.bound), {}))
    notes = [SUMS, *held.values()] if lines else [NOTHING]
    if without:
        names = ", ".join(f"{name} ({without.count(name)})" for name in dict.fromkeys(without))
        notes.append(f"Not predicted, as its work in PyTorch in fp32 was not counted: {names}.")
    title = "What this machine would do: predicted, not measured"
    columns = ("Experiment", "Settings", "Device", "Here", *STEP)
    return Table.of(title, columns, lines, notes)


def machines(target: str, precision: str, known: Devices, own: RunTimes, model: Model) -> Table:
    """Return `MODEL BATCH SIZE` of work.csv on every known device, the fastest first.

    The model is calibrated on the times of other workloads, where there are any.
    """
    workload, batch, size = times.parse_target(target, precision)
    step = times.published_step(workload, size, precision, batch)
    measured = [*times.published(), *(each for _, each in own)]
    found = []
    notes = []
    for device in [*devices.published_devices().values(), *known.values()]:
        fitted = model.calibrated(device, measured, workload)
        try:
            made = fitted.predict(step, device, precision)
        except PomologyError as error:
            notes.append(f"Left out: {error}.")
            continue
        source = device.source
        if fitted.workloads:
            source += f"; calibrated on {fitted.times} times of other workloads"
        cells = (device.name, *_texts(made.step_s), made.bound, source)
        found.append((made.step_s.value, (cells, {})))
    lines = [line for _, line in sorted(found, key=lambda pair: pair[0])]
    title = f"What these machines would do: {target}, {precision}, SGD; predicted, not measured"
    notes.append(f"Where nothing is calibrated, {model.held}.")
    return Table.of(title, ("Device", *STEP, "From"), lines, notes)


def _texts(step_s: Estimate) -> tuple[str, str]:
    low, value, high = (seconds(each, 2) for each in (step_s.low, step_s.value, step_s.high))
    return f"predicted {value}", f"{low} to {high}"
