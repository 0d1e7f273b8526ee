"""Comparisons of a case in two runs: its times, their ratio, and a verdict.

Two runs of a case are compared by the first time of TIMES that both have: by their repeats, or
single runs by the run-to-run variation that `instrument_check` has measured on both machines.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from pomology.format import IN_PROCESS, one_line, seconds, with_interval
from pomology.machine.snapshot import CPU_KIND
from pomology.measure.estimate import REPEATS
from pomology.report.table import Row, Table
from pomology.results.cases import DOUBTS
from pomology.results.comparing import Compared, by_chance, judge, of_cases
from pomology.results.frame import machine_of, software
from pomology.results.repeats import Repeats, pool, run_to_run, variation_text
from pomology.results.run import Run, cpu_kind

TIMES = ("epoch_s", "fit_s", "kernel_s", "pass_s", "launch_s", "step_s")
SAME = ("profile", "data", "scaled", "parameters", "flops_per_step")  # what must be equal
# Flags that leave a comparison in doubt, unless both cases have them.
LASTING = {"on-battery", "low-power", "fallback-enabled", "other-way"}
CALIBRATION = 0.05  # change of the calibrations' median that shows another speed of the machine
LEAST_CALIBRATIONS = 10
IN_ONE_DIRECTION = 0.75  # share of the cases of a run
LEAST_IN_ONE_DIRECTION = 8  # cases
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
    they cannot be. times: its seconds by repeat, with their ratio and verdict. refused: why there
    is no comparison. machine: how the machine itself differed.
    """

    article: str
    experiment: str
    case: str
    precision: str
    base: str
    run: str
    kind: str
    doubts: str
    metric: str | None = None
    times: Compared | None = None
    refused: str = "not timed in both"
    machine: Sequence[str] = ()

    @property
    def repeated(self) -> bool:
        """Whether both runs have enough repeats for an interval between processes."""
        return self.times is not None and self.times.repeated

    @property
    def single(self) -> bool:
        """Whether it has times, but too few repeats in one of the runs."""
        return self.times is not None and not self.times.repeated

    @property
    def full_verdict(self) -> str:
        """The verdict, and how the machine itself differed."""
        verdict = self.times.verdict if self.times else self.refused
        return "; ".join([verdict, *self.machine])

    def row(self) -> dict[str, Any]:
        """Return its numbers for a file."""
        times = self.times
        return {
            "article": self.article,
            "experiment": self.experiment,
            "case": self.case,
            "precision": self.precision,
            "base": self.base,
            "run": self.run,
            "verdict": self.full_verdict,
            "kind": self.kind,
            "doubts": self.doubts,
            "metric": self.metric,
            "ratio": times and times.ratio,
            "low": times and times.low,
            "high": times and times.high,
            "machine": times and times.machine,
            "base_s": times and times.base_s,
            "run_s": times and times.other_s,
        }

    def text(self) -> str:
        """Return its ratio and verdict for a cell."""
        times = self.times
        if times is None:
            return self.full_verdict
        if times.low is None:
            return f"{times.ratio:.3g} without an interval: {self.full_verdict}"
        return f"{times.ratio:.3g} ({times.low:.3g} to {times.high:.3g}): {self.full_verdict}"


def same_cases(pooled: Sequence[Repeats], any_kind: bool = False) -> list[list[Repeats]]:
    """Return the cases of all runs in groups of the same one, in order of first appearance.

    A case is the same experiment, framework, kind of device and settings: a Mac's GPU is compared
    with an NVIDIA GPU. any_kind: a CPU is compared with a GPU, too.
    """
    groups = defaultdict(list)
    for case in pooled:
        kind = "" if any_kind else case.kind
        settings = str(case.config)
        groups[case.first.experiment, case.first.framework, kind, settings].append(case)
    return list(groups.values())


def pairs(cases: Sequence[Repeats], runs: Mapping[str, Traits]) -> list[ComparedCase]:
    """Return the comparisons of all others of a group with its first, not judged yet.

    runs: the traits of each run.
    """
    base, *others = cases
    return [_pair(base, other, runs) for other in others]


def _pair(base: Repeats, other: Repeats, runs: Mapping[str, Traits]) -> ComparedCase:
    flags = _flags(base, other)
    comparison = ComparedCase(
        article=base.first.article,
        experiment=base.first.experiment,
        case=base.first.case,
        precision=base.precision,
        base=base.run,
        run=other.run,
        kind=base.kind,
        doubts=", ".join(flags.values()),
    )
    metric = next(
        (name for name in TIMES if name in base.in_repeats and name in other.in_repeats), None
    )
    if metric is None:
        return comparison
    traits = [runs[case.run] for case in (base, other)]
    difference = _difference(base, other, traits[0].other_cpu(traits[1]))
    if difference:
        comparison.refused = f"must not be compared: {difference}"
        return comparison
    comparison.metric = metric
    comparison.machine = _power_modes(base, other)
    machine, count = _machine(base, other, *traits)
    comparison.times = of_cases(
        base,
        other,
        metric,
        variations=tuple(each.variations.get(base.kind) for each in traits),
        flags=flags,
        machine=machine,
        machine_words=_slower_machine(machine, count),
    )
    return comparison


