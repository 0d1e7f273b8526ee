"""Clocks and devices in simulated time."""

from types import SimpleNamespace
from typing import Any

import nbformat

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


def cells(name: str) -> list[str]:
    """The code of a notebook, cell by cell."""
    (place,) = (root() / "notebooks").glob(f"**/{name}.ipynb")
    return [cell.source for cell in nbformat.read(place, 4).cells if cell.cell_type == "code"]
