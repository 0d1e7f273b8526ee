"""`pomology versus` where a name is a run: its cases next to published times of a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import geometric_mean
from typing import Any, NamedTuple

from pomology.articles import devices as names
from pomology.articles import published
from pomology.command_line import name_and_kind
from pomology.errors import PomologyError
from pomology.extras import compare
from pomology.extras.versus.answer import WIDTH
from pomology.format import one_line, significant
from pomology.report.table import Row, Table
from pomology.results import cases
from pomology.results.repeats import Repeats, pool
from pomology.results.run import Run, locate

# Settings of a step. What a source prints besides, such as its number of steps, makes its speed no
# other one.
SIZES = ("batch_size", "sequence", "image_size")
FLAGGED = "flags: "
NOTES = (
    "Samples or tokens per second of the same workload, batch size, size of input and precision. "
    "Model code, software and loading of data may differ: these are no pairs of the same program.",
)


class Beside(NamedTuple):
    """A case of a run next to a published speed; both in samples per second."""

    title: str
    settings: str
    case: Repeats
    own: float
    row: dict[str, Any]
    other: float

    @property
    def ratio(self) -> float:
        """How many times as fast the run is."""
        return self.own / self.other

    @property
    def problems(self) -> list[str]:
        faults = [published.FAULTS[fault] for fault in self.row.get("faults", ())]
        flags = [f"{FLAGGED}{', '.join(self.case.flags)}"] if self.case.flags else []
        return faults + flags


def lines(texts: Sequence[str], are_runs: Sequence[bool]) -> list[str]:
    """Return the output of the command. are_runs: whether each text is the name of a run."""
    if all(are_runs):
        named, kinds = compare.kinds_of(texts)
        return compare.lines([locate(name) for name in named], kinds if any(kinds) else ())
    if len(texts) > 2:
        raise PomologyError(
            "versus: expected one run and one device, or runs only, or devices only"
        )
    run_text, device_text = texts if are_runs[0] else reversed(texts)
    named, kind = name_and_kind(run_text)
    run = Run(locate(named))
    run.print_problems()
    device = names.resolve(device_text, names.with_results())
    found = list(beside(run, kind or _kind(run), device.name))
    text = [headline(run, device.name, found)]
    if found:
        text += ["", *table(found, run, device.name).text(WIDTH).splitlines()]
    return [*text, device.note] if device.note else text


def _kind(run: Run) -> str:
    """Return the kind of the device that a run is asked for: its GPU, if it has one."""
    kinds = {cases.kind(record.backend) for record in run.records}
    return "gpu" if "gpu" in kinds else "cpu"


def beside(run: Run, kind: str, device: str) -> Iterator[Beside]:
    """Yield the cases of a run's devices of a kind with a published speed of the same step."""
    rows: dict[tuple, dict[str, Any]] = {}
    for row in published.elsewhere():
        if names.canonical(row["device"], row["role"]) != device or not row["samples"]:
            continue
        key = (row["experiment"], row["precision"], *_sizes(row["config"]))
        before = rows.get(key)
        # The newest of several, and of one year the fastest.
        if before is None or _order(row) > _order(before):
            rows[key] = row
    for case in pool(run.records, run.name):
        speed = case.values.get("samples_per_s")
        row = rows.get((case.first.experiment, case.precision, *_sizes(case.config)))
        if case.kind == kind and speed and row:
            title = published.WORKLOADS.get(case.first.experiment, case.first.experiment)
            settings = cases.config_text(
                {name: case.config[name] for name in SIZES if name in case.config}
                | {"precision": case.precision}
            )
            own, other = speed.value, _samples(row)
            yield Beside(title, settings, case, own, row, other)


def _sizes(config: dict[str, Any]) -> tuple:
    return tuple(config.get(name) for name in SIZES)


def _order(row: dict[str, Any]) -> tuple[bool, str, float]:
    serious = not published.SERIOUS.isdisjoint(row["faults"])
    return not serious, row["year"], _samples(row)


def _samples(row: dict[str, Any]) -> float:
    """Return samples per second."""
    return row["samples"] * published.rate(row)


def headline(run: Run, device: str, found: Sequence[Beside]) -> str:
    """Return the answer in one line."""
    if not found:
        return f"{run.name} has no case of a step that was published of {device}"
    ratios = [each.ratio for each in found]
    mean = geometric_mean(ratios)
    titles = ", ".join(dict.fromkeys(each.title for each in found))
    between = (
        f", {significant(min(ratios))} to {significant(max(ratios))}" if len(found) > 1 else ""
    )
    count = "step" if len(found) == 1 else "steps"
    return one_line(
        f"{run.name} is {significant(mean)} times as fast as {device}: {len(found)} {count} of "
        f"{titles}{between}; no interval, other programs",
        300,
    )


def table(found: Sequence[Beside], run: Run, device: str) -> Table:
    """Return a row for each case, with both speeds."""
    rows = []
    for each in sorted(found, key=lambda each: -each.ratio):
        row = each.row
        cells = {
            "Step": f"{each.title}, {each.settings}",
            run.name: f"{significant(each.own)} samples/s ({each.case.framework})",
            device: f"{significant(each.other)} samples/s ({row['framework']}, {row['year']})",
            "Ratio": f"{significant(each.ratio)}×",
            "Known problems": "; ".join(each.problems),
            "Source": row["source"],
        }
        rows.append(Row(cells, kind="measured"))
    return Table("Next to published speeds", rows, NOTES)
