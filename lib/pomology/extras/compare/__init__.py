"""Compare runs of any machines, case by case, each against the first: `pomology compare`.

Two runs of a case are compared by the first time of TIMES that both have. Only repeats give a verdict: single runs
stand next to each other and say nothing of the next run.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
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
WHOLE = 3  # runs, up to which each has a column; of more each is a row of counts
SHOWN, FASTER, SLOWER = "no difference shown", "faster", "slower"
SINGLE, BARRED, UNTIMED = "single runs", "must not be compared", "not timed in both"
VERDICTS = (FASTER, SLOWER, SHOWN, SINGLE, BARRED, UNTIMED)
NOTES = (
    "Ratio: time over that of the first run with this case, so below 1 is faster. A verdict needs repeats on both "
    "sides; single runs say nothing of the next run.",
    "The rows of a notebook are judged together: of those called faster or slower at most 5 % are not, on average. The "
    "interval behind a ratio goes with that, the one behind a time is of 95 %.",
)


def load(place: str | Path) -> pandas.DataFrame:
    """Return the frame of a run, without what the kit has measured of itself. Raises PomologyError without a case."""
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
        Rows with the columns of CASE, `base` and `run`, `verdict` (of VERDICTS), `metric`, `ratio` with `low` and
        `high` at the joint confidence of a notebook's rows in a run, and `why`.
    """
    import pandas

    from pomology.measure import intervals

    rows = list(_pairs(frame))
    families = defaultdict(list)
    for row in rows:
        if row["difference"]:
            families[row["run"], row["experiment"]].append(row)
    for judged in families.values():
        confidence = intervals.joint_confidence([row["difference"].p_value for row in judged])
        for row in judged:
            shown = row["difference"].judged(confidence)
            row |= {"verdict": shown.verdict, "ratio": shown.ratio.value}
            row |= {"low": shown.ratio.low, "high": shown.ratio.high}
    columns = [
        *CASE,
        "base",
        "run",
        "verdict",
        "metric",
        "ratio",
        "low",
        "high",
        "why",
    ]
    return pandas.DataFrame(rows, columns=columns)


def _pairs(frame: pandas.DataFrame) -> Iterator[dict]:
    """Yield every case of every run against the first run that has it, with the difference of their times."""
    from statistics import geometric_mean

    from pomology.measure import intervals

    good = frame[frame.status.eq("ok")]
    timed = good[good.metric.isin(TIMES) & good.value.gt(0)]
    times, facts = defaultdict(list), defaultdict(list)
    for *key, value in timed[[*CASE, "run", "metric", "value"]].itertuples(index=False):
        times[tuple(key)].append(value)
    for row in good[[*CASE, "run", *SAME]].drop_duplicates().itertuples(index=False):
        facts[row[:5]].append(row[5:])
    first: dict[tuple, str] = {}
    for *key, run in frame[[*CASE, "run"]].drop_duplicates().itertuples(index=False):
        key = tuple(key)
        base = first.setdefault(key, run)
        if base == run:
            continue
        row = dict(zip(CASE, key, strict=True)) | {
            "base": base,
            "run": run,
            "difference": None,
            "why": "",
        }
        shared = [
            name for name in TIMES if (*key, base, name) in times and (*key, run, name) in times
        ]
        if not shared:
            yield row | {"verdict": UNTIMED}
            continue
        why = _differences(facts[*key, base], facts[*key, run])
        if why:
            yield row | {"verdict": BARRED, "why": why}
            continue
        values = [times[*key, name, shared[0]] for name in (run, base)]
        row |= {"metric": shared[0], "verdict": SINGLE}
        difference = intervals.difference(*values, between=intervals.BETWEEN_SETS)
        ratio = geometric_mean(values[0]) / geometric_mean(values[1])
        yield row | {"difference": difference, "ratio": ratio}


def _differences(base: list[tuple], other: list[tuple]) -> str:
    """Return in which facts of SAME two sets of repeats are not of one thing, in words; empty where they are."""
    differ = {}
    for place, name in enumerate(SAME):
        sides = [sorted({one_line(row[place], 40) for row in side}) for side in (base, other)]
        if len({*sides[0], *sides[1]}) > 1:
            differ[name] = (
                f"{name.replace('_', ' ')} {' or '.join(sides[0])} and {' or '.join(sides[1])}"
            )
    if "chip" in differ:
        differ.pop("threads", None)
        del differ["chip"]
    return "; ".join(differ.values())


