"""Whether two times differ: the one rule of every comparison that is told in words.

With three repeats on both sides the processes say it, by Welch's t on logarithms. Otherwise the
ratio must exceed what two equal single runs differ by, as `instrument_check` has measured it. An
interval within a process decides nothing: between two runs of the same thing it shows a difference
in half of all cases.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean
from typing import Any

import numpy as np

from pomology.articles import claims
from pomology.measure import intervals
from pomology.measure.estimate import REPEATS, Estimate
from pomology.results.cases import DOUBTS
from pomology.results.repeats import Repeats, allowed

FASTER, SLOWER = "faster", "slower"
NO_DIFFERENCE = "no difference shown"
WITHIN = "within run-to-run variation"
SINGLE = "single runs"  # whose variation was not measured
# Flag -> the power to which the factor between equal single runs is raised, so that a large
# difference is one in spite of it. Between four runs of one day, cases with `few-steps` differed
# less than others, those with the other flags by 1.58 at most. Any other flag of `DOUBTS` leaves a
# difference in doubt, however large.
WIDER = {"few-steps": 1.1, "few-calls": 1.1, "drift": 2.0, "slowed": 2.0, "busy": 2.0}
DISTURBED_BY = 1.6  # factor between two equal runs of which one has such a flag, at most
LEAST = 2  # repeats of one side, where the variation was not measured
IN_REPEATS = {"few-steps", "few-calls"}  # flags whose effect the spread between processes shows
BY_CHANCE = 0.05  # share of equal single runs that get a verdict


@dataclass(eq=False, kw_only=True)
class Compared:
    """Two series of seconds, a value per process, and whether the second is longer.

    base_s, other_s: the series. variations: the run-to-run variation of both, by
    `repeats.run_to_run`; None where it was not measured. flags: those that may explain a difference
    -> in words, such as `busy in a`. machine: how much longer the machine of `other` takes for the
    same calibration. machine_words: the same in words. ratio: other over base. low, high: its
    interval, None before `judge` or without one. verdict: FASTER or SLOWER, of `other`, or why
    neither; `in doubt: …`.
    """

    base_s: Sequence[float]
    other_s: Sequence[float]
    variations: tuple[float | None, float | None] = (None, None)
    flags: Mapping[str, str] = field(default_factory=dict)
    machine: float = 1.0
    machine_words: str = ""
    ratio: float = field(init=False)
    low: float | None = None
    high: float | None = None
    verdict: str = SINGLE

    def __post_init__(self):
        self.ratio = geometric_mean(self.other_s) / geometric_mean(self.base_s)

    @property
    def repeated(self) -> bool:
        """Whether both have enough repeats for an interval between processes.

        Of three repeats one may have been disturbed, and left out. The two others tell less of
        their spread than `instrument_check` does, if it has measured that.
        """
        counts = sorted((len(self.base_s), len(self.other_s)))
        least = LEAST if None in self.variations else REPEATS
        return counts[0] >= least and counts[1] >= REPEATS

    @property
    def differs(self) -> bool:
        """Whether it has a verdict."""
        return self.verdict in (FASTER, SLOWER)

    @property
    def estimate(self) -> Estimate:
        """The ratio with its interval, if it has one."""
        covers = "none" if self.low is None else "repeats"
        return Estimate(self.ratio, "", self.low, self.high, len(self.other_s), covers=covers)

    def conclude(self, low: float, high: float, undecided: str, covered: Container[str]) -> None:
        """Set the interval and the verdict.

        undecided: the verdict of an interval with 1. covered: flags that the interval allows for.
        """
        self.low, self.high, self.verdict = low, high, undecided
        if low <= 1 <= high:
            return
        self.verdict = FASTER if high < 1 else SLOWER
        flags = [words for flag, words in self.flags.items() if flag not in covered]
        # A slower machine explains a longer time only, and of about its own size.
        explained = self.machine**2
        if min(explained, 1.0) <= (low if low > 1 else high) <= max(explained, 1.0):
            flags.append(self.machine_words)
        if flags:
            self.verdict = f"in doubt: {self.verdict}, but {', '.join(flags)}"


def of_cases(
    base: Repeats,
    other: Repeats,
    metric: str,
    variations: tuple[float | None, float | None],
    flags: Mapping[str, str] | None = None,
    **machine: Any,
) -> Compared:
    """Return two cases that have a time `metric`, not judged yet.

    flags: by default those of both that leave a number in doubt. variations, machine: see
    `Compared`.
    """
    if flags is None:
        flags = {flag: flag for flag in sorted({*base.flags, *other.flags} & DOUBTS)}
    return Compared(
        base_s=[time.value for time in base.in_repeats[metric]],
        other_s=[time.value for time in other.in_repeats[metric]],
        variations=variations,
        flags=flags,
        **machine,
    )


def judge(compared: Sequence[Compared], in_turn: bool = True) -> None:
    """Set the intervals and verdicts of comparisons that belong together.

    Those with repeats are judged together. in_turn: whether the repeats of both sides took turns,
    so that the machine was the same for both; otherwise the variance between sets of processes is
    added.
    """
    repeated = [each for each in compared if each.repeated]
    if repeated:
        _judge_together(repeated, in_turn)
    for each in compared:
        if not each.repeated:
            _judge_single(each)


def _judge_single(compared: Compared) -> None:
    """Judge single runs by the variation measured on both machines, if it has been."""
    if None in compared.variations:
        return
    power = max((WIDER.get(flag, 1.0) for flag in compared.flags), default=1.0)
    factor = allowed(compared.variations) ** power
    compared.conclude(compared.ratio / factor, compared.ratio * factor, WITHIN, WIDER)


def _judge_together(compared: Sequence[Compared], in_turn: bool) -> None:
    """Judge repeated cases, by Welch's t on logarithms (Welch 1947)."""
    from scipy import stats  # half a second, which single runs do not need

    between = 0.0 if in_turn else claims.BETWEEN_SETS
    spreads = []
    for each in compared:
        other, base = np.log(each.other_s), np.log(each.base_s)
        variance = squares = 0.0
        for side in (other, base):
            part = max(side.var(ddof=1), claims.RESOLUTION**2) * (1 / side.size + between / 2)
            variance += part
            squares += part**2 / (side.size - 1)
        spreads.append(stats.t(variance**2 / squares, other.mean() - base.mean(), variance**0.5))
    confidence = joint_confidence([2 * min(spread.cdf(0), spread.sf(0)) for spread in spreads])
    for each, spread in zip(compared, spreads, strict=True):
        with np.errstate(over="ignore"):  # two repeats may have a bound beyond any float
            low, high = map(float, np.exp(spread.interval(confidence)))
        # The spread between processes holds that of few steps, and a large ratio the others.
        large = low > DISTURBED_BY or high < 1 / DISTURBED_BY
        each.conclude(low, high, NO_DIFFERENCE, WIDER if large else IN_REPEATS)


