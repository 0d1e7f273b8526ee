"""Every number of a case, the machine, and what the kit measured of itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pomology.articles import published
from pomology.format import plus_minus, quantity
from pomology.report import declaration, roofline
from pomology.report.declaration import Declaration
from pomology.report.roofline import _with_shares
from pomology.report.side_by_side import RATIOS
from pomology.report.table import Row, Table
from pomology.results import metrics
from pomology.results.cases import FLAGS, chip_name, groups, settings


def machine_table(snapshot: dict, devices: Sequence[Any] = ()) -> Table:
    """What this machine is, for the top of a notebook."""
    packages = snapshot.get("packages", {})
    frameworks = [f"{name} {packages[name]}" for name in ("torch", "tensorflow", "mlx") if name in packages]
    memory = snapshot.get("memory_bytes")
    git = snapshot.get("git")
    pairs = [
        ("Chip", snapshot.get("chip") or "not told"),
        ("Cores", f"{snapshot.get('cpu_cores') or '?'} ({snapshot.get('cpu_threads') or '?'} threads)"),
        ("Memory", f"{memory / 2**30:.0f} GB" if memory else "not told"),
        ("System", f"{snapshot.get('os')} {snapshot.get('os_version') or ''}, {snapshot.get('architecture')}"),
        ("Python", f"{snapshot.get('python')}, installed: {', '.join(frameworks)}"),
        ("Power source", snapshot.get("power_source") or "not told"),
        ("Devices timed", ", ".join(f"{device.backend} ({device.name})" for device in devices) or "none"),
        ("Kit", f"commit {git['commit'][:10]}{', with changes' if git['dirty'] else ''}" if git else "not a checkout"),
    ]
    return Table("This machine", ("", ""), tuple(Row(pair) for pair in pairs))


def printed_table(experiment: str | Declaration) -> Table:
    """What the article prints of an experiment beside its times and ratios: layers, settings, remarks."""
    about = declaration.of(experiment)
    values = published.rows(experiment=about.experiment)
    times = {
        (value["item"], value["row"]) for value in values if value["metric"] in (about.metric, about.time, *RATIOS)
    }
    rest = [value for value in values if (value["item"], value["row"]) not in times]
    keys = list(dict.fromkeys(key for value in rest for key in value["config"]))
    rows = []
    for value in rest:
        config = [str(value["config"].get(key, "")) for key in keys]
        number = "" if value["value"] is None else f"{value['value']:,g} {value['unit']}"
        rows.append(Row((value["item"], value["device"], *config, number, value["printed"], value["note"])))
    named = [metrics.words(key) for key in keys]
    columns = ("Part of the article", "Device", *named, "Value", "As printed", "Note")
    used = [place for place in range(len(columns)) if any(row.cells[place] for row in rows) or place in (1,)]
    rows = [Row(tuple(row.cells[place] for place in used)) for row in rows]
    return Table("What the article prints", tuple(columns[place] for place in used), tuple(rows))


DETAILS = ("first_step_s", "step_s", "flops_per_s", "page_faults", "page_ins", "swap_bytes")

# Columns only where there is such a number.
MORE_DETAILS = (
    "forward_s",
    "backward_s",
    "update_s",
    "swapped_bytes",
    "compressed_bytes",
    "cpu_busy",
    "gpu_busy",
    "max_abs_error",
)


def details_table(records: list[dict], best: roofline.Ceilings | None = None) -> Table:
    """What else was measured of each case of this machine, a row each, repeats apart; with `best`, this machine's
    ceilings, also the share of them that a case reaches."""
    rows, data = [], []
    there = {name for record in records for name in record.metrics}
    shown = [*DETAILS, *(name for name in MORE_DETAILS if name in there)]
    for record in records:
        values = record.metrics
        loss = [values[name].value for name in ("loss_first", "loss_last") if name in values]
        cells = [chip_name(record), settings(record), f"{record.parameters or 0:,}" if record.parameters else ""]
        cells += [
            f"{metrics.show(name)(values[name].value)}{plus_minus(values[name])}" if name in values else ""
            for name in shown
        ]
        cells.append(" → ".join(f"{value:.4g}" for value in loss))
        cells.append("" if record.foreign_load is None else f"{record.foreign_load:.2f}")
        rows.append(Row(tuple(cells), "plain"))
        numbers = {name: metric.value for name, metric in values.items()}
        data.append({"case": record.case, "repeat": record.repeat, "status": record.status, **numbers})
    columns = (
        "Chip",
        "Case",
        "Parameters",
        *(metrics.metric(name).heading for name in shown),
        "Loss",
        "Others' load (cores)",
    )
    notes = ("Achieved: operations of a step over its time, on ready batches where there were any.",) if records else ()
    if any("±" in cell for row in rows for cell in row.cells):
        notes += ("± is the 95 % interval within this run; another run may differ by more.",)
    table = Table("Measured besides", columns, tuple(rows), notes, tuple(data))
    return _with_shares(table, "Achieved", [roofline.share(record, best) for record in records]) if best else table


TRUST = {"ok": "yes", "mismatch": "no", "unsupported": "not to be had"}


def checks_table(records: list[dict]) -> Table:
    """What the kit found out about itself on this machine: a row each check and device, in plain words.

    Of several repeats the first that did not end well is shown.
    """
    rows, data = [], []
    for repeats in groups(records):
        record = next((record for record in repeats if record.status != "ok"), repeats[0])
        status, name = record.status, str(record.config.get("check", record.case))
        found = record.note if status == "ok" else record.reason
        trust = TRUST.get(status, f"not known: {status}")
        if status == "ok" and "too-noisy" in record.flags:
            trust = "cannot be told"
        if len(repeats) > 1:
            trust += f" ({sum(r.status == status for r in repeats)} of {len(repeats)} repeats)"
        flags = f" ({', '.join(record.flags)})" if record.flags else ""
        rows.append(Row((name[:1].upper() + name[1:], record.backend, trust, f"{found or ''}{flags}")))
        numbers = {name: metric.value for name, metric in record.metrics.items()}
        data.append({"check": name, "device": record.backend, "status": status, "found": found or "", **numbers})
    notes = [f"{flag}: {FLAGS.get(flag, flag)}." for flag in sorted({f for record in records for f in record.flags})]
    columns = ("What", "Device", "May it be trusted?", "Why")
    return Table("What may be trusted on this machine", columns, tuple(rows), tuple(notes), tuple(data))


def numbers_table(records: list[dict]) -> Table:
    """Every number of these cases, a row each, with its 95 % interval within this run where it has one."""
    rows, data = [], []
    for record in records:
        for name, metric in record.metrics.items():
            bounds = [metric.low, metric.high]
            between = " to ".join(quantity(bound, metric.unit) for bound in bounds) if None not in bounds else ""
            case = f"{settings(record) or record.case}, {record.backend}"
            value = quantity(metric.value, metric.unit)
            ending = {"s": "_s", "B": "_bytes", "W": "_w", "J": "_j"}.get(metric.unit, "")
            words = name.removesuffix(ending).replace("_", " ")
            rows.append(Row((case, words, value, between, f"{metric.n:,}" if metric.n else "")))
            data.append({"case": record.case, "metric": name, **metric.metric()})
    columns = ("Case", "Number", "Value", "95 % interval", "From so many")
    return Table("Numbers", columns, tuple(rows), (), tuple(data))
