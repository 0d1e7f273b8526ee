"""What a line of a journal holds, and what is wrong with one that does not."""

from __future__ import annotations

import reprlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass


PROFILES = ("smoke", "quick", "article")

SCHEMA = 1

STATUSES = (
    "ok",
    "out-of-memory",
    "unsupported",
    "fallback",
    "mismatch",
    "not-learning",
    "too-big",
    "crashed",
    "timeout",
    "interrupted",
    "error",
)

# Another attempt may end differently; every other status is a result.
RETRIED = ("interrupted", "error")

# A case that was under way when its process vanished is tried once more, in case it was the process that was at fault.
ATTEMPTS = 2

HOW = ("measured", "estimated")

TEXT, MAYBE_TEXT, COUNT = (str,), (str, type(None)), (int, type(None))

KEYS: dict[str, tuple[type, ...]] = {
    "schema": (int,),
    "event": TEXT,
    "experiment": TEXT,
    "article": TEXT,
    "case": TEXT,
    "config": (dict,),
    "framework": TEXT,
    "framework_version": TEXT,
    "backend": TEXT,
    "device": MAYBE_TEXT,
    "chip": MAYBE_TEXT,
    "precision": TEXT,
    "profile": TEXT,
    "data": TEXT,
    "scaled": (bool,),
    "parameters": COUNT,
    "flops_per_step": COUNT,
    "repeat": (int,),
    "threads": COUNT,
    "foreign_load": (int, float, type(None)),
    "power_source": MAYBE_TEXT,
    "flags": (list,),
    "status": TEXT,
    "reason": MAYBE_TEXT,
    "started": TEXT,
    "seconds": (int, float, type(None)),
    "metrics": (dict,),
}

METRIC_KEYS: dict[str, tuple[type, ...]] = {
    "value": (int, float),
    "unit": TEXT,
    "low": (int, float, type(None)),
    "high": (int, float, type(None)),
    "n": COUNT,
    "how": TEXT,
}


def now() -> str:
    """The time in UTC, to the second, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def problem(record: Any) -> str | None:
    """What is wrong with the line of a finished case, in one sentence; None if it is as it should be."""
    if not isinstance(record, dict):
        return f"a line must be an object, not {type(record).__name__}"
    wrong = _wrong_key(record, KEYS)
    if wrong:
        return wrong
    if record["schema"] != SCHEMA:
        return f"schema is {record['schema']}; it must be {SCHEMA}"
    if record["event"] != "end":
        return f"event is {_short(record['event'])}; it must be start or end"
    if record["status"] not in STATUSES:
        return f"status is {_short(record['status'])}; it must be one of {', '.join(STATUSES)}"
    if not all(isinstance(flag, str) for flag in record["flags"]):
        return "flags must be a list of texts"
    for name, metric in record["metrics"].items():
        wrong = "not an object" if not isinstance(metric, dict) else _wrong_key(metric, METRIC_KEYS)
        if not wrong and metric["how"] not in HOW:
            wrong = f"how is {_short(metric['how'])}; it must be one of {', '.join(HOW)}"
        if not wrong and (metric["low"] is None) != (metric["high"] is None):
            wrong = "low and high must both be numbers, or both null"
        if wrong:
            return f"metric {_short(name)}: {wrong}"
    return None


def _wrong_key(record: dict, keys: dict[str, tuple[type, ...]]) -> str | None:
    for key, types in keys.items():
        if key not in record:
            return f"{key} is missing"
        value = record[key]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            names = " or ".join("null" if kind is type(None) else kind.__name__ for kind in types)
            return f"{key} is {_short(value)}; it must be {names}"
        # Compared, since an integer of JSON may be larger than any float.
        if isinstance(value, (int, float)) and not abs(value) < 1e300:
            return f"{key} is {_short(value)}; it must be a finite number"
    return None


def _short(value: Any) -> str:
    return reprlib.repr(value)
