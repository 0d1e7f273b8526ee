"""Test the claims of articles on their own numbers or on measured ones.

A claim is supported if all of its conditions hold (articles/data/conditions.csv). A condition is an
expression and its claimed value:

    name       value                        claimed       for_each
    CPU / GPU  epoch_s(cpu) / epoch_s(gpu)  8.36 to 9.24  {"batch_size": [64, 1024]}

* `value` is a Python expression. Its terms are metrics in SI units, called with a device (`cpu`,
  `gpu`, `rival`, a backend, or a name that the article prints; none for a number that is equal on
  all devices) and with parameters. `experiment=` names another experiment than the claim's first.
  `min`, `max` and `average` (the geometric mean) are available.
* `for_each` makes a condition for each combination of its values. A key that occurs in `value` is a
  variable there; any other key is a parameter of all terms. "each" means all devices with numbers
  in that role, or all GPUs for the role `device`.

A condition holds if the whole interval of the value is as claimed. A printed number is exact to
half a unit of its last digit. Measured numbers need repeats: the value is computed in each repeat,
and its interval is Student's t interval of its logarithm (or of the value itself if it can be zero
or negative), with the variance between sets of processes added.
"""

import functools
import itertools
import math
import operator
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from pomology.articles import devices
from pomology.articles.published import rows
from pomology.measure import intervals
from pomology.measure.estimate import REPEATS, Estimate

SUPPORTED = "supported"
CONTRADICTED = "contradicted"
INCONCLUSIVE = "inconclusive"
NOT_TESTABLE = "not testable here"
RESOLUTION = 1e-9  # repeats that differ less count as equal: logarithms are rounded
# Welch's t called two sets of five processes with equal work different in 9.3 % of draws, because
# the machine had changed. This share of the variance between processes, added, makes that 5 %.
BETWEEN_SETS = 0.19
OPERATORS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    # for statuses
    "==": operator.eq,
    "!=": operator.ne,
}


class Number(NamedTuple):
    """A number or status that a term of a condition can select.

    device: role, backend and printed name. settings: parameters, with framework and precision.
    value: printed; an array over repeats, NaN if missing; or a status. doubts: against a verdict.
    """

    experiment: str
    metric: str
    device: tuple[str, ...]
    settings: dict[str, Any]
    value: Estimate | np.ndarray | str
    doubts: tuple[str, ...] = ()


@dataclass
class Comparison:
    """A condition with its value.

    settings: those of `for_each` with several values. numbers: the value of the expression, with an
    element per repeat if it was measured. doubts: reasons against a verdict. value: NaN if it is
    unknown. interval: of a measured value, at 95 %. holds: None if inconclusive.
    """

    condition: SimpleNamespace
    settings: dict[str, Any]
    numbers: Any
    doubts: tuple[str, ...]
    value: Any = math.nan
    interval: tuple[float, float] | None = None
    holds: bool | None = None


@dataclass(frozen=True)
class Decision:
    """The verdict on a claim. A claim without comparisons is not testable.

    other_chip: whether the claim is of a chip that was not measured. Its comparisons are then
    findings about the measured one, and no verdict.
    """

    comparisons: list[Comparison]
    other_chip: bool = False

    @property
    def timed(self) -> bool:
        """Whether it rests on measured values, and not on counts or statuses alone."""
        return any(isinstance(each.numbers, np.ndarray) for each in self.comparisons)

    @property
    def status(self) -> str:
        if self.other_chip:
            return NOT_TESTABLE
        holds = [comparison.holds for comparison in self.comparisons]
        values = [comparison.value for comparison in self.comparisons]
        if False in holds:
            return CONTRADICTED
        if not values or any(value != value for value in values):  # NaN is not itself
            return NOT_TESTABLE
        return INCONCLUSIVE if None in holds else SUPPORTED


def judged(
    claims: Iterable[SimpleNamespace], numbers: Iterable[Number], chips: list[str] | None = None
) -> list[Decision]:
    """Return a decision for each claim. At most 5 % of verdicts from repeats are wrong.

    chips: the measured chips; None for the numbers of an article itself.
    """
    by_experiment = sorted_by_experiment(numbers)
    decisions = [compared(claim, by_experiment, chips) for claim in claims]
    judge_together(decisions)
    return decisions


def sorted_by_experiment(numbers: Iterable[Number]) -> dict[str, list[Number]]:
    """Return numbers by their experiment, empty for one without numbers."""
    by_experiment = defaultdict(list)
    for number in numbers:
        by_experiment[number.experiment].append(number)
    return by_experiment


def compared(
    claim: SimpleNamespace, by_experiment: dict[str, list[Number]], chips: list[str] | None
) -> Decision:
    """Return the comparisons of a claim, without verdicts: see `judged` and `judge_together`."""
    comparisons = []
    for condition in claim.conditions:
        comparisons += _compared(condition, claim.experiments[0], by_experiment)
    return Decision(comparisons, chips is not None and not is_of_any(chips, claim.about))


