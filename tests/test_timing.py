"""The clock against times that are known: exactly in simulated time, within one-sided bounds on a threaded device."""

from __future__ import annotations

import gc
import itertools
import math
import time
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import Batch, Clock, Loader, SimulatedDevice, ThreadedDevice, train

from pomology.measure import clock as measure_clock
from pomology.measure import epochs
from pomology.measure.calls import measure
from pomology.measure.clock import Block, StepClock, epoch_steps
from pomology.measure.epochs import epoch_metrics

EXACT = {"rel": 1e-9, "abs": 1e-12}


def value(clock: StepClock, name: str) -> float:
    return epoch_metrics(clock)[name].value


def steps_of(blocks: list[Block]) -> int:
    return sum(block.steps for block in blocks)


# --- Epochs in simulated time: whole ones ---------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 3, 12, 469])
def test_a_whole_epoch_is_measured_exactly_with_its_slow_first_step(length):
    now = Clock()
    clock = StepClock(clock=now)
    seen = train(clock, range(length), lambda number: now.pass_s(3.0 if number == 0 else 0.004))
    part, metrics = clock.parts["training"], epoch_metrics(clock)
    assert [batch for batch, _ in seen] == list(range(length))
    assert part.complete
    assert part.stopped == "whole epoch"
    assert part.steps == length
    assert metrics["epoch_s"].value == pytest.approx(3.0 + (length - 1) * 0.004, **EXACT)
    assert metrics["epoch_s"].how == "measured"
    assert metrics["first_step_s"].value == pytest.approx(3.0, **EXACT)
    assert "compute_epoch_s" not in metrics
    if length > 2:
        assert metrics["step_s"].value == pytest.approx(0.004, **EXACT)
    else:
        assert "step_s" not in metrics


def test_what_lies_between_two_steps_belongs_to_them():
    now = Clock()
    clock = StepClock(clock=now)
    train(clock, Loader(50, now, load_s=0.002), lambda number: now.pass_s(0.003))
    assert value(clock, "step_s") == pytest.approx(0.005, **EXACT)
    assert value(clock, "epoch_s") == pytest.approx(50 * 0.005, **EXACT)


def test_the_first_step_includes_the_start_of_the_loader():
    class Slow(Loader):
        def __iter__(self):
            now.pass_s(1.5)  # workers start here
            return super().__iter__()

    now = Clock()
    clock = StepClock(clock=now)
    train(clock, Slow(20, now), lambda number: now.pass_s(0.01))
    assert value(clock, "first_step_s") == pytest.approx(1.51, **EXACT)
    assert value(clock, "epoch_s") == pytest.approx(1.7, **EXACT)


def test_a_smaller_last_batch_is_in_the_epoch_but_in_no_mean():
    now = Clock()
    clock = StepClock(clock=now)
    train(clock, Loader(12), lambda number: now.pass_s(0.072 if number == 11 else 0.1), steps=11.72)
    part = clock.parts["training"]
    assert part.complete
    assert part.steps == 12
    assert part.last_step_s == pytest.approx(0.072, **EXACT)
    assert value(clock, "epoch_s") == pytest.approx(1.172, **EXACT)
    assert value(clock, "step_s") == pytest.approx(0.1, **EXACT)


@pytest.mark.parametrize(
    ("length", "whole", "expected"),
    [(900, False, True), (1100, False, False), (1100, True, True)],  # of 10 ms each, with a budget of 10 s
)
def test_an_epoch_that_fits_the_budget_or_is_asked_for_runs_whole(length, whole, expected):
    now = Clock()
    clock = StepClock(clock=now, budget_s=10, whole=whole)
    train(clock, range(length), lambda number: now.pass_s(0.01))
    part = clock.parts["training"]
    assert part.complete is expected
    assert (part.steps == length) is expected
    assert epoch_metrics(clock)["epoch_s"].how == ("measured" if expected else "estimated")


def test_long_epochs_have_longer_blocks_instead_of_more():
    now = Clock()
    clock = StepClock(clock=now, whole=True)
    train(clock, range(60_000), lambda number: now.pass_s(0.03))
    part = clock.parts["training"]
    assert 500 < len(part.blocks) <= measure_clock.BLOCKS_MOST
    assert part.seconds == pytest.approx(1800, **EXACT)

    clock = StepClock(clock=now, budget_s=100)
    train(clock, range(10**6), lambda number: now.pass_s(0.01 * (1 + number / 5_000)))
    part = clock.parts["training"]
    assert part.stopped == "budget"
    assert 500 < len(part.blocks) <= measure_clock.BLOCKS_MOST


# --- Epochs in simulated time: estimated ones -----------------------------------------------------------------------


@pytest.mark.parametrize("step_s", [0.0005, 0.01, 0.7])
def test_an_epoch_estimated_from_constant_steps_is_exact(step_s):
    now = Clock()
    clock = StepClock(clock=now, budget_s=3)
    train(clock, Loader(20_000), lambda number: now.pass_s(2.0 if number == 0 else step_s), steps=19_999.25)
    part, metrics = clock.parts["training"], epoch_metrics(clock)
    assert not part.complete
    assert part.last_step_s is None
    assert metrics["epoch_s"].value == pytest.approx(2.0 + 19_998.25 * step_s, **EXACT)
    assert metrics["epoch_s"].how == "estimated"
    assert metrics["step_s"].how == "measured"


