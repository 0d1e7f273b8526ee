"""The five articles' numbers and claims, and the times that others have published, as data."""

import functools
import json
import math
import re
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pomology.paths import read_csv

KIT = "kit"  # in place of an article's number: the kit measures itself

ABOUT = 0.10  # what `~35W` may be off by


class Condition(SimpleNamespace):
    """What must hold for a claim to hold, with the columns of conditions.csv; see `claims`."""


class Claim(SimpleNamespace):
    """What an article claims, in other words than its own, with the columns of claims.csv.

    section: of the article. experiments: those whose numbers it needs; terms that name none mean
    the first. reading: how the conditions read it. holds: in the article's own numbers; why not.
    about: the chip that it is about, or its maker. conditions: without them it cannot be tested.
    """


@functools.cache
def read(name: str) -> tuple[dict[str, str], ...]:
    """The rows of a file in articles/data, as text."""
    return tuple(read_csv(Path(__file__).parent / "data" / name))


# Units that are rounded where they are printed -> factor to SI, SI unit. All others, as cores and
# USD, are counted.
UNITS = {line["unit"]: (float(line["factor"]), line["si_unit"]) for line in read("units.csv")}
# What can be wrong with a time from elsewhere. One with a serious fault is in no mean.
FAULTS = {line["id"]: line["title"] for line in read("faults.csv")}
SERIOUS = {line["id"] for line in read("faults.csv") if line["serious"] == "yes"}
# What was trained elsewhere: id -> title; the kit's experiments by their names.
WORKLOADS = {line["id"]: line["title"] for line in read("workloads.csv")}


@functools.cache
def rows(article: str | None = None, experiment: str | None = None) -> tuple[dict[str, Any], ...]:
    """Return the published rows, as `typed`; row: its number in the item. flops: its work on paper.

    year: of the article, or of what it ran with.
    """
    years = {article.id: article.date[:4] for article in articles()}
    found = []
    for line in read("published.csv"):
        if article in (None, line["article"]) and experiment in (None, line["experiment"]):
            flops = float(line["flops"]) if line["flops"] else None
            year = line["year"] or years[line["article"]]
            found.append(typed(line) | {"row": int(line["row"]), "flops": flops, "year": year})
    return tuple(found)


def typed(line: dict[str, str]) -> dict[str, Any]:
    """Return a line with its settings, and its number in SI, `si`, with bounds, `low` and `high`.

    They are half a unit of the last digit away; `~` is a tenth. version: of the framework, "" if it
    is not told.
    """
    value = float(line["value"]) if line["value"] else None
    row = line | {"value": value, "config": json.loads(line["config"]), "si": None}
    row["version"] = line["framework"].partition(" ")[2]
    if value is None:
        return row
    factor, unit = UNITS.get(line["unit"], (1.0, ""))
    half = 0.5 / 10 ** len(line["value"].partition(".")[2]) if line["unit"] in UNITS else 0.0
    if "~" in line["printed"]:
        half = max(half, ABOUT * value)
    low, high = value - half, value + half
    if line["bound"] == "<":
        low, high = 0.0, value
    elif line["bound"] == ">":
        low, high = value, math.inf
    row |= {"si": value * factor, "si_unit": unit}
    return row | {"low": low * factor, "high": high * factor}


@functools.cache
def elsewhere(workload: str | None = None) -> tuple[dict[str, Any], ...]:
    """Return what other sources have timed, in the form of `rows`, with these keys of their own.

    config: what must be equal for two rows to have done the same; of random numbers that are on
    the device already `data` is `random`, whatever the source calls them. faults: of FAULTS. place:
    where in the source it is. checked: `text` where it was read a second time from the source's own
    text, else why it could not be.
    """
    found = []
    for line in read("elsewhere.csv"):
        if workload in (None, line["workload"]):
            row = dict.fromkeys(("article", "backend", "note"), "") | typed(line)
            row |= {"status": "ok", "experiment": row["workload"]}
            found.append(row | {"faults": tuple(row["faults"].split())})
    return tuple(found)


def samples(row: dict[str, Any]) -> float:
    """Return how many samples `rate` counts as one; 0 where that is not known."""
    metric, config = row["metric"], row["config"]
    sequence, batch_size = config.get("sequence"), config.get("batch_size")
    if metric == "samples_per_s":
        return 1
    if metric == "tokens_per_s" and isinstance(sequence, int):
        return 1 / sequence
    if metric == "epoch_s":
        epoch = re.search(r"([\d,]+) images", config.get("data", ""))
        return int(epoch[1].replace(",", "")) if epoch else 0
    steps = {"fit_s": config.get("steps", 0), "steps_per_s": 1, "step_s": 1, "pass_s": 1}
    return batch_size * steps.get(metric, 0) if isinstance(batch_size, int) else 0


def rate(row: dict[str, Any]) -> float:
    """Return samples or tokens a second where those are printed, else whole pieces of work."""
    return row["si"] if row["metric"].endswith("_per_s") else 1 / row["si"]


def articles() -> list[SimpleNamespace]:
    """The five articles, by id, and what stands for all others, with the columns of articles.csv.

    machines: those it measured. slug: the folder of its notebooks.
    """
    return [SimpleNamespace(**line) for line in read("articles.csv")]


@functools.cache
def claims(article: str | None = None) -> tuple[Claim, ...]:
    """The articles' claims, by id."""
    conditions = defaultdict(list)
    for line in read("conditions.csv"):
        condition = Condition(**line | {"for_each": json.loads(line["for_each"] or "{}")})
        conditions[line["claim"]].append(condition)
    found = []
    for line in read("claims.csv"):
        if article in (None, line["article"]):
            experiments = line["experiments"].split()
            parts = {"experiments": experiments, "conditions": conditions[line["id"]]}
            found.append(Claim(**line | parts))
    return tuple(found)
