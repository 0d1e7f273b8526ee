"""Steps and kernels timed: the first step apart, warm-up, fenced blocks, a stop rule, raw times kept.

A GPU works behind the program's back, so only a *block* of steps between two fences has a true time. Blocks are made so
long that what a fence costs vanishes: its own time, and the work that would else have overlapped. What lies between two
steps of a loop (loading, logging) belongs to the steps. `StepClock` times such a loop, `calls.measure` a function."""

import itertools
import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, NamedTuple

from pomology.measure import intervals
from pomology.measure.estimate import Estimate

BLOCK_S = 0.025  # a fence on MPS costs about 0.2 ms, so under 1 % of such a block
FENCE_SHARE = 0.01  # and never more than this, whatever a fence costs
BLOCKS_MOST = 1000  # raw times kept of a part: long epochs get longer blocks
BURSTS = 5  # step times wander slowly: short bursts spread over the budget see more of it than one long one
READY_SHARE = 1 / 3  # of the budget, for the same loop on ready batches
READY_BATCHES = 3  # kept aside for that, and used in turn
STEPS_LEAST = 2  # steady steps, however slow: one alone has no spread
STEPS_FEW = 20  # below which a case is marked
SPLIT_STEPS = 10  # of the loop, and as many on ready batches, before one is held against the other
STEPS_ENOUGH = 100  # below which no interval is believed by the stop rule
TARGET = 0.02  # half-width of the interval over the mean at which to stop
PHASES = ("forward", "backward", "update")  # of a step


@dataclass(frozen=True)
class Block:
    """Consecutive steps between two fences. phases: the seconds of them that each named phase took."""

    steps: int
    seconds: float
    phases: dict[str, float] = field(default_factory=dict)

    @property
    def step_s(self) -> float:
        return self.seconds / self.steps


@dataclass
class Part:
    """What one loop over batches left behind: all of an epoch's training, or all of its evaluation.

    epoch_steps: in a whole epoch; a smaller last batch counts as its fraction. per_epoch: as of `StepClock.steps`.
    blocks: steady steps with whatever the loop really does; ready_blocks: on batches that were ready. last_step_s: of
    a smaller last batch, which no mean holds. steps: run in whole blocks, the first, warm-up and the last included,
    ready ones not. seconds: of the whole loop, asides included, ready blocks not."""

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
        """Of a whole epoch: all batches but a smaller last one."""
        return max(1, int(self.epoch_steps))


class Plan(NamedTuple):
    """How the steady steps of a part are taken. whole: to the end of the epoch. size: steps of a block. burst_s: of the
    loop, between looks at the stop rule. ready: where ready batches are timed: "turns" after each burst, in two halves
    "around" the steady steps, "behind" them, or nowhere. settling: steps that settle a loader with workers between."""

    whole: bool
    size: int
    burst_s: float
    ready: Literal["", "turns", "around", "behind"]
    settling: int = 0


def steps_in(blocks: Iterable[Block]) -> int:
    return sum(block.steps for block in blocks)


@dataclass
class Occasional:
    """What an epoch does now and then: a checkpoint, a picture. part: in whose loop it happens, if in any."""

    per_epoch: float
    part: str | None
    seconds: list[float] = field(default_factory=list)


def epoch_steps(batches: Any) -> float:
    """Steps of one pass over `batches`; a smaller last one counts as its fraction. TypeError: its length is unknown."""
    size = getattr(batches, "batch_size", None)
    if size and hasattr(batches, "dataset") and not getattr(batches, "drop_last", False):
        # A sampler may draw fewer or more samples than the dataset holds; that of a stream has no length.
        drawn = getattr(batches, "sampler", None)
        return len(drawn if hasattr(drawn, "__len__") else batches.dataset) / size
    return float(len(batches))


