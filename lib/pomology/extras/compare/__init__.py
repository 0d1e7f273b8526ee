"""Compare runs of any machines, case by case, each against the first: `pomology compare`.

Two runs of a case are compared by the first time of TIMES that both have: by their repeats, or
single runs by the run-to-run variation that `instrument_check` has measured on both machines.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from pomology.command_line import STORE, argument, places
from pomology.errors import PomologyError
from pomology.format import one_line, seconds, significant, with_interval
from pomology.measure.estimate import REPEATS
from pomology.paths import root

if TYPE_CHECKING:
    import pandas

    from pomology.report.table import Table
    from pomology.results.cases import Case

TIMES = ("epoch_s", "fit_s", "kernel_s", "pass_s", "launch_s", "step_s")
SAME = ("profile", "data", "scaled", "parameters", "flops_per_step")  # what must be equal
RESULTS = ["chip", "repeat", "metric", "value"]  # equal in a run and its copy only
# Flags that leave a comparison in doubt, unless both cases have them.
LASTING = {"on-battery", "low-power", "fallback-enabled", "other-way"}
RATIOS = "Ratio: time over that of the first run with this case, so below 1 is faster."
SINGLE = (
    f"Single runs, and fewer than {REPEATS} repeats: a case is faster or slower if two runs of the "
    "same thing on these machines differ by less, as instrument_check has measured ({}). Repeats "
    "tell smaller differences apart."
)
UNKNOWN = (
    "Single runs without instrument_check on both machines have no verdict: nothing says how much "
    "two runs of the same thing differ."
)
REPEATED = (
    "The repeated cases of a notebook are judged together: of those called faster or slower at "
    "most 5 % are not, on average. The interval behind a ratio goes with that; behind a time it is "
    "of 95 %."
)


def load(*runs: str | Path) -> pandas.DataFrame:
    """Return runs as `pomology.load` does, those of the same name with numbers.

    Raises PomologyError for a run without a case, and for a copy of another one.
    """
    import pandas

    from pomology.results import frame

    frames = [frame.load(run) for run in runs]
    for run, found in zip(runs, frames, strict=True):
        if found.empty:
            raise PomologyError(f"{one_line(Path(run).name)}: no case has ended in it")
    for first, second in combinations(frames, 2):
        if first.value.any() and first[RESULTS].equals(second[RESULTS]):
            names = " and ".join(one_line(each.run.iloc[0]) for each in (first, second))
            raise PomologyError(f"{names}: the same results; name two different runs")
    names = [one_line(found.run.iloc[0], 60) for found in frames]
    if len(set(names)) < len(names):
        names = [f"{name} ({number})" for number, name in enumerate(names, start=1)]
    named = [found.assign(run=name) for found, name in zip(frames, names, strict=True)]
    return pandas.concat(named, ignore_index=True)


def table(frame: pandas.DataFrame, in_turn: bool = False) -> Table:
    """Return a row for each case that two runs have, a column for each run.

    A case is the same experiment, framework, kind of device and settings: a Mac's GPU is compared
    with an NVIDIA GPU. `data` of the table has every comparison with its numbers. in_turn: whether
    the repeats of the runs took turns, so that the machine was the same for both.
    """
    from pomology.report.table import Row, Table
    from pomology.results.cases import allowed, pool, run_to_run

    machines = frame.groupby("run", sort=False).machine.first()
    cases = defaultdict(list)
    pooled = pool(frame)
    variations = run_to_run(pooled)
    for case in pooled:
        settings = str(case.config)
        cases[case.first["experiment"], case.first["framework"], case.kind, settings].append(case)
    speeds = frame.groupby(["run", "experiment", "case"]).calibration_s.median()
    rows = [[_row(base, other, speeds) for other in others] for base, *others in cases.values()]
    data = [row for of_case in rows for row in of_case]
    families = defaultdict(list)
    for row in data:
        if row["verdict"] is None:
            families[row["run"], row["experiment"]].append(row)
    for family in families.values():
        _judge(family, in_turn)
    single = [row for row in data if row["verdict"] == "single runs"]
    for row in single:
        sides = [variations.get((row[name], row["kind"])) for name in ("base", "run")]
        if None not in sides:
            low, high = row["ratio"] / allowed(sides), row["ratio"] * allowed(sides)
            _conclude(row, low, high, "within run-to-run variation")
    undecided = any(row["verdict"] == "single runs" for row in data)
    for row in data:
        row["verdict"] = "; ".join([row["verdict"], *row.pop("machine", [])])
    lines = []
    for of_case, compared in zip(cases.values(), rows, strict=True):
        metrics = [row["metric"] for row in compared]
        metrics += [name for name in TIMES if any(name in case.values for case in of_case)]
        metric = next(filter(None, metrics), None)
        if not (compared and metric):
            continue
        cells = dict.fromkeys(machines.index, "")
        for case in of_case:
            time = case.values.get(metric)
            text = with_interval(time, seconds) if time else case.status
            cells[case.first["run"]] = one_line(", ".join([text, *case.flags]), 200)
        for row in compared:
            text = row["verdict"]
            if row["low"] is not None:
                text = f"{row['ratio']:.3g} ({row['low']:.3g} to {row['high']:.3g}): {text}"
            elif row["ratio"] is not None:
                text = f"{row['ratio']:.3g} without an interval: {text}"
            cells[row["run"]] += f"; {text}"
        name = one_line(f"{compared[0]['experiment']}: {compared[0]['case']}", 120)
        lines.append(Row({"Case": name, "Time of": metric.removesuffix("_s"), **cells}))
    notes = [f"{name}: {one_line(machine)}." for name, machine in machines.items()]
    alone = [name for name in machines.index if not any(line.cells[name] for line in lines)]
    notes += [_alone(name, pooled) for name in alone]
    notes += [RATIOS] if lines else []
    known = "; ".join(
        f"{run}, {kind.upper()}: about {significant(100 * each, 1)} %"
        for (run, kind), each in variations.items()
    )
    notes += [SINGLE.format(known)] if single and known else []
    notes += [UNKNOWN] if undecided else []
    notes += [REPEATED] if families else []
    shown = Table("Runs side by side", lines, notes)
    shown.data = data
    return shown


def _alone(run: str, pooled: Sequence[Case]) -> str:
    """Return a sentence on a run that has no timed case in common with another one."""
    cases = [case for case in pooled if case.first["run"] == run]
    timed = sum(not case.values.keys().isdisjoint(TIMES) for case in cases)
    kinds = {
        f"{case.first['experiment']} ({case.first['profile']}, {case.framework}, {case.kind})"
        for case in cases
    }
    has = f"{timed} of its {len(cases)} cases are timed: {', '.join(sorted(kinds))}"
    return one_line(f"{run} has no timed case in common with another run; {has}.", 600)


def _row(base: Case, other: Case, speeds: pandas.Series) -> dict[str, Any]:
    """Return the comparison of a case with the first run that has it, not judged yet.

    speeds: seconds of the calibration matmul by run, experiment and case.
    """
    row = {name: base.first[name] for name in ("article", "experiment", "case", "precision")}
    row |= {"base": base.first["run"], "run": other.first["run"], "verdict": "not timed in both"}
    row |= {"kind": base.kind, "doubts": _doubts(base, other)}
    row |= dict.fromkeys(("metric", "ratio", "low", "high", "base_s", "run_s"))
    metric = next((name for name in TIMES if name in base.each and name in other.each), None)
    if metric is None:
        return row
    one_chip = base.first["chip"] == other.first["chip"]
    for name in (*SAME, "threads") if one_chip else SAME:  # another chip has threads of its own
        # The last repeat may have run in another way than the first.
        sides = [{one_line(case.first[name]), one_line(case.last[name])} for case in (base, other)]
        if len(sides[0] | sides[1]) > 1:
            texts = [" or ".join(sorted(side)) for side in sides]
            why = f"{name.replace('_', ' ')} {texts[0]} and {texts[1]}"
            return row | {"verdict": f"must not be compared: {why}"}
    times = [[each.value for each in case.each[metric]] for case in (other, base)]
    ratio = geometric_mean(times[0]) / geometric_mean(times[1])
    row |= {"metric": metric, "ratio": ratio, "run_s": times[0], "base_s": times[1]}
    row["machine"] = _machine(base, other, speeds)
    return row | {"verdict": None if min(map(len, times)) >= REPEATS else "single runs"}


def _machine(base: Case, other: Case, speeds: pandas.Series) -> list[str]:
    """Return how the machine itself differed, by its power mode and its calibration matmul."""
    from pomology.machine import quiet

    before, after = base.first["power_mode"], other.first["power_mode"]
    differs = before and after and before != after
    found = [f"power mode {before} and {after}"] if differs else []
    # Another chip, or on a GPU another version, has a matmul of its own.
    same = ("chip",) if base.kind == "cpu" else ("chip", "framework_version")
    if all(base.first[name] == other.first[name] for name in same):
        places = [map(case.first.get, speeds.index.names) for case in (base, other)]
        before_s, after_s = (speeds[tuple(place)] for place in places)
        by = quiet.slower(base.kind, max(before_s, after_s), min(before_s, after_s))
        way = "slower" if after_s > before_s else "faster"
        found += [f"the machine itself was {by} {way} by its calibration matmul"] if by else []
    return found


def _doubts(base: Case, other: Case) -> str:
    """Return the conditions that may explain a difference: `busy in a, on-battery in b`."""
    from pomology.results.cases import DOUBTS

    causes = (DOUBTS | LASTING) - LASTING.intersection(base.flags, other.flags)
    flags = [(flag, case.first["run"]) for case in (base, other) for flag in case.flags]
    return ", ".join(f"{flag} in {run}" for flag, run in flags if flag in causes)


def _conclude(row: dict, low: float, high: float, undecided: str) -> None:
    """Add the bounds of its ratio to a row, and its verdict. undecided: that where they hold 1."""
    row |= {"low": low, "high": high, "verdict": undecided}
    if not low <= 1 <= high:
        row["verdict"] = "faster" if high < 1 else "slower"
        if row["doubts"]:
            row["verdict"] = f"in doubt: {row['verdict']}, but {row['doubts']}"


def joint_confidence(p_values: Sequence[float]) -> float:
    """Return the confidence at which intervals show which of several rows differ.

    Of the rows whose interval at this confidence leaves 1 out, at most 5 % are wrong on average
    (Benjamini and Hochberg 1995; Benjamini and Yekutieli 2005). One row: 95 %.
    """
    from scipy.stats import false_discovery_control  # half a second, which only this needs

    from pomology.measure import intervals  # not with the command, which only registers

    rate = 1 - intervals.CONFIDENCE
    passed = sum(false_discovery_control(p_values) <= rate)
    return float(1 - rate * max(passed, 1) / len(p_values))


def _judge(rows: list[dict], in_turn: bool) -> None:
    """Add interval and verdict to rows judged together, by Welch's t on logarithms (Welch 1947).

    The variance between sets of processes is added where these did not run in turn.
    """
    import numpy as np
    from scipy import stats

    from pomology.articles import claims

    between = 0.0 if in_turn else claims.BETWEEN_SETS
    spreads = []
    for row in rows:
        run, base = np.log(row["run_s"]), np.log(row["base_s"])
        variance = squares = 0.0
        for side in (run, base):
            part = max(side.var(ddof=1), claims.RESOLUTION**2) * (1 / side.size + between / 2)
            variance += part
            squares += part**2 / (side.size - 1)
        spreads.append(stats.t(variance**2 / squares, run.mean() - base.mean(), variance**0.5))
    confidence = joint_confidence([2 * min(t.cdf(0), t.sf(0)) for t in spreads])
    for row, spread in zip(rows, spreads, strict=True):
        with np.errstate(over="ignore"):  # two repeats may have a bound beyond any float
            low, high = map(float, np.exp(spread.interval(confidence)))
        _conclude(row, low, high, "no difference shown")


def write(runs: Sequence[str | Path], folder: Path, in_turn: bool = False) -> Table:
    """Compare runs, write compare.csv and compare.html into a folder, and return the table."""
    from pomology.report import table as report_table

    shown = table(load(*runs), in_turn)
    report_table.save(shown, folder / "compare")
    return shown


ARGUMENTS = (
    argument("places", "names in outputs/, paths, zips", (), nargs="*", metavar="run"),
    argument("--runs", "the same in one text, with quotes"),
    STORE,
)


def _run(options: argparse.Namespace) -> None:
    """Compare runs, side by side."""
    found = places("RUNS", [*options.places, options.runs], options.store)
    if len(found) < 2:
        raise PomologyError("RUNS: name at least two different runs")
    print(f"{write(found, root() / 'outputs')}\nwritten to outputs/compare.csv and compare.html")


COMMANDS = {"compare": (_run, *ARGUMENTS)}
