"""Numbers as people read them: rounded, with their units."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pomology.measure.estimate import Estimate


def one_line(text: Any, most: int = 100) -> str:
    """A text from a file as it may be shown: of one line, without control characters, cut if it is too long."""
    if isinstance(text, str) and len(text) <= most and text.isprintable():
        return text
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text)[: most + 1])
    return text if len(text) <= most else f"{text[: most - 1]}…"


def significant(value: float, digits: int = 3) -> str:
    """Three significant digits, thousands separated, never as a power of ten."""
    if value == 0:
        return "0"
    # Rounded first: 9.999 becomes 10.0, which has its first digit elsewhere.
    rounded = float(f"{value:.{digits - 1}e}")
    places = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:,.{places}f}"


def seconds(value: float) -> str:
    """`4.31 s`, `12.0 ms`, `1,584 s`: seconds down to a tenth of one."""
    factor, unit = (1, "s") if value >= 0.1 else (1e-3, "ms") if value >= 1e-4 else (1e-6, "µs")
    return f"{significant(value / factor, 4 if value >= 1000 else 3)} {unit}"


def milliseconds(value: float) -> str:
    """`0.148 ms`: as table 6 of article 001 prints them."""
    return f"{significant(1e3 * value)} ms"


def plus_minus(estimate: Estimate) -> str:
    """` ± 2.1 %`: half the width of the interval over the value; nothing where there is no interval."""
    if estimate.low is None or not estimate.value:
        return ""
    share = 100 * (estimate.high - estimate.low) / 2 / estimate.value
    if share > 100:
        return " ± over 100 %"
    return f" ± {significant(max(share, 0.1), 2 if share >= 1 else 1)} %"


def resolved(part: Estimate) -> str:
    """`12.0 s ± 8.3 %`, `2.00 s to 9.00 s`: a part or a difference that is above 0 beyond its interval, and rests on 10
    steps or more; else `not resolved (2 steps)`."""
    if part.bounds[0] <= 0 or (part.n or 0) < 10:
        return f"not resolved ({part.n or 0:,} step{'s' * (part.n != 1)})"
    if (part.half_width or 0) > part.value / 2:
        return " to ".join(quantity(bound, part.unit) for bound in part.bounds)
    return f"{quantity(part.value, part.unit)}{plus_minus(part)}"


def clock_time(value: float) -> str:
    """`40 s`, `1:30 min`, `2:05:00 h`."""
    minutes, rest = divmod(int(value + 0.5), 60)
    if minutes >= 60:
        return f"{minutes // 60}:{minutes % 60:02}:{rest:02} h"
    return f"{minutes}:{rest:02} min" if minutes else f"{rest} s"


def gigabytes(value: float) -> str:
    return f"{significant(value / 1e9)} GB"


def gigaflops(value: float) -> str:
    return f"{significant(value / 1e9)} GFLOP/s"


def quantity(value: float, unit: str) -> str:
    """A value with its unit, as people read it: `12.0 ms`, `256 MB`, `3.10 W`; bytes in powers of 1,000."""
    if unit == "s":
        return seconds(value)
    if unit == "B":
        factors = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
        shown = (f"{significant(value / factor)} {name}" for factor, name in factors if abs(value) >= factor)
        return next(shown, f"{value:,.0f} B")
    if isinstance(value, int):
        return f"{value:,} {unit}".rstrip()
    small = value != 0 and abs(value) < 1e-3  # as errors are
    return f"{value:.2g} {unit}".rstrip() if small else f"{significant(value)} {unit}".rstrip()


def quantity_per_s(value: float, unit: str) -> str:
    """`1.25 TFLOP/s`, `84.0 GB/s`: a rate, in powers of 1,000."""
    factor, name = next((item for item in ((1e12, "T"), (1e9, "G"), (1e6, "M")) if value >= item[0]), (1, ""))
    return f"{significant(value / factor)} {name}{unit}"


def signed(value: float, unit: str) -> str:
    """`+1.20 MB`, `−3.00 kB`, `0 B`: by how much something grew."""
    shown = quantity(abs(value), unit)
    return shown if shown.startswith("0 ") or value == 0 else f"{'+' if value > 0 else '−'}{shown}"


def slope_text(estimate: Estimate) -> str:
    """`+1.20 MB (+0.90 MB to +1.50 MB)`: a slope with its 95 % interval."""
    unit = "B" if estimate.unit == "B" else ""
    value = signed(estimate.value, unit)
    return value if estimate.low is None else f"{value} ({signed(estimate.low, unit)} to {signed(estimate.high, unit)})"
