"""Sentences of the articles that numbers can test, and how they are tested.

A claim's formula is a Python expression, evaluated without builtins:

    near(epoch_s(cpu, batch_size=128) / epoch_s(gpu, batch_size=128), 8.8)
    all(launch_cold_s(d) / launch_s(d) > 1 for d in devices)

* A term is a metric's name, called with a role (`cpu`, `gpu`, `rival`) or a device's name, and keywords that tell rows
  apart: `experiment=` names another experiment than the claim's first, `backend=`, `framework=` and `precision=` select
  by these fields, any other keyword the row's config. `gpus`, `rivals` and `devices` (both) are the names of those that
  have numbers. Values are in the unit that the metric's name says (SI).
* A comparison gives a Decision. `&` and `all` join decisions to one that holds if all do. `between(low, x, high)` is a
  chain, `near(x, target, within=0.05)` one around a target. `min`, `max` and `average` (the geometric mean) are there.
* `status(...)` is a text and compares with `==` or `!=`.

What an article prints is good to half a unit of its last digit: there is a verdict if no value there could turn it
round. What was measured here needs repeats. The formula is evaluated in each, which pairs its two sides, and Student's
t judges the logarithm of their ratio (where one is 0 or less, their difference), with the variance between sets of
processes added. The claims of an article are judged together.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any, NamedTuple

import numpy as np

from pomology.articles.published import ROLES, Claim, rows
from pomology.errors import PomologyError
from pomology.measure import intervals
from pomology.measure.estimate import Estimate, estimate

HOLDS, DOES_NOT_HOLD, CANNOT_BE_TOLD = "holds", "does not hold", "cannot be told here"
FIELDS = ("backend", "framework", "precision")  # keywords of a term that are not of a row's config
COMPARE: dict[str, Callable] = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
COMPARE |= {"==": operator.eq, "!=": operator.ne}
REPEATS = 3  # that a verdict needs, of everything that was measured
_MISSING = Estimate(math.nan)


class Term(NamedTuple):
    """What a lookup has for a term of a formula: an estimate, a status, or None. doubts: why it gives no verdict. runs:
    what was measured in each repeat of a run, NaN where that cannot be used; None of what is no measurement. traits:
    the experiment, metric, role and keywords of the term."""

    number: Estimate | str | None
    doubts: tuple[str, ...] = ()
    runs: Sequence[float] | None = None
    traits: dict[str, Any] | None = None


def _computed(compute: Callable, quotient: bool = False) -> Callable[[Side, Side | float], Side]:
    def method(self: Side, other: Side | float) -> Side:
        other, runs = _side(other), None
        try:
            number = compute(self.number, other.number)
        except ZeroDivisionError:
            number = _MISSING
        if not (self.runs is None and other.runs is None):
            with np.errstate(all="ignore"):
                runs = compute(self.each, other.each)
        below = other.terms if quotient else ()
        return Side(number, self.terms + other.terms[len(below) :], runs, below)

    return method


@dataclass(frozen=True, eq=False)
class Side:
    """A side of a comparison. It computes as its estimate and its repeats do, and compares into a Decision. above,
    below: the terms above and below the line of a quotient. runs: as of a term. pick: one of `PICKS`, of its parts."""

    number: Estimate | str
    above: tuple[Term, ...] = ()
    runs: np.ndarray | None = None
    below: tuple[Term, ...] = ()
    pick: str = ""
    parts: tuple[Side, ...] = ()

    __add__ = __radd__ = _computed(operator.add)
    __mul__ = __rmul__ = _computed(operator.mul)
    __truediv__ = _computed(operator.truediv, quotient=True)
    __lt__, __le__, __gt__, __ge__, __eq__, __ne__ = (
        functools.partialmethod(lambda *sides: _compared(*sides), symbol) for symbol in COMPARE
    )

    @property
    def terms(self) -> tuple[Term, ...]:
        return self.above + self.below

    @property
    def value(self) -> float | str | None:
        """None if it is not a number: a term has no value, or a divisor is zero."""
        value = getattr(self.number, "value", self.number)
        return None if value != value else value

    @property
    def each(self) -> np.ndarray | float:
        return np.float64(self.number.value) if self.runs is None else self.runs


class Comparison(NamedTuple):
    """Two sides. upper: the other bound of `between`; within: the share of `near`. nominal: whether the values as they
    are fulfil it. yes, no: one-sided p values, of the hypothesis that it does not hold and of that it does; both are 1
    where the numbers cannot tell; doubts: why not."""

    left: Side
    operator: str
    right: Side
    upper: Side | None
    within: float
    nominal: bool | None
    yes: float
    no: float

    @property
    def terms(self) -> tuple[Term, ...]:
        return self.left.terms + self.right.terms

    @property
    def doubts(self) -> tuple[str, ...]:
        doubts = tuple(doubt for term in self.terms for doubt in term.doubts)
        apart = self.yes == self.no == 1 and any(term.runs is not None for term in self.terms)
        return doubts or (f"fewer than {REPEATS} repeats in common",) * apart


class Decision(NamedTuple):
    """Whether all of its comparisons hold. level: of the test, two-sided. barred: why there is no verdict whatever the
    numbers are; elsewhere: the chip that the sentence is about, if it is not this one."""

    numbers: tuple[Comparison, ...] = ()
    level: float = 1 - intervals.CONFIDENCE
    barred: str = ""
    elsewhere: str = ""

    @property
    def tests(self) -> int:
        """How many comparisons are judged by a test, and are neither exact nor unknown."""
        return sum(0 < min(made.yes, made.no) < 1 for made in self.numbers)

    @property
    def p_values(self) -> tuple[float, float]:
        """One-sided. All hold if each does: the largest (Berger 1982, an intersection-union test). One fails: the
        smallest, times the tests that could have shown it (Bonferroni)."""
        yes, no = ([getattr(made, side) for made in self.numbers] for side in ("yes", "no"))
        return max(yes, default=1.0), min(1.0, min(no, default=1.0) * max(1, self.tests))

    @property
    def holds(self) -> bool | None:
        """None if the numbers cannot tell."""
        yes, no = self.p_values
        shown = 2 * min(yes, no) <= self.level and not (self.barred or self.elsewhere)
        return yes < no if shown else None

    def fails(self, made: Comparison) -> bool:
        """Whether this comparison alone makes it fail."""
        return made.no * max(1, self.tests) <= self.level / 2

    @property
    def status(self) -> str:
        return {True: HOLDS, False: DOES_NOT_HOLD, None: CANNOT_BE_TOLD}[self.holds]

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why some of its numbers give no verdict."""
        return tuple(dict.fromkeys(doubt for made in self.numbers for doubt in made.doubts))

    def __and__(self, other: Decision) -> Decision:
        return Decision(self.numbers + other.numbers)

    def __bool__(self):
        raise TypeError("decisions are joined by `&`, and a chain is between(low, x, high)")


