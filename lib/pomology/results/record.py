"""The record of a case: its schema, in the one place that knows it, and what is wrong with a line
that is none.

A line of a journal has the fields of `Start` or `Record`, led by `event`, and each metric as
`Metric` has it.
"""

import contextlib
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self, get_args

import msgspec
from msgspec import UNSET, UnsetType

from pomology.errors import PomologyError
from pomology.measure.estimate import Estimate

PROFILES = ("smoke", "quick", "article")
SCHEMA = 1

Finished = Literal["ok", "out-of-memory", "unsupported", "fallback", "mismatch", "not-learning"]
Untried = Literal["too-big", "too-slow"]  # predicted not to fit, or not to end in time
UNTRIED = get_args(Untried)
Status = Literal[Finished, Untried, "crashed", "timeout", "interrupted", "error"]

# Another attempt may end differently; every other status is a result.
RETRIED = ("interrupted", "error")
# A case that was under way when its process vanished is tried once more, in case it was the process
# that was at fault.
ATTEMPTS = 2

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
    """A metric as it stands in a journal.

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
        names = {field.name: field.encode_name for field in msgspec.structs.fields(self)}
        known = msgspec.structs.asdict(self).items()
        fields = {names[name]: value for name, value in known if value is not UNSET}
        return {"event": self.__struct_config__.tag} | fields


class Record(Start, kw_only=True, tag="end", gc=False):
    """A case that ended.

    What it lacks is UNSET, which is false; every record has the fields without a default.

    blocks: raw times by part. asides: seconds of occasional work, by name. note: what the case says
    of itself. absent: why a number is missing, by metric. rails: what the energy covers. thermal:
    level and temperature before and after, and in older journals how long the device rested. trace,
    memory_trace: samples in time order. calibration: seconds of `machine.quiet.calibrate` before
    and after the case, `before_s` and `after_s`; `canary` in a journal.
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
    blocks: dict[str, dict[str, Any]] | UnsetType = UNSET
    asides: dict[str, Any] | UnsetType = UNSET
    note: str | UnsetType = UNSET
    memory_trace: dict[str, Any] | UnsetType = UNSET
    absent: dict[str, Any] | UnsetType = UNSET
    rails: list | UnsetType = UNSET
    thermal_level: Count | UnsetType | None = UNSET
    trace: list | UnsetType = UNSET
    traceback: str | UnsetType = UNSET
    calibration: dict[str, Number] | UnsetType = msgspec.field(name="canary", default=UNSET)
    thermal: dict[str, Any] | UnsetType = UNSET

    @classmethod
    def ended(cls, start: Start, status: Status, reason: str) -> Self:
        """The record of a case of which only the start is known."""
        known = {name: getattr(start, name) for name in Start.__struct_fields__}
        blank = dict.fromkeys(("parameters", "flops_per_step", "foreign_load", "seconds"))
        return cls(**known, **blank, flags=[], status=status, reason=reason, metrics=Metrics())

    def replace(self, **changes: Any) -> Self:
        return msgspec.structs.replace(self, **changes)

    def steady(self, part: str = "training") -> Raw:
        """Return the raw times of a part: steps or calls, and seconds, of each block."""
        return (self.blocks or {}).get(part, {}).get("steady", [])

    def line(self) -> dict[str, Any]:
        metrics = {name: metric.metric() for name, metric in self.metrics.items()}
        return super().line() | {"metrics": metrics}


def _metrics(kind: type, given: Any) -> Metrics:
    metrics = msgspec.convert(given, dict[str, Metric])
    return Metrics({name: metric.estimate() for name, metric in metrics.items()})


_DECODER = msgspec.json.Decoder(Start | Record, dec_hook=_metrics)


def _timed(record: Start | Record) -> Start | Record:
    """The same record. Raises ValidationError, which says where, for raw times that are none."""
    for part in getattr(record, "blocks", None) or ():
        try:
            msgspec.convert(record.steady(part), Raw)
        except msgspec.ValidationError as error:
            raise msgspec.ValidationError(f"steady of `$.blocks.{part}`: {error}") from None
    return record


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


def parse(line: bytes) -> Start | Record:
    """A line of a journal.

    Raises ValueError, with one sentence, for a line that is none, and PomologyError for one of
    another schema, of which nothing in its file can be understood.
    """
    try:
        return _migrated(_timed(_DECODER.decode(line)))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        wrong = str(error) if isinstance(error, msgspec.ValidationError) else "torn or not JSON"
    with contextlib.suppress(
        msgspec.MsgspecError, ValueError, RecursionError, LookupError, TypeError
    ):
        schema = msgspec.json.decode(line)["schema"]
        if type(schema) is int and schema != SCHEMA:
            age, more = (
                ("newer", "; update pomology to read it") if schema > SCHEMA else ("older", "")
            )
            raise PomologyError(f"schema {schema} is {age} than this kit's {SCHEMA}{more}")
    raise ValueError(wrong)


def checked(line: dict[str, Any]) -> Start | Record:
    """The same of what is no text yet. Raises ValueError."""
    return msgspec.convert(line, Start | Record, dec_hook=_metrics)


def now() -> str:
    """The time in UTC, to the second, as ISO 8601."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