def _difference(base: Repeats, other: Repeats, other_cpu: bool) -> str:
    """Return what forbids a comparison: `threads 8 and 4`; "" if nothing does.

    other_cpu: whether the CPUs are of different kinds.
    """
    # Another chip has threads of its own.
    one_chip = base.first.chip == other.first.chip and not other_cpu
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


def _power_modes(base: Repeats, other: Repeats) -> list[str]:
    """Return the power modes of a machine where they differed."""
    before, after = base.first.power_mode, other.first.power_mode
    return [f"power mode {before} and {after}"] if before and after and before != after else []


def _machine(base: Repeats, other: Repeats, before: Traits, after: Traits) -> tuple[float, int]:
    """Return how much longer the calibrations of a run took, by their medians, and how many.

    The medians over a run vary by 2.5 %, where one calibration says little of its case. The result
    is 1.0 below a change of CALIBRATION. Another kind of chip, or on a GPU another version of the
    framework, has a calibration of its own.
    """
    same = ("chip",) if base.kind == "cpu" else ("chip", "framework_version")
    alike = all(getattr(base.first, name) == getattr(other.first, name) for name in same)
    calibrated = [each.calibration(base) for each in (before, after)]
    if not alike or before.other_cpu(after) or None in calibrated:
        return 1.0, 0
    (before_s, _), (after_s, count) = calibrated
    change = after_s / before_s
    return (change, count) if abs(math.log(change)) > math.log1p(CALIBRATION) else (1.0, count)


def _slower_machine(machine: float, count: int) -> str:
    """Return a change of the machine in words. count: of its calibrations."""
    return f"the machine was {changed(machine)} by its calibration (median of {count:,})"


def changed(machine: float) -> str:
    """Return how much longer a calibration took, in words: `21 % slower`."""
    way, share = ("slower", machine - 1) if machine > 1 else ("faster", 1 / machine - 1)
    return f"{100 * share:.0f} % {way}"


def _flags(base: Repeats, other: Repeats) -> dict[str, str]:
    """Return the flags that may explain a difference, in words: `busy in a, busy in b`."""
    causes = (DOUBTS | LASTING) - LASTING.intersection(base.flags, other.flags)
    words = defaultdict(list)
    for case in (base, other):
        for flag in causes.intersection(case.flags):
            words[flag].append(f"{flag} in {case.run}")
    return {flag: ", ".join(of_flag) for flag, of_flag in sorted(words.items())}


@dataclasses.dataclass(frozen=True)
class Traits:
    """What is the same for all cases of a run.

    variations: run-to-run variation by kind of device. cpu: family, model and stepping of the CPU,
    empty where they are not known. calibrations: framework, version and backend -> seconds; those
    of the CPU have empty names.
    """

    variations: dict[str, float]
    cpu: tuple
    calibrations: Mapping[tuple[str, str, str], list[float]]

    def calibration(self, case: Repeats) -> tuple[float, int] | None:
        """Return the median seconds on a case's device, and of how many; None if of too few."""
        first = case.first
        device = (first.framework, first.framework_version, first.backend)
        times_s = self.calibrations.get(("", "", "") if case.kind == "cpu" else device, [])
        if len(times_s) < LEAST_CALIBRATIONS:
            return None
        return statistics.median(times_s), len(times_s)

    def other_cpu(self, other: Traits) -> bool:
        """Whether the CPUs of two runs are of different kinds, though of one name perhaps."""
        return bool(self.cpu and other.cpu) and self.cpu != other.cpu


def traits_of(run: Run, pooled: Sequence[Repeats]) -> Traits:
    """Return the traits of a run. pooled: its cases."""
    calibrations = defaultdict(list)
    for record in run.records:
        device = (record.framework, record.framework_version, record.backend)
        for prefix, key in (("", ("", "", "")), ("device_", device)):
            sides = (record.calibration.get(f"{prefix}{side}") for side in ("before_s", "after_s"))
            calibrations[key] += filter(None, sides)
    variations = {kind: share for (_, kind), share in run_to_run(pooled).items()}
    return Traits(variations, cpu_kind(run.machine), calibrations)


