"""Numbers as people read them: rounded, with their units."""

import math
from collections.abc import Callable
from typing import Any

from pomology.measure.estimate import Estimate

FEW = 6  # an interval within a process rests on as many values at least
RATIOS = ("", "x", "%")  # units of ratios: ± 2 % of a share would be read as points
LARGE = {"T": 1e12, "G": 1e9, "M": 1e6}
PREFIXES = dict.fromkeys(("FLOP", "FLOP/s", "B/s", "Hz"), LARGE)
PREFIXES["B"] = {"G": 1e9, "M": 1e6, "k": 1e3}
TIMED = ("s", "FLOP/s", "B/s", "/s", "1/s")  # units of what steps or calls measure


def one_line(text: Any, most: int = 100) -> str:
    """Return a text from a file in one line, without control characters, cut if it is too long."""
    head = str(text)[: most + 1]
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in head)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def significant(value: float, digits: int = 3) -> str:
    """Return `1,580`, `0.148`; as a power of ten below a ten-thousandth: `7.1e-15`."""
    if value == 0:
        return "0"
    if abs(value) < 1e-4:
        return f"{value:.{min(digits, 2) - 1}e}"
    # Rounded first: 9.999 becomes 10.0, which has its first digit elsewhere.
    rounded = float(f"{value:.{digits - 1}e}")
    places = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:,.{places}f}"


def seconds(value: float) -> str:
    """Return `4.31 s`, `12.0 ms`, `1,584 s`: seconds down to a tenth of one."""
    if value >= 0.1:
        return f"{significant(value, 4 if value >= 1000 else 3)} s"
    factor, unit = (1e3, "ms") if value >= 1e-4 else (1e6, "µs")
    return f"{significant(factor * value)} {unit}"


def quantity(value: float, unit: str) -> str:
    """Return a value with its unit: `12.0 ms`, `256 MB`, `1.25 TFLOP/s`; in powers of 1,000."""
    if unit == "s":
        return seconds(value)
    for prefix, factor in PREFIXES.get(unit, {}).items():
        if abs(value) >= factor:
            return f"{significant(value / factor)} {prefix}{unit}"
    text = f"{value:,.0f}" if unit == "B" or isinstance(value, int) else significant(value)
    return f"{text} {unit}".rstrip()


def clock_time(value: float) -> str:
    """Return `40 s`, `1:30 min`, `2:05:00 h`; of what is infinite `not known`."""
    if value == math.inf:
        return "not known"
    minutes, rest = divmod(int(value + 0.5), 60)
    if minutes >= 60:
        return f"{minutes // 60}:{minutes % 60:02}:{rest:02} h"
    return f"{minutes}:{rest:02} min" if minutes else f"{rest} s"


def bounded(estimate: Estimate) -> bool:
    """Whether it has an interval that may be shown: within a process from 6 values or more."""
    few_values = estimate.covers == "run" and (estimate.n or FEW) < FEW
    return estimate.low is not None and not few_values


def few(estimate: Estimate) -> bool:
    """Whether it is a time, a rate or a ratio from too few steps or calls for an interval."""
    timed = estimate.unit in (*RATIOS, *TIMED) and estimate.how in ("measured", "estimated")
    # One duration, or a count.
    single = estimate.n == 1 and estimate.how == "measured" and estimate.unit in ("s", "")
    return timed and not single and (estimate.n or FEW) < FEW and not bounded(estimate)


def plus_minus(estimate: Estimate) -> str:
    """Return ` ± 2.1 %`: half the interval over the value; "" for none, and above 50 %."""
    if not (bounded(estimate) and estimate.value) or estimate.covers == "seen":
        return ""
    percent = 100 * (estimate.high - estimate.low) / 2 / abs(estimate.value)
    if percent > 50:
        return ""
    return f" ± {significant(max(percent, 0.1), 2 if percent >= 0.95 else 1)} %"


def span(low: float, high: float, show: Callable[[float], str]) -> str:
    """Return `2.5 to 2.8 s`; `2.5 s` where both read alike."""
    first = show(low) if low else "0"
    last = show(high)
    unit = last.lstrip("-.,e0123456789")
    return last if first == last else f"{first.removesuffix(unit)} to {last}"


def with_interval(estimate: Estimate, show: Callable[[float], str] = significant) -> str:
    """Return `12.3 ms ± 4.1 %`; from few steps `31.7 ms (28.0 to 38.0 ms seen)`, `about 150 s`.

    Of a ratio, and where half the interval is over 50 %, its bounds: `1.58 (1.48 to 1.68)`.
    """
    text = show(estimate.value)
    if not bounded(estimate) or estimate.low == estimate.high:  # a count, the same in all repeats
        return f"about {text}" if few(estimate) else text
    half = plus_minus(estimate)
    if half and estimate.unit not in RATIOS:
        return text + half
    seen = " seen" if estimate.covers == "seen" else ""
    return f"{text} ({span(*estimate.bounds, show)}{seen})"
