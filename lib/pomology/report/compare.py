"""Runs laid side by side, case by case, each against the first: of this machine's or of anybody's, folders or zips.

Of a journal only the times are kept, and what tells whether two of them are of one thing, so that a thousand runs fit
into memory. Nothing that a stranger's file says reaches a terminal, a page or a table's file as it is.

A verdict needs repeats on both sides, and allows for two things that make two runs of one machine look different.
Processes that ran one after the other have a state of the machine in common, so that two sets of them differ by more
than their spread tells (`statistics.BETWEEN_SETS`). And a notebook of sixty rows has sixty chances to show something by
accident, so its rows are judged together (`statistics.joint_confidence`); the intervals are as wide as that asks for.
"""

from __future__ import annotations

import csv
import gc
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from pomology import format
from pomology.articles import published
from pomology.errors import PomologyError
from pomology.machine import snapshot
from pomology.measure import intervals
from pomology.paths import RESOURCES, root, write_atomic
from pomology.report import table as report_table
from pomology.results import archive
from pomology.results import cases as results_cases
from pomology.results import record as results_record

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
WHOLE = 3  # runs, up to which each comparison is told in full
COLUMNS = 12  # runs, up to which each has a column; of more each is a row of counts
MOST_LINES = 100_000  # of a journal
MOST_TOLD = 3  # of the lines of a journal that cannot be used
MALFORMED = (PomologyError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError)


def one_line(text: Any, most: int = 100) -> str:
    """A text from a file as it may be shown: of one line, without control characters, cut if it is too long."""
    if isinstance(text, str) and len(text) <= most and text.isprintable():
        return text
    text = "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in str(text)[: most + 1])
    return text if len(text) <= most else f"{text[: most - 1]}…"


# A line of a journal, with the types of `results.KEYS` ----------------------------------------------------------------

Number = Annotated[float, msgspec.Meta(gt=-1e300, lt=1e300)]
Count = Annotated[int, msgspec.Meta(gt=-(2**62), lt=2**62)]


class Time(msgspec.Struct, gc=False):
    """A metric in seconds, and the interval within its run where there is one."""

    value: Annotated[float, msgspec.Meta(gt=1e-15, lt=1e12)]
    low: Annotated[float, msgspec.Meta(gt=-1e12, lt=1e12)] | None
    high: Annotated[float, msgspec.Meta(gt=-1e12, lt=1e12)] | None


# Of other metrics only that they are JSON is looked at.
Times = msgspec.defstruct("Times", [(name, Time | None, None) for name in TIMES], module=__name__, gc=False)


class Start(msgspec.Struct, gc=False):
    """A case that began. Keys that are not named here are read over, and not kept."""

    schema: int
    event: str
    experiment: str
    article: str
    case: str
    config: msgspec.Raw
    framework: str
    framework_version: str
    backend: str
    device: str | None
    chip: str | None
    precision: str
    profile: str
    data: str
    scaled: bool
    repeat: Count
    threads: Count | None
    power_source: str | None
    started: str


class End(Start, gc=False):
    parameters: Count | None
    flops_per_step: Count | None
    foreign_load: Number | None
    flags: list[str]
    status: Literal[results_record.STATUSES]
    reason: str | None
    seconds: Number | None
    metrics: Times


class Head(msgspec.Struct, gc=False):
    schema: Any = None
    event: Any = None


_START, _END, _HEAD = (msgspec.json.Decoder(kind) for kind in (Start, End, Head))


def _record(line: bytes) -> Start | End:
    """Raises msgspec.ValidationError for a line that is JSON, but no record; DecodeError for other lines."""
    if not line.startswith(b'{"event": "start"'):
        try:
            record = _END.decode(line)
            if record.event == "end":
                return record
        except msgspec.ValidationError:
            if _HEAD.decode(line).event != "start":
                raise
    record = _START.decode(line)
    if record.event != "start":
        raise msgspec.ValidationError("event must be start or end")
    return record


