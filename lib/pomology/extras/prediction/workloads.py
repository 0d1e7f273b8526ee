"""The workloads of pomology that `predict` takes: how people type them, and what a step does.

workloads.csv has their names and sizes. counts.csv has the counts of a step, which `make docs`
takes from the notebooks; an installed package has no notebooks.
"""

import functools
import re
from pathlib import Path
from typing import NamedTuple

from pomology.articles import names
from pomology.errors import PomologyError
from pomology.extras.prediction import work
from pomology.extras.prediction.work import Work
from pomology.format import one_line
from pomology.paths import read_csv

WORKLOADS = Path(__file__).with_name("workloads.csv")
COUNTS = Path(__file__).with_name("counts.csv")
LISTED = "pomology models"  # the command that lists them


class Target(NamedTuple):
    """A step that is predicted. size: of the model or its input, "" if the workload has one."""

    workload: str
    batch_size: int
    size: str

    def __str__(self) -> str:
        return f"{self.workload} {self.batch_size} {self.size}".strip()


@functools.cache
def rows() -> tuple[dict[str, str], ...]:
    """Return the rows of workloads.csv: workload, title, an example, meaning and values of size."""
    return tuple(read_csv(WORKLOADS))


def sizes(workload: str) -> list[str]:
    """Return the sizes of a workload, `[""]` if it has one only."""
    (row,) = [row for row in rows() if row["workload"] == workload]
    return row["sizes"].split() or [""]


def parse(text: str) -> Target:
    """Return the step that `WORKLOAD BATCH [SIZE]` means: `VAE 128`, `bert-base 16 512`.

    Raises PomologyError, in one line with an example, for other texts.
    """
    read = re.fullmatch(r"\s*(.*?)(?:\s+([1-9]\d*))?(?:\s+(\S+))?\s*", text)
    by_spelling = {names.spelling(row["workload"]): row for row in rows()}
    name, batch_size, size = read[1], read[2], read[3] or ""
    row = by_spelling.get(names.spelling(name))
    if row is None and names.spelling(text) in by_spelling:  # `bert base` without a batch size
        row, batch_size = by_spelling[names.spelling(text)], None
    if row is None:
        workloads = [line["workload"] for line in rows()]
        raise names.unknown(name, "workload", workloads, LISTED)
    if batch_size is None:
        form = f"expected `{row['workload']} BATCH{' SIZE' if row['size'] else ''}`"
        raise PomologyError(f"{one_line(text)}: {form}, such as `{row['example']}`")
    allowed = sizes(row["workload"])
    if size not in allowed:
        only = f"{row['size']} is one of {', '.join(allowed)}" if row["size"] else "it has no size"
        raise PomologyError(f"{one_line(text)}: {only}, such as `{row['example']}`")
    return Target(row["workload"], int(batch_size), size)


@functools.cache
def _counts() -> dict[tuple[str, str, str], dict[str, tuple[float, ...]]]:
    """Return the coefficients of each quantity by workload, size and backend."""
    counts: dict[tuple[str, str, str], dict[str, tuple[float, ...]]] = {}
    for row in read_csv(COUNTS):
        key = (row["workload"], row["size"], row["backend"])
        numbers = tuple(float(row[name]) for name in ("fixed", "per_sample", "per_pair"))
        counts.setdefault(key, {})[row["quantity"]] = numbers
    return counts


def count(target: Target, precision: str = "fp32", backend: str = "mps") -> Work:
    """Return the work of a step on a backend. Raises PomologyError for an unknown precision."""
    coefficients = _counts()[target.workload, target.size, backend]
    batch_size = target.batch_size
    values = {
        name: fixed + batch_size * per_sample + batch_size**2 * per_pair
        for name, (fixed, per_sample, per_pair) in coefficients.items()
    }
    return work.in_precision(precision, **values)
