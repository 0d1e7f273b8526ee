"""Outcome of a case: its status, derived metrics, check of learning, and warning flags."""

import math
import os
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pomology.devices.torch import FALLBACK_VARIABLE
from pomology.machine import messages
from pomology.machine.sampler import Sampler
from pomology.measure import clock, epochs, intervals
from pomology.measure.estimate import Estimate
from pomology.models.cost import Workload
from pomology.paths import redact
from pomology.results import cases

STEPS_FEW = 20  # fewer steady steps get the flag `few-steps`
DRIFT_THRESHOLD = 0.10  # a larger absolute `drift` gets a flag
DRIFT_S = 1.0  # in shorter times other programs cause temporary changes
FEW_TRACED = 8  # with fewer steps after the warm-up, a memory trace excludes only the first step


def of_exception(exception: BaseException) -> tuple[str, str]:
    """Return the status of a case ended by an exception, and its reason in one line."""
    reason = redact(f"{exception}".strip().split("\n")[0] or type(exception).__name__)
    if not isinstance(exception, Exception):
        return "interrupted", reason
    kinds = {kind.__name__ for kind in type(exception).__mro__}
    known = messages.explain(str(exception), kinds)
    if known:
        return known[0], redact(known[1] or reason)
    return "error", f"{type(exception).__name__}: {reason}"


def rates(
    workload: Workload, training: clock.Part | None, metrics: dict[str, Estimate]
) -> dict[str, Estimate]:
    """Return FLOP/s and energy per TFLOP of a step (on pre-loaded batches if any) and passes."""
    seconds = {name: metrics.get(f"{name}_s") for name in ("step", "forward", "backward")}
    if training and training.ready_blocks:
        seconds["step"] = epochs.interval(training.ready_blocks)
    flops = {"step": workload.flops}
    if workload.forward_flops is not None:
        flops["forward"] = workload.forward_flops
        flops["backward"] = workload.flops - workload.forward_flops
    found = {}
    for name, count in flops.items():
        if count and seconds[name]:
            metric = "flops_per_s" if name == "step" else f"{name}_flops_per_s"
            found[metric] = epochs.rate(count, seconds[name], "FLOP/s")
    if workload.flops and "energy_j_per_step" in metrics:
        found["energy_j_per_tflop"] = metrics["energy_j_per_step"] * (1e12 / workload.flops)
    return found


def loss_ends(losses: list[float]) -> dict[str, float]:
    """Return the median loss of up to 3 first steps, and of the last third of steps."""
    if len(losses) < 2:
        return {}
    third = max(1, len(losses) // 3)
    first = statistics.median(losses[: min(3, third)])
    return {"loss_first": first, "loss_last": statistics.median(losses[-third:])}


def not_learning(losses: list[float], expected: bool) -> str | None:
    """Return why a model does not learn, or None. expected: whether its loss should fall."""
    if not all(map(math.isfinite, losses)):
        return "the loss is not a finite number"
    if expected and len(losses) >= cases.JUDGED_STEPS:
        first, last = loss_ends(losses).values()
        if last >= first:
            return f"the loss went from {first:.4g} to {last:.4g} in {len(losses)} steps"
    return None


def flags(
    sampler: Sampler | None, training: clock.Part | None, kernels: dict[str, dict], backend: str
) -> list[str]:
    """Return a case's warning flags, see `results.cases.FLAGS`. kernels: raw times of calls."""
    found = list(sampler.flags) if sampler else []
    timed = [[clock.Block(*pair) for pair in kernel["steady"]] for kernel in kernels.values()]
    few = any(len(blocks) < cases.LEAST_CALLS for blocks in timed)
    if training:
        timed.append(training.blocks)
        few |= clock.steps_in(training.blocks) < STEPS_FEW and not training.complete
    falls_back = backend == "mps" and os.environ.get(FALLBACK_VARIABLE, "0") not in ("", "0")
    long = [blocks for blocks in timed if sum(block.seconds for block in blocks) >= DRIFT_S]
    changes = [drift([block.step_s for block in blocks]) or 0 for blocks in long]
    drifts = max(map(abs, changes), default=0) > DRIFT_THRESHOLD
    doubts = {"few-steps": few, "drift": drifts, "fallback-enabled": falls_back}
    return found + [flag for flag, holds in doubts.items() if holds]


def drift(durations: Sequence[float]) -> float | None:
    """Return the relative change of the middle or last third from the first, the larger one.

    The change is 0 within the noise around each third's own trend. The result is None with fewer
    than 18 durations, or if the first third took no time (docs/log/2026-11.md).
    """
    times = np.asarray(durations, dtype=float)
    third = times.size // 3
    if third < intervals.VALUES_LEAST or not times[:third].any():
        return None
    means = []
    halves = []
    for part in (times[:third], times[third:-third], times[-third:]):
        place = np.arange(part.size) - (part.size - 1) / 2
        level = part - place * (place @ part) / (place @ place)
        means.append(float(part.mean()))
        halves.append(intervals.half_width(level, np.ones_like(part), means[-1], 12))
    changes = np.subtract(means[1:], means[0])
    resolved = np.abs(changes) > np.hypot(halves[1:], halves[0])
    return float(max(changes * resolved, key=abs)) / means[0]


def raw_times(parts: dict[str, clock.Part]) -> dict[str, dict[str, Any]]:
    """Return each part's raw times for the journal."""
    raw = {}
    for name, part in parts.items():
        raw[name] = {
            "epoch_steps": part.epoch_steps,
            "first_step_s": part.first_step_s,
            "warmup": pairs(part.warmup),
            "steady": pairs(part.blocks),
            "ready": pairs(part.ready_blocks),
            "last_step_s": part.last_step_s,
            "stopped": part.stopped,
        }
        for phase, blocks in epochs.phases(part.blocks).items():
            raw[name][f"steady_{phase}"] = [round(block.seconds, 9) for block in blocks]
    return raw


def part(name: str, raw: dict[str, Any]) -> clock.Part:
    """Return a part with its raw times in the journal, the inverse of `raw_times`."""
    found = clock.Part(name, raw["epoch_steps"], first_step_s=raw["first_step_s"])
    phases = {each: raw[f"steady_{each}"] for each in clock.PHASES if f"steady_{each}" in raw}
    for place, (steps, seconds) in enumerate(raw["steady"]):
        each_s = {phase: times[place] for phase, times in phases.items()}
        found.blocks.append(clock.Block(steps, seconds, each_s))
    found.ready_blocks = [clock.Block(*pair) for pair in raw["ready"]]
    loop_s = sum(seconds for _, seconds in [*raw["warmup"], *raw["steady"]])
    found.seconds = raw["first_step_s"] + loop_s + (raw["last_step_s"] or 0.0)
    found.complete = raw["stopped"] == "whole epoch"
    return found


def pairs(blocks: Iterable[clock.Block]) -> list[list[float]]:
    """Return `[steps, seconds]` of each block."""
    return [[block.steps, round(block.seconds, 9)] for block in blocks]


def traced_warmup(rows: int, training: clock.Part) -> int:
    """Return the number of rows (steps) in a trace before the steady steps."""
    warmup = 1 + clock.steps_in(training.warmup)
    return warmup if rows - warmup >= FEW_TRACED else 1
