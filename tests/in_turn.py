"""A case of a notebook whose steps, on the clock, take turns with bare ones in the same process. It needs no framework,
so that each may have a process of its own."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from pomology.measure.clock import StepClock

BLOCK_S = 0.005  # that a block of steps takes at the least


class InTurn:
    """A case of a notebook, and the loader of its batches. Blocks of its steps (B) and of bare ones (A) take turns,
    A B B A B A A B: each follows itself and the other as often, and a machine that drifts slows both. `ratios` are
    B / A of each four; warm-up is in none."""

    backend: Any = SimpleNamespace(kind="cpu", synchronize=lambda: None)  # nothing is proved of it
    require_memory = require_time = loss = note = metric = lambda self, *_: None
    occasional = staticmethod(lambda *_, **__: contextlib.nullcontext())

    def __getitem__(self, name: str) -> Any:
        return self.config[name]

    def __init__(self, batches: list, bare: Callable[[], None], seconds: float, config: dict[str, Any]):
        self.batches, self.bare, self.seconds, self.config, self.ratios = batches, bare, seconds, config, []
        self.__dict__ |= config
        pace_s = min(self._bare_s(1) for _ in range(3))
        self.size = math.ceil(BLOCK_S / pace_s)
        self.fours = max(3, round(seconds / (4 * self.size * pace_s)))

    def watch_model(self, model: Any) -> Any:
        return model

    def measure(self, name: str, function: Callable, **options: Any) -> None:
        """Nothing beside the steps."""

    def steps(self, batches: Any, part: str = "training", **options: Any) -> Iterator:
        return StepClock(self.backend.synchronize, whole=True).steps(self) if part == "training" else iter(())

    def settle(self) -> None:
        """Behind the first turns, which are in no ratio and have made all that the steps keep."""

    def __len__(self) -> int:
        return 2 * self.size * self.fours

    def __iter__(self) -> Iterator[Any]:
        batches = itertools.cycle(self.batches)
        for number in range(self.fours):
            seconds = dict.fromkeys("AB", 0.0)
            for side in "BAAB" if number % 2 else "ABBA":
                if side == "A":
                    seconds["A"] += self._bare_s(self.size)
                    continue
                start = time.perf_counter()
                for _ in range(self.size):
                    yield next(batches)
                seconds["B"] += time.perf_counter() - start
            if number >= max(1, self.fours // 20):
                self.ratios.append(seconds["B"] / seconds["A"])
            elif number == 0:
                self.settle()

    def _bare_s(self, count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            self.bare()
        return time.perf_counter() - start
