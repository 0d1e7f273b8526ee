"""Every number of a case, the machine, and what the kit measured of itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pomology.articles import published
from pomology.format import quantity, significant, with_interval
from pomology.measure.estimate import Estimate
from pomology.report import peaks
from pomology.report.declaration import Declaration
from pomology.report.table import Row, Table, notes_of_flags
from pomology.results import cases, metrics
from pomology.results.cases import groups, together
from pomology.results.pool import counted_rate, estimates, repeats
from pomology.results.record import Record

if TYPE_CHECKING:
    import pandas

BETWEEN = "between_process_difference"
TWICE = {"same_process_difference": "within a process", BETWEEN: "between two"}

# Columns where there is such a number, and not 0 in every row.
DETAILS = (
    "first_step_s",
    "step_s",
    "flops_per_s",
    "page_faults",
    "page_ins",
    "swap_bytes",
    "forward_s",
    "backward_s",
)
DETAILS += (
    "update_s",
    "swapped_bytes",
    "compressed_bytes",
    "cpu_busy",
    "gpu_busy",
    "max_abs_error",
)

# How a published ratio is shown.
RATIOS = {"speedup": "{:g}×", "slowdown": "{:g}× slower", "faster_percent": "{:g} % faster"}

TRUST = {"ok": "yes", "mismatch": "no", "unsupported": "not to be had"}


def _differences(records: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Of each backend, as instrument_check has measured it, by metric."""
    differences = {}
    for case in groups(
        record for record in records if record.profile != "smoke"
    ):  # two short runs say nothing
        if case[0].config.get("check") != "same thing twice":
            continue
        good = [record.metrics for record in case if record.status == "ok"]
        values = {
            name: together([found[name] for found in good if name in found]) for name in TWICE
        }
        differences[case[0].backend] = {
            name: value.value for name, value in values.items() if value
        }
    return differences


def same_twice(records: Sequence[Record]) -> str:
    """The sentence about that which begins every page."""
    parts = []
    for backend, known in _differences(records).items():
        words = (
            f"{words} by {significant(100 * known[name], 2)} %"
            for name, words in TWICE.items()
            if name in known
        )
        parts.append(f"{' and '.join(words) or 'nobody knows by how much'} ({backend})")
    if not parts:
        return "How much two runs of the same thing differ here was not measured (notebook instrument_check does)."
    return (
        f"Two runs of the same thing differ here {'; '.join(parts)}; 90 % of pairs differ by less."
    )


def with_difference(table: Table, records: Sequence[Record]) -> Table:
    """The same table with a note, where a ± in it is smaller than what two runs of the same thing differ by."""
    halves = [
        float(half)
        for row in table.rows
        for cell in row.cells
        for half in re.findall(r"± ([\d.]+) %", cell)
    ]
    if not halves:
        return table
    known = [of[BETWEEN] for of in _differences(records).values() if BETWEEN in of]
    if not known or min(halves) >= 100 * max(known):
        return table
    percent = significant(100 * max(known), 2)
    note = f"A ± within one process may be smaller than this: two runs of the same thing differ here by {percent} %."
    return replace(table, meaning=(*table.meaning, note))


def machine_table(snapshot: dict, devices: Sequence[Any] = ()) -> Table:
    """What this machine is, for the top of a notebook."""
    packages, memory, git = (
        snapshot.get("packages", {}),
        snapshot.get("memory_bytes"),
        snapshot.get("git"),
    )
    frameworks = [
        f"{name} {packages[name]}" for name in ("torch", "tensorflow", "mlx") if name in packages
    ]
    pairs = {
        "Chip": snapshot.get("chip") or "not told",
        "Cores": f"{snapshot.get('cpu_cores') or '?'} ({snapshot.get('cpu_threads') or '?'} threads)",
        "Memory": f"{memory / 2**30:.0f} GB" if memory else "not told",
        "System": f"{snapshot.get('os')} {snapshot.get('os_version') or ''}, {snapshot.get('architecture')}",
        "Python": f"{snapshot.get('python')}, installed: {', '.join(frameworks)}",
        "Power source": snapshot.get("power_source") or "not told",
        "Devices timed": ", ".join(f"{device.backend} ({device.name})" for device in devices)
        or "none",
        "Kit": f"commit {commit(git)}" if git else "not a checkout",
    }
    return Table("This machine", ("", ""), tuple(map(Row, pairs.items())))


