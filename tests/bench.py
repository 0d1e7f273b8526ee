"""The measuring, measured: what the clock costs a step of a training loop.

`make bench` runs it. The least of several differences counts: a busy machine only adds. `make test`
runs none of this, since a busy machine could fail it.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable

from pomology.measure.clock import StepClock

STEPS = range(200_000)  # that do nothing


def timed(function: Callable[[Iterable], object], batches: Iterable) -> float:
    start = time.perf_counter()
    function(batches)
    return time.perf_counter() - start


if __name__ == "__main__":
    walk = deque(maxlen=0).extend
    costs = []
    for _ in range(15):
        bare_s = timed(walk, STEPS)
        clocked_s = timed(walk, StepClock(whole=True).steps(STEPS))
        costs.append((clocked_s - bare_s) / len(STEPS) * 1e6)
    print(f"clock: {min(costs):.3f} µs per step, the least of {len(costs)}; at most 1 µs")
    sys.exit(min(costs) > 1)
