"""Results as tidy DataFrames: what runs measured, and what articles and others published, in the same columns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pomology.articles import elsewhere
from pomology.articles import published as articles_published
from pomology.errors import PomologyError
from pomology.paths import write_atomic
from pomology.results import cases
from pomology.results.record import Record
from pomology.results.run import MACHINE, Run

if TYPE_CHECKING:
    import pandas
    import pyarrow

PARQUET = "results.parquet"
TEXTS = (
    "run",
    "machine",
    "chip",
    "article",
    "experiment",
    "case",
    "framework",
    "framework_version",
)
TEXTS += ("device", "backend", "precision", "profile", "data", "status", "reason", "flags")
TEXTS += ("metric", "unit", "how", "covers", "source")
COLUMNS = dict.fromkeys(TEXTS, "str")
WORK = (
    "threads",
    "parameters",
    "flops_per_step",
    "bytes_per_step",
)  # of a case; none of them is a metric
COLUMNS |= dict.fromkeys((*WORK, "repeat", "year", "n"), "Int64") | {
    "scaled": "boolean",
    "headline": "boolean",
}
COLUMNS |= dict.fromkeys(("value", "low", "high"), "float64")
ORDER = (
    *TEXTS[:12],
    "repeat",
    "scaled",
    *WORK,
    *TEXTS[12:16],
    "metric",
    "headline",
    "value",
    "unit",
)
ORDER += ("low", "high", "n", "how", "covers", "source", "year")
MORE = ("config", "note", "data_origin", "foreign_load", "rails")
MORE += ("steady_steps", "epoch_steps", "fastest_step_s", "slowest_step_s")
TEXT = "large_string"  # as pandas gives its texts to Arrow
MIXED = (
    b"mixed"  # the key of a Parquet file's metadata that lists the settings of more than one type
)


def load(*runs: str | Path, metric: str | Sequence[str] = ()) -> pandas.DataFrame:
    """Return everything that runs measured, one row per case, repeat and metric.

    Args:
        runs: names of folders in outputs/, or paths of folders and zips.
        metric: only these metrics; "headline" is the one that each case is about.

    Returns:
        A frame with the columns of ORDER, then one column per setting (`batch_size`, `model`, …). Values are in
        SI units. A case without numbers has one row with an empty `metric`, so that its status is there.
        `flags` are separated by spaces. A setting that has the name of another column is `setting_<name>`.

    Raises:
        PomologyError: for a place that is no run.
    """
    if not runs:
        raise PomologyError("load: name at least one run, as in pomology.load('reference-cpu')")
    wanted = [metric] if isinstance(metric, str) else list(metric)
    return _decoded([_table(Run.open(str(run)), wanted) for run in runs])


def published(article: str | None = None, experiment: str | None = None) -> pandas.DataFrame:
    """Return what others have published, in the columns of `load`.

    Args:
        article: the number of an article, as "003"; None returns all five and the times of other sources.
        experiment: only this experiment, or workload of other sources.

    Returns:
        A frame with `how` "published". `low` and `high` bound what is printed, `covers` is "printed".
        `source` is "article", or the id of a source in articles/data/sources.csv.
    """
    rows = [_article_row(row) for row in articles_published.rows(article, experiment)]
    if article is None:
        rows += [_elsewhere_row(row) for row in elsewhere.rows(experiment)]
    return _frame(rows)


def of_records(records: Iterable[Record]) -> pandas.DataFrame:
    """Return the table of records with what the articles' tables show besides numbers.

    Additional columns: `config` (the settings as a dict), `note`, `data_origin`, `foreign_load`
    (cores), `rails`, `steady_steps`, `epoch_steps`, `fastest_step_s` and `slowest_step_s`.
    """
    import pandas

    rows = [row | _more(record) for record in records for row in _measured_rows(record)]
    more = {name: pandas.Series([row[name] for row in rows], dtype=object) for name in MORE}
    return _frame(rows).assign(**more)


def write(run: Run) -> Path:
    """Write the table of a run into its folder as Parquet, and return that file."""
    import io

    from pyarrow import parquet

    buffer = io.BytesIO()
    parquet.write_table(_encoded(_measured(run)), buffer, compression="zstd")
    write_atomic(run.path / PARQUET, buffer.getvalue())
    return run.path / PARQUET


def headline(record: Record) -> str:
    """Return the name of the metric that a case is about, "" for a case without a time."""
    return next((name for name in cases.TIMES if name in record.metrics), "")


def _table(run: Run, wanted: Sequence[str]) -> pyarrow.Table:
    """Return these metrics of a run: from its Parquet file where that is current, else its journals."""
    import pyarrow
    from pyarrow import compute, parquet

    conditions = compute.field("metric").isin(wanted) if wanted else compute.scalar(True)
    if "headline" in wanted:
        conditions = conditions | compute.field("headline")
    if not (run.path.is_dir() and _is_current(run.path)):
        return _encoded(_measured(run)).filter(conditions)
    table = parquet.read_table(run.path / PARQUET, filters=conditions)
    names = pyarrow.array([run.name] * len(table), TEXT)  # the folder may have another name now
    return table.set_column(table.column_names.index("run"), "run", names)


def _is_current(folder: Path) -> bool:
    """Whether the Parquet file is as new as the journals that it was made of."""
    table = folder / PARQUET
    sources = [path for path in (*folder.glob("*.jsonl*"), folder / MACHINE) if path.exists()]
    newest_ns = max((path.stat().st_mtime_ns for path in sources), default=0)
    return table.exists() and table.stat().st_mtime_ns >= newest_ns


def _encoded(frame: pandas.DataFrame) -> pyarrow.Table:
    """Return a frame as an Arrow table; columns with values of several types become JSON."""
    import pyarrow

    mixed = [name for name in frame if frame[name].dtype == object]
    columns = {name: pyarrow.array(frame[name]) for name in frame if name not in mixed}
    columns |= {name: _json(frame[name]) for name in mixed}
    table = pyarrow.table(columns).select(list(frame))
    return table.replace_schema_metadata({MIXED: json.dumps(mixed)})


def _json(values: Iterable[Any]) -> pyarrow.Array:
    import pyarrow

    return pyarrow.array([None if value is None else json.dumps(value) for value in values], TEXT)


def _decoded(tables: list[pyarrow.Table]) -> pandas.DataFrame:
    """Return tables as one frame; a setting of several types in them keeps each value's own."""
    import pandas
    import pyarrow

    kinds: dict[str, set[pyarrow.DataType]] = {}
    mixed = set()
    for table in tables:
        mixed.update(json.loads(table.schema.metadata[MIXED]))
        for field in table.schema:
            kinds.setdefault(field.name, set()).add(field.type)
    mixed.update(name for name, types in kinds.items() if len(types) > 1)
    tables = [_as_json(table, mixed) for table in tables]
    table = pyarrow.concat_tables(tables, promote_options="default")
    dtypes = {pyarrow.int64(): pandas.Int64Dtype(), pyarrow.bool_(): pandas.BooleanDtype()}
    frame = table.to_pandas(types_mapper=dtypes.get, ignore_metadata=True)
    for name in mixed:
        values = [json.loads(text) if isinstance(text, str) else None for text in frame[name]]
        frame[name] = pandas.array(values, dtype=object)
    return frame