def test_a_slow_first_step_says_nothing_of_the_pace():
    # A first step of seconds is usual on a GPU that compiles; blocks sized by it would be one step long, all fence.
    now = Clock()
    clock = StepClock(clock=now, budget_s=10)
    train(clock, range(469), lambda number: now.pass_s(5.0 if number == 0 else 0.002))
    part = clock.parts["training"]
    assert part.complete
    assert steps_of(part.warmup) > 0
    assert {block.steps for block in part.blocks[:-1]} == {math.ceil(measure_clock.BLOCK_S / 0.002)}


def test_warm_up_is_kept_apart_and_doubles():
    now = Clock()
    clock = StepClock(clock=now, budget_s=10)
    train(clock, range(5_000), lambda number: now.pass_s(0.05 if number < 40 else 0.01))
    part = clock.parts["training"]
    sizes = [block.steps for block in part.warmup]
    assert sizes[:5] == [1, 2, 4, 8, 16]
    assert sum(sizes[:-1]) * 0.01 < 2.0  # it ends with the block that reaches 2 s
    assert value(clock, "step_s") == pytest.approx(0.01, **EXACT)
    assert value(clock, "epoch_s") == pytest.approx(0.05 + 4_999 * 0.01, **EXACT)

    clock = StepClock(clock=now, budget_s=10)
    train(clock, range(30), lambda number: now.pass_s(0.01))
    assert steps_of(clock.parts["training"].warmup) == 3  # a tenth of the epoch at most


def test_an_epoch_that_ends_sooner_than_expected_is_whole_and_its_time_without_ready_steps():
    now = Clock()
    clock = StepClock(clock=now, budget_s=10, to_device=lambda batch: batch)
    cost = [0.02 if number < 91 else 0.004 * (1 + number / 900) for number in range(2_000)]
    real = []

    def step(number):
        seconds = cost[len(real)] if not clock.on_ready else 0.003
        if not clock.on_ready:
            real.append(seconds)
        now.pass_s(seconds)

    train(clock, range(900), step)
    part, metrics = clock.parts["training"], epoch_metrics(clock)
    assert sum(block.seconds for block in part.ready_blocks) > 0.5  # in between
    assert part.stopped == "whole epoch"
    assert metrics["epoch_s"].value == part.seconds == pytest.approx(sum(real), **EXACT)
    assert metrics["epoch_s"].how == "measured"


def test_very_slow_steps_stop_at_the_least_that_has_a_spread():
    now, device = Clock(), []
    clock = StepClock(clock=now, budget_s=10, to_device=lambda batch: device.append(batch) or batch)
    train(clock, Loader(1_000), lambda number: now.pass_s(30.0))
    part = clock.parts["training"]
    assert part.stopped == "budget"
    assert steps_of(part.blocks) == measure_clock.STEPS_LEAST
    assert part.steps == 1 + measure_clock.STEPS_LEAST
    assert steps_of(part.ready_blocks) == 1
    assert value(clock, "epoch_s") == pytest.approx(30_000, **EXACT)


@pytest.mark.parametrize(("budget_s", "step_s"), [(0.5, 0.0007), (3, 0.02), (20, 0.3)])
@pytest.mark.parametrize("put", [None, lambda batch: batch])
def test_the_budget_holds(budget_s, step_s, put):
    now = Clock()
    noise = np.random.default_rng(1).lognormal(0, 1.5, 500)
    clock = StepClock(clock=now, budget_s=budget_s, to_device=put)
    # Ever slower, so that no interval becomes narrow.
    train(clock, range(10**6), lambda number: now.pass_s(step_s * noise[number % 500] * (1 + now() / budget_s)))
    part = clock.parts["training"]
    assert part.stopped == "budget"
    steady_s = sum(block.seconds for block in part.blocks + part.ready_blocks)
    largest = max(block.seconds for block in part.blocks + part.ready_blocks)
    assert budget_s <= steady_s <= budget_s * 1.4 + 2 * largest  # a burst is a fifth, and ends with a block
    if put:
        ready_s = sum(block.seconds for block in part.ready_blocks)
        assert ready_s / steady_s == pytest.approx(measure_clock.READY_SHARE, abs=0.1 + 2 * largest / budget_s)
    warm_up = [block.seconds for block in part.warmup]
    assert sum(warm_up[:-1]) <= min(2.0, budget_s / 5)


def test_the_stop_rule_fires_on_quiet_steps_but_not_before_the_third_burst():
    now = Clock()
    noise = np.random.default_rng(2).normal(1, 0.01, 1000)
    clock = StepClock(clock=now, budget_s=30)
    train(clock, range(10**6), lambda number: now.pass_s(0.01 * noise[number % 1000]))
    part, metric = clock.parts["training"], epoch_metrics(clock)["step_s"]
    steady_s = sum(block.seconds for block in part.blocks)
    assert part.stopped == "interval"
    assert steady_s == pytest.approx(3 / 5 * 30, rel=0.02)
    assert (metric.high - metric.value) / metric.value <= measure_clock.TARGET
    assert metric.value == pytest.approx(0.01, rel=0.005)


@pytest.mark.parametrize(
    ("step_s", "budget_s", "why"),
    [
        (lambda number: 0.5, 40.0, "fewer than 100 steps"),
        (lambda number: 0.01 * (1 + 9 * (number % 97 == 0)), 3.0, "rare slow steps that the mean must hold"),
        (lambda number: 0.01 + 1e-5 * number, 10.0, "steps that become slower"),
    ],
)
def test_the_stop_rule_does_not_fire_on(step_s, budget_s, why):
    now = Clock()
    clock = StepClock(clock=now, budget_s=budget_s)
    train(clock, range(10**6), lambda number: now.pass_s(step_s(number)))
    assert clock.parts["training"].stopped == "budget", why


