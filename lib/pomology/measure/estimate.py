"""Numbers with a confidence interval and its meaning.

Every number of a result is an Estimate: measured, printed by an article, or counted analytically.
In arithmetic an unknown spread stays unknown: it is unbounded, never zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

How = Literal["measured", "estimated", "published", "counted"]
Covers = Literal["exact", "repeats", "run", "seen", "none"]
COVERS: tuple[Covers, ...] = ("exact", "repeats", "run", "seen", "none")  # the strongest first
REPEATS = 3  # processes that a verdict from repeats needs
NEGLIGIBLE = 0.01  # share of a sum whose spread may be unknown


class Estimate(msgspec.Struct, frozen=True, gc=False):
    """A value in `unit` with the bounds of its 95 % interval, None if its spread is unknown.

    n: number of steps, calls, samples or processes. covers: the variation that the interval covers,
    within one process (`run`) or between processes (`repeats`). `seen`: the bounds are the extremes
    of too few values for an interval. `none`: unknown spread. `exact`: no spread. By default
    `covers` follows from `how` and the bounds.
    """

    value: int | float
    unit: str = ""
    low: int | float | None = None
    high: int | float | None = None
    n: int | None = 1
    how: How = "measured"
    covers: Covers | None = None

    def __post_init__(self):
        if (self.low is None) != (self.high is None):
            raise ValueError(f"an interval has two bounds or none, got {self.low} and {self.high}")
        if self.covers is None:
            covers = "exact" if self.how == "counted" else "none" if self.low is None else "run"
            msgspec.structs.force_setattr(self, "covers", covers)

    def replace(self, **changes: Any) -> Estimate:
        """Return a copy with other values of some fields."""
        return msgspec.structs.replace(self, **changes)

    @property
    def bounds(self) -> tuple[float, float]:
        """Interval for arithmetic: a count's value twice, and infinite for an unknown spread."""
        if self.low is None:
            return (self.value, self.value) if self.covers == "exact" else (-math.inf, math.inf)
        return self.low, self.high

    def metric(self) -> dict:
        """Return the fields of a journal, which knows `measured` and `estimated` only."""
        form = msgspec.structs.asdict(self)
        if self.how == "counted":
            form["how"] = "measured"
        if self.covers not in ("repeats", "seen"):
            del form["covers"]  # it follows from the other fields
        return form

    def __add__(self, other: Estimate | float) -> Estimate:
        other = estimate(other)
        ends = [end + added for end, added in zip(self.bounds, other.bounds, strict=True)]
        return _combined(self, other, self.value + other.value, ends, self.unit or other.unit)

    def __mul__(self, other: Estimate | float) -> Estimate:
        other = estimate(other)
        # The signs decide which of the four products are the bounds.
        ends = [end * factor for end in self.bounds for factor in other.bounds]
        unit = f"{self.unit} {other.unit}".strip()
        return _combined(self, other, self.value * other.value, ends, unit)

    def __truediv__(self, other: Estimate | float) -> Estimate:
        """Return the quotient. Raises ZeroDivisionError if the other value is 0."""
        other = estimate(other)
        low, high = other.bounds
        ends = [-math.inf, math.inf]  # unbounded, if the divisor may be 0
        if not low <= 0 <= high:
            ends = [end / divisor for end in self.bounds for divisor in (low, high)]
        unit = f"{self.unit}/{other.unit}" if other.unit else self.unit
        if self.unit == other.unit:
            unit = ""
        return _combined(self, other, self.value / other.value, ends, unit)

    def __rtruediv__(self, other: float) -> Estimate:
        return estimate(other) / self

    __radd__, __rmul__ = __add__, __mul__


def estimate(number: Estimate | float, unit: str = "") -> Estimate:
    """Return an Estimate; a plain number counts as exact."""
    return number if isinstance(number, Estimate) else Estimate(number, unit, how="counted")


def total(terms: Iterable[Estimate]) -> Estimate:
    """Return the sum of independent estimates, with the first one's `n`.

    Distances to bounds add in squares. Terms of unknown spread over 1 % of the sum make it unknown.
    """
    terms = list(terms)
    first = terms[0]
    value = sum(term.value for term in terms)
    how = "estimated" if any(term.how == "estimated" for term in terms) else first.how
    of_unknown_spread = sum(term.value for term in terms if term.covers == "none")
    covering = [term for term in terms if term.covers != "none"]
    # The weakest of them: COVERS has the strongest first.
    covers = max((term.covers for term in covering), key=COVERS.index, default="none")
    if of_unknown_spread > NEGLIGIBLE * value:
        covers = "none"
    if covers in ("exact", "none"):
        return Estimate(value, first.unit, n=first.n, how=how, covers=covers)
    bounded = [term for term in covering if term.low is not None]
    low = value - math.sqrt(sum((term.value - term.low) ** 2 for term in bounded))
    high = value + math.sqrt(sum((term.high - term.value) ** 2 for term in bounded))
    return Estimate(value, first.unit, max(0.0, low), high, first.n, how, covers)


def _combined(
    first: Estimate, second: Estimate, value: float, ends: list[float], unit: str
) -> Estimate:
    """Return the result of arithmetic on two estimates; a count leaves `how` and `n` unchanged.

    ends: the results of the same arithmetic on bounds, of which the extremes are the new bounds.
    """
    covers = max(first.covers, second.covers, key=COVERS.index)
    if covers != "exact" and not all(map(math.isfinite, ends)):
        covers = "none"
    bounds = (None, None) if covers in ("exact", "none") else (min(ends), max(ends))
    terms = [term for term in (first, second) if term.how != "counted"]
    hows = {term.how for term in terms} or {"counted"}
    how = hows.pop() if len(hows) == 1 else "estimated"
    n = min((term.n for term in terms if term.n is not None), default=1)
    return Estimate(value, unit, *bounds, n, how, covers)
