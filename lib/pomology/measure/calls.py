"""Time one function, or two in turn."""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from pomology.measure import intervals
from pomology.measure.clock import BLOCK_S, Block, block_steps, steps_in
from pomology.measure.estimate import Estimate

TARGET = 0.01  # half-width of the interval over the median at which to stop
LOOK = 1.25  # so many times as many blocks at each look: values agree by chance, and who looks often stops at that


class Measurement(NamedTuple):
    """A function timed. `seconds` is the median of a call with its interval; `blocks` are the raw times, and `warmup`
    those before."""

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
    """Time `function()`, a kernel that the caller has prepared; the first call apart.

    Warm-up lasts `warmup_calls` and `warmup_s`, or half the budget if a slow function needs more. Then blocks of calls,
    fenced at both ends, until the half-width of the median's interval is below 1 % of it, asked at 40 blocks, 50, 63
    and so on, or the budget is spent, but never fewer than two blocks, `least_calls` and `least_s`; or `repeats`
    blocks, where given. Once all of it has taken `limit_s`, it stops with what it has, one block at the least. A block
    has so many calls that the fence is negligible, or `calls_per_block`: 1 fences every call. `before` is called ahead
    of each block, untimed."""

    def block(calls: int) -> Block:
        before()
        return _block(function, synchronize, clock, calls)

    synchronize()
    start = clock()
    first = block(1)
    warmup, begun, calls = [], clock(), 1
    while (spent_s := clock() - begun) < min(budget_s / 2, limit_s - first.seconds) and (
        steps_in(warmup) < warmup_calls or spent_s < warmup_s
    ):
        warmup.append(block(calls))
        calls = min(2 * calls, 1024)
    pace_s = (warmup or [first])[-1].step_s
    # A fiftieth of the budget, so that there are blocks enough.
    per_block = calls_per_block or block_steps(pace_s, min(BLOCK_S, budget_s / 50), synchronize, clock)
    blocks, stopped, look, begun = [], "", intervals.BATCHES, clock()
    while not stopped:
        blocks.append(block(per_block))
        spent_s = clock() - begun
        enough = len(blocks) >= 2 and steps_in(blocks) >= least_calls and spent_s >= least_s
        if clock() - start >= limit_s:
            stopped = "limit"
        elif repeats is not None:
            stopped = "repeats" if len(blocks) >= repeats else ""
        elif enough and spent_s >= budget_s:
            stopped = "budget"
        elif enough and len(blocks) >= look:
            look = math.ceil(LOOK * look)
            middle = intervals.median_interval([block.step_s for block in blocks])
            stopped = "interval" if middle.high - middle.low <= 2 * TARGET * middle.value else ""
    return _measurement(first, warmup, blocks, stopped)


class Pairs(NamedTuple):
    """A function timed in turn with another one. `ratio` is the geometric mean of reference time / function time over
    the pairs, with the 95 % interval of a paired t-test: above 1, the function is the faster one. `timed` and
    `reference` are the two, with medians of a call; block i of one ran beside block i of the other."""

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
    """Time `function()` against `reference()` in pairs, so that a wandering machine slows both: 6 pairs, and more until
    the budget is spent; once all of it has taken `limit_s`, it stops with what it has, two pairs at the least. The
    first call is timed apart, and a second one of each warms up. A block has so many calls that the fence is
    negligible. Which of a pair comes first changes from one to the next."""
    both = (function, reference)
    synchronize()
    start = clock()
    first, warm = ([_block(each, synchronize, clock, 1) for each in both] for _ in range(2))
    calls = [block_steps(block.step_s, min(BLOCK_S, budget_s / 50), synchronize, clock) for block in warm]
    begun, blocks, stopped = clock(), ([], []), ""
    while not stopped:
        for side in (0, 1) if len(blocks[0]) % 2 == 0 else (1, 0):
            blocks[side].append(_block(both[side], synchronize, clock, calls[side]))
        if len(blocks[0]) >= 2 and clock() - start >= limit_s:
            stopped = "limit"
        elif len(blocks[0]) >= intervals.VALUES_LEAST and clock() - begun >= budget_s:
            stopped = "budget"
    own, others = (_measurement(first[side], [warm[side]], blocks[side], stopped) for side in (0, 1))
    times = [[block.step_s for block in each.blocks] for each in (others, own)]
    ratio = intervals.difference(*times, paired=True).judged().ratio.replace(covers="run")  # pairs of one process
    return Pairs(own, others, ratio)


def _measurement(first: Block, warmup: list[Block], blocks: list[Block], stopped: str) -> Measurement:
    median = intervals.median_interval([block.step_s for block in blocks])
    return Measurement(first.seconds, median, tuple(blocks), stopped, tuple(warmup))


def _block(function: Callable, synchronize: Callable, clock: Callable[[], float], calls: int) -> Block:
    start = clock()
    for _ in range(calls):
        function()
    synchronize()
    return Block(calls, clock() - start)
