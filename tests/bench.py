"""The measuring, measured: what the clock costs a training loop.

    make bench                     everything, two minutes on two idle cores
    python tests/bench.py clock    some parts only

Two sides take turns, and the median of their ratios is what counts: a busy machine moves both.
The parts print a table and write it to outputs/bench.json. `make test` runs none of this, since a
busy machine could fail it.
"""

from __future__ import annotations

import json
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
from pomology.paths import root


def row(name: str, value: str, bound: str, within: bool, **raw: Any) -> dict:
    """Print a line of the table and return it."""
    print(f"{name:62} {value:36} {bound:14} {'within' if within else 'OUTSIDE'}", flush=True)
    return {"name": name, "found": value, "bound": bound, "within": within, **raw}


def timed(function: Callable[..., Any], *arguments: Any) -> float:
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def clocked(batches: Iterable) -> Iterable:
    return StepClock(whole=True).steps(batches)


def clock() -> list[dict]:
    """Time what the clock adds to a step that does nothing."""
    steps = range(200_000)
    walk = deque(maxlen=0).extend
    costs = []
    for _ in range(15):
        bare_s = timed(walk, steps)
        costs.append((timed(walk, clocked(steps)) - bare_s) / len(steps) * 1e6)
    best = min(costs)
    name = "clock: cost of a step (least of several)"
    return [row(name, f"{best:.3f} µs", "at most 1 µs", best <= 1)]


def loop() -> list[dict]:
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
    return [row(name, value, "at most 1.01", median.value <= 1.01, ratios=ratios)]


PARTS = {"clock": clock, "loop": loop}


def main() -> int:
    names = sys.argv[1:] or list(PARTS)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    rows = [line for name in names for line in PARTS[name]()]
    written = json.dumps({"torch": torch.__version__, "rows": rows}, indent=1) + "\n"
    (root() / "outputs" / "bench.json").write_text(written, encoding="utf-8")
    outside = [line["name"] for line in rows if not line["within"]]
    print(f"\n{len(outside)} of {len(rows)} outside their bounds; written to outputs/bench.json")
    return 1 if outside else 0


if __name__ == "__main__":
    sys.exit(main())
