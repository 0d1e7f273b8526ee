"""The five articles' numbers and claims: tidy data, and formulas that measured or published numbers can be put into.

A claim's `formula` is a small expression, read with `ast` and never run as Python:

    epoch_s(rival, batch_size=128) / epoch_s(gpu, batch_size=128) > 1
    all(launch_cold_s(d) / launch_s(d) > 1 for d in devices)

* A term is a metric's name, a role (`cpu`, `gpu`, `rival`) or quoted device, and keywords that tell rows apart:
  `experiment=` names another experiment than the claim's first, `backend=`, `framework=` and `precision=` select by
  these fields, `maker="Apple"` Apple's chips alone, any other keyword by the row's config. Values are in the unit that
  the metric's name says (SI).
* Values, `+ - * /`, comparisons (also chained), `and or not`, `min max mean abs all any`; generators over tuples of
  literals, or over `gpus`, `rivals`, `devices` (those that the lookup knows; `devices` is both).
* `status(...)` is a text and compares with `==` or `!=`: `status(gpu, batch_size=64) == "out-of-memory"`.

Intervals are carried conservatively, as if all terms varied independently, and a missing value is the interval from
-inf to inf: a verdict is given only if no value inside the intervals could turn it round.
"""

from __future__ import annotations

import csv
import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path

KIT = "kit"  # in place of an article's number: the kit measures itself

ROLES = ("cpu", "gpu", "rival")

FRAMEWORKS = ("torch", "tensorflow", "mlx")

# Printed unit -> factor to SI. Units that are not here (s, cores, %, x, ...) stay as they are.
UNIT_FACTORS = {"ms": 1e-3, "min": 60.0, "Min": 60.0, "GB": 1e9, "GByte": 1e9, "GiB": 2.0**30}

UNIT_FACTORS |= {"TFLOPS": 1e12, "M": 1e6, "million": 1e6, "billion": 1e9}


@dataclass(frozen=True)
class Article:
    """One article; `machines` are those it measured, `slug` is the folder of its notebooks."""

    id: str
    title: str
    author: str
    date: str
    url_or_source: str
    machines: tuple[str, ...]
    slug: str


@dataclass(frozen=True)
class Claim:
    """A sentence of an article that numbers can test; if `formula` is empty, `needs` says why there is none."""

    id: str
    article: str
    experiments: tuple[str, ...]  # those whose numbers it needs; terms that name none mean the first
    claim: str
    terms: str
    formula: str
    recomputed: str
    holds_in_published: str
    needs: str

    @property
    def experiment(self) -> str:
        return self.experiments[0]


@functools.cache
def read(name: str) -> tuple[dict[str, str], ...]:
    """The rows of a file in articles/data, as text."""
    text = (Path(__file__).parent / "data" / name).read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


@functools.cache
def _rows() -> tuple[dict, ...]:
    rows = []
    for line in read("published.csv"):
        value = float(line["value"]) if line["value"] else None
        si = None if value is None else value * UNIT_FACTORS.get(line["unit"], 1.0)
        flops = float(line["flops"]) if line["flops"] else None
        config, maker = json.loads(line["config"]), "Apple" if re.match(r"M\d", line["device"]) else ""
        numbers = {"row": int(line["row"]), "value": value, "si": si, "flops": flops}
        rows.append({**line, **numbers, "config": config, "maker": maker})
    return tuple(rows)


def _select(article: str | None, experiment: str | None) -> list[dict]:
    return [row for row in _rows() if article in (None, row["article"]) and experiment in (None, row["experiment"])]


def rows(article: str | None = None, experiment: str | None = None) -> list[dict]:
    """The published numbers as `values` has them, a dict each."""
    return [{**row, "config": dict(row["config"])} for row in _select(article, experiment)]


def experiment_of(notebook: str) -> str:
    """The article's experiment that a notebook is about: its name, without the framework where it ends in one."""
    name, _, framework = notebook.rpartition("_")
    return name if framework in FRAMEWORKS else notebook


def articles() -> list[Article]:
    """The five articles, by id."""
    return [Article(**{**line, "machines": tuple(line["machines"].split("; "))}) for line in read("articles.csv")]


def values(article: str | None = None, experiment: str | None = None):
    """The published numbers (and printed non-numbers) as a pandas.DataFrame, in the articles' order.

    `value` and `unit` are as printed, `si` is the value in the unit that the metric's name says (seconds, bytes with
    GB = 1e9, watts, degrees Celsius, joules, plain counts); both are None where no number is printed. `config` is a
    dict. A row that an article prints twice is there twice: `article`, `item` and `row` place it. `source` is
    "article", or the upstream page of a figure whose numbers the article does not print. `flops` counts the operations
    on paper behind a time or an energy, of whatever that row measures (a pass, a step, an epoch, a training); None
    where nobody has counted, or another row has the same training. tests/test_flops.py derives every count.
    """
    import pandas

    found = rows(article, experiment)
    frame = pandas.DataFrame(found, columns=[*read("published.csv")[0], "si"])
    for column in ("value", "si", "flops"):  # pandas would turn None into NaN
        frame[column] = pandas.Series([row[column] for row in found], dtype=object)
    return frame


def claims(article: str | None = None, experiment: str | None = None) -> tuple[Claim, ...]:
    """The articles' claims, by id; `experiment` selects those that the experiment takes part in."""
    lines = ({**line, "experiments": tuple(line["experiments"].split())} for line in read("claims.csv"))
    found = [Claim(**line) for line in lines if article in (None, line["article"])]
    return tuple(claim for claim in found if experiment is None or experiment in claim.experiments)