def joint_confidence(p_values: Sequence[float]) -> float:
    """Return the confidence at which intervals show which of several comparisons differ.

    Of those whose interval at this confidence leaves 1 out, at most 5 % are wrong on average
    (Benjamini and Hochberg 1995; Benjamini and Yekutieli 2005). One comparison: 95 %.
    """
    from scipy.stats import false_discovery_control

    rate = 1 - intervals.CONFIDENCE
    passed = sum(false_discovery_control(p_values) <= rate)
    return float(1 - rate * max(passed, 1) / len(p_values))


def by_chance(compared: Iterable[Compared]) -> str:
    """Return a sentence on how many equal single runs would get a verdict, on average; "" if none.

    compared: judged ones.
    """
    count = sum(not each.repeated and each.low is not None for each in compared)
    if not count:
        return ""
    expected = f"about {round(BY_CHANCE * count)}" if BY_CHANCE * count >= 1 else "fewer than one"
    return f"Of {count} equal cases of single runs {expected} would differ by chance."


def bounded(ratio: Estimate, variations: Mapping[str, float], kinds: Sequence[str]) -> Estimate:
    """Return a ratio of single runs with the bounds of run-to-run variation, if that is measured.

    The bounds within a process say nothing of another process, so they are never kept. variations:
    by kind of device. kinds: those of the two sides.
    """
    if ratio.covers in ("repeats", "exact"):
        return ratio
    measured = [variations.get(kind) for kind in kinds]
    if None in measured:
        return Estimate(ratio.value, ratio.unit, n=ratio.n, how=ratio.how, covers="none")
    factor = allowed(measured)
    bounds = (ratio.value / factor, ratio.value * factor)
    return Estimate(ratio.value, ratio.unit, *bounds, ratio.n, ratio.how, "repeats")