def software_table(machine: dict, records: Sequence[Record]) -> Table:
    """What the cases of a run ran with: a row for each commit, set of packages, thread count and environment; without
    rows where the run did not note that."""
    known = {name: named(of) for name, of in named(machine.get("software")).items()}
    packages = [
        {(key, str(version)) for key, version in named(of.get("packages")).items()}
        for of in known.values()
    ]
    shared = set.intersection(*packages) if packages else set()
    lines = []
    for (name, of), installed in zip(known.items(), packages, strict=True):
        count = sum(record.software == name for record in records)
        cells = [
            f"{count:,}",
            commit(of.get("git")),
            str(of.get("python")),
            str(of.get("threads") or "not known"),
        ]
        cells.append(" ".join(" ".join(item) for item in sorted(installed - shared)) or "the same")
        environment = named(of.get("environment"))
        cells.append(" ".join(f"{key}={value}" for key, value in environment.items()) or "none set")
        lines.append((cells, {}))
    columns = (
        "Cases",
        "Commit of the kit",
        "Python",
        "Threads",
        "Packages that differ",
        "Environment",
    )
    same = ", ".join(" ".join(item) for item in sorted(shared))
    return Table.of("", columns, lines, [same and f"Packages of all: {same}."])


def commit(git: Any) -> str:
    """`1f84e50dd2, with changes`: of what git said."""
    known = named(git)
    changed = ", with changes" if known.get("dirty") else ""
    return f"{str(known['commit'])[:10]}{changed}" if "commit" in known else "not known"


def named(known: Any) -> dict:
    """What somebody's file may hold in place of names and values."""
    return known if isinstance(known, dict) else {}


def printed_table(about: Declaration) -> Table:
    """What the article prints of an experiment beside its times and ratios: layers, settings, remarks."""
    values = published.rows(experiment=about.experiment)
    shown = (about.metric, about.time, *RATIOS)
    times = {(value["item"], value["row"]) for value in values if value["metric"] in shown}
    return published_table(
        "What the article prints", [v for v in values if (v["item"], v["row"]) not in times]
    )


def published_table(title: str, values: Sequence[dict]) -> Table:
    """Published values as they are printed, a row each."""
    keys = list(dict.fromkeys(key for value in values for key in value["config"]))
    lines = [
        ("Part of the article", "Device", *map(metrics.words, keys), "Value", "As printed", "Note")
    ]
    for value in values:
        config = (str(value["config"].get(key, "")) for key in keys)
        number = "" if value["value"] is None else f"{value['value']:,g} {value['unit']}"
        lines.append(
            (value["item"], value["device"], *config, number, value["printed"], value["note"])
        )
    columns = [
        column for column in zip(*lines, strict=True) if any(column[1:]) or column[0] == "Device"
    ]
    headings, *lines = zip(*columns, strict=True)
    return Table(title, headings, tuple(map(Row, lines)))


def _shown(rows: list[dict]) -> dict[str, Estimate]:
    """Return the values of a repeat that tables show: none if it computed wrongly, unless it is a check."""
    wrong = rows[0]["status"] == "mismatch" and "check" not in rows[0]["config"]
    return {} if wrong else estimates(rows)