def table(frame: pandas.DataFrame) -> Table:
    """Return a row for each case that two runs have, a column for each run; of more than 3 runs a row of counts each.

    Its `data` has every comparison with its numbers.
    """
    from pomology.report.table import Table

    found = comparisons(frame)
    names = list(frame.run.unique())
    machines = {name: one_line(frame.machine[frame.run.eq(name)].iloc[0]) for name in names}
    if len(names) > WHOLE:
        columns = ("Run", "Machine", *(verdict.capitalize() for verdict in VERDICTS))
        counts = found.groupby("run").verdict.value_counts()
        lines = [
            (name, machines[name], *(str(counts.get((name, of), 0)) for of in VERDICTS))
            for name in names
        ]
        shown = Table.of("Runs against the first", columns, [(line, {}) for line in lines], NOTES)
    else:
        columns = ("Case", "Time of", *names, *(f"{name} against the first" for name in names[1:]))
        lines = [(cells, {}) for cells in _lines(frame, found, names)]
        notes = [f"{name}: {machine}." for name, machine in machines.items()]
        shown = Table.of("Runs side by side", columns, lines, [*notes, *NOTES])
    return replace(shown, data=tuple(_safe(row) for row in found.to_dict("records")))


def _safe(row: dict) -> dict:
    """Return a row in which no spreadsheet takes a text for a formula."""
    texts = {name: value for name, value in row.items() if isinstance(value, str)}
    return row | {
        name: f"'{text}" for name, text in texts.items() if text[:1] in ("=", "+", "-", "@")
    }


def _lines(
    frame: pandas.DataFrame, found: pandas.DataFrame, names: list[str]
) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each case that was timed in two runs or more."""
    from pomology.results.pool import pool

    known = {tuple(case.first[name] for name in (*CASE, "run")): case for case in pool(frame)}
    for key, rows in found.groupby(CASE, sort=False):
        here = [known.get((*key, run)) for run in names]
        timed = [name for name in TIMES if any(name in case.values for case in here if case)]
        if not timed:
            continue
        metric = next(iter(rows.metric.dropna()), timed[0])
        against = {row.run: _verdict(row) for row in rows.itertuples()}
        text = one_line(f"{key[1]}: {key[2]}", 120)
        shown = [_time(case, metric) for case in here]
        yield (
            text,
            metric.removesuffix("_s"),
            *shown,
            *(against.get(run, "") for run in names[1:]),
        )


def _time(case: Case | None, metric: str) -> str:
    """Return a time with its interval and flags, or how the case ended; nothing where there is none."""
    if not case:
        return ""
    time = case.values.get(metric)
    text = with_interval(time, seconds) if time else case.status
    return one_line(", ".join([text, *case.flags[:6]]), 200)


def _verdict(row: Any) -> str:
    if row.low != row.low:  # NaN: nothing was judged
        return f"{row.verdict}: {row.why}" if row.why else row.verdict
    return f"{row.ratio:.3g} ({row.low:.3g} to {row.high:.3g}): {row.verdict}"


def write(runs: Sequence[pandas.DataFrame], folder: Path) -> tuple[Table, Path, Path]:
    """Compare runs, and write compare.csv and compare.html into a folder; return the table and where they are."""
    from pomology.report import table as report_table

    shown = table(joined(runs))
    report_table.save(shown, folder / "compare")
    return shown, folder / "compare.csv", folder / "compare.html"


def _arguments(parser: argparse.ArgumentParser) -> None:
    runs = "two or more: names in outputs/, paths of folders, or shared zips"
    parser.add_argument("places", nargs="*", metavar="run", help=runs)
    parser.add_argument(
        "--runs", default="", help="the same in one text, those with spaces in quotes"
    )
    add_store_option(parser)


def _run(options: argparse.Namespace) -> None:
    found = places("RUNS", [*options.places, options.runs], options.store)
    if len(found) < 2:
        raise PomologyError("RUNS: name at least two different runs")
    shown, *written = write([load(place) for place in found], root() / "outputs")
    say(f"{shown}\nwritten to {' and '.join(redact(str(place)) for place in written)}")


COMMANDS = {"compare": Command("compare runs, side by side", _arguments, _run)}
