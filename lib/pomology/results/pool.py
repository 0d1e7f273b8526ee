"""The cases of a frame, each over all of its repeats: a row of a table, or a mark of a figure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pomology.measure.estimate import Estimate
from pomology.results import cases

if TYPE_CHECKING:
    import pandas

CASE = ("run", "experiment", "case")
ESTIMATE = ("value", "unit", "low", "high", "n", "how", "covers")


@dataclass(frozen=True)
class Case:
    """One case over its repeats.

    first: the columns of its first repeat. last: those of the last repeat that ended well, or of
    the last one. good: repeat -> its values by metric, of the repeats that ended well. flags_of:
    repeat -> its flags. endings: (status, reason) of the repeats that did not end well.
    """

    first: dict[str, Any]
    last: dict[str, Any]
    good: dict[int, dict[str, Estimate]]
    flags_of: dict[int, list[str]]
    endings: list[tuple[str, str]]

    @cached_property
    def values(self) -> dict[str, Estimate]:
        """Metric -> the geometric mean of the repeats that ended well, and its interval."""
        return {metric: self.mean(metric, list(self.good)) for metric in self.each}

    @cached_property
    def each(self) -> dict[str, list[Estimate]]:
        """Metric -> the estimates of the repeats that ended well."""
        found: dict[str, list[Estimate]] = {}
        for values in self.good.values():
            for metric, value in values.items():
                found.setdefault(metric, []).append(value)
        return found

    def mean(self, metric: str, repeats: list[int]) -> Estimate | None:
        """Return the geometric mean of a metric over some of the repeats that ended well."""
        chosen = [self.good[repeat] for repeat in repeats if metric in self.good[repeat]]
        # A whole training counts its epochs, of many steps each.
        steps = [values.get("step_s", values[metric]) for values in chosen]
        return cases.together([values[metric] for values in chosen], steps)

    @property
    def repeats(self) -> int:
        return len(self.flags_of)

    @property
    def good_repeats(self) -> int:
        return len(self.good)

    @property
    def flags(self) -> list[str]:
        return sorted({flag for flags in self.flags_of.values() for flag in flags})

    @property
    def status(self) -> str:
        return "ok" if self.good else self.last["status"]

    @property
    def config(self) -> dict[str, Any]:
        return self.first["config"]

    @property
    def framework(self) -> str:
        """The framework's name as people write it: `PyTorch`."""
        return cases.FRAMEWORKS.get(self.first["framework"], self.first["framework"])

    @property
    def kind(self) -> str:
        """`cpu` or `gpu`: the device that was asked for."""
        return cases.kind_of(self.first["backend"])


def pool(frame: pandas.DataFrame) -> list[Case]:
    """Return the cases of a frame, in order of first appearance."""
    found: dict[tuple, list[list[dict]]] = {}
    for rows in repeats(frame):
        found.setdefault(tuple(rows[0][name] for name in CASE), []).append(rows)
    return [_case(each) for each in found.values()]


def repeats(frame: pandas.DataFrame) -> list[list[dict[str, Any]]]:
    """Return the rows of each repeat of each case, with None for what is missing.

    In a row `config` is a dict.
    """
    found: dict[tuple, list[dict]] = {}
    for row in frame.astype(object).where(frame.notna(), None).to_dict("records"):
        row["config"] = json.loads(row["config"])
        found.setdefault(tuple(row[name] for name in (*CASE, "repeat")), []).append(row)
    return list(found.values())


def estimates(rows: list[dict[str, Any]]) -> dict[str, Estimate]:
    """Return the values of one repeat, with their intervals, by metric."""
    return {
        row["metric"]: Estimate(*(row[name] for name in ESTIMATE)) for row in rows if row["metric"]
    }


def counted_rate(flops: int | None, step: Estimate | None) -> Estimate | None:
    """Return the operations a second of a step.

    None where they were not counted, or the step was not timed.
    """
    if not flops or flops <= 0 or step is None or step.value <= 0:
        return None
    return Estimate.count(flops, "FLOP") / step


def _case(repeats: list[list[dict]]) -> Case:
    well = [rows for rows in repeats if rows[0]["status"] == "ok"]
    firsts = [rows[0] for rows in repeats]
    return Case(
        first=firsts[0],
        last=(well or repeats)[-1][0],
        good={rows[0]["repeat"]: estimates(rows) for rows in well},
        flags_of={row["repeat"]: (row["flags"] or "").split() for row in firsts},
        endings=[(row["status"], row["reason"] or "") for row in firsts if row["status"] != "ok"],
    )
