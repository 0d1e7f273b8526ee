"""The record of a case: the one place that knows its schema, and what is wrong with a bad line.

A line of a journal has the fields of `Start` or `Record`, led by `event`, and each metric as
`Metric` has it.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self, TypedDict

import msgspec
from msgspec import UNSET, UnsetType

from pomology.errors import PomologyError
from pomology.measure.estimate import Estimate

PROFILES = ("smoke", "quick", "article")
SCHEMA = 1

UNTRIED = ("too-big", "too-slow")  # predicted not to fit, or not to end in time
# Another attempt may end differently; every other status is a result.
RETRIED = ("interrupted", "error")
Status = Literal[
    "ok",
    "out-of-memory",
    "unsupported",
    "fallback",
    "mismatch",
    "not-learning",
    "too-big",
    "too-slow",
    "crashed",
    "timeout",
    "interrupted",
    "error",
]

# A stranger's numbers must survive arithmetic: no integer that is larger than any float, and no
# infinity.
Count = Annotated[int, msgspec.Meta(gt=-(2**62), lt=2**62)]
Real = Annotated[float, msgspec.Meta(gt=-1e300, lt=1e300)]
Number = Count | Real
Raw = list[tuple[Annotated[int, msgspec.Meta(ge=0)], Annotated[float, msgspec.Meta(ge=0)]]]


# What older journals call an experiment: its name today, and settings that went without saying.
RENAMED: dict[str, tuple[str, dict[str, Any]]] = {
    "blas_mlx": ("blas", {}),
    "blas_torch": ("blas", {}),
    "ceilings": ("peaks", {}),
    "ceilings_mlx": ("peaks", {}),
    "gpt2_pretraining_mlx": ("gpt2_pretraining", {}),
    "gpt2_pretraining_torch": ("gpt2_pretraining", {}),
    "kernel_launch_mlx": ("kernel_launch", {}),
    "kernel_launch_torch": ("kernel_launch", {}),
    "memory_mlx": ("memory", {}),
    "memory_torch": ("memory", {}),
    "mlp": ("mlp_cnn_lstm", {"model": "mlp"}),
    "cnn": ("mlp_cnn_lstm", {"model": "cnn"}),
    "lstm": ("mlp_cnn_lstm", {"model": "lstm"}),
    "model_sizes": ("model_sizes", {"image_size": 224}),
    "model_sizes_mlx": ("model_sizes", {"image_size": 224}),
    "trainings_mlx": ("mlx_or_pytorch", {}),
    "trainings_torch": ("mlx_or_pytorch", {}),
}


class Metric(msgspec.Struct, gc=False):
    """A metric as a journal holds it.

    repeats: its interval is between processes, not within one.
    """

    value: Number
    unit: str
    low: Number | None
    high: Number | None
    n: Count | None
    how: Literal["measured", "estimated"]
    repeats: bool = False

    def estimate(self) -> Estimate:
        covers = "repeats" if self.repeats else "none" if self.low is None else "run"
        return Estimate(self.value, self.unit, self.low, self.high, self.n, self.how, covers)


class Metrics(dict[str, Estimate]):
    """By name."""


class Start(msgspec.Struct, kw_only=True, tag_field="event", tag="start", gc=False):
    """What is known of a case before it begins.

    data_origin: where its data is from, in words. software: what it ran with, as
    `folders.note_software` names it.
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
    data_origin: str | UnsetType = UNSET
    scaled: bool
    repeat: Count
    threads: Count | None
    power_source: str | None
    started: str
    software: str | UnsetType = UNSET

    def line(self) -> dict[str, Any]:
        """The form of a journal: keys and values as JSON has them."""
        fields = msgspec.structs.fields(self)
        values = {field.encode_name: getattr(self, field.name) for field in fields}
        known = {name: value for name, value in values.items() if value is not UNSET}
        return {"event": self.__struct_config__.tag} | known


class Record(Start, kw_only=True, tag="end", gc=False):
    """A case that ended. What it lacks is UNSET, which is false.

    blocks: raw times by part. asides: seconds of occasional work, by name. note: what the case says
    of itself. absent: why a number is missing, by metric. rails: what the energy covers. thermal:
    level and temperature before and after, and in older journals how long the device rested. trace,
    memory_trace: samples in time order. calibration: seconds of `machine.quiet.calibrate` before
    and after the case, `before_s` and `after_s`; `canary` in a journal.
    """

    parameters: Count | None = None
    flops_per_step: Count | None = None
    bytes_per_step: Count | UnsetType | None = UNSET
    foreign_load: Number | None = None
    flags: list[str]
    status: Status
    reason: str | None
    seconds: Number | None = None
    metrics: Metrics
    blocks: dict[str, dict[str, Any]] | UnsetType = UNSET
    asides: dict[str, Any] | UnsetType = UNSET
    note: str | UnsetType = UNSET
    memory_trace: dict[str, Any] | UnsetType = UNSET
    absent: dict[str, Any] | UnsetType = UNSET
    rails: list[str] | UnsetType = UNSET
    thermal_level: Count | UnsetType | None = UNSET
    trace: list | UnsetType = UNSET
    traceback: str | UnsetType = UNSET
    calibration: dict[str, Number] | UnsetType = msgspec.field(name="canary", default=UNSET)
    thermal: dict[str, Any] | UnsetType = UNSET

    @classmethod
    def ended(cls, start: Start, status: Status, reason: str) -> Self:
        """The record of a case of which only the start is known."""
        fields = {name: getattr(start, name) for name in Start.__struct_fields__}
        return cls(**fields, flags=[], status=status, reason=reason, metrics=Metrics())

    def replace(self, **changes: Any) -> Self:
        return msgspec.structs.replace(self, **changes)

    def steady(self, part: str = "training") -> Raw:
        """Return the raw times of a part: steps or calls, and seconds, of each block."""
        return (self.blocks or {}).get(part, {}).get("steady", [])

    def line(self) -> dict[str, Any]:
        metrics = {name: metric.metric() for name, metric in self.metrics.items()}
        return super().line() | {"metrics": metrics}


class Block(TypedDict, total=False):
    """What must have a form in a part of `Record.blocks`."""

    steady: Raw


def _metrics(_: type, value: Any) -> Metrics:
    metrics = msgspec.convert(value, dict[str, Metric])
    return Metrics({name: metric.estimate() for name, metric in metrics.items()})


_DECODER = msgspec.json.Decoder(Start | Record, dec_hook=_metrics)


def parse(line: bytes) -> Start | Record:
    """Read a line of a journal.

    Raises ValueError, with one sentence, for a bad line, and PomologyError for one of another
    schema, of which nothing in its file can be understood.
    """
    try:
        record = _DECODER.decode(line)
        if isinstance(record, Record) and record.blocks:
            msgspec.convert(record.blocks, dict[str, Block])
        return _migrated(record)
    except msgspec.ValidationError as error:
        if "`$.schema`" in str(error):
            raise PomologyError(f"its schema is not {SCHEMA}; update pomology to read it") from None
        raise
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise ValueError("torn or not JSON") from None


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


def checked(line: dict[str, Any]) -> Start | Record:
    """Convert a line that is no text yet. Raises ValueError."""
    return msgspec.convert(line, Start | Record, dec_hook=_metrics)


def now() -> str:
    """The time in UTC, to the second, as ISO 8601."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
