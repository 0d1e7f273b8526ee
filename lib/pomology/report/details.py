"""Every number of a case, the machine, and how much two runs differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pomology.format import significant
from pomology.machine import snapshot
from pomology.measure.estimate import estimate
from pomology.report.table import INTERVALS, Row, Table, value_text
from pomology.results import cases, metrics
from pomology.results.frame import of_records
from pomology.results.pool import pool
from pomology.results.record import Record

if TYPE_CHECKING:
    import pandas

UNKNOWN = "How much two runs of the same thing differ was not measured (instrument_check does)."


def same_twice(records: Sequence[Record]) -> str:
    """Return how much two runs of the same thing differ here."""
    checks = [record for record in records if record.config.get("check") == "same thing twice"]
    parts = []
    for case in pool(of_records(record for record in checks if record.profile != "smoke")):
        difference = case.values.get("between_process_difference")
        if difference:
            percent = significant(100 * difference.value, 2)
            parts.append(f"{percent} % ({case.first['backend']})")
    if not parts:
        return UNKNOWN
    return (
        f"Nine of ten pairs of runs of the same thing differ here by less than {', '.join(parts)}."
    )


def machine_table(machine: dict, devices: Sequence[Any], place: str) -> Table:
    """Return what machine.json says, and where the numbers are, for the top of a notebook."""
    pairs = {
        "Machine": snapshot.describe(machine),
        "Software": software(machine),
        "Power source": machine.get("power_source"),
        "Devices timed": ", ".join(f"{each.backend} ({each.name})" for each in devices),
        "Numbers": place,
    }
    rows = [Row((name, text)) for name, text in pairs.items() if text]
    return Table("This machine", ("", ""), tuple(rows))


def software(machine: dict) -> str:
    """Return the kit's commits, Pythons and frameworks that a run's cases had, in one line."""
    texts = []
    for state in (machine.get("software") or {"": machine}).values():
        git = state.get("git") or {}
        changed = ", with changes" if git.get("dirty") else ""
        packages = state.get("packages") or {}
        frameworks = [f"{name} {packages[name]}" for name in cases.FRAMEWORKS if name in packages]
        parts = [f"commit {git.get('commit', 'not known')[:10]}{changed}"]
        texts.append(", ".join([*parts, f"Python {state.get('python')}", *frameworks]))
    return "; ".join(dict.fromkeys(texts))


def published_table(title: str, values: Sequence[dict]) -> Table:
    """Return published values as they are printed, a row each."""
    settings = list(dict.fromkeys(key for value in values for key in value["config"]))
    lines = []
    for value in values:
        what = metrics.words(metrics.metric(value["metric"]).heading)
        cells = [value["item"], value["device"]]
        cells += [str(value["config"].get(key, "")) for key in settings]
        lines.append(([*cells, what, value["printed"], value["note"]], {}))
    columns = ("Part of the article", "Device", *map(metrics.words, settings))
    return Table.of(title, (*columns, "What", "As printed", "Note"), lines)


def details_table(frame: pandas.DataFrame) -> Table:
    """Return every number of these cases: a row for each metric, a column for each repeat."""
    lines = []
    repeats = {repeat: f"Repeat {repeat + 1}" for repeat in sorted(frame["repeat"].unique())}
    for case in pool(frame):
        numbers = {repeat: dict(values) for repeat, values in case.good.items()}
        for values in numbers.values():
            flops, step = case.first["flops_per_step"], values.get("step_s")
            if flops and step:
                values.setdefault("flops_per_s", estimate(flops, "FLOP") / step)
        for name in dict.fromkeys(name for values in numbers.values() for name in values):
            found = {repeat: values[name] for repeat, values in numbers.items() if name in values}
            texts = {"Device": case.first["device"], "Case": cases.config_text(case.config)}
            texts["Number"] = metrics.words(metrics.metric(name).heading)
            row = {"case": case.first["case"], "metric": name}
            for repeat, value in found.items():
                texts[repeats[repeat]] = value_text(name, value)
                row |= {"unit": value.unit, f"repeat_{repeat + 1}": value.value}
            lines.append((texts, row))
    columns = ("Device", "Case", "Number", *repeats.values())
    return Table.of("What else was measured", columns, lines, [INTERVALS])
