"""The record of a case: the one place that knows its schema.

A line of a journal has the fields of `Start` or `Record`, led by `event`, and each metric in the
form of `Estimate.metric`. What a case lacks is left out of its line.
"""

import json
from datetime import UTC, datetime
from typing import Any, Literal, Self

import msgspec

from pomology.measure.estimate import Estimate
from pomology.paths import RESOURCES, read_csv

PROFILES = ("smoke", "quick", "article")

UNTRIED = ("too-big", "too-slow")  # predicted not to fit, or not to end in time
# Another attempt may end differently; every other status is a result.
RETRIED = ("interrupted", "error")
STATUSES = (
    *("ok", "out-of-memory", "unsupported", "fallback", "mismatch", "not-learning", "crashed"),
    *("timeout", *UNTRIED, *RETRIED),
)
Status = Literal[*STATUSES]

# What older journals call an experiment: its name today, and settings that went without saying.
RENAMED: dict[str, tuple[str, dict[str, Any]]] = {
    line["was"]: (line["experiment"], json.loads(line["settings"]))
    for line in read_csv(RESOURCES / "renamed.csv")
}


class Start(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="event", tag="start"):
    """What is known of a case before it begins.

    data_origin: where its data is from, in words. software: what it ran with, as
    `run.note_software` names it.
    """

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
    data_origin: str = ""
    scaled: bool
    repeat: int
    threads: int | None
    power_source: str | None
    started: str
    software: str = ""

    def line(self) -> dict[str, Any]:
        """The form of a journal: keys and values as JSON has them."""
        return msgspec.to_builtins(self)


class Record(Start, kw_only=True, tag="end"):
    """A case that ended.

    blocks: raw times by part. asides: seconds of occasional work, by name. note: what the case says
    of itself. absent: why a number is missing, by metric. rails: what the energy covers. thermal:
    level and temperature before and after, and in older journals how long the device rested. trace,
    memory_trace: samples in time order. calibration: seconds of `machine.quiet.calibrate` before
    and after the case, `before_s` and `after_s`; `canary` in a journal.
    """

    parameters: int | None = None
    flops_per_step: int | None = None
    bytes_per_step: int | None = None
    foreign_load: float | None = None
    flags: list[str]
    status: Status
    reason: str | None
    seconds: float | None = None
    metrics: dict[str, Estimate]
    blocks: dict[str, dict[str, Any]] = {}
    asides: dict[str, Any] = {}
    note: str = ""
    memory_trace: dict[str, Any] = {}
    absent: dict[str, Any] = {}
    rails: list[str] = []
    thermal_level: int | None = None
    trace: list = []
    traceback: str = ""
    calibration: dict[str, float] = msgspec.field(name="canary", default_factory=dict)
    thermal: dict[str, Any] = {}

    @classmethod
    def ended(cls, start: Start, status: Status, reason: str) -> Self:
        """The record of a case of which only the start is known."""
        fields = {name: getattr(start, name) for name in Start.__struct_fields__}
        return cls(**fields, flags=[], status=status, reason=reason, metrics={})

    def replace(self, **changes: Any) -> Self:
        return msgspec.structs.replace(self, **changes)

    def steady(self, part: str = "training") -> list[tuple[int, float]]:
        """Return the raw times of a part: steps or calls, and seconds, of each block."""
        return self.blocks.get(part, {}).get("steady", [])

    def line(self) -> dict[str, Any]:
        metrics = {name: metric.metric() for name, metric in self.metrics.items()}
        return super().line() | {"metrics": metrics}


_DECODER = msgspec.json.Decoder(Start | Record)


def parse(line: bytes) -> Start | Record:
    """Read a line of a journal. Raises ValueError, with one sentence, for a bad one."""
    return _migrated(_DECODER.decode(line))


def checked(line: dict[str, Any]) -> Start | Record:
    """Convert a line that is no text yet. Raises ValueError."""
    return msgspec.convert(line, Start | Record)


def _migrated(record: Start | Record) -> Start | Record:
    """Return an older journal's record with today's status and experiment."""
    too_big = isinstance(record, Record) and record.status == "too-big"
    if too_big and " would take " in f" {record.reason}":
        record = record.replace(status="too-slow")
    name, settings = RENAMED.get(record.experiment, (record.experiment, {}))
    if name == record.experiment and settings.keys() <= record.config.keys():
        return record
    config = settings | record.config
    case = record.case
    if settings:
        texts = [f"{key}={value}" for key, value in config.items()]
        case = " ".join([record.case.split(" ")[0], *texts])
    return msgspec.structs.replace(record, experiment=name, config=config, case=case)


def now() -> str:
    """The time in UTC, to the second, as ISO 8601."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
