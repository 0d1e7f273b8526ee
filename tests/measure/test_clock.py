"""Timing of training loops and single functions, in simulated time, and seconds per epoch."""

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest
from fakes import Clock, SimulatedDevice
from pytest import approx

from pomology.measure import clock as measure_clock
from pomology.measure.calls import measure
from pomology.measure.clock import Block, Part, StepClock, epoch_steps, steps_in
from pomology.measure.epochs import epoch_estimate, epoch_metrics, part_metrics
from pomology.measure.estimate import Estimate
from pomology.measure.intervals import interval


class Batch:
    """Something that can be weakly referenced and told apart."""

    def __init__(self, number: int, ready: bool = False):
        self.number, self.ready = number, ready


class Loader:
    """Batches that take `load_s` each to load, and how many were given."""

    def __init__(self, length: int, clock: Clock | None = None, load_s=0.0, batches=None):
        self.length, self.clock, self.load_s = length, clock or Clock(), load_s
        self.batches = length if batches is None else batches
        self.given = 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Batch]:
        for number in range(self.batches):
            self.clock.pass_s(self.load_s)
            self.given += 1
            yield Batch(number)


def train(clock, batches, step: Callable[[int], None], part: str = "training") -> list:
    """Run a training loop that calls `step(number)`; give each batch, and whether it was ready."""
    seen = []
    for number, batch in enumerate(clock.steps(batches, part)):
        assert number < 1_000_000, "the loop does not end"
        seen.append((batch, clock.on_ready))
        step(number)
    return seen


def value(clock: StepClock, name: str) -> float:
    return epoch_metrics(clock)[name].value


def seconds_of(blocks: Iterable[Block]) -> float:
    return sum(block.seconds for block in blocks)


def timed(batches, step_s, **options) -> tuple[StepClock, Part]:
    """Return the clock and the part of a simulated training with `step_s(number)` per step."""
    clock = StepClock(clock=Clock(), **options)
    train(clock, batches, lambda number: clock.clock.pass_s(step_s(number)))
    return clock, clock.parts["training"]


def unchanged(batch):
    return batch


@pytest.mark.parametrize("length", [1, 2, 469])
def test_a_whole_epoch_is_measured_exactly_with_its_slow_first_step(length):
    clock, part = timed(range(length), lambda number: 0.004 if number else 3.0)
    metrics = epoch_metrics(clock)
    epoch = metrics["epoch_s"]
    assert (part.complete, part.stopped, part.steps) == (True, "whole epoch", length)
    assert (epoch.value, epoch.how) == (approx(3.0 + (length - 1) * 0.004), "measured")
    assert (epoch.low, epoch.covers) == (None, "none")  # one epoch says nothing of another
    assert metrics["first_step_s"].value == approx(3.0)
    assert "compute_epoch_s" not in metrics
    assert ("step_s" in metrics) == (length > 2)
    assert length <= 2 or metrics["step_s"].value == approx(0.004)


def test_the_time_of_an_epoch_excludes_the_clock_s_own_time():
    now = Clock()
    clock = StepClock(clock=now, on_block=lambda: now.pass_s(0.5))
    train(clock, range(100), lambda number: now.pass_s(0.01))
    assert clock.parts["training"].complete and value(clock, "epoch_s") == approx(1.0)


def test_warm_up_is_separate_and_doubles():
    clock, part = timed(range(5_000), lambda number: 0.05 if number < 40 else 0.01, budget_s=10)
    sizes = [block.steps for block in part.warmup]
    assert sizes[:5] == [1, 2, 4, 8, 16]
    assert sum(sizes[:-1]) * 0.01 < 2.0  # it ends with the block that reaches 2 s
    assert value(clock, "step_s") == approx(0.01)
    _, part = timed(range(30), lambda number: 0.01, budget_s=10)
    assert steps_in(part.warmup) == 3  # a tenth of the epoch at most
    # A first step that compiles takes seconds, and must not set the size of blocks.
    _, part = timed(range(469), lambda number: 0.002 if number else 5.0, budget_s=10)
    sizes = {block.steps for block in part.blocks[:-1]}
    assert part.complete and sizes == {math.ceil(measure_clock.BLOCK_S / 0.002)}


