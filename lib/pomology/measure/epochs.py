"""From blocks of steps to seconds per step, epoch and training."""

from pomology.measure.clock import PHASES, SPLIT_STEPS, Block, Part, StepClock, interval, steps_in
from pomology.measure.estimate import Estimate, total
from pomology.measure.intervals import interval as mean_interval

NEGLIGIBLE = 0.01  # what of an epoch may be of unknown spread


def epoch_metrics(clock: StepClock) -> dict[str, Estimate]:
    """Return what was timed of one epoch, by the record's names.

    step_s: mean of the steady training steps; forward_s, backward_s, update_s: its phases. epoch_s:
    all parts and occasional work; `measured` if every step ran. compute_epoch_s: with training
    steps as they are on ready batches, and no occasional work, where 10 steps ran of each.
    """
    training = next(iter(clock.parts.values()), None)
    if training is None or training.first_step_s is None:
        return {}
    metrics = {"first_step_s": Estimate(training.first_step_s, "s")}
    blocks = training.blocks
    if blocks:
        metrics["step_s"] = interval(blocks)
    for name in PHASES:
        # A phase that some blocks lack is no part of every step.
        if blocks and all(name in block.phases for block in blocks):
            phase = [Block(block.steps, block.phases[name]) for block in blocks]
            metrics[f"{name}_s"] = interval(phase)
    epochs = list(part_metrics(clock).values())
    if len(epochs) < len(clock.parts):
        return metrics
    occasional = [
        mean_interval(work.seconds) * work.per_epoch
        for work in clock.occasional_work.values()
        # A part that ran whole has it in its own time.
        if work.seconds and not (work.part and clock.parts[work.part].complete)
    ]
    metrics["epoch_s"] = total(epochs + occasional, NEGLIGIBLE)
    loop = training.steps if training.complete else steps_in(blocks)
    if min(loop, steps_in(training.ready_blocks)) >= SPLIT_STEPS:
        ready = interval(training.ready_blocks)
        compute = epoch_estimate(ready.value, ready, training.epoch_steps)
        metrics["compute_epoch_s"] = total([compute, *epochs[1:]], NEGLIGIBLE)
    return metrics


def epoch_estimate(first_step_s: float, step: Estimate, steps: float) -> Estimate:
    """Return seconds of an epoch of `steps` steps: the first as timed, the others at the mean."""
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
        epoch = Estimate(part.seconds, "s", n=part.steps)
        spread = steady.high / steady.value - 1 if steady and steady.high is not None else 0.0
        if spread:
            low, high = part.seconds * (1 - spread), part.seconds * (1 + spread)
            epoch = Estimate(part.seconds, "s", low, high, part.steps)
    else:
        epoch = epoch_estimate(part.first_step_s, steady, part.epoch_steps)
    if part.per_epoch == 1:
        return epoch
    return (epoch * part.per_epoch).replace(how="estimated")


def fit_metric(
    clock: StepClock, epochs: int, seconds: float, steps: dict[str, float], idle_s: float = 0.0
) -> Estimate | None:
    """Return seconds of a training of several epochs, of which some were shortened.

    They are `seconds`, of all that ran, and the mean step for each that did not; None if too few
    ran. steps: that ran, by part. idle_s: of `seconds`, asleep between epochs, which depends on
    luck and is no part of an estimate. How much another training differs, one cannot tell: an
    estimate has no bounds.
    """
    parts = clock.parts.values()
    if not parts or any(not (part.blocks or part.complete) for part in parts):
        return None
    whole = []
    missing_s = 0.0
    for part in parts:
        step = _steady_step(part)
        count = epochs * part.epoch_steps
        whole.append(step * count)
        if count - steps[part.name] > 1e-6:
            missing_s += step.value * (count - steps[part.name])
    training = total(whole, NEGLIGIBLE)
    if missing_s:
        return Estimate(seconds - idle_s + missing_s, "s", n=training.n, how="estimated")
    return (training * (seconds / training.value)).replace(value=seconds, how="measured", n=epochs)


def _steady_step(part: Part) -> Estimate:
    """Return a step of a part; of an epoch of a few steps the mean of those after the first."""
    if part.blocks:
        return interval(part.blocks)
    if part.steps > 1:
        return Estimate((part.seconds - part.first_step_s) / (part.steps - 1), "s")
    return Estimate(part.first_step_s, "s")


def rate(amount: float, seconds: Estimate, unit: str) -> Estimate:
    return (amount / seconds).replace(unit=unit)
