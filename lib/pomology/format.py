"""Formatting of numbers: rounded, with units and intervals."""

import math
from collections.abc import Callable
from typing import Any

from pomology.measure.estimate import Estimate

RATIOS = ("", "x", "%")  # units of ratios, for which ± 2 % would read as percentage points
EVEN = 15  # percent up to which an interval is printed as ±; wider ones are uneven
LARGE = {"T": 1e12, "G": 1e9, "M": 1e6}
# Unit -> its decimal prefixes with their factors, the largest first.
PREFIXES = {
    "FLOP": LARGE,
    "FLOP/s": LARGE,
    "B/s": LARGE,
    "Hz": LARGE,
    "B": {"G": 1e9, "M": 1e6, "k": 1e3},
}


def one_line(text: Any, most: int = 100) -> str:
    """Return an untrusted text in one line, without control characters, cut at `most`."""
    # Cut first: an untrusted text may be of any length.
    characters = str(text)[: most + 1]
    line = "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}"
        for character in characters
    )
    return line if len(line) <= most else f"{line[: most - 1]}…"


def sentence_case(text: str) -> str:
    """Return a text whose first letter is a capital, and the others as they are."""
    return text[:1].upper() + text[1:]


def significant(value: float, digits: int = 3) -> str:
    """Return a number as `1,580` or `0.148`; below 0.0001 as a power of ten, `7.1e-15`."""
    if value == 0:
        return "0"
    if abs(value) < 1e-4:
        return f"{value:.{min(digits, 2) - 1}e}"
    # Rounding can add a digit: 9.999 becomes 10.0.
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:,.{decimals}f}"


def rounded_up(value: float, digits: int = 2) -> str:
    """Return a number rounded up: 16.5 as `17`, 8.53 as `8.6`, 123 as `130`."""
    if value <= 0:
        return significant(value, digits)
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - digits)
    # 0.14 / 0.01 is a little more than 14, which must not become 15.
    return significant(math.ceil(value / unit - 1e-9) * unit, digits)


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
    whole = unit == "B" or isinstance(value, int)
    text = f"{round(value):,}" if whole else significant(value)  # not "-0" for -0.3
    return f"{text} {unit}".rstrip()


def comparison(ratio: float, other: str = "") -> str:
    """Return a ratio of speeds in words: `2.4× faster`, `8.3× slower than the M1 GPU`."""
    factor = significant(max(ratio, 1 / ratio), 2)
    text, joined = f"{factor}× {'faster' if ratio > 1 else 'slower'}", "than"
    if factor == "1.0":
        text, joined = "as fast", "as"
    return f"{text} {joined} the {other}" if other else text


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 run`, `2 processes`."""
    plural = "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"


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


IN_PROCESS = " in this process"  # what an interval of a single run is of


def with_about(estimate: Estimate, text: str) -> str:
    """Return the text of a value, with `about` before that of an estimate without an interval."""
    rough = estimate.how == "estimated" and estimate.covers == "none"
    return f"about {text}" if rough else text


def with_interval(
    estimate: Estimate, show: Callable[[float], str] = significant, in_process: str = ""
) -> str:
    """Return `12.3 ms ± 4.1 %`; for few values `31.7 ms (28.0 to 38.0 ms seen)`.

    Ratios, and intervals that are wide or uneven, have bounds, `1.58 (1.48 to 1.68)`; without any:
    `about 150 s`. in_process: words behind an interval within one process.
    """
    text = show(estimate.value)
    if estimate.low == estimate.high:  # no interval, or a count that is the same in all repeats
        return with_about(estimate, text)
    within = in_process if estimate.covers == "run" else ""
    percent = 50 * (estimate.high - estimate.low) / abs(estimate.value or 1e-99)
    if percent <= EVEN and estimate.covers != "seen" and estimate.unit not in RATIOS:
        half = significant(max(percent, 0.1), 2 if percent >= 0.95 else 1)
        return f"{text} ± {half} %{within}"
    if {show(end) for end in estimate.bounds} == {text}:
        return text
    seen = " seen" if estimate.covers == "seen" else within
    return f"{text} ({span(*estimate.bounds, show)}{seen})"
