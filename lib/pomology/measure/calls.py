"""Time one function, or two in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from pomology.measure import intervals
from pomology.measure.clock import BLOCK_S, Block, block_steps
from pomology.measure.estimate import Estimate

TARGET = 0.01  # half-width of the interval over the median at which to stop


class Measurement(NamedTuple):
    """A function timed. `seconds` is the median of a call with its interval; `blocks` are the raw times."""

    first_call_s: float
    seconds: Estimate
    blocks: tuple[Block, ...]
    stopped: str


def measure(
    function: Callable[[], Any],
    synchronize: Callable[[], None] = lambda: None,
    *,
    budget_s: float = 1.0,
    warmup_s: float = 0.1,
    warmup_calls: int = 10,
    repeats: int | None = None,
    calls_per_block: int | None = None,
    least_calls: int = 2,
    least_s: float = 0.0,
    before: Callable[[], Any] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Measurement:
    """Time `function()`, a kernel that the caller has prepared; the first call apart.

    Warm-up lasts `warmup_calls` and `warmup_s`, or half the budget if a slow function needs more. Then blocks of calls,
    fenced at both ends, until the half-width of the median's interval is below 1 % of it (from 20 blocks on) or the
    budget is spent, but never fewer than `least_calls` in two blocks, nor less than `least_s`; or `repeats` blocks,
    where given. A block has so many calls that the fence is negligible, or `calls_per_block`: 1 fences every call.
    `before` is called ahead of each block, untimed.
    """

    def block(calls: int) -> Block:
        before()
        return _block(function, synchronize, clock, calls)

    synchronize()
    first = done = block(1)
    begun, calls, total = clock(), 1, 0
    while clock() - begun < budget_s / 2 and (total < warmup_calls or clock() - begun < warmup_s):
        done = block(calls)
        total, calls = total + calls, min(2 * calls, 1024)
    # A fiftieth of the budget, so that there are blocks enough.
    per_block = calls_per_block or block_steps(done.step_s, min(BLOCK_S, budget_s / 50), synchronize, clock)
    blocks: list[Block] = []
    stopped, begun = "", clock()
    while not stopped:
        blocks.append(block(per_block))
        if repeats is not None:
            stopped = "repeats" if len(blocks) >= repeats else ""
        elif len(blocks) < 2 or len(blocks) * per_block < least_calls or clock() - begun < least_s:
            continue
        elif clock() - begun >= budget_s:
            stopped = "budget"
        elif len(blocks) >= 20 and len(blocks) % 5 == 0:
            middle = intervals.median_interval([block.step_s for block in blocks])
            stopped = "interval" if middle.high - middle.low <= 2 * TARGET * middle.value else ""
    median = intervals.median_interval([block.step_s for block in blocks])
    return Measurement(first.seconds, median, tuple(blocks), stopped)


class Pairs(NamedTuple):
    """A function timed in turn with another one. `ratio` is the geometric mean of reference time / function time over
    the pairs, with the 95 % interval of a paired t-test: above 1, the function is the faster one. `seconds` and
    `reference` are medians of a call."""

    first_call_s: float
    seconds: Estimate
    reference: Estimate
    ratio: Estimate


def in_pairs(
    function: Callable[[], Any],
    reference: Callable[[], Any],
    synchronize: Callable[[], None] = lambda: None,
    *,
    budget_s: float = 1.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Pairs:
    """Time `function()` against `reference()` in pairs, so that a wandering machine slows both: 4 pairs, and more until
    the budget is spent. The first call is timed apart, and a second one of each warms up. A block has so many calls
    that the fence is negligible. Which of a pair comes first changes from one to the next."""
    both = (function, reference)
    synchronize()
    first, _ = (_block(each, synchronize, clock, 1) for each in both)
    paces_s = [_block(each, synchronize, clock, 1).step_s for each in both]
    calls = [block_steps(pace_s, min(BLOCK_S, budget_s / 50), synchronize, clock) for pace_s in paces_s]
    begun, own, others = clock(), [], []
    while len(own) < 4 or clock() - begun < budget_s:
        pair = list(zip(both, calls, (own, others), strict=True))
        for each, count, times in reversed(pair) if len(own) % 2 else pair:
            times.append(_block(each, synchronize, clock, count).step_s)
    ratio = intervals.compare(others, own, paired=True).ratio.replace(covers="run")  # pairs of one process
    return Pairs(first.seconds, intervals.median_interval(own), intervals.median_interval(others), ratio)


def _block(function: Callable, synchronize: Callable, clock: Callable[[], float], calls: int) -> Block:
    start = clock()
    for _ in range(calls):
        function()
    synchronize()
    return Block(calls, clock() - start)
