"""What the pages show of a shared run: its sound times, and the proof that they carry."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec

from pomology.articles import published
from pomology.extras.collection import check
from pomology.extras.versus import pairs
from pomology.format import counted, quantity, seconds, with_interval
from pomology.measure.estimate import REPEATS, Estimate
from pomology.report import peaks
from pomology.results import cases, repeats
from pomology.results.record import Record

MEMORY = ("reserved_peak_bytes", "footprint_peak_bytes")  # a GPU's, else the whole process's
FEW_STEPS = "few-steps"
PEAKS = "measured peaks"  # of single operators, in place of an experiment
TRAFFIC = "memory traffic"


class Time(msgspec.Struct, frozen=True):
    """A case of a shared run, over its repeats.

    what: `step`, `epoch`, or the operator of a peak. values: seconds by repeat; of a peak its rate.
    samples: of a step, 0 if their number is not known. flops_per_s: of a smaller variant, whose
    seconds compare with no other's. memory: as text. day: of its start.
    """

    device: str
    experiment: str
    settings: str
    precision: str
    framework: str
    version: str
    what: str
    values: list[Estimate]
    samples: int
    flops_per_s: float
    memory: str
    day: str

    @property
    def key(self) -> tuple[str, ...]:
        """What is equal for the same work on the same device."""
        # A peak is that of the fastest operator, which may have another shape in each run.
        settings = "" if self.experiment == PEAKS else self.settings
        work = (self.experiment, self.what, settings, self.precision)
        return (self.device, *work, self.framework)


class Proof(msgspec.Struct, frozen=True):
    """What makes the times of a run trustworthy; the zip has all that it follows from.

    profile: of the run. checks: of the instrument that passed, of all, and without a verdict.
    machine: equal for runs of machines with the same parts. verified, steps: steps on a GPU that
    were verified against its CPU, of so many. rule: of the verification. blind: largest share of a
    model's weights whose gradient could be wrong unseen. drift: of the calibration from the first
    case to the last, as a share.
    """

    commit: str
    profile: str
    checks: tuple[int, int, int]
    machine: str
    verified: int
    steps: int
    rule: int
    blind: float
    drift: float | None

    @property
    def text(self) -> str:
        """The proof in words, for a cell."""
        passed, total, open_ones = self.checks
        parts = [f"profile {self.profile}", f"self-check: {passed} of {total} checks passed"]
        parts[-1] += f", {open_ones} without a verdict here" if open_ones else ""
        if self.steps:
            by = f" by rule {self.rule}, {100 * self.blind:.0f} % of weights blind"
            verified = f"{self.verified} of {self.steps} GPU steps verified against the CPU"
            parts.append(verified + (by if self.verified else ""))
        if self.drift is not None:
            parts.append(f"calibration {100 * self.drift:+.0f} % from first to last case")
        return ", ".join(parts)


def proof(one: check.Checked) -> Proof:
    """Return the proof of a checked run."""
    records = [case.record for case in one.cases]
    on_gpu = [
        record
        for record in records
        if cases.kind(record.backend) == "gpu"
        and record.status == "ok"
        and record.flops_per_step
        and record.experiment != check.INSTRUMENT
    ]
    proofs = [record.proof for record in on_gpu if record.proof]
    calibrated = sorted(
        (record for record in records if record.calibration), key=lambda record: record.started
    )
    ends = (calibrated[0], calibrated[-1]) if calibrated else ()
    ends_s = [record.calibration.get("after_s") for record in ends]
    instrument = [record for record in records if record.experiment == check.INSTRUMENT]
    endings: dict[str, set[str]] = {}
    for record in instrument:
        # A check that noise left without a verdict has not passed.
        noisy = "too-noisy" in record.flags
        endings.setdefault(record.case, set()).add("too-noisy" if noisy else record.status)
    passed = sum(statuses == {"ok"} for statuses in endings.values())
    return Proof(
        profile=str(one.machine.get("profile")),
        checks=(passed, len(endings), len(endings) - passed),
        commit=str((one.machine.get("git") or {}).get("commit")),
        machine=machine_key(one.machine),
        verified=len(proofs),
        steps=len(on_gpu),
        rule=int(max((each.get("rule", 0) for each in proofs), default=0)),
        blind=max((each.get("unseen_weights", 0.0) for each in proofs), default=0.0),
        drift=ends_s[1] / ends_s[0] - 1 if ends_s and all(ends_s) else None,
    )


def machine_key(machine: dict[str, Any]) -> str:
    """Return a text that is equal for machines with the same parts.

    A system reserves a little more or less memory at each boot, so gigabytes are compared.
    """
    gpus = [
        (gpu.get("name"), gpu.get("cores"), _gigabytes(gpu.get("memory_bytes")))
        for gpu in machine.get("gpus") or ()
    ]
    parts = (machine.get("chip"), machine.get("cpu_cores"), _gigabytes(machine.get("memory_bytes")))
    return str([*parts, sorted(gpus, key=str)])


def _gigabytes(count: int | None) -> int:
    return round((count or 0) / 2**30)


def times(one: check.Checked) -> list[Time]:
    """Return the times of a run's training steps with a sound repeat, and its measured peaks.

    A repeat with few steps counts where another has enough: the fastest ones alone would not be
    typical.
    """
    pooled: dict[tuple, Time] = {}
    sound = set()
    for case in one.cases:
        time = _time(case, one.machine)
        if time:
            same = pooled.setdefault(time.key, time)
            if same is not time:
                same.values.extend(time.values)
            if cases.DOUBTS.isdisjoint(case.record.flags):
                sound.add(time.key)
    pooled = {key: time for key, time in pooled.items() if key in sound}
    return [*pooled.values(), *_peaks([case.record for case in one.cases], one.machine)]


def _time(case: check.CheckedCase, machine: dict[str, Any]) -> Time | None:
    """Return a case of a training, None for one that is doubtful, or times one operator."""
    record = case.record
    metric = next((name for name in check.STEPS if name in case.recomputed), "")
    doubtful = record.status != "ok" or cases.DOUBTS.intersection(record.flags) - {FEW_STEPS}
    if not metric or doubtful or "operation" in record.config or "check" in record.config:
        return None
    config = {name: value for name, value in record.config.items() if name != "precision"}
    rate = record.metrics.get("flops_per_s")
    settings = [cases.config_text(config)]
    settings += ["synthetic data"] * (record.data not in ("real", "none"))
    settings += ["a smaller variant"] * record.scaled
    batch_size = config.get("batch_size")
    counted = metric == "step_s" and isinstance(batch_size, int)
    memory = next((record.metrics[name] for name in MEMORY if name in record.metrics), None)
    return Time(
        device=check.device_name(record, machine),
        experiment=record.experiment,
        settings=", ".join(filter(None, settings)),
        precision=cases.precision(record),
        framework=cases.framework_name(record.framework),
        version=record.framework_version.partition("+")[0],
        what=cases.TIMES[metric],
        values=[case.recomputed[metric]],
        samples=batch_size if counted and not record.scaled else 0,
        flops_per_s=rate.value if record.scaled and rate else 0.0,
        memory=quantity(memory.value, "B") if memory else "",
        day=record.started[:10],
    )


def _peaks(records: Sequence[Record], machine: dict[str, Any]) -> list[Time]:
    """Return the highest rates of matrix products, and of memory traffic, of a run."""
    best = [
        *peaks.best_of_sound(records).items(),
        *peaks.best_of_sound(records, "bytes_per_s", lambda _: TRAFFIC).items(),
    ]
    times_of_peaks = []
    for (_, name), peak in best:
        record = peak.record
        config = {
            key: value for key, value in record.config.items() if key not in ("precision", "peak")
        }
        times_of_peaks.append(
            Time(
                device=check.device_name(record, machine),
                experiment=PEAKS,
                settings=cases.config_text(config),
                precision="" if name == TRAFFIC else name,
                framework=cases.framework_name(record.framework),
                version=record.framework_version.partition("+")[0],
                what=TRAFFIC if name == TRAFFIC else "arithmetic",
                values=[peak.rate],
                samples=0,
                flops_per_s=0.0,
                memory="",
                day=record.started[:10],
            )
        )
    return times_of_peaks


class Run(msgspec.Struct, frozen=True):
    """An accepted run for the pages. marks: rules that it breaks, none if it is this machine's."""

    name: str
    proof: Proof
    marks: list[str]
    times: list[Time]

    @property
    def day(self) -> str:
        """The day of its last case."""
        return max(time.day for time in self.times)