def test_the_stop_rule_waits_for_ready_steps_as_well():
    now = Clock()
    clock = StepClock(clock=now, budget_s=30, to_device=lambda batch: batch)
    noise = np.random.default_rng(3).lognormal(0, 1.5, 500)
    train(clock, range(10**6), lambda number: now.pass_s(0.01 * (noise[number % 500] if clock.on_ready else 1)))
    assert clock.parts["training"].stopped == "budget"


def autocorrelated(generator: np.random.Generator, count: int, mean: float, spread: float, lag_1: float) -> np.ndarray:
    """Step times of an AR(1) process with the given coefficient of variation."""
    shocks = generator.normal(0, spread * math.sqrt(1 - lag_1**2), count)
    shocks[0] = generator.normal(0, spread)
    for number in range(1, count):
        shocks[number] += lag_1 * shocks[number - 1]
    return mean * np.clip(1 + shocks, 0.2, None)


def test_estimates_from_autocorrelated_steps_are_unbiased_and_covered():
    generator, truth = np.random.default_rng(4), 0.005
    errors, covered = [], 0
    for _ in range(100):
        now, times = Clock(), autocorrelated(generator, 1_500, truth, 0.15, 0.5)
        clock = StepClock(clock=now, budget_s=2)
        # Cold caches: three times as slow for the first ten steps. None of that may reach the estimate.
        train(clock, range(10_000), lambda number, t=times, c=now: c.pass_s(t[number] * (3 if number < 10 else 1)))
        metrics = epoch_metrics(clock)
        part, metric = clock.parts["training"], metrics["step_s"]
        assert not part.complete
        errors.append(metric.value / truth - 1)
        covered += metric.low <= truth <= metric.high
        whole = part.first_step_s + 9_999 * metric.value
        assert metrics["epoch_s"].value == pytest.approx(whole, **EXACT)
    standard_error = np.std(errors) / 10
    assert abs(np.mean(errors)) < 4 * standard_error < 0.006
    assert covered >= 85


def test_slow_wander_of_the_machine_neither_biases_nor_parts_the_two_loops():
    # The machine's speed swings by 20 % within the budget. Bursts by turns see the same of it in both loops.
    generator, ratios, errors = np.random.default_rng(5), [], []
    for _ in range(40):
        now, phase = Clock(), generator.uniform(0, 2 * np.pi)
        clock = StepClock(clock=now, budget_s=10, to_device=lambda batch: batch)

        def step(number, now=now, phase=phase, clock=clock):
            speed = 1 + 0.2 * math.sin(2 * math.pi * now() / 8.0 + phase)
            now.pass_s((0.004 if clock.on_ready else 0.006) / speed)

        train(clock, range(10**5), step)
        metrics = epoch_metrics(clock)
        errors.append(metrics["step_s"].value / 0.006 - 1)
        ratios.append(metrics["compute_epoch_s"].value / (10**5 * metrics["step_s"].value) / (4 / 6) - 1)
    assert abs(np.mean(errors)) < 0.02
    assert np.percentile(np.abs(ratios), 95) < 0.08
    assert abs(np.mean(ratios)) < 0.02


# --- Evaluation and asides ------------------------------------------------------------------------------------------


def test_an_evaluation_is_added_to_the_epoch_and_not_to_the_steps():
    now = Clock()
    clock = StepClock(clock=now, budget_s=10, to_device=lambda batch: batch)
    train(clock, range(100), lambda number: now.pass_s(0.01))
    now.pass_s(100)  # between two parts nothing is timed
    train(clock, range(40), lambda number: now.pass_s(0.2 if number == 0 else 0.005), "evaluation")
    metrics = epoch_metrics(clock)
    assert metrics["epoch_s"].value == pytest.approx(1.0 + 0.2 + 39 * 0.005, **EXACT)
    assert metrics["epoch_s"].how == "measured"
    assert metrics["compute_epoch_s"].value == pytest.approx(1.0 + 0.2 + 39 * 0.005, **EXACT)
    assert metrics["step_s"].value == pytest.approx(0.01, **EXACT)
    assert metrics["first_step_s"].value == pytest.approx(0.01, **EXACT)
    assert clock.parts["evaluation"].ready_blocks == []


def test_one_estimated_part_makes_the_epoch_an_estimate():
    now = Clock()
    clock = StepClock(clock=now, budget_s=10)
    train(clock, range(100), lambda number: now.pass_s(0.01))
    train(clock, range(5_000), lambda number: now.pass_s(0.005), "evaluation")
    part, metrics = clock.parts["evaluation"], epoch_metrics(clock)
    assert not part.complete
    assert sum(block.seconds for block in part.blocks) < 10 / 4 + 0.1  # an evaluation gets a quarter of the budget
    assert metrics["epoch_s"].value == pytest.approx(1.0 + 25.0, **EXACT)
    assert metrics["epoch_s"].how == "estimated"


def test_an_epoch_is_absent_while_a_part_of_it_is():
    now = Clock()
    clock = StepClock(clock=now)
    assert epoch_metrics(clock) == {}
    train(clock, range(100), lambda number: now.pass_s(0.01))
    for _ in clock.steps(range(1_000), "evaluation"):
        now.pass_s(0.01)
        break
    metrics = epoch_metrics(clock)
    assert "epoch_s" not in metrics
    assert metrics["step_s"].value == pytest.approx(0.01, **EXACT)


