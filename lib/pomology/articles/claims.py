"""Sentences of the articles that numbers can test, and how they are tested.

A claim's formula is a Python expression, evaluated without builtins:

    near(epoch_s(cpu, batch_size=128) / epoch_s(gpu, batch_size=128), 8.8)
    all(launch_cold_s(d) / launch_s(d) > 1 for d in devices)

* A term is a metric's name, called with a role (`cpu`, `gpu`, `rival`) or a device's name, and keywords that select
  rows: `experiment=` names another experiment than the claim's first, `backend=`, `framework=` and `precision=` are
  fields, any other keyword is a setting. `gpus`, `rivals` and `devices` (both) are the names of those that have
  numbers. Values are in SI units.
* `&` and `all` join comparisons. `between(low, x, high)` and `near(x, target, within=0.05)` have two bounds. `min`,
  `max` and `average` (the geometric mean) are there. `status(...)` compares with `==` or `!=`.

What an article prints is good to half a unit of its last digit: there is a verdict if no value there could change it.
What was measured needs repeats: the formula is evaluated in each, and Student's t judges the logarithm of the ratio of
its two sides (their difference where one is 0 or less), with the variance between sets of processes added.
"""

from __future__ import annotations

import ast
import json
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import geometric_mean
from typing import Any, NamedTuple

import numpy as np

from pomology.articles.published import ROLES, Claim, rows
from pomology.errors import PomologyError
from pomology.measure import intervals
from pomology.measure.estimate import Estimate

SUPPORTED = "supported"
CONTRADICTED = "contradicted"
INCONCLUSIVE = "inconclusive"
FIELDS = ("backend", "framework", "precision")  # keywords of a term that are no settings
REPEATS = 3  # that a verdict needs, of everything that was measured
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
PICKS: dict[str, Callable] = {"min": min, "max": max, "average": geometric_mean}
MISSING = Estimate(math.nan)


class Term(NamedTuple):
    """What a lookup has for a term of a formula.

    number: an estimate, a status, or None. doubts: why it gives no verdict. runs: what was measured in each repeat of
    a run, NaN where that cannot be used; None of what is no measurement. traits: experiment, metric, role, keywords.
    """

    number: Estimate | str | None
    doubts: tuple[str, ...] = ()
    runs: Sequence[float] | None = None
    traits: dict[str, Any] | None = None


Operand = Any  # an Estimate, a float or a status


@dataclass(frozen=True)
class Comparison:
    """A value and its bounds, each an operator and a value.

    supported, contradicted: one-sided p values of the hypothesis that it does not hold, and of that it does; both are
    1 where the numbers cannot tell. ratio: of what was measured to its one bound, with its interval.
    """

    left: Operand
    bounds: list[tuple[str, Operand]]
    terms: list[Term]
    supported: float = 1.0
    contradicted: float = 1.0
    ratio: intervals.Difference | None = None

    @property
    def known(self) -> bool:
        values = [self.left, *(right for _, right in self.bounds)]
        return all(isinstance(value, str) or _value(value) == _value(value) for value in values)

    @property
    def nominal(self) -> bool:
        """Whether the values as they are fulfil it."""
        return all(OPERATORS[sign](_value(self.left), _value(right)) for sign, right in self.bounds)

    @property
    def doubts(self) -> list[str]:
        doubts = [doubt for term in self.terms for doubt in term.doubts]
        undecided = self.supported == self.contradicted == 1
        if not doubts and undecided and any(term.runs is not None for term in self.terms):
            doubts.append(f"fewer than {REPEATS} repeats in common")
        return doubts