def is_of_any(chips: Iterable[str], model_or_maker: str) -> bool:
    """Return whether one of the chips is of a model or maker; see `_is_of`."""
    return any(_is_of(chip, model_or_maker) for chip in chips)


def devices_of(claim: SimpleNamespace) -> set[str]:
    """Return the devices whose numbers a claim compares, by the names of its conditions.

    Roles and backends, such as `gpu` and `mlx-gpu`, and names that the article prints, `M1 GPU`.
    """
    used = set()

    def term(device: str | None = None, **_: Any) -> float:
        used.add(device or "")
        return 1.0

    for condition in claim.conditions:
        choices = {
            key: [key] if values == "each" else values for key, values in condition.for_each.items()
        }
        called = dict.fromkeys(re.findall(r"\w+(?=\()", condition.value), term)
        for values in itertools.product(*choices.values()):
            eval(condition.value, called | NAMES | dict(zip(choices, values, strict=True)))
    return used - {""}


def _is_of(chip: str, model_or_maker: str) -> bool:
    """Return whether a chip, `Apple M1 Pro`, is of a model, `M1 Pro`, or of a maker, `Apple`.

    A claim about no chip, "", is of every one.
    """
    if not model_or_maker or chip.startswith(f"{model_or_maker} "):
        return True
    return devices.same_model(chip, model_or_maker)


def _compared(
    condition: SimpleNamespace, experiment: str, by_experiment: dict[str, list[Number]]
) -> list[Comparison]:
    """Return the comparisons of a condition, one for each combination of its `for_each`."""
    choices = dict(condition.for_each)
    for role, values in choices.items():
        if values == "each":
            roles = {"gpu", "rival"} if role == "device" else {role}
            numbers = by_experiment[experiment]
            names = [number.device[-1] for number in numbers if roles & {*number.device}]
            # Without any number the role itself selects none, so the claim is not testable.
            choices[role] = list(dict.fromkeys(names)) or [role]
    comparisons = []
    for values in itertools.product(*choices.values()):
        chosen = dict(zip(choices, values, strict=True))
        settings = {key: value for key, value in chosen.items() if len(choices[key]) > 1}
        value, doubts = _evaluated(condition.value, chosen, experiment, by_experiment)
        comparisons.append(Comparison(condition, settings, value, doubts))
    return comparisons


def _evaluated(
    expression: str,
    chosen: dict[str, Any],
    experiment: str,
    by_experiment: dict[str, list[Number]],
) -> tuple[Any, tuple[str, ...]]:
    """Return an expression's value, NaN unless each term selects one number, and its doubts."""
    # A chosen value is a variable where the expression names it, else a parameter of all terms.
    names = set(re.findall(r"\w+", expression))
    common = {key: value for key, value in chosen.items() if key not in names}
    doubts: list[str] = []

    def term(metric: str, device: str | None = None, **settings: Any) -> Any:
        settings = common | settings
        candidates = by_experiment[settings.pop("experiment", experiment)]
        numbers = [
            number
            for number in candidates
            if number.metric == metric
            and device in (None, *number.device)
            and settings.items() <= number.settings.items()
        ]
        if device is None:  # a count, equal on all devices and in all repeats that have it
            counts = [count for number in numbers for count in np.atleast_1d(number.value)]
            counts = {count for count in counts if count == count}  # without NaN
            return counts.pop() if len(counts) == 1 else math.nan
        if len(numbers) != 1:
            return math.nan
        doubts.extend(numbers[0].doubts)
        return numbers[0].value

    called = re.findall(r"\w+(?=\()", expression)
    scope = {name: functools.partial(term, name) for name in called} | NAMES | chosen
    # A missing number is NaN, with which numpy would warn of each operation.
    with np.errstate(all="ignore"):
        value = eval(expression, scope)
    return value, tuple(doubts)


def _geometric_mean(parts: Iterable[Any]) -> Any:
    """Return the geometric mean of the parts, in each repeat if they are arrays of repeats."""
    logarithms = [np.log(part) for part in parts]  # NaN alone where a number is missing
    return np.exp(sum(logarithms) / len(logarithms))


# Names in the expressions of conditions.csv: devices, and functions of a list of terms.
NAMES = {
    **{name: name for name in ("cpu", "gpu", "rival", "cuda", "mps")},
    "mlx": "mlx-gpu",
    "min": functools.partial(functools.reduce, np.minimum),
    "max": functools.partial(functools.reduce, np.maximum),
    "average": _geometric_mean,
    "__builtins__": {},  # no other name means anything
}


