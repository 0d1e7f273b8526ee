"""The record of a case: its schema, in the one place that knows it, and what is wrong with a line that is none.

A line of a journal is `Start`, written before a case, or `Record`, written after it. Its JSON is their fields, led by
`event`. A metric's JSON is `Metric`, and in a record it is an `Estimate`.
"""

from __future__ import annotations

import functools
import json
import re
import reprlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType

from pomology.errors import PomologyError
from pomology.measure.estimate import Estimate

PROFILES = ("smoke", "quick", "article")

SCHEMA = 1

Status = Literal[
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
]
STATUSES: tuple[Status, ...] = get_args(Status)

# Another attempt may end differently; every other status is a result.
RETRIED = ("interrupted", "error")

# A case that was under way when its process vanished is tried once more, in case it was the process that was at fault.
ATTEMPTS = 2

# A stranger's numbers must survive arithmetic: no integer that is larger than any float, and no infinity.
Count = Annotated[int, msgspec.Meta(gt=-(2**62), lt=2**62)]
Real = Annotated[float, msgspec.Meta(gt=-1e300, lt=1e300)]
Number = Count | Real


class Metric(msgspec.Struct, gc=False):
    """A metric as it stands in a journal. repeats: its interval is between processes, not within one."""

    value: Number
    unit: str
    low: Number | None
    high: Number | None
    n: Count | None
    how: Literal["measured", "estimated"]
    repeats: bool = False

    def estimate(self) -> Estimate:
        """Raises ValueError where only one bound is given."""
        covers = "repeats" if self.repeats else "none" if self.low is None else "run"
        return Estimate(self.value, self.unit, self.low, self.high, self.n, self.how, covers)


class Metrics(dict[str, Estimate]):
    """The metrics of a record, by name."""