class Pooled(msgspec.Struct, frozen=True):
    """The same work on one kind of device, over the runs of all machines.

    mean: over machines of the means over their processes. marks: of these runs; a marked run is
    never pooled with an unmarked one.
    """

    first: Time
    mean: Estimate
    machines: int
    processes: int
    runs: list[Run]
    versions: list[str]
    marks: list[str]

    @property
    def value(self) -> str:
        """The time, or the rate of a peak, with its interval."""
        if self.first.experiment == PEAKS:
            return quantity(self.mean.value, self.mean.unit)
        return with_interval(self.mean, seconds)

    @property
    def rate(self) -> str:
        """Samples per second, or FLOP/s of a smaller variant; "" where they are not known."""
        time = self.first
        if time.flops_per_s:
            return quantity(time.flops_per_s, "FLOP/s")
        if not time.samples:
            return ""
        return pairs.rate_text(time.experiment, time.samples, self.mean.value)

    @property
    def settings(self) -> str:
        """What was timed, at which settings and precision."""
        time = self.first
        return ", ".join(filter(None, (time.what, time.settings, time.precision)))

    @property
    def counts(self) -> str:
        """Of how many machines, runs and processes it is."""
        numbers = {"machine": self.machines, "run": len(self.runs), "process": self.processes}
        return ", ".join(counted(number, noun) for noun, number in numbers.items())

    @property
    def title(self) -> str:
        """The name of the workload; of an experiment with several models its own."""
        name = self.first.experiment
        return name if "model" in self.first.settings else published.WORKLOADS.get(name, name)


