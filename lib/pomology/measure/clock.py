"""Timing of training loops: the first step separately, then warm-up, then blocks of steady steps.

A GPU works asynchronously, so only a block of steps between two synchronizations has a true time.
Blocks are long enough to make the cost of synchronizing negligible. Work between two steps, such as
loading and logging, counts as part of them. `calls.measure` times a single function.
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
FENCE_SHARE = 0.01  # largest share of a block that its synchronization may take
MAX_BLOCKS = 1000  # per part: long epochs get longer blocks
BURSTS = 5  # at least, per loop
MIN_BURSTS = 3  # before an interval counts: a single burst does not show slow changes
READY_SHARE = 1 / 3  # share of the budget for steps on pre-loaded batches
READY_BATCHES = 3  # pre-loaded batches, used in rotation
MIN_STEPS = 2  # steady steps, however slow: a single one has no spread
SPLIT_STEPS = 10  # least steps of both kinds before the loop is compared with pre-loaded batches
MIN_STOP_STEPS = 100  # with fewer, the stop rule ignores the interval
TARGET = 0.02  # half-width of the interval over the mean at which timing stops
WARM_UP_S = 2.0  # at most; also at most 20 % of the budget
PHASES = ("forward", "backward", "update")


@dataclass(frozen=True)
class Block:
    """Consecutive steps between two synchronizations.

    phases: the seconds that each took. cpu_s: CPU seconds of this process meanwhile, if counted.
    """

    steps: int
    seconds: float
    phases: dict[str, float] = field(default_factory=dict)
    cpu_s: float | None = None

    @property
    def step_s(self) -> float:
        """Mean seconds per step."""
        return self.seconds / self.steps


@dataclass
class Part:
    """Times of one loop over batches, such as an epoch's training or its evaluation.

    epoch_steps: steps of a whole epoch; a smaller last batch counts as its fraction. per_epoch:
    loops per epoch. blocks: steady steps. ready_blocks: steps on pre-loaded batches. last_step_s:
    time of a smaller last batch, which no mean includes. steps: all that ran, without ready_blocks.
    seconds: time of these steps and of occasional work during them, without the clock's own time.
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
        """Number of batches in a whole epoch, without a smaller last one."""
        return max(1, int(self.epoch_steps))

    @property
    def remaining(self) -> int:
        """Number of full batches that have not run yet."""
        return self.full_batches - self.steps


@dataclass
class Occasional:
    """Occasional work of an epoch, such as a checkpoint. part: the loop that does it, if any."""

    per_epoch: float
    part: Part | None
    seconds: list[float] = field(default_factory=list)


