"""Time the steps of a training loop: the first one apart, warm-up, then blocks of steady steps.

A GPU works behind the program's back, so only a block of steps between two synchronizations has a
true time. Blocks are so long that the cost of synchronizing vanishes. What lies between two steps
(loading, logging) belongs to them. `StepClock` times such a loop, `calls.measure` a function.
"""

import copy
import itertools
import math
import time
import timeit
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from pomology.measure import intervals
from pomology.measure.estimate import Estimate

BLOCK_S = 0.025  # a synchronization on MPS costs about 0.2 ms, under 1 % of this
FENCE_SHARE = 0.01  # of a block, that a synchronization may take
BLOCKS_MOST = 1000  # of a part: long epochs get longer blocks
BURSTS = 5  # of a loop, at least
BURSTS_LEAST = 3  # before an interval counts: one stretch knows nothing of slow wander
READY_SHARE = 1 / 3  # of the budget, for the same loop on ready batches
READY_BATCHES = 3  # kept on the device for that, and used in turn
STEPS_LEAST = 2  # steady steps, however slow: one alone has no spread
SPLIT_STEPS = 10  # of the loop and on ready batches, before the two are compared
STEPS_ENOUGH = 100  # below which the stop rule believes no interval
TARGET = 0.02  # half-width of the interval over the mean at which to stop
WARM_UP_S = 2.0  # at most, or a fifth of the budget
PHASES = ("forward", "backward", "update")  # of a step


@dataclass(frozen=True)
class Block:
    """Consecutive steps between two synchronizations. phases: the seconds that each took."""

    steps: int
    seconds: float
    phases: dict[str, float] = field(default_factory=dict)

    @property
    def step_s(self) -> float:
        return self.seconds / self.steps


@dataclass
class Part:
    """What one loop over batches left behind: an epoch's training, or its evaluation.

    epoch_steps: in a whole epoch; a smaller last batch counts as its fraction. per_epoch: loops in
    an epoch. blocks: steady steps. ready_blocks: steps on batches that are on the device already.
    last_step_s: of a smaller last batch, which no mean holds. steps: all that ran, but ready ones.
    seconds: of these steps and of occasional work among them, without the clock's own time.
    """

    name: str
    epoch_steps: float
    per_epoch: float = 1.0
    first_step_s: float | None = None
    warmup: list[Block] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    ready_blocks: list[Block] = field(default_factory=list)
    last_step_s: float | None = None
    steps: int = 0
    seconds: float = 0.0
    complete: bool = False
    stopped: str = "left early"

    @property
    def full_batches(self) -> int:
        """All batches of a whole epoch but a smaller last one."""
        return max(1, int(self.epoch_steps))

    @property
    def left(self) -> int:
        """Full batches that have not run."""
        return self.full_batches - self.steps


@dataclass
class Occasional:
    """What an epoch does now and then, as a checkpoint. part: in whose loop, if in any."""

    per_epoch: float
    part: Part | None
    seconds: list[float] = field(default_factory=list)


