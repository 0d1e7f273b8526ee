"""Times of training steps that somebody has measured, with the work in them: others', the articles', and a run's."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from pomology.articles import elsewhere, published
from pomology.errors import PomologyError
from pomology.extras.prediction import operators, rates
from pomology.extras.prediction.model import Observed, lines
from pomology.extras.prediction.operators import Counted, Operator
from pomology.extras.prediction.rates import Device
from pomology.format import one_line
from pomology.models import isolated, trainings
from pomology.models.definitions import definitions
from pomology.report import roofline
from pomology.results import cases
from pomology.results.record import Record

# The optimizer of each training of the kit, as `operators.OPTIMIZERS` names it; Adam where it is not here.
OPTIMIZERS = {"siamese": "adadelta", "transformer_lm": "sgd", "simclr": "momentum", "resnet50": "momentum"}
AGAIN = ("recompute", "gradient_checkpointing", "offload")  # settings whose additional work is in no count


@functools.cache
def work() -> dict[tuple[str, int, str], tuple[dict, ...]]:
    """Work on paper of published workloads, by id, pixels or tokens, and `fp32` or `half`: operators of like kind and
    operations a byte together, as `operators.count` has them of a step with SGD. flops and bytes are of one sample."""
    made: dict[tuple, list] = {}
    for line in published.read("work.csv"):
        made.setdefault((line["workload"], int(line["size"]), line["precision"]), []).append(line)
    return {key: tuple(lines) for key, lines in made.items()}


def operators_of(workload: str, size: int, precision: str, batch: int, optimizer: bool = True) -> list[Operator]:
    """A published workload's step, from `work`. Raises KeyError for one that nobody has counted."""
    made = []
    for line in work()[workload, size, "half" if precision in rates.HALF else "fp32"]:
        moved = float(line["bytes"]) * batch + float(line["fixed_bytes"])
        if optimizer or line["kind"] != "optimizer":
            made.append(Operator(line["kind"], float(line["flops"]) * batch, moved, int(line["launches"])))
    return made


def elsewheres(fault: str = "") -> list[Observed]:
    """Every time that others have published without a serious fault, or those with this one, of a workload that is
    counted and a device with a data sheet."""
    made = []
    for row in elsewhere.rows():
        config, samples, tf32 = row["config"], elsewhere.samples(row), {"tf32"} & {*row["faults"], row["precision"]}
        device, serious = rates.published_devices().get(row["device"]), elsewhere.SERIOUS - {"tf32", "amp"}
        half = row["precision"] in rates.HALF
        key = (row["workload"], config.get("image_size") or config.get("sequence"), "half" if half else "fp32")
        known = samples and device and isinstance(config.get("batch_size"), int) and key in work()
        if known and (fault in row["faults"] if fault else not serious & {*row["faults"]}):
            precision = "half" if half else "tf32" if tf32 and device.flops_per_s["tf32"] else "fp32"
            ops = operators_of(*key, config["batch_size"], "no-optimizer" not in row["faults"])
            step_s = config["batch_size"] / samples / elsewhere.rate(row)
            about = (row["workload"], device, precision, config["batch_size"], row["source"], row["year"], step_s)
            made.append(Observed(*about, lines(ops, device, precision)))
    return made


def articles() -> list[Observed]:
    """The five articles' own epochs in PyTorch on GPUs, by the work of their steps as it is counted now, which takes
    seconds. Nothing is fitted to them."""
    asked = []
    for row in published.rows():
        device = rates.published_devices().get(elsewhere.devices().get(row["device"], row["device"]))
        training, usable = _training(row["experiment"], row["config"]), "loader-bound" not in elsewhere.faults(row)
        alike = row["metric"] == "epoch_s" and row["framework"].startswith("pytorch") and row["precision"] == "fp32"
        if device and training and usable and alike and row["si"] and row["flops"]:
            asked.append((row, device, training))
    made = []
    counted = counts([(training, device.backend) for _, device, training in asked])
    for (row, device, training), work in zip(asked, counted, strict=True):
        step_s = row["si"] * sum(each.flops for each in work) / row["flops"]
        precision = "tf32" if "tf32" in elsewhere.faults(row) and device.flops_per_s["tf32"] else "fp32"
        year = published.software(row["article"], row["device"], row["framework"], row["source"])[1]
        about = (row["experiment"], device, precision, training["batch_size"], f"article {row['article']}", year)
        made.append(Observed(*about, step_s, lines(work, device, precision)))
    return made


