"""Versions of a package against each other: a row a case and version, and where in a history the speed changed.

Their processes ran in turn, so that what drifts slowly was the same for all (`runner/matrix.py`).
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median, stdev
from typing import Any, NamedTuple

from markupsafe import Markup

from pomology.format import one_line, seconds, significant, with_interval
from pomology.machine import snapshot
from pomology.measure import intervals
from pomology.paths import write_atomic
from pomology.report import compare
from pomology.report.compare import Case, Finding, Side, numbers_of, times_of
from pomology.report.figures import style
from pomology.report.table import Table, filled, write_numbers
from pomology.results.record import Record

SLOWER, POWER = 1.03, 0.9  # what a user wants shown, and in how many of such comparisons
MOST_REPEATS = 100
COLOUR = style.COLOURS["this machine's processor"]
COLUMNS = ("Case", "Version", "Time", "Ratio", "Verdict", "Could have shown", "Remarks")
NOTES = (
    "Ratio: time over that of the first version, with its interval; below 1 is faster. Processes of the versions ran "
    "in turn (A B, B A), and each counts as one number (Welch's t on logarithms).",
    "All rows of a notebook are judged together: of those called faster or slower, at most 5 % are not, on average. "
    "Could have shown: the smallest difference that so many other repeats show in 80 % of cases, by the spread of "
    "these.",
)
HISTORY = (
    "A dashed line stands between two neighbouring versions whose difference is shown by itself, judged together with "
    "all other neighbours of its notebook. No line does not mean no change: it may be smaller than can be shown."
)


class Arm(NamedTuple):
    """A version: its name, what it measured, and why it did not, in all or by notebook. also: packages in which its
    environment differs beside the one that is compared, in words."""

    label: str
    side: Side | None
    why: dict[str, str]  # notebook, or `` for all -> the reason
    also: str = ""

    def repeats(self, case: Case) -> list[Record]:
        return self.side.cases.get(case, [])


def measured(arms: Sequence[Arm]) -> list[int]:
    return [place for place, arm in enumerate(arms) if arm.side and arm.side.cases]


def _cases(arms: Sequence[Arm]) -> list[Case]:
    return list(dict.fromkeys(case for arm in arms if arm.side for case in arm.side.cases))


def findings(arms: Sequence[Arm], pairs: Sequence[tuple[int, int]]) -> dict[tuple[Case, int], Finding]:
    """What can be said of versions: (case, place of the other) -> against which base, by (base, other) in `pairs`."""
    asked = {
        (case, other): (arms[base].repeats(case), arms[other].repeats(case))
        for case in _cases(arms)
        for base, other in pairs
    }
    return compare.judged(asked, between=0.0, family=lambda key: key[0].experiment)


def table(arms: Sequence[Arm]) -> Table:
    """A row a case and version; first what could not be measured, and why."""
    there, lines = measured(arms), []
    for arm in arms:
        for name, why in arm.why.items():
            lacking = Finding("not measured", why=one_line(why, 300))
            cells = (one_line(name) or "all", arm.label, "", "", lacking.verdict, "", lacking.why)
            lines.append((cells, numbers_of((name, "", "", arm.label), lacking) | {"repeats": 0}))
    base = arms[there[0]] if there else None
    shown = findings(arms, [(there[0], other) for other in there[1:]])
    for case in sorted(_cases(arms), key=lambda case: case.experiment):
        compared = [shown[case, other].metric for other in there[1:]]
        metric = next(filter(None, compared), "") or compare.metric_of(base.repeats(case)) or "step_s"
        for place in there:
            arm = arms[place]
            repeats, finding = arm.repeats(case), shown.get((case, place), Finding("the first", metric))
            ratio = with_interval(finding.ratio) if finding.ratio else ""
            least = percent(finding.smallest_detectable) if finding.smallest_detectable else ""
            text = f"{case.text} ({compare.TIMES[metric].split()[1]})"
            numbers = numbers_of((case.experiment, case.text, base.label, arm.label), finding)
            cells = (text, arm.label, compare.time_text(repeats, metric), ratio, finding.verdict, least, finding.why)
            lines.append((cells, numbers | {"repeats": len(times_of(repeats, metric))}))
    also = [
        f"Beside its version, {arm.label} has other packages than {base.label}: {arm.also}." for arm in arms if arm.also
    ]
    machine = [f"Machine: {snapshot.describe(base.side.machine)}."] if base and base.side.machine else []
    problems = [f"{arm.label}: {one_line(each, 300)}." for arm in arms if arm.side for each in arm.side.problems]
    return Table.of("Versions side by side", COLUMNS, lines, (*machine, *also, *problems, *NOTES))


def percent(ratio: float) -> str:
    """`3.0 %`; `a factor of 2.4` from 2 on, and none that is larger than any verdict needs."""
    if ratio < 2:
        return f"{significant(100 * (ratio - 1), 2)} %"
    return f"a factor of {significant(ratio, 2)}" if ratio < 100 else "over a factor of 100"


def changes(arms: Sequence[Arm]) -> dict[tuple[Case, int], Finding]:
    """Where the evidence carries a change from the version before: (case, place of the later) -> what was found."""
    neighbours = findings(arms, list(pairwise(measured(arms))))
    return {key: finding for key, finding in neighbours.items() if finding.verdict in ("faster", "slower")}


@style.styled
def history(arms: Sequence[Arm], experiment: str) -> Any:
    """A chart for each case of a notebook: the time by version, with each repeat, and the changes that are shown.
    Returns a matplotlib Figure, None where nothing was timed."""
    there, changed = measured(arms), changes(arms)
    panels = []
    for case in sorted(case for case in _cases(arms) if case.experiment == experiment):
        repeats = [arms[place].repeats(case) for place in there]
        metric = compare.metric_of(*filter(None, repeats))
        times = [times_of(each, metric) for each in repeats]
        panels += [(case, metric, times)] if any(times) else []
    if not panels:
        return None
    figure = style.figure_of(style.WIDTH, 0.6 + 1.7 * len(panels))
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (case, metric, times) in zip(axes, panels, strict=True):
        for x, known in enumerate(times):
            if not known:
                continue
            mean = intervals.repeats(known)
            axis.plot([x + 0.12] * len(known), [each.value for each in known], ".", color=style.GREY, markersize=4)
            axis.plot([x], [mean.value], "D", color=COLOUR, markersize=6)
            if mean.low is not None and len(known) > 1:
                axis.plot([x, x], [mean.low, mean.high], color=COLOUR, linewidth=2)
        for later, finding in ((later, finding) for (where, later), finding in changed.items() if where == case):
            x, words = there.index(later) - 0.5, f"{finding.verdict}: {with_interval(finding.ratio)}"
            axis.axvline(x, color=style.GREY, linestyle="--", linewidth=1)
            place = {"xycoords": ("data", "axes fraction"), "xytext": (4, 0), "textcoords": "offset points"}
            axis.annotate(words, (x, 1), va="top", fontsize=8, **place)
        values = [each.value for known in times for each in known]
        margin = max(max(values) - min(values), 0.05 * max(values))  # a wider interval is drawn to the edge
        limits = {"ylim": (max(0.0, min(values) - margin), max(values) + margin), "xlim": (-0.5, len(there) - 0.5)}
        axis.set(title=case.text, ylabel=compare.TIMES[metric], **limits)
        axis.yaxis.set_major_formatter(lambda value, _: seconds(value) if value > 0 else "0")
        axis.grid(axis="y")
    axes[-1].set_xticks(range(len(there)), [arms[place].label for place in there])
    looks = {"mean of the repeats, with its 95 % interval": {"marker": "D", "color": COLOUR}}
    style.key(figure, looks | {"one repeat": {"marker": ".", "color": style.GREY}})
    return figure


def write(arms: Sequence[Arm], folder: Path, notes: Sequence[str] = ()) -> Table:
    """The page, `index.html`, and its numbers, `matrix.csv`; of three versions or more with their history."""
    shown = table(arms)
    names = dict.fromkeys(case.experiment for case in _cases(arms)) if len(measured(arms)) > 2 else ()
    figures = [Markup(style.svg(figure)) for name in names if (figure := history(arms, name))]
    shown = replace(shown, notes=(*notes, *shown.notes, *([HISTORY] if figures else [])))
    write_numbers(folder / "matrix.csv", shown.data, (*compare.HEADINGS, "repeats"))
    rows = (row.cells for row in shown.rows if row.cells[4] in ("faster", "slower"))
    counts = [f"{version}, {case}: {verdict}, {ratio}" for case, version, _, ratio, verdict, *_ in rows]
    page = filled("compare.html.j2", table=shown, counts=counts, narrow=True, figures=figures)
    write_atomic(folder / "index.html", page)
    return shown


# How much two of a kind differ -------------------------------------------------------------------------------------


def noise(sides: Sequence[Side]) -> dict[Case, float]:
    """Of each case the standard deviation of the logarithm of its time, between processes of one run."""
    squares: dict[Case, list[float]] = defaultdict(lambda: [0.0, 0])
    for side in sides:
        for case, repeats in side.cases.items():
            logs = [math.log(each.value) for each in times_of(repeats, compare.metric_of(repeats))]
            if len(logs) > 1:
                squares[case][0] += stdev(logs) ** 2 * (len(logs) - 1)
                squares[case][1] += len(logs) - 1
    return {case: math.sqrt(total / dof) for case, (total, dof) in squares.items()}


def can_show(deviation: float, repeats: int) -> tuple[float, float]:
    """Of a row by itself, with so many repeats a side and a deviation that is known: the smallest ratio that is shown
    in 80 % of cases, exp((t_0.975 + t_0.80) se), and in which share of them one of `SLOWER` is."""
    error, dof = max(deviation, intervals.RESOLUTION) * math.sqrt(2 / repeats), 2 * (repeats - 1)
    critical, power = (intervals.t_quantile(c, dof) for c in (intervals.CONFIDENCE, 2 * intervals.POWER - 1))
    least = intervals.exp((critical + power) * error)
    return least, intervals.Difference(math.log(SLOWER), error, dof, repeats).power


def beforehand(known: dict[str, list[float]], repeats: int) -> list[str]:
    """A sentence for each name about the deviations of its rows: what so many repeats can show."""
    sentences = []
    for name, deviations in known.items():
        middle, worst = median(deviations), can_show(max(deviations), repeats)[0]
        least, share = can_show(middle, repeats)
        wider = f" ({percent(worst)} in its noisiest row)" if len(deviations) > 1 else ""
        enough = next((n for n in range(2, MOST_REPEATS + 1) if can_show(middle, n)[1] >= POWER), None)
        more = f"REPEATS={enough} would show it in" if enough else f"{MOST_REPEATS} would not be enough for"
        sentences.append(
            f"{name}: two runs of the same thing differ by up to {percent(math.exp(1.96 * math.sqrt(2) * middle))}, in "
            f"19 pairs of 20. {repeats} repeats can show a difference of {percent(least)}{wider}, and a slow-down by "
            f"{percent(SLOWER)} in {100 * share:.0f} % of cases; {more} {100 * POWER:.0f} %."
        )
    return sentences