@dataclass(frozen=True)
class Decision:
    """The verdict on a claim: it holds if all of its comparisons do.

    level: of the test, two-sided. barred: why there is no verdict whatever the numbers are. elsewhere: the chip that
    the sentence is about, if it is not this one.
    """

    comparisons: list[Comparison] = field(default_factory=list)
    level: float = 1 - intervals.CONFIDENCE
    barred: str = ""
    elsewhere: str = ""

    @property
    def tests(self) -> int:
        """How many comparisons a test judges, which are neither exact nor unknown."""
        return sum(0 < min(each.supported, each.contradicted) < 1 for each in self.comparisons)

    @property
    def p_values(self) -> tuple[float, float]:
        """One-sided. All hold if each does: the largest (Berger 1982, an intersection-union test). One fails: the
        smallest, times the tests that could have shown it (Bonferroni)."""
        supported = max((each.supported for each in self.comparisons), default=1.0)
        contradicted = min((each.contradicted for each in self.comparisons), default=1.0)
        return supported, min(1.0, contradicted * max(1, self.tests))

    @property
    def status(self) -> str:
        supported, contradicted = self.p_values
        if self.barred or self.elsewhere or 2 * min(supported, contradicted) > self.level:
            return INCONCLUSIVE
        return SUPPORTED if supported < contradicted else CONTRADICTED

    def fails(self, comparison: Comparison) -> bool:
        """Whether this comparison alone contradicts the claim."""
        return comparison.contradicted * max(1, self.tests) <= self.level / 2

    @property
    def doubts(self) -> list[str]:
        """Why some of its numbers give no verdict."""
        return list(dict.fromkeys(doubt for each in self.comparisons for doubt in each.doubts))


def test(claim: Claim, lookup: Any) -> Decision:
    """Return the decision on one claim, judged alone: see `judged`."""
    return judged([claim], lookup)[0]


def judged(claims: Iterable[Claim], lookup: Any) -> list[Decision]:
    """Put numbers into claims' formulas, and return which hold.

    Of the verdicts from repeats at most 5 % are wrong, on average (`intervals.joint_confidence`).

    Args:
        lookup: `lookup(experiment, metric, role, config)` gives a Term; `role` is as in a formula, or None for what is
            the same on all. `lookup.devices(experiment, role)` gives the names of those that have numbers,
            `lookup.has(chip)` says whether they are of this chip, or of one of this maker.

    Raises:
        PomologyError: if a formula is malformed.
    """
    decisions = [_decision(claim, lookup) for claim in claims]
    tested = [each for each in decisions if each.tests and not (each.barred or each.elsewhere)]
    if not tested:
        return decisions
    level = 1 - intervals.joint_confidence([min(1.0, 2 * min(each.p_values)) for each in tested])
    return [replace(each, level=level) for each in decisions]


def _decision(claim: Claim, lookup: Any) -> Decision:
    if not claim.formula:
        return Decision()
    try:
        comparisons = _comparisons(claim, lookup)
    except (AttributeError, NameError, SyntaxError, TypeError) as error:
        raise PomologyError(
            f"claim {claim.id}: its formula cannot be evaluated: {error}"
        ) from error
    if not comparisons:
        raise PomologyError(f"claim {claim.id}: its formula compares no numbers")
    barred = claim.holds_in_published.partition("untestable: ")[2]
    return Decision(
        comparisons, barred=barred, elsewhere="" if lookup.has(claim.about) else claim.about
    )


def _comparisons(claim: Claim, lookup: Any) -> list[Comparison]:
    nominal = _evaluated(
        claim, lookup, lambda term: MISSING if term.number is None else term.number
    )
    counts = {len(term.runs) for each in nominal for term in each.terms if term.runs is not None}
    if not counts:
        return [_exact(each) for each in nominal]
    runs = [_evaluated(claim, lookup, partial(_in_run, number)) for number in range(max(counts))]
    return [_tested(each, [run[place] for run in runs]) for place, each in enumerate(nominal)]


def _in_run(number: int, term: Term) -> Operand:
    """Return the value of a term in one repeat."""
    if isinstance(term.number, str):
        return term.number
    if term.runs is None:
        return np.float64(math.nan if term.number is None else term.number.value)
    return np.float64(term.runs[number])


def _exact(comparison: Comparison) -> Comparison:
    """Judge numbers by the bounds of what is printed, or of what was counted."""
    if not comparison.known:
        return comparison
    results = []
    for sign, right in comparison.bounds:
        found = {OPERATORS[sign](x, y) for x in _ends(comparison.left) for y in _ends(right)}
        results.append((float(found != {True}), float(found != {False})))
    supported, contradicted = zip(*results, strict=True)
    return replace(comparison, supported=max(supported), contradicted=min(contradicted))


