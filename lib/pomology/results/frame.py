"""Measured and published results as tidy DataFrames."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from pomology.articles import published as articles_published
from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.paths import RESOURCES, read_csv, write_atomic
from pomology.results import cases
from pomology.results.record import Record
from pomology.results.run import Run, find

if TYPE_CHECKING:
    import pandas

# Throughputs of published trainings, which their sources print instead of times.
RATES = ("samples_per_s", "tokens_per_s", "steps_per_s")
# Column -> its type in pandas, with empty cells.
COLUMNS = {line["column"]: line["type"] for line in read_csv(RESOURCES / "columns.csv")}


def load(*runs: str | Path) -> pandas.DataFrame:
    """Return the results of runs, one row per case, repeat and metric.

    runs: names of folders in outputs/, or paths of folders, zips, or folders that contain them. The
    columns are those of resources/columns.csv, then one per setting (`batch_size`, `model`, …). A
    case without numbers has one row with an empty `metric`, which shows its status. A setting with
    the name of another column becomes `setting_<name>`. Raises PomologyError for what is no run.
    """
    if not runs:
        raise PomologyError("load: name at least one run, such as pomology.load('reference-cpu')")
    read = [Run(path) for path in find(map(str, runs), "load")]
    for run in read:
        for problem in run.problems:
            warnings.warn(f"{one_line(run.name)}: {problem}", stacklevel=2)
    return _frame(row for run in read for row in _of_run(run))


def published(article: str | None = None, experiment: str | None = None) -> pandas.DataFrame:
    """Return published results in the columns of `load`.

    article: its number, such as "003"; None returns all five and the times of other sources.
    experiment: only this experiment, or this workload of other sources. `low` and `high` are the
    bounds of the printed, rounded number. `source` is "article", or an id in sources.csv. The last
    columns are `place`, where the number stands in the source, `problem`, whether one of its flags
    is a serious one of faults.csv, and `title`, `author`, `date`, `url` and `licence` of the
    source; the licences of the five articles are not recorded.
    """
    rows = articles_published.rows(article, experiment)
    if article is None:
        rows = (*rows, *articles_published.elsewhere(experiment))
    table = _frame(map(_published_row, rows))
    table["place"] = [row.get("place") or row.get("item", "") for row in rows]
    serious = articles_published.SERIOUS
    table["problem"] = [bool(serious.intersection(row.get("faults", ()))) for row in rows]
    works: dict[str, Mapping[str, str]] = {
        each.id: {**vars(each), "url": each.url_or_source} for each in articles_published.articles()
    }
    works |= articles_published.SOURCES
    # Logs that an article refers to belong to the article.
    keys = table["source"].where(table["source"].isin(works), table["article"])
    for name in ("title", "author", "date", "url", "licence"):
        table[name] = [works[key].get(name, "") for key in keys]
    return table


def write(run: Run) -> None:
    """Write the results of a run into its folder as Parquet."""
    table = _frame(_of_run(run))[list(COLUMNS)]
    write_atomic(run.path / "results.parquet", table.to_parquet(compression="zstd"))


def machine_of(run: Run) -> str:
    """Return a run's machine in words: `AMD EPYC, 2 cores, 24 GB`."""
    machine = run.machine
    cores = f"{machine['cpu_cores']} cores" if machine.get("cpu_cores") else ""
    memory = f"{machine['memory_bytes'] / 2**30:.0f} GB" if machine.get("memory_bytes") else ""
    return ", ".join(filter(None, (cases.short_chip(machine.get("chip")), cores, memory)))


def software(machine: dict) -> str:
    """Return the commits, Python versions and frameworks of a run's cases in one line."""
    texts = []
    for state in (machine.get("software") or {"": machine}).values():
        git = state.get("git") or {}
        changed = ", with changes" if git.get("dirty") else ""
        packages = state.get("packages") or {}
        frameworks = [f"{name} {packages[name]}" for name in cases.FRAMEWORKS if name in packages]
        commit = f"commit {git.get('commit', 'unknown')[:10]}{changed}"
        texts.append(", ".join([commit, f"Python {state.get('python')}", *frameworks]))
    return "; ".join(dict.fromkeys(texts))


def _of_run(run: Run) -> Iterable[dict[str, Any]]:
    """Yield the rows of a run."""
    origin = {"run": run.name, "machine": machine_of(run)}
    for record in run.records:
        yield from (row | origin for row in _rows(record))


def _frame(rows: Iterable[dict[str, Any]]) -> pandas.DataFrame:
    """Return rows as a frame, with empty cells for missing columns, and a column per setting."""
    import pandas

    cells = ([row.get(name) for name in COLUMNS] for row in rows)
    frame = pandas.DataFrame(cells, columns=list(COLUMNS), dtype=object).astype(COLUMNS)
    # All rows of a case have the same config, so each text is parsed once.
    configs = list(map(functools.cache(json.loads), frame["config"]))
    # In the order in which cases have them.
    names = dict.fromkeys(name for config in configs for name in config)
    names.pop("precision", None)  # the setting equals the column
    settings = {}
    for name in names:
        # pandas infers a common type, or else uses objects.
        values = pandas.array([config.get(name) for config in configs])
        settings[f"setting_{name}" if name in COLUMNS else name] = values
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
        "calibration_s": cases.calibration_s(record),
        "steady_steps": sum(count for count, _ in record.steady()),
        "epoch_steps": record.blocks.get("training", {}).get("epoch_steps"),
    }
    if not record.metrics:
        yield fields
    headline = cases.headline(record)
    for name, estimate in record.metrics.items():
        yield fields | asdict(estimate) | {"metric": name, "headline": name == headline}


def _published_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a published row of an article or another source in the columns of a frame."""
    printed = row["si"] is not None
    return {name: row.get(name) for name in COLUMNS} | {
        "article": row["article"] or "today",
        "chip": row["device"],
        "case": cases.config_text(row["config"]),
        "framework": row["framework"].partition(" ")[0].replace("pytorch", "torch"),
        "repeat": 0,
        "scaled": False,
        "reason": row["note"],
        "note": None,
        "flags": " ".join(row.get("faults", ())),
        "headline": row["metric"] in (*cases.TIMES, *RATES),
        "value": row["si"],
        "unit": (row["si_unit"] or row["unit"]) if printed else None,
        "how": "published",
        "covers": "printed" if printed else None,
        "year": int(row["year"]),
        "config": json.dumps(row["config"]),
    }