def _as_json(table: pyarrow.Table, names: set[str]) -> pyarrow.Table:
    """Return the table with these columns as JSON, where they are not yet."""
    already = json.loads(table.schema.metadata[MIXED])
    for name in names.intersection(table.column_names).difference(already):
        texts = _json(table[name].to_pylist())
        table = table.set_column(table.column_names.index(name), name, texts)
    return table.replace_schema_metadata(None)


def _measured_rows(record: Record) -> Iterable[dict[str, Any]]:
    fields = {name: getattr(record, name) for name in TEXTS if hasattr(record, name)}
    fields |= {
        "device": cases.chip_name(record),
        "flags": " ".join(record.flags),
        "precision": cases.precision(record),
    }
    fields |= {
        "repeat": record.repeat,
        "scaled": record.scaled,
        "year": int(record.started[:4]),
        "source": "measured",
    }
    fields |= {"config": record.config, "headline": False}
    fields |= {name: getattr(record, name) or None for name in WORK}
    if not record.metrics:
        yield fields
    about = headline(record)
    for name, metric in record.metrics.items():
        numbers = {
            key: getattr(metric, key)
            for key in ("value", "unit", "low", "high", "n", "how", "covers")
        }
        yield fields | numbers | {"metric": name, "headline": name == about}


def _more(record: Record) -> dict[str, Any]:
    """Return what a case has besides its numbers, None where it lacks something."""
    training = (record.blocks or {}).get("training", {})
    steps_s = [seconds / count for count, seconds in record.steady() if count]
    return {
        "config": record.config,
        "note": record.note or "",
        "data_origin": record.data_origin or "",
        "foreign_load": record.foreign_load,
        "rails": record.rails or [],
        "steady_steps": sum(count for count, _ in record.steady()),
        "epoch_steps": training.get("epoch_steps"),
        "fastest_step_s": min(steps_s, default=None),
        "slowest_step_s": max(steps_s, default=None),
    }


