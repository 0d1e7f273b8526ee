"""How a case ended, whether its model learned, and what casts doubt on its number."""

import itertools
import math
import statistics
from typing import Any

from pomology.devices import failures
from pomology.devices.base import Device
from pomology.devices.torch import fallback_enabled
from pomology.errors import Mismatch, TooBig, TooSlow
from pomology.machine.memory import MemoryTrace
from pomology.machine.sampler import Telemetry
from pomology.measure import clock, intervals
from pomology.paths import redact
from pomology.results import cases
from pomology.results.record import Record

DRIFT_S = 1.0  # a stretch in which a change of speed is called a drift lasts as long
STATUS_OF = {TooBig: "too-big", TooSlow: "too-slow", Mismatch: "mismatch"}
FEW_TRACED = 8  # with fewer steps than these behind the warm-up, only the first is left out of a trace of memory


def of_exception(exception: BaseException) -> tuple[str, str]:
    """The status of a case that an exception ended, and the reason: its first line."""
    reason = redact(f"{exception}".strip().split("\n")[0] or type(exception).__name__)
    if not isinstance(exception, Exception):
        return "interrupted", reason
    known = STATUS_OF.get(type(exception)) or failures.failure(exception)
    return (known, reason) if known else ("error", f"{type(exception).__name__}: {reason}")


def loss_ends(losses: list[float]) -> dict[str, float]:
    """Medians: `loss_first` of the first steps (3, or fewer), `loss_last` of the last third; none of one step."""
    third = max(1, len(losses) // 3)
    ends = {"loss_first": losses[: min(3, third)], "loss_last": losses[-third:]} if len(losses) > 1 else {}
    return {name: statistics.median(some) for name, some in ends.items()}


def not_learning(losses: list[float], expected: bool) -> str | None:
    """What the losses of its steps have against a model, if anything. expected: whether they should fall."""
    if not all(map(math.isfinite, losses)):
        return "the loss is not a finite number"
    if expected and len(losses) >= cases.JUDGED_STEPS:
        first, last = loss_ends(losses).values()
        if last >= first:
            return f"the loss went from {first:.4g} to {last:.4g} in {len(losses)} steps"
    return None


def flags(telemetry: Telemetry | None, training: clock.Part | None, kernels: dict, backend: str) -> list[str]:
    """What casts doubt on the numbers of a case, as the names in `results.cases.FLAGS`. kernels: raw times, by name."""
    blocks = [[clock.Block(*each) for each in kernel["steady"]] for kernel in kernels.values()]
    few_calls = any(len(each) < cases.LEAST_CALLS for each in blocks)
    blocks += [training.blocks] if training else []
    # Within less, a machine wanders by what runs beside it, not for good.
    times = [[block.step_s for block in each] for each in blocks if sum(block.seconds for block in each) >= DRIFT_S]
    drifts = any(abs(intervals.drift(each) or 0) > intervals.DRIFT_THRESHOLD for each in times)
    few_steps = training and clock.steps_in(training.blocks) < clock.STEPS_FEW
    doubts = (telemetry.flags if telemetry else []) + ["drift"] * drifts + ["few-calls"] * few_calls
    doubts += ["few-steps"] * bool(few_steps and not training.complete)
    return doubts + ["fallback-enabled"] * (backend == "mps" and fallback_enabled())


def edge(timed: clock.StepClock) -> tuple[tuple, int]:
    """What differs between two stretches of steady blocks of the training, and the steps of all of them so far. Between
    two stretches are the warm-up, ready batches, or a block in which a checkpoint was written."""
    training = next(iter(timed.parts.values()))
    asides = sum(len(work.seconds) for work in timed.occasional_work.values())
    stretch = (len(training.warmup), len(training.ready_blocks), asides)
    return stretch, clock.steps_in(training.blocks)


def steady_steps(record: Record) -> float:
    """How many steps the mean of its training rests on: of a whole epoch more than any number."""
    training = record.blocks["training"]
    return math.inf if training["stopped"] == "whole epoch" else sum(steps for steps, _ in training["steady"])


def raw_times(part: clock.Part) -> dict[str, Any]:
    """The blocks of a part of an epoch as the journal keeps them: `[steps, seconds]` each."""
    raw = {"epoch_steps": part.epoch_steps, "first_step_s": part.first_step_s, "warmup": pairs(part.warmup)}
    raw |= {"steady": pairs(part.blocks), "ready": pairs(part.ready_blocks)}
    raw |= {"last_step_s": part.last_step_s, "stopped": part.stopped}
    for name, (loop, blocks) in itertools.product(clock.PHASES, {"warmup": part.warmup, "steady": part.blocks}.items()):
        if blocks and all(name in block.phases for block in blocks):
            raw[f"{loop}_{name}"] = [round(block.phases[name], 9) for block in blocks]
    return raw


def pairs(blocks: list[clock.Block]) -> list[list[float]]:
    """`[steps, seconds]` of each block."""
    return [[block.steps, round(block.seconds, 9)] for block in blocks]


def observed(telemetry: Telemetry, device: Device, rested_s: float) -> dict[str, Any]:
    """What the telemetry of a case adds to its record; of its samples every so many, 500 to 1,000 in all."""
    absent = dict(telemetry.absent)
    if device.uncounted:
        absent |= dict.fromkeys(("allocated_peak_bytes", "reserved_peak_bytes"), redact(device.uncounted))
    fields = {"absent": absent, "rails": telemetry.rails, "thermal_level": telemetry.thermal_level}
    if any(telemetry.thermal.values()):
        fields["thermal"] = telemetry.thermal | {"rested_s": round(rested_s, 3)}
    return fields | {"trace": telemetry.samples[:: max(1, len(telemetry.samples) // 500)]}


def memory_trace(trace: MemoryTrace, training: clock.Part | None, device: Device) -> dict[str, Any]:
    """A trace as the journal keeps it: columns, rows, why a column is empty, and how many steps come before the steady
    ones (a tenth, where the clock knows nothing of the loop)."""
    warmup = 1 + clock.steps_in(training.warmup) if training else max(1, trace.steps // 10)
    if training and trace.steps - warmup < FEW_TRACED:
        warmup = 1
    empty = [name for number, name in enumerate(trace.COLUMNS) if all(row[number] is None for row in trace.rows)]
    framework = cases.framework_name(device)
    why = device.uncounted or f"{framework} keeps no count of it on this device"
    absent = {name: redact(trace.absent.get(name, why)) for name in sorted(empty)}
    return {"columns": list(trace.COLUMNS), "rows": trace.rows, "absent": absent, "warmup": warmup}
