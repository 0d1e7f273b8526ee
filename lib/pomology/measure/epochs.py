"""From blocks of steps to seconds per step, epoch and training."""

from __future__ import annotations

from collections.abc import Sequence

from pomology.measure import intervals
from pomology.measure.clock import PHASES, Block, Part, StepClock, _columns
from pomology.measure.estimate import Estimate, total

NEGLIGIBLE = 0.01  # what of an epoch may be of unknown spread


def interval(blocks: list[Block]) -> Estimate:
    """Seconds per step over blocks, with the 95 % interval within this run."""
    times, steps = _columns(blocks)
    return intervals.interval(times, weights=steps)


def epoch_metrics(clock: StepClock) -> dict[str, Estimate]:
    """What the parts and the occasional work of one epoch say, by the record's names. Absent is what no step was run
    for.

    first_step_s: of training. step_s: mean of its steady steps; forward_s, backward_s, update_s: of that, where the
    loop has these phases. epoch_s: all parts and occasional work; `measured` if every step of every part ran, else
    `estimated` from the first step and the mean of the steady ones. compute_epoch_s: the same with every training step
    as it is on ready batches, and no occasional work.
    """
    metrics: dict[str, Estimate] = {}
    parts = list(clock.parts.values())
    if not parts or parts[0].first_step_s is None:
        return metrics
    training, others = parts[0], parts[1:]
    metrics["first_step_s"] = Estimate(training.first_step_s, "s")
    if training.blocks:
        metrics["step_s"] = interval(training.blocks)
    metrics.update(_phase_metrics(training))
    sums = {"epoch_s": [_part_epoch(part) for part in parts]}
    if training.ready_blocks:
        ready = interval(training.ready_blocks)
        compute = intervals.epoch_estimate(ready.value, ready, training.epoch_steps)
        sums["compute_epoch_s"] = [compute, *(_part_epoch(part) for part in others)]
    for name, terms in sums.items():
        if None not in terms:
            metrics[name] = total(terms + (_occasional(clock) if name == "epoch_s" else []), NEGLIGIBLE)
    return metrics


def _phase_metrics(part: Part) -> dict[str, Estimate]:
    """Mean seconds of each phase of a steady step, with its interval: `forward_s` and so on."""
    metrics = {}
    for name in PHASES:
        blocks = [Block(block.steps, block.phases[name]) for block in part.blocks if name in block.phases]
        # A phase that some blocks lack is no part of every step, and has no mean that could be added to others.
        if blocks and len(blocks) == len(part.blocks):
            metrics[f"{name}_s"] = interval(blocks)
    return metrics


def fit_metric(clock: StepClock, epochs: int, before_s: float, later: Sequence[float] = ()) -> Estimate | None:
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
    seconds = before_s + sum(later)
    steady_epochs = []
    for part in parts:
        if part.blocks:
            steady = interval(part.blocks)
        else:  # a whole epoch of a few steps: what followed the first is all there is to go by
            rest_s = (part.seconds - part.first_step_s) / (part.steps - 1) if part.steps > 1 else part.first_step_s
            steady = Estimate(rest_s, "s")
        seconds += part.seconds if part.complete else part.first_step_s + (part.epoch_steps - 1) * steady.value
        steady_epochs.append(part.epoch_steps * steady)
    epoch = total(steady_epochs, NEGLIGIBLE)
    seconds += (epochs - 1 - len(later)) * (sum(later) / len(later) if later else epoch.value)
    return (epoch * (seconds / epoch.value)).replace(value=seconds, how="estimated")


def part_metrics(clock: StepClock) -> dict[str, Estimate]:
    """Seconds that each part takes of an epoch, by the part's name."""
    epochs = {name: _part_epoch(part) for name, part in clock.parts.items()}
    return {name: epoch for name, epoch in epochs.items() if epoch is not None}


def _part_epoch(part: Part) -> Estimate | None:
    """A part's share of an epoch."""
    once = _part_once(part)
    return once if once is None or part.per_epoch == 1 else (once * part.per_epoch).replace(how="estimated")


def _part_once(part: Part) -> Estimate | None:
    steady = interval(part.blocks) if part.blocks else None
    if part.complete:
        # One epoch has one time. The spread of its blocks says how well this run pins it down.
        spread = 0.0 if steady is None or steady.high is None else steady.high / steady.value - 1
        low, high = (part.seconds * (1 - spread), part.seconds * (1 + spread)) if spread else (None, None)
        return Estimate(part.seconds, "s", low, high, part.steps)
    if steady is None or part.first_step_s is None:
        return None
    return intervals.epoch_estimate(part.first_step_s, steady, part.epoch_steps)


def _occasional(clock: StepClock) -> list[Estimate]:
    """The share of an epoch of each kind of occasional work; what is within a part that ran whole is in its time."""
    return [
        intervals.interval(work.seconds) * work.per_epoch
        for work in clock.occasional_work.values()
        if work.seconds and not (work.part and clock.parts[work.part].complete)
    ]


def rate(amount: float, seconds: Estimate, unit: str) -> Estimate:
    """`amount` over a time."""
    return (amount / seconds).replace(unit=unit)
