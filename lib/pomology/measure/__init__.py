"""Time steps and calls, and say how sure the number is."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """`measure` times calls. Imported when asked for, so that `pomology.measure.estimate` alone takes no numpy."""
    if name != "measure":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pomology.measure.calls import measure

    return measure