def _tested(comparison: Comparison, runs: list[Comparison]) -> Comparison:
    """Judge what was measured by its repeats. Of two bounds at most one can fail: no correction for two."""
    if not comparison.known or not any(term.runs is not None for term in comparison.terms):
        return _exact(comparison)
    results = []
    ratio = None
    for place, (sign, _) in enumerate(comparison.bounds):
        ratio = difference([run.left for run in runs], [run.bounds[place][1] for run in runs])
        if ratio is None:
            return comparison
        less = ratio.p_value / 2 if ratio.mean < 0 else 1 - ratio.p_value / 2
        results.append((less, 1 - less) if "<" in sign else (1 - less, less))
    supported, contradicted = zip(*results, strict=True)
    alone = ratio if len(comparison.bounds) == 1 else None
    return replace(
        comparison, supported=max(supported), contradicted=min(contradicted), ratio=alone
    )


def difference(left: Sequence[float], right: Sequence[float]) -> intervals.Difference | None:
    """Return the mean of log(left / right) over the repeats with both; None if these are too few."""
    pairs = np.array([left, right], dtype=float)
    pairs = pairs[:, np.isfinite(pairs).all(axis=0)]
    count = pairs.shape[1]
    if count < REPEATS:
        return None
    if (pairs > 0).all():
        pairs = np.log(pairs)
    differences = pairs[0] - pairs[1]
    variance = max(float(differences.var(ddof=1)), intervals.RESOLUTION**2)
    error = math.sqrt(variance * (1 / count + intervals.BETWEEN_SETS / 2))
    return intervals.Difference(float(differences.mean()), error, count - 1, count)


def _value(operand: Operand) -> Any:
    return operand.value if isinstance(operand, Estimate) else operand


def _ends(operand: Operand) -> tuple:
    return operand.bounds if isinstance(operand, Estimate) else (operand,)


# Formulas -------------------------------------------------------------------------------------------------------------


