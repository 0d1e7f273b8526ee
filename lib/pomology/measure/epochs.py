"""Seconds per step and per epoch, computed from blocks of steps."""

import numpy as np

from pomology.measure.clock import PHASES, SPLIT_STEPS, Block, StepClock, interval, steps_in
from pomology.measure.estimate import Estimate, estimate, total
from pomology.measure.intervals import interval as mean_interval

SPREAD_BLOCKS = 20


def epoch_metrics(clock: StepClock) -> dict[str, Estimate]:
    """Return the times of one epoch by metric name.

    step_s: mean of the steady training steps. forward_s, backward_s, update_s: means of its phases.
    epoch_s: all parts and occasional work; `measured`, without an interval, if every step ran.
    compute_epoch_s: the same with steps on pre-loaded batches and without occasional work; absent
    with fewer than 10 steps of either kind.
    """
    training = next(iter(clock.parts.values()), None)
    if training is None or training.first_step_s is None:
        return {}
    metrics = {"first_step_s": Estimate(training.first_step_s, "s")}
    blocks = training.blocks
    if blocks:
        metrics["step_s"] = interval(blocks)
    metrics |= {f"{name}_s": interval(phase) for name, phase in phases(blocks).items()}
    # Without the time of one part, such as the evaluation, there is no time of the epoch.
    epochs = list(part_metrics(clock).values())
    if len(epochs) < len(clock.parts):
        return metrics
    occasional = [
        without_range(mean_interval(work.seconds)) * work.per_epoch
        for work in clock.occasional_work.values()
        # The time of a part that ran whole includes its occasional work.
        if work.seconds and not (work.part and work.part.complete)
    ]
    epoch = total(epochs + occasional)
    # A single epoch does not show how much another one would differ.
    metrics["epoch_s"] = epoch.replace(n=1, covers="none") if epoch.covers == "exact" else epoch
    loop = training.steps if training.complete else steps_in(blocks)
    if min(loop, steps_in(training.ready_blocks)) >= SPLIT_STEPS:
        ready = interval(training.ready_blocks)
        compute = epoch_estimate(ready.value, ready, training.epoch_steps)
        metrics["compute_epoch_s"] = total([compute, *epochs[1:]])
    return metrics


def spread(blocks: list[Block]) -> dict[str, Estimate]:
    """Return the median and the 95th percentile of a step by metric name, of 20 blocks at least.

    Quick steps are timed in blocks, whose means count.
    """
    if len(blocks) < SPREAD_BLOCKS:
        return {}
    percentiles = np.percentile([block.step_s for block in blocks], (50, 95))
    names = ("step_median_s", "step_p95_s")
    return {
        name: Estimate(float(seconds), "s", n=len(blocks))
        for name, seconds in zip(names, percentiles, strict=True)
    }


def phases(blocks: list[Block]) -> dict[str, list[Block]]:
    """Return the blocks of each phase that every block has, by phase."""
    names = [name for name in PHASES if blocks and all(name in block.phases for block in blocks)]
    return {name: [Block(block.steps, block.phases[name]) for block in blocks] for name in names}


def part_metrics(clock: StepClock) -> dict[str, Estimate]:
    """Return the seconds per epoch of each part, by its name: measured if all of it ran."""
    epochs = {}
    for name, part in clock.parts.items():
        if part.complete:
            epoch = Estimate(part.seconds, "s", n=part.steps, covers="exact")
        elif part.blocks:
            epoch = epoch_estimate(part.first_step_s, interval(part.blocks), part.epoch_steps)
        if part.per_epoch and (part.complete or part.blocks):
            whole = part.per_epoch == 1
            epochs[name] = epoch if whole else (epoch * part.per_epoch).replace(how="estimated")
    return epochs


def epoch_estimate(first_step_s: float, step: Estimate, steps: float) -> Estimate:
    """Return the seconds of an epoch: its first step as timed, the others at the mean.

    The range of a few steps is not that of an epoch, in which not every step is the slowest.
    """
    rest = max(steps - 1, 0) * without_range(step)
    return (estimate(first_step_s, "s") + rest).replace(how="estimated")


def without_range(step: Estimate) -> Estimate:
    """Return a mean without the range of few values, which is not that of a sum of many."""
    return step.replace(low=None, high=None, covers="none") if step.covers == "seen" else step


def rate(amount: float, seconds: Estimate, unit: str) -> Estimate:
    """Return an amount, such as samples, per second in `unit`."""
    return (amount / seconds).replace(unit=unit)
