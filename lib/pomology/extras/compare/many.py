"""Compare each of many runs with all others: copies, and unusual times."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pandas

from pomology.results import cases
from pomology.results.record import Record

UNUSUAL = 3.0  # factor between repeats, or from the ratios between cases of every other run
SAME_CHIP = 1.6  # factor from the median speed of the same chip
SHARED = 5  # cases that two devices need to be compared
MOST_RUNS = 3  # of a device that others are compared with
BY_CHANCE_S = 1e-3  # shorter times, or fewer than six, may be the same by chance

Broken = tuple[str, str]  # a rule, and what breaks it


def key_of(record: Record) -> str:
    """Return a text that is equal for the same case of any runs, on any device."""
    return f"{record.experiment}, {record.framework} {json.dumps(record.config)}"


@dataclass(eq=False)
class Traits:
    """What a run is compared by.

    times: logarithm of the seconds of a step or call by device (kind and chip) and case.
    shapes: hash of a case's raw times, up to a factor -> the first of them, and the case.
    """

    name: str
    times: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    shapes: dict[int, tuple[float, str]] = field(default_factory=dict)

    def add(self, record: Record, seconds: float | None) -> Iterator[Broken]:
        """Add a case; yield whether it has the raw times of another one of this run."""
        case = f"{key_of(record)} #{record.repeat}"
        if record.status == "ok" and seconds and cases.DOUBTS.isdisjoint(record.flags):
            device = f"{cases.kind(record.backend)} {record.chip}"
            self.times[device][case] = math.log(seconds)
        for raw in record.blocks.values():
            raw_s = [block_s for _, block_s in raw["steady"]]
            if len(raw_s) < 6 or min(raw_s) < BY_CHANCE_S:
                continue
            shape = hash(tuple(round(block_s / raw_s[0], 5) for block_s in raw_s))
            first_s, other = self.shapes.setdefault(shape, (raw_s[0], case))
            if (first_s, other) != (raw_s[0], case):
                yield "copy", f"{case} has the raw times of {other}"


def compare(runs: Sequence[Traits]) -> list[list[Broken]]:
    """Return what each run has from an earlier one, and times that are far from all others'."""
    broken: list[list[Broken]] = [[] for _ in runs]
    owners: dict[int, Traits] = {}
    columns: dict[str, dict[tuple[int, str], dict[str, float]]] = defaultdict(dict)
    counts = Counter()
    for number, run in enumerate(runs):
        # A shape of raw times belongs to the first run that has it.
        taken = Counter()
        for shape, (first_s, _) in run.shapes.items():
            owner = owners.setdefault(shape, run)
            rule = "copy" if owner.shapes[shape][0] == first_s else "scaled copy"
            taken[rule, owner.name] += owner is not run
        for (rule, name), count in taken.items():
            if count > max(2, 0.02 * len(run.shapes)):
                text = f"{count} of {len(run.shapes)} cases have the raw times of {name}"
                broken[number].append((rule, text))
        # The first runs of a device stand for all of them, so that the tables stay small.
        for device, times in run.times.items():
            counts[device] += 1
            if counts[device] <= MOST_RUNS:
                columns[device[:3]][number, device] = times
    # A device's name begins with `cpu` or `gpu`, and only devices of one kind are compared.
    tables = {kind: pandas.DataFrame(by_run) for kind, by_run in columns.items()}
    for number, run in enumerate(runs):
        for device, times in run.times.items():
            others = tables[device[:3]].drop(columns=number, level=0, errors="ignore")
            broken[number] += _unusual(device, pandas.Series(times), others)
    return broken


def _unusual(device: str, times: pandas.Series, others: pandas.DataFrame) -> Iterator[Broken]:
    """Yield a device's times that are far from those of all others.

    times: logarithm of the seconds by case. others: the same, a column per run and device.
    """
    repeats = times.groupby(times.index.str.rpartition(" #").get_level_values(0))
    for case, log in (repeats.max() - repeats.min()).items():
        if log > math.log(UNUSUAL):
            yield "repeats", f"{case}: they differ {math.exp(log):.2g}-fold"
    # A device may be faster in all cases (its level), but not by far more in a single one.
    differences = others.reindex(times.index).sub(times, axis=0)
    differences = differences.loc[:, differences.count() >= SHARED]
    levels = differences.median()
    far = differences.sub(levels).abs().min(axis=1)
    for case, log in far[far > math.log(UNUSUAL)].items():
        text = f"{case}: {math.exp(log):.2g}-fold off those of all other runs"
        yield "ratio between cases", text
    same = levels[levels.index.get_level_values(1) == device].abs().min()
    if same > math.log(SAME_CHIP):
        yield "same chip", f"{device}: its speed differs {math.exp(same):.2g}-fold"
