"""Every number of a case, the machine, and what the kit measured of itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pomology.format import significant
from pomology.measure.estimate import Estimate
from pomology.report import peaks
from pomology.report.article import MEANING, values_of
from pomology.report.table import INTERVALS, Row, Table, value_text
from pomology.results import cases, metrics
from pomology.results.frame import of_records
from pomology.results.pool import pool
from pomology.results.record import Record

if TYPE_CHECKING:
    import pandas

ACHIEVED = "Achieved: operations per step over its time, on ready batches where there were any."
# Of the instrument check: a metric, and what differs.
TWICE = {
    "same_process_difference": "within a process",
    "between_process_difference": "between two",
}
UNKNOWN = (
    "How much two runs of the same thing differ here was not measured (instrument_check does)."
)


def same_twice(records: Sequence[Record]) -> str:
    """Return how much two runs of the same thing differ here, which begins every page."""
    checks = [record for record in records if record.config.get("check") == "same thing twice"]
    parts = []
    for case in pool(of_records(record for record in checks if record.profile != "smoke")):
        words = [
            f"{place} by {significant(100 * case.values[name].value, 2)} %"
            for name, place in TWICE.items()
            if name in case.values
        ]
        parts.append(
            f"{' and '.join(words) or 'nobody knows by how much'} ({case.first['backend']})"
        )
    if not parts:
        return UNKNOWN
    return (
        f"Two runs of the same thing differ here {'; '.join(parts)}; 90 % of pairs differ by less."
    )


def machine_table(snapshot: dict, devices: Sequence[Any], place: str) -> Table:
    """Return what this machine is, and where its numbers are, for the top of a notebook."""
    packages = snapshot.get("packages", {})
    memory = snapshot.get("memory_bytes")
    names = [name for name in ("torch", "tensorflow", "mlx") if name in packages]
    system = ("os", "os_version", "architecture")
    pairs = {
        "Chip": snapshot.get("chip"),
        "Cores": f"{snapshot.get('cpu_cores')} ({snapshot.get('cpu_threads')} threads)",
        "Memory": memory and f"{memory / 2**30:.0f} GB",
        "System": " ".join(str(snapshot[name]) for name in system if snapshot.get(name)),
        "Python": snapshot.get("python"),
        "Frameworks": ", ".join(f"{name} {packages[name]}" for name in names),
        "Power source": snapshot.get("power_source"),
        "Devices timed": ", ".join(f"{each.backend} ({each.name})" for each in devices) or "none",
        "Kit": f"commit {commit(snapshot.get('git'))}",
        "Numbers": place,
    }
    rows = [Row((name, text or "not known")) for name, text in pairs.items()]
    return Table("This machine", ("", ""), tuple(rows))


def software_table(machine: dict, records: Sequence[Record]) -> Table:
    """Return what the cases of a run ran with, a row for each commit, set of packages, thread
    count and environment; without rows where the run did not note that.
    """
    lines = []
    for name, software in named(machine.get("software")).items():
        software = named(software)
        packages = named(software.get("packages")).items()
        environment = named(software.get("environment")).items()
        texts = {
            "Cases": f"{sum(record.software == name for record in records):,}",
            "Commit of the kit": commit(software.get("git")),
            "Python": str(software.get("python")),
            "Threads": str(software.get("threads") or "not known"),
            "Environment": " ".join(f"{key}={value}" for key, value in environment) or "none set",
            "Packages": ", ".join(f"{key} {version}" for key, version in sorted(packages)),
        }
        lines.append((texts, {}))
    return Table.of_texts("", lines)


def commit(git: Any) -> str:
    """Return `1f84e50dd2, with changes`: of what git said."""
    known = named(git)
    changed = ", with changes" if known.get("dirty") else ""
    return f"{str(known['commit'])[:10]}{changed}" if "commit" in known else "not known"


def named(known: Any) -> dict:
    """Return names and values; none where somebody's file has something else in their place."""
    return known if isinstance(known, dict) else {}


def published_table(title: str, values: Sequence[dict]) -> Table:
    """Return published values as they are printed, a row each."""
    settings = list(dict.fromkeys(key for value in values for key in value["config"]))
    lines = []
    for value in values:
        number = "" if value["value"] is None else f"{value['value']:,g} {value['unit']}"
        texts = {"Part of the article": value["item"], "Device": value["device"]}
        texts |= {metrics.words(key): str(value["config"].get(key, "")) for key in settings}
        texts |= {"Value": number, "As printed": value["printed"], "Note": value["note"]}
        lines.append((texts, {}))
    columns = ("Part of the article", "Device", *map(metrics.words, settings))
    return Table.of_texts(title, lines, (*columns, "Value", "As printed", "Note"))


def details_table(frame: pandas.DataFrame, best: peaks.Peaks | None = None) -> Table:
    """Return every number of these cases: a row for each case and metric, a column for each repeat.

    best: this machine's measured peaks, of which each case reaches a share.
    """
    lines: dict[tuple, tuple[dict, dict]] = {}
    for repeat, part in frame.groupby("repeat", sort=False):
        for case in pool(part):
            first = case.first
            values = values_of(case, best)
            for name in ("parameters", "foreign_load"):
                if first[name] is not None:
                    values[name] = Estimate(first[name])
            for name, value in values.items():
                key = (first["experiment"], first["case"], name)
                texts, row = lines.setdefault(key, ({}, {"case": first["case"], "metric": name}))
                texts["Device"] = first["device"]
                texts["Case"] = cases.config_text(case.config)
                texts["Number"] = metrics.words(metrics.metric(name).heading)
                texts[f"Repeat {repeat + 1}"] = value_text(name, value)
                row |= {"unit": value.unit, f"repeat_{repeat + 1}": value.value}
    meaning = [INTERVALS, ACHIEVED, MEANING[peaks.SHARE]] if lines else ()
    return Table.of_texts("What else was measured", lines.values(), meaning=meaning)
