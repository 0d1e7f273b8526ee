"""Compare each of many runs with all others: copies, and unusual times."""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pandas

from pomology.results import cases
from pomology.results.record import Record

UNUSUAL = 3.0  # factor between repeats, and from the ratios between cases of every other run
# Factor beyond the range of a device's own runs: of the median of an experiment's cases, and of the
# median of all. Two honest runs of one machine on two days differed by 1.19 and by 1.02.
OWN_EXPERIMENT = 1.5
SAME_CHIP = 1.6
SAME_CHIP_OF_SEVERAL = 1.25  # where several runs show by how much machines of a chip differ
SEVERAL = 3
SHARED = 5  # cases that two devices need to be compared, and that a run needs to be checked by
MOST_RUNS = 5  # of a device that others are compared with
BY_CHANCE_S = 1e-3  # shorter times, or fewer than six, may be the same by chance
LEAST_TAKEN = 2  # raw times of another run, or this share of all: more are a copy
TAKEN = 0.02
CONTAINED = 0.98  # share of an earlier run's raw times that makes a run its continuation
SIZE = re.compile(r"\(.*?\)")  # of a chip, in the name of a device
REPLACED = "replaced"  # the rule of an earlier run that another one continues

Broken = tuple[str, str]  # a rule, and what breaks it


def key_of(record: Record) -> str:
    """Return a text that is equal for the same case of any runs, on any device."""
    return f"{record.experiment}, {record.framework} {json.dumps(record.config)}"


@dataclass(eq=False)
class Traits:
    """What a run is compared by.

    times: logarithm of the seconds of a step or call by device (kind and name) and case. shapes:
    hash of a case's raw times, up to a factor -> the first of them, and the case. predicted: number
    of cases that were compared with a prediction.
    """

    name: str
    times: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    shapes: dict[int, tuple[float, str]] = field(default_factory=dict)
    predicted: int = 0

    def add(self, record: Record, seconds: float | None, device: str) -> Iterator[Broken]:
        """Add a case of a device; yield whether it has the raw times of another one of this run."""
        case = f"{key_of(record)} #{record.repeat}"
        if record.status == "ok" and seconds and cases.DOUBTS.isdisjoint(record.flags):
            self.times[f"{cases.kind(record.backend)} {device}"][case] = math.log(seconds)
        for raw in record.blocks.values():
            raw_s = [block_s for _, block_s in raw["steady"]]
            if len(raw_s) < 6 or min(raw_s) < BY_CHANCE_S:
                continue
            shape = hash(tuple(round(block_s / raw_s[0], 5) for block_s in raw_s))
            first_s, other = self.shapes.setdefault(shape, (raw_s[0], case))
            if (first_s, other) != (raw_s[0], case):
                yield "copy", f"{case} has the raw times of {other}"


def compare(runs: Sequence[Traits], judged: Iterable[int] | None = None) -> list[list[Broken]]:
    """Return what each run has of an earlier one, and times that are far from all others'.

    A run that has all of an earlier one, and more, continues it: the earlier one is `replaced`.
    judged: numbers of the runs whose times are judged, by default all.
    """
    broken: list[list[Broken]] = [[] for _ in runs]
    owners: dict[int, int] = {}
    for number, run in enumerate(runs):
        # A shape of raw times belongs to the first run that has it.
        taken: Counter[tuple[str, int]] = Counter()
        for shape, (first_s, _) in run.shapes.items():
            owner = owners.setdefault(shape, number)
            if owner != number:
                same = runs[owner].shapes[shape][0] == first_s
                taken["copy" if same else "scaled copy", owner] += 1
        for (rule, owner), count in taken.items():
            if count <= max(LEAST_TAKEN, TAKEN * len(run.shapes)):
                continue
            earlier = runs[owner]
            whole = count >= CONTAINED * len(earlier.shapes) and count < len(run.shapes)
            if rule == "copy" and whole:
                broken[number].append(("replaces", f"it continues {earlier.name}"))
                broken[owner].append((REPLACED, f"{run.name} continues it"))
            else:
                text = f"{count} of {len(run.shapes)} cases have the raw times of {earlier.name}"
                broken[number].append((rule, text))
    tables = _tables(runs)
    for number in range(len(runs)) if judged is None else judged:
        broken[number] += _unusual(number, runs[number], tables)
    return broken