@pytest.mark.parametrize(
    ("step_s", "stopped", "steady"),
    [
        (60, "limit", 0),  # the first step alone
        (30, "limit", 1),  # the second one counts as steady, since no other follows
        (20, "limit", 2),
        (12, "budget", 2),
    ],
)
def test_a_part_that_reaches_its_limit_keeps_its_times(step_s, stopped, steady):
    clock, part = timed(Loader(10**6), lambda number: step_s, budget_s=10, limit_s=50)
    assert (part.stopped, steps_in(part.blocks)) == (stopped, steady) and not part.complete
    assert part.seconds <= 50 + step_s
    assert ("epoch_s" in epoch_metrics(clock)) is (steady > 0)
    # An evaluation gets a quarter of it.
    train(clock, Loader(10**6), lambda number: clock.clock.pass_s(10), "evaluation")
    evaluation = clock.parts["evaluation"]
    assert evaluation.seconds <= 50 / 4 + 10 and evaluation.stopped == "limit"


class SlowStart(Loader):
    """A loader whose workers take some seconds before the first batch."""

    def __iter__(self) -> Iterator[Batch]:
        self.clock.pass_s(4.0)
        return super().__iter__()


def test_the_limit_begins_with_the_first_batch():
    """On a Mac eight workers import PyTorch first, which no limit of a short part contains."""
    clock = StepClock(clock=Clock(), budget_s=2, limit_s=2.5)
    train(clock, SlowStart(10**4, clock.clock), lambda number: clock.clock.pass_s(0.3))
    training = clock.parts["training"]
    assert training.stopped == "limit" and steps_in(training.blocks) >= 2
    assert training.first_step_s == approx(4.3)
    assert value(clock, "epoch_s") == approx(4.3 + 0.3 * (10**4 - 1))


@pytest.mark.parametrize(("budget_s", "step_s"), [(0.5, 0.0007), (20, 0.3)])
@pytest.mark.parametrize("put", [None, unchanged])
def test_the_budget_holds(budget_s, step_s, put):
    noise = np.random.default_rng(1).lognormal(0, 1.5, 500)
    clock = StepClock(clock=Clock(), budget_s=budget_s, to_device=put)

    def step(number):  # slower and slower, so that no interval becomes narrow
        clock.clock.pass_s(step_s * noise[number % 500] * (1 + clock.clock() / budget_s))

    train(clock, range(10**6), step)
    part = clock.parts["training"]
    blocks = part.blocks + part.ready_blocks
    largest = max(block.seconds for block in blocks)
    assert part.stopped == "budget"
    # A burst takes 20 % of the budget, and ends with a block.
    assert budget_s <= seconds_of(blocks) <= budget_s * 1.4 + 2 * largest
    share = measure_clock.READY_SHARE if put else 0
    found = seconds_of(part.ready_blocks) / seconds_of(blocks)
    assert found == approx(share, abs=0.1 + 2 * largest / budget_s)
    assert seconds_of(part.warmup[:-1]) <= min(2.0, budget_s / 5)


def test_the_stop_rule_ends_constant_steps_but_not_before_the_third_burst():
    noise = np.random.default_rng(2).normal(1, 0.01, 1000)
    clock, part = timed(range(10**6), lambda number: 0.01 * noise[number % 1000], budget_s=30)
    metric = epoch_metrics(clock)["step_s"]
    assert part.stopped == "interval"
    assert seconds_of(part.blocks) == approx(3 / 5 * 30, rel=0.02)
    assert (metric.high - metric.value) / metric.value <= measure_clock.TARGET


@pytest.mark.parametrize(
    ("length", "budget_s", "step_s", "ready"),
    [
        (1000, 10, 0.66, True),
        (1000, 10, 0.7, False),  # too slow for ten steps of each kind
        (9, 100, 0.1, False),
        (11, 100, 0.1, True),
    ],
)
def test_compute_only_time_needs_ten_steps_of_each_kind(length, budget_s, step_s, ready):
    clock, part = timed(range(length), lambda _: step_s, budget_s=budget_s, to_device=unchanged)
    assert (steps_in(part.ready_blocks) >= measure_clock.SPLIT_STEPS) is ready
    assert ("compute_epoch_s" in epoch_metrics(clock)) is ready


