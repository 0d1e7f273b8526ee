"""What is known of a device: published values, shared runs, and predictions."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from pomology.articles import devices as names
from pomology.articles import published
from pomology.extras.collection import shared
from pomology.extras.versus import pairs, predicted
from pomology.format import counted, quantity, seconds, sentence_case, significant, span
from pomology.results import cases

MEMORY = ("footprint_peak_bytes", "reserved_peak_bytes", "peak_memory_bytes")
FEW_WORKLOADS = 3  # with fewer, a ratio says little of other work
TIMES = cases.TIMES | {"compute_epoch_s": "epoch without loading"}
ORDER = ("Workload", "Settings", "Time of", "Year")  # of published values
# Families of devices, by a pattern of their names, in the order of the page.
FAMILIES = (
    ("Apple M5", r"M5\b"),
    ("Apple M4", r"M4\b(?!000)"),
    ("Apple M3", r"M3\b"),
    ("Apple M2", r"M2\b"),
    ("Apple M1", r"M1\b"),
    ("CPUs", r".*\bCPU\b|Core i|Ryzen|Xeon|AMD EPYC|Intel"),
    ("AMD GPUs", r"Radeon|MI\d|Vega"),
    ("NVIDIA GeForce and Titan", r"(RTX|GTX) \d{4}\b(?! Ada)|Titan"),
    ("NVIDIA workstations", r"Quadro|RTX (A|PRO|\d{4} Ada)"),
    ("NVIDIA data centers", r"[ABHKLTV]\d|G[BH]\d|P100|M60|Jetson"),
    ("Others", r""),
)


class Value(NamedTuple):
    """A published value of a device: texts by heading. link, cited: of its source.

    count: of the values that differ in nothing but the number, which share a row.
    """

    cells: dict[str, str]
    link: str
    cited: str
    count: int


class Section(NamedTuple):
    """The published values of a workload. id: of its place on the page."""

    title: str
    id: str
    rows: list[Value]


class Predicted(NamedTuple):
    """A predicted step of a device, with its 90 % interval."""

    title: str
    settings: str
    time: str
    per_second: str


class Relative(NamedTuple):
    """How many times as fast another device is.

    measured: at the same published work. predicted: mean and range over the workloads.
    """

    device: str
    measured: pairs.Summary | None
    predicted: tuple[float, float, float] | None

    @property
    def measured_text(self) -> str:
        """The measured ratio and its range over configurations, "" without one."""
        if not self.measured:
            return ""
        mean, low, high = map(significant, self.measured[:3])
        return f"{mean}×" if low == high else f"{mean}× ({low} to {high})"

    @property
    def predicted_text(self) -> str:
        """The predicted ratio and its range over workloads, "" without one."""
        if not self.predicted:
            return ""
        mean, low, high = map(significant, self.predicted)
        return f"{mean}× (by workload {low} to {high})"

    @property
    def words(self) -> str:
        """What the measured ratio is of, "" without one."""
        summary = self.measured
        return f"{summary.work}, {summary.evidence}" if summary else ""

    @property
    def order(self) -> tuple:
        """What devices are sorted by: measured ones, those of few workloads last; the fastest."""
        if self.measured:
            return len(self.measured.titles) < FEW_WORKLOADS, -self.measured.mean
        return True, -self.predicted[0]


class Device(NamedTuple):
    """All that is known of a device. relatives: the fastest first."""

    name: str
    sheet: dict[str, str]
    published: list[Value]
    shared: list[shared.Pooled]
    predicted: list[Predicted]
    relatives: list[Relative]

    @property
    def file(self) -> str:
        """The name of its page."""
        return f"{slug(self.name)}.html"

    @property
    def values(self) -> int:
        """How many published values it has, each of a row counted."""
        return sum(value.count for value in self.published)

    @property
    def sections(self) -> list[Section]:
        """Its published values by workload."""
        by_title = groupby(self.published, key=lambda value: value.cells["Workload"])
        return [Section(title, f"published-{slug(title)}", list(rows)) for title, rows in by_title]

    @property
    def runs(self) -> list[shared.Run]:
        """The shared runs of it, the newest first."""
        runs = {run.name: run for pooled in self.shared for run in pooled.runs}
        return sorted(runs.values(), key=lambda run: run.day, reverse=True)

    def numbers(self, pooled: shared.Pooled) -> list[int]:
        """Return the numbers of the runs of a shared time, in the list of `runs` from 1."""
        of_time = {run.name for run in pooled.runs}
        return [number for number, run in enumerate(self.runs, 1) if run.name in of_time]

    @property
    def mixed(self) -> bool:
        """Whether some of its shared runs are marked and others are not."""
        return len({bool(run.marks) for run in self.runs}) > 1

    @property
    def counts(self) -> str:
        """How much is known of it, in words."""
        sources = {value.cells["Source"] for value in self.published}
        published_values = counted(self.values, "published value")
        parts = [
            f"{published_values} of {counted(len(sources), 'source')}" if sources else "",
            counted(len(self.runs), "shared run") if self.runs else "",
            f"predictions of {len(self.predicted)} workloads" if self.predicted else "",
        ]
        return sentence_case(", ".join(filter(None, parts)))


def slug(name: str) -> str:
    """Return the name of a device for addresses: `m4-max-gpu-40-cores`."""
    return re.sub("[^a-z0-9]+", "-", name.casefold()).strip("-")


def family(name: str) -> str:
    """Return the title of a device's family."""
    return next(title for title, pattern in FAMILIES if re.match(pattern, name))


