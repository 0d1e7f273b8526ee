"""Clocks, loaders and devices that tests command: in simulated time where it must be exact, in real time where not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest

from pomology.machine import snapshot
from pomology.measure.estimate import Estimate
from pomology.paths import root
from pomology.results.record import Record, checked


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
        assert self._same < 5000, (
            "the clock was read 5,000 times and stood still: nobody waits for the device"
        )
        return self.now

    def pass_s(self, seconds: float) -> None:
        self.now += seconds


class Batch:
    """Something that can be weakly referenced and told apart."""

    def __init__(self, number: int, ready: bool = False):
        self.number, self.ready = number, ready


class Loader:
    """Batches that take `load_s` each to load: iterators opened, batches given, iterators closed are counted."""

    def __init__(
        self,
        length: int,
        clock: Clock | None = None,
        load_s: float = 0.0,
        batches: int | None = None,
    ):
        self.length, self.clock, self.load_s = length, clock or Clock(), load_s
        self.batches = length if batches is None else batches
        self.opened = self.given = self.closed = 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Batch]:
        self.opened += 1
        return self._iterate()

    def _iterate(self) -> Iterator[Batch]:
        try:
            for number in range(self.batches):
                self.clock.pass_s(self.load_s)
                self.given += 1
                yield Batch(number)
        finally:
            self.closed += 1


class SimulatedDevice:
    """A GPU in simulated time. Launching costs the program almost nothing; the work is done later, one after another.

    `events` is the order of things: `launch`, `synchronize` and, with `reading` as the clock, `clock`.
    """

    def __init__(self, clock: Clock, launch_s: float = 0.0, fence_s: float = 0.0):
        self.clock, self.launch_s, self.fence_s = clock, launch_s, fence_s
        self.done_at = 0.0
        self.events: list[str] = []

    @property
    def busy(self) -> bool:
        return self.done_at > self.clock.now

    def launch(self, seconds: float) -> None:
        self.events.append("launch")
        self.clock.pass_s(self.launch_s)
        self.done_at = max(self.done_at, self.clock.now) + seconds

    def synchronize(self) -> None:
        self.events.append("synchronize")
        self.clock.now = max(self.clock.now, self.done_at) + self.fence_s

    def reading(self) -> float:
        self.events.append("clock")
        return self.clock.now


def train(
    clock, batches, step: Callable[[int], None], part: str = "training", steps: float | None = None
) -> list:
    """A training loop that calls `step(number)`. Returns (batch, whether it was a ready one) of every step."""
    seen = []
    for number, batch in enumerate(clock.steps(batches, part, steps)):
        assert number < 1_000_000, "the loop does not end"
        seen.append((batch, clock.on_ready))
        step(number)
    return seen


def metric(
    value: float,
    low: float | None = None,
    high: float | None = None,
    unit: str = "s",
    how: str = "measured",
):
    return Estimate(value, unit, low, high, 20, how)


def record(**changes) -> Record:
    """A case that ended well, with these fields of its journal's line in place of the usual ones."""
    fields = {
        "schema": 1,
        "event": "end",
        "experiment": "vae",
        "article": "003",
        "config": {"batch_size": 128},
    }
    fields |= {
        "framework": "torch",
        "framework_version": "2.13.0",
        "backend": "cpu",
        "device": None,
    }
    fields |= {
        "chip": "Apple M9",
        "precision": "fp32",
        "profile": "quick",
        "data": "none",
        "scaled": False,
    }
    fields |= {
        "repeat": 0,
        "threads": 8,
        "power_source": "ac",
        "started": "2026-05-04T03:02:01Z",
        "parameters": None,
    }
    fields |= {
        "flops_per_step": None,
        "foreign_load": 0.0,
        "flags": [],
        "status": "ok",
        "reason": None,
    }
    fields |= {"seconds": 4.0} | changes
    form = {"unit": "", "low": None, "high": None, "n": 9, "how": "measured"}
    metrics = {
        k: form | (v if isinstance(v, dict) else v.metric())
        for k, v in fields.get("metrics", {}).items()
    }
    name = f"{fields['framework']}-{fields['backend']} {fields['config']}"
    return checked({"case": name} | fields | {"metrics": metrics})


def cells(name: str) -> list[str]:
    """The code of a notebook, cell by cell."""
    (place,) = (root() / "notebooks").glob(f"*/{name}.ipynb")
    return [cell.source for cell in nbformat.read(place, 4).cells if cell.cell_type == "code"]


def quiet_machine(patch: pytest.MonkeyPatch) -> None:
    """A machine on which nothing else runs; to find out about the real one takes seconds."""
    state = {
        "power_source": "ac",
        "low_power_mode": False,
        "thermal_level": None,
        "load": 0.1,
        "flags": [],
    }
    patch.setattr(snapshot, "conditions", lambda: state)
    patch.setattr(snapshot, "snapshot", lambda: {"python": "3.11.9"})
    patch.setattr(snapshot, "software", lambda: {"python": "3.11.9"})


def after(name: str, change: Callable) -> Callable[[dict], None]:
    """What puts a class into a notebook's names that does something more when it is made."""

    def __init__(self, shape):
        super(type(self), self).__init__(shape)
        change(self, shape)

    return lambda scope: scope.update({name: type(name, (scope[name],), {"__init__": __init__})})