@pytest.mark.parametrize("length", [200, 100_000], ids=["whole", "estimated"])
@pytest.mark.parametrize("put", [None, unchanged], ids=["real only", "ready too"])
def test_occasional_work_is_counted_exactly_once(length, put):
    now = Clock()
    clock = StepClock(clock=now, budget_s=5, to_device=put)

    def step(number):
        now.pass_s(0.008)
        if number % 10 == 3:  # in warm-up, in blocks and on ready batches alike
            with clock.occasional("image", per_epoch=length / 10):
                now.pass_s(0.05)
                with clock.occasional("file", per_epoch=length / 10):
                    now.pass_s(0.02)

    train(clock, range(length), step)
    with clock.occasional("checkpoint", per_epoch=1):
        now.pass_s(2.5)
    assert clock.parts["training"].complete is (length == 200)
    assert value(clock, "step_s") == approx(0.008)
    assert value(clock, "epoch_s") == approx(length * 0.008 + length / 10 * 0.07 + 2.5)
    images = clock.occasional_work["image"].seconds
    assert images == approx([0.05] * len(images))
    assert not put or value(clock, "compute_epoch_s") == approx(length * 0.008)


@pytest.mark.parametrize("workers", [0, 4])
@pytest.mark.parametrize("length", [300, 100_000], ids=["whole", "estimated"])
def test_pre_loaded_batches_are_used_after_the_loop_and_without_its_loader(length, workers):
    now = Clock()

    def slow_put(batch):
        now.pass_s(0.5)  # counts in no time
        return Batch(batch.number, ready=True)

    clock = StepClock(clock=now, budget_s=30, to_device=slow_put)
    loader = Loader(length, now, load_s=0.006)
    loader.num_workers = workers
    seen = train(clock, loader, lambda number: now.pass_s(0.004))
    part, metrics = clock.parts["training"], epoch_metrics(clock)
    assert all(batch.ready is on_ready for batch, on_ready in seen) and clock.on_ready is False
    ready = [batch.number for batch, on_ready in seen if on_ready]
    assert all(abs(ready.count(number) - len(ready) / 3) < 10 for number in range(3))  # rotate
    assert [batch.number for batch, on_ready in seen if not on_ready] == list(range(part.steps))
    assert loader.given == part.steps + (0 if workers else 3)  # with workers a copy loads these
    assert metrics["step_s"].value == approx(0.010)
    assert metrics["epoch_s"].value == approx(length * 0.010)
    assert metrics["compute_epoch_s"].value == approx(length * 0.004)
    assert not part.complete or part.seconds == approx(length * 0.010)
    order = [on_ready for _, on_ready in seen]
    assert order == sorted(order)  # after the loop, which they would slow down


@pytest.mark.parametrize("batches", [0, 99])
def test_batches_that_end_too_early_are_an_error_with_their_number(batches):
    clock = StepClock(clock=Clock(), limit_s=1e6)
    with pytest.raises(ValueError, match=f"the batches ended after {batches} of 100 steps$"):
        train(clock, Loader(100, batches=batches), lambda number: clock.clock.pass_s(0.001))
    assert not clock.parts["training"].complete


def test_epoch_steps_of_loaders_as_torch_counts_them():
    from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

    data = list(range(1_000))

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(data)

        def __len__(self):
            return len(data)

    assert epoch_steps(DataLoader(data, 128, shuffle=True)) == 7.8125
    assert epoch_steps(DataLoader(data, 128, drop_last=True)) == 7.0
    assert epoch_steps(DataLoader(data, 64, sampler=SequentialSampler(range(96)))) == 1.5
    batches = BatchSampler(SequentialSampler(data), 300, drop_last=False)
    assert epoch_steps(DataLoader(data, batch_sampler=batches)) == 4.0
    assert epoch_steps(DataLoader(Stream(), 128)) == 7.8125
    assert epoch_steps([1, 2, 3]) == 3.0


def test_blocks_include_all_the_work_of_an_asynchronous_device():
    device = SimulatedDevice(Clock(), launch_s=1e-5, fence_s=1e-4)
    clock = StepClock(device.synchronize, clock=device.clock, budget_s=60)
    train(clock, range(500), lambda number: device.launch(0.003 if number else 2.0))
    part = clock.parts["training"]
    assert part.complete and not device.busy
    assert part.first_step_s == approx(2.0 + 1e-5 + 1e-4)
    assert all(block.step_s >= 0.003 for block in part.warmup + part.blocks)
    assert value(clock, "step_s") == approx(0.003, rel=0.012)


