"""From blocks of steps to seconds per step, epoch and training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pomology.measure import intervals
from pomology.measure.clock import PHASES, Block, Part, StepClock, _columns


def interval(blocks: list[Block]) -> intervals.Interval:
    """Seconds per step over blocks, with the 95 % interval within this run."""
    times, steps = _columns(blocks)
    return intervals.interval(times, weights=steps)


def seconds_metric(interval: intervals.Interval, how: str = "measured") -> dict[str, Any]:
    """An interval in the form of the record: value, unit, low, high, n, how."""
    return {
        "value": interval.mean,
        "unit": "s",
        "low": interval.low,
        "high": interval.high,
        "n": interval.n,
        "how": how,
    }


def epoch_metrics(clock: StepClock) -> dict[str, dict[str, Any]]:
    """What the parts and asides of one epoch say, in the form of the record. Absent is what no step was run for.

    first_step_s: of training. step_s: mean of its steady steps; forward_s, backward_s, update_s: of that, where the
    loop has these phases. epoch_s: all parts and asides; `measured` if every step
    of every part ran, else `estimated` from the first step and the mean of the steady ones. compute_epoch_s: the same
    with every training step as it is on ready batches, asides left out.
    """
    metrics: dict[str, dict[str, Any]] = {}
    parts = list(clock.parts.values())
    if not parts or parts[0].first_step_s is None:
        return metrics
    training, others = parts[0], parts[1:]
    first = intervals.Interval(training.first_step_s, None, None, 1, 1)
    metrics["first_step_s"] = seconds_metric(first)
    if training.blocks:
        metrics["step_s"] = seconds_metric(interval(training.blocks))
    metrics.update(_phase_metrics(training))
    sums = {"epoch_s": [_part_epoch(part) for part in parts]}
    if training.ready_blocks:
        ready = interval(training.ready_blocks)
        compute = intervals.epoch_estimate(ready.mean, ready, training.epoch_steps)
        sums["compute_epoch_s"] = [(compute, "estimated"), *(_part_epoch(part) for part in others)]
    for name, terms in sums.items():
        if all(term is not None for term in terms):
            how = "measured" if all(how == "measured" for _, how in terms) else "estimated"
            total = _add([interval for interval, _ in terms] + (_aside_epochs(clock) if name == "epoch_s" else []))
            metrics[name] = seconds_metric(total, how)
    return metrics


def _phase_metrics(part: Part) -> dict[str, dict[str, Any]]:
    """Mean seconds of each phase of a steady step, with its interval: `forward_s` and so on."""
    metrics = {}
    for name in PHASES:
        blocks = [Block(block.steps, block.phases[name]) for block in part.blocks if name in block.phases]
        # A phase that some blocks lack is no part of every step, and has no mean that could be added to others.
        if blocks and len(blocks) == len(part.blocks):
            metrics[f"{name}_s"] = seconds_metric(interval(blocks))
    return metrics


def fit_metric(clock: StepClock, epochs: int, before_s: float, later: Sequence[float] = ()) -> dict[str, Any] | None:
    """Seconds of a whole training of several epochs, estimated from what of it was timed; None if that was too short.

    before_s: from the call to the first step of all. later: of each whole epoch that ran after the first one.

    It is before_s + the first epoch + the sum of later + (epochs that did not run) x (mean of later). A part of the
    first epoch that ran whole counts with its own time; else as first step + (steps - 1) x mean steady step. Where no
    later epoch ran, one is taken as the sum of steps x mean steady step over the parts: all its steps are like the
    steady ones, and what else an epoch does between its steps is left out (in Keras, about a tenth of a second).
    The bounds are those that all steps would have at the steady mean's own.
    """
    parts = list(clock.parts.values())
    if not parts or any(part.first_step_s is None or not (part.blocks or part.complete) for part in parts):
        return None
    total = before_s + sum(later)
    spans = []
    for part in parts:
        if part.blocks:
            steady = interval(part.blocks)
        else:  # a whole epoch of a few steps: what followed the first is all there is to go by
            rest_s = (part.seconds - part.first_step_s) / (part.steps - 1) if part.steps > 1 else part.first_step_s
            steady = intervals.Interval(rest_s, None, None, 1, 1)
        total += part.seconds if part.complete else part.first_step_s + (part.epoch_steps - 1) * steady.mean
        low, high = (bound and part.epoch_steps * bound for bound in (steady.low, steady.high))
        spans.append(intervals.Interval(part.epoch_steps * steady.mean, low, high, steady.n, steady.batches))
    epoch = _add(spans)
    total += (epochs - 1 - len(later)) * (sum(later) / len(later) if later else epoch.mean)
    bounds = [bound and total * bound / epoch.mean for bound in (epoch.low, epoch.high)]
    return seconds_metric(intervals.Interval(total, *bounds, epoch.n, epoch.batches), "estimated")


def part_metrics(clock: StepClock) -> dict[str, dict[str, Any]]:
    """Seconds that each part takes of an epoch, by the part's name, in the form of the record."""
    found = {name: _part_epoch(part) for name, part in clock.parts.items()}
    return {name: seconds_metric(*epoch) for name, epoch in found.items() if epoch is not None}