@functools.cache
def _trainings() -> list[dict[str, Any]]:
    """The trainings that the kit times itself: of no other is anything built because a stranger's run names it."""
    notebook = definitions("trainings_torch", "rows", "common")
    return trainings.rows([*notebook.rows, *notebook.common])


def _training(experiment: str, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Which of these an experiment with such settings is; None of another."""
    sizes = [str(config[name]) for name in ("embedding_size", "layers", "hidden_size") if name in config]
    same = {"workload": experiment, "batch_size": config.get("batch_size")}
    same = dict(config) if experiment == "trainings_torch" else same | ({"size": "x".join(sizes)} if sizes else {})
    return same if same in _trainings() else None


def count(row: dict[str, Any], precision: str = "fp32", backend: str = "mps") -> Counted:
    """A step of a training of the kit, `row` as of `trainings.rows`. Raises PomologyError for what lacks in it."""
    import torch

    hooks, name = trainings.load(f"{row['workload']}_torch"), OPTIMIZERS.get(row["workload"], "adam")
    try:
        with torch.device("meta"):
            module = hooks.build(**row)
        return operators.count(module, functools.partial(trainings._step, hooks, row), precision, name, backend)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:  # each of a workload's hooks has its own
        why = one_line(f"{type(error).__name__}: {error}", 200)
        asked = " ".join(str(value) for value in row.values())
        right = "some need a size, as 'resnet50 32 224'"
        raise PomologyError(f"{asked}: its step cannot be counted ({why}); {right}") from error


def counts(asked: Sequence[tuple[dict | None, str]]) -> list[list[Operator] | None]:
    """Trainings and backends, counted in a process of its own: that of a notebook may have no framework, or another."""
    if not any(training for training, _ in asked):
        return [None] * len(asked)
    return isolated.call("the process that counts the kit's trainings", f"{__name__}:_counts", asked)


def _counts(asked: Sequence[tuple[dict | None, str]]) -> list[list[Operator] | None]:
    return [count(training, backend=backend).operators if training else None for training, backend in asked]


def sums(record: Record) -> list[Operator] | None:
    """A step in fp32 as the sums of operations and bytes that a record keeps, so of two operators, with no launch; None
    where it keeps none."""
    again = any(record.config.get(name) not in (None, False, "none") for name in AGAIN)
    known = cases.precision(record) == "fp32" and record.framework == "torch"
    if not (known and record.flops_per_step and record.bytes_per_step) or again:
        return None
    moved = Operator("elementwise", 0, record.bytes_per_step, 0)
    return [Operator("product", record.flops_per_step, 0, 0), moved]


def workload_of(record: Record) -> str:
    """What a case trains, whichever notebook it is of: `gpt2`, `whisper`, `vae`."""
    named = str(record.config.get("workload") or record.config.get("model", "")).partition("-")[0]
    return named or record.experiment


def of_run(records: Sequence[Record], run: str, devices: Mapping[str, Device]) -> list[tuple[Record, Observed]]:
    """The cases of a run whose steps were timed, the repeats of each together and on inputs that are ready where it has
    these, with their operators where the kit can count them again, and else their sums."""
    timed = roofline.rated(records, without=roofline.CEILINGS)
    timed = [pair for pair in timed if cases.kind(pair[0]) in devices and sums(pair[0])]
    again = [_training(record.experiment, record.config) for record, _ in timed]
    asked = [(each, devices[cases.kind(pair[0])].backend) for each, pair in zip(again, timed, strict=True)]
    made = []
    for (record, rate), again in zip(timed, counts(asked), strict=True):
        device, flops = devices[cases.kind(record)], sum(each.flops for each in again or ())
        work = again if again and abs(flops / record.flops_per_step - 1) < 0.01 else sums(record)
        about = (workload_of(record), device, "fp32", record.config.get("batch_size", 0), run, record.started[:4])
        made.append((record, Observed(*about, record.flops_per_step / rate.value, lines(work, device, "fp32"))))
    return made


def loading_s(records: Sequence[Record], workload: str, kind: str) -> float | None:
    """Seconds that loading a sample adds to a step, where a run has timed steps with and without; the median."""
    known = []
    for record in records:
        with_it, rate, batch = (*map(record.metrics.get, ("step_s", "flops_per_s")), record.config.get("batch_size"))
        split = record.status == "ok" and "compute_epoch_s" in record.metrics and record.flops_per_step
        if split and with_it and rate and batch and (record.experiment, cases.kind(record)) == (workload, kind):
            known.append((with_it.value - record.flops_per_step / rate.value) / batch)
    return sorted(known)[len(known) // 2] if known else None
