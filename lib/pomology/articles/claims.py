"""Whether an article's claims hold, on its own numbers or on measured ones.

A claim holds if all of its conditions do (articles/data/conditions.csv). A condition is a number
and what is claimed of it:

    name       value                        claimed       for_each
    CPU / GPU  epoch_s(cpu) / epoch_s(gpu)  8.36 to 9.24  {"batch_size": [64, 1024]}

* `value` is a Python expression. Its terms are metrics, in SI units, called with a device (`cpu`,
  `gpu`, `rival`, a backend, or a name that the article prints; none for what is the same on all)
  and with settings. `experiment=` names another experiment than the claim's first. `min`, `max` and
  `average` (the geometric mean) are there.
* `for_each` gives a condition for each combination of its values. A key that `value` names is a
  variable in it; any other is a setting of all terms. "each" stands for all devices with numbers.

What an article prints is good to half a unit of its last digit: there is a verdict if no value
there could change it. What was measured needs repeats: the value is computed in each, and Student's
t judges its logarithm (itself where it may be 0 or less), with the variance between sets of
processes added.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from pomology.articles.published import Claim, Condition, rows
from pomology.measure import intervals
from pomology.measure.estimate import Estimate, estimate

SUPPORTED = "supported"
CONTRADICTED = "contradicted"
INCONCLUSIVE = "inconclusive"
NOT_TESTABLE = "not testable here"
REPEATS = 3  # that a verdict needs, of everything that was measured
OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
OPERATORS |= {"==": operator.eq, "!=": operator.ne}  # of a status


class Number(NamedTuple):
    """What a term of a condition can be.

    device: its names: role, backend, and as printed. settings: with framework and precision. value:
    a printed number; a number for each repeat, NaN where there is none; a status; or None. doubts:
    why it is None, or gives no verdict.
    """

    experiment: str
    metric: str
    device: tuple[str, ...]
    settings: dict[str, Any]
    value: Estimate | np.ndarray | str | None
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """A condition with its value.

    settings: of `for_each`, those with several values. value: NaN where it is unknown. doubts: why
    there is no verdict. supported, contradicted: one-sided p values of the hypothesis that it does
    not hold, and of that it does; both are 1 where the numbers cannot tell. spread: of what was
    measured, the t distribution of its mean, or of the mean of its logarithm.
    """

    condition: Condition
    settings: dict[str, Any]
    value: float | str = math.nan
    doubts: tuple[str, ...] = ()
    supported: float = 1.0
    contradicted: float = 1.0
    spread: Any = None
    logarithmic: bool = False

    @property
    def known(self) -> bool:
        return self.value == self.value  # NaN is not itself

    def interval(self, confidence: float) -> np.ndarray:
        ends = np.array(self.spread.interval(confidence))
        return np.exp(ends) if self.logarithmic else ends


@dataclass(frozen=True)
class Decision:
    """The verdict on a claim.

    level: of the test, two-sided. elsewhere: the chip that the claim is about, if it is not that of
    the numbers.
    """

    comparisons: list[Comparison]
    level: float = 1 - intervals.CONFIDENCE
    elsewhere: str = ""

    @property
    def known(self) -> bool:
        return bool(self.comparisons) and all(each.known for each in self.comparisons)

    @property
    def tests(self) -> int:
        return sum(each.spread is not None for each in self.comparisons)

    @property
    def p_values(self) -> tuple[float, float]:
        """One-sided. All hold if each does: the largest (Berger 1982, an intersection-union test).

        One fails: the smallest, times the tests that could have shown it (Bonferroni).
        """
        supported = max((each.supported for each in self.comparisons), default=1.0)
        contradicted = min((each.contradicted for each in self.comparisons), default=1.0)
        return supported, min(1.0, contradicted * max(1, self.tests))

    @property
    def status(self) -> str:
        supported, contradicted = self.p_values
        if self.elsewhere:
            return NOT_TESTABLE
        if 2 * min(supported, contradicted) <= self.level:
            return SUPPORTED if supported < contradicted else CONTRADICTED
        return INCONCLUSIVE if self.known else NOT_TESTABLE

    @property
    def doubts(self) -> list[str]:
        return list(dict.fromkeys(doubt for each in self.comparisons for doubt in each.doubts))


def judged(
    claims: Iterable[Claim], numbers: Iterable[Number], chips: Sequence[str] | None = None
) -> list[Decision]:
    """Return which claims hold. Of the verdicts from repeats at most 5 % are wrong, on average.

    chips: that the numbers are of; None for those that an article is about.
    """
    known: dict[tuple[str, str], list[Number]] = {}
    for number in numbers:
        known.setdefault((number.experiment, number.metric), []).append(number)
    decisions = []
    for claim in claims:
        here = chips is None or any(_is_of(chip, claim.about) for chip in chips)
        decisions.append(
            Decision(_comparisons(claim, known), elsewhere="" if here else claim.about)
        )
    tested = [each for each in decisions if each.tests and not each.elsewhere]
    if not tested:
        return decisions
    level = 1 - intervals.joint_confidence([min(1.0, 2 * min(each.p_values)) for each in tested])
    return [replace(each, level=level) for each in decisions]


def _is_of(chip: str, about: str) -> bool:
    """Return whether `Apple M1 Pro` is an `M1 Pro`, or of `Apple`."""
    return f" {chip}".endswith(f" {about}") or chip.startswith(f"{about} ") or not about


def _comparisons(claim: Claim, numbers: dict[tuple[str, str], list[Number]]) -> list[Comparison]:
    known = [
        each for name, group in numbers.items() if name[0] == claim.experiment for each in group
    ]
    comparisons = []
    for condition in claim.conditions:
        choices = {
            key: _devices(known, key) if values == "each" else values
            for key, values in condition.for_each.items()
        }
        for values in itertools.product(*choices.values()):
            chosen = dict(zip(choices, values, strict=True))
            value, doubts = _evaluated(condition.value, chosen, claim.experiment, numbers)
            settings = {key: chosen[key] for key in chosen if len(choices[key]) > 1}
            unknown = Comparison(condition, settings, doubts=doubts)
            comparisons.append(_compared(unknown, value))
    return comparisons


def _devices(numbers: list[Number], role: str) -> list[str]:
    """Return the names of the devices of a role, in order; `device` is any GPU."""
    roles = {"gpu", "rival"} if role == "device" else {role}
    found = [
        each.device[-1] for each in numbers if roles & {*each.device} and each.value is not None
    ]
    return list(dict.fromkeys(found)) or [role]


def metrics_of(expression: str) -> list[str]:
    return [name for name in re.findall(r"\w+(?=\()", expression) if name not in NAMES]


def _evaluated(
    expression: str, chosen: dict[str, Any], experiment: str, numbers: dict
) -> tuple[Any, tuple[str, ...]]:
    """Return the value of an expression, and why it is unknown or in doubt."""
    names = set(re.findall(r"\w+", expression))
    common = {key: value for key, value in chosen.items() if key not in names}
    missing: list[str] = []
    doubts: list[str] = []

    def term(metric: str, device: str | None = None, **settings: Any) -> Any:
        settings = common | settings
        of = settings.pop("experiment", experiment)
        value, doubts_of = _found(numbers.get((of, metric), ()), device, settings)
        if value is None and not doubts_of:
            ended, _ = _found(numbers.get((of, "status"), ()), device, settings)
            doubts_of = (f"{metric} was not measured" if ended == "ok" else ended or "",)
        (missing if value is None else doubts).extend(doubts_of)
        return math.nan if value is None else value

    scope = {metric: functools.partial(term, metric) for metric in metrics_of(expression)}
    with np.errstate(all="ignore"):
        value = eval(expression, scope | NAMES | chosen)
    return value, tuple(filter(None, missing or doubts))


def _found(
    numbers: Sequence[Number], device: str | None, settings: dict
) -> tuple[Any, tuple[str, ...]]:
    """Return the value of a device and of settings with its doubts; None where there is no one."""
    found = [each for each in numbers if settings.items() <= each.settings.items()]
    if device is not None:
        found = [each for each in found if device in each.device]
    known = [each for each in found if each.value is not None]
    if device is None:  # counted, and the same on all
        values = {each for number in known for each in np.atleast_1d(number.value) if each == each}
        return (values.pop(), ()) if len(values) == 1 else (None, ())
    if len(known) > 1:
        return None, (f"{len(known)} cases match",)
    if known:
        return known[0].value, known[0].doubts
    return None, found[0].doubts if found else ()


def _average(parts: Iterable[Any]) -> Any:
    """Return the geometric mean, in each repeat."""
    logs = [np.log(part) for part in parts]
    return np.exp(sum(logs) / len(logs))


NAMES = {name: name for name in ("cpu", "gpu", "rival", "cuda", "mps")} | {"mlx": "mlx-gpu"}
NAMES |= {"min": functools.partial(functools.reduce, np.minimum)}
NAMES |= {"max": functools.partial(functools.reduce, np.maximum)}
NAMES |= {"average": _average, "__builtins__": {}}


def _compared(unknown: Comparison, value: Any) -> Comparison:
    """Return a comparison with its value and p values."""
    bounds = _bounds(unknown.condition.claimed)
    if isinstance(value, np.ndarray):
        return _tested(unknown, value[np.isfinite(value)], bounds)
    # A status, a count, or what is printed, with the ends of what it may be.
    number = value if isinstance(value, str) else estimate(value).value
    ends = (value,) if isinstance(value, str) else estimate(value).bounds
    shown = replace(unknown, value=number)
    if not shown.known:
        return shown
    holds = [{OPERATORS[sign](end, bound) for end in ends} for sign, bound in bounds]
    supported = 0.0 if all(found == {True} for found in holds) else 1.0
    contradicted = 0.0 if any(found == {False} for found in holds) else 1.0
    return replace(shown, supported=supported, contradicted=contradicted)


def _tested(unknown: Comparison, values: np.ndarray, bounds: list) -> Comparison:
    """Judge what was measured by its repeats."""
    from scipy import stats  # half a second, which nothing else needs

    if not values.size:
        return unknown
    logarithmic = min(*values, *(bound for _, bound in bounds)) > 0
    values = np.log(values) if logarithmic else values
    mean = float(values.mean())
    shown = replace(unknown, value=math.exp(mean) if logarithmic else mean)
    if shown.doubts:
        return shown
    if values.size < REPEATS:
        return replace(shown, doubts=(f"fewer than {REPEATS} repeats in common",))
    variance = max(values.var(ddof=1), intervals.RESOLUTION**2)
    error = math.sqrt(variance * (1 / values.size + intervals.BETWEEN_SETS / 2))
    spread = stats.t(values.size - 1, mean, error)
    p_values = []  # of the hypotheses that a bound does not hold
    for sign, bound in bounds:
        beyond = spread.sf if "<" in sign else spread.cdf
        p_values.append(float(beyond(math.log(bound) if logarithmic else bound)))
    # Of two bounds at most one can fail: no correction for two.
    numbers = {"supported": max(p_values), "contradicted": 1 - max(p_values)}
    return replace(shown, spread=spread, logarithmic=logarithmic, **numbers)


def _bounds(claimed: str) -> list[tuple[str, Any]]:
    """Return the operators and bounds of `> 1`, `1.3 to 1.4` or `== ok`."""
    if " to " in claimed:
        low, high = map(float, claimed.split(" to "))
        return [(">=", low), ("<=", high)]
    sign, bound = claimed.split()
    return [(sign, bound if sign in ("==", "!=") else float(bound))]


@functools.cache
def printed(article: str) -> list[Number]:
    """Return what an article prints, to the precision of print, and how its cases ended."""
    numbers: list[Number] = []
    for row in rows(article):
        device = (row["role"], row["backend"], row["device"])
        settings = row["config"] | {name: row[name] for name in ("framework", "precision")}
        number = Number(row["experiment"], row["metric"], device, settings, None)
        found = []
        if row["metric"] == "status" or row["metric"].endswith("_s"):  # a case ends as its time
            found.append(number._replace(metric="status", value=row["status"]))
        if row["si"] is not None:
            value = Estimate(row["si"], "", row["low"], row["high"], how="published")
            found.append(number._replace(value=value))
        numbers += [each for each in found if each not in numbers]  # one is printed twice
    return numbers
