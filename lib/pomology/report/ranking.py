"""How fast every device trains, as a multiple of one of them: the articles', those that others measured, and this one.

Two devices are compared where they did the same work: the same model, settings, precision and kind of time. Of each
such pair the ratio of their speeds is taken, of a workload the geometric mean of its settings, of two devices that of
their workloads. A time with a fault that changes what was timed is drawn hollow, and is in no mean.
"""

from __future__ import annotations

import functools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pomology.articles import elsewhere
from pomology.articles.published import experiment_of
from pomology.errors import PomologyError
from pomology.format import significant
from pomology.measure.estimate import Estimate
from pomology.report.speeds import MEASURED, OTHER, Speed, speeds
from pomology.report.summary import WORKLOADS
from pomology.report.table import SOFTWARE, Table, grouped
from pomology.results import cases
from pomology.results.cases import FRAMEWORKS, chip_name, combined, groups
from pomology.results.record import Record

KINDS = {
    "here": "This machine",
    "rival": "GPUs",
    "gpu": "Apple GPUs",
    "cpu": "Processors",
    "": "Other people's machines",
}
NOTES = (
    "Speed: how much of the same work is done in a second, over that of the device at 1; more is faster. The same work "
    "is the same model, batch size and other settings, precision, and kind of time. The mean is geometric.",
    "Behind a mean: how many models both devices have trained, and the least and the largest ratio among them. The "
    "more models, and the closer the two, the more the mean says of other models; one model says nothing of others.",
    "In brackets, and in no mean: a time with a fault that its source names or its numbers show, as loading that took "
    "longer than computing.",
    SOFTWARE,
)
CAPTION = (
    "A mark is a model that both devices have trained at the same settings, hollow where one of the two times is "
    "doubtful; the stroke is the geometric mean of the filled ones. The axis is logarithmic. Two rows may rest on "
    "different models: each compares with the device at 1, and not with the row beside it."
)
NOT_THERE = "A device that is not in a row has published no time of that model at these settings. Brackets: doubtful."
NOTHING = (
    "No ranking: this run has finished nothing that others have timed at the same settings, with the same model whole "
    "(a smoke run never has)."
)


class Place(NamedTuple):
    """A device beside the one that stands at 1. ratios: workload -> how many times as fast it is, and whether that is
    sound; mean, low, high: of the sound ones, or if there is none of all; speeds: what they are made of. source:
    `measured`, `other` or `published`."""

    device: str
    role: str
    source: str
    ratios: dict[str, tuple[Estimate, bool]]
    mean: float
    low: float
    high: float
    speeds: tuple[Speed, ...]

    @property
    def measured(self) -> bool:
        """Whether it is this machine's."""
        return self.source == MEASURED

    @property
    def sound(self) -> int:
        """How many workloads the mean is of; 0 where none is sound."""
        return sum(sound for _, sound in self.ratios.values())

    def words(self, then: str = "×") -> str:
        """`0.31× (4 models: 0.20 to 0.52)`; then: what stands behind the number."""
        if all(ratio.covers == "exact" for ratio, _ in self.ratios.values()):
            return "1 (the reference)"
        count, mean = self.sound or len(self.ratios), _short(self.mean) + then
        about = "one model" if count == 1 else f"{count} models: {' to '.join(map(_short, (self.low, self.high)))}"
        return f"{mean} ({about})" if self.sound else f"({mean}, {about}, doubtful)"

    def software(self) -> str:
        """`PyTorch 2022`: the frameworks and years of what it is compared by."""
        names = dict.fromkeys(FRAMEWORKS.get(speed.framework, speed.framework) for speed in self.speeds)
        years = sorted({speed.year for speed in self.speeds})
        return f"{'/'.join(names)} {'–'.join(dict.fromkeys((years[0], years[-1])))}"


def _short(number: float) -> str:
    return significant(number, 2)