class _Recorded(ast.NodeTransformer):
    """Turns each comparison `a < b` of a formula into `compare(a, "<", b)`, which notes it."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) > 1:
            raise TypeError("a chain is written between(low, x, high)")
        sign = ast.unparse(node).removeprefix(ast.unparse(node.left)).split()[0]
        return ast.Call(
            ast.Name("compare", ast.Load()), [node.left, ast.Constant(sign), *node.comparators], []
        )


class _Names(dict):
    """The names of a formula, which note each comparison with its terms; those that are not here are metrics."""

    def __init__(self, claim: Claim, lookup: Any, operand: Callable[[Term], Operand]):
        super().__init__({role: role for role in ROLES}, __builtins__={})
        self.claim = claim
        self.lookup = lookup
        self.operand = operand
        self.comparisons: list[Comparison] = []
        self.terms: list[Term] = []
        self |= {
            "compare": self.compare,
            "between": self.between,
            "near": self.near,
            "all": self.all,
        }
        self |= {name: partial(_picked, pick) for name, pick in PICKS.items()}
        for name, roles in (
            ("gpus", ["gpu"]),
            ("rivals", ["rival"]),
            ("devices", ["gpu", "rival"]),
        ):
            found = [device for role in roles for device in lookup.devices(claim.experiment, role)]
            self[name] = found or roles[:1]

    def __missing__(self, metric: str) -> Callable[..., Operand]:
        return partial(self.term, metric)

    def term(self, metric: str, role: str | None = None, /, **config: Any) -> Operand:
        if not isinstance(role, str | None):
            raise TypeError(
                f"{metric}() takes one of {', '.join(ROLES)} or the name of a device, then keywords"
            )
        experiment = config.pop("experiment", self.claim.experiment)
        term = self.lookup(experiment, metric, role, config)
        traits = {"experiment": experiment, "metric": metric, "role": role, **config}
        self.terms.append(term._replace(traits=traits))
        return self.operand(term)

    def note(self, left: Operand, *bounds: tuple[str, Operand]) -> bool:
        comparison = Comparison(left, list(bounds), self.terms)
        if isinstance(left, bool):
            raise TypeError("a chain is written between(low, x, high)")
        if comparison.known and any(
            isinstance(left, str) != isinstance(right, str) for _, right in bounds
        ):
            raise TypeError("a status compares with a text, and a number with a number")
        if isinstance(left, str) != (bounds[0][0] in ("==", "!=")) and comparison.known:
            raise TypeError("a status compares by == or !=, a number by < or >")
        self.comparisons.append(comparison)
        self.terms = []
        return True

    def compare(self, left: Operand, sign: str, right: Operand) -> bool:
        return self.note(left, (sign, right))

    def between(self, low: Operand, x: Operand, high: Operand) -> bool:
        return self.note(x, (">=", low), ("<=", high))

    def near(self, x: Operand, target: Operand, within: float = 0.05) -> bool:
        return self.note(x, (">=", target * (1 - within)), ("<=", target * (1 + within)))

    def all(self, comparisons: Iterator[bool]) -> bool:
        return bool(list(comparisons))


def _evaluated(claim: Claim, lookup: Any, operand: Callable[[Term], Operand]) -> list[Comparison]:
    """Return the comparisons of a formula, with what `operand` makes of each term."""
    names = _Names(claim, lookup, operand)
    tree = ast.fix_missing_locations(_Recorded().visit(ast.parse(claim.formula, mode="eval")))
    with np.errstate(all="ignore"):
        eval(compile(tree, claim.id, "eval"), names)
    return names.comparisons


def _picked(pick: Callable, *sides: Any) -> Operand:
    """Return the least, the largest or the mean of numbers that are given one by one, or by a generator."""
    parts = list(sides[0] if len(sides) == 1 else sides)
    values = [float(_value(part)) for part in parts]
    if not all(map(math.isfinite, values)):
        return MISSING if isinstance(parts[0], Estimate) else np.float64(math.nan)
    if not any(isinstance(part, Estimate) for part in parts):
        return np.float64(pick(values))
    unit = next(part.unit for part in parts if isinstance(part, Estimate))
    if pick is geometric_mean:  # no article prints all terms of an average
        return Estimate(pick(values), unit)
    low, high = map(pick, zip(*map(_both_ends, parts), strict=True))
    return Estimate(pick(values), unit, low, high)


def _both_ends(operand: Operand) -> tuple[float, float]:
    ends = _ends(operand)
    return ends[0], ends[-1]


class PublishedLookup:
    """Looks terms up in what one article printed, to the precision of print; `<0.3GB` is from 0 to 0.3e9."""

    def __init__(self, article: str):
        self.article = article

    def __call__(self, experiment: str, metric: str, role: str | None, config: dict) -> Term:
        meant = [row for row in rows(self.article, experiment) if _is_meant(row, role, config)]
        if metric == "status":
            # A failed case still has a temperature printed next to it: the failure is the status of the whole row.
            ends = {row["status"] for row in meant if len({_subject(row) for row in meant}) == 1}
            return Term(
                next(
                    (status for status in ("error", "out-of-memory", "ok") if status in ends), None
                )
            )
        printed = [row for row in meant if row["metric"] == metric and row["si"] is not None]
        numbers = {(_subject(row), row["si"]): row for row in printed}
        if len(numbers) != 1:
            return Term(None)
        (row,) = numbers.values()
        return Term(Estimate(row["si"], row["si_unit"], row["low"], row["high"], how="published"))

    def devices(self, experiment: str, role: str) -> tuple[str, ...]:
        """Return those that have numbers, in printed order."""
        printed = [
            row
            for row in rows(self.article, experiment)
            if row["role"] == role and row["si"] is not None
        ]
        return tuple(dict.fromkeys(row["device"] for row in printed))

    def has(self, chip: str) -> bool:
        """Return True: an article's numbers are of the chips that it names."""
        return True


def _is_meant(row: dict, role: str | None, config: dict) -> bool:
    name = row["role"] if role in ROLES else row["device"].casefold()
    settings = all(
        (row[k] if k in FIELDS else row["config"].get(k)) == wanted for k, wanted in config.items()
    )
    return settings and (role is None or name == role.casefold())


def _subject(row: dict) -> str:
    return json.dumps(
        [row["device"], *(row[name] for name in FIELDS), row["config"]], sort_keys=True
    )
