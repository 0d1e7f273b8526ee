"""`pomology fit MODEL --measure`: a step's time and memory here, from a few blocks of the model.

A process of its own (`measuring.py`) trains truncated models of the real width and writes the
journal of a run, `outputs/fit-<digits>`. What a block and the rest take follows from these cases,
and what the whole model takes from both. So the journal has what was measured, and nothing else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pomology.errors import PomologyError
from pomology.experiment import twin
from pomology.extras.fit import counts, measuring, networks, truncated
from pomology.extras.fit.plan import Plan
from pomology.extras.fit.truncated import Blocks, Linear
from pomology.format import significant
from pomology.measure import intervals
from pomology.measure.estimate import Estimate
from pomology.paths import root
from pomology.results import cases, journal, run
from pomology.results.record import Record

MODULE = "pomology.extras.fit.measuring"
CONFIDENCE = 0.9
ROUNDS = 3
BUDGET_S = 3.0  # of a case's steady steps
LEAST_ROUNDS = 3  # of an interval between rounds
# Times the fastest round of each model; whole models differed by up to 1.41 times (docs/fit.md).
STEADY = 1.5
LEAST_STEADY = 2  # rounds, of several
# Half of the 90 % interval that extrapolating itself adds, as a share of the whole (docs/fit.md).
EXTRAPOLATION = 0.1
DEPTHS = ("blocks", "trained_blocks")  # settings in which the cases of a plan differ
MEASURED = {"step_s", "step_peak_bytes"}


class Measured(NamedTuple):
    """What a step of a plan takes, from cases of truncated models.

    step: seconds, with the 90 % interval. bytes, flops: at the peak, and of a step. every: blocks
    of the whole model. models: what was trained. seconds, memory: of a step, from which both
    follow. rounds: how often each model was timed. record: of the first case. flags: of all.
    """

    model: str
    plan: Plan
    step: Estimate
    bytes: float
    flops: float
    every: Blocks
    models: list[Blocks]
    seconds: Linear
    memory: Linear
    rounds: int
    record: Record
    flags: list[str]

    @property
    def disturbed(self) -> str:
        """The flags of a moment that a case has, in words, or ""."""
        return ", ".join(flag for flag in self.flags if flag in cases.DISTURBED)

    @property
    def shape(self) -> str:
        """The plan in words: `LoRA of gpt2, 2 × 256 tokens, fp32`."""
        step = f"{self.plan.batch} × {self.plan.sequence:,} tokens, {self.plan.precision}"
        return f"{self.plan.of(self.model)}, {step}"


def check(plan: Plan, device: str | None) -> None:
    """Raise PomologyError for a plan that is not measured. device: of `--on`, None without."""
    if device:
        raise PomologyError("--measure: measures this machine; expected no --on")
    if plan.framework == "torch" and plan.method == "qlora":
        why = "QLoRA in PyTorch needs bitsandbytes, which pomology does not install"
        raise PomologyError(f"--measure: {why}; expected --method full or lora, or --framework mlx")
    for field, allowed in {
        "optimizer": ("adamw", "sgd"),
        "loss": ("default",),
        "precision": ("fp32", "bf16"),
    }.items():
        if getattr(plan, field) not in allowed:
            expected = " or ".join(allowed)
            raise PomologyError(f"--measure: expected --{field} {expected}")
    if plan.framework == "mlx" and (plan.amp or plan.accumulation > 1):
        raise PomologyError("--measure: in MLX, expected no --amp and no --accumulation")


def measure(name: str, plan: Plan, backend: str, whole: bool = False) -> list[Record]:
    """Train truncated models in a process of their own, and return the records of the cases.

    backend: of the device. whole: see `measuring.Request`. Raises PomologyError where the process
    ended otherwise than it should.
    """
    request = requested(name, plan, backend)  # refuses what cannot be measured
    out = folder()
    path = out / f"{measuring.NAME}.jsonl"
    before = journal.read(path).records
    first = 1 + max((record.repeat for record in before), default=-1)
    status, reason = "interrupted", "stopped by the user"
    try:
        request.out, request.repeat, request.whole = str(out), first, whole
        request.rounds, request.budget_s = ROUNDS, BUDGET_S
        code, status, words = twin.run(request, MODULE)
        reason = f"the process ended with status {code}: {words}"
    finally:
        journal.Journal(path).finish_open(status, reason)
    if code:
        raise PomologyError(f"--measure: {words or reason}")
    return [record for record in journal.read(path).records if record.repeat >= first]


def folder() -> Path:
    """Return the folder of the run with what is measured on this machine."""
    return run.of_software("fit")


def requested(name: str, plan: Plan, backend: str) -> measuring.Request:
    """Return the request for a model's cases, with what MLX cannot count."""
    config = networks.find(name)
    request = measuring.Request(networks.title(name), config, plan._asdict(), out="")
    every = truncated.whole(config, plan)
    truncated.period(config)  # refuses what cannot be truncated
    if plan.framework == "mlx":
        least = [Blocks(1), Blocks(2)] + [Blocks(1, 1)] * bool(every.frozen)
        needs = [need(config, plan, blocks, backend) for blocks in least]
        request.config = networks.full_configuration(config)
        request.flops = list(truncated.fitted(least, [each.work["flops"] for each in needs]))
        request.bytes = list(truncated.fitted(least, [each.bytes for each in needs]))
    return request


