"""What `pomology predict` answers: of a user's own model, or of a training of the kit."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pomology import format
from pomology.errors import PomologyError
from pomology.extras.prediction import operators, own_model, rates, rows
from pomology.extras.prediction.model import Model, Observed, Prediction, model
from pomology.extras.prediction.operators import Counted
from pomology.extras.prediction.rates import Device
from pomology.format import one_line
from pomology.measure.estimate import Estimate
from pomology.models import trainings
from pomology.results.record import Record
from pomology.results.run import Run


class Known(NamedTuple):
    """What a run, or the kit, knows: devices by name, times that were measured on them, a run's records."""

    devices: dict[str, Device]
    seen: Sequence[Observed]
    records: Sequence[Record] = ()


@functools.cache
def known(source: str = "", place: Path | None = None) -> Known:
    """Devices with published peaks, or the `cpu` and `gpu` of a run, whose ceilings it has measured. place: of the run
    that `source` names, where it is not in outputs/."""
    if not source:
        return Known(rates.published_devices(), rows.elsewheres())
    records = Run.open(place or source).records
    if not (devices := rates.measured_devices(records, source)):
        raise PomologyError(f"--from {source}: the run has no ceilings; the notebook ceilings measures them")
    return Known(devices, [seen for _, seen in rows.of_run(records, source, devices)], records)


class Answer(NamedTuple):
    """What was asked, what was counted of a step of it, and what is predicted, where a device was named."""

    what: str
    workload: str  # of the kit; empty of a user's own model
    batch: int
    counted: Counted
    device: Device | None
    model: Model
    prediction: Prediction | None


def predict(
    target: str,
    input: str = "",
    precision: str = "fp32",
    optimizer: str = "adam",
    on: str = "",
    source: str = "",
    place: Path | None = None,
) -> Answer:
    """target: `file.py:build` of a user, or `WORKLOAD BATCH [SIZE]` of the kit, as `trainings.rows` reads it. on: a
    name in `known`; empty: none, and the step is counted as MPS does it. Raises PomologyError in one line for whatever
    is wrong with these."""
    devices, seen, _ = known(source, place)
    device = rates.chosen(on or (max(devices) if source else ""), devices) if on or source else None  # a GPU before
    operators.check(precision, optimizer)
    if device:
        rates.check(device).rate(precision)
    backend, workload = device.backend if device else "mps", ""
    if ":" in target or target.endswith(".py"):
        if not input:
            raise PomologyError("pomology predict: the following arguments are required: --input")
        batch = own_model.parse_inputs(input)[0].sizes[0]
        counted = own_model.count(target, input, precision, optimizer, backend)
        what = f"{one_line(Path(target).name)}, --input {input}, {precision}, {optimizer}"
    else:
        (row,) = trainings.rows([target])
        workload, batch, counted = row["workload"], row["batch_size"], rows.count(row, precision, backend)
        what = f"{target}, {precision}, {rows.OPTIMIZERS.get(workload, 'adam')}"
    informed = model().calibrated(device, seen, workload) if device else model()
    made = informed.predict(counted.operators, device, precision) if device else None
    return Answer(what, workload, batch, counted, device, informed, made)


def answer(target: str, epoch: int | None = None, **asked: Any) -> list[str]:
    """The lines of the command. epoch: how many samples it has. The rest, and errors: see `predict`."""
    if epoch is not None and epoch < 1:
        raise PomologyError(f"--epoch {epoch}: must be a number of samples, 1 or more")
    on, source = (asked.get(name, "") for name in ("on", "source"))
    what, workload, batch, counted, device, informed, made = predict(target, **asked)
    flops, moved, launches = (sum(each[at] for each in counted.operators) for at in (1, 2, 3))
    amounts = f"{flops / 1e9:,.4g} GFLOP, {format.quantity(moved, 'B')} read and written, {launches:,} launches"
    memory = counted.memory._asdict()
    peak = format.quantity(memory.pop("peak"), "B")
    parts = [f"{name} {format.quantity(size, 'B')}" for name, size in memory.items()]
    lines = [
        f"{what}; counted of a step: {amounts}",
        f"memory at its highest point, counted: {peak}, without work space of operators ({', '.join(parts)})",
    ]
    if device and made:
        step = f"a step takes {_shown(made.step_s)}, most of it {made.bound}"
        lines.append(f"predicted for {on or device.name} from {device.source}: {step}")
        if epoch:
            steps, kind = math.ceil(epoch / batch), "cpu" if device.backend == "cpu" else "gpu"
            loading_s = rows.loading_s(known(source, asked.get("place")).records, workload, kind)
            more = "loading data is not in it"
            more += f": {format.seconds(epoch * loading_s)} as {source} timed it" if loading_s is not None else ""
            lines.append(f"predicted: {epoch:,} samples, {steps:,} steps, take {_shown(made.step_s * steps)}; {more}")
        shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in made.parts.items())
        lines += [f"predicted: of a step {shares}", informed.held]
    return lines


def _shown(duration: Estimate) -> str:
    """With the bounds of its interval, which is no measured one: it covers 9 of 10 devices that were left out."""
    return f"{format.seconds(duration.value)} (90 %: {format.span(*duration.bounds, format.seconds)})"
