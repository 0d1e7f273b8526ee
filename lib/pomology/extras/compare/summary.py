"""What a comparison of runs says as a whole: a line for each run, and one for each experiment."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import geometric_mean, median
from typing import Any

from pomology.extras.compare.comparison import changed
from pomology.format import one_line, significant
from pomology.report.table import Row, Table
from pomology.results.comparing import FASTER, SLOWER

NO_VERDICT = "no verdict"
VERDICTS = (FASTER, SLOWER, NO_VERDICT)
RATIO = "Ratio: geometric mean of the times over those of the first run, so below 1 is faster."


def headlines(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[str]:
    """Return a line for each run but the first: how long it takes of the first one's times.

    rows: the data of `comparison.table`. names: of all runs.
    """
    first, *others = names
    return [_headline(first, name, [row for row in rows if row["run"] == name]) for name in others]


def _headline(first: str, name: str, rows: Sequence[dict[str, Any]]) -> str:
    timed = [row for row in rows if row["ratio"]]
    if not timed:
        return f"{name}: no case has a time in {first}, too"
    ratio = geometric_mean([row["ratio"] for row in timed])
    bases = dict.fromkeys(row["base"] for row in timed)
    of = first if list(bases) == [first] else "the first run that has each case"
    line = f"{name} takes {significant(ratio)} times as long as {of}, {_counted(timed)}"
    # Each case has the calibrations of its own device.
    change = median(row["machine"] for row in timed)
    if change != 1:  # which a small change is, see `comparison`
        line += f"; its calibration was {changed(change)}"
    return one_line(line, 300)


def _counted(rows: Sequence[dict[str, Any]]) -> str:
    """Return how many cases have which verdict, in words."""
    counts = Counter(map(verdict, rows))
    cases = "case" if len(rows) == 1 else "cases"
    words = ", ".join(f"{name} {counts[name]}" for name in VERDICTS if counts[name])
    return f"{len(rows)} {cases}: {words}"


def verdict(row: dict[str, Any]) -> str:
    """Return faster, slower, or that a case has no verdict, also where it is in doubt."""
    words = row["verdict"].partition(";")[0]
    return words if words in (FASTER, SLOWER) else NO_VERDICT


def table(rows: Iterable[dict[str, Any]]) -> Table:
    """Return a row for each experiment of each run, with the ratios of its cases.

    rows: the data of `comparison.table`.
    """
    groups = defaultdict(list)
    for row in rows:
        groups[row["run"], row["experiment"]].append(row)
    lines = []
    for (run, experiment), alike in groups.items():
        timed = [row for row in alike if row["ratio"]]
        counts = Counter(map(verdict, timed))
        ratios = [row["ratio"] for row in timed]
        between = f"{significant(min(ratios))} to {significant(max(ratios))}" if timed else ""
        cells = {
            "Run": run,
            "Experiment": experiment,
            "Cases": str(len(timed)),
            "Ratio": significant(geometric_mean(ratios)) if ratios else "",
            "Range": between if len(ratios) > 1 else "",
            **{name.capitalize(): str(counts[name] or "") for name in VERDICTS},
            "Not compared": str(len(alike) - len(timed) or ""),
        }
        lines.append(Row(cells))
    return Table("By experiment", lines, [RATIO])
