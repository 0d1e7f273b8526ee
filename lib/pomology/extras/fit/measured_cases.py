"""Measured and published LoRA trainings next to what `pomology fit` predicts for them."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from pomology.errors import PomologyError
from pomology.extras.fit import answer, counts, matrix, networks, published_runs, times
from pomology.extras.fit.plan import Plan
from pomology.extras.prediction import devices
from pomology.extras.prediction.devices import Choice, Hardware
from pomology.format import quantity, significant
from pomology.machine import snapshot
from pomology.measure import epochs
from pomology.measure.estimate import Estimate
from pomology.report import figures
from pomology.report.answer import listed
from pomology.report.table import Row, Table
from pomology.results import cases
from pomology.results.record import Record

NOTES = (
    "Memory: the peak of the allocator, or on a CPU of the process, with Python and its libraries. "
    "Predicted: by pomology fit, the tensors of a step at their peak, and tokens/s with their 90 % "
    "interval for a device with a data sheet.",
    "Published: LoRA of other models, for each model and device the run whose sequence is the "
    "nearest to this machine's first.",
)
DIFFERS = 0.15  # of published memory, from which on a row says what its prediction assumes
# Settings that a source may leave out -> their words, and what the prediction takes instead.
ASSUMED = {
    "rank": ("rank", "rank {plan.rank}"),
    "targets": ("adapted matrices", "peft's default ones"),
    "checkpointing": ("checkpointing", "no checkpointing"),
    "loss": ("loss", "transformers' loss, with logits in fp32"),
}
HAVE_A_LOSS = ("transformers", "mlx")  # frameworks whose default loss is predicted
# Words of a row's note -> why its memory is another one than that of its plan.
IN_PARTS = "chunked cross-entropy"
OF_LONGEST = "the length is a mean, and the peak is that of the longest batch"
OTHERWISE = {
    IN_PARTS: f"the run takes the logits in parts ({IN_PARTS}), the prediction all at once",
    "activations offloaded": "the run keeps activations in the host's memory, not predicted",
    "mean per sample": OF_LONGEST,
    "mean length": OF_LONGEST,
}
# Devices whose predicted speed a figure shows next to this machine's. All compute in bf16.
OTHERS = ("M4", "M4 Max", "RTX 4090", "A100 80 GB SXM")
SEQUENCES = (128, 256, 512, 1024, 2048)
TABLE_DEVICE, TABLE_MEMORY = "M4 Max", "36GB"  # of the table of models, without a GPU here


class Trained(NamedTuple):
    """A case of this machine: its record, its plan, and its device if that has a data sheet."""

    record: Record
    plan: Plan
    choice: Choice | None
    note: str


def table(records: Iterable[Record], name: str, framework: str) -> Table:
    """Return a table of this machine's cases and published ones, next to their prediction.

    records: of this machine. Cases with all layers of the model are in it. framework: of this
    process; only PyTorch counts what is not in the table of counts.
    """
    if name not in networks.configurations():
        return Table("", [], ["The prediction is of known models."])
    trained = list(_trained(records, name))
    rows = [_measured(case, name, framework) for case in trained]
    first = trained[0].plan.sequence if trained else SEQUENCES[-1]
    notes = dict.fromkeys(case.note for case in trained if case.note)
    title = "Measured here, published elsewhere, and predicted"
    return Table(title, [*rows, *_published(first)], [*NOTES, *notes])


def _trained(records: Iterable[Record], name: str) -> Iterator[Trained]:
    gpus = snapshot.gpus()
    for record in records:
        config = record.config
        if record.status != "ok" or config["model"] != name:
            continue
        plan = Plan(
            rank=config["rank"],
            sequence=config["sequence"],
            batch=config["batch_size"],
            precision=record.precision,
            layers=config.get("lora_layers", 0),
        )
        choice, note = None, ""
        if cases.kind(record.backend) == "gpu":
            choice, note = _device(record.chip, gpus)
        yield Trained(record, plan, choice, note)


def _measured(case: Trained, name: str, framework: str) -> Row:
    record, plan = case.record, case.plan
    backend = case.choice.device.backend if case.choice else "cpu"
    needed, speed = "", "no data sheet"
    # Whatever is not in the table is counted by PyTorch, which a process of MLX does not have.
    if framework == "torch" or counts.key(name, plan, backend) in counts.table():
        need = counts.need(name, plan, backend)
        needed = quantity(need.bytes, "B")
        if case.choice:
            speed = _speed(plan._replace(framework=record.framework), need, case.choice.device)
    step = record.metrics.get("step_s")
    if backend == "cpu":
        speed = "not on a CPU"
    remarks = []
    if "allocated_peak_bytes" not in record.metrics and "footprint_peak_bytes" in record.metrics:
        remarks.append("measured: the whole process, with Python and libraries")
    remarks += [f"repeat {record.repeat + 1}"] if record.repeat else []
    peak = record.metrics.get("allocated_peak_bytes") or record.metrics.get("footprint_peak_bytes")
    cells = {
        "Device": f"{cases.chip_name(record)}, {cases.framework_name(record.framework)}",
        "Model": f"{name}, {record.precision}",
        "Batch": f"{plan.batch} × {plan.sequence:,} tokens",
        "Tokens/s": significant(plan.tokens / step.value) if step else "",
        "Predicted tokens/s": speed,
        "Memory": quantity(peak.value, "B") if peak else "",
        "Predicted memory": needed,
        "Source": "this machine",
        "Notes": "; ".join(remarks),
    }
    return Row(cells, kind="measured")


def _published(sequence: int) -> Iterator[Row]:
    """Yield a row for each model and device: that with the nearest length of sequences."""
    nearest: dict[tuple[str, str], dict[str, str]] = {}
    for row in published_runs.lora():
        key = row["model"], row["device"]
        before = nearest.get(key)
        if before is None or _distance(row, sequence) < _distance(before, sequence):
            nearest[key] = row
    sheets = devices.published_devices()
    for (name, device), row in sorted(nearest.items()):
        plan = published_runs.planned(row)
        needed, speed, remark = "", "no data sheet", ""
        peak = row["peak_memory_gb"]
        hardware = sheets.get(device)
        if hardware:
            need = counts.need(name, plan, hardware.backend)
            needed, speed = quantity(need.bytes, "B"), _speed(plan, need, hardware)
            if peak and abs(need.bytes / (1e9 * float(peak)) - 1) > DIFFERS:
                remark = difference(row, plan, hardware.backend)
        cells = {
            "Device": f"{device}, {row['framework']}",
            "Model": f"{name}, {row['precision']}",
            "Batch": f"{plan.batch} × {plan.sequence:,} tokens",
            "Tokens/s": significant(float(row["tokens_per_s"])),
            "Predicted tokens/s": speed,
            "Memory": f"{significant(float(peak))} GB" if peak else "",
            "Predicted memory": needed,
            "Source": published_runs.author(row),
            "Notes": remark,
        }
        yield Row(cells, kind="published")


def difference(row: dict[str, str], plan: Plan, backend: str) -> str:
    """Return what may explain that a run's published memory is not that of its plan, from its row.

    These are settings that the source does not state, and what it does otherwise than the plan.
    """
    absent = [name for name in ASSUMED if not row[name]]
    if row["framework"] in HAVE_A_LOSS or IN_PARTS in row["note"]:
        absent = [name for name in absent if name != "loss"]
    parts = []
    if absent:
        words, assumed = zip(*(ASSUMED[name] for name in absent), strict=True)
        taken = listed([each.format(plan=plan) for each in assumed])
        parts.append(f"the source does not state {listed(words)}; predicted with {taken}")
    other = plan._replace(checkpointing=True)
    if "checkpointing" in absent and counts.key(row["model"], other, backend) in counts.table():
        size = quantity(counts.need(row["model"], other, backend).bytes, "B")
        parts.append(f"with checkpointing {size} would be predicted")
    parts += dict.fromkeys(words for part, words in OTHERWISE.items() if part in row["note"])
    unexplained = "the settings that the source states do not explain the difference"
    return f"memory: {'; '.join(parts) or unexplained}"


def _distance(row: dict[str, str], sequence: int) -> float:
    return abs(float(row["sequence"]) - sequence)


def _speed(plan: Plan, need: counts.Need, device: Hardware) -> str:
    """Return a predicted speed with its interval."""
    step, _ = times.predict(need, plan, device)
    rate, low, high = (
        significant(plan.tokens / each, 2) for each in (step.value, step.high, step.low)
    )
    return f"{rate} ({low} to {high})"


def figure(records: Iterable[Record], name: str) -> Any:
    """Return a figure of tokens/s over the length of sequences, a panel a batch; None without any.

    Measured cases have markers, and this machine's GPU and OTHERS dashed lines of what is
    predicted.
    """
    if name not in networks.configurations():
        return None
    by_batch: dict[int, dict[tuple, list[tuple[float, Estimate]]]] = {}
    own: dict[tuple[str, str], Hardware] = {}  # device and framework -> its data sheet
    for case in _trained(records, name):
        record, plan = case.record, case.plan
        if "step_s" not in record.metrics:
            continue
        chip = cases.chip_name(record)
        key = (
            f"{chip}, {cases.framework_name(record.framework)}, measured",
            ("measured", cases.kind(record.backend)),
        )
        rate = epochs.rate(plan.tokens, record.metrics["step_s"], "tokens/s")
        lines = by_batch.setdefault(plan.batch, {})
        lines.setdefault(key, []).append((plan.sequence, rate))
        if case.choice:
            own[chip, record.framework] = case.choice.device
    if not by_batch:
        by_batch[1] = {}
    for batch, lines in by_batch.items():
        for (chip, framework), hardware in own.items():
            key = f"{chip}, {framework}, predicted", ("measured", "gpu")
            plan = Plan(batch=batch, framework=framework)
            lines[key] = list(_predicted(name, plan, hardware))
        for device in OTHERS:
            hardware = devices.with_data_sheet(device).device
            role = "gpu" if hardware.backend == "mps" else "rival"
            key = f"{hardware.name}, predicted", ("published", role)
            lines[key] = list(_predicted(name, Plan(batch=batch), hardware))
    curves = {f"Batch {batch}": lines for batch, lines in by_batch.items()}
    low, high = (math.exp(end) for end in times.kept()["spread"])
    remark = f"predicted: LoRA in bf16; 90 % are within {1 / high:.2f} and {1 / low:.2f} times"
    scale = figures.Scale("tokens per second (higher is better)", 1, str)
    return figures.draw_lines(curves, "tokens of a sequence", scale, remark)


def _predicted(name: str, plan: Plan, device: Hardware) -> Iterator[tuple[float, Estimate]]:
    """Yield lengths of sequences, and the predicted tokens per second."""
    for sequence in SEQUENCES:
        plan = plan._replace(sequence=sequence)
        need = counts.need(name, plan._replace(framework="torch"), device.backend)
        step, _ = times.predict(need, plan, device)
        yield sequence, Estimate(plan.tokens / step.value, "tokens/s", how="estimated")


def models(framework: str) -> Table:
    """Return the table of `pomology fit --table` for this machine's GPU, else TABLE_DEVICE.

    framework: of this process.
    """
    options = argparse.Namespace(on=None, memory=None, framework=framework)
    where = answer.training_device(options)
    if where.backend not in matrix.COUNTED:
        options.on, options.memory = TABLE_DEVICE, TABLE_MEMORY
        where = answer.training_device(options)
    return matrix.table(Plan(framework=framework, batch=4 if framework == "mlx" else 1), where)


def _device(chip: str | None, gpus: Any) -> tuple[Choice | None, str]:
    """Return the device with a data sheet, or None, and how it was chosen or why there is none."""
    try:
        choice = devices.with_data_sheet(chip or "", gpus)
    except PomologyError as error:
        return None, str(error)
    return choice, choice.note
