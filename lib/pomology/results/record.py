"""Schema of a case's record.

A journal line has `event` and the fields of `Start` or `Record`, with metrics in the form of
`Estimate.metric`. Empty fields are omitted.
"""

import json
import math
from typing import Annotated, Any, Literal, Self

import msgspec

from pomology.measure.estimate import Estimate
from pomology.paths import RESOURCES, read_csv
from pomology.results.metrics import TIMES

PROFILES = ("smoke", "quick", "article")

UNTRIED = ("too-big", "too-slow")  # predicted not to fit, or not to end in time
# Cases with these statuses are tried again; every other status is a result.
RETRIED = ("interrupted", "error")
STATUSES = (
    *("ok", "out-of-memory", "unsupported", "fallback", "mismatch", "not-learning", "crashed"),
    *("timeout", *UNTRIED, *RETRIED),
)
Status = Literal[*STATUSES]

# Experiment in older journals -> its current name, and the settings that its name implied.
RENAMED: dict[str, tuple[str, dict[str, Any]]] = {
    line["was"]: (line["experiment"], json.loads(line["settings"]))
    for line in read_csv(RESOURCES / "renamed.csv")
}


class Start(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="event", tag="start"):
    """Facts about a case before it begins. software: a name from `run.note_software`."""

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
    power_mode: Literal["low", "automatic", "high"] | None = None
    started: Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
    software: str = ""

    def line(self) -> dict[str, Any]:
        """Return the fields of a journal line as JSON types."""
        return msgspec.to_builtins(self)


class Record(Start, kw_only=True, tag="end"):
    """A case that ended.

    launches_per_step: kernels, counted in PyTorch. blocks: raw times by part, pairs of steps or
    calls and their seconds. asides: seconds of occasional work by name. note: notes of the case.
    absent: metric -> reason why it is missing.
    rails: power domains of the energy. proof: what a GPU's step was verified by, see
    `models.verify.Verification`. trace, memory_trace: samples in time order. calibration:
    seconds of `calibrate` in machine/calibration.py, `before_s` and `after_s`, and of
    `calibrate_gpu`, with `device_`; `canary` in a journal.
    """

    parameters: int | None = None
    flops_per_step: int | None = None
    bytes_per_step: int | None = None
    launches_per_step: int | None = None
    flags: list[str]
    status: Status
    reason: str | None
    seconds: float | None = None
    metrics: dict[str, Estimate]
    blocks: dict[str, dict[str, float | str | list[float | tuple[int | float, float]] | None]] = {}
    asides: dict[str, Any] = {}
    note: str = ""
    memory_trace: dict[str, Any] = {}
    absent: dict[str, Any] = {}
    rails: list[str] = []
    thermal_level: int | None = None
    proof: dict[str, float] = {}
    trace: list = []
    traceback: str = ""
    calibration: dict[str, float] = msgspec.field(name="canary", default_factory=dict)

    @classmethod
    def ended(cls, start: Start, status: Status, reason: str) -> Self:
        """Return the record of a case with a known start only."""
        fields = {name: getattr(start, name) for name in Start.__struct_fields__}
        return cls(**fields, flags=[], status=status, reason=reason, metrics={})

    def steady(self, part: str = "training") -> list[tuple[int, float]]:
        """Return a part's raw times: (steps or calls, seconds) of each block."""
        return self.blocks.get(part, {}).get("steady", [])

    def line(self) -> dict[str, Any]:
        """Return the fields of a journal line as JSON types, metrics by `Estimate.metric`."""
        metrics = {name: metric.metric() for name, metric in self.metrics.items()}
        return super().line() | {"metrics": metrics}


COUNTS = (
    *("repeat", "threads", "parameters"),
    *("flops_per_step", "bytes_per_step", "launches_per_step"),
)
PAIRS = ("warmup", "steady", "ready")  # raw times: pairs of steps or calls, and their seconds
MOST = 2**63  # which a column of a DataFrame does not hold
LARGEST = 1e300
SHORTEST_S = 1e-12
# More than any machine has. A difference, such as the slope of a memory, may be negative.
MOST_OF_UNIT = {"s": 1e11, "B": 1e18, "FLOP/s": 1e21, "B/s": 1e18, "W": 1e8, "J": 1e15}
MAY_BE_NEGATIVE = "_slope_bytes"
DEPTH = 20  # of lists and objects in each other
_DECODER = msgspec.json.Decoder(Start | Record)


def case_name(framework: str, backend: str, config: dict[str, Any]) -> str:
    """Return the name of a case in its journal, such as `torch-mps batch_size=32`."""
    return f"{framework}-{backend}" + "".join(f" {name}={value}" for name, value in config.items())


def parse(line: bytes) -> Start | Record:
    """Parse a journal line. Raises ValueError, with a message of one sentence, if malformed."""
    entry = _DECODER.decode(line)
    _require_possible(entry)
    return _migrated(entry)


