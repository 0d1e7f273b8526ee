"""Every number of a case, the machine, and how much two runs differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pomology.format import significant
from pomology.machine import snapshot
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
    texts = {
        "Machine": snapshot.describe(machine),
        "Software": software(machine),
        "Power source": machine.get("power_source"),
        "Devices timed": ", ".join(f"{each.backend} ({each.name})" for each in devices),
        "Numbers": place,
    }
    rows = [Row({"What": what, "Here": text}) for what, text in texts.items() if text]
    return Table("This machine", rows)


def software(machine: dict) -> str:
    """Return the kit's commits, Pythons and frameworks that a run's cases had, in one line."""
    texts = []
    for state in (machine.get("software") or {"": machine}).values():
        git = state.get("git") or {}
        changed = ", with changes" if git.get("dirty") else ""
        packages = state.get("packages") or {}
        frameworks = [f"{name} {packages[name]}" for name in cases.FRAMEWORKS if name in packages]
        commit = f"commit {git.get('commit', 'not known')[:10]}{changed}"
        texts.append(", ".join([commit, f"Python {state.get('python')}", *frameworks]))
    return "; ".join(dict.fromkeys(texts))


def published_table(title: str, values: Sequence[dict]) -> Table:
    """Return published values as they are printed, a row each."""
    settings = dict.fromkeys(key for value in values for key in value["config"])
    rows = []
    for value in values:
        cells = {"Part of the article": value["item"], "Device": value["device"]}
        cells |= {metrics.words(key): str(value["config"].get(key, "")) for key in settings}
        cells["What"] = metrics.words(metrics.metric(value["metric"]).heading)
        rows.append(Row(cells | {"As printed": value["printed"], "Note": value["note"]}))
    return Table(title, rows)


def details_table(frame: pandas.DataFrame) -> Table:
    """Return every number of these cases: a row for each metric, a column for each repeat."""
    repeats = {repeat: f"Repeat {repeat + 1}" for repeat in sorted(frame["repeat"].unique())}
    rows = []
    for case in pool(frame):
        for name in case.each:
            cells = {"Device": case.first["device"], "Case": cases.config_text(case.config)}
            cells["Number"] = metrics.words(metrics.metric(name).heading)
            cells |= dict.fromkeys(repeats.values(), "")
            data = {"case": case.first["case"], "metric": name}
            for repeat, values in case.good.items():
                if name in values:
                    cells[repeats[repeat]] = value_text(name, values[name])
                    data["unit"] = values[name].unit
                    data[f"repeat_{repeat + 1}"] = values[name].value
            rows.append(Row(cells, data))
    return Table("What else was measured", rows, [INTERVALS])
