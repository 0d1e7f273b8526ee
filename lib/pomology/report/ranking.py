"""How fast every device trains, as a multiple of one of them: the articles', those that others measured, and this one.

Two devices are compared where they did the same work: the same model, settings, precision and kind of time. Of each
such pair the ratio of their speeds is taken, of a workload the geometric mean of its settings, of two devices that of
their workloads. A time with a fault that changes what was timed is drawn hollow, and is in no mean.
"""

import functools
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

from pomology.articles import elsewhere
from pomology.articles.published import experiment_of
from pomology.errors import PomologyError
from pomology.format import significant, span
from pomology.measure.estimate import Estimate
from pomology.report.speeds import MEASURED, OTHER, Speed, doubts, speeds
from pomology.report.summary import WORKLOADS
from pomology.report.table import SOFTWARE, Table, grouped
from pomology.results import cases
from pomology.results.cases import chip_name, combined, groups
from pomology.results.record import Record

# Where a reader looks for his device: the first that its name begins with, of GPUs and then of all.
FAMILIES = {
    "NVIDIA, of laptops": r"RTX.*(Laptop|Max-Q)",
    "NVIDIA, of workstations": r"Quadro|RTX A\d|RTX \d000 Ada",
    "NVIDIA GeForce and Titan": r"GTX|RTX|Titan",
    "AMD and Intel GPUs": r"Radeon|Vega|MI\d|Arc",
}
OF_ROLES = {"gpu": "Apple GPUs", "rival": "NVIDIA, of servers", "cpu": "Processors", "": "Other people's machines"}
KINDS = ("This machine", "Apple GPUs", *FAMILIES, "NVIDIA, of servers", "Processors", "Other people's machines")
NOTES = (
    "“2× as fast” does twice as much of the same work in a second as the device that all are held against; “2× as "
    "long” half as much. The same work is the same model, batch size and other settings, precision, and kind of time. "
    "The mean is geometric.",
    "Behind a mean: how many models both devices have trained, and the least and the largest ratio among them. The "
    "more models, and the closer the two, the more the mean says of other models; one model says nothing of others.",
    "In brackets, and in no mean: a time with a fault that its source names or its numbers show, as loading that took "
    "longer than computing.",
    SOFTWARE,
)
NOT_THERE = (
    "A ratio is the mean of the settings that both have run. A device that is not in a row has published no time of "
    "that model at these settings. Brackets: doubtful."
)
NOTHING = (
    "No ranking: this run has finished nothing that others have timed at the same settings, with the same model whole "
    "(a smoke run never has)."
)


def times_as(ratio: float, times: str = "×") -> str:
    """A ratio of speeds as people say it: `2.4× as fast`; below 1 `8.3× as long`."""
    text = significant(max(ratio, 1 / ratio), 2)
    return "as fast" if text == "1.0" else f"{text}{times} as {'fast' if ratio > 1 else 'long'}"


def compared(ratios: Sequence[float], behind: str, times: str = "×", to: str = "") -> str:
    """The geometric mean of several with what stands behind it: `8.3× as long (2 models: 5.3 to 14)`.

    behind: `model`, what the ratios are of. to: words behind the mean. Of ratios on both sides of 1 each end is written
    out.
    """
    low, high = min(ratios), max(ratios)
    ends = [times_as(end, times) for end in (low, high)]
    if low >= 1 or high <= 1:
        ends = [significant(end, 2) for end in sorted(max(end, 1 / end) for end in (low, high))]
    about = f"one {behind}" if len(ratios) == 1 else f"{len(ratios)} {behind}s: {' to '.join(ends)}"
    return f"{times_as(statistics.geometric_mean(ratios), times)}{to} ({about})"


def _verb(ratio: float) -> str:
    return "takes" if times_as(ratio).endswith("long") else "trains"