@pytest.mark.parametrize("length", [200, 100_000], ids=["whole", "estimated"])
@pytest.mark.parametrize("put", [None, lambda batch: batch], ids=["real only", "ready too"])
def test_asides_are_counted_exactly_once(length, put):
    now = Clock()
    clock = StepClock(clock=now, budget_s=5, to_device=put)

    def step(number):
        now.pass_s(0.004)
        if number % 10 == 3:  # in the first step, in warm-up, in blocks and on ready batches alike
            with clock.occasional("picture", per_epoch=length / 10):
                now.pass_s(0.05)
                with clock.occasional("file", per_epoch=length / 10):
                    now.pass_s(0.02)
        now.pass_s(0.004)

    train(clock, range(length), step)
    with clock.occasional("checkpoint", per_epoch=1):
        now.pass_s(2.5)
    metrics = epoch_metrics(clock)
    assert clock.parts["training"].complete is (length == 200)
    assert metrics["step_s"].value == pytest.approx(0.008, **EXACT)
    assert metrics["epoch_s"].value == pytest.approx(length * 0.008 + length / 10 * 0.07 + 2.5, **EXACT)
    assert np.allclose(clock.occasional_work["picture"].seconds, 0.05, rtol=1e-9, atol=0)
    assert np.allclose(clock.occasional_work["file"].seconds, 0.02, rtol=1e-9, atol=0)
    assert (clock.occasional_work["picture"].part, clock.occasional_work["checkpoint"].part) == ("training", None)
    if put:
        assert metrics["compute_epoch_s"].value == pytest.approx(length * 0.008, **EXACT)


def test_an_aside_that_fails_is_no_time_of_one():
    now = Clock()
    clock = StepClock(clock=now)
    with pytest.raises(OSError), clock.occasional("checkpoint", per_epoch=1):
        raise OSError("disk full")
    train(clock, range(5), lambda number: now.pass_s(0.1))
    assert clock.occasional_work["checkpoint"].seconds == []
    assert value(clock, "epoch_s") == pytest.approx(0.5, **EXACT)


# --- Ready batches --------------------------------------------------------------------------------------------------


def put(batch: Batch) -> Batch:
    return Batch(batch.number, ready=True)


@pytest.mark.parametrize("length", [300, 100_000], ids=["whole", "estimated"])
def test_the_ready_loop_runs_on_ready_batches_and_leaves_the_loader_alone(length):
    now = Clock()
    clock, loader = StepClock(clock=now, budget_s=4, to_device=put), Loader(length, now, load_s=0.006)
    seen = train(clock, loader, lambda number: now.pass_s(0.004))
    part, metrics = clock.parts["training"], epoch_metrics(clock)
    for batch, on_ready in seen:
        assert batch.ready is on_ready
    ready = [batch.number for batch, on_ready in seen if on_ready]
    assert set(ready) == set(range(measure_clock.READY_BATCHES))
    assert all(abs(ready.count(number) - len(ready) / 3) < 10 for number in range(3))  # in turn
    assert [batch.number for batch, on_ready in seen if not on_ready] == list(range(part.steps))
    assert (loader.opened, loader.given) == (1, part.steps)
    assert steps_of(part.ready_blocks) == len(ready)
    assert metrics["step_s"].value == pytest.approx(0.010, **EXACT)
    assert metrics["epoch_s"].value == pytest.approx(length * 0.010, **EXACT)
    assert metrics["compute_epoch_s"].value == pytest.approx(length * 0.004, **EXACT)
    assert metrics["compute_epoch_s"].how == "estimated"
    if part.complete:
        assert part.seconds == pytest.approx(length * 0.010, **EXACT)
    assert clock.on_ready is False


def test_moving_ready_batches_is_in_no_time():
    now = Clock()

    def slow_put(batch):
        now.pass_s(0.5)
        return batch

    clock = StepClock(clock=now, budget_s=30, to_device=slow_put)
    train(clock, range(10**6), lambda number: now.pass_s(0.01))
    assert value(clock, "step_s") == pytest.approx(0.01, **EXACT)
    assert value(clock, "compute_epoch_s") == pytest.approx(10**4, **EXACT)


def test_only_a_few_batches_are_kept():
    now, alive, most = Clock(), weakref.WeakSet(), 0
    clock = StepClock(clock=now, budget_s=2, to_device=put)
    for batch in clock.steps(Loader(400)):
        alive.add(batch)
        now.pass_s(0.02)
        if not batch.ready:
            del batch
            gc.collect(0)
            most = max(most, len(alive))
    assert most <= measure_clock.READY_BATCHES + 2


def test_a_loader_with_workers_is_read_in_one_go_and_closed_before_ready_batches():
    now = Clock()
    loader = Loader(100_000, now, load_s=0.002)
    loader.num_workers = 2
    clock = StepClock(clock=now, budget_s=4, to_device=put)
    closed = []
    for number, _ in enumerate(clock.steps(loader)):
        now.pass_s(0.004 * (1 + 0.5 * (number % 2)))
        closed.append((clock.on_ready, loader.closed))
    assert closed == sorted(closed)  # every ready step comes after every real one
    assert set(closed) == {(False, 0), (True, 1)}
    part = clock.parts["training"]
    assert not part.complete
    assert part.seconds == pytest.approx(part.steps * 0.007, rel=0.01)

    plain = Loader(100_000, now, load_s=0.002)
    clock = StepClock(clock=now, budget_s=4, to_device=put)
    order = [on_ready for _, on_ready in train(clock, plain, lambda number: now.pass_s(0.004 + 0.002 * (number % 2)))]
    assert sum(a != b for a, b in itertools.pairwise(order)) >= 4  # without workers, by turns


