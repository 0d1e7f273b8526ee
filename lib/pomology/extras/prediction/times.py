"""Measured times of training steps, with the work in them: published ones, and those of a run."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from pomology.articles import elsewhere
from pomology.articles import published as articles_published
from pomology.errors import PomologyError
from pomology.extras.prediction import devices, operators
from pomology.extras.prediction.devices import Device
from pomology.extras.prediction.model import Times, work_of
from pomology.extras.prediction.operators import Counted, Operator
from pomology.format import one_line
from pomology.models import isolated, trainings
from pomology.models.definitions import definitions
from pomology.results import cases
from pomology.results.record import Record

RunTimes = list[tuple[Record, Times]]
# The optimizer of each training of the kit, where it is not Adam.
OPTIMIZERS = {"siamese": "adadelta", "transformer_lm": "sgd"}
OPTIMIZERS |= {"simclr": "momentum", "resnet50": "momentum"}


@functools.cache
def _published_work() -> dict[tuple[str, int, str], list[dict[str, str]]]:
    """Return the lines of work.csv by workload, pixels or tokens, and `fp32` or `half`."""
    work: dict[tuple, list] = {}
    for line in articles_published.read("work.csv"):
        key = line["workload"], int(line["size"]), line["precision"]
        work.setdefault(key, []).append(line)
    return work


def published() -> list[Times]:
    """Return published times without a serious fault, of counted workloads and known devices."""
    times = []
    for row in elsewhere.rows():
        config, faults, samples = row["config"], row["faults"], elsewhere.samples(row)
        batch = config.get("batch_size")
        device = devices.published_devices().get(row["device"])
        half = row["precision"] in (*devices.HALF, "amp")
        size = config.get("image_size") or config.get("sequence")
        lines = _published_work().get((row["workload"], size, "half" if half else "fp32"))
        serious = (elsewhere.SERIOUS - {"tf32", "amp"}).intersection(faults)
        if serious or not (samples and device and lines) or not isinstance(batch, int):
            continue
        tf32 = "tf32" in (*faults, row["precision"]) and device.flops_per_s["tf32"]
        precision = "half" if half else "tf32" if tf32 else "fp32"
        step = [_published_operator(line, batch) for line in lines]
        if "no-optimizer" in faults:
            step = [each for each in step if each.kind != "optimizer"]
        step_s = batch / samples / elsewhere.rate(row)
        times.append(Times(row["workload"], device, step_s, work_of(step, device, precision)))
    return times


def _published_operator(line: Mapping[str, str], batch: int) -> Operator:
    """Return all operators of a kind in a step of a published workload, trained with SGD."""
    moved = float(line["bytes"]) * batch + float(line["fixed_bytes"])
    return Operator(line["kind"], float(line["flops"]) * batch, moved, int(line["launches"]))


@functools.cache
def _trainings() -> list[dict[str, Any]]:
    """Return the trainings that the kit times itself; no others of a run are built."""
    notebook = definitions("mlx_or_pytorch", "rows", "common")
    return trainings.rows([*notebook.rows, *notebook.common])


def _training(experiment: str, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the one that an experiment with such settings is, if any."""
    row = dict(config)
    if experiment != "mlx_or_pytorch":
        row = {"workload": experiment, "batch_size": config.get("batch_size")}
        names = ("embedding_size", "layers", "hidden_size")
        sizes = [str(config[name]) for name in names if name in config]
        if sizes:
            row["size"] = "x".join(sizes)
    return row if row in _trainings() else None


def count(row: dict[str, Any], precision: str = "fp32", backend: str = "mps") -> Counted:
    """Count a step of a training of the kit, which is a row of `trainings.rows`."""
    import torch

    hooks = trainings.load(f"{row['workload']}_torch")
    optimizer = OPTIMIZERS.get(row["workload"], "adam")
    step = functools.partial(trainings.step, hooks, row)
    try:
        with torch.device("meta"):
            module = hooks.build(**row)
        return operators.count(module, step, precision, optimizer, backend)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        words = " ".join(str(value) for value in row.values())
        reason = one_line(f"{type(error).__name__}: {error}", 200)
        raise PomologyError(f"{words}: cannot be counted ({reason})") from error


def _steps(counted: list[tuple[dict[str, Any] | None, str]]) -> list[list[Operator]]:
    """Return the operators of trainings on backends, none where there is no training.

    They are counted in a process of their own: that of a notebook has no framework, or another.
    """
    return isolated.call("the count of trainings", f"{__name__}:_count_steps", counted)


def _count_steps(counted: list[tuple[dict[str, Any] | None, str]]) -> list[list[Operator]]:
    return [count(row, backend=backend).operators if row else [] for row, backend in counted]


def sums(record: Record) -> list[Operator] | None:
    """Return a step as the operations and bytes of a record, None where it has none in fp32.

    What computes again in the backward pass, or offloads, does more than is counted.
    """
    settings = ("recompute", "gradient_checkpointing", "offload")
    more = any(record.config.get(name) not in (None, False, "none") for name in settings)
    fp32 = cases.precision(record) == "fp32" and record.framework == "torch"
    if more or not (fp32 and record.flops_per_step and record.bytes_per_step):
        return None
    moved = Operator("elementwise", 0, record.bytes_per_step, 0)
    return [Operator("product", record.flops_per_step, 0, 0), moved]


def workload_of(record: Record) -> str:
    """Return what a case trains, whichever notebook it is of: `gpt2`, `whisper`, `vae`."""
    model = record.config.get("workload") or record.config.get("model", "")
    return str(model).partition("-")[0] or record.experiment


def of_run(records: Sequence[Record], known: Mapping[str, Device]) -> RunTimes:
    """Return a run's timed steps on its devices, on inputs that are ready where it has these."""
    timed = [
        (record, known[cases.kind(record)], flops_per_s)
        for record, flops_per_s in devices.timed_steps(records)
        if cases.kind(record) in known and sums(record)
    ]
    steps = _steps([(_training(r.experiment, r.config), device.backend) for r, device, _ in timed])
    times = []
    for (record, device, flops_per_s), step in zip(timed, steps, strict=True):
        flops = sum(each.flops for each in step)
        if abs(flops / record.flops_per_step - 1) >= 0.01:  # not what the record has counted
            step = sums(record)
        step_s = record.flops_per_step / flops_per_s
        work = work_of(step, device, "fp32")
        times.append((record, Times(workload_of(record), device, step_s, work)))
    return times
