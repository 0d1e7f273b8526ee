"""Compare runs of any machines, case by case, each against the first: `pomology compare`.

Two runs of a case are compared by the first time of TIMES that both have. Only repeats give a
verdict: single runs stand next to each other and say nothing of the next run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pomology.command_line import Command, add_store_option, places, say
from pomology.errors import PomologyError
from pomology.format import one_line, seconds, with_interval
from pomology.paths import redact, root

if TYPE_CHECKING:
    import pandas

    from pomology.report.table import Table
    from pomology.results.pool import Case

TIMES = ("epoch_s", "fit_s", "kernel_s", "pass_s", "launch_s", "step_s")
CASE = ["article", "experiment", "case", "precision"]
# What must be equal; threads count on one chip only.
SAME = ["profile", "data", "scaled", "parameters", "flops_per_step", "chip", "threads"]
SINGLE, BARRED, UNTIMED = "single runs", "must not be compared", "not timed in both"
COLUMNS = [*CASE, "base", "run", "verdict", "metric", "ratio", "low", "high", "why"]
NOTES = (
    "Ratio: time over that of the first run with this case, so below 1 is faster. A verdict needs "
    "repeats on both sides; single runs say nothing of the next run.",
    "The rows of a notebook are judged together: of those called faster or slower at most 5 % are "
    "not, on average. The interval behind a ratio goes with that; behind a time it is of 95 %.",
)


def load(place: str | Path) -> pandas.DataFrame:
    """Return the frame of a run, without what the kit has measured of itself.

    Raises PomologyError without a case.
    """
    from pomology.articles.published import KIT
    from pomology.results import frame
    from pomology.results.run import Run

    found = frame.load(place)
    found = found[found.article.ne(KIT)]
    if found.empty:
        problem = next(iter(Run(place).problems), "no case has ended in it")
        raise PomologyError(f"{one_line(Path(place).name)}: {problem}")
    return found.assign(run=one_line(found.run.iloc[0], 60))


def joined(runs: Sequence[pandas.DataFrame]) -> pandas.DataFrame:
    """Return the frames of runs as one, in which no two runs have the same name."""
    import pandas

    names = [run.run.iloc[0] for run in runs]
    if len(set(names)) < len(names):
        names = [f"{name} ({number})" for number, name in enumerate(names, start=1)]
    renamed = [run.assign(run=name) for run, name in zip(runs, names, strict=True)]
    return pandas.concat(renamed, ignore_index=True)


def comparisons(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Return what repeats show of each case in a run against the first run that has it, a row each.

    Args:
        frame: of several runs, by `joined`.

    Returns:
        Rows with the columns of CASE, `base` and `run`, `verdict`, `metric`, `ratio` with `low` and
        `high` at the joint confidence of a notebook's rows in a run, and `why` two sets of repeats
        must not be compared.
    """
    from statistics import geometric_mean

    import pandas

    from pomology.measure import intervals

    good = frame[frame.status.eq("ok")]
    timed = good[good.metric.isin(TIMES) & good.value.gt(0)]
    times = timed.groupby([*CASE, "run", "metric"]).value.agg(list).to_dict()
    facts: dict[tuple, list[tuple]] = {}
    for row in good[[*CASE, "run", *SAME]].drop_duplicates().itertuples(index=False):
        facts.setdefault(row[:5], []).append(row[5:])
    rows = []
    first: dict[tuple, str] = {}
    for *case, run in frame[[*CASE, "run"]].drop_duplicates().itertuples(index=False):
        base = first.setdefault(tuple(case), run)
        if base == run:
            continue
        row = dict(zip(CASE, case, strict=True)) | {"base": base, "run": run, "why": ""}
        shared = [
            name for name in TIMES if all((*case, side, name) in times for side in (run, base))
        ]
        if not shared:
            rows.append(row | {"verdict": UNTIMED})
        elif why := _differences(facts[*case, base], facts[*case, run]):
            rows.append(row | {"verdict": BARRED, "why": why})
        else:
            values = [times[*case, side, shared[0]] for side in (run, base)]
            ratio = geometric_mean(values[0]) / geometric_mean(values[1])
            difference = intervals.difference(*values, between=intervals.BETWEEN_SETS)
            row |= {"verdict": SINGLE, "metric": shared[0], "ratio": ratio}
            rows.append(row | {"difference": difference})
    families: dict[tuple, list[dict]] = {}
    for row in rows:
        if row.get("difference"):
            families.setdefault((row["run"], row["experiment"]), []).append(row)
    for judged in families.values():
        confidence = intervals.joint_confidence([row["difference"].p_value for row in judged])
        for row in judged:
            shown = row["difference"].judged(confidence)
            row |= {"verdict": shown.verdict, "ratio": shown.ratio.value}
            row |= {"low": shown.ratio.low, "high": shown.ratio.high}
    return pandas.DataFrame(rows, columns=COLUMNS)


