"""How many times as fast a GPU trains as another device: printed ratios, and this machine's.

An article that shows its times in images only prints ratios of them. This machine's counterpart is
its GPU over its CPU, for each model and batch size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pomology.format import with_interval
from pomology.measure.estimate import Estimate
from pomology.report import figures
from pomology.report.article import Declaration, cases_by_work, comparable, relative_speed
from pomology.report.table import Row, Table, intervals, numbers
from pomology.results import metrics
from pomology.results.record import Record
from pomology.results.repeats import run_to_run_by_kind

HERE = "This machine's GPU over its CPU"
MEANING = (
    "How many times as fast the first device trains as the second: the second one's time over the "
    "first one's. “Up to” and “about” are the article's words."
)
NO_GPU = "This machine has no ratio: one needs times of its GPU and of its CPU."


class Printed(NamedTuple):
    """A ratio of the article. batch_size: None for all. text: why there is none without a value."""

    devices: str
    model: str
    batch_size: int | None
    text: str
    value: float | None


def table(records: Iterable[Record], declaration: Declaration) -> Table:
    """Return a row per model and batch size, with the printed ratios and this machine's.

    A further row per model has the article's ratios without a batch size, and the mean, the least
    and the greatest of this machine's. records: of one run. declaration: of the experiment, whose
    settings are `model` and `batch_size`.
    """
    printed = printed_ratios(declaration.printed)
    measured = measured_ratios(records, declaration)
    pairs = list(dict.fromkeys(ratio.devices for ratio in printed))
    keys = {(ratio.model, ratio.batch_size) for ratio in printed} | measured.keys()
    models = dict.fromkeys([*(ratio.model for ratio in printed), *(model for model, _ in measured)])
    rows = []
    for model in models:
        sizes = sorted(size for name, size in keys if name == model and size is not None)
        for size in [*dict.fromkeys(sizes), None]:
            ratios = [
                ratio for ratio in printed if (ratio.model, ratio.batch_size) == (model, size)
            ]
            rows.append(_row(model, size, pairs, ratios, measured))
    notes = [MEANING, *(intervals(rows) if measured else [NO_GPU])]
    return Table("Speed ratios", rows, notes)


def printed_ratios(printed: Iterable[dict]) -> list[Printed]:
    """Return the ratios among published rows, those in images without a value."""
    ratios = []
    for row in printed:
        if row["metric"] != "speedup" or "model" not in row["config"]:
            continue
        device, _, other = row["device"].partition(" against ")
        other = other or row["config"].get("versus", "")
        size = row["config"].get("batch_size")
        text = row["note"]  # why there is no number
        if row["si"] is not None:
            text = f"{row['value']:g}×"  # with the article's digits
            text = f"about {text}" if row["bound"] == "~" else text
            text = f"up to {text}" if row["note"].startswith("a maximum") else text
        pair = f"{device} over {other}"
        ratios.append(Printed(pair, row["config"]["model"], size, text, row["si"]))
    return ratios


def measured_ratios(
    records: Iterable[Record], declaration: Declaration
) -> dict[tuple[str, int], Estimate]:
    """Return the GPU's speed over the CPU's by model and batch size, process by process.

    Cases with further settings, such as without the fusion of operators, are left out, and so are
    those of MLX, which runs without Keras' loop.
    """
    records = list(records)
    variations = run_to_run_by_kind(records)
    of_experiment = [record for record in records if record.experiment == declaration.name]
    measured = comparable(of_experiment, declaration.time)
    by_work = cases_by_work(measured)
    ratios = {}
    for case in measured:
        usual = case.config.keys() == {"model", "batch_size"} and case.first.framework != "mlx"
        if not usual:
            continue
        ratio = relative_speed(case, by_work, declaration.time, variations, kind="cpu")
        if ratio:
            ratios[case.config["model"], case.config["batch_size"]] = ratio
    return ratios


def _row(
    model: str,
    size: int | None,
    pairs: Sequence[str],
    printed: Sequence[Printed],
    measured: dict[tuple[str, int], Estimate],
) -> Row:
    """Return the row of a model at a batch size, or of all its batch sizes (None)."""
    cells = {"Model": model, "Batch size": "all" if size is None else str(size)}
    data: dict[str, Any] = {"model": model, "batch_size": size}
    for devices in pairs:
        ratios = [ratio for ratio in printed if ratio.devices == devices]
        # A printed one says more than an image of the same devices.
        ratios.sort(key=lambda ratio: ratio.value is None)
        cells[devices] = ratios[0].text if ratios else ""
        if ratios and ratios[0].value is not None:
            data[devices] = ratios[0].value
    show = metrics.Metric("speedup").show
    ratio = measured.get((model, size)) if size is not None else None
    cells[HERE] = with_interval(ratio, show) if ratio else ""
    if size is None:
        values = [estimate.value for (name, _), estimate in measured.items() if name == model]
        if values:
            mean = sum(values) / len(values)
            cells[HERE] = f"mean {show(mean)}, {show(min(values))} to {show(max(values))}"
    return Row(cells, data | numbers("here", ratio), "plain")


def figure(records: Iterable[Record], declaration: Declaration) -> Any:
    """Return a figure of the ratios: a panel per model, a line per pair of devices and batch.

    Without a ratio of this machine it is a sentence, since the table has those of the article.
    """
    measured = measured_ratios(records, declaration)
    if not measured:
        return f"*{NO_GPU} The table has the article's.*"
    panels: dict[str, list[figures.Line]] = {}
    show = metrics.Metric("speedup").show
    for ratio in printed_ratios(declaration.printed):
        if ratio.value:
            size = f", batch size {ratio.batch_size}" if ratio.batch_size else ""
            line = figures.Line(
                f"{ratio.devices}{size}", ("published", "gpu"), ratio.text, [Estimate(ratio.value)]
            )
            panels.setdefault(ratio.model, []).append(line)
    for (model, size), ratio in measured.items():
        label = f"{HERE}, batch size {size}"
        line = figures.Line(label, ("measured", "gpu"), show(ratio.value), [ratio])
        panels.setdefault(model, []).append(line)
    return figures.ratios_figure(panels, "times as fast (above 1: the first device is faster)")
