"""Published times of the same work on two devices, and their ratios.

A pair is one configuration: the same workload, settings, precision and metric. Of the times of one
run, such as a step and its forward pass, only the whole makes a pair. Where a source has
both devices the pair is of that source, since two sources seldom measure alike.
"""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import geometric_mean
from typing import Any, NamedTuple

from pomology.articles import devices, published
from pomology.format import significant
from pomology.results import cases

# Metrics that are times of work, or rates of it. Others, such as memory, the latency of a launch or
# the peak of a data sheet, are no speeds of a training.
# Each is before its parts.
TIMES = {
    "fit_s": "whole training",
    "epoch_s": "epoch",
    "compute_epoch_s": "epoch without loading",
    "step_s": "training step",
    "pass_s": "forward and backward pass",
    "forward_s": "forward pass",
    "backward_s": "backward pass",
    "kernel_s": "call of an operator",
}
RATES = dict.fromkeys(("samples_per_s", "tokens_per_s", "steps_per_s"), "training throughput")
METRICS = [*RATES, *TIMES]
SAMPLES = ("image", "sequence", "token", "text")  # words for a sample in workloads.csv
MOST_TITLES = 3  # of workloads in a line


class Speed(NamedTuple):
    """A published time or rate of a device.

    work: equal for the same work. title: of the workload. settings: `config` and the precision in
    words. si: seconds, or work per second if `is_rate`. text: as it is printed, with its unit.
    per_second: samples per second with their unit, "" where their number is not known. source: id
    of sources.csv, or `article 003`. software: framework and version. faults: ids of faults.csv.
    """

    device: str
    work: tuple[str, str, str, str]
    title: str
    settings: str
    config: dict[str, Any]
    si: float
    is_rate: bool
    text: str
    per_second: str
    source: str
    year: str
    software: str
    faults: tuple[str, ...]

    @property
    def framework(self) -> str:
        return self.software.partition(" ")[0]

    @property
    def timed(self) -> str:
        """What was timed: `training step`, `forward pass`."""
        return (TIMES | RATES)[self.work[1]]


class Pair(NamedTuple):
    """The speeds of two devices at the same work."""

    first: Speed
    second: Speed

    @property
    def ratio(self) -> float:
        """How many times as fast the first is."""
        ratio = self.first.si / self.second.si
        return ratio if self.first.is_rate else 1 / ratio

    @property
    def problems(self) -> list[str]:
        """What makes the ratio doubtful, in words."""
        faults = dict.fromkeys([*self.first.faults, *self.second.faults])
        words = [published.FAULTS[fault] for fault in faults if fault in published.SERIOUS]
        if self.first.framework != self.second.framework:
            words.append("other software")
        if self.first.source != self.second.source:
            words.append("two sources")
        return words

    @property
    def counts(self) -> bool:
        """Whether it is of the same framework in one source, without a serious problem."""
        return not self.problems


def speeds(device: str) -> list[Speed]:
    """Return all published speeds of a device. device: a name of `devices.all_names`."""
    return _by_device().get(device, [])


@functools.cache
def _by_device() -> dict[str, list[Speed]]:
    by_device: dict[str, list[Speed]] = defaultdict(list)
    for row in (*published.rows(), *published.elsewhere()):
        name = devices.canonical(row["device"], row["role"])
        if name and row["si"] and not row["bound"]:
            is_rate = row["metric"] in RATES
            if is_rate or row["metric"] in TIMES:
                by_device[name].append(_speed(name, row, is_rate))
    return by_device


def _speed(device: str, row: dict[str, Any], is_rate: bool) -> Speed:
    config = row["config"]
    article = row.get("article")
    return Speed(
        device=device,
        work=(
            row["experiment"],
            row["metric"],
            row["precision"],
            json.dumps(config, sort_keys=True),
        ),
        title=published.WORKLOADS.get(row["experiment"], row["experiment"]),
        config=config,
        settings=cases.config_text({"precision": row["precision"] or "fp32"} | config),
        si=row["si"],
        is_rate=is_rate,
        text=f"{_number(row['value'])} {row['unit']}".strip(),
        per_second=_per_second(row),
        source=f"article {article}" if article else row["source"],
        year=row["year"],
        software=row["framework"] or row["backend"],
        faults=tuple(row.get("faults", ())),
    )


def _number(value: float) -> str:
    """Return a printed number, with all digits of a large one."""
    return f"{value:,.0f}" if value >= 1e6 else f"{value:,.6g}"


def _per_second(row: dict[str, Any]) -> str:
    """Return the samples that a row processes in a second; "" where their number is not known."""
    samples = row.get("samples")
    if not samples:
        return ""
    return rate_text(row["experiment"], samples * published.rate(row), 1.0)