@dataclass(eq=False)
class StepClock:
    """Times a training loop from inside: `for batch in clock.steps(batches): ...`.

    An epoch that is expected to fit the budget runs whole. Otherwise steps are taken in bursts, the real loop and the
    ready one in turn, until both intervals are narrow or the budget is spent. budget_s: for steady steps of the
    training part, a third of it for ready batches, which are left out where it is too short for 10 steps; the first
    step and warm-up come on top, and so do ready batches around a whole epoch or a loader with workers. limit_s: what a
    part may take at most, all included, an evaluation a quarter of it: then it stops with what it has. whole: run whole
    epochs whatever they take. to_device: moves a batch to the device, to be kept ready; None times no ready batches.
    on_progress: called where blocks begin and end, with (part name, steps done, steps expected or None). before_ready:
    called when batches are about to be kept ready. on_ready: whether the step is on a ready batch. running: the part
    under way, None between two."""

    synchronize: Callable[[], None] = lambda: None
    _: KW_ONLY
    budget_s: float = 10.0
    limit_s: float = math.inf
    whole: bool = False
    to_device: Callable[[Any], Any] | None = None
    clock: Callable[[], float] = time.perf_counter
    on_progress: Callable[[str, int, float | None], None] = lambda part, done, expected: None
    before_ready: Callable[[], None] = lambda: None
    parts: dict[str, Part] = field(default_factory=dict, init=False)
    occasional_work: dict[str, Occasional] = field(default_factory=dict, init=False)
    on_ready: bool = field(default=False, init=False)

    _aside_s = _ready_s = 0.0
    _until = math.inf  # when the part under way has reached its limit
    running = _phase = None  # the part and the phase under way

    def steps(
        self,
        batches: Iterable,
        part: str = "training",
        steps: float | None = None,
        ready: bool = True,
        per_epoch: float = 1.0,
    ) -> Iterator:
        """Iterate over `batches`, timing what the loop does with them. part: an evaluation is one of its own, and gets
        a quarter of the budget. steps: of a whole epoch, where `len(batches)` does not tell. ready: whether the loop
        would train on ready batches that it is given. per_epoch: how often an epoch has this loop; 0 where the steps
        are of no epoch, and none is estimated."""
        if part in self.parts or self.running is not None:
            raise ValueError(f"part {part!r} was timed already, or began inside of another; it would count twice")
        training, total = not self.parts, epoch_steps(batches) if steps is None else float(steps)
        if total <= 0:
            raise ValueError(f"part {part!r} has no batches")
        self.parts[part] = Part(part, total, per_epoch)
        # An iterator can be read only once.
        ready = ready and training and self.to_device is not None and not isinstance(batches, Iterator)
        share = 1 if training else 4
        return self._run(self.parts[part], batches, self.budget_s / share, self.limit_s / share, ready)

    @contextmanager
    def occasional(self, name: str, per_epoch: float) -> Iterator[None]:
        """Time something that an epoch does `per_epoch` times, and keep it out of the steps around it."""
        record = self.occasional_work.setdefault(name, Occasional(per_epoch, self.running))
        self.synchronize()
        start, inner_s = self.clock(), self._aside_s
        yield
        self.synchronize()
        seconds = self.clock() - start - (self._aside_s - inner_s)
        record.seconds.append(seconds)
        self._aside_s += seconds

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a part of every step apart: `forward`, `backward` or `update`. Its fences keep the device from
        overlapping it with the next: a loop may be slower by what the program needs to prepare a step."""
        if name not in PHASES or self.running is None or self._phase is not None:
            raise ValueError(f"phase {name!r}: one of {', '.join(PHASES)}, in a loop over steps and in no other phase")
        self._phase = name
        try:
            self.synchronize()
            start, aside_s = self.clock(), self._aside_s
            yield
            self.synchronize()
            seconds = self.clock() - start - (self._aside_s - aside_s)
            self._phases[name] = self._phases.get(name, 0.0) + seconds
        finally:
            self._phase = None

    def _run(self, part: Part, batches: Iterable, budget_s: float, limit_s: float, ready: bool) -> Iterator:
        self.synchronize()
        self.running, self._ready_s, start = part.name, 0.0, self.clock()
        self._until, self._pool = start + limit_s, []
        source = (batch for given in (batches,) for batch in given)  # asked for an iterator with the first step
        try:
            first, _ = yield from self._block(part, source, 1)
            part.first_step_s = first.seconds
            self.on_progress(part.name, part.steps, math.ceil(part.epoch_steps))
            pace_s, lost_s = yield from self._warm_up(part, source, budget_s)
            plan = self._plan(part, batches, budget_s, self.clock() - start, pace_s, lost_s, ready)
            halves = 2 if plan.ready == "around" else 1
            if plan.ready == "around":
                yield from self._ready(part, batches, plan.size, budget_s, halves)
                if plan.settling and part.steps < part.full_batches:
                    block, _ = yield from self._block(part, source, min(plan.settling, part.full_batches - part.steps))
                    part.warmup.append(block)
            # Here rather than in a generator of its own, which would cost every step a tenth of a microsecond.
            turns, expected = plan.ready == "turns", math.ceil(part.epoch_steps) if plan.whole else None
            least, loops = (SPLIT_STEPS, [part.blocks, part.ready_blocks]) if turns else (STEPS_LEAST, [part.blocks])
            # An interval needs so many blocks.
            least = max(least, intervals.VALUES_LEAST * plan.size if plan.size > 1 else 0)
            burst, begun = 0, self._now()
            while part.steps < part.full_batches and not self._late():
                self.on_progress(part.name, part.steps, expected)
                burst, until = burst + 1, self._now() + plan.burst_s
                while part.steps < part.full_batches and not self._late():
                    block, _ = yield from self._block(part, source, min(plan.size, part.full_batches - part.steps))
                    part.blocks.append(block)
                    self.on_progress(part.name, part.steps, expected)
                    if self._now() >= until:
                        break
                if turns:
                    yield from self._ready(part, batches, plan.size, budget_s, BURSTS)
                if self._now() - begun >= budget_s and all(steps_in(blocks) >= least for blocks in loops):
                    part.stopped = "budget"
                    break
                # Not before the third burst: an interval from one stretch knows nothing of slow wander.
                if burst >= 3 and all(map(narrow, loops)):
                    part.stopped = "interval"
                    break
            if part.steps == part.full_batches:
                if part.full_batches < part.epoch_steps:
                    last, _ = yield from self._block(part, source, 1)
                    part.last_step_s = last.seconds
                next(source, None)  # a loader with workers ends them now, and a loop over it would wait for that
                part.complete, part.stopped = True, "whole epoch"
            elif self._late():
                part.stopped = "limit"
            part.seconds = self.clock() - start - self._ready_s
            source.close()  # workers of a loader end here, and load nothing beside the ready batches
            if plan.ready in ("around", "behind"):
                yield from self._ready(part, batches, plan.size, budget_s, halves)
        finally:
            self.running, self.on_ready, self._until, self._pool = None, False, math.inf, []
            part.seconds = part.seconds or self.clock() - start - self._ready_s
            self.on_progress(part.name, part.steps, part.steps)

    def _warm_up(self, part: Part, source: Iterator, budget_s: float) -> Generator[Any, None, tuple[float, float]]:
        """Blocks of 1, 2, 4, ... steps, which show the pace, and let caches and clocks settle. The first step does
        neither: compilation or the start of workers may take seconds where a step takes milliseconds. Returns seconds
        of a step, and those that a fence can have kept from overlapping."""
        pace_s, lost_s, size = part.first_step_s, 0.0, 1
        most = max(1, int(part.epoch_steps / 10))
        while not self._late() and (size := min(size, most + 1 - part.steps, part.full_batches - part.steps)) > 0:
            block, lost_s = yield from self._block(part, source, size)
            part.warmup.append(block)
            pace_s, size = block.step_s, 2 * size
            if sum(block.seconds for block in part.warmup) >= min(2.0, budget_s / 5):
                break
        if part.warmup and self.clock() + STEPS_LEAST * pace_s > self._until:
            part.blocks.append(part.warmup.pop())  # no more will come that could be a steady step
        return pace_s, lost_s

    def _plan(
        self, part: Part, batches: Iterable, budget_s: float, spent_s: float, pace_s: float, lost_s: float, ready: bool
    ) -> Plan:
        """How to go on after the warm-up: spent_s since the part began; pace_s and lost_s as of `_warm_up`."""
        size = block_steps(pace_s, max(BLOCK_S, budget_s / BLOCKS_MOST), self.synchronize, self.clock, lost_s)
        whole = self.whole or spent_s + (part.epoch_steps - part.steps) * pace_s <= budget_s
        loop_s = budget_s * (1 - READY_SHARE)
        workers = getattr(batches, "num_workers", 0)
        settling = 2 * workers * (getattr(batches, "prefetch_factor", None) or 2)
        if not (ready and (part.full_batches >= SPLIT_STEPS if whole else SPLIT_STEPS * pace_s <= loop_s)):
            where = ""
        elif not whole and not workers:
            where = "turns"
        # A loader with workers fetches ahead while ready batches are timed, and looks too fast until that is used up.
        # So these are timed in two halves around its steps, if there is time for steps that settle it: twice as many
        # as it fetches ahead. Where loading and computing take about as long, that many more batches come for nothing
        # at the most. A whole epoch's time would hold such steps; one that is asked for is left as it is.
        elif not (whole and (workers or self.whole)) and settling * pace_s <= loop_s / 2:
            where = "around"
        else:
            where = "behind"
        if whole:
            return Plan(whole, max(size, math.ceil(part.epoch_steps / BLOCKS_MOST)), math.inf, where, settling)
        burst_s = (loop_s if where == "turns" else budget_s) / BURSTS
        return Plan(whole, min(size, max(1, int(burst_s / max(pace_s, 1e-9)))), burst_s, where, settling)

    def _block(self, part: Part, source: Iterator, size: int) -> Generator[Any, None, tuple[Block, float]]:
        """Yield `size` batches; return their block, fenced at its end, and the most that the fence can have kept from
        overlapping: the program prepares a step while the device works on the one before, but not across a fence. Fewer
        batches where the part reaches its limit meanwhile."""
        self._phases = {}
        aside_s, start, done = self._aside_s, self.clock(), 0
        for batch in itertools.islice(source, size):
            yield batch
            done += 1
            if self._late():
                break
        asked = self.clock()
        self.synchronize()
        end, aside_s = self.clock(), self._aside_s - aside_s
        if done < size and not (done and self._late()):
            promised = math.ceil(part.epoch_steps)
            raise ValueError(f"part {part.name!r}: the batches ended after {part.steps + done} of {promised} steps")
        part.steps += 0 if self.on_ready else done
        return Block(done, end - start - aside_s, self._phases), min(end - asked, (asked - start - aside_s) / done)

    def _keep_ready(self, batches: Iterable, few: int) -> list:
        """So many batches on the device, from an iterator of their own: kept from the loop's steps, they would be in
        the memory that these are said to take. A loader's workers are not started for so few."""
        start, _ = self.clock(), self.before_ready()
        if getattr(batches, "num_workers", 0) and getattr(batches, "batch_sampler", None) is not None:
            chosen = itertools.islice(batches.batch_sampler, few)
            pool = [batches.collate_fn([batches.dataset[index] for index in indices]) for indices in chosen]
        else:
            pool = list(itertools.islice(batches, few))
        pool = [self.to_device(batch) for batch in pool]
        self.synchronize()
        self._ready_s += self.clock() - start
        return pool

    def _ready(self, part: Part, batches: Iterable, size: int, budget_s: float, turns: int) -> Iterator:
        """The same loop on batches that are on the device already: a share of the budget, and of `SPLIT_STEPS` steps at
        the least, each in so many turns."""
        self._pool = self._pool or self._keep_ready(batches, min(READY_BATCHES, part.full_batches))
        begun, done, source = self.clock(), 0, itertools.cycle(self._pool)
        self.on_ready = True
        while not self._late():
            block, _ = yield from self._block(part, source, size)
            part.ready_blocks.append(block)
            done += block.steps
            if done >= SPLIT_STEPS / turns and self.clock() - begun >= budget_s * READY_SHARE / turns:
                break
        self.on_ready = False
        self._ready_s += self.clock() - begun

    def _late(self) -> bool:
        """Whether the part under way has reached its limit. A clock is read only where there is one."""
        return self._until < math.inf and self.clock() >= self._until

    def _now(self) -> float:
        """The clock without the asides, which have no share in the budget."""
        return self.clock() - self._aside_s


def block_steps(
    pace_s: float, block_s: float, synchronize: Callable[[], None], clock: Callable[[], float], lost_s: float = 0.0
) -> int:
    """Steps of a block that takes `block_s`, or longer where a fence would else be no negligible share of it."""
    fences_s = []
    for _ in range(3):
        start = clock()
        synchronize()
        fences_s.append(clock() - start)
    return max(1, math.ceil(max(block_s, (min(fences_s) + lost_s) / FENCE_SHARE) / max(pace_s, 1e-9)))


def interval(blocks: list[Block]) -> Estimate:
    """Seconds per step over blocks, with the 95 % interval within this run."""
    return intervals.interval([block.step_s for block in blocks], [block.steps for block in blocks])


def narrow(blocks: list[Block]) -> bool:
    """Whether enough was measured. Asked at the ends of bursts, since some blocks agree by chance."""
    step = interval(blocks) if len(blocks) >= intervals.BATCHES else None
    return step is not None and step.n >= STEPS_ENOUGH and step.high - step.value <= TARGET * step.value
