"""The five articles' numbers and claims, as data."""

from __future__ import annotations

import csv
import functools
import json
import math
import re
from pathlib import Path
from typing import NamedTuple

KIT = "kit"  # in place of an article's number: the kit measures itself
TODAY = "today"  # likewise: what others have timed on newer machines, see `elsewhere`

ROLES = ("cpu", "gpu", "rival")

# Photographs and sound are decoded while a model is trained, which takes as long as the files are.
DECODED = ("dcgan", "whisper_pretraining", "whisper_finetuning")

# Printed unit -> factor to SI. Units that are not here (s, cores, %, x, ...) stay as they are.
UNIT_FACTORS = {"ms": 1e-3, "min": 60.0, "Min": 60.0, "GB": 1e9, "GByte": 1e9, "GiB": 2.0**30}
UNIT_FACTORS |= {"TFLOPS": 1e12, "M": 1e6, "million": 1e6, "billion": 1e9}
SI_UNITS = dict.fromkeys(("s", "ms", "min", "Min"), "s") | dict.fromkeys(
    ("GB", "GByte", "GiB"), "B"
)
SI_UNITS |= {"TFLOPS": "FLOP/s", "W": "W", "J": "J", "°C": "°C", "USD": "USD"}
ROUNDED = {
    *UNIT_FACTORS,
    "s",
    "W",
    "J",
    "°C",
    "x",
    "%",
}  # what is not counted, and so is printed rounded
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


class Claim(NamedTuple):
    """A sentence of an article that numbers can test; if `formula` is empty, `needs` says why there is none."""

    id: str
    article: str
    experiments: tuple[
        str, ...
    ]  # those whose numbers it needs; terms that name none mean the first
    claim: str
    terms: str
    formula: str
    recomputed: str
    holds_in_published: str
    needs: str
    about: str = ""  # the chip, or its maker, that the sentence is about
    assumes: str = ""  # what a verdict on this machine rests on, and the article does not state

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
    return tuple(map(_read_row, read("published.csv")))


def _read_row(line: dict[str, str]) -> dict:
    value = float(line["value"]) if line["value"] else None
    flops = float(line["flops"]) if line["flops"] else None
    numbers = {
        "row": int(line["row"]),
        "value": value,
        "config": json.loads(line["config"]),
        "flops": flops,
    }
    return {**line, **numbers, **in_si(line, value)}


def in_si(line: dict, value: float | None) -> dict:
    """A printed number in SI, and its bounds: half a unit of its last digit away, a tenth of it behind a `~`."""
    if value is None:
        return {"si": None}
    factor = UNIT_FACTORS.get(line["unit"], 1.0)
    half = 0.5 / 10 ** len(line["value"].partition(".")[2]) if line["unit"] in ROUNDED else 0.0
    half = max(half, ABOUT * value) if "~" in line["printed"] else half
    low, high = {"<": (0.0, value), ">": (value, math.inf)}.get(
        line["bound"], (value - half, value + half)
    )
    unit = SI_UNITS.get(line["unit"], "")
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
    """With what a row was measured, as far as its source says: the version of its framework, and the year.

    device, framework, source: of the row. A year that is not given is that of the article, or of an upstream source's
    newest nightly build.
    """
    texts = [
        row["printed"]
        for row in rows(article, "software")
        if row["device"] and device.startswith(row["device"])
    ]
    if source != "article":
        upstream = source.partition(" ")[0]
        texts = sorted(
            (row["framework"] for row in rows(article) if row["source"].startswith(upstream)),
            reverse=True,
        )
    texts += [known.date for known in articles() if known.id == article]
    years = (re.search(r"(?<!\d)20[12]\d", text) for text in (framework, source, *texts))
    return framework.partition(" ")[2], next(filter(None, years))[0]


def articles() -> list[Article]:
    """The five articles, by id, and what stands for all others."""
    return [Article(**line) for line in read("articles.csv")]


def claims(article: str | None = None) -> tuple[Claim, ...]:
    """The articles' claims, by id."""
    lines = (
        {**line, "experiments": tuple(line["experiments"].split())} for line in read("claims.csv")
    )
    return tuple(Claim(**line) for line in lines if article in (None, line["article"]))