def pool(runs: Sequence[Run]) -> list[Pooled]:
    """Return the times of runs, those of the same work on the same device together."""
    every = [(bool(run.marks), time.key, run, time) for run in runs for time in run.times]
    every.sort(key=lambda each: each[:2])
    return [
        _pooled([(run, time) for _, _, run, time in same])
        for _, same in groupby(every, key=lambda each: each[:2])
    ]


def _pooled(same: Sequence[tuple[Run, Time]]) -> Pooled:
    by_machine: dict[str, list[Estimate]] = {}
    for run, time in same:
        by_machine.setdefault(run.proof.machine, []).extend(time.values)
    means = [repeats.mean_of_repeats(values) for values in by_machine.values()]
    mean = repeats.mean_of_repeats(means)
    processes = [estimate for values in by_machine.values() for estimate in values]
    few = 1 < len(means) < REPEATS or len(processes) < REPEATS
    if few:  # too few for an interval between machines, or processes
        values = [estimate.value for estimate in (means if len(means) > 1 else processes)]
        ends = (min(values), max(values)) if len(values) > 1 else (None, None)
        mean = mean.replace(low=ends[0], high=ends[1], covers="seen" if ends[0] else "none")
    newest = max(same, key=lambda each: each[1].day)[1]
    return Pooled(
        first=newest,
        mean=mean,
        machines=len(means),
        processes=len(processes),
        runs=[run for run, _ in same],
        versions=sorted({time.version for _, time in same}),
        marks=sorted({mark for run, _ in same for mark in run.marks}),
    )
