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

    def __init__(self, place: Path, name: str):
        super().__init__(place)
        self.name = name

    @functools.cached_property
    def journals(self) -> dict[str, Contents]:
        return {
            name: replace(held, records=[self._named(each) for each in held.records])
            for name, held in super().journals.items()
        }

    def _named(self, record: Record) -> Record:
        known = {
            name: value for name, value in record.metrics.items() if all(map(_in_this_world, (value.value, value.high)))
        }
        chip = f"{one_line(short_chip(record.chip), 60)} ({self.name})"
        return record.replace(chip=chip, metrics=Metrics(known))


def _in_this_world(value: float | None) -> bool:
    return not value or LEAST < abs(value) < MOST


def load(places: Sequence[Path], run: Run) -> list[Other]:
    """The runs in these folders and zips, beside `run`. Raises PomologyError, in a line, for too many, for `run`
    itself, and for one that is not safe to read or has nothing to show."""
    if len(places) > MOST_RUNS:
        raise PomologyError(f"WITH: {len(places)} runs; a page shows at most {MOST_RUNS} beside its own")
    loaded: list[Other] = []
    for place in places:
        name = one_line(place.resolve().name.removesuffix(".zip"), 40).replace(" @ ", "@")  # a clock follows in a chip
        if place.resolve() == run.path.resolve():
            raise PomologyError(f"WITH={name}: is the run whose page this is")
        if name in {other.name for other in loaded}:
            name = f"{name}, {len(loaded) + 1}"
        other = Other(place, name)
        if not other.records:
            raise PomologyError(f"WITH={name}: {next(iter(other.problems), 'no case has ended in it')}")
        loaded.append(other)
    return loaded


def notes(run: Run, others: Sequence[Other]) -> list[str]:
    """What a page says of them: which machine each is, whether it is this one, and what could not be used of it."""
    lines = [BESIDE] if others else []
    for other in others:
        machine = one_line(snapshot.describe(other.machine), 200) if other.machine else "its machine is not known"
        differ = results_run.differences((run.machine, other.machine), (_canary_s(run), _canary_s(other)))
        same = f"It is not shown to be the machine of this page ({one_line(differ, 100)})."
        same = same if differ else "It is the machine of this page, in another run."
        lines.append(f"{other.name}: {machine}; {len(other.records):,} cases. {same}")
        problems = [*other.problems, *(f"{what}." for held in other.journals.values() for what in held.problems)]
        lines += [f"{other.name}: {one_line(problem, 300)}" for problem in problems]
        if missing := sorted(other.journals.keys() - run.journals.keys()):
            lines.append(f"{other.name}: not shown, since this run lacks them: {one_line(', '.join(missing), 300)}.")
    return lines


def _canary_s(run: Run) -> float | None:
    """The best of a run."""
    return min((s for record in run.records for s in (record.canary or {}).values()), default=None)
