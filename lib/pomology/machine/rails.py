"""The energy of each rail: of a steady step, and of a second."""

import itertools
import math
import statistics
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

from pomology.machine.energy import Absent, meter
from pomology.measure.estimate import Estimate

EDGE = 20  # a reading that no movement dates is up to a period late: 5 % of a window of so many periods
STOPPED_S = 5.0  # after so long without a movement, and three periods, a counter that moved before has stopped
COST = 200  # readings are so many times as far apart as one takes


class Reading(NamedTuple):
    """When it was, how many steady steps had ended, and each rail's counter in joules."""

    seconds: float
    steps: float
    joules: dict[str, float]


Window = tuple[Reading, Reading]
Windows = tuple[list[Window], float]  # and by how many seconds all of them together may be wrong


class Counters:
    """The energy counters of a device. Called, they give a Reading; `mark` also reads them where steady blocks of steps
    begin and end. rails: what they cover; after `values`, without those that stand still. missing: other rails -> why.
    Raises Absent where no meter answers."""

    def __init__(self, device: str, clock: Callable[[], float]):
        periods_s, self._joules, self.missing = meter(device)
        self.device, self.clock, self._lock, self.periods_s = device, clock, threading.Lock(), dict(periods_s)
        self.rails, self._stretches, self._stretch, self._due_s = list(self.periods_s), list[list[Reading]](), None, 0.0

    def __call__(self, steps: int = 0) -> Reading:
        with self._lock:  # of the thread that reads all sources, and of the one that takes the steps
            return Reading(self.clock(), steps, self._joules())

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
        still = []
        for rail in self.rails:  # its period: the meter's word, or the median of what was seen where it had not moved
            moved = _moved(readings, rail)
            waits = [(b - a > 1) * (readings[b].seconds - readings[a].seconds) for a, b in itertools.pairwise(moved)]
            period_s = self.periods_s[rail] = max(self.periods_s[rail], statistics.median(waits or [0.0]))
            if not moved or readings[-1].joules[rail] <= readings[0].joules[rail]:
                still += [rail] * (seconds >= 2 * period_s)
            # As CPU's and memory's do on some Macs that have slept: what was used is unknown. (A GPU may rest at last.)
            elif rail != "gpu" and readings[-1].seconds - readings[moved[-1]].seconds > max(3 * period_s, STOPPED_S):
                still.append(rail)
        if self.device in still or len(still) == len(self.rails):
            raise Absent("the energy counter stood still")
        self.rails[:] = [rail for rail in self.rails if rail not in still]  # whoever opened this holds the list
        made: dict[str, Estimate | str] = {f"power_{rail}_w": "its counter stood still" for rail in still}
        slowest = max(self.rails, key=self.periods_s.__getitem__)
        for infix, rails, edge in [*((f"{rail}_", [rail], rail) for rail in self.rails), ("", self.rails, slowest)]:
            steady = windows(self._stretches, edge, self.periods_s[edge], others=readings)
            whole = windows([readings], edge, self.periods_s[edge])
            watts = why = f"the counter of the {edge} moved too seldom"
            if self._stretches and (infix != "gpu_" or self.device == "gpu"):  # a GPU that rests takes no steps
                joules = _mean(*steady, rails, "steps", "J") if steady[0] else f"{why} while steady steps ran"
                made[f"energy_{infix}j_per_step"] = joules
            if steady[0]:
                watts = _mean(*steady, rails, "seconds", "W")
            elif whole[0]:
                watts = _mean(*whole, rails, "seconds", "W").replace(low=None, high=None, covers="none")
            made[f"power_{infix}w"] = watts
        if seconds >= EDGE * self.periods_s[slowest]:  # else what had not been shown at its ends would count
            why = Estimate(_used(readings[0], readings[-1], self.rails), "J", n=len(readings))
        return made | {"energy_j": why}

    def powers(self, readings: list[Reading], least_s: float) -> dict[float, float]:
        """Watts of all rails in windows of that many seconds or more, by the time at which each ends."""
        slowest = max(self.rails, key=self.periods_s.__getitem__)
        pairs, _ = windows([readings], slowest, self.periods_s[slowest], least_s=least_s)
        return {b.seconds: _used(a, b, a.joules) / (b.seconds - a.seconds) for a, b in pairs}