@dataclass(eq=False)
class StepClock:
    """Times a training loop from inside: `for batch in clock.steps(batches): ...`.

    An epoch that is expected to fit the budget runs whole. Otherwise steps are taken in bursts,
    until their interval is narrow or the budget is spent. Ready batches come after the loop, whose
    steps they would slow down.

    budget_s: for steady steps of the first part; a later one gets a quarter. A third of it is for
    ready batches, which are left out where it is too short for 10 steps. limit_s: what a part may
    take in all; then it stops with what it has. whole: run whole epochs whatever they take.
    to_device: moves a batch that is kept ready to the device; None times no ready batches.
    on_block: called where steady blocks begin or end, and at the end.
    """

    synchronize: Callable[[], None] = lambda: None
    _: KW_ONLY
    budget_s: float = 10.0
    limit_s: float = math.inf
    whole: bool = False
    to_device: Callable[[Any], Any] | None = None
    clock: Callable[[], float] = time.perf_counter
    on_block: Callable[[], None] = lambda: None
    parts: dict[str, Part] = field(default_factory=dict, init=False)
    occasional_work: dict[str, Occasional] = field(default_factory=dict, init=False)
    on_ready: bool = field(default=False, init=False)  # whether the step is on a ready batch
    running: Part | None = field(default=None, init=False)  # the part under way
    _aside_s = 0.0  # seconds of occasional work so far

    def steps(
        self,
        batches: Iterable,
        part: str = "training",
        steps: float | None = None,
        ready: bool = True,
        per_epoch: float = 1.0,
    ) -> Iterator:
        """Iterate over `batches`, timing what the loop does with them.

        steps: of a whole epoch, where `len(batches)` does not tell. ready: whether the loop would
        train on ready batches. per_epoch: how often an epoch has this loop; 0 for steps of none.
        """
        assert part not in self.parts and not self.running, f"part {part!r} would count twice"
        training = not self.parts
        self.parts[part] = Part(part, epoch_steps(batches) if steps is None else steps, per_epoch)
        ready = ready and training and self.to_device is not None
        return self._run(self.parts[part], batches, 1 if training else 4, ready)

    @contextmanager
    def occasional(self, name: str, per_epoch: float) -> Iterator[None]:
        """Time what an epoch does `per_epoch` times, and keep it out of the steps around it."""
        record = self.occasional_work.setdefault(name, Occasional(per_epoch, self.running))
        self.synchronize()
        start = self._now()
        yield
        self.synchronize()
        seconds = self._now() - start
        record.seconds.append(seconds)
        self._aside_s += seconds
        if self.running and not self.on_ready:
            self.running.seconds += seconds

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time `forward`, `backward` or `update` of every step, which then cannot overlap."""
        assert name in PHASES, name
        self.synchronize()
        start = self._now()
        yield
        self.synchronize()
        self._phases[name] = self._phases.get(name, 0.0) + self._now() - start

    def _run(self, part: Part, batches: Iterable, share: int, ready: bool) -> Iterator:
        """Yield the batches of a part, which gets one `share`-th of the budget and the limit."""
        self.synchronize()
        self.running = part
        self._budget_s = self.budget_s / share
        self._until = self.clock() + self.limit_s / share  # when it reaches its limit
        # Its iterator, which may start workers, is made with the first step.
        source = itertools.chain.from_iterable([batches])
        try:
            first = yield from self._block(source, 1)
            part.first_step_s = first.seconds
            pace_s = yield from self._warm_up(source)
            size = yield from self._steady(source, pace_s, ready)
            if not part.left:
                if part.full_batches < part.epoch_steps:
                    last = yield from self._block(source, 1)
                    part.last_step_s = last.seconds
                begin = self._now()
                next(source, None)  # a loader ends its workers now, and a loop would wait for that
                part.seconds += self._now() - begin
                part.complete = True
                part.stopped = "whole epoch"
            elif self._late():
                part.stopped = "limit"
            del source  # a loader's workers end here, not next to ready batches
            if size:
                yield from self._ready(batches, size)
        finally:
            self.running = None
            self.on_ready = False
            self.on_block()

    def _warm_up(self, source: Iterator) -> Generator[Any, None, float]:
        """Yield blocks of 1, 2, 4, ... steps while caches settle; return seconds of a step.

        The first step does not tell those: it may compile, or start a loader's workers.
        """
        part = self.running
        pace_s = part.first_step_s
        self._lost_s = 0.0
        enough_s = min(WARM_UP_S, self._budget_s / 5)
        most = max(1, int(part.epoch_steps / 10))
        while sum(block.seconds for block in part.warmup) < enough_s and not self._late():
            size = min(2 ** len(part.warmup), most + 1 - part.steps, part.left)
            if size <= 0:
                break
            block = yield from self._block(source, size)
            part.warmup.append(block)
            pace_s = block.step_s
        if part.warmup and self.clock() + STEPS_LEAST * pace_s > self._until:
            part.blocks.append(part.warmup.pop())  # no more will come that could be a steady step
        return pace_s

    def _steady(self, source: Iterator, pace_s: float, ready: bool) -> Generator[Any, None, int]:
        """Yield steady steps in bursts until the epoch, the budget or the need for more is over.

        Returns the steps of a block of ready batches; 0 where none are to be timed.
        """
        part = self.running
        block_s = max(BLOCK_S, self._budget_s / BLOCKS_MOST)
        size = block_steps(pace_s, block_s, self.synchronize, self.clock, self._lost_s)
        left_s = (part.epoch_steps - part.steps) * pace_s
        if self.whole or part.seconds + left_s <= self._budget_s:  # the whole epoch, in one burst
            burst_s = math.inf
            size = max(size, math.ceil(part.epoch_steps / BLOCKS_MOST))
            ready = ready and part.full_batches >= SPLIT_STEPS
        else:
            loop_s = self._budget_s * (1 - READY_SHARE)
            ready = ready and SPLIT_STEPS * pace_s <= loop_s
            burst_s = (loop_s if ready else self._budget_s) / BURSTS
            size = min(size, max(1, int(burst_s / max(pace_s, 1e-9))))
        least = SPLIT_STEPS if ready else STEPS_LEAST
        if size > 1:  # a drift needs so many blocks
            least = max(least, intervals.VALUES_LEAST * size)
        begin = self._now()
        bursts = 0
        while part.left and not self._late():
            self.on_block()
            yield from self._burst(source, size, burst_s)
            bursts += 1
            if steps_in(part.blocks) >= least and self._now() - begin >= BURSTS * burst_s:
                part.stopped = "budget"
                break
            if bursts >= BURSTS_LEAST and narrow(part.blocks):
                part.stopped = "interval"
                break
        return size if ready else 0

    def _burst(self, source: Iterator, size: int, least_s: float, least: float = 1) -> Iterator:
        """Yield blocks for so many seconds and steps at the least, within the epoch and limit."""
        blocks = self.running.ready_blocks if self.on_ready else self.running.blocks
        begin = self._now()
        done = 0
        while not self._late() and (done < least or self._now() - begin < least_s):
            steps = size if self.on_ready else min(size, self.running.left)
            if not steps:
                return
            block = yield from self._block(source, steps)
            blocks.append(block)
            done += block.steps
            if not self.on_ready:
                self.on_block()

    def _ready(self, batches: Iterable, size: int) -> Iterator:
        """Yield bursts of batches that are on the device: of none of the loop, to spare memory."""
        few = min(READY_BATCHES, self.running.full_batches)
        if getattr(batches, "num_workers", 0):  # they would go on loading meanwhile
            batches = copy.copy(batches)
            batches.num_workers = 0
        kept = [self.to_device(batch) for batch in itertools.islice(batches, few)]
        self.synchronize()
        self.on_ready = True
        burst_s = self._budget_s * READY_SHARE / BURSTS
        for burst in range(1, BURSTS + 1):
            yield from self._burst(itertools.cycle(kept), size, burst_s, SPLIT_STEPS / BURSTS)
            if burst >= BURSTS_LEAST and narrow(self.running.ready_blocks):
                break

    def _block(self, source: Iterator, size: int) -> Generator[Any, None, Block]:
        """Yield `size` batches, or fewer where the part reaches its limit; return their block."""
        part = self.running
        self._phases = {}
        start = self._now()
        done = 0
        for batch in itertools.islice(source, size):
            yield batch
            done += 1
            if self._late():
                break
        before_sync = self._now()
        self.synchronize()
        end = self._now()
        if not done or (done < size and not self._late()):
            ran = f"{part.steps + done} of {math.ceil(part.epoch_steps)} steps"
            raise ValueError(f"part {part.name!r}: the batches ended after {ran}")
        if not self.on_ready:
            part.steps += done
            part.seconds += end - start
        # What the synchronization can have kept from overlapping: the program prepares a step while
        # the device works on the one before.
        self._lost_s = min(end - before_sync, (before_sync - start) / done)
        return Block(done, end - start, self._phases)

    def _late(self) -> bool:
        """Return whether the part under way has reached its limit, if it has one."""
        return self._until < math.inf and self.clock() >= self._until

    def _now(self) -> float:
        """Return the clock without occasional work, which belongs to no step and no budget."""
        return self.clock() - self._aside_s


def epoch_steps(batches: Any) -> float:
    """Return the steps of one pass over `batches`; a smaller last one counts as its fraction.

    Raises TypeError where its length is unknown.
    """
    sampler = getattr(batches, "sampler", None)
    if sampler is None or batches.batch_size is None or batches.drop_last:
        return float(len(batches))
    # A sampler may draw another number than the dataset holds; that of a stream has no length.
    return len(sampler if hasattr(sampler, "__len__") else batches.dataset) / batches.batch_size


def steps_in(blocks: Iterable[Block]) -> int:
    return sum(block.steps for block in blocks)


def block_steps(
    pace_s: float,
    block_s: float,
    synchronize: Callable[[], None],
    clock: Callable[[], float] = time.perf_counter,
    lost_s: float = 0.0,
) -> int:
    """Return the steps of a block that takes `block_s`, or longer where synchronizing is slow.

    lost_s: work that a synchronization keeps from overlapping.
    """
    sync_s = min(timeit.repeat(synchronize, number=1, repeat=3, timer=clock))
    least_s = (sync_s + lost_s) / FENCE_SHARE
    return max(1, math.ceil(max(block_s, least_s) / max(pace_s, 1e-9)))


def interval(blocks: list[Block]) -> Estimate:
    """Return seconds per step over blocks, with the 95 % interval within this run."""
    return intervals.interval([block.step_s for block in blocks], [block.steps for block in blocks])


def narrow(blocks: list[Block]) -> bool:
    """Return whether enough was measured; to be asked seldom, since some blocks agree by chance."""
    if len(blocks) < intervals.BATCHES:
        return False
    step = interval(blocks)
    return step.n >= STEPS_ENOUGH and step.high - step.value <= TARGET * step.value
