"""Runs side by side, case by case, each against the first: of this machine's or of anybody's, folders or zips.

Of a record only its times are kept, and what tells whether two of them are of one thing, so that a thousand runs fit
into memory. Nothing that a stranger's file says reaches a terminal, a page or a table's file as it is.

A verdict needs repeats on both sides, and allows for two things that make two runs of one machine look different.
Processes that ran one after the other have a state of the machine in common, so that two sets of them differ by more
than their spread tells (`intervals.BETWEEN_SETS`). And a notebook of sixty rows has sixty chances to show something by
accident, so its rows are judged together (`intervals.joint_confidence`); the intervals are as wide as that asks for.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from pomology import format
from pomology.articles import published
from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.machine import snapshot
from pomology.measure import intervals
from pomology.measure.estimate import Estimate
from pomology.paths import RESOURCES, write_atomic
from pomology.report import table as report_table
from pomology.results import cases as results_cases
from pomology.results import run as results_run
from pomology.results.record import Metrics, Record

# The first of these that two runs both have is what they are compared by.
TIMES = {
    **{"epoch_s": "an epoch", "fit_s": "a training", "kernel_s": "a call", "pass_s": "a pass"},
    **{"launch_s": "a launch", "step_s": "a step"},
}
# What must be equal, and how a narrow column says that it is not. Threads count on one chip only.
SAME = {
    **{"profile": "other profile", "data": "other data", "scaled": "other size", "parameters": "other model"},
    **{"flops_per_step": "other work", "chip": "", "threads": "other threads"},
}
WHOLE = 3  # runs, up to which each comparison is shown in full
COLUMNS = 12  # runs, up to which each has a column; of more each is a row of counts
UNTOLD, BARRED, NOT_SHOWN = "cannot be told", "must not be compared", "no difference shown"
SINGLE = "single runs"


# A run ----------------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """What two runs must both have for a row; config is JSON with its keys in order."""

    article: str
    experiment: str
    framework: str
    backend: str
    precision: str
    config: str

    @classmethod
    def of(cls, record: Record) -> Case:
        names = (getattr(record, name) for name in cls._fields[:-1])
        return cls(*names, msgspec.json.encode(record.config, order="sorted").decode())

    @property
    def text(self) -> str:
        config = json.loads(self.config)
        precision = "" if "precision" in config else self.precision
        parts = [f"{self.framework} {self.backend}", precision, results_cases.config_text(config)]
        return one_line(f"{self.experiment}: {', '.join(part for part in parts if part)}", 120)


@dataclass
class Side:
    """What a comparison needs of a run. cases: each with its repeats, which have no metrics but `TIMES`, and none if
    they did not end well. problems: a sentence for each file, line or time that could not be used.
    """

    name: str
    machine: dict
    cases: dict[Case, list[Record]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def find(names: Iterable[str]) -> list[Path]:
    """The places of runs, by their names in outputs/ or their paths; a folder of runs stands for all that are in it."""
    places = []
    for name in names:
        place = results_run.locate(name)
        inside = sorted(path for path in Path(name).glob("*") if results_run.is_run(path)) if name else []
        if place is None and not inside:
            raise results_run.unknown(f"RUNS: {one_line(name, 200)}")
        places += [place] if place else inside
    return list(dict.fromkeys(places))


def load(place: str | Path) -> Side:
    """Read a run's folder or zip. Raises PomologyError, in a line, for what is no run, is not safe to read, or has no
    journal that can be read."""
    run = results_run.Run(place, brief=True)
    journals = run.journals
    side = Side(one_line(run.name), run.machine, problems=[problem.rstrip(".") for problem in run.problems])
    if side.problems and not journals:
        raise PomologyError(f"{side.name}: {side.problems[0]}")
    for journal in journals.values():
        side.problems += journal.problems
        for record in journal.records:
            if record.article != published.KIT:  # it tells how well was measured, not how fast this machine is
                side.cases.setdefault(Case.of(record), []).append(_timed(record, side.problems))
    return side


def load_all(places: Iterable[Path]) -> list[Side]:
    """Several runs, in their order."""
    return [load(place) for place in places]


def _timed(record: Record, problems: list[str]) -> Record:
    """A record with its times only."""
    times = Metrics()
    for name in TIMES if record.status == "ok" else ():
        time = record.metrics.get(name)
        if time and 1e-15 < time.value < 1e12 and abs(time.low or 0) < 1e12 and abs(time.high or 0) < 1e12:
            times[name] = time
        elif time:
            problems.append(f"{record.experiment}: {one_line(record.case)}: {name} is no time; passed over")
    return record.without_samples().replace(metrics=times)


# Side by side ---------------------------------------------------------------------------------------------------------


class Finding(NamedTuple):
    """What can be said of a case in one run against the same in another; why it is not compared, if it is not.

    metric: the time that was compared. ratio: of that to the other run's, with bounds where repeats gave some.
    """

    verdict: str
    metric: str = ""
    ratio: Estimate | None = None
    smallest_detectable: float | None = None
    why: str = ""
    short: str = ""


def _differences(*sides: list[Record]) -> list[str]:
    """The keys of `SAME` in which these are not of one thing."""
    differ = [key for key in SAME if len({getattr(record, key) for side in sides for record in side}) > 1]
    return [key for key in differ if key != "chip" and (key != "threads" or "chip" not in differ)]


def _difference(key: str, *sides: list[Record]) -> str:
    values = [" or ".join(dict.fromkeys(one_line(getattr(record, key), 40) for record in side)) for side in sides]
    return f"{key.replace('_', ' ')} {' and '.join(values)}"


def _times(repeats: Iterable[Record], metric: str) -> list[Estimate]:
    return [record.metrics[metric] for record in repeats if metric in record.metrics]


def _metric(*sides: list[Record]) -> str:
    """The time that all have; empty if there is none."""
    return next((name for name in TIMES if all(_times(side, name) for side in sides)), "")


def judged(pairs: dict[Case, tuple[list[Record], list[Record]]]) -> dict[Case, Finding]:
    """Cases of two runs, base and other, and what can be said of the other. The rows of a notebook belong together."""
    findings: dict[Case, Finding] = {}
    families: dict[str, list[tuple]] = {}
    for case, sides in pairs.items():
        base, other = timed = [[record for record in side if record.metrics] for side in sides]
        metric = _metric(*timed)
        values = [[time.value for time in _times(side, metric)] for side in (other, base)]
        if not base or not other:
            findings[case] = Finding(UNTOLD, why="not timed in both")
        elif differ := _differences(*timed):
            why = "; ".join(_difference(key, *timed) for key in differ)
            findings[case] = Finding(BARRED, why=why, short=SAME[differ[0]])
        elif not metric:
            findings[case] = Finding(UNTOLD, why="no time of one kind in both")
        elif min(map(len, values)) < 2:
            (first, *more), (reference, *others) = values
            ratio = intervals.compare(*values).ratio if more or others else Estimate(first / reference)
            findings[case] = Finding(UNTOLD, metric, ratio, why=SINGLE)
        else:
            difference = intervals.difference(*values, between=intervals.BETWEEN_SETS)
            families.setdefault(case.experiment, []).append((case, metric, difference))
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
HEADINGS = (
    *("experiment", "case", "base", "run", "verdict", "metric", "ratio", "low", "high", "smallest_detectable", "why"),
)


def compare(places: Sequence[str | Path]) -> report_table.Table:
    """Two runs or more, folders or zips, each against the first: see `side_by_side`.

    Raises PomologyError for fewer than two runs, or one that is not there or not safe to read.
    """
    if len(places) < 2:
        raise PomologyError(f"RUNS: {len(places)} given; a comparison needs two or more")
    return side_by_side(load_all(map(Path, places)))


def side_by_side(sides: Sequence[Side], whole: int = WHOLE) -> report_table.Table:
    """A row for each case that two runs have, a column for each run; `data` has every comparison with its numbers.

    Up to `whole` runs each comparison is shown in full; of more than 12 runs each is a row, with counts.
    """
    names = _names(sides)
    first: dict[Case, int] = {}
    findings: list[dict[Case, Finding]] = []
    for number, side in enumerate(sides):
        pairs: dict[int, dict[Case, tuple]] = {}
        for case, repeats in side.cases.items():
            base = first.setdefault(case, number)
            if base != number:
                pairs.setdefault(base, {})[case] = (sides[base].cases[case], repeats)
        findings.append({case: finding for group in pairs.values() for case, finding in judged(group).items()})
    data = tuple(
        _numbers(case, names[first[case]], name, finding)
        for name, row in zip(names, findings, strict=True)
        for case, finding in row.items()
    )
    shared = sorted({case: None for row in findings for case in row}, key=lambda case: (case.article, case.experiment))
    timed = [case for case in shared if any(record.metrics for side in sides for record in side.cases.get(case, ()))]
    notes = _notes(sides, names, len(first) - len(shared))
    if len(timed) < len(shared):
        notes = (f"{len(shared) - len(timed)} cases were timed in no run.", *notes)
    if len(sides) > COLUMNS:
        columns = ("Run", "Machine", "Cases", "Faster", "Slower", "Not shown", "Single runs", "Not comparable")
        rows = tuple(map(_counts, names, sides, findings))
        return report_table.Table("Runs against the first", columns, rows, notes, data)
    rows = []
    for case in timed:
        repeats = [side.cases.get(case, []) for side in sides]
        compared = [row.get(case) for row in findings]
        metric = next(finding.metric for finding in compared if finding)
        metric = metric or _metric(repeats[first[case]]) or "step_s"
        cells = [case.text, TIMES[metric].split()[1]]
        if len(sides) <= whole:
            cells += [_time(side, metric) for side in repeats]
            cells += [_in_full(finding, metric) for finding in compared[1:]]
        else:
            cells += [_in_short(finding, side, metric) for finding, side in zip(compared, repeats, strict=True)]
        rows.append(report_table.Row(tuple(cells)))
    columns = ("Case", "Time of", *names, *(f"{name} against the first" for name in names[1:]))
    if len(sides) > whole:
        columns = ("Case", "Time of", *(one_line(name, 18) for name in names))
    return report_table.Table("Runs side by side", columns, tuple(rows), notes, data)


def _names(sides: Sequence[Side]) -> list[str]:
    names = [side.name for side in sides]
    if len(set(names)) == len(names):
        return names
    return [f"{name} ({number})" for number, name in enumerate(names, start=1)]


def _numbers(case: Case, base: str, name: str, finding: Finding) -> dict:
    """A comparison as a row of the file."""
    ratio = finding.ratio
    numbers = (None, None, None) if ratio is None else (ratio.value, ratio.low, ratio.high)
    texts = map(cell, (one_line(case.experiment), case.text, base, name))
    row = (*texts, finding.verdict, finding.metric, *numbers, finding.smallest_detectable, cell(finding.why))
    return dict(zip(HEADINGS, row, strict=True))


def _notes(sides: Sequence[Side], names: list[str], alone: int) -> tuple[str, ...]:
    notes = []
    for name, side in zip(names, sides, strict=True):
        if len(sides) <= COLUMNS:
            notes.append(f"{name}: {_machine(side, 200) or 'machine not told'}.")
        notes += [f"{name}: {one_line(problem, 300)}." for problem in side.problems]
    if alone:
        notes.append(f"{alone} cases are in one run only.")
    return (*notes, *NOTES)


def _machine(side: Side, most: int) -> str:
    return one_line(snapshot.describe(side.machine), most) if side.machine else ""


def _counts(name: str, side: Side, row: dict[Case, Finding]) -> report_table.Row:
    counts = Counter(finding.verdict for finding in row.values())
    numbers = (len(row), *(counts[verdict] for verdict in ("faster", "slower", NOT_SHOWN, UNTOLD, BARRED)))
    return report_table.Row((one_line(name, 40), _machine(side, 60) or "not told", *map(str, numbers)))


def _summary(name: str, rows: Iterable[dict]) -> str:
    """`b: 3 slower, 2 no difference shown, 7 cannot be told (single runs)`."""
    counts = Counter(f"{row['verdict']}{f' ({SINGLE})' if row['why'] == SINGLE else ''}" for row in rows)
    counted = ", ".join(f"{count:,} {verdict}" for verdict, count in counts.most_common())
    return f"{name}: {counted or 'no case in common'}"


def _time(repeats: list[Record], metric: str) -> str:
    """A time with its interval, or how the case ended."""
    times = _times(repeats, metric)
    if not times:
        return repeats[-1].status if repeats else ""
    time = intervals.repeats(times)
    text = format.seconds(time.value)
    if time.low is not None:
        within = " within this run" if len(times) == 1 else f", {len(times)} repeats"
        text += f" ({format.seconds(time.low)} to {format.seconds(time.high)}{within})"
    flags = sorted({flag for record in repeats for flag in record.flags})
    return ", ".join([text, *(one_line(flag, 30) for flag in flags[:6])])


def _of(finding: Finding, metric: str) -> str:
    return "" if finding.metric in ("", metric) else f" ({TIMES[finding.metric]})"


def _in_full(finding: Finding | None, metric: str) -> str:
    if finding is None:
        return ""
    if finding.why:
        single = finding.why == SINGLE
        return f"{finding.verdict}{f' from {SINGLE}{_of(finding, metric)}' if single else f': {finding.why}'}"
    ratio = finding.ratio
    return (
        f"{ratio.value:.3g} ({ratio.low:.3g} to {ratio.high:.3g}){_of(finding, metric)}: {finding.verdict}; "
        f"this many repeats could show a factor of {finding.smallest_detectable:.3g}"
    )


def _in_short(finding: Finding | None, repeats: list[Record], metric: str) -> str:
    """A comparison, or of the run that others are compared with the time, in a narrow column."""
    if finding is None:
        return _time(repeats, metric).partition(" (")[0]
    if finding.short:
        return finding.short
    if finding.why:
        times = _times(repeats, finding.metric)
        if not times:
            return "not timed" if repeats[-1].status == "ok" else repeats[-1].status
        ends = [end for time in times for end in (time.value, time.low, time.high) if end is not None]
        low, high = format.seconds(min(ends)), format.seconds(max(ends))
        return (low if low == high else f"{low} to {high}") + _of(finding, metric)
    verdict = f"? {finding.smallest_detectable:.2f}" if finding.verdict == NOT_SHOWN else finding.verdict
    return f"{finding.ratio.value:.3g} {verdict}{_of(finding, metric)}"


def cell(text: str) -> str:
    """A text for a table's file, which no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def write(sides: Sequence[Side], folder: Path) -> tuple[report_table.Table, Path, Path]:
    """Compare, and write `compare.csv` and `compare.html`; returns the table and where they are."""
    import jinja2
    from markupsafe import Markup

    table = side_by_side(sides)
    numbers, page = folder / "compare.csv", folder / "compare.html"
    text = io.StringIO()
    writer = csv.DictWriter(text, HEADINGS)
    writer.writeheader()
    writer.writerows(table.data)
    write_atomic(numbers, text.getvalue())
    # Of a few runs, each against the first in full below the table of all.
    others = sides[1:] if WHOLE < len(sides) <= COLUMNS else ()
    details = [(f"{side.name} against {sides[0].name}", side_by_side((sides[0], side))) for side in others]
    by_run: dict[str, list[dict]] = {}
    for row in table.data:
        by_run.setdefault(row["run"], []).append(row)
    place = RESOURCES / "page"
    environment = jinja2.Environment(autoescape=True, loader=jinja2.FileSystemLoader(place), trim_blocks=True)
    template = environment.get_template("compare.html.j2")
    style = Markup((place / "style.css").read_text(encoding="utf-8"))
    counts = [_summary(name, by_run.get(cell(name), ())) for name in _names(sides)[1:]]
    given = {"style": style, "title": table.title, "table": table, "details": details, "counts": counts}
    write_atomic(page, template.render(**given, narrow=len(table.columns) <= 2 * WHOLE + 1))
    return table, numbers, page
