"""Seconds per epoch, computed from blocks of steps."""

from fakes import Clock, seconds_of, train, value
from pytest import approx

from pomology.measure.clock import StepClock
from pomology.measure.epochs import epoch_estimate, epoch_metrics, part_metrics
from pomology.measure.estimate import Estimate
from pomology.measure.intervals import interval


def test_a_loop_that_is_no_part_of_an_epoch_has_no_epoch_time():
    now = Clock()
    clock = StepClock(clock=now, budget_s=6, to_device=lambda batch: batch)
    for _ in clock.steps(range(1000), per_epoch=0):
        now.pass_s(0.1)
    assert clock.parts["training"].ready_blocks and value(clock, "step_s") == approx(0.1)
    assert not {"epoch_s", "compute_epoch_s"} & epoch_metrics(clock).keys()


def test_an_estimated_part_makes_an_estimated_epoch_and_a_part_left_early_makes_none():
    assert epoch_metrics(StepClock(clock=Clock())) == {}
    clock = StepClock(clock=Clock(), budget_s=10)
    train(clock, range(100), lambda number: clock.clock.pass_s(0.01))
    train(clock, range(5_000), lambda number: clock.clock.pass_s(0.005), "evaluation")
    part, metric = clock.parts["evaluation"], epoch_metrics(clock)["epoch_s"]
    # It gets a quarter of the budget.
    assert not part.complete and seconds_of(part.blocks) < 10 / 4 + 0.1
    assert (metric.value, metric.how) == (approx(1.0 + 25.0), "estimated")
    next(clock.steps(range(1_000), "left"))
    assert "epoch_s" not in epoch_metrics(clock) and value(clock, "step_s") == approx(0.01)
    assert set(part_metrics(clock)) == {"training", "evaluation"}


def test_an_epoch_is_the_first_step_plus_the_others_at_the_mean_with_its_bounds():
    # The first step was the partial batch.
    assert epoch_estimate(1.6, interval([0.5]), 0.25).value == 1.6
    found = epoch_estimate(10.0, Estimate(2.0, "s", 1.5, 2.5, 100), 101)
    assert found == Estimate(210.0, "s", 160.0, 260.0, 100, "estimated")
    assert epoch_estimate(10.0, Estimate(2.0, "s"), 101) == Estimate(210.0, "s", how="estimated")
