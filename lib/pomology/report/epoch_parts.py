"""Where a SimCLR epoch goes: a table of its parts, which the notebook times one by one."""

from collections.abc import Iterable

from pomology.format import resolved
from pomology.measure.estimate import Estimate
from pomology.report.table import Table
from pomology.results.cases import chip_name
from pomology.results.record import Record

PARTS = {"Training": "training_epoch_s", "Waiting for data": "waiting_epoch_s", "Evaluation": "evaluation_epoch_s"}
PARTS |= {"Reading alone": "reading_epoch_s", "Augmentation alone": "augmentation_epoch_s"}
PARTS |= {"The loader alone": "loader_epoch_s"}
NOTES = (
    "Training: on batches that are on the device already, with the augmentation where the device makes it.",
    "Waiting for data: what a step with the loader takes beyond that.",
    "Not resolved: it is not above 0 beyond its interval, or rests on fewer than 10 steps.",
    "Alone: nothing else runs. Reading and augmentation are of one process; the loader has its workers.",
)


def parts(metrics: dict[str, Estimate]) -> dict[str, Estimate | None]:
    """Seconds of each part of an epoch: those that were timed, and those that are differences of two times."""
    known = {heading: metrics.get(name) for heading, name in PARTS.items()}
    if "loop_epoch_s" in metrics:
        known["Waiting for data"] = metrics["loop_epoch_s"] - metrics["training_epoch_s"]
    if "views_epoch_s" in metrics:
        known["Augmentation alone"] = metrics["views_epoch_s"] - metrics["reading_epoch_s"]
    return known


def table(records: Iterable[Record]) -> Table:
    """The parts of an epoch for each way to load."""
    lines = []
    for record in records:
        start, config = record.metrics.get("loader_start_s"), record.config
        missing = "not measured" if record.status == "ok" else record.status
        cells = [resolved(part) if part else missing for part in parts(record.metrics).values()]
        cells.append(f"{start.value:,.1f} s" if start else missing)
        way = f"{config['workers']} workers" + (", persistent" if config["persistent"] == "yes" else "")
        lines.append(((chip_name(record), way, config["augmentation"], *cells), {}, "measured"))
    columns = ("Chip", "Loader", "Augmentation by the", *PARTS, "First batch of the loader")
    return Table.of("Parts of an epoch", columns, lines, NOTES)