def judge_together(decisions: list[Decision]) -> None:
    """Judge claims so that at most 5 % of the verdicts from repeats are wrong on average.

    If R of m tested claims have a verdict, each has the confidence 1 - 0.05 R / m (Benjamini and
    Hochberg 1995; intervals after selection: Benjamini and Yekutieli 2005).
    """
    confidence = intervals.CONFIDENCE
    while True:
        for decision in decisions:
            for comparison in decision.comparisons:
                _judge(comparison, len(decision.comparisons), confidence)
        tested = [
            decision
            for decision in decisions
            if not decision.other_chip
            and any(comparison.interval for comparison in decision.comparisons)
        ]
        verdicts = sum(decision.status in (SUPPORTED, CONTRADICTED) for decision in tested)
        needed = 1 - (1 - intervals.CONFIDENCE) * max(verdicts, 1) / max(len(tested), 1)
        # A higher confidence may leave fewer verdicts, which then need a higher one. This ends,
        # since there are finitely many.
        if needed <= confidence:
            return
        confidence = needed


def _judge(comparison: Comparison, count: int, confidence: float) -> None:
    """Set `value`, `interval` and `holds` of a comparison of a claim with `count` comparisons.

    Support needs each comparison at the given confidence (Berger 1982, intersection-union test).
    A contradiction needs one comparison at a confidence corrected for all of them (Bonferroni).
    """
    numbers = comparison.numbers
    bounds = _bounds(comparison.condition.claimed)
    # inner: ends of the interval that must lie within the bounds, for support. outer: ends of the
    # one that must lie outside of a bound, for a contradiction.
    if isinstance(numbers, np.ndarray):  # measured: a value for each repeat
        values = numbers[np.isfinite(numbers)]
        # Ratios and times scatter evenly on a logarithmic scale, where both sides are positive.
        logarithmic = min([*values, *(bound for _, bound in bounds)]) > 0
        if not comparison.doubts and values.size < REPEATS:
            comparison.doubts = (f"fewer than {REPEATS} repeats in common",)
        if values.size:
            comparison.value = np.exp(np.log(values).mean()) if logarithmic else values.mean()
        if comparison.doubts:
            return
        comparison.interval = _interval(values, logarithmic, intervals.CONFIDENCE)
        inner = _interval(values, logarithmic, confidence)
        outer = _interval(values, logarithmic, 1 - (1 - confidence) / count)
    elif isinstance(numbers, Estimate):  # printed: with the bounds of its rounding
        comparison.value = numbers.value
        inner = outer = numbers.bounds
    else:  # a status or a count
        comparison.value = numbers
        inner = outer = (numbers, numbers)
    comparison.holds = None
    if comparison.value != comparison.value:  # NaN
        return
    if all(OPERATORS[sign](end, bound) for sign, bound in bounds for end in inner):
        comparison.holds = True
    elif any(not any(OPERATORS[sign](end, bound) for end in outer) for sign, bound in bounds):
        comparison.holds = False


def _interval(values: np.ndarray, logarithmic: bool, confidence: float) -> tuple[float, float]:
    """Return the confidence interval of the mean of repeats, or of their geometric mean."""
    values = np.log(values) if logarithmic else values
    variance = max(values.var(ddof=1), RESOLUTION**2)
    # BETWEEN_SETS is of the difference between two sets; these repeats are one set.
    error = math.sqrt(variance * (1 / values.size + BETWEEN_SETS / 2))
    half = error * intervals.t_quantile(confidence, values.size - 1)
    ends = values.mean() - half, values.mean() + half
    low, high = np.exp(ends) if logarithmic else ends
    return float(low), float(high)


def _bounds(claimed: str) -> list[tuple[str, Any]]:
    """Return the operators and bounds of `> 1`, `1.3 to 1.4` or `== ok`."""
    if " to " in claimed:
        low, high = map(float, claimed.split(" to "))
        return [(">=", low), ("<=", high)]
    sign, bound = claimed.split()
    return [(sign, bound if sign in ("==", "!=") else float(bound))]


@functools.cache
def printed(article: str) -> list[Number]:
    """Return the printed numbers of an article with their rounding, and the statuses of cases."""
    numbers: list[Number] = []
    for row in rows(article):
        device = (row["role"], row["backend"], row["device"])
        settings = row["config"] | {name: row[name] for name in ("framework", "precision")}
        values = {}
        if row["metric"] == "status" or row["metric"].endswith("_s"):  # its case's status
            values["status"] = row["status"]
        if row["si"] is not None:
            bounds = row["low"], row["high"]
            values[row["metric"]] = Estimate(row["si"], "", *bounds, how="published")
        for metric, value in values.items():
            number = Number(row["experiment"], metric, device, settings, value)
            if number not in numbers:  # an article prints some rows twice
                numbers.append(number)
    return numbers
