"""From blocks of steps to seconds per step, epoch and training."""

import math

from pomology.measure.clock import PHASES, SPLIT_STEPS, Block, Part, StepClock, interval, steps_in
from pomology.measure.estimate import Estimate, total
from pomology.measure.intervals import interval as mean_interval

NEGLIGIBLE = 0.01  # what of an epoch may be of unknown spread


def epoch_metrics(clock: StepClock) -> dict[str, Estimate]:
    """What was timed of one epoch, by the record's names. Absent is what no step was run for.

    first_step_s: of training. step_s: mean of its steady steps; forward_s, backward_s, update_s: of that, where the
    loop has these phases, each timed by itself. epoch_s: all parts and occasional work; `measured` if every step ran,
    else `estimated`. compute_epoch_s: the same with every training step as it is on ready batches, and no occasional
    work, where 10 steps ran of each."""
    training, *_ = [*clock.parts.values(), None]
    if training is None or training.first_step_s is None:
        return {}
    metrics, blocks = {"first_step_s": Estimate(training.first_step_s, "s")}, training.blocks
    if blocks:
        metrics["step_s"] = interval(blocks)
        # A phase that some blocks lack is no part of every step, and has no mean that could be added to others.
        for name in (name for name in PHASES if all(name in block.phases for block in blocks)):
            metrics[f"{name}_s"] = interval([Block(block.steps, block.phases[name]) for block in blocks])
    epochs = [_part_epoch(part) for part in clock.parts.values()]
    if None not in epochs:
        asides = [
            mean_interval(work.seconds) * work.per_epoch
            for work in clock.occasional_work.values()
            if work.seconds and not (work.part and clock.parts[work.part].complete)  # else it is in the part's time
        ]
        metrics["epoch_s"] = total(epochs + asides, NEGLIGIBLE)
    loop = training.steps if training.complete else steps_in(blocks)
    if min(loop, steps_in(training.ready_blocks)) >= SPLIT_STEPS and None not in epochs:
        ready = interval(training.ready_blocks)
        compute = epoch_estimate(ready.value, ready, training.epoch_steps)
        metrics["compute_epoch_s"] = total([compute, *epochs[1:]], NEGLIGIBLE)
    return metrics


def epoch_estimate(first_step_s: float, step: Estimate, steps: float) -> Estimate:
    """Seconds of an epoch of `steps` steps: the first one as timed, the others at the mean of the steady steps (a
    median would leave the slow ones out), whose bounds it has."""
    return (Estimate.count(first_step_s, "s") + max(steps - 1, 0) * step).replace(how="estimated")


def part_metrics(clock: StepClock) -> dict[str, Estimate]:
    """Seconds that each part takes of an epoch, by the part's name."""
    epochs = {name: _part_epoch(part) for name, part in clock.parts.items()}
    return {name: epoch for name, epoch in epochs.items() if epoch is not None}


def _part_epoch(part: Part) -> Estimate | None:
    steady = interval(part.blocks) if part.blocks else None
    if not part.per_epoch or not (part.complete or steady):
        return None
    if part.complete:
        # One epoch has one time. The spread of its blocks says how well this run pins it down.
        spread = steady.high / steady.value - 1 if steady and steady.high is not None else 0.0
        bounds = (part.seconds * (1 - spread), part.seconds * (1 + spread)) if spread else (None, None)
        epoch = Estimate(part.seconds, "s", *bounds, part.steps)
    else:
        epoch = epoch_estimate(part.first_step_s, steady, part.epoch_steps)
    return epoch if part.per_epoch == 1 else (epoch * part.per_epoch).replace(how="estimated")


def fit_metric(
    clock: StepClock,
    epochs: int,
    seconds: float,
    steps: dict[str, float],
    idle_s: float = 0.0,
    apart: float | None = None,
) -> Estimate | None:
    """Seconds of a whole training of several epochs, of which some were shortened: seconds, of all that ran, and for
    each step that did not the mean of the steady ones. None if too few ran. steps: that ran in all, by the clock's
    parts; a smaller last batch counts as its fraction. idle_s: of `seconds`, asleep between epochs, which is no part
    of an estimate: it depends on how long an epoch took, and on luck. apart: by which share two trainings differ at
    most, in 19 pairs of 20; None if nobody knows.

    Whole, it is `measured`: one training has one time, and the spread of its steps says how well this run pins it down.
    Else it says what another one would take, so that its bounds hold how far two trainings are apart; without that it
    has none. What did not run wanders as the steps of the mean do, besides: both spreads count."""
    whole, left, parts = [], [], clock.parts.values()
    if not parts or any(not (part.blocks or part.complete) for part in parts):
        return None
    for part in parts:
        # Of a whole epoch of a few steps, what followed the first is all there is to go by.
        rest_s = (part.seconds - part.first_step_s) / (part.steps - 1) if part.steps > 1 else part.first_step_s
        step = interval(part.blocks) if part.blocks else Estimate(rest_s, "s")
        whole.append(step * (epochs * part.epoch_steps))
        missing = epochs * part.epoch_steps - steps[part.name]
        if missing > 1e-6:
            beyond = ((step.high or step.value) - step.value) * math.sqrt(1 + (step.n or 0) / missing)
            bounds = {"low": step.value - beyond, "high": step.value + beyond} if step.high is not None else {}
            left.append(step.replace(**bounds) * missing)
    if left:
        training = total([*left, Estimate.count(seconds - idle_s, "s")], NEGLIGIBLE).replace(how="estimated")
        if apart is None or training.high is None:
            return training.replace(low=None, high=None, covers="none")
        most = 1 + math.hypot(training.high / training.value - 1, apart)
        return training.replace(low=training.value / most, high=training.value * most)
    training = total(whole, NEGLIGIBLE)
    return (training * (seconds / training.value)).replace(value=seconds, how="measured", n=epochs)


def rate(amount: float, seconds: Estimate, unit: str) -> Estimate:
    return (amount / seconds).replace(unit=unit)