# --- Leaving early, and errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 1, 5, 500, "ready"], ids=lambda at: f"at {at}")
@pytest.mark.parametrize("how", ["break", "exception"])
def test_a_loop_that_is_left_leaves_a_consistent_record(at, how):
    now = Clock()
    clock, loader = StepClock(clock=now, budget_s=60, to_device=put), Loader(100_000)
    done = {False: 0, True: 0}
    try:
        for number, _ in enumerate(clock.steps(loader)):
            now.pass_s(0.01)
            done[clock.on_ready] += 1
            if number == at or (at == "ready" and clock.on_ready):
                if how == "exception":
                    raise RuntimeError("out of memory")
                break
    except RuntimeError as error:
        assert str(error) == "out of memory"
    part, metrics = clock.parts["training"], epoch_metrics(clock)
    assert loader.closed == 1
    assert clock.on_ready is False
    assert not part.complete
    assert part.stopped == "left early"
    assert part.steps <= done[False]
    assert done[False] - part.steps <= max([1, *(block.steps for block in part.blocks + part.warmup)]) * 2
    for block in part.warmup + part.blocks + part.ready_blocks:
        assert block.step_s == pytest.approx(0.01, **EXACT)
    assert ("first_step_s" in metrics) is (at != 0)
    assert ("epoch_s" in metrics) is bool(part.blocks) is (at in (500, "ready"))
    if part.blocks:
        assert (metrics["epoch_s"].value, metrics["epoch_s"].how) == (pytest.approx(1000, **EXACT), "estimated")
    # The clock goes on: what happens now is outside of the part, and another part may begin.
    with clock.occasional("checkpoint", per_epoch=1):
        now.pass_s(1.0)
    assert clock.occasional_work["checkpoint"].part is None
    train(clock, range(10), lambda number: now.pass_s(0.01), "evaluation")
    assert clock.parts["evaluation"].complete


def test_an_error_of_the_loader_comes_through():
    class Broken(Loader):
        def _iterate(self):
            yield from range(7)
            raise OSError("sample 7 is broken")

    now = Clock()
    clock = StepClock(clock=now)
    with pytest.raises(OSError, match="sample 7"):
        train(clock, Broken(100), lambda number: now.pass_s(0.1))
    assert clock.parts["training"].stopped == "left early"
    assert clock.parts["training"].steps <= 7


@pytest.mark.parametrize("batches", [0, 1, 99])
def test_batches_that_end_too_early_are_an_error_that_counts_them(batches):
    now = Clock()
    clock = StepClock(clock=now)
    with pytest.raises(ValueError, match=rf"^part 'training': the batches ended after {batches} of 100 steps$"):
        train(clock, Loader(100, batches=batches), lambda number: now.pass_s(0.001))
    assert not clock.parts["training"].complete


def test_wrong_uses_are_refused():
    now = Clock()
    clock = StepClock(clock=now)
    with pytest.raises(ValueError, match="'training' has no batches"):
        train(clock, [], lambda number: None)
    with pytest.raises(TypeError):
        train(clock, iter(range(3)), lambda number: None)
    assert clock.parts == {}
    with pytest.raises(ValueError, match="'evaluation' began inside the loop of 'training'"):
        for _ in clock.steps(range(3)):
            clock.steps(range(3), "evaluation")
    with pytest.raises(ValueError, match="'training' was timed already"):
        clock.steps(range(3))


def test_progress_counts_up_and_names_what_it_expects():
    now, calls = Clock(), []
    clock = StepClock(clock=now, budget_s=5, on_progress=lambda *call: calls.append(call))
    train(clock, Loader(100), lambda number: now.pass_s(0.01), steps=99.5)
    train(clock, range(100_000), lambda number: now.pass_s(0.01), "evaluation")
    for part, expected in (("training", 100), ("evaluation", None)):
        mine = [call for call in calls if call[0] == part]
        done = [call[1] for call in mine]
        assert done == sorted(done)
        assert len(done) > 20
        assert done[0] == 1
        assert mine[-1][1:] == (clock.parts[part].steps,) * 2
        assert {call[2] for call in mine[1:-1]} == {expected}


# --- Length of an epoch ---------------------------------------------------------------------------------------------


def test_epoch_steps_of_loaders_as_torch_counts_them():
    from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, SubsetRandomSampler

    data = list(range(1_000))

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(data)

        def __len__(self):
            return len(data)

    assert epoch_steps(DataLoader(data, 128, shuffle=True)) == 7.8125
    assert epoch_steps(DataLoader(data, 128, drop_last=True)) == 7.0
    assert epoch_steps(DataLoader(data, 100)) == 10.0
    assert epoch_steps(DataLoader(data, 64, sampler=SubsetRandomSampler(range(96)))) == 1.5
    assert epoch_steps(DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 300, False))) == 4.0
    assert epoch_steps(DataLoader(Stream(), 128)) == 7.8125
    assert epoch_steps([1, 2, 3]) == 3.0
    assert epoch_steps(SimpleNamespace(batch_size=32, dataset=range(40))) == 1.25
    with pytest.raises(TypeError):
        epoch_steps(iter([1]))


# --- A device that works behind the program's back: simulated -------------------------------------------------------


