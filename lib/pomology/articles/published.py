"""The five articles' numbers and claims, as data."""

from __future__ import annotations

import csv
import functools
import json
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

KIT = "kit"  # in place of an article's number: the kit measures itself
TODAY = "today"  # likewise: what others have timed on newer machines, see `elsewhere`

# Printed unit -> factor to SI, and the SI unit; they are rounded where they are printed.
UNITS = {"s": (1.0, "s"), "ms": (1e-3, "s"), "min": (60.0, "s"), "Min": (60.0, "s")}
UNITS |= {"GB": (1e9, "B"), "GByte": (1e9, "B"), "GiB": (2.0**30, "B"), "TFLOPS": (1e12, "FLOP/s")}
UNITS |= {
    "M": (1e6, ""),
    "million": (1e6, ""),
    "billion": (1e9, ""),
    "x": (1.0, ""),
    "%": (1.0, ""),
}
UNITS |= {"W": (1.0, "W"), "J": (1.0, "J"), "°C": (1.0, "°C")}
COUNTED = {"USD": (1.0, "USD")}  # as are cores and all others, without an SI unit
ABOUT = 0.10  # what `~35W` may be off by


class Article(NamedTuple):
    """One article; `machines` are those it measured, `slug` is the folder of its notebooks."""

    id: str
    title: str
    author: str
    date: str
    url_or_source: str
    machines: str
    slug: str


class Condition(NamedTuple):
    """What must hold for a claim to hold, see `claims`."""

    name: str
    value: str
    claimed: str
    for_each: dict[str, Any]


class Claim(NamedTuple):
    """A sentence of an article that numbers can test; without conditions it cannot be tested.

    experiments: those whose numbers it needs; terms that name none mean the first. about: the chip
    that the sentence is about, or its maker. assumes: what a verdict on this machine rests on, and
    the article does not state.
    """

    id: str
    article: str
    experiments: tuple[str, ...]
    claim: str
    terms: str
    recomputed: str
    holds_in_published: str
    needs: str
    about: str = ""
    assumes: str = ""
    conditions: tuple[Condition, ...] = ()

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
    found = []
    for line in read("published.csv"):
        value, flops = (float(line[name]) if line[name] else None for name in ("value", "flops"))
        row = line | {"row": int(line["row"]), "config": json.loads(line["config"])}
        found.append(row | {"value": value, "flops": flops} | in_si(line, value))
    return tuple(found)


def in_si(line: dict, value: float | None) -> dict:
    """A printed number in SI with its bounds: half a unit of the last digit; `~` is a tenth."""
    if value is None:
        return {"si": None}
    factor, unit = (UNITS | COUNTED).get(line["unit"], (1.0, ""))
    half = 0.5 / 10 ** len(line["value"].partition(".")[2]) if line["unit"] in UNITS else 0.0
    if "~" in line["printed"]:
        half = max(half, ABOUT * value)
    low, high = value - half, value + half
    if line["bound"] == "<":
        low, high = 0.0, value
    elif line["bound"] == ">":
        low, high = value, math.inf
    return {"si": value * factor, "si_unit": unit, "low": low * factor, "high": high * factor}


def rows(article: str | None = None, experiment: str | None = None) -> list[dict]:
    """The published rows; in SI also the bounds of what is printed, `low` and `high`."""
    return [
        row
        for row in _rows()
        if article in (None, row["article"]) and experiment in (None, row["experiment"])
    ]


@functools.cache
def software(article: str, device: str, framework: str, source: str) -> tuple[str, str]:
    """The version of a row's framework, as far as its source says, and the year.

    device, framework, source: of the row. A year that is not given is that of the article, or of an
    upstream source's newest nightly build.
    """
    texts = [framework, source]
    if source == "article":
        known = [row for row in rows(article, "software") if row["device"]]
        texts += [row["printed"] for row in known if device.startswith(row["device"])]
    else:
        upstream = source.partition(" ")[0]
        builds = {row["framework"] for row in rows(article) if row["source"].startswith(upstream)}
        texts += sorted(builds, reverse=True)
    texts += [each.date for each in articles() if each.id == article]
    year = re.search(r"(?<!\d)20[12]\d", "\n".join(texts))
    return framework.partition(" ")[2], year[0]


def articles() -> list[Article]:
    """The five articles, by id, and what stands for all others."""
    return [Article(**line) for line in read("articles.csv")]


@functools.cache
def _claims() -> tuple[Claim, ...]:
    conditions: dict[str, list[Condition]] = {line["id"]: [] for line in read("claims.csv")}
    for line in read("conditions.csv"):
        for_each = json.loads(line["for_each"] or "{}")
        condition = Condition(line["name"], line["value"], line["claimed"], for_each)
        conditions[line["claim"]].append(condition)
    return tuple(
        Claim(**line)._replace(
            experiments=tuple(line["experiments"].split()), conditions=tuple(conditions[line["id"]])
        )
        for line in read("claims.csv")
    )


def claims(article: str | None = None) -> list[Claim]:
    """The articles' claims, by id."""
    return [claim for claim in _claims() if article in (None, claim.article)]