class Place(NamedTuple):
    """A device beside the one that stands at 1. ratios: workload -> how many times as fast it is, and whether that is
    sound; speeds: what they are made of. source: `measured`, `other` or `published`."""

    device: str
    role: str
    source: str
    ratios: dict[str, tuple[Estimate, bool]]
    speeds: tuple[Speed, ...]

    @property
    def measured(self) -> bool:
        """Whether it is this machine's."""
        return self.source == MEASURED

    @property
    def sound(self) -> int:
        """How many workloads the mean is of; 0 where none is sound."""
        return sum(sound for _, sound in self.ratios.values())

    @property
    def values(self) -> list[float]:
        """The ratios that the mean is of."""
        return [ratio.value for ratio, sound in self.ratios.values() if sound or not self.sound]

    @property
    def mean(self) -> float:
        """Of the sound ones, or if there is none of all."""
        return statistics.geometric_mean(self.values)

    def words(self) -> str:
        """`3.2× as long (4 models: 1.9 to 5.0)`."""
        if all(ratio.covers == "exact" for ratio, _ in self.ratios.values()):
            return "1 (the reference)"
        text = compared(self.values, "model")
        return text if self.sound else f"({text}, doubtful)"

    def software(self) -> str:
        """`PyTorch 2022`: the frameworks and years of what it is compared by."""
        names = dict.fromkeys(map(cases.framework_name, self.speeds))
        years = sorted({speed.year for speed in self.speeds})
        return f"{'/'.join(names)} {'–'.join(dict.fromkeys((years[0], years[-1])))}"


def title(workload: str) -> str:
    """What was trained, in words."""
    return (WORKLOADS | elsewhere.workloads()).get(workload, workload.replace("_", " "))