def table(runs: Sequence[Run], in_turn: bool = False) -> Table:
    """Return a row for each case that two runs have, a column for each run.

    `data` of the table has every comparison with its numbers. in_turn: whether the repeats of the
    runs took turns, so that the machine was the same for both.
    """
    names = [run.name for run in runs]
    by_run = {run.name: pool(run.records, run.name) for run in runs}
    pooled = [case for cases in by_run.values() for case in cases]
    traits = {run.name: traits_of(run, by_run[run.name]) for run in runs}
    # The user has named the kind of each run's devices.
    any_kind = all(run.kind for run in runs)
    groups = [(cases, pairs(cases, traits)) for cases in same_cases(pooled, any_kind)]
    comparisons = [comparison for _, compared in groups for comparison in compared]
    families = defaultdict(list)
    for comparison in comparisons:
        if comparison.times:
            families[comparison.run, comparison.experiment].append(comparison.times)
    for family in families.values():
        judge(family, in_turn)
    rows = [_row(cases, compared, names) for cases, compared in groups]
    rows = [row for row in rows if row]
    notes = [note for run in names[1:] for note in _direction(run, comparisons)]
    notes += [_described(run) for run in runs]
    for first, second in combinations(runs, 2):
        notes += _kinds(first.name, second.name, traits)
        notes += _packages(first, second)
    alone = [name for name in names if not any(row.cells[name] for row in rows)]
    notes += [_alone(name, pooled) for name in alone]
    notes += [RATIOS] if rows else []
    notes += _methods(comparisons, traits, pooled)
    side_by_side = Table("Runs side by side", rows, notes)
    side_by_side.data = [comparison.row() for comparison in comparisons]
    return side_by_side


def _direction(run: str, comparisons: Sequence[ComparedCase]) -> list[str]:
    """Return that most cases of a run moved in one direction, if they did."""
    ratios = [each.times.ratio for each in comparisons if each.run == run and each.times]
    if len(ratios) < LEAST_IN_ONE_DIRECTION:
        return []
    middle = statistics.median(ratios)
    longer = sum(ratio > 1 for ratio in ratios)
    share = max(longer, len(ratios) - longer) / len(ratios)
    if share < IN_ONE_DIRECTION or abs(math.log(middle)) < math.log1p(CALIBRATION):
        return []
    way, count = ("longer", longer) if middle > 1 else ("shorter", len(ratios) - longer)
    return [
        f"{run}: {count} of {len(ratios)} cases took {way}, the median {middle:.3g} times as long. "
        "What changes most cases alike is the machine or its software rather than a case."
    ]


def _described(run: Run) -> str:
    """Return a sentence on a run's machine and the versions of its software."""
    versions = software(run.machine) if run.machine.get("python") else ""
    return one_line(f"{run.name}: {'; '.join(filter(None, [machine_of(run), versions]))}.", 400)


def _versions(run: Run) -> dict[str, str]:
    """Return a run's versions by name: of its packages, NVIDIA's driver, and the limit of power."""
    machine = run.machine
    facts = {"NVIDIA's driver": machine.get("driver")}
    facts |= {
        f"limit of power of {gpu['name']}": f"{gpu['power_limit_w']:g} W"
        for gpu in machine.get("gpus") or ()
        if gpu.get("power_limit_w")
    }
    known = {name: str(fact) for name, fact in facts.items() if fact}
    return (machine.get("packages") or {}) | known


def _packages(first: Run, second: Run) -> list[str]:
    """Return what two runs have different versions of, see `_versions`."""
    versions = [_versions(run) for run in (first, second)]
    names = sorted(versions[0].keys() & versions[1].keys())
    changed = [name for name in names if versions[0][name] != versions[1][name]]
    if not changed:
        return []
    texts = [f"{name} {versions[0][name]} and {versions[1][name]}" for name in changed]
    text = f"Packages of {first.name} and {second.name} that differ: {', '.join(texts)}."
    return [one_line(text, 600)]


def _kinds(first: str, second: str, traits: Mapping[str, Traits]) -> list[str]:
    """Return that two runs are of different CPUs, if these are known."""
    if not traits[first].other_cpu(traits[second]):
        return []
    kinds = []
    for run in (first, second):
        numbers = zip(CPU_KIND, traits[run].cpu, strict=True)
        kinds.append(", ".join(f"{name} {number}" for name, number in numbers))
    return [f"The CPUs of {first} ({kinds[0]}) and {second} ({kinds[1]}) are of different kinds."]


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
        text = with_interval(time, seconds, IN_PROCESS) if time else case.status
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
    traits: Mapping[str, Traits],
    pooled: Sequence[Repeats],
) -> list[str]:
    """Return a note for each way in which some of the comparisons were judged."""
    stated = " ".join(
        f"{name}: {variation_text(case for case in pooled if case.run == name)}"
        for name, of_run in traits.items()
        if of_run.variations
    )
    single = [comparison.times for comparison in comparisons if comparison.single]
    judged = [times for times in single if times.low is not None]
    notes = []
    if single and stated:
        notes.append(SINGLE.format(stated))
    notes += filter(None, [by_chance(judged)])
    if len(judged) < len(single):
        notes.append(UNKNOWN)
    if any(comparison.repeated for comparison in comparisons):
        notes.append(REPEATED)
    return notes