def _side(number: Side | Estimate | float | str) -> Side:
    return number if isinstance(number, Side) else Side(number if isinstance(number, str) else estimate(number))


def _compared(left: Any, symbol: str, right: Any, upper: Any = None, within: float = 0.0) -> Decision:
    left, right, upper = (None if side is None else _side(side) for side in (left, right, upper))
    pairs = [(left, symbol, right)]
    if symbol in ("between", "near"):
        low, high = (right, upper) if upper else (right * (1 - within), right * (1 + within))
        pairs = [(low, "<=", left), (left, "<=", high)]
    known = None not in (left.value, right.value)
    nominal = all(COMPARE[symbol](a.value, b.value) for a, symbol, b in pairs) if known else None
    # Of a chain's two bounds at most one can fail, so that its p value needs no correction for two.
    tails = [_tails(*pair) for pair in pairs]
    yes, no = (pick(each) for pick, each in zip((max, min), zip(*tails, strict=True), strict=True))
    return Decision((Comparison(left, symbol, right, upper, within, nominal, yes, no),))


def _tails(left: Side, symbol: str, right: Side) -> tuple[float, float]:
    """The p values of a comparison, as `Comparison` has them."""
    if None in (left.value, right.value):
        return 1.0, 1.0
    if [isinstance(side.number, str) for side in (left, right)] != [symbol in ("==", "!=")] * 2:
        raise TypeError("a status compares with a text, by == or !=, and a number by < or >")
    if left.runs is None and right.runs is None:
        ends = [getattr(side.number, "bounds", (side.number,)) for side in (left, right)]
        results = {COMPARE[symbol](x, y) for x in ends[0] for y in ends[1]}
        return float(results != {True}), float(results != {False})
    between = difference(left, right)
    if between is None:
        return 1.0, 1.0
    less = between.p_value / 2 if between.mean < 0 else 1 - between.p_value / 2
    return (less, 1 - less) if "<" in symbol else (1 - less, less)


