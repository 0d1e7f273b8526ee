"""The answer of `pomology versus`: which device is faster, at what, and how that is known."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from pomology.articles import devices as names
from pomology.articles.devices import Catalogue
from pomology.articles.names import Resolved
from pomology.errors import PomologyError
from pomology.extras.versus import pairs, predicted
from pomology.extras.versus.pairs import Pair, Summary
from pomology.extras.versus.predicted import Ratio
from pomology.format import seconds, significant
from pomology.machine import snapshot
from pomology.report.table import Row, Table

WIDTH = 100  # columns
MOST_SHARED = "the one with most work in common"  # why a size is taken
MOST_PAIRS = 12  # of the table on a terminal
NOTES = (
    "Ratio: how many times as fast the first is. The first line counts pairs of the same framework "
    "in one source, whose versions may differ, without a known problem.",
)
PREDICTED_NOTES = (
    "Predicted from data sheets alone, alike for all devices, not measured; in brackets the 90 % "
    "interval, as if the errors of both devices were independent. `pomology predict` also takes "
    "account of the device's own published times. docs/prediction.md has the errors.",
)


class Answer(NamedTuple):
    """What is known of two devices.

    first, second: their names. counted: pairs that the first line counts. others: pairs with a
    problem. ratios: predicted. notes: how the names were taken, and why nothing is predicted.
    """

    first: str
    second: str
    counted: list[Pair]
    others: list[Pair]
    ratios: list[Ratio]
    notes: list[str]

    @property
    def headline(self) -> str:
        """The answer in one line."""
        summary = pairs.summary(self.counted)
        if summary:
            return f"{_faster(self.first, self.second, summary)}: {summary.words}"
        doubtful = pairs.summary(self.others)
        if doubtful:
            words = f"{_faster(self.first, self.second, doubtful)}: {doubtful.words}"
            problems = dict.fromkeys(problem for pair in self.others for problem in pair.problems)
            return f"in doubt ({', '.join(problems)}): {words}"
        nothing = f"no published work of both {self.first} and {self.second}"
        if not self.ratios:
            return nothing
        low = min(ratio.value for ratio in self.ratios)
        high = max(ratio.value for ratio in self.ratios)
        mean = predicted.mean(self.ratios)
        words = _faster(self.first, self.second, Summary(mean, low, high, []))
        count = len(self.ratios)
        between = f"{significant(low)} to {significant(high)}×"
        return f"{nothing}; predicted, not measured: {words}: {count} workloads, {between}"

    @property
    def predicted_line(self) -> str:
        """What is predicted, in one line; "" without a prediction."""
        if not self.ratios:
            return ""
        values = [ratio.value for ratio in self.ratios]
        between = f"{significant(min(values))} to {significant(max(values))}"
        return (
            f"predicted, not measured: {self.first} is {significant(predicted.mean(self.ratios))} "
            f"times as fast as {self.second} at pomology's {len(values)} workloads ({between})"
        )


def _faster(first: str, second: str, summary: Summary) -> str:
    """Return which of both is faster; where their order differs, by how much it does."""
    if summary.low <= 1 <= summary.high and summary.low != summary.high:
        ranged = f"{significant(summary.low)} to {significant(summary.high)}"
        mean = significant(summary.mean)
        return f"it depends: {first} is {ranged} times as fast as {second}, {mean} on average"
    if summary.mean == 1:
        return f"{first} and {second} are equally fast"
    if summary.mean < 1:
        return f"{second} is {significant(1 / summary.mean)}× faster than {first}"
    return f"{first} is {significant(summary.mean)}× faster than {second}"


def answer(first: str, second: str) -> Answer:
    """Return what is known of two devices, by their names as people type them.

    Raises PomologyError, in one line, for an unknown device, or the same one twice.
    """
    resolved = _resolve(first, second)
    if resolved[0].name == resolved[1].name:
        raise PomologyError(f"{resolved[0].name}: expected two different devices")
    every = pairs.pairs(resolved[0].name, resolved[1].name)
    notes = [each.note for each in resolved if each.note]
    notes += [
        f"{each.name} has no data sheet, so nothing is predicted"
        for each in resolved
        if each.name not in names.sheets()
    ]
    return Answer(
        first=resolved[0].name,
        second=resolved[1].name,
        counted=[pair for pair in every if pair.counts],
        others=[pair for pair in every if not pair.counts],
        ratios=predicted.ratios(resolved[0].name, resolved[1].name),
        notes=notes,
    )


def _resolve(first: str, second: str) -> tuple[Resolved, Resolved]:
    """Return the devices that two names mean.

    Of the sizes that a name leaves open, those are taken of which most pairs count.
    """
    gpus = snapshot.gpus()
    every = Catalogue(names.all_names(), MOST_SHARED, "published time or data sheet")
    usual = [names.resolve(name, every, gpus).name for name in (first, second)]
    sizes = [
        list(dict.fromkeys([device, *names.variants(name, every)]))
        for name, device in zip((first, second), usual, strict=True)
    ]

    def shared(chosen: tuple[str, str]) -> tuple[int, int]:
        found = pairs.pairs(*chosen)
        return sum(pair.counts for pair in found), len(found)

    best = max(itertools.product(*sizes), key=shared)
    resolved = []
    for name, device, others in zip((first, second), best, sizes, strict=True):
        # The one that was taken stands first, so the note names the others.
        ordered = every._replace(names=(device, *(size for size in others if size != device)))
        resolved.append(names.resolve(name, ordered, gpus))
    return resolved[0], resolved[1]


def lines(found: Answer, all_pairs: bool = False) -> list[str]:
    """Return the output of the command. all_pairs: not only the first ones."""
    every = [*found.counted, *found.others]
    text = textwrap.wrap(found.headline, WIDTH)
    if every:
        shown = every if all_pairs else every[:MOST_PAIRS]
        text += ["", *table(found, shown).text(WIDTH).splitlines()]
        if len(shown) < len(every):
            text.append(f"{len(every) - len(shown)} more pairs: --all shows them")
    if found.ratios:
        text += ["", *textwrap.wrap(found.predicted_line, WIDTH)]
        text += ["", *predictions(found).text(WIDTH).splitlines()]
    return text + [line for note in found.notes for line in textwrap.wrap(note, WIDTH)]


def table(found: Answer, shown: Sequence[Pair]) -> Table:
    """Return a row for each pair: the work, both times as printed, their ratio and its problems."""
    rows = []
    for pair in shown:
        sources = dict.fromkeys(speed.source for speed in pair)
        cells = {
            "Work": f"{pair.first.title}, {pair.first.settings}",
            found.first: _cell(pair.first),
            found.second: _cell(pair.second),
            "Ratio": f"{significant(pair.ratio)}×",
            "Known problems": "; ".join(pair.problems),
            "Source": " and ".join(sources),
        }
        first, second = pair
        data = {
            "workload": first.work[0],
            "metric": first.work[1],
            "precision": first.work[2],
            "config": first.work[3],
            "first": first.device,
            "second": second.device,
            "first_value": first.si,
            "second_value": second.si,
            "ratio": pair.ratio,
            "counted": pair.counts,
            "problems": "; ".join(pair.problems),
            "first_source": first.source,
            "second_source": second.source,
            "first_year": first.year,
            "second_year": second.year,
            "first_software": first.software,
            "second_software": second.software,
        }
        rows.append(Row(cells, data, "published" if pair.counts else "plain"))
    return Table("Published times of the same work", rows, NOTES)


def _cell(speed: pairs.Speed) -> str:
    return f"{speed.text} ({', '.join(filter(None, [speed.software, speed.year]))})"


def predictions(found: Answer) -> Table:
    """Return a row for each workload: both predicted times and their ratio, with intervals."""
    rows = []
    for ratio in found.ratios:
        low, high = (significant(end) for end in ratio.bounds)
        cells = {
            "Workload": f"{ratio.title} ({ratio.example})",
            found.first: seconds(ratio.first.value),
            found.second: seconds(ratio.second.value),
            "Ratio": f"{significant(ratio.value)}× ({low} to {high})",
        }
        rows.append(Row(cells))
    return Table(f"Predicted times of a step, {predicted.PRECISION}", rows, PREDICTED_NOTES)