@pytest.mark.parametrize("length", [40, 100_000], ids=["whole", "estimated"])
def test_every_block_lies_between_two_fences(length):
    now = Clock()
    device = SimulatedDevice(now, launch_s=1e-6, fence_s=1e-4)
    clock = StepClock(device.synchronize, clock=device.reading, budget_s=2, to_device=lambda batch: batch)
    device.launch(7.0)  # from before; none of it may be counted
    train(clock, range(length), lambda number: device.launch(0.005))
    part = clock.parts["training"]
    blocks = part.warmup + part.blocks + part.ready_blocks
    unfenced = "a timed block has no fence at its beginning or its end: this is the time of asking, not of computing"
    for block in blocks:
        assert block.seconds == pytest.approx(block.steps * 0.005 + 1e-4 + 1e-6, rel=1e-6), unfenced
    assert part.first_step_s == pytest.approx(0.005 + 1e-4 + 1e-6, rel=1e-6), unfenced
    # A fence costs at most a hundredth of a block, and all the steps that ran were waited for.
    assert min(block.seconds for block in part.blocks[:-1]) >= 1e-4 / measure_clock.FENCE_SHARE
    assert device.events.count("launch") == 1 + part.steps + steps_of(part.ready_blocks)
    assert not device.busy, unfenced
    # No block began while the device was busy: the last thing before the first launch of each was a fence.
    order = [event for event in device.events if event != "clock"]
    assert order[:2] == ["launch", "synchronize"]
    assert device.events.count("synchronize") >= len(blocks) + 2, unfenced


def test_an_aside_pays_for_its_own_work_only():
    now = Clock()
    device = SimulatedDevice(now)
    clock = StepClock(device.synchronize, clock=now)
    for _ in clock.steps(range(40)):
        device.launch(0.005)
        with clock.occasional("picture", per_epoch=40):
            device.launch(0.1)
    assert clock.occasional_work["picture"].seconds == [pytest.approx(0.1)] * 40
    assert value(clock, "step_s") == pytest.approx(0.005, **EXACT)
    assert value(clock, "epoch_s") == pytest.approx(40 * 0.105, **EXACT)


@pytest.mark.parametrize(
    ("host_s", "device_s"), [(0.005, 0.003), (0.002, 0.010), (0.030, 0.028), (0.100, 0.160), (0.0001, 0.004)]
)
def test_fences_do_not_hide_that_loading_and_computing_overlap(host_s, device_s):
    # While the device computes, the loop loads the next batch; a fence after every step would add the two up.
    now = Clock()
    device = SimulatedDevice(now)
    clock = StepClock(device.synchronize, clock=now, whole=True)
    train(clock, Loader(600, now, load_s=host_s), lambda number: device.launch(device_s))
    slower = max(host_s, device_s)
    assert value(clock, "epoch_s") == pytest.approx(600 * slower, rel=0.025)
    assert value(clock, "step_s") == pytest.approx(slower, rel=0.015)


def test_a_loop_that_waits_for_each_step_keeps_short_blocks():
    now = Clock()
    device = SimulatedDevice(now)
    clock = StepClock(device.synchronize, clock=now, whole=True)

    def step(number):
        device.launch(0.030)
        device.synchronize()  # reads the loss

    train(clock, Loader(600, now, load_s=0.030), step)
    assert {block.steps for block in clock.parts["training"].blocks} == {1}
    assert value(clock, "step_s") == pytest.approx(0.060, **EXACT)


# --- A device that works behind the program's back: real time -------------------------------------------------------


def test_step_clock_tells_the_truth_where_a_loop_without_fences_does_not():
    with ThreadedDevice() as device:
        began = time.perf_counter()
        for _ in range(60):
            device.launch(0.003)
        asked_s = time.perf_counter() - began
        device.synchronize()
        assert asked_s < 0.5 * device.busy_s()

        device.spans.clear()
        clock = StepClock(device.synchronize, budget_s=60, to_device=None)
        began = time.perf_counter()
        train(clock, range(150), lambda number: device.launch(0.003))
        around_s = time.perf_counter() - began

    part = clock.parts["training"]
    assert part.complete
    assert device.busy_s() <= part.seconds <= around_s
    assert len(device.spans) == 150
    step, ratios = 0, []
    for block in [Block(1, part.first_step_s), *part.warmup, *part.blocks]:
        busy_s = device.busy_s(step, block.steps)
        assert block.seconds >= busy_s  # nothing was still running when the clock was read
        ratios.append(block.seconds / busy_s)
        step += block.steps
    assert step == 150
    # A busy machine may delay any block, but hardly all of them.
    assert min(ratios[-len(part.blocks) :]) < 1.15
    steady = steps_of(part.blocks)
    assert value(clock, "step_s") >= device.busy_s(150 - steady, steady) / steady


def test_measure_tells_the_truth_of_the_same_device():
    with ThreadedDevice() as device:
        found = measure(lambda: device.launch(0.002), device.synchronize, budget_s=0.4, warmup_s=0.02)
    blocks = found.blocks
    first = len(device.spans) - steps_of(list(blocks))
    ratios = []
    for block in blocks:
        busy_s = device.busy_s(first, block.steps)
        assert block.seconds >= busy_s
        ratios.append(block.seconds / busy_s)
        first += block.steps
    assert min(ratios) < 1.15
    assert found.seconds.value >= 0.002


def test_a_step_costs_the_clock_next_to_nothing():
    # 0.1 µs as a rule; the bound only catches work that grows with the steps or a reading of the clock for each.
    times = []
    for _ in range(5):
        clock = StepClock(whole=True)
        began = time.perf_counter()
        for _ in clock.steps(range(30_000)):
            pass
        times.append(time.perf_counter() - began)
    assert min(times) / 30_000 < 5e-6


