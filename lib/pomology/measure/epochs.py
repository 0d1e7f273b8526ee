"""From blocks of steps to seconds per step, epoch and training."""

import math

from pomology.measure.clock import PHASES, SPLIT_STEPS, Block, Part, StepClock, interval, steps_in
from pomology.measure.estimate import Estimate, total
from pomology.measure.intervals import interval as mean_interval

NEGLIGIBLE = 0.01  # what of an epoch may be of unknown spread


def epoch_metrics(clock: StepClock) -> dict[str, Estimate]:
    """Return what was timed of one epoch, by the record's names.

    What no step was run for is absent. first_step_s: of training. step_s: mean of its steady steps;
    forward_s, backward_s, update_s: of that, if the loop has these phases. epoch_s: all parts and
    occasional work; `measured` if every step ran, else `estimated`. compute_epoch_s: the same with
    every training step as it is on ready batches, and no occasional work, where 10 steps ran of
    each.
    """
    training = next(iter(clock.parts.values()), None)
    if training is None or training.first_step_s is None:
        return {}
    metrics = {"first_step_s": Estimate(training.first_step_s, "s")}
    blocks = training.blocks
    if blocks:
        metrics["step_s"] = interval(blocks)
    for name in PHASES if blocks else ():
        # A phase that some blocks lack is no part of every step.
        if all(name in block.phases for block in blocks):
            phase = [Block(block.steps, block.phases[name]) for block in blocks]
            metrics[f"{name}_s"] = interval(phase)
    epochs = [_part_epoch(part) for part in clock.parts.values()]
    if None in epochs:
        return metrics
    metrics["epoch_s"] = total(epochs + _occasional(clock), NEGLIGIBLE)
    loop = training.steps if training.complete else steps_in(blocks)
    if min(loop, steps_in(training.ready_blocks)) >= SPLIT_STEPS:
        ready = interval(training.ready_blocks)
        compute = epoch_estimate(ready.value, ready, training.epoch_steps)
        metrics["compute_epoch_s"] = total([compute, *epochs[1:]], NEGLIGIBLE)
    return metrics


def _occasional(clock: StepClock) -> list[Estimate]:
    """Return the seconds of occasional work that no part's own time has in it."""
    return [
        mean_interval(work.seconds) * work.per_epoch
        for work in clock.occasional_work.values()
        if work.seconds and not (work.part and clock.parts[work.part].complete)
    ]


def epoch_estimate(first_step_s: float, step: Estimate, steps: float) -> Estimate:
    """Return seconds of an epoch of `steps` steps: the first one as timed, the others at the mean.

    A median would leave the slow ones out.
    """
    rest = max(steps - 1, 0) * step
    return (Estimate.count(first_step_s, "s") + rest).replace(how="estimated")


def part_metrics(clock: StepClock) -> dict[str, Estimate]:
    """Return the seconds that each part takes of an epoch, by the part's name."""
    epochs = {name: _part_epoch(part) for name, part in clock.parts.items()}
    return {name: epoch for name, epoch in epochs.items() if epoch is not None}


def _part_epoch(part: Part) -> Estimate | None:
    steady = interval(part.blocks) if part.blocks else None
    if not part.per_epoch or not (part.complete or steady):
        return None
    if part.complete:
        # One epoch has one time. The spread of its blocks says how well this run pins it down.
        spread = steady.high / steady.value - 1 if steady and steady.high is not None else 0.0
        bounds = (None, None)
        if spread:
            bounds = (part.seconds * (1 - spread), part.seconds * (1 + spread))
        epoch = Estimate(part.seconds, "s", *bounds, part.steps)
    else:
        epoch = epoch_estimate(part.first_step_s, steady, part.epoch_steps)
    if part.per_epoch == 1:
        return epoch
    return (epoch * part.per_epoch).replace(how="estimated")


def fit_metric(
    clock: StepClock,
    epochs: int,
    seconds: float,
    steps: dict[str, float],
    idle_s: float = 0.0,
    spread: float | None = None,
) -> Estimate | None:
    """Return seconds of a whole training of several epochs, of which some were shortened.

    They are `seconds`, of all that ran, and for each step that did not the mean of the steady ones;
    None if too few ran. steps: that ran in all, by the clock's parts; a smaller last batch counts
    as its fraction. idle_s: of `seconds`, asleep between epochs, which is no part of an estimate: it
    depends on luck. spread: by which share two trainings differ at most, in 19 pairs of 20.

    Whole, it is `measured`: one training has one time, and the spread of its steps says how well
    this run pins it down. Else it says what another one would take: its bounds hold `spread`, and
    without that it has none. What did not run wanders as the steps of the mean do: both count.
    """
    parts = clock.parts.values()
    if not parts or any(not (part.blocks or part.complete) for part in parts):
        return None
    whole = []
    left = []
    for part in parts:
        step = _steady_step(part)
        whole.append(step * (epochs * part.epoch_steps))
        missing = epochs * part.epoch_steps - steps[part.name]
        if missing > 1e-6:
            if step.high is not None:
                beyond = (step.high - step.value) * math.sqrt(1 + (step.n or 0) / missing)
                step = step.replace(low=step.value - beyond, high=step.value + beyond)
            left.append(step * missing)
    if not left:
        training = total(whole, NEGLIGIBLE)
        scaled = training * (seconds / training.value)
        return scaled.replace(value=seconds, how="measured", n=epochs)
    training = total([*left, Estimate.count(seconds - idle_s, "s")], NEGLIGIBLE)
    training = training.replace(how="estimated")
    if spread is None or training.high is None:
        return training.replace(low=None, high=None, covers="none")
    most = 1 + math.hypot(training.high / training.value - 1, spread)
    return training.replace(low=training.value / most, high=training.value * most)


def _steady_step(part: Part) -> Estimate:
    """Return a step of a part; of an epoch of a few steps the mean of those after the first."""
    if part.blocks:
        return interval(part.blocks)
    if part.steps > 1:
        return Estimate((part.seconds - part.first_step_s) / (part.steps - 1), "s")
    return Estimate(part.first_step_s, "s")


def rate(amount: float, seconds: Estimate, unit: str) -> Estimate:
    return (amount / seconds).replace(unit=unit)