def details_table(frame: pandas.DataFrame, best: peaks.Peaks | None = None) -> Table:
    """Return what else was measured of each case, a row for each repeat.

    best: this machine's measured peaks, of which each case reaches a share.
    """
    cases_here = [(rows[0], _shown(rows)) for rows in repeats(frame)]
    present = {name for _, values in cases_here for name, number in values.items() if number.value}
    columns = [name for name in DETAILS if name in present or name == "flops_per_s"]
    lines = []
    shares = []
    for first, values in cases_here:
        rate = _achieved(first, values)
        share = None
        if rate:
            values = values | {"flops_per_s": rate}
            if best and first["profile"] != "smoke":
                share = best.share(rate, cases.kind_of(first["backend"]), first["precision"])
        shares.append(share)
        cells = [first["device"], cases.config_text(first["config"])]
        cells.append(f"{first['parameters']:,}" if first["parameters"] else "")
        cells += [
            with_interval(values[name], metrics.show(name)) if name in values else ""
            for name in columns
        ]
        load = first["foreign_load"]
        cells += [cases.losses_text(values), "" if load is None else f"{load:.2f}"]
        numbers = {name: first[name] for name in ("case", "repeat", "status")}
        lines.append((cells, numbers | {name: value.value for name, value in values.items()}))
    headings = (metrics.metric(name).heading for name in columns)
    meaning = []
    if lines:
        meaning.append(
            "Achieved: operations per step over its time, on ready batches where there were any. What was 0 in every "
            "case, or not measured, has no column."
        )
    if any("±" in cell for cells, _ in lines for cell in cells):
        meaning.append("± is the 95 % interval within this run; another run may differ by more.")
    all_columns = ("Chip", "Case", "Parameters", *headings, "Loss", "Others' load (cores)")
    table = Table.of("What else was measured", all_columns, lines, meaning=meaning)
    return peaks.with_shares(table, "Achieved", shares)


def _achieved(first: dict, values: dict[str, Estimate]) -> Estimate | None:
    """Return the operations a second of a repeat; None if it did not end well, or nobody counted them."""
    if first["status"] != "ok":
        return None
    if "flops_per_s" in values:
        return values["flops_per_s"]
    return counted_rate(first["flops_per_step"], values.get("step_s"))


def checks_table(frame: pandas.DataFrame) -> Table:
    """Return what the kit found out about itself on this machine, a row for each check and device.

    Of several repeats the first that did not end well is shown.
    """
    checks: dict[str, list[list[dict]]] = {}
    for rows in repeats(frame):
        checks.setdefault(rows[0]["case"], []).append(rows)
    lines = []
    for each in checks.values():
        rows = next((rows for rows in each if rows[0]["status"] != "ok"), each[0])
        first = rows[0]
        name = str(first["config"].get("check", first["case"]))
        found = (first["note"] if first["status"] == "ok" else first["reason"]) or ""
        noisy = any("too-noisy" in (rows[0]["flags"] or "").split() for rows in each)
        trust = TRUST.get(first["status"], f"not known: {first['status']}")
        if first["status"] == "ok" and noisy:
            trust = "cannot be told"
        if len(each) > 1:
            same = sum(rows[0]["status"] == first["status"] for rows in each)
            trust += f" ({same} of {len(each)} repeats)"
        flags = ", ".join((first["flags"] or "").split())
        cells = (
            name[:1].upper() + name[1:],
            first["backend"],
            trust,
            f"{found} ({flags})" if flags else found,
        )
        numbers = {
            "check": name,
            "device": first["backend"],
            "status": first["status"],
            "found": found,
        }
        lines.append(
            (cells, numbers | {name: value.value for name, value in estimates(rows).items()})
        )
    flags = [
        flag
        for each in checks.values()
        for rows in each
        for flag in (rows[0]["flags"] or "").split()
    ]
    columns = ("What", "Device", "May it be trusted?", "Why")
    return Table.of("What may be trusted on this machine", columns, lines, notes_of_flags(flags))


def numbers_table(frame: pandas.DataFrame) -> Table:
    """Return every number of these cases, a row each, with its 95 % interval within this run where it has one."""
    lines = []
    for rows in repeats(frame):
        first = rows[0]
        case = f"{cases.config_text(first['config']) or first['case']}, {first['backend']}"
        for name, value in _shown(rows).items():
            bounds = () if value.low is None else (value.low, value.high)
            between = " to ".join(quantity(bound, value.unit) for bound in bounds)
            ending = {"s": "_s", "B": "_bytes", "W": "_w", "J": "_j"}.get(value.unit, "")
            words = name.removesuffix(ending).replace("_", " ")
            count = f"{value.n:,}" if value.n else ""
            cells = (case, words, quantity(value.value, value.unit), between, count)
            lines.append((cells, {"case": first["case"], "metric": name, **value.metric()}))
    return Table.of("Numbers", ("Case", "Number", "Value", "95 % interval", "From so many"), lines)