class Start(msgspec.Struct, kw_only=True, tag_field="event", tag="start", gc=False):
    """What is known of a case before it begins. data_origin: where its data is from, in words."""

    schema: Literal[1]
    experiment: str
    article: str
    case: str
    config: dict[str, Any]
    framework: str
    framework_version: str
    backend: str
    device: str | None
    chip: str | None
    precision: str
    profile: str
    data: str
    data_origin: str | UnsetType = UNSET
    scaled: bool
    repeat: Count
    threads: Count | None
    power_source: str | None
    started: str

    def line(self) -> dict[str, Any]:
        """The form of a journal: keys and values as JSON has them."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return {"event": self.__struct_config__.tag} | {name: x for name, x in fields.items() if x is not UNSET}


class Record(Start, kw_only=True, tag="end", gc=False):
    """A case that ended. What it lacks is UNSET, which is false; every record has the fields without a default.

    metrics: by name, in the unit that each says. blocks: raw times by part. asides: seconds of occasional work, by
    name. note: what the case says of itself. absent: why a number is missing, by metric. rails: what the energy covers.
    trace, memory_trace: samples of the machine and of its memory, in time order. Others: as in the docs of the journal.
    """

    parameters: Count | None
    flops_per_step: Count | None
    bytes_per_step: Count | UnsetType | None = UNSET
    foreign_load: Number | None
    flags: list[str]
    status: Status
    reason: str | None
    seconds: Number | None
    metrics: Metrics
    blocks: dict[str, Any] | UnsetType = UNSET
    asides: dict[str, Any] | UnsetType = UNSET
    note: str | UnsetType = UNSET
    memory_trace: dict[str, Any] | UnsetType = UNSET
    absent: dict[str, Any] | UnsetType = UNSET
    rails: list | UnsetType = UNSET
    thermal_level: Count | UnsetType | None = UNSET
    trace: list | UnsetType = UNSET
    traceback: str | UnsetType = UNSET

    @classmethod
    def ended(cls, start: Start, status: Status, reason: str) -> Record:
        """The record of a case of which only the start is known."""
        known = {name: getattr(start, name) for name in Start.__struct_fields__}
        blank = dict.fromkeys(("parameters", "flops_per_step", "foreign_load", "seconds"))
        return cls(**known, **blank, flags=[], status=status, reason=reason, metrics=Metrics())

    def replace(self, **changes: Any) -> Record:
        """The same with other fields."""
        return msgspec.structs.replace(self, **changes)

    def without_samples(self) -> Record:
        """The same without what is long: raw times, traces, the traceback."""
        return self.replace(**dict.fromkeys(("blocks", "asides", "rails", "trace", "memory_trace", "traceback"), UNSET))

    def line(self) -> dict[str, Any]:
        metrics = {name: metric.metric() for name, metric in self.metrics.items()}
        return super().line() | {"metrics": metrics}


KEYS = ("event", *(field.encode_name for field in msgspec.structs.fields(Record) if field.required))


def _metrics(kind: type, given: Any) -> Metrics:
    """Called by msgspec for what stands under `metrics`."""
    if not isinstance(given, dict):
        raise ValueError(f"metrics is {_short(given)}; it must be object")
    metrics = Metrics()
    for name, metric in given.items():
        try:
            form = metric.metric() if isinstance(metric, Estimate) else metric
            metrics[name] = msgspec.convert(form, Metric).estimate()
        except ValueError as error:
            raise ValueError(f"metric {_short(name)}: {_explained(error, lambda metric=metric: metric)}") from None
    return metrics


@functools.cache
def _decoder(kind: type[Record]) -> msgspec.json.Decoder:
    return msgspec.json.Decoder(kind.__base__ | kind, dec_hook=_metrics)


class _Head(msgspec.Struct):
    schema: Any = None


def parse(line: bytes, kind: type = Record) -> Start | Record:
    """A line of a journal. kind: of an ending, and its base of a start, for who needs fewer fields. Raises ValueError,
    with one sentence, for a line that is none.

    Raises PomologyError for a line of another schema, of which nothing in its file can be understood.
    """
    try:
        return _decoder(kind).decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        _refuse_schema(line)
        if not isinstance(error, msgspec.ValidationError):
            raise ValueError("torn or not JSON") from None
        raise ValueError(_explained(error, lambda: json.loads(line))) from None


def checked(line: dict[str, Any]) -> Start | Record:
    """The same of what is no text yet. Raises ValueError."""
    try:
        return msgspec.convert(line, Start | Record, dec_hook=_metrics)
    except ValueError as error:
        raise ValueError(_explained(error, lambda: line)) from None


def problem(line: Any) -> str | None:
    """What is wrong with the record of a finished case, in one sentence; None if it is as it should be."""
    try:
        record = checked(line.line() if isinstance(line, Start) else line)
    except ValueError as error:
        return str(error)
    return None if isinstance(record, Record) else "event is 'start'; it must be end"


def now() -> str:
    """The time in UTC, to the second, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _refuse_schema(line: bytes) -> None:
    try:
        schema = msgspec.json.decode(line, type=_Head).schema
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return
    if type(schema) is int and schema != SCHEMA:
        age, more = ("newer", "; update pomology to read it") if schema > SCHEMA else ("older", "")
        raise PomologyError(f"schema {_short(schema)} is {age} than this kit's {SCHEMA}{more}")


def _explained(error: ValueError, given: Callable[[], Any]) -> str:
    """What msgspec complains of, as `KEY is VALUE; it must be WHAT`. given: what it was about, once it is needed."""
    complaint, _, path = str(error).partition(" - at `$")
    if complaint.startswith("metric") or not isinstance(error, msgspec.ValidationError):
        return complaint
    if missing := re.fullmatch(r"Object missing required field `(.*)`", complaint):
        return f"{missing[1]} is missing"
    path = path.rstrip("`").lstrip(".")
    if "[...]" in path:  # somewhere inside a free form
        return f"{path.partition('[')[0]}: {complaint[:1].lower()}{complaint[1:]}"
    wanted = re.fullmatch(r"Expected `([^`]*)`(.*?)(?:, got .*)?", complaint)
    must = {"status": f"one of {', '.join(STATUSES)}", "event": "start or end", "schema": str(SCHEMA)}.get(path)
    must = must or ("measured or estimated" if path == "how" else None)
    must = must or ("a finite number" if not wanted or wanted[2] else wanted[1].replace(" | ", " or "))
    try:
        value = given()
        if not path:
            return f"a line must be {must}, not {_short(value)}"
        for key in filter(None, re.split(r"[.\[\]]+", path)):
            value = value[int(key) if key.isdigit() else key]
    except (ValueError, RecursionError, LookupError, TypeError):  # not to be had whole
        return f"{path}: {complaint[:1].lower()}{complaint[1:]}"
    return f"{path} is {_short(value)}; it must be {must}"


def _short(value: Any) -> str:
    return reprlib.repr(value)
