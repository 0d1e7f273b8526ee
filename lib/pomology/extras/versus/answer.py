"""The answer of `pomology versus`: which device is faster, at what, and how that is known."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from pomology.articles import devices as names
from pomology.errors import PomologyError
from pomology.extras.versus import pairs, predicted, variants
from pomology.extras.versus.pairs import Pair, Summary
from pomology.extras.versus.predicted import Ratio
from pomology.format import seconds, significant
from pomology.report.table import Row, Table

WIDTH = 100  # columns
MOST_PAIRS = 12  # of the table on a terminal
NOTES = (
    "The first line counts pairs of the same framework in one source, whose versions may differ, "
    "without a known problem. Parts of a timed whole, such as the forward pass of a step, are no "
    "pairs of their own.",
)
PREDICTED_NOTES = (
    "Predicted from data sheets alone, alike for all devices, not measured; in brackets the 90 % "
    "interval, as if the errors of both devices were independent. `pomology predict` also takes "
    "account of the device's own published times. docs/prediction.md has the errors.",
)


class Answer(NamedTuple):
    """What is known of two devices.

    first, second: their names, the faster one first. counted: pairs that the first line counts.
    others: pairs with a problem. ratios, half_ratios: predicted in fp32 and in half precision.
    notes: how the names were taken, and why nothing is predicted.
    """

    first: str
    second: str
    counted: list[Pair]
    others: list[Pair]
    ratios: list[Ratio]
    half_ratios: list[Ratio]
    notes: list[str]

    @property
    def direction(self) -> str:
        """What all ratios are, in words."""
        return direction(self.first, self.second)

    @property
    def mean(self) -> float:
        """The ratio of the answer: of the pairs that count, or of others, or the predicted one."""
        summary = pairs.summary(self.counted or self.others)
        if summary:
            return summary.mean
        return predicted.mean(self.ratios) if self.ratios else 1.0

    @property
    def headline(self) -> str:
        """The answer in one line."""
        summary = pairs.summary(self.counted)
        if summary:
            said = faster(self.first, self.second, summary)
            return f"{said}{in_precision(self.counted)}: {summary.words}"
        doubtful = pairs.summary(self.others)
        if doubtful:
            words = f"{faster(self.first, self.second, doubtful)}: {doubtful.words}"
            problems = dict.fromkeys(problem for pair in self.others for problem in pair.problems)
            return f"in doubt ({', '.join(problems)}): {words}"
        nothing = f"no published work of both {self.first} and {self.second}"
        if not self.ratios:
            return nothing
        low = min(ratio.value for ratio in self.ratios)
        high = max(ratio.value for ratio in self.ratios)
        mean = predicted.mean(self.ratios)
        words = faster(self.first, self.second, Summary(mean, low, high, []))
        count = len(self.ratios)
        between = f"{significant(low)}× to {significant(high)}×"
        return f"{nothing}; predicted, not measured: {words}: {count} workloads, {between}"

    @property
    def predicted_line(self) -> str:
        """What is predicted, in one line; "" without a prediction."""
        if not self.ratios:
            return ""
        return (
            f"predicted, not measured: {self.first} is {_mean_and_ends(self.ratios)} times as fast "
            f"as {self.second} at pomology's {len(self.ratios)} workloads in "
            f"{predicted.PRECISION}, and {_mean_and_ends(self.half_ratios)} times in half precision"
        )


def _mean_and_ends(ratios: Sequence[Ratio]) -> str:
    """Return the geometric mean of ratios, and that of each end: `2.14 (workloads: 1 to 5)`."""
    values = [ratio.value for ratio in ratios]
    ends = f"{significant(min(values))} to {significant(max(values))}"
    return f"{significant(predicted.mean(ratios))} (workloads: {ends})"


def in_precision(counted: Sequence[Pair]) -> str:
    """Return in which precision pairs were timed, such as ` in fp32`; in another it may differ."""
    precisions = dict.fromkeys(pair.first.work[2] for pair in counted)
    return f" in {', '.join(precisions)}" if all(precisions) else ""


def direction(first: str, second: str) -> str:
    """Return in words what the ratios of two devices are."""
    return f"how many times as fast {first} is as {second}"


def faster(first: str, second: str, summary: Summary) -> str:
    """Return which of both is faster; where their order differs, by how much it does."""
    if summary.low <= 1 <= summary.high and summary.low != summary.high:
        ranged = f"{significant(summary.low)} to {significant(summary.high)}"
        mean = significant(summary.mean)
        return f"it depends: {first} is {ranged} times as fast as {second}, {mean} on average"
    if summary.mean == 1:
        return f"{first} and {second} are equally fast"
    # Never turned round: the range beside it is of the same ratio.
    if summary.mean < 1:
        return f"{first} is {significant(summary.mean)} times as fast as {second}"
    return f"{first} is {significant(summary.mean)}× faster than {second}"


def answer(first: str, second: str) -> Answer:
    """Return what is known of two devices, by their names as people type them.

    Raises PomologyError, in one line, for an unknown device, or the same one twice.
    """
    chosen, notes = _resolve(first, second)
    notes += [
        f"{device} has no data sheet, so nothing is predicted"
        for device in chosen
        if device not in names.sheets()
    ]
    as_typed = _of_devices(*chosen, notes)
    # All ratios are those of the faster device, so that each reads as the first line does.
    if as_typed.mean < 1:
        return _of_devices(*reversed(chosen), notes)
    return as_typed


def _of_devices(first: str, second: str, notes: list[str]) -> Answer:
    every = pairs.pairs(first, second)
    return Answer(
        first=first,
        second=second,
        counted=[pair for pair in every if pair.counts],
        others=[pair for pair in every if not pair.counts],
        ratios=predicted.ratios(first, second),
        half_ratios=predicted.ratios(first, second, predicted.HALF),
        notes=notes,
    )


def _resolve(first: str, second: str) -> tuple[tuple[str, str], list[str]]:
    """Return the devices that two names mean, and how they were chosen.

    Of the sizes that a name leaves open, those are taken of which most pairs count. Where nothing
    is in common, sizes with a data sheet are taken, which have a prediction.
    """
    sizes = [variants.variants(name) for name in (first, second)]
    if set(sizes[0]) == set(sizes[1]):
        raise PomologyError(f"{sizes[0][0]}: expected two different devices")

    def shared(chosen: tuple[str, str]) -> tuple[int, int, int]:
        every = pairs.pairs(*chosen)
        with_sheet = sum(device in names.sheets() for device in chosen)
        return sum(pair.counts for pair in every), len(every), with_sheet

    different = [chosen for chosen in itertools.product(*sizes) if chosen[0] != chosen[1]]
    best = max(different, key=shared)
    is_shared = bool(pairs.pairs(*best))
    notes = [
        variants.note(name, device, others, is_shared)
        for name, device, others in zip((first, second), best, sizes, strict=True)
    ]
    return best, list(filter(None, notes))


def lines(found: Answer, all_pairs: bool = False) -> list[str]:
    """Return the output of the command. all_pairs: not only the first ones."""
    every = [*found.counted, *found.others]
    text = textwrap.wrap(found.headline, WIDTH)
    if every:
        shown = every if all_pairs else every[:MOST_PAIRS]
        text += ["", *text_of(table(found, shown))]
        if len(shown) < len(every):
            text.append(f"{len(every) - len(shown)} more pairs: --all shows them")
    if found.ratios:
        text += ["", *textwrap.wrap(found.predicted_line, WIDTH)]
        text += ["", *text_of(predictions(found))]
    return text + [line for note in found.notes for line in textwrap.wrap(note, WIDTH)]


def text_of(shown: Table) -> list[str]:
    """Return the lines of a table on a terminal, its heading wrapped, too."""
    heading, *rest = shown.text(WIDTH).splitlines()
    return [*textwrap.wrap(heading, WIDTH), *rest]


def table(found: Answer, shown: Sequence[Pair]) -> Table:
    """Return a row for each pair: the work, both times as printed, their ratio and its problems."""
    rows = []
    for pair in shown:
        sources = dict.fromkeys(speed.source for speed in pair)
        cells = {
            "Work": f"{pair.first.title}, {pair.first.timed}, {pair.first.settings}",
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
    return Table(f"Published times of the same work: {found.direction}", rows, NOTES)


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
    heading = f"Predicted times of a step, {predicted.PRECISION}: {found.direction}"
    return Table(heading, rows, PREDICTED_NOTES)