def _tables(runs: Sequence[Traits]) -> dict[str, pandas.DataFrame]:
    """Return the times of the first runs of each device, by kind: a column per run and device.

    These runs stand for all of their device, so that the tables stay small.
    """
    counts: Counter[str] = Counter()
    columns: dict[str, dict[tuple[int, str], dict[str, float]]] = defaultdict(dict)
    for number, run in enumerate(runs):
        for device, times in run.times.items():
            counts[device] += 1
            if counts[device] <= MOST_RUNS:
                columns[kind_of(device)][number, device] = times
    return {kind: pandas.DataFrame(by_run) for kind, by_run in columns.items()}


def kind_of(device: str) -> str:
    """Return the kind of a device of `Traits.times`: only those of one kind are compared."""
    return device.partition(" ")[0]


def _unusual(number: int, run: Traits, tables: dict[str, pandas.DataFrame]) -> Iterator[Broken]:
    """Yield a run's times that are far from those of its chip, or of all others.

    A run with few times to compare is told, too, since nothing else contradicts its numbers.
    """
    compared = run.predicted
    for device, of_device in run.times.items():
        times = pandas.Series(of_device)
        repeats = times.groupby(_without_repeat(times.index))
        for case, log in (repeats.max() - repeats.min()).items():
            if log > math.log(UNUSUAL):
                yield "repeats", f"{case}: they differ {math.exp(log):.2g}-fold"
        # The same case on other runs. A run is not compared with itself.
        others = tables[kind_of(device)].drop(columns=number, level=0, errors="ignore")
        differences = others.reindex(times.index).sub(times, axis=0)
        of_chip = differences.loc[:, differences.columns.get_level_values(1) == device]
        own = of_chip.loc[:, of_chip.count() >= 1]
        others = differences.loc[:, differences.count() >= SHARED]
        if own.shape[1]:
            compared += _cases(own)
            yield from _unlike_own(device, own)
        elif others.shape[1]:
            compared += _cases(others)
            yield from _unlike_others(others)
    if compared < SHARED:
        yield "few cases", f"{compared} of its times can be compared with others of its chip"


def _without_repeat(names: pandas.Index) -> pandas.Index:
    """Return the names of cases without the number of their repeat."""
    return names.str.rpartition(" #").get_level_values(0)


def _cases(differences: pandas.DataFrame) -> int:
    """Return how many cases, of any number of repeats, another run has too."""
    return _without_repeat(differences.index[differences.notna().any(axis=1)]).nunique()


def has_model_number(device: str) -> bool:
    """Return whether a device's name has a digit, apart from its size: `M4 Max GPU (40 cores)`.

    Machines without one may have different chips, so nothing follows from their speeds: `AMD EPYC`
    is any virtual one.
    """
    return bool(re.search(r"\d", SIZE.sub("", device)))


def _unlike_own(device: str, differences: pandas.DataFrame) -> Iterator[Broken]:
    """Yield what is far from the runs of the same device.

    differences: logarithms of their times over those of the run, a column per run.
    """
    levels = differences.median()
    range_of_chip = levels.max() - levels.min()
    nearest = levels.abs().min()
    if len(levels) >= SEVERAL:
        centre = (levels.max() + levels.min()) / 2
        beyond = abs(centre) - range_of_chip / 2
        limit = SAME_CHIP_OF_SEVERAL
    else:
        beyond = nearest
        limit = SAME_CHIP
    if beyond > math.log(limit) and has_model_number(device):
        yield "same chip", f"{device}: its speed differs {math.exp(nearest):.2g}-fold"
    residuals = differences.sub(levels)
    experiments = residuals.index.str.partition(",").get_level_values(0)
    medians = residuals.groupby(experiments).median()
    # A factor beyond the range, whose ends are the fastest and the slowest of these runs.
    low, high = medians.min(axis=1), medians.max(axis=1)
    outside = pandas.concat([low, -high], axis=1).max(axis=1)
    for experiment, log in outside[outside > math.log(OWN_EXPERIMENT)].items():
        text = f"{experiment}: {math.exp(log):.2g}-fold off those of its chip"
        yield "ratio between cases", text
    yield from _unlike_others(differences)


def _unlike_others(differences: pandas.DataFrame) -> Iterator[Broken]:
    """Yield cases whose ratios to the others of the run are far from those of every other run.

    A device may be faster in all cases (its level), but not by far more in a single one.
    """
    far = differences.sub(differences.median()).abs().min(axis=1)
    for case, log in far[far > math.log(UNUSUAL)].items():
        text = f"{case}: {math.exp(log):.2g}-fold off those of all other runs"
        yield "ratio between cases", text