@dataclass(eq=False)
class StepClock:
    """Timer of a training loop, used inside it: `for batch in clock.steps(batches): ...`.

    An epoch that is expected to fit the budget runs whole. Otherwise steps run in bursts until
    their interval is narrow or the budget is spent. Pre-loaded batches follow after the loop,
    because they would slow down its steps.

    budget_s: time for steady steps of the first part; each later part gets a quarter of it.
    Pre-loaded batches take a third of the budget, and are skipped if it is too short for 10 steps.
    limit_s: longest time of a part from its first batch on, which stops there with the times that
    it has. whole: run whole epochs regardless of the budget. to_device: moves a batch to the
    device; None times no pre-loaded batches. on_block: called where steady blocks begin or end, and
    at the end.
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
    on_ready: bool = field(default=False, init=False)  # the current step uses a pre-loaded batch
    running: Part | None = field(default=None, init=False)
    _occasional_s = 0.0  # seconds of occasional work so far

    def steps(
        self,
        batches: Iterable,
        part: str = "training",
        steps: float | None = None,
        ready: bool = True,
        per_epoch: float = 1.0,
    ) -> Iterator:
        """Iterate over `batches` and time the loop's work on each.

        steps: steps of a whole epoch, if `len(batches)` is another number. ready: also time steps
        on pre-loaded batches. per_epoch: loops per epoch; 0 if the loop is no part of an epoch.
        """
        assert part not in self.parts and not self.running, f"part {part!r} would count twice"
        training = not self.parts
        self.parts[part] = Part(part, epoch_steps(batches) if steps is None else steps, per_epoch)
        ready = ready and training and self.to_device is not None
        return self._run(self.parts[part], batches, 1 if training else 4, ready)

    @contextmanager
    def occasional(self, name: str, per_epoch: float) -> Iterator[None]:
        """Time work that an epoch does `per_epoch` times, and exclude it from the steps."""
        work = self.occasional_work.setdefault(name, Occasional(per_epoch, self.running))
        self.synchronize()
        start = self._time()
        yield
        self.synchronize()
        seconds = self._time() - start
        work.seconds.append(seconds)
        # `_time` leaves it out from now on, so the block of the current step does not have it.
        self._occasional_s += seconds
        if self.running and not self.on_ready:
            self.running.seconds += seconds

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time `forward`, `backward` or `update` of every step; these then cannot overlap."""
        assert name in PHASES, name
        self.synchronize()
        start = self._time()
        yield
        self.synchronize()
        self._phases[name] = self._phases.get(name, 0.0) + self._time() - start

    def _run(self, part: Part, batches: Iterable, share: int, ready: bool) -> Iterator:
        """Yield the batches of a part, with the budget and the limit divided by `share`."""
        self.synchronize()
        self.running = part
        self._budget_s = self.budget_s / share
        self._deadline = math.inf
        # The first step creates the iterator, which may start workers.
        source = self._limited(batches, self.limit_s / share)
        try:
            first = yield from self._block(source, 1)
            part.first_step_s = first.seconds
            pace_s = yield from self._warm_up(source)
            size = yield from self._steady(source, pace_s, ready)
            if not part.remaining:
                if part.full_batches < part.epoch_steps:
                    last = yield from self._block(source, 1)
                    part.last_step_s = last.seconds
                begin = self._time()
                next(source, None)  # a loader ends its workers here, and a plain loop waits for it
                part.seconds += self._time() - begin
                part.complete = True
                part.stopped = "whole epoch"
            elif self._limit_reached():
                part.stopped = "limit"
            del source  # ends a loader's workers, which would slow down pre-loaded batches
            if size:
                yield from self._ready(batches, size)
        finally:
            self.running = None
            self.on_ready = False
            self.on_block()

    def _limited(self, batches: Iterable, limit_s: float) -> Iterator:
        """Yield batches; the limit begins with the first one, as workers take seconds to start."""
        source = iter(batches)
        for batch in source:
            self._deadline = self.clock() + limit_s
            yield batch
            del batch  # a large one leaves the memory to the next
            break
        yield from source

    def _warm_up(self, source: Iterator) -> Generator[Any, None, float]:
        """Yield blocks of 1, 2, 4, ... steps while caches settle; return seconds per step.

        The first step may compile or start a loader's workers, so it does not show the pace.
        """
        part = self.running
        pace_s = part.first_step_s
        self._lost_overlap_s = 0.0
        enough_s = min(WARM_UP_S, self._budget_s / 5)
        # At most a tenth of the epoch after its first step, so that a short one has steady steps.
        most = max(1, int(part.epoch_steps / 10))
        while sum(block.seconds for block in part.warmup) < enough_s and not self._limit_reached():
            size = min(2 ** len(part.warmup), most + 1 - part.steps, part.remaining)
            if size <= 0:
                break
            block = yield from self._block(source, size)
            part.warmup.append(block)
            pace_s = block.step_s
        if part.warmup and self.clock() + MIN_STEPS * pace_s > self._deadline:
            part.blocks.append(part.warmup.pop())  # the limit leaves no time for a steady step
        return pace_s

    def _steady(self, source: Iterator, pace_s: float, ready: bool) -> Generator[Any, None, int]:
        """Yield steady steps in bursts until the epoch or budget ends or the interval is narrow.

        Returns the steps per block of pre-loaded batches, or 0 if none are timed.
        """
        part = self.running
        block_s = max(BLOCK_S, self._budget_s / MAX_BLOCKS)
        size = block_steps(pace_s, block_s, self.synchronize, self.clock, self._lost_overlap_s)
        left_s = (part.epoch_steps - part.steps) * pace_s
        if self.whole or part.seconds + left_s <= self._budget_s:  # the whole epoch, in one burst
            burst_s = math.inf
            size = max(size, math.ceil(part.epoch_steps / MAX_BLOCKS))
            # Pre-loaded batches are compared with as many steps of the loop.
            ready = ready and part.full_batches >= SPLIT_STEPS
        else:
            # The budget is divided into bursts, after each of which the interval is judged.
            loop_s = self._budget_s * (1 - READY_SHARE)
            ready = ready and SPLIT_STEPS * pace_s <= loop_s
            burst_s = (loop_s if ready else self._budget_s) / BURSTS
            size = min(size, max(1, int(burst_s / max(pace_s, 1e-9))))
        least = SPLIT_STEPS if ready else MIN_STEPS
        if size > 1:  # the check for a drift needs this many blocks
            least = max(least, intervals.VALUES_LEAST * size)
        begin = self._time()
        bursts = 0
        while part.remaining and not self._limit_reached():
            self.on_block()
            yield from self._burst(source, size, burst_s)
            bursts += 1
            if steps_in(part.blocks) >= least and self._time() - begin >= BURSTS * burst_s:
                part.stopped = "budget"
                break
            if bursts >= MIN_BURSTS and narrow(part.blocks):
                part.stopped = "interval"
                break
        return size if ready else 0

    def _burst(self, source: Iterator, size: int, least_s: float, least: float = 1) -> Iterator:
        """Yield blocks for at least these seconds and steps, within the epoch and the limit."""
        blocks = self.running.ready_blocks if self.on_ready else self.running.blocks
        begin = self._time()
        done = 0
        while not self._limit_reached() and (done < least or self._time() - begin < least_s):
            steps = size if self.on_ready else min(size, self.running.remaining)
            if not steps:
                return
            block = yield from self._block(source, steps)
            blocks.append(block)
            done += block.steps
            if not self.on_ready:
                self.on_block()

    def _ready(self, batches: Iterable, size: int) -> Iterator:
        """Yield bursts of pre-loaded batches, taken anew so that the loop need not keep any."""
        count = min(READY_BATCHES, self.running.full_batches)
        if getattr(batches, "num_workers", 0):  # workers would go on loading during the timing
            batches = copy.copy(batches)
            batches.num_workers = 0
        ready_batches = [self.to_device(batch) for batch in itertools.islice(batches, count)]
        self.synchronize()
        self.on_ready = True
        burst_s = self._budget_s * READY_SHARE / BURSTS
        for burst in range(1, BURSTS + 1):
            source = itertools.cycle(ready_batches)
            yield from self._burst(source, size, burst_s, SPLIT_STEPS / BURSTS)
            if burst >= MIN_BURSTS and narrow(self.running.ready_blocks):
                break

    def _block(self, source: Iterator, size: int) -> Generator[Any, None, Block]:
        """Yield `size` batches, or fewer if the part reaches its limit; return their block."""
        part = self.running
        self._phases = {}
        cpu_start = time.process_time()
        start = self._time()
        done = 0
        for batch in itertools.islice(source, size):
            yield batch
            done += 1
            if self._limit_reached():
                break
        before_sync = self._time()
        self.synchronize()
        end = self._time()
        if not done or (done < size and not self._limit_reached()):
            ran = f"{part.steps + done} of {math.ceil(part.epoch_steps)} steps"
            raise ValueError(f"part {part.name!r}: the batches ended after {ran}")
        if not self.on_ready:
            part.steps += done
            part.seconds += end - start
        # The most that preparing a step while the device runs the last one can have saved.
        self._lost_overlap_s = min(end - before_sync, (before_sync - start) / done)
        return Block(done, end - start, self._phases, time.process_time() - cpu_start)

    def _limit_reached(self) -> bool:
        """Return whether the running part has reached its limit, if it has one."""
        return self._deadline < math.inf and self.clock() >= self._deadline

    def _time(self) -> float:
        """Return the clock's time without occasional work, which no step or budget includes."""
        return self.clock() - self._occasional_s


