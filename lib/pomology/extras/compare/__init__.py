"""Compare runs of any machines, case by case, each against the first: `pomology compare`."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from pomology.command_line import STORE, argument, name_and_kind, named_paths, split_names
from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.paths import in_checkout, redact, root

if TYPE_CHECKING:
    from pomology.report.table import Table
    from pomology.results.run import Run


def load(*places: str | Path, kinds: Sequence[str] = ()) -> list[Run]:
    """Return runs, those of the same name with numbers.

    kinds: of each run's devices, "" for both. Raises PomologyError for a run without a case, and
    for a copy of another one.
    """
    from pomology.results.run import read_runs

    # One by one, since a run's CPU and its GPU are two.
    if kinds:
        every = [run for place in places for run in read_runs(place)]
        runs = [run.of_kind(kind) if kind else run for run, kind in zip(every, kinds, strict=True)]
    else:
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


_PLACES = "names in outputs/, paths, zips; `name:cpu` or `name:gpu` for one of its devices"
ARGUMENTS = (
    argument("places", _PLACES, (), nargs="*", metavar="run"),
    argument("--runs", "the same in one text, with quotes"),
    STORE,
)


def kinds_of(places: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names of runs without `:cpu` and `:gpu`, and these, "" for both kinds."""
    pairs = [name_and_kind(place) for place in places]
    return [name for name, _ in pairs], [kind for _, kind in pairs]


def _run(options: argparse.Namespace) -> None:
    """Compare runs: which is faster, by experiment; each case is in a file."""
    # A shell has split the places already, so spaces in them belong to a path.
    names, kinds = kinds_of([*options.places, *split_names("RUNS", [options.runs])])
    # One by one, since a run's CPU and its GPU are two.
    found = [named_paths("RUNS", [name], options.store, options.fetch) for name in names]
    if any(kinds):
        if any(len(paths) > 1 for paths in found):
            raise PomologyError("RUNS: `:cpu` and `:gpu` are of single runs, not of a folder")
        chosen = dict.fromkeys(zip([paths[0] for paths in found], kinds, strict=True))
        paths, kinds = [path for path, _ in chosen], [kind for _, kind in chosen]
    else:
        paths = list(dict.fromkeys(path for paths in found for path in paths))
    if len(paths) < 2:
        raise PomologyError("RUNS: name at least two different runs")
    print("\n".join(lines(paths, kinds if any(kinds) else ())))


def lines(paths: Sequence[str | Path], kinds: Sequence[str] = ()) -> list[str]:
    """Compare runs, write the files, and return what is said of them. kinds: see `load`."""
    from pomology.extras.compare import summary

    runs = load(*paths, kinds=kinds)
    for run in runs:
        run.print_problems()
    folder = root() / "outputs" if in_checkout() else root()
    side_by_side = write(runs, folder)
    claims = write_claims(runs, folder)
    text = summary.headlines(side_by_side.data, [run.name for run in runs])
    if side_by_side.rows:
        text += ["", *str(summary.table(side_by_side.data)).splitlines()]
    text += ["", *side_by_side.notes]
    text.append(f"each case: {redact(str(folder / 'compare.html'))} and compare.csv")
    return [*text, f"{claims}; written to compare-claims.html"]


COMMANDS = {"compare": (_run, *ARGUMENTS)}
