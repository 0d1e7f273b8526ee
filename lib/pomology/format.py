"""Numbers as people read them: rounded, with their units."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pomology.measure.estimate import Estimate

FEW = 6  # an interval within a process rests on as many values at least
WIDE = 50.0  # per cent: of wider intervals the bounds are shown
RATIOS = ("", "x", "%")  # units of what has none: ± 2 % of a share would be read as points
TIMED = ("s", "FLOP/s", "B/s", "/s", "1/s")  # of what steps or calls measure


def one_line(text: Any, most: int = 100) -> str:
    """A text from a file as it may be shown: of one line, without control characters, cut if it is too long."""
    if isinstance(text, str) and len(text) <= most and text.isprintable():
        return text
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text)[: most + 1])
    return text if len(text) <= most else f"{text[: most - 1]}…"


def significant(value: float, digits: int = 3) -> str:
    """Three significant digits, thousands separated; as a power of ten below a ten-thousandth: `7.1e-15`."""
    if value == 0:
        return "0"
    if abs(value) < 1e-4:
        return f"{value:.{min(digits, 2) - 1}e}"
    # Rounded first: 9.999 becomes 10.0, which has its first digit elsewhere.
    rounded = float(f"{value:.{digits - 1}e}")
    places = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:,.{places}f}"


def seconds(value: float, digits: int = 4) -> str:
    """`4.31 s`, `12.0 ms`, `1,584 s`: seconds down to a tenth of one, in at most so many digits."""
    factor, unit = (1, "s") if value >= 0.1 else (1e-3, "ms") if value >= 1e-4 else (1e-6, "µs")
    return f"{significant(value / factor, min(digits, 4 if value >= 1000 else 3))} {unit}"


def milliseconds(value: float, digits: int = 3) -> str:
    """`0.148 ms`: as table 6 of article 001 prints them."""
    return f"{significant(1e3 * value, digits)} ms"


def bounded(estimate: Estimate) -> bool:
    """Whether it has an interval that may be shown: one within a process rests on 6 values or more."""
    return estimate.low is not None and not (estimate.covers == "run" and (estimate.n or FEW) < FEW)


def plus_minus(estimate: Estimate) -> str:
    """` ± 2.1 %`: half the width of the interval over the value; nothing where there is none, or it is over 50 %."""
    share = 100 * estimate.half_width / abs(estimate.value) if bounded(estimate) and estimate.value else math.inf
    return "" if share > WIDE else f" ± {significant(max(share, 0.1), 2 if share >= 0.95 else 1)} %"


def few(estimate: Estimate) -> bool:
    """Whether it is a time, a rate or a ratio from too few steps or calls for an interval."""
    single = estimate.n == 1 and estimate.how == "measured" and estimate.unit in ("s", "")  # one duration, or a count
    counted = single or estimate.how in ("counted", "published") or (estimate.n or FEW) >= FEW
    return not (counted or bounded(estimate)) and estimate.unit in (*RATIOS, *TIMED)


def digits(estimate: Estimate) -> int:
    """In how many digits a value is written: as many as its interval allows, two where it rests on few steps.

    The rule is that of the Particle Data Group ("Review of particle physics", introduction, 5.3): half the interval in
    two digits up to 35, in one above.
    """
    most, half = 4 if estimate.unit == "s" and estimate.value >= 1000 else 3, estimate.half_width
    if not (bounded(estimate) and half and estimate.value):
        return 2 if few(estimate) else most
    (_, size), (leading, place) = (f"{abs(x):e}".split("e") for x in (estimate.value, half))
    allowed = 1 + int(size) - int(place) + (float(leading) < 3.55)
    return min(most, max(allowed, 1 if plus_minus(estimate) else 2))


def rounded(estimate: Estimate, show: Callable[..., str] = significant) -> str:
    """A value alone, in as many digits as it has."""
    return show(estimate.value, digits=digits(estimate))


def span(low: float, high: float, show: Callable[..., str]) -> str:
    """`2.5 to 2.8 s`; `2.5 s` where both read alike."""
    first, last = show(low) if low else "0", show(high)
    return last if first == last else f"{first.removesuffix(last.lstrip('-.,e0123456789'))} to {last}"


def with_interval(estimate: Estimate, show: Callable[..., str] = significant) -> str:
    """A value with its interval: `12.3 ms ± 4.1 %`; of a ratio, which has bounds, `1.58× (1.48 to 1.68)`; where half of
    it is over 50 %, `about 150 s: 90 to 260 s`. Without one, from few steps or calls: `about 150 s`.

    show: writes a value in at most so many digits.
    """
    if not bounded(estimate) or estimate.low == estimate.high:  # the same in all repeats: a count
        return f"about {rounded(estimate, show)}" if few(estimate) else show(estimate.value)
    text, between = rounded(estimate, show), span(*estimate.bounds, partial(show, digits=digits(estimate)))
    if estimate.unit in RATIOS:
        return f"{text} ({between})"
    return f"{text}{half}" if (half := plus_minus(estimate)) else f"about {text}: {between}"


def resolved(part: Estimate) -> str:
    """A part or a difference that is above 0 beyond its interval, and rests on 10 steps or more, as `with_interval`
    writes it; else `not told apart (2 steps)`."""
    if part.bounds[0] <= 0 or (part.n or 0) < 10:
        return f"not told apart ({part.n or 0:,} step{'s' * (part.n != 1)})"
    return with_interval(part, partial(quantity, unit=part.unit))


def clock_time(value: float) -> str:
    """`40 s`, `1:30 min`, `2:05:00 h`."""
    minutes, rest = divmod(int(value + 0.5), 60)
    if minutes >= 60:
        return f"{minutes // 60}:{minutes % 60:02}:{rest:02} h"
    return f"{minutes}:{rest:02} min" if minutes else f"{rest} s"


def time_of_day(seconds: float) -> str:
    """`14:32`: what the clock says in so many seconds; with the day where that is another one."""
    now = datetime.now()
    then = now + timedelta(seconds=seconds)
    return f"{then:%H:%M}" if then.date() == now.date() else f"{then:%a %H:%M}"


def gigabytes(value: float, digits: int = 3) -> str:
    return f"{significant(value / 1e9, digits)} GB"


def quantity(value: float, unit: str, digits: int = 4) -> str:
    """A value with its unit, as people read it: `12.0 ms`, `256 MB`, `3.10 W`; bytes in powers of 1,000."""
    if unit == "s":
        return seconds(value, digits)
    digits = min(digits, 3)
    if unit == "B":
        factors = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
        shown = (f"{significant(value / per, digits)} {name}" for per, name in factors if abs(value) >= per)
        return next(shown, f"{value:,.0f} B")
    text = f"{value:,}" if isinstance(value, int) else significant(value, digits)
    return f"{text} {unit}".rstrip()


def quantity_per_s(value: float, unit: str, digits: int = 3) -> str:
    """`1.25 TFLOP/s`, `84.0 GB/s`: a rate, in powers of 1,000."""
    factor, name = next((item for item in ((1e12, "T"), (1e9, "G"), (1e6, "M")) if value >= item[0]), (1, ""))
    return f"{significant(value / factor, digits)} {name}{unit}"


def signed(value: float, unit: str, digits: int = 3) -> str:
    """`+1.20 MB`, `−3.00 kB`, `0 B`: by how much something grew."""
    shown = quantity(abs(value), unit, digits)
    return shown if shown.startswith("0 ") or value == 0 else f"{'+' if value > 0 else '−'}{shown}"


def slope_text(estimate: Estimate) -> str:
    """`+1.20 MB (+0.90 MB to +1.50 MB)`: a slope with its 95 % interval."""
    unit = "B" if estimate.unit == "B" else ""
    value = signed(estimate.value, unit)
    return value if estimate.low is None else f"{value} ({signed(estimate.low, unit)} to {signed(estimate.high, unit)})"