def need(config: dict[str, Any], plan: Plan, blocks: Blocks, backend: str) -> counts.Need:
    """Return what a step of a model with so many blocks needs, counted now."""
    short = truncated.configuration(config, blocks)
    layers = blocks.trained if blocks.frozen else 0
    return counts.count(short, plan._replace(layers=layers), backend).need(plan)


def results(records: Iterable[Record]) -> Iterator[Measured]:
    """Yield what was measured of each plan on each device, in the order of the records.

    A plan without times of all its models is left out.
    """
    plans: dict[str, list[Record]] = {}
    for record in records:
        alike = {key: value for key, value in record.config.items() if key not in DEPTHS}
        key = json.dumps([alike, record.framework, record.backend, record.chip], sort_keys=True)
        plans.setdefault(key, []).append(record)
    yield from filter(None, map(result, plans.values()))


def result(records: Sequence[Record]) -> Measured | None:
    """Return what follows from the cases of one plan; None if they do not suffice.

    Disturbed rounds are left out. `why_none` says why there is no result.
    """
    config = records[0].config
    plan = measuring.planned(config, records[0].framework)
    depth = config["of_blocks"]
    trained = networks.adapted_layers(plan, depth)
    every = Blocks(trained, depth - trained)
    rounds: dict[int, dict[Blocks, Record]] = {}
    for record in records:
        if record.status == "ok" and record.metrics.keys() >= MEASURED:
            rounds.setdefault(record.repeat, {})[measuring.blocks(record.config)] = record
    complete = [models for models in rounds.values() if truncated.suffices(list(models), every)]
    every_round = len(complete)
    complete = undisturbed(steady(complete))
    if len(complete) < min(LEAST_STEADY, max(1, every_round)):
        return None
    last = list(complete[-1])
    times = truncated.fitted(last, medians(complete, last, "step_s"))
    if min(times) < 0:
        return None
    memory = truncated.fitted(last, medians(complete, last, "step_peak_bytes"))
    flops = [float(complete[-1][blocks].flops_per_step or 0) for blocks in last]
    flags = {flag for models in complete for record in models.values() for flag in record.flags}
    return Measured(
        model=config["model"],
        plan=plan,
        step=step(complete, times.at(every), every),
        bytes=memory.at(every),
        flops=truncated.fitted(last, flops).at(every),
        every=every,
        models=sorted(last),
        seconds=times,
        memory=memory,
        rounds=len(complete),
        record=records[0],
        flags=sorted(flags - {"few-steps"}),
    )


def steady(rounds: Sequence[dict[Blocks, Record]]) -> list[dict[Blocks, Record]]:
    """Return the rounds in which no model took much longer than in its fastest round."""
    fastest: dict[Blocks, float] = {}
    for models in rounds:
        for blocks, record in models.items():
            time = record.metrics["step_s"].value
            fastest[blocks] = min(time, fastest.get(blocks, time))
    return [
        models
        for models in rounds
        if all(
            record.metrics["step_s"].value <= STEADY * fastest[blocks]
            for blocks, record in models.items()
        )
    ]


