"""Runs side by side, case by case, each against the first; and other people's beside this machine's, on its page.

They are of this machine or of anybody's, folders or zips, read with the limits of `results.archive`. For a comparison
only times are kept of a journal, and what shows whether two are of the same work: a thousand runs fit into memory.
Nothing that a stranger's file says reaches a terminal, a page or a table's file as it is.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

import msgspec

from pomology.articles import published
from pomology.errors import PomologyError
from pomology.format import one_line, seconds
from pomology.machine import snapshot
from pomology.measure import intervals
from pomology.measure.estimate import Estimate
from pomology.paths import write_atomic
from pomology.report.table import Row, Table, filled, write_numbers
from pomology.results import cases
from pomology.results import run as results_run
from pomology.results.journal import Contents
from pomology.results.record import Metrics, Record
from pomology.results.run import Run

# The first of these that two runs both have is what they are compared by.
TIMES = {"epoch_s": "an epoch", "fit_s": "a training", "kernel_s": "a call", "pass_s": "a pass"}
TIMES |= {"launch_s": "a launch", "step_s": "a step"}
# What must be equal. Threads count on one chip only.
SAME = ("profile", "data", "scaled", "parameters", "flops_per_step", "chip", "threads")
WHOLE = 3  # runs, up to which each has a column and each case a row; of more each run is a row of counts
UNTOLD, BARRED, NOT_SHOWN = "cannot be told", "must not be compared", "no difference shown"
SINGLE = "single runs"

MOST_RUNS = 8  # on a page, whose figures have a mark for each of their devices
BESIDE = (
    "Runs of other people stand beside this one: their rows have the run's name in brackets, their marks are orange "
    "crosses. Facts, verdicts and shares of the best are those of this page's own run alone."
)


class Case(NamedTuple):
    """What two runs must both have for a row; config is JSON with its keys in order."""

    article: str
    experiment: str
    framework: str
    backend: str
    precision: str
    config: str

    @property
    def text(self) -> str:
        config = msgspec.json.decode(self.config)
        precision = "" if "precision" in config else self.precision
        parts = (f"{self.framework} {self.backend}", precision, cases.config_text(config))
        return one_line(f"{self.experiment}: {', '.join(filter(None, parts))}", 120)

    @classmethod
    def of(cls, record: Record) -> Case:
        config = msgspec.json.encode(record.config, order="sorted").decode()
        return cls(*attrgetter(*cls._fields[:-1])(record), config)


@dataclass
class Side:
    """What a comparison needs of a run: its cases, each with its repeats. problems: a sentence for each file or line
    that could not be used."""

    name: str
    machine: dict
    cases: dict[Case, list[Record]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def records(self) -> list[Record]:
        return [record for repeats in self.cases.values() for record in repeats]


def find(names: Iterable[str], variable: str = "RUNS") -> list[Path]:
    """The places of runs, by their names in outputs/ or their paths; a folder of runs stands for all that are in it."""
    places = []
    for name in dict.fromkeys(names):
        place = results_run.locate(name)
        inside = sorted(path for path in Path(name).glob("*") if results_run.is_run(path)) if name else []
        if place is None and not inside:
            raise results_run.unknown(f"{variable}: {one_line(name, 200)}")
        places += [place] if place else inside
    return list(dict.fromkeys(places))


def load(place: str | Path) -> Side:
    """Read a run's folder or zip. Raises PomologyError, in a line, for what is no run, is not safe to read, or has no
    journal that can be read."""
    run = Run(place)
    side = Side(one_line(run.name), run.machine, problems=[problem.rstrip(".") for problem in run.problems])
    if side.problems and not run.journals:
        raise PomologyError(f"{side.name}: {side.problems[0]}")
    for journal in run.journals.values():
        side.problems += journal.problems
        for record in journal.records:
            if record.article == published.KIT:  # it says how well was measured, not how fast this machine is
                continue
            known = {name: record.metrics[name] for name in TIMES if name in record.metrics}
            times = Metrics((name, time) for name, time in known.items() if time.value > 0 and _plausible(time, 1e12))
            side.problems += [f"{record.experiment}: {name} is no time" for name in known if name not in times]
            side.cases.setdefault(Case.of(record), []).append(record.without_samples().replace(metrics=times))
    return side


def _plausible(number: Estimate, most: float) -> bool:
    """What is outside of these bounds is no measurement, and an axis with it would show nothing else."""
    return all(1e-15 < abs(value) < most for value in (number.value, number.low, number.high) if value)


class Finding(NamedTuple):
    """What can be said of a case in one run against the same in another, by a metric; why it is not compared, if it is
    not. ratio: with bounds where repeats gave some."""

    verdict: str
    metric: str = ""
    ratio: Estimate | None = None
    smallest_detectable: float | None = None
    why: str = ""


def times_of(repeats: Iterable[Record], metric: str) -> list[Estimate]:
    return [record.metrics[metric] for record in repeats if record.status == "ok" and metric in record.metrics]


def metric_of(*sides: list[Record]) -> str:
    """The time that all have; empty if there is none."""
    return next((name for name in TIMES if all(times_of(side, name) for side in sides)), "")


def _differences(*sides: list[Record]) -> str:
    """In which of `SAME` these are not of one thing, in words."""
    good, differ = [cases.good_of(side) for side in sides], {}
    for key in SAME:
        values = [dict.fromkeys(getattr(record, key) for record in side) for side in good]
        if len(values[0] | values[1]) > 1:
            shown = (" or ".join(one_line(value, 40) for value in side) for side in values)
            differ[key] = f"{key.replace('_', ' ')} {' and '.join(shown)}"
    if differ.pop("chip", None):
        differ.pop("threads", None)
    return "; ".join(differ.values())


def judged(
    pairs: dict[Any, tuple[list[Record], list[Record]]],
    between: float = intervals.BETWEEN_SETS,
    family: Callable[[Any], str] = attrgetter("experiment"),
) -> dict[Any, Finding]:
    """Cases of two runs, base and other, and what can be said of the other. A verdict needs repeats on both sides.

    between: what two sets of processes differ by beyond their spread (`intervals.BETWEEN_SETS`); 0 if they ran in turn.
    family: of a case, with which others it is judged together (`intervals.joint_confidence`): a notebook of sixty rows
    has sixty chances to show something by accident.
    """
    findings: dict[Any, Finding] = {}
    families: dict[str, list[tuple]] = {}
    for case, (base, other) in pairs.items():
        metric = metric_of(base, other)
        values = [[time.value for time in times_of(side, metric)] for side in (other, base)]
        if not metric:
            findings[case] = Finding(UNTOLD, why="not timed in both")
        elif differ := _differences(base, other):
            findings[case] = Finding(BARRED, why=differ)
        elif min(map(len, values)) < 2:
            ratio = Estimate(geometric_mean(values[0]) / geometric_mean(values[1]))
            findings[case] = Finding(UNTOLD, metric, ratio, why=SINGLE)
        else:
            difference = intervals.difference(*values, between=between)
            families.setdefault(family(case), []).append((case, metric, difference))
    for rows in families.values():
        confidence = intervals.joint_confidence([difference.p_value for _, _, difference in rows])
        for case, metric, difference in rows:
            shown = difference.judged(confidence)
            findings[case] = Finding(shown.verdict, metric, shown.ratio, shown.smallest_detectable)
    return findings


NOTES = (
    "Ratio: time over that of the first run with this case, so below 1 is faster. A verdict needs repeats on both "
    "sides; single runs stand with their ranges, and say nothing of the next run.",
    "The rows of a notebook are judged together: of those called faster or slower at most 5 % are not, on average. "
    "In brackets behind a ratio is the interval that goes with that, behind a time the 95 % one.",
)
HEADINGS = ("experiment", "case", "base", "run", "verdict", "metric", "ratio", "low", "high", "smallest_detectable")
HEADINGS += ("why",)


def side_by_side(sides: Sequence[Side]) -> Table:
    """A row for each case that two runs have, a column for each run; of more than 3 runs a row for each, with counts.
    `data` has every comparison with its numbers."""
    names = [side.name for side in sides]
    if len(set(names)) < len(names):
        names = [f"{name} ({number})" for number, name in enumerate(names, start=1)]
    first: dict[Case, int] = {}
    findings = []
    for number, side in enumerate(sides):
        there = {case: first.setdefault(case, number) for case in side.cases}
        pairs = {case: (sides[base].cases[case], side.cases[case]) for case, base in there.items() if base != number}
        findings.append(judged(pairs))
    shared = sorted({case: None for row in findings for case in row}, key=lambda case: (case.article, case.experiment))
    data = tuple(
        numbers_of((one_line(case.experiment), case.text, names[first[case]], name), finding)
        for name, row in zip(names, findings, strict=True)
        for case, finding in row.items()
    )
    timed = [case for case in shared if any(metric_of(side.cases.get(case, [])) for side in sides)]
    notes = [f"{len(shared) - len(timed)} cases were timed in no run."] if len(timed) < len(shared) else []
    few = len(sides) <= WHOLE
    for name, side in zip(names, sides, strict=True):
        notes += [f"{name}: {_machine(side, 200)}."] if few else []
        if few and side is not sides[0]:
            differ = results_run.differences(sides[0], side)
            notes.append(f"{name}: {'not shown to be' if differ else 'is'} the machine of {names[0]}. {differ}".strip())
        notes += [f"{name}: {one_line(problem, 300)}." for problem in side.problems]
    notes += [f"{len(first) - len(shared)} cases are in one run only."] if len(first) > len(shared) else []
    rows = []
    if not few:
        columns = ("Run", "Machine", "Cases", "Faster", "Slower", "Not shown", "Single runs", "Not comparable")
        for name, side, row in zip(names, sides, findings, strict=True):
            counts = Counter(finding.verdict for finding in row.values())
            numbers = (len(row), *(counts[verdict] for verdict in ("faster", "slower", NOT_SHOWN, UNTOLD, BARRED)))
            rows.append(Row((one_line(name, 40), _machine(side, 60), *map(str, numbers))))
        return Table("Runs against the first", columns, tuple(rows), (*notes, *NOTES), data)
    for case in timed:
        repeats = [side.cases.get(case, []) for side in sides]
        compared = [row.get(case) for row in findings]
        metric = next(finding.metric for finding in compared if finding) or metric_of(repeats[first[case]]) or "step_s"
        times = [time_text(side, metric) for side in repeats]
        shown = [_shown(finding, metric) for finding in compared[1:]]
        rows.append(Row((case.text, TIMES[metric].split()[1], *times, *shown)))
    columns = ("Case", "Time of", *names, *(f"{name} against the first" for name in names[1:]))
    return Table("Runs side by side", columns, tuple(rows), (*notes, *NOTES), data)


def numbers_of(texts: Iterable[str], finding: Finding) -> dict:
    """A comparison as a row of the file, in which no spreadsheet takes a text for a formula."""
    verdict, metric, ratio, detectable, why = finding
    numbers = (ratio.value, ratio.low, ratio.high) if ratio else (None, None, None)
    *texts, why = (f"'{text}" if text[:1] in ("=", "+", "-", "@") else text for text in (*texts, why))
    return dict(zip(HEADINGS, (*texts, verdict, metric, *numbers, detectable, why), strict=True))


def _machine(run: Side | Run, most: int) -> str:
    return one_line(snapshot.describe(run.machine), most) if run.machine else "machine not known"


def time_text(repeats: list[Record], metric: str) -> str:
    """A time with its interval, or how the case ended."""
    times = times_of(repeats, metric)
    if not times:
        return repeats[-1].status if repeats else ""
    time = intervals.repeats(times)
    text = seconds(time.value)
    if time.low is not None:
        within = " within this run" if len(times) == 1 else f", {len(times)} repeats"
        text += f" ({seconds(time.low)} to {seconds(time.high)}{within})"
    flags = sorted({flag for record in repeats for flag in record.flags})
    return ", ".join([text, *(one_line(flag, 30) for flag in flags[:6])])


def _shown(finding: Finding | None, metric: str) -> str:
    if finding is None:
        return ""
    other = "" if finding.metric in ("", metric) else f" ({TIMES[finding.metric]})"
    if finding.why:
        return f"{finding.verdict}{f' from {SINGLE}{other}' if finding.why == SINGLE else f': {finding.why}'}"
    ratio = finding.ratio
    return (
        f"{ratio.value:.3g} ({ratio.low:.3g} to {ratio.high:.3g}){other}: {finding.verdict}; "
        f"this many repeats could show a factor of {finding.smallest_detectable:.3g}"
    )


def write(sides: Sequence[Side], folder: Path) -> tuple[Table, Path, Path]:
    """Compare, and write `compare.csv` and `compare.html`; returns the table and where they are."""
    table, few = side_by_side(sides), len(sides) <= WHOLE
    numbers, page = folder / "compare.csv", folder / "compare.html"
    write_numbers(numbers, table.data, HEADINGS)
    verdicts = Counter((row["run"], row["verdict"] + f" ({SINGLE})" * (row["why"] == SINGLE)) for row in table.data)
    counts = [f"{name}: {count:,} {verdict}" for (name, verdict), count in verdicts.items()] if few else []
    write_atomic(page, filled("compare.html.j2", table=table, counts=counts, narrow=few))
    return table, numbers, page


# On a page ------------------------------------------------------------------------------------------------------------


class Other(Run):
    """A run beside another one's, which enters none of its verdicts, ceilings, shares and means. Its records name it
    behind their chip, so that no row is taken for another's."""

    @functools.cached_property
    def journals(self) -> dict[str, Contents]:
        files = super().journals.items()
        return {name: replace(held, records=[*map(self._named, held.records)]) for name, held in files}

    def _named(self, record: Record) -> Record:
        known = {name: number for name, number in record.metrics.items() if _plausible(number, 1e18)}
        chip = f"{one_line(cases.short_chip(record.chip), 60)} ({self.name})"
        return record.replace(chip=chip, metrics=Metrics(known))


