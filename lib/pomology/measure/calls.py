"""Time one function, or two in turn."""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from pomology.measure import intervals
from pomology.measure.clock import BLOCK_S, Block, block_steps, steps_in
from pomology.measure.estimate import Estimate

TARGET = 0.01  # half-width of the interval over the median at which to stop
LOOK = 1.25  # times as many blocks at each look: some values agree by chance


class Measurement(NamedTuple):
    """A function timed. seconds: the median of a call; blocks, warmup: the raw times."""

    first_call_s: float
    seconds: Estimate
    blocks: tuple[Block, ...]
    stopped: str
    warmup: tuple[Block, ...] = ()


def measure(
    function: Callable[[], Any],
    synchronize: Callable[[], None] = lambda: None,
    *,
    budget_s: float = 1.0,
    warmup_s: float = 0.1,
    warmup_calls: int = 10,
    least_calls: int = 2,
    least_s: float = 0.0,
    limit_s: float = math.inf,
    repeats: int | None = None,
    calls_per_block: int | None = None,
    before: Callable[[], Any] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Measurement:
    """Time `function()`, which the caller has prepared; the first call apart.

    Warm-up lasts `warmup_calls` and `warmup_s`, or half the budget if a slow function needs more.
    Then blocks of calls, synchronized at both ends, until the half-width of the median's interval
    is below 1 % of it (asked at 40 blocks, 50, 63, ...) or the budget is spent; but never fewer than
    two blocks, `least_calls` and `least_s`. repeats: exactly so many blocks. limit_s: what all
    of it may take; then it stops with what it has, one block at the least. calls_per_block: by
    default so many that synchronizing is negligible. before: called ahead of each block, untimed.
    """

    def block(calls: int) -> Block:
        before()
        return _block(function, synchronize, clock, calls)

    synchronize()
    start = clock()
    first = block(1)
    warmup = _warm_up(block, clock, warmup_calls, warmup_s, budget_s / 2, limit_s - first.seconds)
    pace_s = (warmup or [first])[-1].step_s
    # A fiftieth of the budget, so that there are blocks enough.
    block_s = min(BLOCK_S, budget_s / 50)
    size = calls_per_block or block_steps(pace_s, block_s, synchronize, clock)
    blocks: list[Block] = []
    stopped = ""
    next_look = intervals.BATCHES
    begin = clock()
    while not stopped:
        blocks.append(block(size))
        spent_s = clock() - begin
        enough = len(blocks) >= 2 and steps_in(blocks) >= least_calls and spent_s >= least_s
        if clock() - start >= limit_s:
            stopped = "limit"
        elif repeats is not None:
            stopped = "repeats" if len(blocks) >= repeats else ""
        elif enough and spent_s >= budget_s:
            stopped = "budget"
        elif enough and len(blocks) >= next_look:
            next_look = math.ceil(LOOK * next_look)
            median = intervals.median_interval([block.step_s for block in blocks])
            if median.high - median.low <= 2 * TARGET * median.value:
                stopped = "interval"
    return _measurement(first, warmup, blocks, stopped)


def _warm_up(
    block: Callable[[int], Block],
    clock: Callable[[], float],
    least_calls: int,
    least_s: float,
    most_s: float,
    limit_s: float,
) -> list[Block]:
    """Return blocks of 1, 2, 4, ... calls."""
    warmup: list[Block] = []
    size = 1
    begin = clock()
    while True:
        spent_s = clock() - begin
        enough = steps_in(warmup) >= least_calls and spent_s >= least_s
        if enough or spent_s >= min(most_s, limit_s):
            return warmup
        warmup.append(block(size))
        size = min(2 * size, 1024)


class Pairs(NamedTuple):
    """A function timed in turn with a reference; block i of one ran next to block i of the other.

    ratio: geometric mean of reference time / function time over the pairs, with the 95 % interval
    of a paired t-test: above 1, the function is the faster one.
    """

    timed: Measurement
    reference: Measurement
    ratio: Estimate


def in_pairs(
    function: Callable[[], Any],
    reference: Callable[[], Any],
    synchronize: Callable[[], None] = lambda: None,
    *,
    budget_s: float = 1.0,
    limit_s: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> Pairs:
    """Time `function()` against `reference()` in pairs, so that a wandering machine slows both.

    It takes 6 pairs, and more until the budget is spent; once all of it has taken `limit_s`, it
    stops with what it has, two pairs at the least. The first call is timed apart, and a second one
    of each warms up. Which of a pair comes first changes from one to the next.
    """
    both = (function, reference)
    synchronize()
    start = clock()
    first = [_block(each, synchronize, clock, 1) for each in both]
    warm = [_block(each, synchronize, clock, 1) for each in both]
    block_s = min(BLOCK_S, budget_s / 50)
    sizes = [block_steps(block.step_s, block_s, synchronize, clock) for block in warm]
    blocks: tuple[list[Block], list[Block]] = ([], [])
    stopped = ""
    begin = clock()
    while not stopped:
        for side in (0, 1) if len(blocks[0]) % 2 == 0 else (1, 0):
            blocks[side].append(_block(both[side], synchronize, clock, sizes[side]))
        if len(blocks[0]) >= 2 and clock() - start >= limit_s:
            stopped = "limit"
        elif len(blocks[0]) >= intervals.VALUES_LEAST and clock() - begin >= budget_s:
            stopped = "budget"
    timed, other = (_measurement(first[side], [warm[side]], blocks[side], stopped) for side in (0, 1))
    times = [[block.step_s for block in each.blocks] for each in (other, timed)]
    ratio = intervals.difference(*times, paired=True).judged().ratio
    return Pairs(timed, other, ratio.replace(covers="run"))  # pairs of one process


def _measurement(first: Block, warmup: list[Block], blocks: list[Block], stopped: str) -> Measurement:
    median = intervals.median_interval([block.step_s for block in blocks])
    return Measurement(first.seconds, median, tuple(blocks), stopped, tuple(warmup))


def _block(function: Callable, synchronize: Callable, clock: Callable[[], float], calls: int) -> Block:
    start = clock()
    for _ in range(calls):
        function()
    synchronize()
    return Block(calls, clock() - start)
