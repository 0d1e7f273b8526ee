"""Names, flags and lines of cases, as tables and the terminal show them."""

from __future__ import annotations

import re
from typing import Any

from pomology.format import IN_PROCESS, clock_time, seconds, with_interval
from pomology.paths import RESOURCES, read_csv
from pomology.results.metrics import TIMES
from pomology.results.record import Record

DEVICES = {"cpu": "CPU", "cuda": "CUDA"}
FRAMEWORKS = {"torch": "PyTorch", "tensorflow": "TensorFlow", "mlx": "MLX"}
# Part of a trainer's name, such as `bfloat16` or `16-mixed` -> precision of matmuls.
PRECISIONS = {"bf": "bf16", "tf32": "tf32", "16": "fp16", "32": "fp32"}
# A flag of `DOUBTS` leaves a number without a verdict. One of `DISTURBED` is of a moment, so that
# another repeat may be without it. Some flags are in older journals only.
FLAG_ROWS = read_csv(RESOURCES / "flags.csv")
FLAGS = {row["flag"]: row["meaning"] for row in FLAG_ROWS}
DOUBTS = {row["flag"] for row in FLAG_ROWS if row["doubt"] == "yes"}
DISTURBED = {row["flag"] for row in FLAG_ROWS if row["moment"] == "yes"}
JUDGED_STEPS = 50  # fewer losses do not show whether a model learns
LEAST_CALLS = 6  # with fewer, the time of a call has no interval
# Parts of a chip's name that add nothing: trademarks, makers and the clock.
REDUNDANT = re.compile(r"\((R|TM|tm)\)| Processor| CPU|NVIDIA |GeForce | @ .*")


def in_words(name: str) -> str:
    """Return a flag or a status as a sentence has it: `few steps`, `too slow`."""
    return name.replace("-", " ")


def config_text(config: dict) -> str:
    """Return the settings of a case in words: `batch size 32, model small`."""
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in config.items())


def short_chip(chip: str | None) -> str:
    """Return a chip's short name, such as `AMD EPYC 7B13`."""
    return REDUNDANT.sub("", chip or "this machine").strip()


def chip_word(chip: str | None) -> str:
    """Return a chip's short name for file names, such as `amd-epyc-7b13`."""
    return re.sub("[^a-z0-9]+", "-", short_chip(chip).lower()).strip("-")[:40] or "machine"


def chip_name(record: Record) -> str:
    """Return a record's chip and device, such as `AMD EPYC 7B13 CPU`."""
    return f"{short_chip(record.chip)} {DEVICES.get(record.backend, 'GPU')}"


def framework_name(framework: str) -> str:
    """Return a framework's official name, such as `PyTorch` for `torch`."""
    return FRAMEWORKS.get(framework, framework)


def with_software(device: str, framework: str, version: str, year: str | int) -> str:
    """Return a device with its known software: `M1 Ultra GPU (PyTorch 1.12.0, 2022)`."""
    if not device:
        return "the article"
    name = framework_name(framework.partition(" ")[0].replace("pytorch", "torch"))
    version = version.partition("+")[0]
    software = ", ".join(filter(None, (f"{name} {version}".strip(), str(year))))
    return f"{device} ({software})" if software else device


def published_device(row: dict[str, Any]) -> str:
    """Return the device of a published row with its software."""
    names = ("device", "framework", "framework_version", "year")
    return with_software(*(row[name] for name in names))


def calibration_s(record: Record) -> float | None:
    """Return the seconds of the calibration matmul on a case's device, after it; None without."""
    after = "after_s" if record.backend == "cpu" else "device_after_s"
    return record.calibration.get(after)


def kind(backend: str) -> str:
    """Return `cpu` or `gpu`, the requested kind of device."""
    return "cpu" if backend == "cpu" else "gpu"


def precision(record: Record) -> str:
    """Return the precision of a case's matmuls; half for `16-mixed` and `autocast bf16`."""
    text = str(record.precision).lower()
    return next((name for part, name in PRECISIONS.items() if part in text), text)


def headline(record: Record) -> str:
    """Return the name of a case's main metric; "" for a case without a time."""
    return next((name for name in TIMES if name in record.metrics), "")


def line(record: Record) -> str:
    """Return a finished case in one line: main metric, loss, notes and flags."""
    metrics = record.metrics
    case = f"{record.backend}, {config_text(record.config)}" if record.config else record.case
    if record.framework == "mlx":  # PyTorch's cases of the same notebook have the same settings
        case = f"{FRAMEWORKS['mlx']}, {case}"
    parts = [f"{record.experiment}: {case}"]
    # A loop with a throughput has a fixed number of steps, and no epochs.
    name = "step_s" if {"throughput", "step_s"} <= metrics.keys() else headline(record)
    if record.status != "ok":
        parts.append(f"{record.status} ({record.reason})" if record.reason else record.status)
    elif name:
        time = metrics[name]
        origin = "" if time.how == "measured" else f" {time.how}"
        parts.append(f"{TIMES[name]} {with_interval(time, seconds, IN_PROCESS)}{origin}")
    losses = [metrics[name] for name in ("loss_first", "loss_last") if name in metrics]
    if losses:
        parts.append(f"loss {' → '.join(f'{loss.value:.4g}' for loss in losses)}")
    parts += [record.note, ", ".join(record.flags)]
    if record.seconds is not None:
        parts.append(f"took {clock_time(record.seconds)}")
    return " · ".join(filter(None, parts))
