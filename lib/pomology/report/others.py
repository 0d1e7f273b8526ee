"""Other people's runs beside this machine's: further rows and marks of its page, which enter none of its verdicts,
ceilings, shares and means.

Their files are read with the limits of `results.archive`, and their texts are cut: they come from anybody.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.machine import snapshot
from pomology.measure.estimate import Estimate
from pomology.results import run as results_run
from pomology.results.cases import short_chip
from pomology.results.journal import Contents
from pomology.results.record import Metrics, Record
from pomology.results.run import Run

MOST_RUNS = 8  # a figure has a mark for each of their devices
BESIDE = (
    "Runs of other people stand beside this one: their rows have the run's name in brackets, their marks are orange "
    "crosses. Facts, verdicts and shares of the best are those of this page's own run alone."
)
LEAST, MOST = 1e-15, 1e18  # a number outside of these is no measurement, and an axis with it would show nothing else


class Other(Run):
    """A run beside another one's. Its records name it behind their chip, so that no row is taken for another's."""

    @functools.cached_property
    def journals(self) -> dict[str, Contents]:
        files = super().journals.items()
        return {name: replace(held, records=[*map(self._named, held.records)]) for name, held in files}

    def _named(self, record: Record) -> Record:
        known = {name: number for name, number in record.metrics.items() if _in_this_world(number)}
        chip = f"{one_line(short_chip(record.chip), 60)} ({self.name})"
        return record.replace(chip=chip, metrics=Metrics(known))


def _in_this_world(number: Estimate) -> bool:
    return all(LEAST < abs(value) < MOST for value in (number.value, number.low, number.high) if value)


def load(places: Sequence[Path], run: Run) -> list[Other]:
    """The runs in these folders and zips, beside `run`. Raises PomologyError, in a line, for too many, for `run`
    itself, and for one that is not safe to read or has nothing to show."""
    if len(places) > MOST_RUNS:
        raise PomologyError(f"WITH: {len(places)} runs; a page shows at most {MOST_RUNS} beside its own")
    loaded: dict[str, Other] = {}
    for place in places:
        other = Other(place)
        name = one_line(other.name, 40).replace(" @ ", "@")  # behind which short_chip would cut
        other.name = f"{name}, {len(loaded) + 1}" if name in loaded else name
        if place.resolve() == run.path.resolve():
            raise PomologyError(f"WITH={name}: is the run whose page this is")
        if not other.records:
            raise PomologyError(f"WITH={name}: {next(iter(other.problems), 'no case has ended in it')}")
        loaded[other.name] = other
    return [*loaded.values()]


def notes(run: Run) -> list[str]:
    """What a page says of those beside its run: which machine each is, whether it is the same one, and what could not
    be used of it."""
    lines = [BESIDE] if run.others else []
    for other in run.others:
        machine = snapshot.describe(other.machine) if other.machine else "its machine is not known"
        canaries_s = [
            min((s for r in each.records for s in (r.canary or {}).values()), default=None) for each in (run, other)
        ]
        differ = results_run.differences((run.machine, other.machine), canaries_s)
        same = f"It is not shown to be the machine of this page ({one_line(differ.partition('; ')[0], 100)})."
        same = same if differ else "It is the machine of this page, in another run."
        here = [f"{one_line(machine, 200)}; {len(other.records):,} cases. {same}", *other.problems]
        here += [f"{problem}." for held in other.journals.values() for problem in held.problems]
        if missing := ", ".join(sorted(other.journals.keys() - run.journals.keys())):
            here.append(f"not shown, since this run lacks them: {missing}.")
        lines += [f"{other.name}: {one_line(text, 400)}" for text in here]
    return lines
