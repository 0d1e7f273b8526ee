"""Measured times of training steps with their work: published ones, and those of a run."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pomology.articles import published as articles_published
from pomology.extras.prediction import devices
from pomology.extras.prediction.devices import Hardware
from pomology.extras.prediction.model import COLUMNS, columns
from pomology.extras.prediction.work import Work
from pomology.results import cases
from pomology.results.record import Record
from pomology.results.repeats import Repeats, pool

if TYPE_CHECKING:
    import pandas

# Settings with which a step does more work than is counted.
UNCOUNTED = ("recompute", "gradient_checkpointing", "offload")


@functools.cache
def published() -> pandas.DataFrame:
    """Return published times without serious faults, for counted workloads and known devices.

    A frame with a row per time: `workload`, `device`, its `maker`, `source` (a name in elsewhere/),
    `precision` (fp32, tf32 or half), `step_s`, and `model.COLUMNS`.
    """
    import pandas

    counted = {
        (line["workload"], int(line["size"]), line["precision"]): line
        for line in articles_published.read("work.csv")
    }
    times = []
    for row in articles_published.elsewhere():
        config, faults, samples = row["config"], row["faults"], row["samples"]
        batch = config.get("batch_size")
        device = devices.published_devices().get(row["device"])
        half = row["precision"] in (*devices.HALF, "amp")
        size = config.get("image_size") or config.get("sequence")
        line = counted.get((row["workload"], size, "half" if half else "fp32"))
        serious = (articles_published.SERIOUS - {"tf32", "amp"}).intersection(faults)
        if serious or not (samples and device and line) or not isinstance(batch, int):
            continue
        tf32 = "tf32" in (*faults, row["precision"]) and device.flops_per_s["tf32"]
        precision = "half" if half else "tf32" if tf32 else "fp32"
        step = _published_step(line, batch, "no-optimizer" not in faults)
        step_s = batch / samples / articles_published.rate(row)
        time = {
            "workload": row["workload"],
            "device": device.name,
            "maker": device.maker,
            "source": row["source"],
            "precision": precision,
            "step_s": step_s,
        }
        times.append(time | columns(step, device, precision))
    return pandas.DataFrame(times)


def _published_step(line: Mapping[str, str], batch: int, updated: bool) -> Work:
    """Return a step of a published workload. updated: with the update by SGD."""
    per_sample = (float(line[name]) for name in ("convolutions", "products", "bytes"))
    convolutions, products, moved = (batch * number for number in per_sample)
    moved += float(line["fixed_bytes"]) + updated * float(line["update_bytes"])
    launches = float(line["launches"]) + updated * float(line["update_launches"])
    return Work(convolutions, products, moved, launches)


def recorded(record: Record) -> Work | None:
    """Return a step as its recorded operations and bytes; None unless in fp32 by PyTorch."""
    counted = all(record.config.get(name) in (None, False, "none") for name in UNCOUNTED)
    alike = counted and (cases.precision(record), record.framework) == ("fp32", "torch")
    if not (alike and record.flops_per_step and record.bytes_per_step):
        return None
    return Work(0, record.flops_per_step, record.bytes_per_step, 0)


def sums(case: Repeats) -> Work | None:
    """Return the step of a case, see `recorded`."""
    return recorded(case.first)


def workload_of(case: Repeats) -> str:
    """Return the workload of a case of any notebook: `gpt2`, `whisper`, `vae`."""
    model = case.config.get("workload") or case.config.get("model", "")
    return str(model).partition("-")[0] or case.first.experiment


def of_run(records: Iterable[Record], peaks: Mapping[str, Hardware]) -> pandas.DataFrame:
    """Return a run's timed steps, with the work by `sums`.

    A frame in the form of `published`, without `maker` and `source`. records: of the run. peaks:
    from `devices.measured_devices`.
    """
    import pandas

    times = []
    for case in pool(record for record in records if record.profile != "smoke"):
        device, rate, step = peaks.get(case.kind), case.values.get("flops_per_s"), sums(case)
        if device and step and rate and rate.value > 0 and "operation" not in case.config:
            time = {"workload": workload_of(case), "device": device.name, "precision": "fp32"}
            time["step_s"] = step.flops / rate.value
            times.append(time | columns(step, device, "fp32"))
    names = ["workload", "device", "precision", "step_s", *COLUMNS]
    return pandas.DataFrame(times, columns=names)
