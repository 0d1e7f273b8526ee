"""Published data: the numbers and claims of five articles, and training times of other sources."""

import functools
import json
import math
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pomology.errors import PomologyError
from pomology.paths import read_csv

KIT = "kit"  # in place of an article's number: experiments about the measuring machine
APPROXIMATE = 0.10  # the relative error that a printed `~35W` may have
DATA = Path(__file__).parent / "data"  # its README.md describes each file and column


@functools.cache
def read(name: str) -> tuple[dict[str, str], ...]:
    """Return the rows of a file in articles/data as texts."""
    return tuple(read_csv(DATA / name))


@functools.cache
def other_sources() -> tuple[dict[str, str], ...]:
    """Return the rows of elsewhere/ as texts, a file per source, with its name as `source`."""
    paths = sorted((DATA / "elsewhere").glob("[!.]*.csv"), key=lambda path: path.stem)
    return tuple({"source": path.stem} | row for path in paths for row in read_csv(path))


# Units of rounded numbers -> factor to SI, SI unit. Numbers in other units, as USD, are exact.
UNITS = {line["unit"]: (float(line["factor"]), line["si_unit"]) for line in read("units.csv")}
# Other sources than the articles: id -> title, author, date, licence, note and address.
SOURCES = {line["id"]: line for line in read("sources.csv")}
# Possible faults of other sources' times. Means exclude times with a serious fault.
FAULTS = {line["id"]: line["title"] for line in read("faults.csv")}
SERIOUS = {line["id"] for line in read("faults.csv") if line["serious"] == "yes"}
# Workloads of other sources: id -> title; the ids of experiments of pomology are their names.
WORKLOADS = {line["id"]: line["title"] for line in read("workloads.csv")}


@functools.cache
def rows(article: str | None = None, experiment: str | None = None) -> tuple[dict[str, Any], ...]:
    """Return the published rows in the form of `typed`, with these keys.

    row: number within the item of the article. line: equal for all values of one row. flops:
    analytic operations of the timed work. flops_per_s: these over the printed time, None if either
    is missing. year: of the software or the article. remark: why a value is not a number.
    """
    years = {article.id: article.date[:4] for article in articles()}
    selected = []
    for line in read("published.csv"):
        if article in (None, line["article"]) and experiment in (None, line["experiment"]):
            row = typed(line)
            flops = float(line["flops"]) if line["flops"] else None
            timed = flops and row["si"] and row["si_unit"] == "s"
            row |= {
                "row": int(line["row"]),
                "line": (line["item"], line["row"], line["framework"], line["backend"]),
                "flops": flops,
                "flops_per_s": flops / row["si"] if timed else None,
                "year": line["year"] or years[line["article"]],
                "remark": line["note"] if line["printed"] and row["si"] is None else "",
            }
            selected.append(row)
    return tuple(selected)


def typed(line: dict[str, str]) -> dict[str, Any]:
    """Return a line with its parsed `config`, and its number in SI units, `si`, `low` and `high`.

    The bounds are half a unit of the last printed digit away, or 10 % for `~`.
    """
    value = float(line["value"]) if line["value"] else None
    row = line | {
        "value": value,
        "config": json.loads(line["config"]),
        "si": None,
        "framework_version": line["framework"].partition(" ")[2],
    }
    if value is None:
        return row
    factor, unit = UNITS.get(line["unit"], (1.0, ""))
    # Only numbers in a unit of units.csv are rounded ones.
    decimals = len(line["value"].partition(".")[2])
    half = 0.5 / 10**decimals if line["unit"] in UNITS else 0.0
    if "~" in line["printed"]:
        half = max(half, APPROXIMATE * value)
    low, high = value - half, value + half
    # Of `< 5 s` only one bound is printed.
    if line["bound"] == "<":
        low, high = 0.0, value
    elif line["bound"] == ">":
        low, high = value, math.inf
    return row | {
        "si": value * factor,
        "si_unit": unit,
        "low": low * factor,
        "high": high * factor,
    }


@functools.cache
def elsewhere(workload: str | None = None) -> tuple[dict[str, Any], ...]:
    """Return the training times of other sources in the form of `rows`, with these keys.

    config: two rows with equal values did the same work; `data` is `random` for random tensors on
    the device. samples: their number in one unit of `rate`; 0 if it is unknown. faults: keys of
    FAULTS. place: location in the source. checked: `text` if the value was read twice from the
    source's own text, else the reason why not.
    """
    selected = []
    for line in other_sources():
        if workload in (None, line["workload"]):
            row = {
                **dict.fromkeys(("article", "backend", "note"), ""),  # columns of articles only
                **typed(line),
                "status": "ok",
                "experiment": line["workload"],
                "samples": float(line["samples"] or 0),
                "faults": tuple(line["faults"].split()),
            }
            selected.append(row)
    return tuple(selected)


def rate(row: dict[str, Any]) -> float:
    """Return samples/s or tokens/s if the source prints them, else executions of the work per s."""
    return row["si"] if row["metric"].endswith("_per_s") else 1 / row["si"]


def check_source(article: str) -> None:
    """Raise PomologyError unless this is an article's id, `today`, `kit`, or "" for no source."""
    ids = [entry.id for entry in articles()]
    if article not in ("", KIT, *ids):
        text = f"expected one of {', '.join(ids)}, {KIT}, or an empty text for no source"
        raise PomologyError(f"article {article!r}: {text}")


def articles() -> list[SimpleNamespace]:
    """Return the five articles and an entry for other sources, with the columns of articles.csv.

    machines: the measured ones. slug: the folder of the notebooks.
    """
    return [SimpleNamespace(**line) for line in read("articles.csv")]


@functools.cache
def claims(article: str | None = None) -> tuple[SimpleNamespace, ...]:
    """Return the paraphrased claims of an article, or of all, with the columns of claims.csv.

    section: of the article. experiments: those that test it; terms without one mean the first.
    reading: the conditions in words. holds: whether the article's numbers support it, or why not.
    about: the chip or its maker. restates: `yes` if it defines one printed number by others.
    conditions: with the columns of conditions.csv, see `claims`; a
    claim without any cannot be tested.
    """
    conditions = defaultdict(list)
    for line in read("conditions.csv"):
        line = line | {"for_each": json.loads(line["for_each"] or "{}")}
        conditions[line["claim"]].append(SimpleNamespace(**line))
    selected = []
    for line in read("claims.csv"):
        if article in (None, line["article"]):
            experiments = line["experiments"].split()
            parts = {"experiments": experiments, "conditions": conditions[line["id"]]}
            selected.append(SimpleNamespace(**line | parts))
    return tuple(selected)