def _differences(base: list[tuple], other: list[tuple]) -> str:
    """Return in which facts of SAME two sets of repeats are not of one thing; empty if in none."""
    words = {}
    for place, name in enumerate(SAME):
        sides = [sorted({one_line(row[place], 40) for row in side}) for side in (base, other)]
        if len({*sides[0], *sides[1]}) > 1:
            texts = [" or ".join(side) for side in sides]
            words[name] = f"{name.replace('_', ' ')} {texts[0]} and {texts[1]}"
    if words.pop("chip", ""):
        words.pop("threads", None)
    return "; ".join(words.values())


def table(frame: pandas.DataFrame) -> Table:
    """Return a row for each case that two runs have, a column for each run.

    Its `data` has every comparison with its numbers.
    """
    from pomology.report.table import Table
    from pomology.results.pool import pool

    found = comparisons(frame)
    machines = frame.groupby("run", sort=False).machine.first()
    cases = {tuple(case.first[name] for name in (*CASE, "run")): case for case in pool(frame)}
    lines = []
    for key, rows in found.groupby(CASE, sort=False):
        here = [cases.get((*key, run)) for run in machines.index]
        timed = [name for name in TIMES if any(name in case.values for case in here if case)]
        if timed:
            metric = next(iter(rows.metric.dropna()), timed[0])
            verdicts = {row.run: f"; {_verdict(row)}" for row in rows.itertuples()}
            text = one_line(f"{key[1]}: {key[2]}", 120)
            cells = [
                _time(case, metric) + verdicts.get(run, "")
                for case, run in zip(here, machines.index, strict=True)
            ]
            lines.append(((text, metric.removesuffix("_s"), *cells), {}))
    notes = [f"{name}: {one_line(machine)}." for name, machine in machines.items()]
    columns = ("Case", "Time of", *machines.index)
    shown = Table.of("Runs side by side", columns, lines, [*notes, *NOTES])
    return replace(shown, data=tuple(_safe(row) for row in found.to_dict("records")))


def _safe(row: dict) -> dict:
    """Return a row in which no spreadsheet takes a text for a formula."""
    return {
        name: f"'{value}" if str(value)[:1] in ("=", "+", "-", "@") else value
        for name, value in row.items()
    }


def _time(case: Case | None, metric: str) -> str:
    """Return a time with its interval and flags, or how the case ended; nothing without a case."""
    if not case:
        return ""
    time = case.values.get(metric)
    text = with_interval(time, seconds) if time else case.status
    return one_line(", ".join([text, *case.flags[:6]]), 200)


def _verdict(row: Any) -> str:
    if row.low > 0:  # not NaN: judged
        return f"{row.ratio:.3g} ({row.low:.3g} to {row.high:.3g}): {row.verdict}"
    return f"{row.verdict}: {row.why}" if row.why else row.verdict


def write(runs: Sequence[pandas.DataFrame], folder: Path) -> tuple[Table, Path, Path]:
    """Compare runs, and write compare.csv and compare.html into a folder; return all three."""
    from pomology.report import table as report_table

    shown = table(joined(runs))
    report_table.save(shown, folder / "compare")
    return shown, folder / "compare.csv", folder / "compare.html"


def _arguments(parser: argparse.ArgumentParser) -> None:
    runs = "two or more: names in outputs/, paths of folders, or shared zips"
    parser.add_argument("places", nargs="*", metavar="run", help=runs)
    same = "the same in one text, those with spaces in quotes"
    parser.add_argument("--runs", default="", help=same)
    add_store_option(parser)


def _run(options: argparse.Namespace) -> None:
    found = places("RUNS", [*options.places, options.runs], options.store)
    if len(found) < 2:
        raise PomologyError("RUNS: name at least two different runs")
    shown, *written = write([load(place) for place in found], root() / "outputs")
    say(f"{shown}\nwritten to {' and '.join(redact(str(place)) for place in written)}")


COMMANDS = {"compare": Command("compare runs, side by side", _arguments, _run)}