def difference(left: Side, right: Side) -> intervals.Difference | None:
    """Of the repeats in which both sides have a value; None if these are too few."""
    pairs = np.array(np.broadcast_arrays(left.each, right.each))
    pairs = pairs[:, np.isfinite(pairs).all(axis=0)]
    if (count := pairs.shape[1]) < REPEATS:
        return None
    differences = np.subtract(*(np.log(pairs) if (pairs > 0).all() else pairs))
    variance = max(float(differences.var(ddof=1)), intervals.RESOLUTION**2)
    error = math.sqrt(variance * (1 / count + intervals.BETWEEN_SETS / 2))
    return intervals.Difference(float(differences.mean()), error, count - 1, count)


PICKS: dict[str, Callable] = {"min": min, "max": max, "average": geometric_mean}


def _picked(name: str, *sides: Any) -> Side:
    """Of numbers that are given one by one, or by a generator."""
    parts = tuple(map(_side, sides[0] if len(sides) == 1 else sides))
    above, below = (tuple(itertools.chain(*terms)) for terms in zip(*((x.above, x.below) for x in parts), strict=True))
    pick, runs, number = PICKS[name], None, _MISSING
    if all(part.value is not None for part in parts):
        ends = zip(*(part.number.bounds for part in parts), strict=True)
        # The bounds of an average are not needed: no article prints all of its terms.
        low, high = (None, None) if name == "average" else map(pick, ends)
        number = Estimate(pick([part.value for part in parts]), parts[0].number.unit, low, high)
    if any(part.runs is not None for part in parts):
        each = np.array(np.broadcast_arrays(*(part.each for part in parts))).T
        runs = np.array([pick(row.tolist()) if np.isfinite(row).all() else math.nan for row in each])
    return Side(number, above, runs, below, name, parts)


class _Names(dict):
    """The names of a formula: those that are not here are metrics."""

    def __init__(self, claim: Claim, lookup: Any):
        self.claim, self.lookup = claim, lookup
        super().__init__({role: role for role in ROLES}, __builtins__={})
        self["between"] = lambda low, x, high: _compared(x, "between", low, high)
        self["near"] = lambda x, target, within=0.05: _compared(x, "near", target, within=within)
        self["all"] = lambda decisions: functools.reduce(operator.and_, decisions)
        self |= {name: functools.partial(_picked, name) for name in PICKS}
        for name, roles in (("gpus", ["gpu"]), ("rivals", ["rival"]), ("devices", ["gpu", "rival"])):
            self[name] = [device for role in roles for device in lookup.devices(claim.experiment, role)] or roles[:1]

    def __missing__(self, metric: str) -> Callable[..., Side]:
        return functools.partial(self.term, metric)

    def term(self, metric: str, role: str | None = None, /, **config: Any) -> Side:
        if not isinstance(role, str | None):
            raise TypeError(f"{metric}() takes one of {', '.join(ROLES)} or the name of a device, then keywords")
        experiment = config.pop("experiment", self.claim.experiment)
        traits = {"experiment": experiment, "metric": metric, "role": role, **config}
        term = self.lookup(experiment, metric, role, config)._replace(traits=traits)
        number = _MISSING if term.number is None else term.number
        return Side(number, (term,), None if term.runs is None else np.array(term.runs))


