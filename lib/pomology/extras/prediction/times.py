"""Measured times of training steps, with the work in them: published ones, and those of a run."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pomology.articles import elsewhere
from pomology.articles import published as articles_published
from pomology.errors import PomologyError
from pomology.extras.prediction import devices, work
from pomology.extras.prediction.devices import Device
from pomology.extras.prediction.model import COLUMNS, columns
from pomology.extras.prediction.work import Work
from pomology.format import one_line
from pomology.models import trainings
from pomology.models.definitions import definitions
from pomology.report.article import achieved
from pomology.results.pool import Case, pool

if TYPE_CHECKING:
    import pandas

TRAININGS = "trainings_torch"  # the notebook that trains a workload of each kind
# With one of these settings a step does more than is counted.
COUNTED_LESS = ("recompute", "gradient_checkpointing", "offload")


def published() -> pandas.DataFrame:
    """Return published times without a serious fault, of counted workloads and known devices.

    A row per time: `workload`, `device`, `step_s`, and `model.COLUMNS`.
    """
    import pandas

    counted = {
        (line["workload"], int(line["size"]), line["precision"]): line
        for line in articles_published.read("work.csv")
    }
    times = []
    for row in elsewhere.rows():
        config, faults, samples = row["config"], row["faults"], elsewhere.samples(row)
        batch = config.get("batch_size")
        device = devices.published_devices().get(row["device"])
        half = row["precision"] in (*devices.HALF, "amp")
        size = config.get("image_size") or config.get("sequence")
        line = counted.get((row["workload"], size, "half" if half else "fp32"))
        serious = (elsewhere.SERIOUS - {"tf32", "amp"}).intersection(faults)
        if serious or not (samples and device and line) or not isinstance(batch, int):
            continue
        tf32 = "tf32" in (*faults, row["precision"]) and device.flops_per_s["tf32"]
        precision = "half" if half else "tf32" if tf32 else "fp32"
        step = _published_step(line, batch, "no-optimizer" not in faults)
        step_s = batch / samples / elsewhere.rate(row)
        time = {"workload": row["workload"], "device": device.name, "step_s": step_s}
        times.append(time | columns(step, device, precision))
    return pandas.DataFrame(times)


def _published_step(line: Mapping[str, str], batch: int, updated: bool) -> Work:
    """Return a step of a published workload; updated: with its optimizer, SGD."""
    names = ("convolutions", "products", "bytes", "fixed_bytes", "launches", "update_bytes")
    convolutions, products, moved, fixed, launches, update = (float(line[name]) for name in names)
    moved = moved * batch + fixed + (update if updated else 0)
    launches += int(line["update_launches"]) if updated else 0
    return Work(convolutions * batch, products * batch, moved, launches)


def count(row: dict[str, Any], precision: str = "fp32", backend: str = "mps") -> Work:
    """Count a step of a training of the kit, which is a row of `trainings.rows`."""
    import torch

    hooks = trainings.load(f"{row['workload']}_torch")

    def optimizers(module: Any) -> list[Any]:
        return [hooks.optimizer(part, 0.01, 0.0) for part, _ in trainings.passes(hooks, module)]

    try:
        with torch.device("meta"):
            module = hooks.build(**row)
        step = functools.partial(trainings.step, hooks, row)
        return work.count(module, step, optimizers, precision, backend)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        words = " ".join(str(value) for value in row.values())
        reason = one_line(f"{type(error).__name__}: {error}", 200)
        raise PomologyError(f"{words}: cannot be counted ({reason})") from error


@functools.cache
def _trainings() -> list[dict[str, Any]]:
    """Return the trainings that the kit times itself; no others of a run are built."""
    notebook = definitions(TRAININGS, "rows", "common")
    return trainings.rows([*notebook.rows, *notebook.common])


def _training(case: Case) -> dict[str, Any] | None:
    """Return the training of the kit that a case is, if any."""
    config = case.config
    row = {"workload": config.get("workload", case.first["experiment"])}
    row["batch_size"] = config.get("batch_size")
    sizes = [config.get(name) for name in ("embedding_size", "layers", "hidden_size")]
    size = config.get("size") or "x".join(str(number) for number in sizes if number)
    if size:
        row["size"] = size
    return row if row in _trainings() else None


def step_of(case: Case, backend: str) -> Work | None:
    """Return a case's step in fp32: counted anew, or the sums that its run has noted."""
    flops = case.first["flops_per_step"]
    moved = case.first["bytes_per_step"]
    more = any(case.config.get(name) not in (None, False, "none") for name in COUNTED_LESS)
    fp32 = case.first["precision"] == "fp32" and case.first["framework"] == "torch"
    if more or not (fp32 and flops and moved):
        return None
    training = _training(case)
    if training:
        step = count(training, backend=backend)
        if abs((step.convolutions + step.products) / flops - 1) < 0.01:  # what the run has timed
            return step
    return Work(0, flops, moved, 0)


def workload_of(case: Case) -> str:
    """Return what a case trains, whichever notebook it is of: `gpt2`, `whisper`, `vae`."""
    model = case.config.get("workload") or case.config.get("model", "")
    return str(model).partition("-")[0] or case.first["experiment"]


def of_run(frame: pandas.DataFrame, known: Mapping[str, Device]) -> pandas.DataFrame:
    """Return a run's timed steps on its devices, as `published` does.

    frame: by `pomology.load`. known: by `devices.measured_devices`. PyTorch counts their work, in
    this process.
    """
    import pandas

    times = []
    for case in pool(frame[frame["profile"].ne("smoke")]):
        device = known.get(case.kind)
        rate = achieved(case)
        if not device or not rate or rate.value <= 0 or "operation" in case.config:
            continue
        step = step_of(case, device.backend)
        if step:
            time = {"workload": workload_of(case), "device": device.name}
            time["step_s"] = case.first["flops_per_step"] / rate.value
            times.append(time | columns(step, device, "fp32"))
    return pandas.DataFrame(times, columns=["workload", "device", "step_s", *COLUMNS])
