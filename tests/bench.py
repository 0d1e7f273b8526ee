"""The measuring, measured: what the clock costs a training loop.

`make bench` runs it: two minutes on two idle cores. Two sides take turns, and the median of their
ratios is what counts: a busy machine moves both. `make test` runs none of this, since a busy
machine could fail it.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from pomology.measure import intervals
from pomology.measure.clock import StepClock


def show(name: str, value: str, bound: str, within: bool) -> bool:
    """Print a line of the table."""
    print(f"{name:62} {value:36} {bound:14} {'within' if within else 'OUTSIDE'}", flush=True)
    return within


def timed(function: Callable[..., Any], *arguments: Any) -> float:
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def clocked(batches: Iterable) -> Iterable:
    return StepClock(whole=True).steps(batches)


def clock() -> bool:
    """Time what the clock adds to a step that does nothing."""
    steps = range(200_000)
    walk = deque(maxlen=0).extend
    costs = []
    for _ in range(15):
        bare_s = timed(walk, steps)
        costs.append((timed(walk, clocked(steps)) - bare_s) / len(steps) * 1e6)
    best = min(costs)
    name = "clock: cost of a step (least of several)"
    return show(name, f"{best:.3f} µs", "at most 1 µs", best <= 1)


def loop() -> bool:
    """Time epochs of steps of half a millisecond, on the clock and bare in turn."""
    images = torch.rand(128, 784)
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 784))
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(TensorDataset(torch.rand(12_800, 784)), 128, shuffle=True)

    def epoch(batches: Iterable) -> None:
        for _ in batches:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(images), images).backward()
            optimizer.step()

    epoch(loader)
    ratios = []
    # The median of 31 pairs still wanders by one per cent, which is the bound itself.
    for pair in range(91):
        seconds = {}
        for on_the_clock in (True, False) if pair % 2 else (False, True):
            seconds[on_the_clock] = timed(epoch, clocked(loader) if on_the_clock else loader)
        ratios.append(seconds[True] / seconds[False])
    median = intervals.median_interval(ratios)
    value = f"{median.value:.4f} (95 %: {median.low:.3f} to {median.high:.3f})"
    name = "loop: an epoch on the clock against bare"
    return show(name, value, "at most 1.01", median.value <= 1.01)


if __name__ == "__main__":
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    sys.exit(0 if all([clock(), loop()]) else 1)
