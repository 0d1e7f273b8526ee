"""Timing of a single function."""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from pomology.measure import intervals
from pomology.measure.clock import BLOCK_S, Block, block_steps, steps_in
from pomology.measure.estimate import Estimate

TARGET = 0.01  # half-width of the interval over the median at which timing stops
CHECK_GROWTH = 1.25  # factor between the blocks at two checks: frequent ones stop by chance


class Measurement(NamedTuple):
    """Times of a function. seconds: median per call. blocks, warmup: raw times.

    stopped: the reason, `limit`, `repeats`, `budget` or `interval`.
    """

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
    """Time `function()`: the first call separately, then warm-up, then blocks of calls.

    Warm-up takes at least `warmup_calls` and `warmup_s`, but at most half the budget. Blocks are
    synchronized at both ends. They stop if the half-width of the median's interval is at most 1 %
    of it, or the budget is spent. The interval is checked at 40 blocks, 50, 63, ... At least two
    blocks, `least_calls` and `least_s` are timed.

    repeats: exact number of blocks. limit_s: longest time of the whole call, which then returns
    what it has, at least one block. calls_per_block: by default enough to make synchronizing
    negligible. before: called before each block, untimed.
    """

    def block(calls: int) -> Block:
        before()
        cpu_start = time.process_time()
        start = clock()
        for _ in range(calls):
            function()
        synchronize()
        seconds = clock() - start
        return Block(calls, seconds, cpu_s=time.process_time() - cpu_start)

    synchronize()
    start = clock()
    first = block(1)
    # Warm-up: blocks of 1, 2, 4, ... calls, while caches and clock speeds settle.
    warmup: list[Block] = []
    begin = clock()
    most_s = min(budget_s / 2, limit_s - first.seconds)
    while clock() - begin < most_s:
        if steps_in(warmup) >= warmup_calls and clock() - begin >= warmup_s:
            break
        warmup.append(block(min(2 ** len(warmup), 1024)))
    # The last block of the warm-up shows how many calls a block needs.
    pace_s = (warmup or [first])[-1].step_s
    block_s = min(BLOCK_S, budget_s / 50)  # a short budget needs shorter blocks for an interval
    size = calls_per_block or block_steps(pace_s, block_s, synchronize, clock)
    # Blocks, until one of four reasons ends them.
    blocks: list[Block] = []
    stopped = ""
    next_check = intervals.BATCHES
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
        elif enough and len(blocks) >= next_check:
            next_check = math.ceil(CHECK_GROWTH * next_check)
            median = intervals.median_interval([block.step_s for block in blocks])
            if median.high - median.low <= 2 * TARGET * median.value:
                stopped = "interval"
    median = intervals.median_interval([block.step_s for block in blocks])
    return Measurement(first.seconds, median, tuple(blocks), stopped, tuple(warmup))