def test(claim: Claim, lookup: Any) -> Decision:
    """One claim, judged alone: see `judged`."""
    return judged([claim], lookup)[0]


def judged(claims: Iterable[Claim], lookup: Any) -> list[Decision]:
    """Put numbers into claims' formulas and say which hold. Raises PomologyError if a formula is malformed.

    Of the verdicts from repeats at most 5 % are wrong, on average (`intervals.joint_confidence`).

    `lookup(experiment, metric, role, config)` gives a Term; `role` is as in a formula, or None for what is the same on
    all. `lookup.devices(experiment, role)` gives the names of those that have numbers, `lookup.has(chip)` says whether
    they are of this chip, or of one of this maker.
    """
    made = [_evaluated(claim, lookup) for claim in claims]
    tested = [x for x in made if x.tests and not (x.barred or x.elsewhere)]
    level = 1 - intervals.joint_confidence([min(1.0, 2 * min(x.p_values)) for x in tested]) if tested else 0.0
    return [x._replace(level=level or x.level) for x in made]


def _evaluated(claim: Claim, lookup: Any) -> Decision:
    if not claim.formula:
        return Decision()
    try:
        decision = eval(claim.formula, _Names(claim, lookup))
    except (AttributeError, NameError, SyntaxError, TypeError) as error:
        raise PomologyError(f"claim {claim.id}: its formula cannot be evaluated: {error}") from error
    if not isinstance(decision, Decision):
        raise PomologyError(f"claim {claim.id}: its formula compares no numbers")
    barred, elsewhere = claim.holds_in_published.partition("untestable: ")[2], not lookup.has(claim.about)
    return decision._replace(barred=barred, elsewhere=claim.about * elsewhere)


class PublishedLookup:
    """Looks terms up in what one article printed, to the precision of print; `<0.3GB` is from 0 to 0.3e9."""

    def __init__(self, article: str):
        self.article = article

    def __call__(self, experiment: str, metric: str, role: str | None, config: dict) -> Term:
        meant = [row for row in rows(self.article, experiment) if _is_meant(row, role, config)]
        if metric == "status":
            # A failed case still has a temperature printed beside it: the failure is the status of the whole row.
            ends = {row["status"] for row in meant if len({_subject(row) for row in meant}) == 1}
            return Term(next((status for status in ("error", "out-of-memory", "ok") if status in ends), None))
        printed = [row for row in meant if row["metric"] == metric and row["si"] is not None]
        numbers = {(_subject(row), row["si"]): row for row in printed}
        if len(numbers) != 1:
            return Term(None)
        (row,) = numbers.values()
        return Term(Estimate(row["si"], row["si_unit"], row["low"], row["high"], how="published"))

    def devices(self, experiment: str, role: str) -> tuple[str, ...]:
        """Those that have numbers, in printed order."""
        printed = [row for row in rows(self.article, experiment) if row["role"] == role and row["si"] is not None]
        return tuple(dict.fromkeys(row["device"] for row in printed))

    def has(self, chip: str) -> bool:
        """An article's numbers are of the chips that it names."""
        return True


def _is_meant(row: dict, role: str | None, config: dict) -> bool:
    name = row["role"] if role in ROLES else row["device"].casefold()
    settings = all((row[k] if k in FIELDS else row["config"].get(k)) == wanted for k, wanted in config.items())
    return settings and (role is None or name == role.casefold())


def _subject(row: dict) -> str:
    return json.dumps([row["device"], *(row[field] for field in FIELDS), row["config"]], sort_keys=True)
