"""How fast every device trains, as a multiple of one of them: the articles', those that others measured, and this one.

Two devices are compared where they did the same work: the same model, batch size, precision and data. Of each such pair
the ratio of their speeds is taken, of a workload the geometric mean of its settings, of two devices that of their
workloads. A published time with a fault that changes what was timed is drawn hollow, and is in no mean.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pomology.articles import elsewhere
from pomology.articles.published import experiment_of
from pomology.format import significant
from pomology.measure.estimate import Estimate
from pomology.report import summary
from pomology.report.table import SOFTWARE, Table, grouped
from pomology.results import cases
from pomology.results.cases import chip_name, combined, comparable, groups, with_software
from pomology.results.record import Record

MEASURED = "measured"
NOTES = (
    "Speed: how much of the same work is done in a second, over that of the device that stands at 1. More is faster.",
    "Models: how many both devices have trained at the same settings. A range is that of their ratios: the more models, "
    "and the closer these are, the more a mean says of other models. One model says nothing of others.",
    "In brackets: no mean, since each of these times has a fault that its source tells or its numbers show, as loading "
    "that took longer than computing.",
    f"{SOFTWARE} The last column has the years and versions.",
)


class Speed(NamedTuple):
    """How much of its work a device did in a second. terms: what was the same for all that have the same text.

    source: `measured`, or the id of an article or of another source. faults: of elsewhere.FAULTS, or flags of a case.
    """

    workload: str
    terms: str
    device: str
    role: str
    source: str
    framework: str
    version: str
    year: str
    rate: Estimate
    faults: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether it may be in a mean."""
        return not set(self.faults) & (elsewhere.FAULTS.keys() - elsewhere.MINOR)


class Place(NamedTuple):
    """A device beside the one that stands at 1. ratios: workload -> how many times as fast it is, and whether that is
    sound; mean, low, high: of the sound ones, or if there is none of all; speeds: what they are made of."""

    device: str
    role: str
    measured: bool
    ratios: dict[str, tuple[Estimate, bool]]
    mean: float
    low: float
    high: float
    speeds: tuple[Speed, ...]

    @property
    def sound(self) -> int:
        """How many workloads the mean is of; 0 where none is sound."""
        return sum(sound for _, sound in self.ratios.values())

    def words(self) -> str:
        """`0.31× (4 models: 0.20 to 0.52)`."""
        models = f"{len(self.ratios)} model{'s' * (len(self.ratios) > 1)}"
        if not self.sound:
            return f"({significant(self.mean, 2)}×, {models}, doubtful)"
        if self.sound == 1:
            return f"{significant(self.mean, 2)}× (one model)"
        ends = f"{significant(self.low, 2)} to {significant(self.high, 2)}"
        return f"{significant(self.mean, 2)}× ({self.sound} models: {ends})"

    def software(self) -> str:
        """The frameworks and years of what it is compared by."""
        known = dict.fromkeys(with_software("", s.framework, s.version, s.year).strip(" ()") for s in self.speeds)
        return "; ".join(filter(None, known))


def speeds(records: Sequence[Record]) -> list[Speed]:
    """All published ones and this run's, each at the settings of a source."""
    found, names = [], elsewhere.devices()
    for rate in summary.rates(list(records)):
        terms = rate.setting or (rate.settings if rate.source == "published" else "")
        if terms:
            ours = rate.source == MEASURED
            device = rate.device if ours else names.get(rate.device, rate.device)
            about = (rate.workload, terms, device, rate.role, MEASURED if ours else rate.article)
            found.append(Speed(*about, rate.framework, rate.version, rate.year, rate.rate))
    for row in elsewhere.rows():
        name, _, version = row["framework"].partition(" ")
        about = (row["workload"], _terms(row), row["device"], row["role"], row["source"], name, version, row["year"])
        found.append(Speed(*about, Estimate(elsewhere.rate(row), "1/s", how="published"), row["faults"]))
    return found + list(_measured(records))


def _terms(row: dict) -> str:
    return json.dumps(row["config"] | {"precision": row["precision"], "metric": row["metric"]}, sort_keys=True)


def _measured(records: Iterable[Record]) -> Iterable[Speed]:
    """This run's cases of what others have timed, at each of their settings."""
    for repeats in groups(comparable(records)):
        first = repeats[0]
        rows = {_terms(row): row for row in elsewhere.rows(experiment_of(first.experiment))}
        for terms, row in rows.items():
            same = all(first.config.get(key) == value for key, value in row["config"].items())
            metric = "throughput" if row["metric"].endswith("_per_s") else row["metric"]
            if same and cases.precision(first) == row["precision"] and (value := combined(repeats, metric)):
                rate = value if metric == "throughput" else 1 / value
                about = (row["workload"], terms, chip_name(first), cases.kind(first), MEASURED, first.framework)
                yield Speed(*about, first.framework_version, first.started[:4], rate.replace(unit="1/s"))


