"""Times whose truth is known, in many draws: how often intervals hold it."""

import math
from collections.abc import Callable, Iterable

import numpy as np
from fakes import Clock

from pomology.measure import calls, clock
from pomology.measure.estimate import Estimate


def autoregressive(
    rng: np.random.Generator, draws: int, length: int, lag: float = 0.5
) -> np.ndarray:
    """Standard normal AR(1) series, one per row."""
    noise = rng.standard_normal((length, draws))
    for step in range(1, length):
        noise[step] = lag * noise[step - 1] + math.sqrt(1 - lag**2) * noise[step]
    return noise.T


def share(found: Iterable[Estimate], truth: float) -> float:
    """How many of the intervals hold the truth; each must have bounds."""
    return float(np.mean([each.low <= truth <= each.high for each in found]))


def covered(function: Callable[..., Estimate], lag: float, size: int, draws: int) -> float:
    """The share of intervals of `size` values, normal and ± 10 %, that hold their mean of 1."""
    rows = 1 + 0.1 * autoregressive(np.random.default_rng(size), draws, size, lag)
    return share(map(function, rows), 1.0)


def measured(
    lag: float, step_s: float, draws: int, scatter: float = 0.03
) -> list[calls.Measurement]:
    """What `measure` finds of a function whose calls take `step_s`, in simulated time."""
    found = []
    for row in step_s * (1 + scatter * autoregressive(np.random.default_rng(1), draws, 3000, lag)):
        now, times = Clock(), iter(row.tolist())
        found.append(calls.measure(lambda now=now, times=times: now.pass_s(next(times)), clock=now))
    return found


def clocked(lag: float, step_s: float, draws: int, scatter: float = 0.1) -> list[clock.Part]:
    """What `StepClock` finds of a loop of steps of `step_s`, ready ones 0.8 of it, simulated."""
    parts = []
    for row in step_s * (1 + scatter * autoregressive(np.random.default_rng(1), draws, 4000, lag)):
        now = Clock()
        timing = clock.StepClock(clock=now, budget_s=4.0, to_device=lambda batch: batch)
        for seconds, _ in zip(row.tolist(), timing.steps(range(10**6)), strict=False):
            now.pass_s(seconds * (0.8 if timing.on_ready else 1))
        parts.append(timing.parts["training"])
    return parts
