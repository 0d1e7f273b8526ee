"""Measured fine-tunings next to what `pomology fit` predicts for them."""

from pomology.errors import PomologyError
from pomology.extras.fit import counts, networks, times
from pomology.extras.fit.plan import Plan
from pomology.extras.prediction import devices
from pomology.format import quantity, seconds, span
from pomology.machine import snapshot
from pomology.report.table import Row, Table
from pomology.results import cases

NOTE = (
    "Memory: the peak of the allocator, or of the process on a CPU. Predicted is a step of "
    "PyTorch. A time is predicted for a device with a data sheet only."
)


def table(records, name, framework):
    """Return a table of the cases with all layers of a model, next to their prediction.

    records: of this machine. framework: of this process; MLX's has no PyTorch, which counts.
    """
    if framework == "mlx" or name not in networks.configurations():
        return Table("", [], ["The variant in PyTorch shows the prediction of known models."])
    rows, notes, gpus = [], {}, snapshot.gpus()
    for record in records:
        config, metrics = record.config, record.metrics
        if record.status != "ok" or config["model"] != name:
            continue
        plan = Plan(
            rank=config["rank"],
            sequence=config["sequence"],
            batch=config["batch_size"],
            precision=record.precision,
            layers=config.get("lora_layers", 0),
        )
        kind = cases.kind(record.backend)
        need = counts.need(name, plan, record.backend if kind == "gpu" else "cpu")
        predicted = "no data sheet"
        if kind == "gpu":
            choice, note = _device(record.chip, gpus)
            notes[note] = None
            if choice:
                step, _ = times.predict(need, plan, choice.device)
                predicted = f"{seconds(step.value)} ({span(*step.bounds, seconds)})"
        peak = metrics.get("allocated_peak_bytes") or metrics.get("footprint_peak_bytes")
        cells = {
            "Case": f"{cases.chip_name(record)}, {record.framework}, {record.precision}",
            "Batch": f"{plan.batch} × {plan.sequence:,} tokens",
            "Step": seconds(metrics["step_s"].value) if "step_s" in metrics else "",
            "Predicted step": predicted,
            "Memory": quantity(peak.value, "B") if peak else "",
            "Predicted memory": quantity(need.bytes, "B"),
        }
        rows.append(Row(cells))
    return Table("What pomology fit predicts", rows, [NOTE, *filter(None, notes)])


def _device(chip, gpus):
    """Return the device with a data sheet, or None, and how it was chosen or why there is none."""
    try:
        choice = devices.with_data_sheet(chip, gpus)
    except PomologyError as error:
        return None, str(error)
    return choice, choice.note
