"""Sentences of the articles that numbers can test, and how they are tested.

A claim's formula is a Python expression, evaluated without builtins:

    epoch_s(rival, batch_size=128) / epoch_s(gpu, batch_size=128) > 1
    all(launch_cold_s(d) / launch_s(d) > 1 for d in devices)

* A term is a metric's name, called with a role (`cpu`, `gpu`, `rival`) or a device's name, and keywords that tell rows
  apart: `experiment=` names another experiment than the claim's first, `backend=`, `framework=` and `precision=` select
  by these fields, `maker='Apple'` selects Apple's chips, any other keyword the row's config. `gpus`, `rivals` and
  `devices` (both) are the names of those that have numbers. Values are in the unit that the metric's name says (SI).
* A comparison gives a Decision: it holds, it does not, or the numbers cannot tell. `&`, `|`, `~`, `all` and `any` join
  decisions; `between(low, x, high)` stands for a chain; `min`, `max`, `mean` and `abs` are there.
* `status(...)` is a text and compares with `==` or `!=`.

Intervals are carried as if all terms varied independently, and a missing value may be anything: a verdict is given only
if no value inside the intervals could turn it round.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from pomology.articles.published import ROLES, Claim, rows
from pomology.errors import PomologyError
from pomology.format import significant
from pomology.measure.estimate import Estimate, estimate

HOLDS, DOES_NOT_HOLD, CANNOT_BE_TOLD = "holds", "does not hold", "cannot be told here"
FIELDS = ("backend", "framework", "precision", "maker")  # keywords of a term that are not of a row's config
COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_MISSING = Estimate(math.nan)


class Term(NamedTuple):
    """What a lookup has for a term of a formula (text): an estimate or a status, or None and the reason. source: which
    measurement it is; two terms of one source are one number."""

    found: Estimate | str | None
    reason: str = ""
    source: str = ""
    text: str = ""

    @property
    def value(self) -> float | str | None:
        return self.found.value if isinstance(self.found, Estimate) else self.found


def _computed(compute: Callable) -> Callable[[Side, Side | float], Side]:
    def method(self: Side, other: Side | float) -> Side:
        other = _side(other)
        try:
            return Side(compute(self.number, other.number), self.terms + other.terms)
        except ZeroDivisionError:
            return Side(_MISSING, self.terms + other.terms)

    return method


def _compared(symbol: str) -> Callable[[Side, Any], Decision]:
    return lambda self, other: _compare(self, symbol, _side(other))


@dataclass(frozen=True, eq=False)
class Side:
    """A side of a comparison, and the terms in it. It computes as its estimate does, and compares into a Decision."""

    number: Estimate | str
    terms: tuple[Term, ...] = ()

    __add__ = __radd__ = _computed(operator.add)
    __mul__ = __rmul__ = _computed(operator.mul)
    __sub__, __rsub__ = _computed(operator.sub), _computed(lambda a, b: b - a)
    __truediv__, __rtruediv__ = _computed(operator.truediv), _computed(lambda a, b: b / a)
    __neg__, __abs__ = (lambda self: 0 - self), (lambda self: _reduced(max, self, -self))
    __lt__, __le__, __gt__, __ge__, __eq__, __ne__ = map(_compared, ("<", "<=", ">", ">=", "==", "!="))

    @property
    def value(self) -> float | str | None:
        """None if it is not a number: a term has no value, or a divisor is zero."""
        value = self.number if isinstance(self.number, str) else self.number.value
        return None if value != value else value

    def __str__(self) -> str:
        """`0.748 (0.731 to 0.765)`: with its interval where it has one."""
        if isinstance(self.number, str) or self.value is None:
            return str(self.value)
        low, high = self.number.bounds
        apart = low != high and math.isfinite(low) and math.isfinite(high)
        return significant(self.value) + (f" ({significant(low)} to {significant(high)})" if apart else "")


class Comparison(NamedTuple):
    """Two sides, and whether it `holds`: None if the numbers cannot tell, with the reason."""

    left: Side
    operator: str
    right: Side
    holds: bool | None
    reason: str = ""

    def __str__(self) -> str:
        words = {True: "yes", False: "no", None: "too close to tell"}
        return f"{self.left} {self.operator} {self.right} {words[self.holds]}"


class Decision(NamedTuple):
    """Whether something holds, None if the numbers cannot tell, and every comparison that was made."""

    holds: bool | None
    numbers: tuple[Comparison, ...] = ()

    @property
    def status(self) -> str:
        return {True: HOLDS, False: DOES_NOT_HOLD, None: CANNOT_BE_TOLD}[self.holds]

    @property
    def reason(self) -> str:
        """What fails, or why the numbers cannot tell; empty if it holds."""
        decisive = [made for made in self.numbers if made.holds is self.holds and self.holds is not True]
        reasons = list(dict.fromkeys(made.reason or str(made) for made in decisive))
        return "; ".join(reasons[:3]) + (f"; and {len(reasons) - 3} more" if len(reasons) > 3 else "")

    def __and__(self, other: Decision) -> Decision:
        return _decided((self, other), by=False)

    def __or__(self, other: Decision) -> Decision:
        return _decided((self, other), by=True)

    def __invert__(self) -> Decision:
        return Decision(None if self.holds is None else not self.holds, self.numbers)

    def __bool__(self):
        raise TypeError("a decision is joined by `&`, `|` and `~`, and a chain is between(low, x, high)")


def _side(number: Side | Estimate | float | str) -> Side:
    return number if isinstance(number, Side) else Side(number if isinstance(number, str) else estimate(number))


def _compare(left: Side, symbol: str, right: Side) -> Decision:
    known, reason = {}, ""
    holds, terms = _holds(left.number, symbol, right.number), tuple(dict.fromkeys(left.terms + right.terms))
    for term in terms:
        if term.source and known.setdefault(term.source, term.text) != term.text:  # a device by its name and its role
            left, holds = Side(_MISSING, left.terms), None
            reason = f"{known[term.source]} and {term.text} are one measurement here, which is not compared with itself"
    if holds is None and not reason:
        missing = "; ".join(f"{term.text}: {term.reason}" for term in terms if term.found is None)
        undefined = "a side is not a number" if None in (left.value, right.value) else ""
        reason = missing or undefined or f"the intervals of the two sides overlap: {left} {symbol} {right}"
    return Decision(holds, (Comparison(left, symbol, right, holds, reason),))


def _holds(a: Estimate | str, symbol: str, b: Estimate | str) -> bool | None:
    if symbol == "!=":
        equal = _holds(a, "==", b)
        return None if equal is None else not equal
    if isinstance(a, str) or isinstance(b, str):
        if symbol != "==" or not all(isinstance(text, str) or text is _MISSING for text in (a, b)):
            raise TypeError("a status compares with a text, by == or !=")
        return None if _MISSING in (a, b) else a == b
    if symbol == "==":
        return ((Side(a) <= b) & (Side(a) >= b)).holds
    results = {COMPARE[symbol](x, y) for x in a.bounds for y in b.bounds}
    return results.pop() if len(results) == 1 else None


def _decided(decisions: Iterable[Decision], by: bool) -> Decision:
    """Kleene's or (by True), and (by False): one such decision is enough, and an unknown one could be such."""
    results, made = zip(*decisions, strict=True)
    holds = by if by in results else None if None in results else not by
    return Decision(holds, tuple(itertools.chain.from_iterable(made)))