def test_each_phase_has_its_own_time_on_an_asynchronous_device():
    costs = {"forward": 0.3, "backward": 0.5, "update": 0.1}
    device = SimulatedDevice(Clock(), launch_s=0.0001)
    clock = StepClock(device.synchronize, clock=device.clock, budget_s=50)
    for number, _ in enumerate(clock.steps(range(200))):
        for name, seconds in costs.items():
            with clock.phase(name):  # the first step and warm-up are in no phase
                device.launch(seconds * (10 if number < 2 else 1))
        device.launch(0.05)  # and something that is no phase
    for name, seconds in costs.items():
        # The launch of a phase's work counts: the device waits for it.
        assert value(clock, f"{name}_s") == approx(seconds + 0.0001)
    assert value(clock, "step_s") == approx(0.95 + 0.0004)
    assert clock.parts["training"].warmup[0].phases["forward"] == approx(3.0001)


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


class Kernel:
    """A function that takes simulated time."""

    def __init__(self, seconds):
        self.now, self.seconds, self.calls = Clock(), seconds, 0

    def __call__(self) -> None:
        self.now.pass_s(self.seconds(self.calls))
        self.calls += 1


def test_measure_times_the_first_call_and_warm_up_separately():
    kernel = Kernel(lambda call: 0.001 if call >= 30 else 0.002 if call else 4.002)
    found = measure(kernel, clock=kernel.now)
    assert found.first_call_s == approx(4.002) and found.seconds.value == approx(0.001)
    assert (found.stopped, len(found.blocks)) == ("interval", 40)
    assert seconds_of(found.warmup) >= 0.1 and steps_in(found.warmup) >= 50
    # Nothing is thrown away.
    assert kernel.calls == 1 + steps_in(found.warmup) + steps_in(found.blocks)


def test_measure_returns_the_median_of_blocks():
    kernel = Kernel(lambda call: 0.05 * (4 if call % 5 == 0 else 1))
    found = measure(kernel, clock=kernel.now, repeats=30, calls_per_block=1)
    assert found.seconds.value == approx(0.05)
    assert (found.stopped, len(found.blocks)) == ("repeats", 30)
    assert max(block.seconds for block in found.blocks) == approx(0.2)  # nothing is dropped


@pytest.mark.parametrize(
    ("kernel_s", "least", "stopped", "calls"),
    [
        (20.0, {}, "budget", 2),  # too few for an interval
        (0.5, {"least_calls": 20}, "budget", 20),
        (0.001, {"least_s": 0.9}, "interval", None),
        (0.001, {"least_s": 3.0}, "budget", None),
        (0.5, {"least_calls": 20, "limit_s": 5}, "limit", 8),
        (7.0, {"limit_s": 5}, "limit", 1),  # and no warm-up
        (0.5, {"repeats": 100, "limit_s": 5}, "limit", 8),
    ],
)
def test_measure_reaches_its_least_calls_and_seconds_within_its_limit(
    kernel_s, least, stopped, calls
):
    kernel = Kernel(lambda call: kernel_s)
    found = measure(kernel, clock=kernel.now, **least)
    assert found.stopped == stopped and found.seconds.value == approx(kernel_s)
    assert calls in (None, steps_in(found.blocks))
    assert seconds_of(found.blocks) >= least.get("least_s", 0)
    assert calls != 2 or (kernel.calls == 4 and found.seconds.covers == "seen")


@pytest.mark.parametrize("kernel_s", [2e-6, 3e-4, 0.06])
def test_blocks_of_measure_make_the_synchronization_negligible(kernel_s):
    device = SimulatedDevice(Clock(), launch_s=1e-6, fence_s=2e-4)
    device.launch(9.0)  # from before

    def launch():
        device.launch(kernel_s)

    found = measure(launch, device.synchronize, clock=device.clock)
    assert found.first_call_s == approx(kernel_s + 1e-6 + 2e-4, rel=1e-6)
    assert found.seconds.value == approx(max(kernel_s, 1e-6), rel=0.012)
    single = measure(launch, device.synchronize, clock=device.clock, calls_per_block=1)
    assert single.seconds.value == approx(kernel_s + 1e-6 + 2e-4, rel=1e-6)
    assert {block.steps for block in single.blocks} == {1}