def epoch_steps(batches: Any) -> float:
    """Return the steps of one pass over `batches`; a smaller last batch counts as its fraction."""
    sampler = getattr(batches, "sampler", None)
    if sampler is None or batches.batch_size is None or batches.drop_last:
        return float(len(batches))
    # A sampler may draw another number than the dataset holds; that of a stream has no length.
    return len(sampler if hasattr(sampler, "__len__") else batches.dataset) / batches.batch_size


def steps_in(blocks: Iterable[Block]) -> int:
    """Return the number of steps in some blocks."""
    return sum(block.steps for block in blocks)


def block_steps(
    pace_s: float,
    block_s: float,
    synchronize: Callable[[], None],
    clock: Callable[[], float] = time.perf_counter,
    lost_s: float = 0.0,
) -> int:
    """Return the steps of a block that takes `block_s`, or longer if synchronizing is slow.

    lost_s: time that overlapping work would save without a synchronization.
    """
    sync_s = min(timeit.repeat(synchronize, number=1, repeat=3, timer=clock))
    least_s = (sync_s + lost_s) / FENCE_SHARE
    return max(1, math.ceil(max(block_s, least_s) / max(pace_s, 1e-9)))


def interval(blocks: list[Block]) -> Estimate:
    """Return the mean seconds per step over blocks, with its 95 % interval within this run."""
    return intervals.interval([block.step_s for block in blocks], [block.steps for block in blocks])


def narrow(blocks: list[Block]) -> bool:
    """Return whether the interval is narrow enough to stop; frequent checks stop by chance."""
    if len(blocks) < intervals.BATCHES:
        return False
    step = interval(blocks)
    return step.n >= MIN_STOP_STEPS and step.high - step.value <= TARGET * step.value