def _reduced(pick: Callable, *sides: Any) -> Side:
    """Of numbers that are given one by one, or by a generator."""
    given = [_side(side) for side in (sides[0] if len(sides) == 1 else sides)]
    values = [side.number.value for side in given]
    lows, highs = zip(*(side.number.bounds for side in given), strict=True)
    value = math.nan if any(map(math.isnan, values)) else pick(values)
    terms = itertools.chain.from_iterable(side.terms for side in given)
    return Side(Estimate(value, low=pick(lows), high=pick(highs)), tuple(terms))


class _Names(dict):
    """The names of a formula: those that are not here are metrics."""

    def __init__(self, claim: Claim, lookup: Any):
        self.claim, self.lookup = claim, lookup
        super().__init__({role: role for role in ROLES}, __builtins__={}, abs=abs)
        self["between"] = lambda low, x, high: (_side(low) <= x) & (_side(x) <= high)
        self |= {
            name: functools.partial(_reduced, pick) for name, pick in (("min", min), ("max", max), ("mean", fmean))
        }
        self |= {"all": functools.partial(_decided, by=False), "any": functools.partial(_decided, by=True)}
        for name, roles in (("gpus", ["gpu"]), ("rivals", ["rival"]), ("devices", ["gpu", "rival"])):
            self[name] = [device for role in roles for device in lookup.devices(claim.experiment, role)] or roles[:1]

    def __missing__(self, metric: str) -> Callable[..., Side]:
        return functools.partial(self.term, metric)

    def term(self, metric: str, role: str | None = None, /, **config: Any) -> Side:
        if not isinstance(role, str | None):
            raise TypeError(f"{metric}() takes one of {', '.join(ROLES)} or the name of a device, then keywords")
        given = [] if role is None else [role if role in ROLES else repr(role)]
        text = f"{metric}({', '.join([*given, *(f'{key}={value!r}' for key, value in config.items())])})"
        experiment = config.pop("experiment", self.claim.experiment)
        term = self.lookup(experiment, metric, role, config)._replace(text=text)
        number = _MISSING if term.found is None else term.found
        if isinstance(number, Estimate) and number.low is None and number.value == number.value:
            # Here, and nowhere else, a value of unknown spread counts as exact: the articles print no intervals.
            number = number.replace(covers="exact")
        return Side(number, (term,))