def _part_epoch(part: Part) -> tuple[intervals.Interval, str] | None:
    epoch = _part_once(part)
    if epoch is None or part.per_epoch == 1:
        return epoch
    once = epoch[0]
    mean, low, high = (bound if bound is None else bound * part.per_epoch for bound in (once.mean, once.low, once.high))
    return intervals.Interval(mean, low, high, once.n, once.batches), "estimated"


def _part_once(part: Part) -> tuple[intervals.Interval, str] | None:
    steady = interval(part.blocks) if part.blocks else None
    if part.complete:
        # One epoch has one time. The spread of its blocks says how well this run pins it down.
        spread = 0.0 if steady is None or steady.high is None else steady.high / steady.mean - 1
        low, high = (part.seconds * (1 - spread), part.seconds * (1 + spread)) if spread else (None, None)
        return intervals.Interval(part.seconds, low, high, part.steps, steady.batches if steady else 1), "measured"
    if steady is None or part.first_step_s is None:
        return None
    return intervals.epoch_estimate(part.first_step_s, steady, part.epoch_steps), "estimated"


def _aside_epochs(clock: StepClock) -> list[intervals.Interval]:
    """Each aside's share of an epoch; those within a part that ran whole are in its time already."""
    epochs = []
    for aside in clock.occasional_work.values():
        if aside.seconds and not (aside.part and clock.parts[aside.part].complete):
            mean = intervals.interval(aside.seconds)
            low, high = (bound if bound is None else bound * aside.per_epoch for bound in (mean.low, mean.high))
            epochs.append(intervals.Interval(mean.mean * aside.per_epoch, low, high, mean.n, mean.batches))
    return epochs


def _add(terms: list[intervals.Interval]) -> intervals.Interval:
    """Sum of independent estimates; half-widths add in squares.

    A term without bounds (one step, one checkpoint) may be anything, so the sum has none either, unless that term is
    under a hundredth of it.
    """
    mean = sum(term.mean for term in terms)
    unknown = sum(term.mean for term in terms if term.high is None)
    if unknown > mean / 100:
        return intervals.Interval(mean, None, None, terms[0].n, terms[0].batches)
    half = math.sqrt(sum((term.high - term.mean) ** 2 for term in terms if term.high is not None))
    return intervals.Interval(mean, max(0.0, mean - half), mean + half, terms[0].n, terms[0].batches)


def rate(amount: float, seconds: Any, unit: str) -> dict[str, Any]:
    """`amount` over a time (an Interval of seconds), as the arguments of `case.metric`: value, unit, low, high, n."""
    bounds = {"low": amount / seconds.high, "high": amount / seconds.low} if seconds.low else {}
    return {"value": amount / seconds.mean, "unit": unit, "n": seconds.n, **bounds}