def title(workload: str) -> str:
    """What was trained, in words."""
    known = elsewhere.workloads()
    return known[workload].title if workload in known else WORKLOADS.get(workload, workload.replace("_", " "))


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
        self.roles = {name: speed.role for devices in self.work for name, speed in devices.items()}
        ours = {name: speed.source == MEASURED for devices in self.work for name, speed in devices.items()}
        here = [name for name, measured in ours.items() if measured]
        self.here = [name for name in here if any(place.source == "published" for place in self.places(name))]
        self.here.sort(key=lambda name: (-len({name for p in self.places(name) for name in p.ratios}), name))

    def places(self, reference: str) -> list[Place]:
        """Every device that did the same work as this one, the fastest first; the reference itself is at 1."""
        pairs, made = defaultdict(list), []
        for devices in self.work:
            for name, speed in devices.items() if reference in devices else ():
                pairs[name].append((speed, speed.over(devices[reference])))
        for device, these in pairs.items():
            ratios = {here[0][0].workload: _mean(here) for here in grouped(these, lambda pair: pair[0].workload)}
            sound = [ratio.value for ratio, sound in ratios.values() if sound]
            chosen = sound or [ratio.value for ratio, _ in ratios.values()]
            first, ends = these[0][0], (statistics.geometric_mean(chosen), min(chosen), max(chosen))
            source = first.source if first.source in (MEASURED, OTHER) else "published"
            made.append(Place(device, first.role, source, ratios, *ends, tuple(speed for speed, _ in these)))
        return sorted(made, key=lambda place: (-place.mean, place.device))

    @functools.cached_property
    def references(self) -> dict[str, list[str]]:
        """The devices that others can be held against, by kind."""
        kinds = {name: "here" if name in self.here else self.roles[name] for name in self.roles}
        names = sorted(self.roles, key=lambda name: ([*KINDS].index(kinds[name]), name))
        return {kinds[of[0]]: of for of in grouped(names, kinds.get)}

    def nearest(self, device: str = "") -> list[str]:
        """The published devices, first that which shares most models with this machine, or with one device of it, and
        is itself beside most others."""
        counts = {}
        for own in [device] if device else self.here:
            for place in self.places(own):
                if place.source == "published":
                    counts[place.device] = counts.get(place.device, 0) + place.sound
        beside = {name: len(self.places(name)) for name in counts}
        return sorted(counts, key=lambda name: (-counts[name] * beside[name], name))

    @functools.cached_property
    def usual(self) -> str:
        """What all are held against if nobody says: a published GPU, if there is one."""
        names = self.nearest()
        return next((name for name in names if self.roles[name] != "cpu"), names[0] if names else "")

    def known(self, device: str) -> str:
        """A device by its name, or the usual one for none. Raises PomologyError for a name that nothing is beside."""
        if device and device not in self.roles:
            raise PomologyError(f"no device {device!r} is in the ranking: {', '.join(sorted(self.roles))}")
        return device or self.usual

    def sentences(self) -> list[str]:
        """How fast each of this machine's devices is, against the published one of each kind that shares most with it,
        and how sure that is."""
        lines, times = [], []
        for device in self.here:
            names, beside = {}, {place.device: place for place in self.places(device)}
            for name in sorted(self.nearest(device), key=lambda name: (self.roles[name] == "cpu", name != self.usual)):
                if beside[name].sound:
                    names.setdefault(self.roles[name], name)
            against = {name: next(p for p in self.places(name) if p.device == device) for name in names.values()}
            parts = [place.words(f" times the speed of the {name}") for name, place in against.items()]
            if parts:
                lines.append(f"The {device} trains at {_listed(parts)}.")
            times += beside[device].speeds
        return [*lines, self._sure(times)]

    def _sure(self, times: Sequence[Speed]) -> str:
        flags = [speed.faults & cases.FLAGS.keys() for speed in times]
        flagged, names = sum(map(bool, flags)), ", ".join(sorted(set().union(*flags)))
        by_model = grouped(times, lambda speed: speed.workload)
        left = [title(of[0].workload) for of in by_model if not any(speed.sound for speed in of)]
        runs = sorted({speed.runs for speed in times})
        parts = [
            f"{len(by_model)} models that others have timed at the same settings, {len(times)} times in all",
            f"each from {runs[0]} runs" + " or more" * (len(runs) > 1),
            f"{flagged} of them carry a flag ({names})" if flagged else "none of them carries a flag",
        ]
        parts[1] = "each from one run, and another may differ" if runs == [1] else parts[1]
        parts += [f"in no mean: {', '.join(left)}"] if left else []
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
        for device in dict.fromkeys(device for device, _ in both):
            ratios = [ratio for name, ratio in both if name == device]
            ends = "one model and setting" if len(ratios) == 1 else f"{len(ratios)} models and settings: "
            ends += f"{_short(min(ratios))} to {_short(max(ratios))}" * (len(ratios) > 1)
            mean = _short(statistics.geometric_mean(ratios))
            lines.append(f"On the {device}, MLX trains at {mean} times the speed of PyTorch ({ends}).")
        return lines

    def table(self, reference: str = "") -> Table:
        """The ranking against a device, as text and as numbers."""
        lines, reference = [], self.known(reference)
        for place in self.places(reference) if reference else ():
            models = ", ".join(
                _marked(f"{title(name)} {_short(ratio.value)}×", sound) for name, (ratio, sound) in place.ratios.items()
            )
            numbers = {"device": place.device, "against": reference, "speed": place.mean, "low": place.low}
            numbers |= {"high": place.high, "models": place.sound, "doubtful": len(place.ratios) - place.sound}
            cells = (place.device, place.words(), models, place.software())
            lines.append((cells, numbers, place.source))
        columns = ("Device", f"Speed, {reference} = 1", "By model", "Measured with")
        notes = NOTES if lines else (NOTHING,)
        return Table.of(f"How fast every device trains, against {reference or 'others'}", columns, lines, notes)

    def by_model(self) -> Table:
        """Each of this machine's times that others have, a row for a model: how fast they are, and how sure it is."""
        lines = []
        for device in self.here:
            beside = self.places(device)
            own = next(place for place in beside if place.device == device)
            for name in own.ratios:
                these = [speed for speed in own.speeds if speed.workload == name]
                others = [(place.device, *place.ratios[name]) for place in beside if name in place.ratios]
                others = sorted((other for other in others if other[0] != device), key=lambda other: -other[1].value)
                shown = ", ".join(_marked(f"{who} {_short(ratio.value)}×", sound) for who, ratio, sound in others)
                flags = sorted({fault for speed in these for fault in speed.faults})
                doubts = [elsewhere.FAULTS[flag] for flag in flags if flag in elsewhere.SERIOUS]
                runs = min(speed.runs for speed in these)
                carried = ", ".join(flag for flag in flags if flag in cases.FLAGS)
                with_ = ", ".join(dict.fromkeys(cases.framework_name(speed) for speed in these))
                unsure = cases.DOUBTS.intersection(flags)
                sure = [f"no: {', '.join(doubts)}" if doubts else "cannot be told" if unsure else "yes"]
                sure += [f"{with_}, {'one run' if runs == 1 else f'{runs} runs'}"]
                sure += [carried and f"flags: {carried}"]
                numbers = {"model": name, "device": device, "runs": runs, "doubts": "; ".join(doubts)}
                numbers |= {"others": len(others), "flags": " ".join(flags)}
                model = title(name) + f", on the {device}" * (len(self.here) > 1)
                lines.append(((model, shown, "; ".join(filter(None, sure))), numbers, "plain"))
        at_1 = self.here[0] if len(self.here) == 1 else "this device"
        columns = ("Model", f"How fast others train it, {at_1} = 1", "May it be trusted?")
        flags = {flag for _, numbers, _ in lines for flag in numbers["flags"].split() if flag in cases.FLAGS}
        return Table.of(
            "Model by model", columns, lines, [NOT_THERE, *(f"{f}: {cases.FLAGS[f]}." for f in sorted(flags))]
        )


def _marked(text: str, sound: bool) -> str:
    return text if sound else f"({text})"


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


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