# --- Functions timed ------------------------------------------------------------------------------------------------


class Kernel:
    """A function that takes simulated time, and more in its first call."""

    def __init__(self, now: Clock, seconds, first_s: float = 0.0):
        self.now, self.seconds, self.first_s, self.calls = now, seconds, first_s, 0

    def __call__(self) -> None:
        self.now.pass_s(self.seconds(self.calls) if callable(self.seconds) else self.seconds)
        self.now.pass_s(self.first_s if self.calls == 0 else 0.0)
        self.calls += 1


def test_measure_keeps_the_first_call_and_warm_up_apart():
    now = Clock()
    kernel = Kernel(now, lambda call: 0.002 if call < 30 else 0.001, first_s=4.0)
    found = measure(kernel, clock=now)
    assert found.first_call_s == pytest.approx(4.002, **EXACT)
    assert found.seconds.value == pytest.approx(0.001, **EXACT)
    assert found.stopped == "interval"
    assert len(found.blocks) == 20
    warm_up = kernel.calls - 1 - steps_of(list(found.blocks))
    assert warm_up >= 50  # 0.1 s of them


def test_measure_gives_the_median_of_blocks():
    now = Clock()
    kernel = Kernel(now, lambda call: 0.05 * (4 if call % 5 == 0 else 1))
    found = measure(kernel, clock=now, repeats=30, calls_per_block=1)
    assert found.seconds.value == pytest.approx(0.05, **EXACT)
    assert max(block.seconds for block in found.blocks) == pytest.approx(0.2, **EXACT)  # nothing is dropped


@pytest.mark.parametrize("kernel_s", [2e-6, 3e-4, 0.06])
def test_blocks_of_measure_make_the_fence_vanish(kernel_s):
    now = Clock()
    device = SimulatedDevice(now, launch_s=1e-6, fence_s=2e-4)
    found = measure(lambda: device.launch(kernel_s), device.synchronize, clock=device.reading)
    assert found.seconds.value == pytest.approx(max(kernel_s, 1e-6), rel=0.012)
    single = measure(lambda: device.launch(kernel_s), device.synchronize, clock=device.reading, calls_per_block=1)
    assert single.seconds.value == pytest.approx(kernel_s + 1e-6 + 2e-4, rel=1e-6)
    assert {block.steps for block in single.blocks} == {1}


def test_measure_waits_for_what_was_running_before():
    now = Clock()
    device = SimulatedDevice(now)
    device.launch(9.0)
    found = measure(lambda: device.launch(0.01), device.synchronize, clock=now, repeats=3)
    assert found.first_call_s == pytest.approx(0.01, **EXACT)


@pytest.mark.parametrize("kernel_s", [0.0004, 0.09])
def test_measure_respects_its_budget(kernel_s):
    now = Clock()
    noise = np.random.default_rng(6).lognormal(0, 1.5, 997)
    found = measure(Kernel(now, lambda call: kernel_s * noise[call % 997]), clock=now, budget_s=3.0, target=1e-4)
    assert found.stopped == "budget"
    spent_s = sum(block.seconds for block in found.blocks)
    assert 3.0 <= spent_s <= 3.0 + max(block.seconds for block in found.blocks)


def test_measure_calls_a_very_slow_function_four_times():
    now = Clock()
    kernel = Kernel(now, 20.0)
    found = measure(kernel, clock=now)
    assert kernel.calls == 4  # first, warm-up, and two that have a spread
    assert (found.stopped, len(found.blocks)) == ("budget", 2)
    assert found.seconds.value == pytest.approx(20.0, **EXACT)


def test_a_short_aside_timed_once_does_not_take_the_bounds_away():
    def bounds(aside_s: float) -> tuple:
        now = Clock()
        clock = StepClock(clock=now, budget_s=10.0)
        train(clock, range(100_000), lambda number: now.pass_s(0.01 + 0.001 * (number % 2)))
        with clock.occasional("checkpoint", per_epoch=1):
            now.pass_s(aside_s)
        return epoch_metrics(clock)["epoch_s"].low, epoch_metrics(clock)["epoch_s"].high

    assert None not in bounds(1.0)
    assert bounds(100.0) == (None, None)


# --- Trainers that call back -----------------------------------------------------------------------------------------


def drive(ticker: measure_clock.Ticker, now: Clock, steps: int, step_s=lambda number: 0.004) -> int:
    """A trainer that calls back before each of its steps. Returns how many of them the clock wanted."""
    for number in range(steps):
        if not ticker.tick():
            return number
        now.pass_s(step_s(number))
    ticker.end()
    return steps


@pytest.mark.parametrize(("samples", "batch_size"), [(1000, 10), (1000, 30), (7, 10), (10, 10), (11, 10)])
def test_a_ticker_times_a_whole_epoch_with_its_smaller_last_batch(samples, batch_size):
    now = Clock()
    # `put` is there, as in a case, and must not be used: the trainer takes its own batches.
    clock = StepClock(clock=now, whole=True, to_device=lambda batch: pytest.fail("a trainer was given a ready batch"))
    count, full = math.ceil(samples / batch_size), samples // batch_size
    last_s = 0.001

    def step_s(number):
        return 2.0 if number == 0 else last_s if number == full else 0.004

    assert drive(measure_clock.Ticker(clock, "training", samples / batch_size), now, count, step_s) == count
    part = clock.parts["training"]
    assert part.complete and part.steps == count and part.ready_blocks == []
    assert part.first_step_s == pytest.approx(2.0, **EXACT)
    assert part.last_step_s == (pytest.approx(last_s, **EXACT) if 0 < full < count else None)
    assert part.seconds == pytest.approx(sum(step_s(number) for number in range(count)), **EXACT)
    assert value(clock, "epoch_s") == pytest.approx(part.seconds, **EXACT)
    assert not {"compute_epoch_s"} & set(epoch_metrics(clock))