# A run ----------------------------------------------------------------------------------------------------------------


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
        config = json.loads(self.config)
        precision = "" if "precision" in config else self.precision
        parts = [f"{self.framework} {self.backend}", precision, results_cases.settings({"config": config})]
        return one_line(f"{self.experiment}: {', '.join(part for part in parts if part)}", 120)


class Repeat(msgspec.Struct, gc=False):
    """How a case ended once. same: the values of `SAME`. times: None of a case that did not end well, or has none."""

    same: tuple
    status: str
    flags: tuple[str, ...]
    times: Times | None

    def time(self, metric: str) -> Time | None:
        return getattr(self.times, metric) if self.times else None


@dataclass
class Run:
    """What a comparison needs of a run. problems: a sentence for each file or line that could not be used."""

    name: str
    machine: dict = field(default_factory=dict)
    cases: dict[Case, list[Repeat]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def find(names: Iterable[str]) -> list[Path]:
    """The places of runs, by their names in outputs/ or their paths; a folder of runs stands for all that are in it."""
    places = []
    for name in names:
        outputs = root() / "outputs"
        candidates = [outputs / name, outputs / f"{name}.zip", Path(name)] if name else []
        place = next((found for found in candidates if _is_run(found)), None)
        inside = sorted(found for found in candidates[-1].glob("*") if _is_run(found)) if candidates else []
        if place is None and not inside:
            known = sorted(path.parent.name for path in outputs.glob("*/machine.json"))
            raise PomologyError(f"RUNS: {one_line(name, 200)}: no such run; outputs/ has {', '.join(known) or 'none'}")
        places += [place] if place else inside
    return list(dict.fromkeys(places))


def _is_run(place: Path) -> bool:
    if place.is_dir():
        return (place / "machine.json").is_file() or next(place.glob("*.jsonl"), None) is not None
    return place.suffix == ".zip" and place.is_file()


def load(place: str | Path, known: dict | None = None) -> Run:
    """Read a run's folder or zip. `known` is shared by several runs, which saves memory.

    Raises PomologyError, in a line, for what is no run, is not safe to read, or is of another schema altogether.
    """
    place, known = Path(place), {} if known is None else known
    run = Run(one_line(place.resolve().name.removesuffix(".zip")))
    refused, good = [], 0
    for name, data in archive.journals(place):
        try:
            if name == "machine.json":
                run.machine = _machine(data)
            else:
                _journal(data, name, run, known)
                good += 1
        except PomologyError as error:
            refused.append(str(error))
    if refused and not good:
        raise PomologyError(f"{run.name}: {refused[0]}")
    run.problems += refused
    if not run.machine and not any(problem.startswith("machine.json") for problem in refused):
        run.problems.append("machine.json is missing: nothing tells which machine this was")
    return run


def load_all(places: Sequence[Path]) -> list[Run]:
    """Several runs, in their order."""
    collects = gc.isenabled()
    gc.disable()  # it would look again and again through a thousand runs, of which nothing is garbage
    try:
        return list(map(load, places, repeat({})))
    finally:
        if collects:
            gc.enable()


def _machine(data: bytes) -> dict:
    try:
        found = json.loads(data)
        snapshot.describe(found)
    except MALFORMED as error:
        raise PomologyError(f"machine.json cannot be read ({type(error).__name__})") from None
    return found


def _journal(data: bytes, name: str, run: Run, known: dict) -> None:
    """Add the cases of a journal, by the rules of `results.read`.

    Raises PomologyError for a journal of another schema, or with more lines than any run writes.
    """
    name = one_line(name)
    if len(data) > MOST_LINES and data.count(b"\n") > MOST_LINES:
        raise PomologyError(f"{name}: more than {MOST_LINES:,} lines")
    ended: dict[tuple[str, int], tuple[Case, Repeat]] = {}
    unusable = 0
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            record = _record(line)
            schema = record.schema
            case = _case(record, known)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            schema = _schema(line)
            if schema in (None, results_record.SCHEMA):
                unusable += 1
                if unusable <= MOST_TOLD:
                    why = one_line(error) if isinstance(error, msgspec.ValidationError) else "torn or not JSON"
                    run.problems.append(f"{name}, line {number}: {why}; passed over")
                continue
        if schema != results_record.SCHEMA:
            age = "newer" if schema > results_record.SCHEMA else "older"
            raise PomologyError(
                f"{name}, line {number}: schema {one_line(schema, 20)} is {age} than the kit's "
                f"{results_record.SCHEMA}; "
                "it must not be compared" + ("; update pomology to read it" if age == "newer" else "")
            )
        key = (record.case, record.repeat)
        if type(record) is End:
            ended[key] = case, _repeat(record, known)
        else:  # a case that never ends has crashed
            same = (record.profile, record.data, record.scaled, None, None, record.chip, record.threads)
            ended[key] = case, Repeat(same, "crashed", (), None)
    if unusable > MOST_TOLD:
        run.problems.append(f"{name}: {unusable - MOST_TOLD} more lines that cannot be used")
    for case, once in ended.values():
        if case.article != published.KIT:  # it tells how well was measured, not how fast this machine is
            run.cases.setdefault(case, []).append(once)


def _schema(line: bytes) -> int | None:
    try:
        schema = _HEAD.decode(line).schema
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return schema if type(schema) is int else None


def _case(record: Start, known: dict) -> Case:
    config = bytes(record.config)
    key = (config, record.article, record.experiment, record.framework, record.backend, record.precision)
    if key not in known:
        found = msgspec.json.decode(config)
        if not isinstance(found, dict):
            raise msgspec.ValidationError("config must be an object")
        known[key] = Case(*key[1:], json.dumps(found, sort_keys=True))
    return known[key]


def _repeat(record: End, known: dict) -> Repeat:
    same = (record.profile, record.data, record.scaled, record.parameters, record.flops_per_step, record.chip)
    same, flags = (*same, record.threads), tuple(record.flags)
    timed = record.status == "ok" and any(msgspec.structs.astuple(record.metrics))
    return Repeat(
        known.setdefault(same, same), record.status, known.setdefault(flags, flags), record.metrics if timed else None
    )


# Side by side ---------------------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """What can be said of a case in one run against the same in another; why it is not compared, if it is not."""

    verdict: str
    metric: str = ""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    smallest_detectable: float | None = None
    why: str = ""
    short: str = ""


class Lines(Sequence):
    """Every comparison with its numbers, as dictionaries that are made when they are asked for: they may be many."""

    def __init__(self, names: Sequence[str], first: dict[Case, int], found: Sequence[dict[Case, Found]]):
        self._names, self._first, self._found = list(map(cell, names)), first, found
        self._texts = {case: (cell(one_line(case.experiment)), cell(case.text)) for case in first}

    def tuples(self) -> Iterator[tuple]:
        """As rows below `HEADINGS`."""
        for name, row in zip(self._names, self._found, strict=True):
            for case, one in row.items():
                base = self._names[self._first[case]]
                yield (*self._texts[case], base, name, *one[:6], one.why and cell(one.why))

    def by_run(self) -> Iterator[tuple[str, dict[Case, Found]]]:
        return zip(self._names, self._found, strict=True)

    def __iter__(self) -> Iterator[dict]:
        return (dict(zip(HEADINGS, row, strict=True)) for row in self.tuples())

    def __len__(self) -> int:
        return sum(map(len, self._found))

    def __getitem__(self, index):
        return list(self)[index]


HEADINGS = ("experiment", "case", "base", "run", *Found._fields[:7])


def _apart(base: list[Repeat], other: list[Repeat]) -> list[str]:
    """The keys of `SAME` in which these are not of one thing."""
    kinds = {once.same for once in (*base, *other)}
    found = [key for key, values in zip(SAME, zip(*kinds, strict=True), strict=True) if len(set(values)) > 1]
    return [key for key in found if key != "chip" and (key != "threads" or "chip" not in found)]


def _difference(key: str, base: list[Repeat], other: list[Repeat]) -> str:
    place = list(SAME).index(key)
    told = [" or ".join(dict.fromkeys(one_line(once.same[place], 40) for once in side)) for side in (base, other)]
    return f"{key.replace('_', ' ')} {told[0]} and {told[1]}"


def _values(repeats: list[Repeat], metric: str) -> list[float]:
    return [time.value for once in repeats if (time := once.time(metric))]


def _metric(*sides: list[Repeat]) -> str:
    """The time that all have; empty if there is none."""
    for name in TIMES:
        if all(any(once.time(name) for once in side) for side in sides):
            return name
    return ""


def judged(pairs: dict[Case, tuple[list[Repeat], list[Repeat]]], in_full: bool = True) -> dict[Case, Found]:
    """Cases of two runs, base and other, with what can be said of the other. The rows of an experiment belong together.

    in_full: with intervals and the smallest differences that could have been shown, which take time.
    """
    found: dict[Case, Found] = {}
    families: dict[str, list[tuple]] = {}
    for case, (base, other) in pairs.items():
        if len(base) == len(other) == 1 and base[0].same == other[0].same:  # as most are
            theirs, ours = base[0].times, other[0].times
            both = (name for name in TIMES if getattr(theirs, name, None) and getattr(ours, name, None))
            if metric := next(both, ""):
                ratio = getattr(ours, metric).value / getattr(theirs, metric).value
                found[case] = Found("cannot be told", metric, ratio, why="single runs")
                continue
        base, other = [once for once in base if once.times], [once for once in other if once.times]
        if not base or not other:
            found[case] = Found("cannot be told", why="not timed in both")
            continue
        if apart := _apart(base, other):
            why = "; ".join(_difference(key, base, other) for key in apart)
            found[case] = Found("must not be compared", why=why, short=SAME[apart[0]])
            continue
        metric = _metric(base, other)
        if not metric:
            found[case] = Found("cannot be told", why="no time of one kind in both")
            continue
        ours, theirs = (_values(side, metric) for side in (other, base))
        if min(len(ours), len(theirs)) < 2:
            found[case] = Found("cannot be told", metric, intervals.compare(ours, theirs).ratio, why="single runs")
            continue
        samples = intervals.sample(ours), intervals.sample(theirs)
        difference = intervals.welch(*samples, intervals.BETWEEN_SETS)
        families.setdefault(case.experiment, []).append((case, metric, samples, difference))
    for rows in families.values():
        p_values = [difference.p_value for *_, difference in rows]
        confidence = intervals.joint_confidence(p_values)
        for (case, metric, samples, difference), p_value in zip(rows, p_values, strict=True):
            if in_full:
                one = intervals.compare(*samples, confidence=confidence, between=intervals.BETWEEN_SETS)
                found[case] = Found(one.verdict, metric, one.ratio, one.low, one.high, one.smallest_detectable)
            else:
                verdict = "no difference shown"
                if p_value < 1 - confidence:
                    verdict = "faster" if difference.mean < 0 else "slower"
                found[case] = Found(verdict, metric, intervals.exp(difference.mean))
    return found


NOTES = (
    "Ratio: time over that of the first run with this case, so below 1 is faster. A verdict needs repeats on both "
    "sides; single runs stand with their ranges, and say nothing of the next run.",
    "The rows of a notebook are judged together: of those called faster or slower at most 5 % are not, on average. "
    "In brackets behind a ratio is the interval that goes with that, behind a time the 95 % one.",
)


def compare(places: Sequence[str | Path]) -> report_table.Table:
    """Two runs or more, folders or zips, each against the first: see `side_by_side`.

    Raises PomologyError for fewer than two runs, or one that is not there or not safe to read.
    """
    if len(places) < 2:
        raise PomologyError(f"RUNS: {len(places)} given; a comparison needs two or more")
    return side_by_side(load_all([Path(place) for place in places]))


def side_by_side(runs: Sequence[Run], whole: int = WHOLE) -> report_table.Table:
    """A row for each case that two runs have, a column for each run; `data` has every comparison with its numbers.

    Up to `whole` runs each comparison is told in full; of more than 12 runs each is a row, with counts.
    """
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [f"{name} ({number})" for number, name in enumerate(names, start=1)]
    first: dict[Case, int] = {}
    pairs: list[dict[int, dict[Case, tuple]]] = [{} for _ in runs]
    for number, run in enumerate(runs):
        for case, repeats in run.cases.items():
            base = first.setdefault(case, number)
            if base != number:
                pairs[number].setdefault(base, {})[case] = (runs[base].cases[case], repeats)
    many = len(runs) > COLUMNS
    found: list[dict[Case, Found]] = []
    for groups in pairs:
        parts = [judged(group, not many) for group in groups.values()]
        found.append({case: one for part in parts for case, one in part.items()})
    data = Lines(names, first, found)
    shared = list(dict.fromkeys(case for row in found for case in row))
    shared.sort(key=lambda case: (case.article, case.experiment))
    notes = _notes(runs, names, len(first) - len(shared), many)
    timed = [case for case in shared if any(once.times for run in runs for once in run.cases.get(case, ()))]
    if len(timed) < len(shared):
        notes = (f"{len(shared) - len(timed)} cases were timed in no run.", *notes)
    if many:
        columns = ("Run", "Machine", "Cases", "Faster", "Slower", "Not shown", "Single runs", "Not comparable")
        rows = [_counts(names[number], run, found[number].values()) for number, run in enumerate(runs)]
        return report_table.Table("Runs against the first", columns, tuple(rows), notes, data)
    rows = []
    for case in timed:
        sides = [run.cases.get(case) for run in runs]
        metric = next(one.metric for row in found if (one := row.get(case)))
        metric = metric or _metric(sides[first[case]]) or "step_s"
        cells = [case.text, TIMES[metric].split()[1]]
        if len(runs) <= whole:
            cells += [_time(side, metric) for side in sides]
            cells += [_told(row.get(case), metric) for row in found[1:]]
        else:
            for number, side in enumerate(sides):
                one = found[number].get(case)
                cells.append(_in_short(one, side, metric) if one else _time(side, metric).partition(" (")[0])
        rows.append(report_table.Row(tuple(cells)))
    columns = ("Case", "Time of", *names, *(f"{name} against the first" for name in names[1:]))
    if len(runs) > whole:
        columns = ("Case", "Time of", *(one_line(name, 18) for name in names))
    return report_table.Table("Runs side by side", columns, tuple(rows), notes, data)


def _notes(runs: Sequence[Run], names: list[str], alone: int, many: bool) -> tuple[str, ...]:
    notes = []
    for name, run in zip(names, runs, strict=True):
        if not many:
            notes.append(
                f"{name}: {one_line(snapshot.describe(run.machine), 200) if run.machine else 'machine not told'}."
            )
        notes += [f"{name}: {one_line(problem, 300)}." for problem in run.problems]
    if alone:
        notes.append(f"{alone} cases are in one run only.")
    return (*notes, *NOTES)


def _counts(name: str, run: Run, found: Iterable[Found]) -> report_table.Row:
    counts = Counter(one.verdict for one in found)
    numbers = [sum(counts.values()), *(counts[verdict] for verdict in ("faster", "slower", "no difference shown"))]
    numbers += [counts["cannot be told"], counts["must not be compared"]]
    told = one_line(snapshot.describe(run.machine), 60) if run.machine else "not told"
    return report_table.Row((one_line(name, 40), told, *map(str, numbers)))


def _summary(name: str, found: Iterable[Found]) -> str:
    """`b: 3 slower, 2 no difference shown, 7 cannot be told (single runs)`."""
    counts = Counter(f"{one.verdict}{f' ({one.why})' if one.why == 'single runs' else ''}" for one in found)
    return (
        f"{name}: {', '.join(f'{count:,} {verdict}' for verdict, count in counts.most_common()) or 'no case in common'}"
    )


def _time(repeats: list[Repeat] | None, metric: str) -> str:
    """A time with its interval, or how the case ended."""
    if not repeats:
        return ""
    times = [time for once in repeats if (time := once.time(metric))]
    if not times:
        return repeats[-1].status
    if len(times) == 1:
        value, low, high = times[0].value, times[0].low, times[0].high
        within = " within this run"
    else:
        one = intervals.sample([time.value for time in times])
        half = intervals.t_quantile(intervals.CONFIDENCE, one.n - 1) * (one.variance / one.n) ** 0.5
        value, low, high = (intervals.exp(one.mean + side) for side in (0, -half, half))
        within = f", {one.n} repeats"
    text = format.seconds(value)
    if low is not None:
        text += f" ({format.seconds(low)} to {format.seconds(high)}{within})"
    flags = sorted({flag for once in repeats for flag in once.flags})
    return ", ".join([text, *(one_line(flag, 30) for flag in flags[:6])])


def _of(found: Found, metric: str) -> str:
    return "" if found.metric in ("", metric) else f" ({TIMES[found.metric]})"


def _told(found: Found | None, metric: str) -> str:
    """A comparison in full."""
    if found is None:
        return ""
    if found.low is None:
        single = found.why == "single runs"
        return f"{found.verdict} from single runs{_of(found, metric)}" if single else f"{found.verdict}: {found.why}"
    return (
        f"{found.ratio:.3g} ({found.low:.3g} to {found.high:.3g}){_of(found, metric)}: {found.verdict}; "
        f"this many repeats could show a factor of {found.smallest_detectable:.3g}"
    )


def _in_short(found: Found, repeats: list[Repeat], metric: str) -> str:
    """A comparison in a narrow column."""
    if found.short:
        return found.short
    if found.low is None:
        times = [time for once in repeats if (time := once.time(found.metric))] if found.metric else []
        if not times:
            return "not timed" if repeats[-1].status == "ok" else repeats[-1].status
        ends = [bound for time in times for bound in (time.value, time.low, time.high) if bound is not None]
        low, high = format.seconds(min(ends)), format.seconds(max(ends))
        return (low if low == high else f"{low} to {high}") + _of(found, metric)
    verdict = {"no difference shown": f"? {found.smallest_detectable:.2f}"}.get(found.verdict, found.verdict)
    return f"{found.ratio:.3g} {verdict}{_of(found, metric)}"


def cell(text: str) -> str:
    """A text for a table's file, which no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def write(runs: Sequence[Run], folder: Path) -> tuple[report_table.Table, Path, Path]:
    """Compare, and write `compare.csv` and `compare.html`; returns the table and where they are."""
    import jinja2
    from markupsafe import Markup

    table = side_by_side(runs)
    numbers, page = folder / "compare.csv", folder / "compare.html"
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(HEADINGS)
    writer.writerows(table.data.tuples())
    write_atomic(numbers, text.getvalue())
    # Of a few runs, each against the first in full below the table of all.
    pairs = [side_by_side((runs[0], run)) for run in runs[1:]] if WHOLE < len(runs) <= COLUMNS else []
    place = RESOURCES / "page"
    environment = jinja2.Environment(autoescape=True, loader=jinja2.FileSystemLoader(place), trim_blocks=True)
    template = environment.get_template("compare.html.j2")
    style = Markup((place / "style.css").read_text(encoding="utf-8"))
    details = [(f"{run.name} against {runs[0].name}", one) for run, one in zip(runs[1:], pairs, strict=False)]
    counts = [_summary(name, row.values()) for name, row in list(table.data.by_run())[1:]]
    given = {"style": style, "title": table.title, "table": table, "details": details, "counts": counts}
    write_atomic(page, template.render(**given, narrow=len(table.columns) <= 2 * WHOLE + 1))
    return table, numbers, page
