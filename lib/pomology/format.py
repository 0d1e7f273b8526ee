"""Formatting of numbers: rounded, with units and intervals."""

import math
from collections.abc import Callable
from typing import Any

from pomology.measure.estimate import Estimate

RATIOS = ("", "x", "%")  # units of ratios, for which ± 2 % would read as percentage points
LARGE = {"T": 1e12, "G": 1e9, "M": 1e6}
PREFIXES = dict.fromkeys(("FLOP", "FLOP/s", "B/s", "Hz"), LARGE)
PREFIXES["B"] = {"G": 1e9, "M": 1e6, "k": 1e3}


def one_line(text: Any, most: int = 100) -> str:
    """Return an untrusted text in one line, without control characters, cut at `most`."""
    head = str(text)[: most + 1]
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in head)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def significant(value: float, digits: int = 3) -> str:
    """Return a number as `1,580` or `0.148`; below 0.0001 as a power of ten, `7.1e-15`."""
    if value == 0:
        return "0"
    if abs(value) < 1e-4:
        return f"{value:.{min(digits, 2) - 1}e}"
    # Rounding can add a digit: 9.999 becomes 10.0.
    rounded = float(f"{value:.{digits - 1}e}")
    places = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:,.{places}f}"


def seconds(value: float) -> str:
    """Return a time as `1,584 s`, `4.31 s`, or below 0.1 s as `12.0 ms` or µs."""
    if value >= 0.1:
        return f"{significant(value, 4 if value >= 1000 else 3)} s"
    factor, unit = (1e3, "ms") if value >= 1e-4 else (1e6, "µs")
    return f"{significant(factor * value)} {unit}"


def quantity(value: float, unit: str) -> str:
    """Return a value with its unit and a decimal prefix: `12.0 ms`, `256 MB`, `1.25 TFLOP/s`."""
    if unit == "s":
        return seconds(value)
    for prefix, factor in PREFIXES.get(unit, {}).items():
        if abs(value) >= factor:
            return f"{significant(value / factor)} {prefix}{unit}"
    text = f"{value:,.0f}" if unit == "B" or isinstance(value, int) else significant(value)
    return f"{text} {unit}".rstrip()


def clock_time(value: float) -> str:
    """Return a duration as `40 s`, `1:30 min` or `2:05:00 h`; `not known` for infinity."""
    if value == math.inf:
        return "not known"
    minutes, rest = divmod(int(value + 0.5), 60)
    if minutes >= 60:
        return f"{minutes // 60}:{minutes % 60:02}:{rest:02} h"
    return f"{minutes}:{rest:02} min" if minutes else f"{rest} s"


def span(low: float, high: float, show: Callable[[float], str]) -> str:
    """Return a range as `2.5 to 2.8 s`, or as `2.5 s` if both bounds round to it."""
    first = show(low) if low else "0"
    last = show(high)
    unit = last.lstrip("-.,e0123456789")
    return last if first == last else f"{first.removesuffix(unit)} to {last}"


def with_interval(estimate: Estimate, show: Callable[[float], str] = significant) -> str:
    """Return `12.3 ms ± 4.1 %`; for few values `31.7 ms (28.0 to 38.0 ms seen)`.

    Ratios and intervals over ± 50 % have bounds, `1.58 (1.48 to 1.68)`; without any: `about 150 s`.
    """
    text = show(estimate.value)
    if estimate.low == estimate.high:  # no interval, or a count that is the same in all repeats
        rough = estimate.how == "estimated" and estimate.covers == "none"
        return f"about {text}" if rough else text
    percent = 50 * (estimate.high - estimate.low) / abs(estimate.value or 1e-99)
    if percent <= 50 and estimate.covers != "seen" and estimate.unit not in RATIOS:
        return f"{text} ± {significant(max(percent, 0.1), 2 if percent >= 0.95 else 1)} %"
    seen = " seen" if estimate.covers == "seen" else ""
    return f"{text} ({span(*estimate.bounds, show)}{seen})"