class Ranking:
    """All speeds that were published, and those of a run. here: this machine's devices that others can be held
    against, those with most models first; empty where there is none, and then there is no ranking."""

    def __init__(self, records: Sequence[Record], others: Sequence[Sequence[Record]] = ()):
        self.records, fastest = records, defaultdict[tuple[str, str], dict[str, Speed]](dict)
        # Of machines of one kind that a source has measured alike the middle one, of several sources the fastest.
        alike = grouped(speeds(records, others), lambda speed: (*speed[:7], speed.faults))
        ranked = (sorted(these, key=lambda speed: speed.rate.value) for these in alike)
        middle = [these[(len(these) - 1) // 2] for these in ranked]
        for speed in sorted(middle, key=lambda speed: (speed.sound, speed.rate.value)):
            fastest[speed.workload, speed.terms][speed.device] = speed  # the last one stays
        self.work = [devices for devices in fastest.values() if len(devices) > 1]
        self.speeds = {name: speed for devices in self.work for name, speed in devices.items()}
        here = [name for name, speed in self.speeds.items() if speed.source == MEASURED]
        self.here = [name for name in here if any(place.source == "published" for place in self.places(name))]
        self.here.sort(key=lambda name: (-len({name for p in self.places(name) for name in p.ratios}), name))

    def places(self, reference: str) -> list[Place]:
        """Every device that did the same work as this one, the fastest first; the reference itself is at 1."""
        made, beside = [], [devices for devices in self.work if reference in devices]
        pairs = [(speed, speed.over(devices[reference])) for devices in beside for speed in devices.values()]
        for these in grouped(pairs, lambda pair: pair[0].device):
            ratios = {here[0][0].workload: _mean(here) for here in grouped(these, lambda pair: pair[0].workload)}
            first = these[0][0]
            source = first.source if first.source in (MEASURED, OTHER) else "published"
            made.append(Place(first.device, first.role, source, ratios, tuple(speed for speed, _ in these)))
        return sorted(made, key=lambda place: (-place.mean, place.device))

    @functools.cached_property
    def references(self) -> dict[str, list[str]]:
        """The devices that others can be held against, by maker and kind, in the order of their names: those that did
        some of this machine's work, or all where it did none."""
        beside = [devices for devices in self.work if not self.here or any(name in devices for name in self.here)]

        def kind(name: str) -> str:
            role = self.speeds[name].role
            fits = (family for family, names in FAMILIES.items() if role == "rival" and re.match(names, name))
            return "This machine" if name in self.here else next(fits, OF_ROLES[role])

        def order(name: str) -> tuple:
            parts = [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
            return KINDS.index(kind(name)), parts

        names = sorted({name for devices in beside for name in devices}, key=order)
        return {kind(of[0]): of for of in grouped(names, kind)}

    def nearest(self, device: str = "") -> list[str]:
        """The published devices, first that which shares most models with this machine, or with one device of it, and
        is itself beside most others; those behind that share one model only."""
        counts = defaultdict[str, int](int)
        for place in (place for own in ([device] if device else self.here) for place in self.places(own)):
            if place.source == "published":
                counts[place.device] += place.sound
        return sorted(counts, key=lambda name: (counts[name] < 2, -counts[name] * len(self.places(name)), name))

    @functools.cached_property
    def usual(self) -> str:
        """What all are held against if nobody says: a published GPU, if there is one."""
        names = self.nearest()
        return next((name for name in names if self.speeds[name].role != "cpu"), names[0] if names else "")

    def known(self, device: str) -> str:
        """A device by its name, or the usual one for none. Raises PomologyError for a name that nothing is beside."""
        if device and device not in self.speeds:
            raise PomologyError(f"no device {device!r} is in the ranking: {', '.join(sorted(self.speeds))}")
        return device or self.usual

    def sentences(self) -> list[str]:
        """How fast each of this machine's devices is, against the published one of each kind that shares most with it,
        and how sure that is."""
        lines, times = [], []
        for device in self.here:
            beside, parts = {place.device: place for place in self.places(device)}, {}
            for name in sorted(self.nearest(device), key=lambda name: (beside[name].role == "cpu", name != self.usual)):
                if beside[name].sound and beside[name].role not in parts:
                    ratios = [1 / ratio for ratio in beside[name].values]
                    words = compared(ratios, "model", " times", f" as the {name}")
                    parts[beside[name].role] = _verb(1 / beside[name].mean), words
            clauses = []
            for of in grouped(parts.values(), itemgetter(0)):
                *words, last = (text for _, text in of)
                clauses.append(f"{of[0][0]} {' and '.join(filter(None, [', '.join(words), last]))}")
            lines += [f"The {device} {'; it '.join(clauses)}."] * bool(clauses)
            times += beside[device].speeds
        return [*lines, self._sure(times)]

    def _sure(self, times: Sequence[Speed]) -> str:
        models, count = grouped(times, lambda speed: speed.workload), len(times)
        runs = sorted({speed.runs for speed in times})
        each = f"{runs[0]} runs of each" + " or more" * (len(runs) > 1)
        each = "one run of each, and another may differ" if runs == [1] else each
        work = f"{len(models)} model{'s' * (len(models) > 1)} at {count} setting{'s' * (count > 1)}"
        parts = [f"{work} that others have timed as well, {each}"]
        if steps := [speed.steps for speed in times if "few-steps" in speed.faults]:
            number = span(min(steps), max(steps), str)
            parts.append(f"{len(steps)} of the {count} are estimated from {number} steps a run, and so are rough")
        flags = [speed.faults & cases.FLAGS.keys() for speed in times]
        names = ", ".join(sorted(set().union(*flags)))
        number = "all" if all(flags) else sum(map(bool, flags))
        parts.append(f"{number} carry a flag ({names})" if names else "none carries a flag")
        for of in models:
            if not any(speed.sound for speed in of):
                against = doubts(fault for speed in of for fault in speed.faults)["no"]
                parts.append(f"in no mean: {title(of[0].workload)} ({', '.join(against)})")
        return f"How sure: {'; '.join(parts)}."

    def frameworks(self) -> list[str]:
        """How fast MLX trains beside PyTorch on this machine, for each of its devices that has run the same in both."""
        pairs, lines = defaultdict(dict), []
        for repeats in groups(record for record in self.records if record.profile != "smoke"):
            first, step = repeats[0], combined(repeats, "step_s")
            if step and step.value > 0 and first.flops_per_step:  # as many operations: the same work
                key = (chip_name(first), experiment_of(first.experiment), cases.settings(first), first.flops_per_step)
                pairs[*key, first.precision][first.framework] = step.value
        both = [(key[0], of["torch"] / of["mlx"]) for key, of in pairs.items() if {"torch", "mlx"} <= of.keys()]
        for these in grouped(both, itemgetter(0)):
            ratios = [ratio for _, ratio in these]
            words = compared(ratios, "case", " times", " as PyTorch")
            lines.append(f"On the {these[0][0]}, MLX {_verb(statistics.geometric_mean(ratios))} {words}.")
        return lines

    def table(self, reference: str = "") -> Table:
        """The ranking against a device, as text and as numbers."""
        lines, reference = [], self.known(reference)
        for place in self.places(reference):
            models = [_marked(title(name), *ratio) for name, ratio in place.ratios.items()]
            numbers = {"device": place.device, "against": reference, "speed": place.mean}
            numbers |= {"low": min(place.values), "high": max(place.values)}
            numbers |= {"models": place.sound, "doubtful": len(place.ratios) - place.sound}
            cells = (place.device, place.words(), ", ".join(models), place.software())
            lines.append((cells, numbers, place.source))
        columns = ("Device", f"Trains, against the {reference}", "By model", "Measured with")
        notes = NOTES if lines else (NOTHING,)
        return Table.of(f"How fast every device trains, against {reference or 'others'}", columns, lines, notes)

    def by_model(self) -> Table:
        """Each of this machine's times that others have, a row for a model: how fast they are, and how sure it is."""
        lines, carried = [], set()
        for device in self.here:
            beside = {place.device: place for place in self.places(device)}
            usual = beside[self.usual].ratios if self.usual in beside else {}
            for these in grouped(beside.pop(device).speeds, lambda speed: speed.workload):
                name, runs = these[0].workload, min(speed.runs for speed in these)
                faults = {fault for speed in these for fault in speed.faults}
                against, flags = doubts(faults), sorted(faults & cases.FLAGS.keys())
                others = [(place.device, *place.ratios[name]) for place in beside.values() if name in place.ratios]
                others.sort(key=lambda other: -other[1].value)
                shown = [_marked(*other) for other in others]
                shown += [f"no published time of the {self.usual}"] * (name not in usual)
                frameworks = ", ".join(dict.fromkeys(map(cases.framework_name, these)))
                sure = [f"no: {', '.join(against['no'])}" if "no" in against else next(iter(against), "yes")]
                sure += [f"{frameworks}, {'one run' if runs == 1 else f'{runs} runs'}"]
                sure += [f"flags: {', '.join(flags)}"] * bool(flags)
                model = title(name) + f", on the {device}" * (len(self.here) > 1)
                lines.append(((model, ", ".join(shown), "; ".join(sure)), {}))
                carried.update(flags)
        columns = ("Model", f"How others train it, against this {'machine' if len(self.here) == 1 else 'device'}")
        notes = [NOT_THERE, *(f"{flag}: {cases.FLAGS[flag]}." for flag in sorted(carried))]
        return Table.of("Model by model", (*columns, "May it be trusted?"), lines, notes)


def _marked(name: str, ratio: Estimate, sound: bool) -> str:
    text = name if ratio.covers == "exact" else f"{name} {times_as(ratio.value)}"
    return text if sound else f"({text})"


def _mean(pairs: Iterable[tuple[Speed, tuple[Estimate, bool]]]) -> tuple[Estimate, bool]:
    """The geometric mean of a workload's settings, of the sound ones where there is one. Its interval is as wide as
    those of the settings in the mean: what a process does to one setting it may do to all."""
    known = [pair for _, pair in pairs]
    sound = [ratio for ratio, sound in known if sound]
    ratios = sound or [ratio for ratio, _ in known]
    if len(ratios) == 1 or all(ratio.covers == "exact" for ratio in ratios):
        return ratios[0], bool(sound)
    ends = {}
    if all(ratio.low and ratio.low > 0 for ratio in ratios):
        ends = {end: statistics.geometric_mean(getattr(ratio, end) for ratio in ratios) for end in ("low", "high")}
    mean = statistics.geometric_mean(ratio.value for ratio in ratios)
    return Estimate(mean, **ends, n=len(ratios)), bool(sound)