def devices(pooled: Sequence[shared.Pooled]) -> list[Device]:
    """Return all devices of published values, data sheets and shared runs.

    pooled: of the accepted runs, see `shared.pool`.
    """
    by_device: dict[str, list[shared.Pooled]] = defaultdict(list)
    for each in pooled:
        by_device[each.first.device].append(each)
    every = dict.fromkeys([*names.all_names(), *by_device])
    return [
        Device(
            name=name,
            sheet=dict(names.sheets().get(name, {})),
            published=_published(name),
            shared=sorted(by_device[name], key=lambda each: (each.title, each.first.key)),
            predicted=_predicted(name),
            relatives=relatives(name, every),
        )
        for name in every
    ]


@functools.cache
def _sources() -> dict[str, tuple[str, str]]:
    """Return the address of each source, "" for one without, and how it is cited."""
    lines = {name: (line["url"], line) for name, line in published.SOURCES.items()}
    lines |= {
        f"article {line['id']}": (line["url_or_source"], line)
        for line in published.read("articles.csv")
    }
    return {
        name: (
            link if link.startswith("https://") else "",
            f"{line['author']}: {line['title']}, {line['date']}",
        )
        for name, (link, line) in lines.items()
    }


@functools.cache
def _memory() -> dict[tuple[str, str, str], dict[str, str]]:
    """Return published memory by device, source and experiment: settings -> text."""
    texts: dict[tuple[str, str, str], dict[str, str]] = defaultdict(dict)
    for row in (*published.rows(), *published.elsewhere()):
        device = names.canonical(row["device"], row["role"])
        if device and row["metric"] in MEMORY and row["si"]:
            source = f"article {row['article']}" if row["article"] else row["source"]
            settings = str(row["config"])
            texts[device, source, row["experiment"]][settings] = quantity(row["si"], "B")
    return texts


def _published(name: str) -> list[Value]:
    alike: dict[tuple, tuple[dict[str, str], list[pairs.Speed]]] = {}
    for speed in pairs.speeds(name):
        _, _, unit = speed.text.partition(" ")
        cells = _cells(name, speed)
        alike.setdefault((unit, *cells.items()), (cells, []))[1].append(speed)
    values = []
    for cells, of_row in alike.values():
        of_row.sort(key=lambda speed: speed.si)
        count = f" ({len(of_row)} values)" if len(of_row) > 1 else ""
        rates = [speed.per_second for speed in of_row if speed.per_second and not speed.is_rate]
        cells["As printed"] = between([speed.text for speed in of_row]) + count
        cells["Per second"] = between(rates[::-1])
        link, cited = _sources().get(of_row[0].source, ("", ""))
        values.append(Value(cells, link, cited, len(of_row)))
    return sorted(values, key=lambda value: [value.cells[name] for name in ORDER])


def _cells(name: str, speed: pairs.Speed) -> dict[str, str]:
    """Return the cells of a published value, with empty ones for its number."""
    memory = _memory().get((name, speed.source, speed.work[0]), {})
    return {
        "Workload": speed.title,
        "Settings": speed.settings,
        "Time of": TIMES.get(speed.work[1], ""),
        "As printed": "",
        "Per second": "",
        "Memory": memory.get(str(speed.config), ""),
        "Software": speed.software,
        "Year": speed.year,
        "Source": speed.source,
        "Known problems": "; ".join(published.FAULTS[fault] for fault in speed.faults),
    }


def between(texts: Sequence[str]) -> str:
    """Return the ends of sorted quantities with one unit, "" for none: `858 to 877 images/s`."""
    if not texts:
        return ""
    first, last = texts[0], texts[-1]
    if first == last:
        return first
    return f"{first.partition(' ')[0]} to {last}"


def _predicted(name: str) -> list[Predicted]:
    return [
        Predicted(
            title=step.title,
            settings=f"{step.example}, {predicted.PRECISION}",
            time=f"{seconds(step.time.value)} ({span(*step.time.bounds, seconds)})",
            per_second=pairs.rate_text(step.example.split()[0], step.batch_size, step.time.value),
        )
        for step in predicted.steps(name)
    ]


def answer(name: str, reference: str) -> str:
    """Return how many times as fast a device is as another at published work; "" if none."""
    for relative in relatives(reference, [name]):
        if relative.measured:
            return f"{relative.measured_text} as fast as {reference}: {relative.words}"
    return ""


def relatives(name: str, every: Iterable[str]) -> list[Relative]:
    """Return how many times as fast other devices are at the work of a device, the fastest first.

    every: names of the devices. The result lacks those without a common work.
    """
    common = []
    for other in every:
        if other == name:
            continue
        compared = [pair for pair in pairs.pairs(other, name) if pair.counts]
        measured = pairs.summary(compared)
        ratios = predicted.ratios(other, name)
        by_prediction = None
        if ratios:
            values = [ratio.value for ratio in ratios]
            by_prediction = (predicted.mean(ratios), min(values), max(values))
        if measured or by_prediction:
            common.append(Relative(other, measured, by_prediction))
    return sorted(common, key=lambda relative: (relative.order, relative.device))
