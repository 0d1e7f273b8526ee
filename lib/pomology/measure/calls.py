"""Time one function, or two in turn."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pomology.measure import intervals
from pomology.measure.clock import BLOCK_S, FENCE_SHARE, Block, _timed
from pomology.measure.estimate import Estimate


@dataclass(frozen=True)
class Measurement:
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
    target: float = 0.01,
    before: Callable[[], Any] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Measurement:
    """Time `function()`, a kernel that the caller has prepared.

    The first call is timed apart. Warm-up lasts `warmup_calls` and `warmup_s`, or half the budget if a slow function
    needs more. Then blocks of calls, fenced at both ends, until the median's interval is narrower than `target`
    (half-width over median, from 20 blocks on) or the budget is spent, but never fewer than two; or just `repeats`
    blocks, where that is given. A block has so many calls that the fence is negligible, unless `calls_per_block` says
    otherwise: 1 fences every call, as a program that waits for each result would. `before` is called ahead of each
    block, outside of its time: a pause, say.
    """

    def block(calls: int) -> Block:
        if before is not None:
            before()
        start = clock()
        for _ in range(calls):
            function()
        synchronize()
        return Block(calls, clock() - start)

    synchronize()
    first = block(1)
    begun, calls, total, pace_s = clock(), 1, 0, first.seconds
    while clock() - begun < budget_s / 2 and (total < warmup_calls or clock() - begun < warmup_s):
        done = block(calls)
        pace_s, total, calls = done.step_s, total + calls, min(2 * calls, 1024)
    if calls_per_block is None:
        fence_s = min(_timed(synchronize, clock) for _ in range(3))
        # A fiftieth of the budget, so that there are blocks enough, but never less than makes the fence vanish.
        block_s = max(min(BLOCK_S, budget_s / 50), fence_s / FENCE_SHARE)
        calls_per_block = max(1, math.ceil(block_s / max(pace_s, 1e-9)))
    blocks: list[Block] = []
    stopped = "repeats"
    begun = clock()
    while repeats is None or len(blocks) < repeats:
        blocks.append(block(calls_per_block))
        if repeats is None and len(blocks) >= 2:
            if clock() - begun >= budget_s:
                stopped = "budget"
                break
            if len(blocks) >= 20 and len(blocks) % 5 == 0:
                middle = intervals.median_interval([block.step_s for block in blocks])
                if middle.high - middle.low <= 2 * target * middle.value:
                    stopped = "interval"
                    break
    return Measurement(
        first.seconds, intervals.median_interval([block.step_s for block in blocks]), tuple(blocks), stopped
    )


@dataclass(frozen=True)
class Pairs:
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
    least: int = 4,
    clock: Callable[[], float] = time.perf_counter,
) -> Pairs:
    """Time `function()` against `reference()` in pairs, so that a wandering machine slows both.

    The first call is timed apart, and a second one of each warms up. A block has so many calls that the fence is
    negligible. Which of a pair comes first changes from one to the next. There are `least` pairs, and more until the
    budget is spent.
    """

    def block(call: Callable[[], Any], calls: int) -> float:
        start = clock()
        for _ in range(calls):
            call()
        synchronize()
        return (clock() - start) / calls

    synchronize()
    first_call_s = block(function, 1)
    block(reference, 1)
    pace_s = [block(function, 1), block(reference, 1)]
    fence_s = min(_timed(synchronize, clock) for _ in range(3))
    block_s = max(min(BLOCK_S, budget_s / 50), fence_s / FENCE_SHARE)
    calls = [max(1, math.ceil(block_s / max(pace, 1e-9))) for pace in pace_s]
    begun, times = clock(), []
    while len(times) < least or clock() - begun < budget_s:
        if len(times) % 2:
            below = block(reference, calls[1])
            times.append((block(function, calls[0]), below))
        else:
            above = block(function, calls[0])
            times.append((above, block(reference, calls[1])))
    own, others = zip(*times, strict=True)
    ratio = intervals.compare(others, own, paired=True).ratio.replace(covers="run")  # pairs of one process
    return Pairs(first_call_s, intervals.median_interval(own), intervals.median_interval(others), ratio)