def undisturbed(rounds: list[dict[Blocks, Record]]) -> list[dict[Blocks, Record]]:
    """Return the rounds without a flag of other work, if there are enough, else all."""
    calm = [
        models
        for models in rounds
        if not any(cases.DISTURBED & set(record.flags) for record in models.values())
    ]
    return calm if len(calm) >= LEAST_STEADY else rounds


def why_none(records: Sequence[Record]) -> str:
    """Return why nothing follows from the cases of one plan."""
    for record in records:
        if record.status != "ok" or not record.metrics.keys() >= MEASURED:
            which = f"{record.config['blocks']} of {record.config['of_blocks']} blocks"
            return f"{which}: {record.status}: {record.reason or 'no time'}"
    by_model: dict[Blocks, list[float]] = {}
    for record in records:
        times = by_model.setdefault(measuring.blocks(record.config), [])
        times.append(record.metrics["step_s"].value)
    apart = max(max(times) / min(times) for times in by_model.values())
    what = "a block or the rest would take less than no time"
    if apart > STEADY:
        what = f"times of one model differ by up to {significant(apart, 2)} times"
    return f"no result, because {what}; repeat it on an idle machine"


def medians(
    rounds: Sequence[dict[Blocks, Record]], models: Sequence[Blocks], metric: str
) -> list[float]:
    """Return each model's median of a metric over the rounds."""
    return [
        float(np.median([each[blocks].metrics[metric].value for each in rounds if blocks in each]))
        for blocks in models
    ]


def step(rounds: Sequence[dict[Blocks, Record]], value: float, every: Blocks) -> Estimate:
    """Return the time of a step of the whole model, `value`, with its 90 % interval.

    It has the spread between the rounds, or with few rounds also that within the cases, and the
    error of extrapolating itself, which was measured with whole models (docs/fit.md).
    """
    if len(rounds) >= LEAST_ROUNDS:
        values = [truncated.fitted(list(each), seconds_of(each)).at(every) for each in rounds]
        spread = float(np.std(values, ddof=1)) / math.sqrt(len(values))
        half = intervals.t_quantile(CONFIDENCE, len(values) - 1) * spread
    else:
        values = [truncated.fitted(list(each), seconds_of(each)).at(every) for each in rounds]
        half = max(*(within(models, every) for models in rounds), (max(values) - min(values)) / 2)
    is_whole = list(rounds[-1]) == [every]
    half = math.hypot(half, 0.0 if is_whole else EXTRAPOLATION * value)
    low, high = max(0.0, value - half), value + half
    return Estimate(value, "s", low, high, len(rounds), how="estimated")


def seconds_of(models: dict[Blocks, Record]) -> list[float]:
    return [record.metrics["step_s"].value for record in models.values()]


def counted_bytes(name: str, found: Measured, whole_bytes: float, backend: str) -> float:
    """Return the bytes at the peak of a step of the whole model in PyTorch.

    name: of the model, or the path of its config.json.

    What the longest truncated model took beyond what is counted of it is added to `whole_bytes`,
    what is counted of the whole one: with more blocks another moment of a step may be the one when
    most is allocated.
    """
    longest = max(found.models, key=lambda blocks: blocks.total)
    counted = need(networks.find(name), found.plan, longest, backend).bytes
    return whole_bytes + found.memory.at(longest) - counted


def within(models: dict[Blocks, Record], every: Blocks) -> float:
    """Return half of the interval that the blocks of the cases of one round give."""
    weights = truncated.weights(list(models), every)
    times = [record.metrics["step_s"] for record in models.values()]
    halves = [0.0 if time.low is None else (time.high - time.low) / 2 for time in times]
    return math.hypot(*(weight * half for weight, half in zip(weights, halves, strict=True)))


def earlier(framework: str, backend: str, chip: str | None) -> list[Measured]:
    """Return what was measured on a device by earlier commands on this machine."""
    records = []
    for path in sorted((root() / "outputs").glob(f"fit-*/{measuring.NAME}.jsonl")):
        records += journal.read(path).records
    device = framework, backend, chip
    return [
        each
        for each in results(records)
        if (each.record.framework, each.record.backend, each.record.chip) == device
    ]