def places(known: Sequence[Speed], reference: str) -> list[Place]:
    """Every device that did the same work as this one, the fastest first; the reference itself is at 1."""
    fastest = {}
    for speed in sorted(known, key=lambda speed: (speed.sound, speed.rate.value)):  # the last one stays
        fastest[speed.device, speed.workload, speed.terms] = speed
    against = {key[1:]: speed for key, speed in fastest.items() if key[0] == reference}
    by_device = defaultdict(list)
    for (device, *key), speed in fastest.items():
        if tuple(key) in against:
            by_device[device].append((speed, against[tuple(key)]))
    found = []
    for device, pairs in by_device.items():
        ratios = {here[0][0].workload: _ratio(here) for here in grouped(pairs, lambda pair: pair[0].workload)}
        chosen = [ratio.value for ratio, sound in ratios.values() if sound]
        chosen = chosen or [ratio.value for ratio, _ in ratios.values()]
        first, mean = pairs[0][0], math.exp(sum(map(math.log, chosen)) / len(chosen))
        ends = (mean, min(chosen), max(chosen))
        found.append(Place(device, first.role, first.source == MEASURED, ratios, *ends, tuple(p[0] for p in pairs)))
    return sorted(found, key=lambda place: (-place.mean, place.device))


def _ratio(pairs: list[tuple[Speed, Speed]]) -> tuple[Estimate, bool]:
    """The geometric mean of a workload's settings, of the sound ones where there is one; an interval of one alone."""
    sound = [pair for pair in pairs if pair[0].sound and pair[1].sound]
    ratios = [speed.rate / other.rate.replace(how="counted", covers="exact") for speed, other in sound or pairs]
    if len(ratios) == 1:
        return ratios[0], bool(sound)
    mean = math.exp(sum(math.log(ratio.value) for ratio in ratios) / len(ratios))
    return Estimate(mean, n=len(ratios), covers="none"), bool(sound)


def references(known: Sequence[Speed]) -> list[str]:
    """The devices that others can be held against: this machine's first, then by how many devices and workloads each
    shares with others, which of each kind that this machine shares most with."""
    ours = {(speed.workload, speed.terms) for speed in known if speed.source == MEASURED}
    here = list(dict.fromkeys(speed.device for speed in known if speed.source == MEASURED))
    shared: Counter[str] = Counter()
    for name, workload in {(speed.device, s.workload) for speed in known for s in [speed] if _key(s) in ours}:
        shared[name] += bool(workload)
    others = sorted({speed.device for speed in known} - set(here), key=lambda name: (-shared[name], name))
    return [*here, *others]


def _key(speed: Speed) -> tuple[str, str]:
    return speed.workload, speed.terms


def usual(known: Sequence[Speed]) -> str:
    """What this machine is held against if nobody says: the published device that shares most workloads with it."""
    here = {speed.device for speed in known if speed.source == MEASURED}
    return next((name for name in references(known) if name not in here), "")


def sentences(known: Sequence[Speed]) -> list[str]:
    """How fast each of this machine's devices is, against the published one of each kind that shares most with it."""
    said, roles = [], {speed.device: speed.role for speed in known}
    for device in dict.fromkeys(speed.device for speed in known if speed.source == MEASURED):
        others = [name for name in references(known) if name != device]
        parts, seen = [], set()
        for name in others:
            place = next((place for place in places(known, name) if place.device == device), None)
            published = all(speed.source != MEASURED for speed in known if speed.device == name)
            if place and place.sound and published and roles[name] not in seen:
                seen.add(roles[name])
                parts.append(f"{place.words()} the speed of {name}".replace("×", " times", 1))
        if parts:
            said.append(f"{device} trains at {', '.join(parts)}.")
    return said


def table(known: Sequence[Speed], reference: str) -> Table:
    """The ranking against a device, as text and as numbers."""
    lines = []
    for place in places(known, reference):
        titles = elsewhere.workloads()
        models = "; ".join(
            f"{titles[name].title if name in titles else summary.WORKLOADS.get(name, name)} "
            f"{significant(ratio.value, 2)}×{'' if sound else ' (doubtful)'}"
            for name, (ratio, sound) in place.ratios.items()
        )
        numbers = {"device": place.device, "against": reference, "speed": place.mean, "low": place.low}
        numbers |= {"high": place.high, "models": place.sound, "doubtful": len(place.ratios) - place.sound}
        cells = (place.device, place.words(), models, place.software())
        lines.append((cells, numbers, MEASURED if place.measured else "published"))
    columns = ("Device", f"Speed, {reference} = 1", "By model", "Measured with")
    return Table.of(f"How fast every device trains, against {reference}", columns, lines, NOTES)