def test(claim: Claim, lookup: Any) -> Decision:
    """Put numbers into a claim's formula and say whether it holds. Raises PomologyError if the formula is malformed.

    `lookup(experiment, metric, role, config)` gives a Term; `role` is as in a formula, or None for what is the same on
    all. `lookup.devices(experiment, role)` gives the names of those that have numbers.
    """
    if not claim.formula:
        return Decision(None)
    try:
        decision = eval(claim.formula, _Names(claim, lookup))
    except (AttributeError, NameError, SyntaxError, TypeError) as error:
        raise PomologyError(f"claim {claim.id}: its formula cannot be evaluated: {error}") from error
    if not isinstance(decision, Decision):
        raise PomologyError(f"claim {claim.id}: its formula compares no numbers")
    return decision


class PublishedLookup:
    """Looks terms up in what one article printed; `<0.3GB` becomes the interval from 0 to 0.3e9."""

    def __init__(self, article: str):
        self.article = article

    def __call__(self, experiment: str, metric: str, role: str | None, config: dict) -> Term:
        meant = [row for row in rows(self.article, experiment) if _is_meant(row, role, config)]
        if metric == "status":
            printed: dict[str, set[str]] = {}
            for row in meant:
                printed.setdefault(_subject(row), set()).add(row["status"])
            # A failed case still has a temperature printed beside it: the failure is the status of the whole row.
            worst = {
                next((s for s in ("error", "out-of-memory", "ok") if s in each), None) for each in printed.values()
            }
            if len(worst) == 1 and None not in worst:
                return Term(worst.pop())
            return Term(None, f"article {self.article} prints {'more than one' if worst else 'no'} such status")
        asked = [row for row in meant if row["metric"] == metric]
        printed = [row for row in asked if row["si"] is not None]
        if len({(_subject(row), row["si"]) for row in printed}) > 1:
            return Term(None, f"{len(printed)} published values match; the term must say which")
        if printed:
            si = printed[0]["si"]
            low, high = {"<": (0.0, si), ">": (si, math.inf)}.get(printed[0]["bound"], (None, None))
            return Term(Estimate(si, low=low, high=high, how="published"))
        if asked:
            return Term(None, f'published as "{asked[0]["printed"]}"' if asked[0]["printed"] else asked[0]["note"])
        return Term(None, f"the text of article {self.article} prints no such number")

    def devices(self, experiment: str, role: str) -> tuple[str, ...]:
        """Those that have numbers, in printed order."""
        printed = [row for row in rows(self.article, experiment) if row["role"] == role and row["si"] is not None]
        return tuple(dict.fromkeys(row["device"] for row in printed))


def _is_meant(row: dict, role: str | None, config: dict) -> bool:
    name = row["role"] if role in ROLES else row["device"].casefold()
    settings = all((row[k] if k in FIELDS else row["config"].get(k)) == wanted for k, wanted in config.items())
    return settings and (role is None or name == role.casefold())


def _subject(row: dict) -> str:
    return json.dumps([row["device"], *(row[field] for field in FIELDS), row["config"]], sort_keys=True)
