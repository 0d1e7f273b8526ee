"""Outcome of a case: its status, derived metrics, check of learning, and warning flags."""

import math
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pomology import format
from pomology.devices.torch import FALLBACK_VARIABLE
from pomology.machine import messages
from pomology.measure import clock, epochs, intervals
from pomology.measure.estimate import Estimate
from pomology.models.cost import Cost
from pomology.paths import redact
from pomology.results import cases

STEPS_FEW = 20  # fewer steady steps get the flag `few-steps`
DRIFT_THRESHOLD = 0.10  # a larger absolute `drift` gets a flag
DRIFT_S = 1.0  # in shorter times other programs cause temporary changes
# A pause within a block: its least seconds, as a multiple of the blocks' usual deviation, and the
# least share of it without CPU time of this process.
PAUSE_S = 0.3
PAUSE_DEVIATIONS = 8
PAUSE_IDLE = 0.5
# Of fewer than 6 blocks, and of 3 at least: the pause as a multiple of a usual block.
FEWEST_BLOCKS = 3
PAUSE_OF_FEW = 2
# What comes once may wait for a disk or for processes that start.
PAUSE_ONCE_S = 1.0
FEW_TRACED = 8  # with fewer steps after the warm-up, a memory trace excludes only the first step


@dataclass(frozen=True)
class TimedCalls:
    """Raw times of calls that are no loop over batches.

    blocks: of steady calls. warmup: of those before, None where they were not kept. facts: other
    fields for the journal, such as `first_call_s`.
    """

    blocks: Sequence[clock.Block]
    warmup: Sequence[clock.Block] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def of_exception(exception: BaseException) -> tuple[str, str]:
    """Return the status of a case ended by an exception, and its reason in one line."""
    first, _, rest = f"{exception}".strip().partition("\n")
    if first.endswith(":"):  # such as `backend='inductor' raised:`, which says nothing alone
        second = rest.strip().partition("\n")[0]
        first = f"{first} {second}".strip()
    reason = redact(first or type(exception).__name__)
    if not isinstance(exception, Exception):
        return "interrupted", reason
    kinds = {kind.__name__ for kind in type(exception).__mro__}
    explained = messages.explain(str(exception), kinds)
    if explained:
        status, words = explained
        return status, redact(words or reason)
    return "error", f"{type(exception).__name__}: {reason}"


def rates(
    cost: Cost, training: clock.Part | None, metrics: dict[str, Estimate]
) -> dict[str, Estimate]:
    """Return FLOP/s and energy per TFLOP of a step (on pre-loaded batches if any) and passes."""
    seconds = {name: metrics.get(f"{name}_s") for name in ("step", "forward", "backward")}
    if training and training.ready_blocks:
        seconds["step"] = epochs.interval(training.ready_blocks)
    flops = {"step": cost.flops}
    if cost.forward_flops is not None:
        flops["forward"] = cost.forward_flops
        flops["backward"] = cost.flops - cost.forward_flops
    derived = {}
    for name, count in flops.items():
        if count and seconds[name]:
            metric = "flops_per_s" if name == "step" else f"{name}_flops_per_s"
            derived[metric] = epochs.rate(count, seconds[name], "FLOP/s")
    if cost.flops and "energy_j_per_step" in metrics:
        derived["energy_j_per_tflop"] = metrics["energy_j_per_step"] * (1e12 / cost.flops)
    return derived


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


def first_step_alone(training: clock.Part | None) -> str | None:
    """Return what the first step says of an epoch whose limit came before a second one, or None."""
    if training is None or training.first_step_s is None:
        return None
    if training.blocks or training.complete or training.stopped != "limit":
        return None
    step, steps = format.seconds(training.first_step_s), math.ceil(training.epoch_steps)
    whole = format.seconds(training.first_step_s * steps)
    return f"its first step took {step}, {steps:,} of them take {whole}: the limit left no other"


def wrong_clock(parts: Iterable[clock.Part], calls: Iterable[Sequence[clock.Block]]) -> str | None:
    """Return which time is 0, negative or no number, None if none is."""
    series = [(f"a call of {len(blocks)} blocks", blocks) for blocks in calls]
    for part in parts:
        times_s = [part.first_step_s, part.last_step_s]
        single = [clock.Block(1, seconds) for seconds in times_s if seconds is not None]
        blocks = [*single, *part.warmup, *part.blocks, *part.ready_blocks]
        series.append((f"the part {part.name!r}", blocks))
    for name, blocks in series:
        for block in blocks:
            if not 0 < block.seconds < math.inf:
                took = f"{block.steps} steps or calls took {block.seconds:.3g} s"
                return f"{name}: {took}: the clock stood still or went back"
    return None


def paused(blocks: Sequence[clock.Block], kind: str) -> bool:
    """Return whether the process, its clock or the machine stood still within a block.

    kind: of the device, `cpu` or `gpu`. On a CPU the block must also lack CPU time: a block that
    computes more takes longer, too.
    """
    if len(blocks) < FEWEST_BLOCKS:
        return False
    usual_s = statistics.median(block.step_s for block in blocks)
    excesses_s = [block.seconds - block.steps * usual_s for block in blocks]
    # 1.48 median absolute deviations are a standard deviation of normal noise.
    deviation_s = 1.48 * statistics.median(map(abs, excesses_s))
    least_s = max(PAUSE_S, PAUSE_DEVIATIONS * deviation_s)
    # A few blocks do not tell their noise, so that a pause must be longer than usual blocks.
    usual_blocks = PAUSE_OF_FEW if len(blocks) < intervals.VALUES_LEAST else 0
    shares = [block.cpu_s / block.seconds for block in blocks if block.cpu_s is not None]
    busy = statistics.median(shares) if shares else 0.0
    for block, excess_s in zip(blocks, excesses_s, strict=True):
        if excess_s < max(least_s, usual_blocks * block.steps * usual_s):
            continue
        if kind == "gpu" or block.cpu_s is None or not busy:
            return True
        idle_s = block.seconds - block.cpu_s / busy
        if idle_s >= PAUSE_IDLE * excess_s:
            return True
    return False


