"""From blocks of steps to seconds of an epoch and of a training."""

from __future__ import annotations

import pytest
from fakes import Clock, train

from pomology.measure import epochs
from pomology.measure.clock import StepClock
from pomology.measure.epochs import epoch_estimate, epoch_metrics
from pomology.measure.estimate import Estimate
from pomology.measure.intervals import interval

EXACT = {"rel": 1e-9, "abs": 1e-12}


def exactly(expected):
    return pytest.approx(expected, **EXACT)


def value(clock: StepClock, name: str) -> float:
    return epoch_metrics(clock)[name].value


def timed(length, step_s, **options) -> StepClock:
    """The clock of a training in simulated time, whose steps take `step_s`."""
    clock = StepClock(clock=Clock(), **options)
    train(clock, range(length), lambda number: clock.clock.pass_s(step_s))
    return clock


def same(batch):
    return batch


def test_steps_of_no_epoch_have_no_time_of_one():
    now = Clock()
    clock = StepClock(clock=now, budget_s=6, to_device=same)
    for _ in clock.steps(range(1000), per_epoch=0):
        now.pass_s(0.1)
    assert clock.parts["training"].ready_blocks and value(clock, "step_s") == exactly(0.1)
    assert not {"epoch_s", "compute_epoch_s"} & epoch_metrics(clock).keys()


def test_one_estimated_part_makes_the_epoch_an_estimate_and_one_left_early_takes_it_away():
    assert epoch_metrics(StepClock(clock=Clock())) == {}
    clock = timed(100, 0.01, budget_s=10)
    train(clock, range(5_000), lambda number: clock.clock.pass_s(0.005), "evaluation")
    part, metric = clock.parts["evaluation"], epoch_metrics(clock)["epoch_s"]
    # It gets a quarter of the budget.
    assert not part.complete and sum(block.seconds for block in part.blocks) < 10 / 4 + 0.1
    assert (metric.value, metric.how) == (exactly(1.0 + 25.0), "estimated")
    next(clock.steps(range(1_000), "left"))
    assert "epoch_s" not in epoch_metrics(clock) and value(clock, "step_s") == exactly(0.01)
    assert set(epochs.part_metrics(clock)) == {"training", "evaluation"}


def drive(clock: StepClock, steps: int, step_s, part: str = "training"):
    """A trainer that calls back before each of its steps."""
    loop = clock.steps(range(steps), part, ready=False)
    for number in range(steps):
        if next(loop, None) is None:
            return
        clock.clock.pass_s(step_s(number))
    next(loop, None)  # ends the last step


def slow_first(number):
    return 0.004 if number else 2.0


@pytest.mark.parametrize("whole", [True, False])
def test_a_training_is_what_ran_of_it_and_the_steps_that_did_not(whole):
    clock = StepClock(clock=Clock(), whole=whole, budget_s=1.0)
    drive(clock, 10_000, slow_first)
    drive(clock, 2000, slow_first, "validation")
    assert clock.parts["training"].complete == whole
    parts = clock.parts.values()
    ran = {part.name: part.steps for part in parts}
    found = epochs.fit_metric(clock, 5, 0.3 + sum(part.seconds for part in parts), ran)
    # By hand: both parts trace once, and every other step is like the next.
    by_hand = 0.3 + 2.0 + (5 * 10_000 - 1) * 0.004 + 2.0 + (5 * 2000 - 1) * 0.004
    assert (found.value, found.how) == (pytest.approx(by_hand, rel=1e-9), "estimated")
    assert (found.unit, found.low) == ("s", None)


def test_an_epoch_is_its_first_step_and_the_others_with_the_bounds_of_the_mean():
    assert (
        epoch_estimate(1.6, interval([0.5]), 0.25).value == 1.6
    )  # the first step was the partial batch
    found = epoch_estimate(10.0, Estimate(2.0, "s", 1.5, 2.5, 100), 101)
    assert found == Estimate(210.0, "s", 160.0, 260.0, 100, "estimated")
    assert epoch_estimate(10.0, Estimate(2.0, "s"), 101) == Estimate(210.0, "s", how="estimated")
