"""The cases of a frame, each over all of its repeats: a row of a table, or a mark of a figure."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pomology.measure.estimate import Estimate, estimate
from pomology.results import cases

if TYPE_CHECKING:
    import pandas


class Case:
    """One case over its repeats.

    first: the columns of its first repeat. last: those of the last repeat that ended well, or of
    the last one. good: repeat -> its values by metric, of the repeats that ended well; operations a
    second follow from the counted step where they are not among them. each: metric -> its values in
    those. flags_of: repeat -> its flags. endings: repeat -> its status and reason, of the repeats
    that did not end well. kind: `cpu` or `gpu`, the device that was asked for.
    """

    def __init__(self, repeats: list[list[dict[str, Any]]]):
        """repeats: of each the rows of a frame, one for each metric."""
        firsts = [rows[0] for rows in repeats]
        well = [rows for rows in repeats if rows[0]["status"] == "ok"]
        failed = [row for row in firsts if row["status"] != "ok"]
        self.first = firsts[0]
        self.last = (well or repeats)[-1][0]
        self.good = {rows[0]["repeat"]: _estimates(rows) for rows in well}
        self.flags_of = {row["repeat"]: (row["flags"] or "").split() for row in firsts}
        self.endings = {row["repeat"]: (row["status"], row["reason"] or "") for row in failed}
        self.repeats = len(repeats)
        self.good_repeats = len(well)
        self.flags = sorted({flag for flags in self.flags_of.values() for flag in flags})
        self.status = "ok" if well else self.last["status"]
        self.config = self.first["config"]
        self.framework = cases.FRAMEWORKS.get(self.first["framework"], self.first["framework"])
        self.kind = cases.kind_of(self.first["backend"])
        self.each: dict[str, list[Estimate]] = {}
        flops = self.first["flops_per_step"]
        for values in self.good.values():
            if flops and "step_s" in values:
                values.setdefault("flops_per_s", estimate(flops, "FLOP") / values["step_s"])
            for metric, value in values.items():
                self.each.setdefault(metric, []).append(value)

    @cached_property
    def values(self) -> dict[str, Estimate]:
        """Metric -> the geometric mean of the repeats that ended well, and its interval."""
        means = {}
        for metric, estimates in self.each.items():
            timed = [values for values in self.good.values() if metric in values]
            # A whole training counts its epochs, of many steps each.
            steps = [values.get("step_s", values[metric]) for values in timed]
            means[metric] = cases.together(estimates, steps)
        return means


def pool(frame: pandas.DataFrame) -> list[Case]:
    """Return the cases of a frame, in order of first appearance."""
    found: dict[tuple, dict[int, list[dict]]] = {}
    for row in frame.astype(object).where(frame.notna(), None).to_dict("records"):
        row["config"] = json.loads(row["config"])
        case = (row["run"], row["experiment"], row["case"])
        found.setdefault(case, {}).setdefault(row["repeat"], []).append(row)
    return [Case(list(repeats.values())) for repeats in found.values()]


def _estimates(rows: list[dict[str, Any]]) -> dict[str, Estimate]:
    """Return the values of one repeat, with their intervals, by metric."""
    fields = Estimate.__struct_fields__
    return {row["metric"]: Estimate(*map(row.get, fields)) for row in rows if row["metric"]}