def _article_row(row: dict[str, Any]) -> dict[str, Any]:
    version, year = articles_published.software(
        row["article"], row["device"], row["framework"], row["source"]
    )
    return _published_row(row) | {
        "article": row["article"],
        "experiment": row["experiment"],
        "framework_version": version,
        "backend": row["backend"],
        "status": row["status"],
        "reason": row["note"],
        "year": int(year),
    }


def _elsewhere_row(row: dict[str, Any]) -> dict[str, Any]:
    return _published_row(row) | {
        "experiment": row["workload"],
        "framework_version": row["framework"].partition(" ")[2],
        "status": "ok",
        "flags": " ".join(row["faults"]),
        "year": int(row["year"][:4]),
    }


def _published_row(row: dict[str, Any]) -> dict[str, Any]:
    fields = {
        "chip": row["device"],
        "device": row["device"],
        "precision": row["precision"],
        "source": row["source"],
    }
    fields |= {
        "framework": row["framework"].partition(" ")[0].replace("pytorch", "torch"),
        "repeat": 0,
    }
    fields |= {
        "case": cases.config_text(row["config"]),
        "config": row["config"],
        "metric": row["metric"],
    }
    fields |= {"scaled": False, "headline": row["metric"] in cases.TIMES, "how": "published"}
    if row["si"] is None:
        return fields
    numbers = {
        "value": row["si"],
        "unit": row["si_unit"] or row["unit"],
        "low": row["low"],
        "high": row["high"],
    }
    return fields | numbers | {"covers": "printed"}


def _measured(run: Run) -> pandas.DataFrame:
    """Return the table of a run's journals."""
    table = _frame([row for record in run.records for row in _measured_rows(record)])
    return table.assign(run=run.name, machine=machine_name(run.machine))


def machine_name(snapshot: dict[str, Any]) -> str:
    """Return `AMD EPYC, 2 cores, 24 GB`: what tells the computer from others, without its software."""
    parts = [cases.short_chip(snapshot.get("chip"))]
    if snapshot.get("cpu_cores"):
        parts.append(f"{snapshot['cpu_cores']} cores")
    if snapshot.get("memory_bytes"):
        parts.append(f"{snapshot['memory_bytes'] / 2**30:.0f} GB")
    return ", ".join(parts)


def _frame(rows: list[dict[str, Any]]) -> pandas.DataFrame:
    """Return rows as a frame, in which each setting of their `config` has a column."""
    import pandas

    columns = {}
    for name in ORDER:
        columns[name] = pandas.array([row.get(name) for row in rows], dtype=COLUMNS[name])
    names = dict.fromkeys(name for row in rows for name in row["config"])
    names.pop("precision", None)  # a setting of most notebooks, and the same as the column
    for name in names:
        column = f"setting_{name}" if name in COLUMNS else name
        columns[column] = _typed([row["config"].get(name) for row in rows])
    return pandas.DataFrame(columns)


def _typed(values: list[Any]) -> Any:
    """Return a setting's values as an array of one type, or of objects where they are of several."""
    import pandas

    kinds = {type(value) for value in values if value is not None}
    dtype = {bool: "boolean", int: "Int64", float: "float64", str: "str"}
    if len(kinds) == 1 and kinds <= dtype.keys():
        return pandas.array(values, dtype=dtype[kinds.pop()])
    if kinds == {int, float}:
        return pandas.array(values, dtype="float64")
    return pandas.array(values, dtype=object)