def beside(places: Sequence[Path], run: Run) -> list[Other]:
    """The runs in these folders and zips, beside `run`. Raises PomologyError, in a line, for too many, for `run`
    itself, and for one that is not safe to read or has nothing to show."""
    if len(places) > MOST_RUNS:
        raise PomologyError(f"WITH: {len(places)} runs; a page shows at most {MOST_RUNS} beside its own")
    loaded: dict[str, Other] = {}
    for place in places:
        other = Other(place)
        name = one_line(other.name, 40).replace(" @ ", "@")  # behind which short_chip would cut
        other.name = f"{name}, {len(loaded) + 1}" if name in loaded else name
        if place.resolve() == run.path.resolve():
            raise PomologyError(f"WITH={name}: is the run whose page this is")
        if not other.records:
            raise PomologyError(f"WITH={name}: {next(iter(other.problems), 'no case has ended in it')}")
        loaded[other.name] = other
    return [*loaded.values()]


def beside_notes(run: Run) -> list[str]:
    """What a page says of those beside its run: which machine each is, whether it is the same one, and what could not
    be used of it."""
    lines = [BESIDE] if run.others else []
    for other in run.others:
        differ = results_run.differences(run, other)
        same = f"It is not shown to be the machine of this page ({one_line(differ.partition('; ')[0], 100)})."
        same = same if differ else "It is the machine of this page, in another run."
        here = [f"{_machine(other, 200)}; {len(other.records):,} cases. {same}", *other.problems]
        here += [f"{problem}." for held in other.journals.values() for problem in held.problems]
        if missing := ", ".join(sorted(other.journals.keys() - run.journals.keys())):
            here.append(f"not shown, since this run lacks them: {missing}.")
        lines += [f"{other.name}: {one_line(text, 400)}" for text in here]
    return lines
