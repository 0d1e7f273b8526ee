"""The energy of each rail: of a steady step, and of a second."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from pomology.machine.energy import Absent, meters
from pomology.measure.estimate import Estimate

EDGE = 20  # a reading that no movement dates is up to a period late: 5 % of a window of so many periods
STOPPED_S = 5.0  # after so long without a movement, a counter that moved before has stopped
COST = 200  # readings are so many times as far apart as one takes


class Reading(NamedTuple):
    """When it was, how many steady steps had ended, and each rail's counter in joules. A window is the difference of
    two."""

    seconds: float
    steps: int
    joules: dict[str, float]


class Counters:
    """The energy counters of a device. Called, they give a Reading; `mark` also reads them where steady blocks of steps
    begin and end. rails: what they cover; after `values`, without those that stand still. missing: other rails -> why.
    Raises Absent where no meter answers."""

    def __init__(self, device: str, clock: Callable[[], float]):
        self.meters, absent = meters(device)
        if not self.meters:
            raise Absent("; ".join(absent.values()))
        self.device, self.clock, self._lock = device, clock, threading.Lock()
        self.periods_s = {rail: period_s for meter in self.meters for rail, period_s in meter.rails.items()}
        self.missing = {rail: why for meter in self.meters for rail, why in meter.missing.items()}
        self.rails, self._stretches, self._stretch, self._due_s = list(self.periods_s), list[list[Reading]](), None, 0.0

    def __call__(self, steps: int = 0) -> Reading:
        with self._lock:  # of the thread that reads all sources, and of the one that takes the steps
            now_s = self.clock()
            return Reading(now_s, steps, {rail: j for meter in self.meters for rail, j in meter.joules().items()})

    def mark(self, stretch: Hashable, steps: int) -> None:
        """Read them where a steady block begins or ends, after so many steady steps, if the last time was not just
        now. stretch: another one where something else came between two blocks."""
        if new := stretch != self._stretch:
            self._stretches.append([])
            self._stretch = stretch
        readings = self._stretches[-1]
        if new or (self.clock() >= self._due_s and steps > readings[-1].steps):
            readings.append(self(steps))
            self._due_s = self.clock() + COST * (self.clock() - readings[-1].seconds)

    def values(self, readings: list[Reading], seconds: float) -> dict[str, Estimate | str]:
        """Joules of a steady step, of each rail and of all, with their interval over windows; watts over these windows,
        or where there are none over all readings, without an interval. What cannot be told has its reason. Raises
        Absent if the device's own counter stood still."""
        grew = {rail: readings[-1].joules[rail] - readings[0].joules[rail] for rail in self.rails}
        still = [rail for rail, joules in grew.items() if joules <= 0 and seconds >= 2 * self.periods_s[rail]]
        still += [rail for rail in self.rails if rail not in still and self._stopped(rail, readings)]
        if self.device in still or len(still) == len(self.rails):
            raise Absent("the energy counter did not move")
        self.rails[:] = [rail for rail in self.rails if rail not in still]  # whoever opened this holds the list
        made: dict[str, Estimate | str] = {f"power_{rail}_w": "its counter stood still" for rail in still}
        made["energy_j"] = Estimate(sum(grew[rail] for rail in self.rails), "J", n=len(readings))
        slowest = max(self.rails, key=self.periods_s.__getitem__)
        for infix, rails, edge in [*((f"{rail}_", [rail], rail) for rail in self.rails), ("", self.rails, slowest)]:
            steady, whole = (windows(each, edge, self.periods_s[edge]) for each in (self._stretches, [readings]))
            watts = why = f"the counter of the {edge} moved too seldom"
            if self._stretches and (infix != "gpu_" or self.device == "gpu"):  # a GPU that rests takes no steps
                joules = _mean(steady, rails, "steps", "J") if steady else f"{why} while steady steps ran"
                made[f"energy_{infix}j_per_step"] = joules
            if steady or whole:
                watts = _mean(steady or whole, rails, "seconds", "W")
                watts = watts if steady else watts.replace(low=None, high=None, covers="none")
            made[f"power_{infix}w"] = watts
        return made

    def _stopped(self, rail: str, readings: list[Reading]) -> bool:
        """Whether a counter moved at first, and then no more: as the CPU's on some Macs once they have slept. What it
        shows at the end is not what was used until then."""
        known = sorted([*itertools.chain(*self._stretches), *readings], key=lambda reading: reading.seconds)
        moved = [b.seconds for a, b in itertools.pairwise(known) if b.joules[rail] > a.joules[rail]]
        return bool(moved) and known[-1].seconds - moved[-1] > max(EDGE * self.periods_s[rail], STOPPED_S)


def windows(stretches: Sequence[Sequence[Reading]], rail: str, period_s: float) -> list[Reading]:
    """Windows between movements of a rail's counter, each as long as its period, and as the longest time in which it
    was read and had not moved. What a counter shows is as old as its last movement, so no other moment dates it; but
    for the begin of a stretch whose first block takes `EDGE` periods."""
    edges, least_s = [], period_s
    for stretch in stretches:
        moved = [k for k in range(1, len(stretch)) if stretch[k].joules[rail] > stretch[k - 1].joules[rail]]
        if len(stretch) > 1 and stretch[1].seconds - stretch[0].seconds >= EDGE * period_s:
            moved.insert(0, 0)
        waits_s = (stretch[b].seconds - stretch[a].seconds for a, b in itertools.pairwise(moved) if b > a + 1)
        least_s = max(least_s, *waits_s, 0.0)
        edges.append([stretch[k] for k in moved])
    whole = []
    for begin, *later in filter(None, edges):
        for end in later:
            if end.seconds - begin.seconds >= least_s:
                grew = {name: joules - begin.joules[name] for name, joules in end.joules.items()}
                whole.append(Reading(end.seconds - begin.seconds, end.steps - begin.steps, grew))
                begin = end
    return whole


def _mean(some: Sequence[Reading], rails: Sequence[str], per: str, unit: str) -> Estimate:
    """Joules of these rails per step or second of the windows."""
    weights = [getattr(window, per) for window in some]
    each = [sum(window.joules[rail] for rail in rails) / w for window, w in zip(some, weights, strict=True)]
    from pomology.measure import intervals  # numpy, which a process that only looks need not have loaded

    return intervals.interval(each, weights).replace(unit=unit, n=len(some))