def test_a_ticker_says_when_the_budget_is_spent_and_stays_quiet_then():
    now = Clock()
    clock = StepClock(clock=now, budget_s=1.0)
    ticker = measure_clock.Ticker(clock, "training", 100_000)
    wanted = drive(ticker, now, 100_000, lambda number: 0.01 * (1 + number % 7))
    part = clock.parts["training"]
    assert part.steps == wanted < 200 and not part.complete and part.stopped == "budget"
    assert not ticker.tick()
    now.pass_s(5)
    ticker.end()
    assert part.steps == wanted and part.seconds < 2


def test_a_trainer_that_ends_early_leaves_an_estimate_and_no_half_block():
    now = Clock()
    clock = StepClock(clock=now, whole=True)
    ticker = measure_clock.Ticker(clock, "training", 1000)
    assert drive(ticker, now, 337) == 337
    part = clock.parts["training"]
    assert not part.complete and part.stopped == "left early" and part.steps <= 337
    assert all(block.step_s == pytest.approx(0.004, **EXACT) for block in part.blocks)
    assert value(clock, "epoch_s") == pytest.approx(4.0, **EXACT)
    assert epoch_metrics(clock)["epoch_s"].how == "estimated"


def test_ending_twice_changes_nothing_and_another_part_may_follow():
    now = Clock()
    clock = StepClock(clock=now, whole=True)
    ticker = measure_clock.Ticker(clock, "training", 50)
    drive(ticker, now, 50)
    before = clock.parts["training"].seconds
    now.pass_s(9)
    ticker.end()
    ticker.end()
    assert clock.parts["training"].seconds == before == pytest.approx(0.2, **EXACT)
    drive(measure_clock.Ticker(clock, "validation", 10), now, 10, lambda number: 0.001)
    assert value(clock, "epoch_s") == pytest.approx(0.21, **EXACT)


# --- A whole training from one epoch ---------------------------------------------------------------------------------


def one_epoch(steps: int, *, whole: bool, validation: int = 0, first_s=2.0, step_s=0.004, budget_s=1.0) -> StepClock:
    now = Clock()
    clock = StepClock(clock=now, whole=whole, budget_s=budget_s)
    for name, count in (("training", steps), ("validation", validation)):
        if count:
            drive(measure_clock.Ticker(clock, name, count), now, count, lambda number: step_s if number else first_s)
    return clock


@pytest.mark.parametrize("whole", [True, False])
def test_a_training_is_its_first_epoch_and_the_steps_of_the_others(whole):
    clock = one_epoch(10_000, whole=whole, validation=2000)
    assert clock.parts["training"].complete == whole
    found = epochs.fit_metric(clock, 5, before_s=0.3)
    # By hand: both parts trace once, and every other step is like the next.
    by_hand = 0.3 + 2.0 + (5 * 10_000 - 1) * 0.004 + 2.0 + (5 * 2000 - 1) * 0.004
    assert found.value == pytest.approx(by_hand, rel=1e-9)
    assert (found.how, found.unit) == ("estimated", "s")
    assert found.low == pytest.approx(by_hand, rel=1e-6) == found.high


def test_later_epochs_that_ran_stand_for_those_that_did_not():
    clock = one_epoch(100, whole=True)
    found = epochs.fit_metric(clock, 5, before_s=0.3, later=[0.6, 0.8])
    assert found.value == pytest.approx(0.3 + (2.0 + 99 * 0.004) + 0.6 + 0.8 + 2 * 0.7, rel=1e-9)
    assert epochs.fit_metric(clock, 3, 0.3, [0.6, 0.8]).value == pytest.approx(0.3 + 2.396 + 1.4, rel=1e-9)


def test_the_interval_of_a_training_is_that_of_its_steps():
    now = Clock()
    clock = StepClock(clock=now, whole=True)
    drive(measure_clock.Ticker(clock, "training", 5000), now, 5000, lambda number: 0.004 + 0.002 * (number // 50 % 2))
    step, found = epoch_metrics(clock)["step_s"], epochs.fit_metric(clock, 5, 0.0)
    assert found.high / found.value == pytest.approx(step.high / step.value, rel=1e-6)
    assert found.low < found.value < found.high


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_training_of_epochs_of_a_few_steps(steps):
    clock = one_epoch(steps, whole=True)
    rest_s = 2.0 if steps == 1 else 0.004  # after one step nobody knows what the next would take
    expected = 2.0 + (steps - 1) * 0.004 + 4 * steps * rest_s
    assert epochs.fit_metric(clock, 5, 0.0).value == pytest.approx(expected, rel=1e-9)


def test_nothing_is_made_of_too_little():
    assert epochs.fit_metric(StepClock(clock=Clock()), 5, 0.1) is None
    now = Clock()
    clock = StepClock(clock=now, whole=True)
    ticker = measure_clock.Ticker(clock, "training", 1000)
    ticker.tick()
    ticker.end()
    assert epochs.fit_metric(clock, 5, 0.1) is None