def idle(block: clock.Block, least_s: float = PAUSE_S) -> bool:
    """Return whether half of a block, and so many seconds, passed without CPU time."""
    if block.cpu_s is None:
        return False
    return block.seconds - block.cpu_s >= max(least_s, PAUSE_IDLE * block.seconds)


def flags(
    training: clock.Part | None,
    calls: Iterable[Sequence[clock.Block]],
    backend: str,
    others: Iterable[clock.Part] = (),
    single: Iterable[clock.Block] = (),
    once: Iterable[clock.Block] = (),
) -> list[str]:
    """Return the warning flags of a case's times, see `results.cases.FLAGS`.

    calls: the steady blocks of each metric that is no loop. others: the parts after `training`.
    single: blocks that have too few others to know what is usual, with the CPU time of all
    processes of the case. once: such ones that may wait, as a first step and a checkpoint do.
    """
    series = list(calls)
    few = any(len(blocks) < cases.LEAST_CALLS for blocks in series)
    if training:
        series.append(training.blocks)
        few |= clock.steps_in(training.blocks) < STEPS_FEW and not training.complete
    falls_back = backend == "mps" and os.environ.get(FALLBACK_VARIABLE, "0") not in ("", "0")
    long = [blocks for blocks in series if sum(block.seconds for block in blocks) >= DRIFT_S]
    changes = [drift([block.step_s for block in blocks]) or 0 for blocks in long]
    drifts = max(map(abs, changes), default=0) > DRIFT_THRESHOLD
    doubts = {"few-steps": few, "drift": drifts, "fallback-enabled": falls_back}
    timed = [*series, *([training.ready_blocks] if training else [])]
    timed += [part.blocks for part in others]
    kind = cases.kind(backend)
    stood_still = any(paused(blocks, kind) for blocks in timed)
    if kind == "cpu":  # a process that waits for a GPU computes little
        stood_still |= any(map(idle, single)) or any(idle(block, PAUSE_ONCE_S) for block in once)
    doubts["paused"] = stood_still
    return [flag for flag, holds in doubts.items() if holds]


def drift(durations: Sequence[float]) -> float | None:
    """Return the relative change of the middle or last third from the first, the largest one.

    The last sixth counts, too: a jump there would be noise of the last third. The change is 0
    within the noise around each part's own trend. The result is None with fewer
    than 18 durations, or if the first third took no time (docs/log/2026-11.md).
    """
    times = np.asarray(durations, dtype=float)
    third = times.size // 3
    if third < intervals.VALUES_LEAST or not times[:third].any():
        return None
    means = []
    halves = []
    parts = [times[:third], times[third:-third], times[-third:]]
    if third // 2 >= intervals.VALUES_LEAST:
        parts.append(times[-(third // 2) :])
    for part in parts:
        # The noise is around the part's own line, since a trend within it is no noise.
        number = np.arange(part.size) - (part.size - 1) / 2
        level = part - number * (number @ part) / (number @ number)
        means.append(float(part.mean()))
        halves.append(intervals.half_width(level, np.ones_like(part), means[-1], 12))
    changes = np.subtract(means[1:], means[0])
    resolved = np.abs(changes) > np.hypot(halves[1:], halves[0])
    return float(max(changes * resolved, key=abs)) / means[0]


def raw_times(
    parts: Mapping[str, clock.Part], calls: Mapping[str, TimedCalls]
) -> dict[str, dict[str, Any]]:
    """Return the raw times of each part, and of each metric of calls, for the journal."""
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
    for name, timed in calls.items():
        raw[name] = {"steady": pairs(timed.blocks)}
        if timed.warmup is not None:
            raw[name]["warmup"] = pairs(timed.warmup)
        raw[name] |= timed.facts
    return raw


def part(name: str, raw: dict[str, Any]) -> clock.Part:
    """Return a part with its raw times in the journal, the inverse of `raw_times`."""
    loop = clock.Part(name, raw["epoch_steps"], first_step_s=raw["first_step_s"])
    phases = {phase: raw[f"steady_{phase}"] for phase in clock.PHASES if f"steady_{phase}" in raw}
    for number, (steps, seconds) in enumerate(raw["steady"]):
        phases_s = {phase: times_s[number] for phase, times_s in phases.items()}
        loop.blocks.append(clock.Block(steps, seconds, phases_s))
    loop.ready_blocks = blocks_of(raw["ready"])
    loop_s = sum(seconds for _, seconds in [*raw["warmup"], *raw["steady"]])
    loop.seconds = raw["first_step_s"] + loop_s + (raw["last_step_s"] or 0.0)
    loop.complete = raw["stopped"] == "whole epoch"
    return loop


def pairs(blocks: Iterable[clock.Block]) -> list[list[float]]:
    """Return `[steps, seconds]` of each block, as a journal has them."""
    return [[block.steps, round(block.seconds, 9)] for block in blocks]


def blocks_of(pairs: Iterable[Sequence[float]]) -> list[clock.Block]:
    """Return the blocks of a journal's `[steps, seconds]`, the inverse of `pairs`."""
    return [clock.Block(steps, seconds) for steps, seconds in pairs]


def traced_warmup(rows: int, training: clock.Part) -> int:
    """Return the number of rows (steps) in a trace before the steady steps."""
    warmup = 1 + clock.steps_in(training.warmup)
    return warmup if rows - warmup >= FEW_TRACED else 1
