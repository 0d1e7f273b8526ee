"""Compare runs of any machines, case by case, each against the first: `pomology compare`."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from pomology.command_line import STORE, argument, run_paths
from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.paths import in_checkout, redact, root

if TYPE_CHECKING:
    from pomology.report.table import Table
    from pomology.results.run import Run


def load(*places: str | Path) -> list[Run]:
    """Return runs, those of the same name with numbers.

    Raises PomologyError for a run without a case, and for a copy of another one.
    """
    from pomology.results.run import read_runs

    runs = read_runs(*places)
    for run in runs:
        if not run.records:
            raise PomologyError(f"{one_line(run.name)}: no case has ended in it")
    for first, second in combinations(runs, 2):
        if any(_results(first)) and _results(first) == _results(second):
            names = " and ".join(one_line(run.name) for run in (first, second))
            raise PomologyError(f"{names}: the same results; name two different runs")
    names = [one_line(run.name, 60) for run in runs]
    if len(set(names)) < len(names):
        names = [f"{name} ({number})" for number, name in enumerate(names, start=1)]
    for run, name in zip(runs, names, strict=True):
        run.name = name
    return runs


def _results(run: Run) -> list[tuple]:
    """Return the measured values of a run, which are equal in a run and its copy only."""
    return [
        (record.chip, record.repeat, name, value.value)
        for record in run.records
        for name, value in record.metrics.items()
    ]


def table(runs: Sequence[Run], in_turn: bool = False) -> Table:
    """Return a row for each case that two runs have: see `comparison.table`."""
    from pomology.extras.compare import comparison  # not with the command, which only registers

    return comparison.table(runs, in_turn)


def write(runs: Sequence[Run], folder: Path, in_turn: bool = False) -> Table:
    """Compare runs, write compare.csv and compare.html into a folder, and return the table."""
    from pomology.report import table as report_table

    side_by_side = table(runs, in_turn)
    report_table.save_page(side_by_side, folder / "compare")
    return side_by_side


def write_claims(runs: Sequence[Run], folder: Path) -> str:
    """Test the articles' claims on runs together, write compare-claims.*; count them."""
    from pomology.report import claims as report_claims
    from pomology.report import table as report_table

    claims = report_claims.joined_table(runs)
    report_table.save_page(claims, folder / "compare-claims")
    verdicts = Counter(row["here"] for row in claims.data)
    counted = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    return f"{len(claims.data)} claims of the articles on these runs together: {counted}"


ARGUMENTS = (
    argument("places", "names in outputs/, paths, zips", (), nargs="*", metavar="run"),
    argument("--runs", "the same in one text, with quotes"),
    STORE,
)


def _run(options: argparse.Namespace) -> None:
    """Compare runs, side by side."""
    paths = run_paths("RUNS", [*options.places, options.runs], options.store, options.fetch)
    if len(paths) < 2:
        raise PomologyError("RUNS: name at least two different runs")
    runs = load(*paths)
    for run in runs:
        run.print_problems()
    folder = root() / "outputs" if in_checkout() else root()
    side_by_side = write(runs, folder)
    print(f"{side_by_side}\nwritten to {redact(str(folder / 'compare.csv'))} and compare.html")
    print(f"{write_claims(runs, folder)}; written to compare-claims.html")


COMMANDS = {"compare": (_run, *ARGUMENTS)}
