"""The cases of a frame, each over all of its repeats: what tables and figures show a row or a mark of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pomology.measure.estimate import Estimate
from pomology.results import cases

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Case:
    """One case over its repeats.

    first: the columns of its first repeat. last: those of the last repeat that ended well, or of the last one.
    values: metric -> the geometric mean of the repeats that ended well, with the interval between them.
    each: metric -> the estimates of these repeats. endings: (status, reason) of the repeats that did not end well.
    """

    first: dict[str, Any]
    last: dict[str, Any]
    values: dict[str, Estimate]
    each: dict[str, list[Estimate]]
    repeats: int
    good_repeats: int
    endings: list[tuple[str, str]]
    flags: list[str]

    @property
    def status(self) -> str:
        return "ok" if self.good_repeats else self.last["status"]

    @property
    def config(self) -> dict[str, Any]:
        return self.first["config"]

    @property
    def kind(self) -> str:
        """`cpu` or `gpu`: the device that was asked for."""
        return "cpu" if self.first["backend"] == "cpu" else "gpu"


def pool(frame: pandas.DataFrame) -> list[Case]:
    """Return the cases of a frame with the columns of `frame.of_run`, in order of first appearance."""
    found: dict[tuple[str, str], list[list[dict]]] = {}
    for rows in repeats(frame):
        found.setdefault((rows[0]["experiment"], rows[0]["case"]), []).append(rows)
    return [_case(each) for each in found.values()]


def repeats(frame: pandas.DataFrame) -> list[list[dict[str, Any]]]:
    """Return the rows of each repeat of each case, with None for what is missing."""
    found: dict[tuple[str, str, int], list[dict]] = {}
    known = frame.astype(object).where(frame.notna(), None)
    for row in known.to_dict("records"):
        found.setdefault((row["experiment"], row["case"], row["repeat"]), []).append(row)
    return list(found.values())


def estimates(rows: list[dict[str, Any]]) -> dict[str, Estimate]:
    """Return the values of one repeat, by metric."""
    return {row["metric"]: estimate(row) for row in rows if row["metric"]}


def estimate(row: dict[str, Any]) -> Estimate:
    """Return the value of a row with its interval."""
    names = ("value", "unit", "low", "high", "n", "how", "covers")
    return Estimate(*(row[name] for name in names))


def _case(repeats: list[list[dict]]) -> Case:
    good = [rows for rows in repeats if rows[0]["status"] == "ok"]
    each: dict[str, list[Estimate]] = {}
    steps: dict[str, list[Estimate]] = {}
    for rows in good:
        numbers = estimates(rows)
        for name, value in numbers.items():
            each.setdefault(name, []).append(value)
            # A whole training counts its epochs, of many steps each.
            steps.setdefault(name, []).append(numbers.get("step_s", value))
    values = {name: cases.together(numbers, steps[name]) for name, numbers in each.items()}
    last = (good or repeats)[-1][0]
    endings = [(rows[0]["status"], rows[0]["reason"] or "") for rows in repeats if rows[0]["status"] != "ok"]
    flags = sorted({flag for rows in repeats for flag in (rows[0]["flags"] or "").split()})
    return Case(repeats[0][0], last, values, each, len(repeats), len(good), endings, flags)