def rate_text(workload: str, samples: float, seconds: float) -> str:
    """Return the samples of a workload in a second: `246 images/s`."""
    return f"{significant(samples / seconds)} {sample_unit(workload)}/s"


@functools.cache
def sample_unit(workload: str) -> str:
    """Return what a sample of a workload is called: `images`, `sequences`, or else `samples`."""
    words = {line["id"]: line["sample"] for line in published.read("workloads.csv")}
    text = words.get(workload, "")
    return next((f"{unit}s" for unit in SAMPLES if unit in text), "samples")


def pairs(first: str, second: str) -> list[Pair]:
    """Return the pairs of two devices, one for each work, those that count before others.

    The result is the same for the reverse pair, with the inverse ratios.
    """
    of_second = defaultdict(list)
    for speed in speeds(second):
        of_second[speed.work].append(speed)
    of_first = defaultdict(list)
    for speed in speeds(first):
        if speed.work in of_second:
            of_first[speed.work].append(speed)
    best = [_best(alike, of_second[work]) for work, alike in of_first.items()]
    return sorted(
        _wholes(best), key=lambda pair: (not pair.counts, pair.first.title, pair.first.work)
    )


def _wholes(every: Iterable[Pair]) -> list[Pair]:
    """Return of each run the pair of the whole that it timed, without those of parts of it."""
    wholes: dict[tuple, Pair] = {}
    for pair in sorted(
        every, key=lambda pair: (not pair.counts, METRICS.index(pair.first.work[1]))
    ):
        workload, _, precision, config = pair.first.work
        run = (workload, precision, config, pair.first.source, pair.second.source)
        wholes.setdefault(run, pair)
    return list(wholes.values())


def _best(alike: Iterable[Speed], others: Sequence[Speed]) -> Pair:
    """Return the pair with the fewest problems, of the same version, the newest, in this order.

    The result is the same for the reverse pair.
    """
    every = [Pair(one, other) for one in alike for other in others]

    def doubtful(pair: Pair) -> tuple:
        years = [int(speed.year or 0) for speed in pair]
        versions = sorted(speed.software for speed in pair)
        differs = versions[0] != versions[1]
        apart = abs(years[0] - years[1])
        texts = sorted(speed.text for speed in pair)
        return len(pair.problems), differs, -min(years), apart, versions, texts

    return min(every, key=doubtful)


class Summary(NamedTuple):
    """How many times as fast a device is as another: the geometric mean, and the range."""

    mean: float
    low: float
    high: float
    pairs: list[Pair]

    @property
    def titles(self) -> list[str]:
        """The workloads that it is of."""
        return list(dict.fromkeys(pair.first.title for pair in self.pairs))

    @property
    def words(self) -> str:
        """What it is of, with the range: `2 configurations of BERT-base, 1.64× to 1.73×, ...`."""
        ranged = f", {_times(self.low)} to {_times(self.high)}" if len(self.pairs) > 1 else ""
        return f"{self.work}{ranged}, {self.evidence}"

    @property
    def work(self) -> str:
        """What it is of: `2 configurations of BERT-base`."""
        titles = self.titles
        names = titles[:MOST_TITLES]
        more = len(titles) - len(names)
        named = ", ".join(names) + (f" and {more} more" if more else "")
        count = len(self.pairs)
        configurations = "configuration" if count == 1 else "configurations"
        return f"{count} {configurations} of {named}"

    @property
    def evidence(self) -> str:
        """On what it rests: `one run each, 2022 and 2023; no interval`."""
        years = sorted({speed.year for pair in self.pairs for speed in pair if speed.year})
        between = f"{years[0]} to {years[-1]}" if len(years) > 2 else " and ".join(years)
        single = all("one-run" in speed.faults for pair in self.pairs for speed in pair)
        runs = "one run each, " if single else ""
        return f"{runs}{between}; no interval"


def _times(ratio: float) -> str:
    return f"{significant(ratio)}×"


def summary(counted: Sequence[Pair]) -> Summary | None:
    """Return what some pairs say together, None without any."""
    if not counted:
        return None
    ratios = [pair.ratio for pair in counted]
    return Summary(geometric_mean(ratios), min(ratios), max(ratios), list(counted))


def by_workload(counted: Iterable[Pair]) -> Iterator[tuple[str, Summary]]:
    """Yield the title of each workload, and what its pairs say, the most pairs first."""
    groups = defaultdict(list)
    for pair in counted:
        groups[pair.first.title].append(pair)
    for title, alike in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        yield title, summary(alike)
