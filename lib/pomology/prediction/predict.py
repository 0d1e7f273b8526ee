"""What `pomology predict` answers: of a user's own model, or of a training of the kit."""

from __future__ import annotations

import functools
from pathlib import Path

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.prediction import operators, own_model, rates
from pomology.prediction.model import Prediction, model
from pomology.results.run import Run
from pomology.workloads import trainings

# The optimizer of each training of the kit, as `operators.OPTIMIZERS` names it; Adam where it is not here.
OPTIMIZERS = {"siamese": "adadelta", "transformer_lm": "sgd", "simclr": "momentum", "resnet50": "momentum"}


def devices(source: str = "", place: Path | None = None) -> dict[str, rates.Device]:
    """By name: those with published peaks, or the `cpu` and `gpu` of a run, whose ceilings it has measured. place: of
    the run that `source` names, where it is not in outputs/."""
    if not source:
        return rates.published_devices()
    if made := rates.measured_devices(Run.open(place or source).records, source):
        return made
    raise PomologyError(f"--from {source}: the run has no ceilings; the notebook ceilings measures them")


def answer(
    target: str,
    input: str,
    precision: str,
    optimizer: str,
    on: str,
    epoch: int | None,
    source: str,
    place: Path | None = None,
) -> list[str]:
    """The lines of the command. target: `file.py:build` of a user, or `WORKLOAD BATCH [SIZE]` of the kit, as
    `trainings.rows` reads it. Raises PomologyError in one line for whatever is wrong with these."""
    known, fitted = devices(source, place), model()
    if source and not on:
        on = next(iter(sorted(known, reverse=True)))  # the GPU, where there is one

    made: list[Prediction] = []

    def predict(work, device):
        made.append(fitted.predict(work, device, precision))
        return made[-1]

    if ":" in target or target.endswith(".py"):
        if not input:
            raise PomologyError("pomology predict: the following arguments are required: --input")
        lines = own_model.answer(target, input, precision, optimizer, on, epoch, known, predict)
    else:
        (row,), device = trainings.rows([target]), own_model.chosen(on, known) if on else None
        operators.check(precision, optimizer)
        step = functools.partial(trainings._step, trainings.load(f"{row['workload']}_torch"), row)
        name = OPTIMIZERS.get(row["workload"], "adam")
        try:
            counted = operators.count(build_of(row), step, precision, name, device.backend if device else "mps")
        except (RuntimeError, IndexError, ValueError, TypeError) as error:  # each of a workload's hooks has its own
            why = one_line(f"{type(error).__name__}: {error}", 200)
            right = "some need a size, as 'resnet50 32 224'"
            raise PomologyError(f"{target}: its step cannot be counted ({why}); {right}") from error
        if epoch is not None and epoch < 1:
            raise PomologyError(f"--epoch {epoch}: must be a number of samples, 1 or more")
        steps = -(-epoch // row["batch_size"]) if epoch else None
        lines = own_model.described(f"{target}, {precision}, {name}", counted, on, device, predict, epoch, steps)
    for _, _, parts in made:
        shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in parts.items())
        lines.append(f"predicted: of a step {shares}")
        share = f"{100 * fitted.covered:.0f} % of {fitted.times:,} published times"
        held = f"such a 90 % interval, made without a time's device, held {share} on GPUs with published peaks"
        lines.append(held + "; for measured ceilings nobody has counted" * known[on].measured)
    return lines


def build_of(row: dict):
    """The model of a training of the kit, on `meta`."""
    import torch

    with torch.device("meta"):
        return trainings.load(f"{row['workload']}_torch").build(**row)
