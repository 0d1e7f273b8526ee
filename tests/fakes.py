"""Clocks, loaders and devices in simulated time, and a quiet machine."""

from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest

from pomology.machine import snapshot
from pomology.measure.clock import Block, StepClock
from pomology.measure.epochs import epoch_metrics
from pomology.paths import root


class FakeCase(SimpleNamespace):
    """A case of these attributes, each of which is a setting, too."""

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = self._last = 0.0
        self._same = 0

    def __call__(self) -> float:
        self._same = self._same + 1 if self.now == self._last else 0
        self._last = self.now
        # Else what waits for time to pass would wait forever.
        assert self._same < 5000, "the clock stands still: nobody waits for the device"
        return self.now

    def pass_s(self, seconds: float) -> None:
        self.now += seconds


class Batch:
    """Something that can be weakly referenced and told apart."""

    def __init__(self, number: int, ready: bool = False):
        self.number, self.ready = number, ready


class Loader:
    """Batches that take `load_s` each to load, and how many were given."""

    def __init__(self, length: int, clock: Clock | None = None, load_s=0.0, batches=None):
        self.length = length
        self.clock = clock or Clock()
        self.load_s = load_s
        self.batches = length if batches is None else batches
        self.given = 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Batch]:
        for number in range(self.batches):
            self.clock.pass_s(self.load_s)
            self.given += 1
            yield Batch(number)


class SimulatedDevice:
    """A GPU in simulated time: launching costs almost nothing, the work is done later, in turn."""

    def __init__(self, clock: Clock, launch_s: float = 0.0, fence_s: float = 0.0):
        self.clock, self.launch_s, self.fence_s = clock, launch_s, fence_s
        self.done_at = 0.0

    @property
    def busy(self) -> bool:
        return self.done_at > self.clock.now

    def launch(self, seconds: float) -> None:
        self.clock.pass_s(self.launch_s)
        self.done_at = max(self.done_at, self.clock.now) + seconds

    def synchronize(self) -> None:
        self.clock.now = max(self.clock.now, self.done_at) + self.fence_s


def train(
    clock, batches, step: Callable[[int], None], part: str = "training", steps: float | None = None
) -> list:
    """Run a training loop that calls `step(number)`; give each batch, and whether it was ready."""
    seen = []
    for number, batch in enumerate(clock.steps(batches, part, steps)):
        assert number < 1_000_000, "the loop does not end"
        seen.append((batch, clock.on_ready))
        step(number)
    return seen


def value(clock: StepClock, name: str) -> float:
    return epoch_metrics(clock)[name].value


def seconds_of(blocks: Iterable[Block]) -> float:
    return sum(block.seconds for block in blocks)


def cells(name: str) -> list[str]:
    """The code of a notebook, cell by cell."""
    (place,) = (root() / "notebooks").glob(f"**/{name}.ipynb")
    return [cell.source for cell in nbformat.read(place, 4).cells if cell.cell_type == "code"]


def quiet_machine(patch: pytest.MonkeyPatch) -> None:
    """A machine on which nothing else runs; to find out about the real one takes seconds."""
    state = {"power_source": "ac", "power_mode": "automatic"}
    patch.setattr(snapshot, "conditions", lambda: state | {"flags": []})
    patch.setattr(snapshot, "snapshot", lambda: {"python": "3.11.9"})
    patch.setattr(snapshot, "software", lambda: {"python": "3.11.9"})