def windows(
    stretches: Sequence[list[Reading]], rail: str, period_s: float, others: Sequence[Reading] = (), least_s: float = 0.0
) -> Windows:
    """Between movements of a rail's counter, each as long as its period, and as half the longest time in which it was
    read and had not moved. What a counter shows is as old as its last movement, so no other moment dates it, and that
    to within the time since the reading before: `others` date it better than the ends of steps that are not far longer
    than the period, and else the begin of a stretch is as good."""
    edges, longest_s = [], period_s
    for stretch in stretches:
        if not (far_longer := len(stretch) > 1 and stretch[1].seconds - stretch[0].seconds >= EDGE * period_s):
            stretch = _with(stretch, others)
        moved = [0] * far_longer + _moved(stretch, rail)
        ends = itertools.pairwise([0, *moved, len(stretch) - 1])
        longest_s = max(longest_s, *(stretch[b].seconds - stretch[a].seconds for a, b in ends if b > a + 1), 0.0)
        edges.append([(stretch[k], stretch[k].seconds - stretch[k - 1].seconds if k else period_s) for k in moved])
    pairs, late_s = [], 0.0
    for (begin, late), *later in filter(None, edges):
        for end, end_late in later:
            if end.seconds - begin.seconds >= max(least_s, period_s, longest_s / 2):
                pairs.append((begin, end))
                begin, late = end, max(late, end_late)
        late_s = math.hypot(late_s, min(late, longest_s))  # stretches know nothing of each other
    # Of few windows there is no interval, which would have in it what their ends may be wrong by.
    vague = len(pairs) < 6 and EDGE * late_s > sum(b.seconds - a.seconds for a, b in pairs)
    return ([], 0.0) if vague else (pairs, late_s)


def _moved(readings: Sequence[Reading], rail: str) -> list[int]:
    return [k for k, (a, b) in enumerate(itertools.pairwise(readings), 1) if b.joules[rail] > a.joules[rail]]


def _used(begin: Reading, end: Reading, rails: Iterable[str]) -> float:
    return sum(end.joules[rail] - begin.joules[rail] for rail in rails)


def _with(stretch: list[Reading], others: Sequence[Reading]) -> list[Reading]:
    """A stretch with what was read meanwhile, in the middle of steps: part of one is as much of it as of its time."""
    if not (inside := [each for each in others if stretch[0].seconds < each.seconds < stretch[-1].seconds]):
        return stretch
    from numpy import interp

    parts = interp([each.seconds for each in inside], *zip(*(mark[:2] for mark in stretch), strict=True))
    inside = [each._replace(steps=float(part)) for each, part in zip(inside, parts, strict=True)]
    return sorted([*stretch, *inside], key=lambda reading: reading.seconds)


def _mean(pairs: list[Window], late_s: float, rails: list[str], per: str, unit: str) -> Estimate:
    """Joules of these rails per step or second of windows; the interval also has what their ends may be wrong by."""
    from pomology.measure import intervals  # numpy, which a process that only looks need not have loaded

    weights = [getattr(b, per) - getattr(a, per) for a, b in pairs]
    each = [_used(a, b, rails) / weight for (a, b), weight in zip(pairs, weights, strict=True)]
    mean = intervals.interval(each, weights).replace(unit=unit, n=len(pairs))
    if mean.low is None:
        return mean
    wrong = mean.value * late_s / sum(b.seconds - a.seconds for a, b in pairs)
    return mean.replace(low=max(mean.low - wrong, 0.0), high=mean.high + wrong)