def _require_possible(entry: Start | Record) -> None:
    """Raise ValueError for a number that no case has, and that arithmetic would end on."""
    for name in COUNTS:
        count = getattr(entry, name, None)
        if count is not None and not 0 <= count < MOST:
            raise ValueError(f"{name} is {count}; expected 0 to {MOST:,}")
    for name, setting in entry.config.items():
        parts = setting if isinstance(setting, list) else [setting]
        if any(isinstance(part, (dict, list)) for part in parts):
            raise ValueError(f"the setting {name} is nested")
        if any(isinstance(part, int) and abs(part) >= MOST for part in parts):
            raise ValueError(f"the setting {name} exceeds {MOST:,}")
        if name == "batch_size" and any(isinstance(part, int) and part < 1 for part in parts):
            raise ValueError(f"the setting {name} is {setting}; expected at least 1")
    if not isinstance(entry, Record):
        return
    if entry.seconds is not None and not 0 <= entry.seconds < math.inf:
        raise ValueError(f"seconds is {entry.seconds}")
    for name, seconds in entry.calibration.items():
        if not 0 < seconds <= MOST_OF_UNIT["s"]:
            raise ValueError(f"the calibration {name} is {seconds}")
    for part, raw in entry.blocks.items():
        _require_pairs(part, raw, positive=entry.status == "ok")
    for name in ("asides", "memory_trace", "absent", "trace"):
        if _depth(getattr(entry, name)) > DEPTH:
            raise ValueError(f"{name} is nested more than {DEPTH} times")
    for name, metric in entry.metrics.items():
        numbers = [
            metric.value,
            *(bound for bound in (metric.low, metric.high) if bound is not None),
        ]
        if not all(abs(number) <= LARGEST for number in numbers):
            raise ValueError(f"{name} is {metric.value}; expected a finite number")
        if metric.n is not None and not 0 <= metric.n < MOST:
            raise ValueError(f"n of {name} is {metric.n}")
        if entry.status == "ok" and name in TIMES and metric.value < SHORTEST_S:
            raise ValueError(f"{name} is {metric.value}; a time must be positive")
        if entry.status != "ok":  # an error may be a clock that went back
            continue
        most = MOST_OF_UNIT.get(metric.unit)
        least = -math.inf if name.endswith(MAY_BE_NEGATIVE) else 0
        if most and not least <= metric.value <= most:
            raise ValueError(f"{name} is {metric.value} {metric.unit}; expected 0 to {most:g}")
        if metric.low is not None and not metric.low <= metric.high:
            raise ValueError(f"the interval of {name} is {metric.low} to {metric.high}")


def _depth(value: Any) -> int:
    """Return how many lists and objects are in each other, counted up to one too many."""
    level, depth = [value], 0
    while level and depth <= DEPTH:
        items = [list(each.values()) if isinstance(each, dict) else each for each in level]
        level = [inner for each in items if isinstance(each, list) for inner in each]
        depth += 1
    return depth


def _require_pairs(part: str, raw: dict[str, Any], positive: bool) -> None:
    """Raise ValueError unless a part's raw times are pairs of steps and seconds.

    positive: whether all times must be.
    """
    for kind in PAIRS:
        blocks = raw.get(kind) or []
        if not isinstance(blocks, list) or any(isinstance(block, float) for block in blocks):
            raise ValueError(f"{kind} of {part} has no pairs of steps and seconds")
        for steps, seconds in blocks:
            possible = 0 <= steps < MOST and abs(seconds) <= LARGEST
            if not possible or (positive and seconds <= 0):
                raise ValueError(f"{kind} of {part} has {steps} steps in {seconds} s")
    steps = raw.get("epoch_steps")
    if steps is not None and not (isinstance(steps, float) and 0 <= steps <= LARGEST):
        raise ValueError(f"epoch_steps of {part} is {steps!r}")


def checked(line: dict[str, Any]) -> Start | Record:
    """Convert the fields of a journal line. Raises ValueError for values outside the schema."""
    return msgspec.convert(line, Start | Record)


def _migrated(record: Start | Record) -> Start | Record:
    """Return an older journal's record with its current status and experiment name."""
    # `too-big` once was also the status of a case that would take too long.
    too_big = isinstance(record, Record) and record.status == "too-big"
    if too_big and " would take " in f" {record.reason}":
        record = msgspec.structs.replace(record, status="too-slow")
    name, settings = RENAMED.get(record.experiment, (record.experiment, {}))
    if name == record.experiment and settings.keys() <= record.config.keys():
        return record
    config = settings | record.config
    case = case_name(record.framework, record.backend, config) if settings else record.case
    return msgspec.structs.replace(record, experiment=name, config=config, case=case)
