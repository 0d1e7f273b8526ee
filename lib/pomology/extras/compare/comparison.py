"""Comparisons of a case in two runs: its times, their ratio, and a verdict.

Two runs of a case are compared by the first time of TIMES that both have: by their repeats, or
single runs by the run-to-run variation that `instrument_check` has measured on both machines.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any

import numpy as np

from pomology.articles import claims
from pomology.format import one_line, seconds, with_interval
from pomology.machine.calibration import slower
from pomology.measure import intervals
from pomology.measure.estimate import REPEATS
from pomology.report.table import Row, Table
from pomology.results.cases import DOUBTS
from pomology.results.frame import machine_of
from pomology.results.repeats import Repeats, allowed, pool, run_to_run, variation_text
from pomology.results.run import Run

TIMES = ("epoch_s", "fit_s", "kernel_s", "pass_s", "launch_s", "step_s")
SAME = ("profile", "data", "scaled", "parameters", "flops_per_step")  # what must be equal
# Flags that leave a comparison in doubt, unless both cases have them.
LASTING = {"on-battery", "low-power", "fallback-enabled", "other-way"}
RATIOS = "Ratio: time over that of the first run with this case, so below 1 is faster."
SINGLE = (
    f"Single runs, and fewer than {REPEATS} repeats: a case is faster or slower if its ratio "
    "exceeds run-to-run variation, as instrument_check has measured it. {} Repeats tell smaller "
    "differences apart."
)
UNKNOWN = (
    "Single runs without instrument_check on both machines have no verdict: their run-to-run "
    "variation is not known."
)
REPEATED = (
    "The repeated cases of a notebook are judged together: of those called faster or slower at "
    "most 5 % are not, on average. The interval behind a ratio goes with that; behind a time it is "
    "of 95 %."
)


@dataclasses.dataclass(eq=False, kw_only=True)
class ComparedCase:
    """A case of a run next to the same case of the first run that has it.

    article, experiment, case, precision: of the case. base, run: names of the two runs. kind: `cpu`
    or `gpu`. doubts: conditions that may explain a difference. metric: the time compared, None if
    they cannot be. base_s, run_s: seconds by repeat. ratio: run over base. low, high: its interval.
    machine: how the machine itself differed. The fields but for the last are columns of a file.
    """

    article: str
    experiment: str
    case: str
    precision: str
    base: str
    run: str
    verdict: str = "not timed in both"
    kind: str
    doubts: str
    metric: str | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    base_s: Sequence[float] | None = None
    run_s: Sequence[float] | None = None
    machine: Sequence[str] = ()

    @property
    def repeated(self) -> bool:
        """Whether both runs have enough repeats for an interval between processes."""
        return bool(self.metric) and min(len(self.base_s), len(self.run_s)) >= REPEATS

    @property
    def single(self) -> bool:
        """Whether it has times, but too few repeats in one of the runs."""
        return bool(self.metric) and not self.repeated

    @property
    def full_verdict(self) -> str:
        """The verdict, and how the machine itself differed."""
        return "; ".join([self.verdict, *self.machine])

    def conclude(self, low: float, high: float, undecided: str) -> None:
        """Set the interval of the ratio, and the verdict. undecided: that of an interval with 1."""
        self.low, self.high, self.verdict = low, high, undecided
        if low <= 1 <= high:
            return
        self.verdict = "faster" if high < 1 else "slower"
        if self.doubts:
            self.verdict = f"in doubt: {self.verdict}, but {self.doubts}"

    def row(self) -> dict[str, Any]:
        """Return its numbers for a file."""
        row = dataclasses.asdict(self) | {"verdict": self.full_verdict}
        del row["machine"]
        return row

    def text(self) -> str:
        """Return its ratio and verdict for a cell."""
        if self.ratio is None:
            return self.full_verdict
        if self.low is None:
            return f"{self.ratio:.3g} without an interval: {self.full_verdict}"
        return f"{self.ratio:.3g} ({self.low:.3g} to {self.high:.3g}): {self.full_verdict}"


def same_cases(pooled: Sequence[Repeats]) -> list[list[Repeats]]:
    """Return the cases of all runs in groups of the same one, in order of first appearance.

    A case is the same experiment, framework, kind of device and settings: a Mac's GPU is compared
    with an NVIDIA GPU.
    """
    groups = defaultdict(list)
    for case in pooled:
        settings = str(case.config)
        groups[case.first.experiment, case.first.framework, case.kind, settings].append(case)
    return list(groups.values())


def pairs(cases: Sequence[Repeats]) -> list[ComparedCase]:
    """Return the comparisons of all others of a group with its first, not judged yet."""
    base, *others = cases
    return [_pair(base, other) for other in others]


def _pair(base: Repeats, other: Repeats) -> ComparedCase:
    comparison = ComparedCase(
        article=base.first.article,
        experiment=base.first.experiment,
        case=base.first.case,
        precision=base.precision,
        base=base.run,
        run=other.run,
        kind=base.kind,
        doubts=_doubts(base, other),
    )
    metric = next(
        (name for name in TIMES if name in base.in_repeats and name in other.in_repeats), None
    )
    if metric is None:
        return comparison
    difference = _difference(base, other)
    if difference:
        comparison.verdict = f"must not be compared: {difference}"
        return comparison
    comparison.metric = metric
    comparison.base_s = [estimate.value for estimate in base.in_repeats[metric]]
    comparison.run_s = [estimate.value for estimate in other.in_repeats[metric]]
    comparison.ratio = geometric_mean(comparison.run_s) / geometric_mean(comparison.base_s)
    comparison.machine = _machine(base, other)
    comparison.verdict = "single runs" if comparison.single else ""
    return comparison


def _difference(base: Repeats, other: Repeats) -> str:
    """Return what forbids a comparison: `threads 8 and 4`; "" if nothing does."""
    # Another chip has threads of its own.
    one_chip = base.first.chip == other.first.chip
    for name in (*SAME, "threads") if one_chip else SAME:
        # The last repeat may have run in another way than the first.
        sides = [
            {one_line(getattr(record, name)) for record in (case.first, case.last)}
            for case in (base, other)
        ]
        if len(sides[0] | sides[1]) > 1:
            texts = [" or ".join(sorted(side)) for side in sides]
            return f"{name.replace('_', ' ')} {texts[0]} and {texts[1]}"
    return ""


def _machine(base: Repeats, other: Repeats) -> list[str]:
    """Return how the machine itself differed, by its power mode and its calibration matmul."""
    differences = []
    before, after = base.first.power_mode, other.first.power_mode
    if before and after and before != after:
        differences.append(f"power mode {before} and {after}")
    # Another chip, or on a GPU another version, has a matmul of its own.
    same = ("chip",) if base.kind == "cpu" else ("chip", "framework_version")
    before_s, after_s = base.calibration_s, other.calibration_s
    alike = all(getattr(base.first, name) == getattr(other.first, name) for name in same)
    if alike and before_s and after_s:
        by = slower(base.kind, max(before_s, after_s), min(before_s, after_s))
        way = "slower" if after_s > before_s else "faster"
        if by:
            differences.append(f"the machine itself was {by} {way} by its calibration matmul")
    return differences


def _doubts(base: Repeats, other: Repeats) -> str:
    """Return the conditions that may explain a difference: `busy in a, on-battery in b`."""
    causes = (DOUBTS | LASTING) - LASTING.intersection(base.flags, other.flags)
    flags = [(flag, case.run) for case in (base, other) for flag in case.flags]
    return ", ".join(f"{flag} in {run}" for flag, run in flags if flag in causes)


def judge(
    comparisons: Sequence[ComparedCase],
    variations: Mapping[tuple[str, str], float],
    in_turn: bool,
) -> None:
    """Set the verdicts of comparisons that have times.

    variations: run-to-run variation by run and kind of device. in_turn: see `table`.
    """
    families = defaultdict(list)
    for comparison in comparisons:
        if comparison.repeated:
            families[comparison.run, comparison.experiment].append(comparison)
        elif comparison.single:
            judge_single(comparison, variations)
    for family in families.values():
        judge_together(family, in_turn)


def judge_single(comparison: ComparedCase, variations: Mapping[tuple[str, str], float]) -> None:
    """Judge single runs by the variation measured on both machines, if it has been."""
    runs = (comparison.base, comparison.run)
    measured = [variations.get((run, comparison.kind)) for run in runs]
    if None in measured:
        return
    factor = allowed(measured)
    ratio = comparison.ratio
    comparison.conclude(ratio / factor, ratio * factor, "within run-to-run variation")


def judge_together(comparisons: Sequence[ComparedCase], in_turn: bool) -> None:
    """Judge repeated cases of one notebook, by Welch's t on logarithms (Welch 1947).

    The variance between sets of processes is added where these did not run in turn.
    """
    from scipy import stats  # half a second, which single runs do not need

    between = 0.0 if in_turn else claims.BETWEEN_SETS
    spreads = []
    for comparison in comparisons:
        run, base = np.log(comparison.run_s), np.log(comparison.base_s)
        variance = squares = 0.0
        for side in (run, base):
            part = max(side.var(ddof=1), claims.RESOLUTION**2) * (1 / side.size + between / 2)
            variance += part
            squares += part**2 / (side.size - 1)
        spreads.append(stats.t(variance**2 / squares, run.mean() - base.mean(), variance**0.5))
    confidence = joint_confidence([2 * min(spread.cdf(0), spread.sf(0)) for spread in spreads])
    for comparison, spread in zip(comparisons, spreads, strict=True):
        with np.errstate(over="ignore"):  # two repeats may have a bound beyond any float
            low, high = map(float, np.exp(spread.interval(confidence)))
        comparison.conclude(low, high, "no difference shown")


def joint_confidence(p_values: Sequence[float]) -> float:
    """Return the confidence at which intervals show which of several comparisons differ.

    Of those whose interval at this confidence leaves 1 out, at most 5 % are wrong on average
    (Benjamini and Hochberg 1995; Benjamini and Yekutieli 2005). One comparison: 95 %.
    """
    from scipy.stats import false_discovery_control

    rate = 1 - intervals.CONFIDENCE
    passed = sum(false_discovery_control(p_values) <= rate)
    return float(1 - rate * max(passed, 1) / len(p_values))


def table(runs: Sequence[Run], in_turn: bool = False) -> Table:
    """Return a row for each case that two runs have, a column for each run.

    `data` of the table has every comparison with its numbers. in_turn: whether the repeats of the
    runs took turns, so that the machine was the same for both.
    """
    names = [run.name for run in runs]
    pooled = [case for run in runs for case in pool(run.records, run.name)]
    variations = run_to_run(pooled)
    groups = [(cases, pairs(cases)) for cases in same_cases(pooled)]
    comparisons = [comparison for _, compared in groups for comparison in compared]
    judge(comparisons, variations, in_turn)
    rows = [_row(cases, compared, names) for cases, compared in groups]
    rows = [row for row in rows if row]
    notes = [f"{run.name}: {one_line(machine_of(run))}." for run in runs]
    alone = [name for name in names if not any(row.cells[name] for row in rows)]
    notes += [_alone(name, pooled) for name in alone]
    notes += [RATIOS] if rows else []
    notes += _methods(comparisons, variations, pooled)
    side_by_side = Table("Runs side by side", rows, notes)
    side_by_side.data = [comparison.row() for comparison in comparisons]
    return side_by_side


def _row(
    cases: Sequence[Repeats], compared: Sequence[ComparedCase], names: list[str]
) -> Row | None:
    """Return the row of a group of cases, None if there is no comparison or time to show."""
    # Without a common time the row shows the first time that any of them has.
    metrics = [comparison.metric for comparison in compared]
    metrics += [name for name in TIMES if any(name in case.values for case in cases)]
    metric = next(filter(None, metrics), None)
    if not (compared and metric):
        return None
    cells = dict.fromkeys(names, "")
    for case in cases:
        time = case.values.get(metric)
        text = with_interval(time, seconds) if time else case.status
        cells[case.run] = one_line(", ".join([text, *case.flags]), 200)
    for comparison in compared:
        cells[comparison.run] += f"; {comparison.text()}"
    title = one_line(f"{compared[0].experiment}: {compared[0].case}", 120)
    return Row({"Case": title, "Time of": metric.removesuffix("_s"), **cells})


def _alone(run: str, pooled: Sequence[Repeats]) -> str:
    """Return a sentence on a run that has no timed case in common with another one."""
    cases = [case for case in pooled if case.run == run]
    timed = sum(not case.values.keys().isdisjoint(TIMES) for case in cases)
    kinds = {
        f"{case.first.experiment} ({case.first.profile}, {case.framework}, {case.kind})"
        for case in cases
    }
    has = f"{timed} of its {len(cases)} cases are timed: {', '.join(sorted(kinds))}"
    return one_line(f"{run} has no timed case in common with another run; {has}.", 600)


def _methods(
    comparisons: Sequence[ComparedCase],
    variations: Mapping[tuple[str, str], float],
    pooled: Sequence[Repeats],
) -> list[str]:
    """Return a note for each way in which some of the comparisons were judged."""
    stated = " ".join(
        f"{name}: {variation_text(case for case in pooled if case.run == name)}"
        for name in dict.fromkeys(run for run, _ in variations)
    )
    single = [comparison for comparison in comparisons if comparison.single]
    notes = []
    if single and stated:
        notes.append(SINGLE.format(stated))
    if any(comparison.low is None for comparison in single):
        notes.append(UNKNOWN)
    if any(comparison.repeated for comparison in comparisons):
        notes.append(REPEATED)
    return notes
