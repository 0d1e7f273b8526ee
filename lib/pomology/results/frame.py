"""Measured and published results as tidy DataFrames."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pomology.articles import published as articles_published
from pomology.errors import PomologyError
from pomology.paths import RESOURCES, read_csv, write_atomic
from pomology.results import cases
from pomology.results.journal import PARQUET
from pomology.results.record import Record
from pomology.results.run import Run, find

if TYPE_CHECKING:
    import pandas
    import pyarrow

# Column -> its type in Arrow; texts have the type that pandas uses.
COLUMNS = {line["column"]: line["type"] for line in read_csv(RESOURCES / "columns.csv")}


def load(*runs: str | Path, metric: str | Sequence[str] = ()) -> pandas.DataFrame:
    """Return the results of runs, one row per case, repeat and metric.

    Args:
        runs: names of folders in outputs/, or paths of folders, zips, or folders that contain them.
        metric: only these metrics; "headline" selects the main metric of each case.

    Returns:
        A frame with the columns of resources/columns.csv, then one column per setting
        (`batch_size`, `model`, …). A case without numbers has one row with an empty `metric`, which
        shows its status. A setting with the name of another column becomes `setting_<name>`.

    Raises:
        PomologyError: for a place that is not a run.
    """
    if not runs:
        raise PomologyError("load: name at least one run, such as pomology.load('reference-cpu')")
    import pyarrow

    wanted = [metric] if isinstance(metric, str) else list(metric)
    places = find(map(str, runs), "load")
    return _frame(pyarrow.concat_tables(_measured(Run(place), wanted) for place in places))


def published(article: str | None = None, experiment: str | None = None) -> pandas.DataFrame:
    """Return published results in the columns of `load`.

    Args:
        article: its number, such as "003"; None returns all five and the times of other sources.
        experiment: only this experiment, or this workload of other sources.

    Returns:
        A frame with `how` "published". `low` and `high` are the bounds of the printed, rounded
        number, and `covers` is "printed". `source` is "article", or an id in
        articles/data/sources.csv.
    """
    rows = articles_published.rows(article, experiment)
    if article is None:
        rows = (*rows, *articles_published.elsewhere(experiment))
    return _frame(_table(map(_published_row, rows)))


def of_records(records: Iterable[Record]) -> pandas.DataFrame:
    """Return records in the columns of `load`; `run` and `machine` are empty."""
    return _frame(_table(row for record in records for row in _rows(record)))


def write(run: Run) -> None:
    """Write the results of a run into its folder as Parquet."""
    from pyarrow import parquet

    buffer = io.BytesIO()
    parquet.write_table(_of_run(run), buffer, compression="zstd")
    write_atomic(run.path / PARQUET, buffer.getvalue())


def _measured(run: Run, wanted: Sequence[str]) -> pyarrow.Table:
    """Return metrics of a run, by default all.

    They come from its Parquet file if that is as new as its journals, else from the journals.
    """
    import pyarrow
    from pyarrow import compute, parquet

    chosen = compute.field("metric").isin(wanted) if wanted else compute.scalar(True)
    if "headline" in wanted:
        chosen = chosen | compute.field("headline")
    file = run.path / PARQUET
    with contextlib.suppress(OSError, pyarrow.ArrowException):  # missing or damaged
        journals_ns = [path.stat().st_mtime_ns for path in run.path.glob("[!.]*.jsonl*")]
        if file.stat().st_mtime_ns >= max(journals_ns, default=0):
            table = parquet.read_table(file, filters=chosen)
            if table.column_names == list(COLUMNS):  # an older version may have written others
                # The folder may have been renamed.
                names = pyarrow.array([run.name] * len(table), COLUMNS["run"])
                return table.set_column(table.column_names.index("run"), "run", names)
    return _of_run(run).filter(chosen)


def _of_run(run: Run) -> pyarrow.Table:
    """Return the rows of a run; `machine` reads `AMD EPYC, 2 cores, 24 GB`."""
    machine = [cases.short_chip(run.machine.get("chip"))]
    if run.machine.get("cpu_cores"):
        machine.append(f"{run.machine['cpu_cores']} cores")
    if run.machine.get("memory_bytes"):
        machine.append(f"{run.machine['memory_bytes'] / 2**30:.0f} GB")
    place = {"run": run.name, "machine": ", ".join(machine)}
    return _table(row | place for record in run.records for row in _rows(record))


def _table(rows: Iterable[dict[str, Any]]) -> pyarrow.Table:
    """Return rows as a table, with empty cells for missing columns."""
    import pyarrow

    return pyarrow.Table.from_pylist(list(rows), pyarrow.schema(COLUMNS.items()))


def _frame(table: pyarrow.Table) -> pandas.DataFrame:
    """Return a table as a frame with a column for each setting."""
    import pandas
    import pyarrow

    nullable = {pyarrow.int64(): pandas.Int64Dtype(), pyarrow.bool_(): pandas.BooleanDtype()}
    frame = table.to_pandas(types_mapper=nullable.get)
    places, texts = pandas.factorize(frame["config"])
    configs = [json.loads(text) for text in texts]
    names = dict.fromkeys(name for config in configs for name in config)
    names.pop("precision", None)  # the setting equals the column
    settings = {}
    for name in names:
        # pandas infers a common type, or else uses objects.
        values = pandas.array([config.get(name) for config in configs])
        settings[f"setting_{name}" if name in COLUMNS else name] = values.take(places)
    return pandas.concat([frame, pandas.DataFrame(settings, index=frame.index)], axis=1)


def _rows(record: Record) -> Iterable[dict[str, Any]]:
    """Yield a row for each metric of a record, or one for a record without numbers."""
    fields = {name: getattr(record, name, None) for name in COLUMNS}
    fields |= {
        "device": cases.chip_name(record),
        "precision": cases.precision(record),
        "flags": " ".join(record.flags),
        "headline": False,
        "source": "measured",
        "year": int(record.started[:4]),
        "config": json.dumps(record.config),
        "rails": ", ".join(record.rails),
        "steady_steps": sum(count for count, _ in record.steady()),
        "epoch_steps": record.blocks.get("training", {}).get("epoch_steps"),
    }
    if not record.metrics:
        yield fields
    headline = cases.headline(record)
    for name, estimate in record.metrics.items():
        number = msgspec.structs.asdict(estimate)
        number["value"] = float(estimate.value)  # Arrow rejects integers that no float represents
        yield fields | number | {"metric": name, "headline": name == headline}


def _published_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a published row of an article or another source in the columns of a frame."""
    printed = row["si"] is not None
    return {name: row.get(name) for name in COLUMNS} | {
        "chip": row["device"],
        "case": cases.config_text(row["config"]),
        "framework": row["framework"].partition(" ")[0].replace("pytorch", "torch"),
        "framework_version": row["version"],
        "repeat": 0,
        "scaled": False,
        "reason": row["note"],
        "note": None,
        "flags": " ".join(row.get("faults", ())),
        "headline": row["metric"] in cases.TIMES,
        "value": row["si"],
        "unit": (row["si_unit"] or row["unit"]) if printed else None,
        "how": "published",
        "covers": "printed" if printed else None,
        "year": int(row["year"]),
        "config": json.dumps(row["config"]),
    }
