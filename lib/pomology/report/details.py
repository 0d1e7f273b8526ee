"""Every number of a case, the machine, and what the kit measured of itself."""

import re
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from pomology.articles import published
from pomology.format import quantity, significant, with_interval
from pomology.report import declaration, roofline, speeds
from pomology.report.declaration import Declaration
from pomology.report.side_by_side import RATIOS
from pomology.report.table import Row, Table, flag_notes, grouped
from pomology.results import cases, metrics
from pomology.results.cases import chip_name, combined, good_of, groups, settings
from pomology.results.record import Record

BETWEEN = "between_process_difference"
TWICE = {"same_process_difference": "within a process", BETWEEN: "between two"}

# Columns where there is such a number, and not 0 in every row.
DETAILS = ("first_step_s", "step_s", "flops_per_s", "page_faults", "page_ins", "swap_bytes", "forward_s", "backward_s")
DETAILS += ("update_s", "swapped_bytes", "compressed_bytes", "cpu_busy", "gpu_busy", "max_abs_error")

NAMED = 3  # cases that a sentence names; more are counted

TRUST = {"ok": "yes", "mismatch": "no", "unsupported": "not to be had"}


def _differences(records: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Of each backend, as instrument_check has measured it, by metric."""
    known = [record for record in records if record.profile != "smoke"]  # two short runs say nothing
    repeats = [repeats for repeats in groups(known) if repeats[0].config.get("check") == "same thing twice"]
    return {here[0].backend: {name: x.value for name in TWICE if (x := combined(here, name))} for here in repeats}


def same_twice(records: Sequence[Record]) -> str:
    """The sentence about that which begins every page."""
    parts = []
    for backend, known in _differences(records).items():
        words = (f"{words} by {significant(100 * known[name], 2)} %" for name, words in TWICE.items() if name in known)
        parts.append(f"{' and '.join(words) or 'nobody knows by how much'} ({backend})")
    if not parts:
        return "How much two runs of the same thing differ here was not measured (notebook instrument_check does)."
    return f"Two runs of the same thing differ here {'; '.join(parts)}; 90 % of pairs differ by less."


def with_difference(table: Table, records: Sequence[Record]) -> Table:
    """The same table with a note, where a ± in it is smaller than what two runs of the same thing differ by."""
    halves = [float(half) for row in table.rows for cell in row.cells for half in re.findall(r"± ([\d.]+) %", cell)]
    known = [of[BETWEEN] for of in _differences(records).values() if BETWEEN in of]
    if not halves or not known or min(halves) >= 100 * max(known):
        return table
    percent = significant(100 * max(known), 2)
    note = f"A ± within one process may be smaller than this: two runs of the same thing differ here by {percent} %."
    return replace(table, meaning=(*table.meaning, note))


def trust(records: Sequence[Record]) -> str:
    """Whether the numbers of a notebook's cases may be trusted, and which of them not, and why, in a sentence."""
    timed = [good for repeats in groups(cases.comparable(records, "flops_per_s")) if (good := good_of(repeats))]
    against = [(settings(good[0]) or good[0].case, speeds.doubts(speeds.faults(good))) for good in timed]
    parts = []
    for word in ("no", "roughly"):
        texts, doubted = [], [(why, name) for name, doubts in against for why in doubts.get(word, ())]
        for of in grouped(doubted, itemgetter(0)):
            few = "; ".join(name for _, name in of) if len(of) <= NAMED else f"{len(of)} of {len(timed)} cases"
            texts.append(f"{of[0][0]} ({few if len(of) < len(timed) else 'in every case'})")
        parts += [f"{word.capitalize()}: {'; '.join(texts)}."] if texts else []
    if sound := sum(not doubts for _, doubts in against):
        others = "the other case" if sound == 1 else f"the other {sound} cases"
        parts.append(f"Yes: {others}." if parts else "Yes: nothing known casts doubt on them.")
    return " ".join(parts)


def machine_table(snapshot: dict, devices: Sequence[Any] = ()) -> Table:
    """What this machine is, for the top of a notebook."""
    packages, memory, git = snapshot.get("packages", {}), snapshot.get("memory_bytes"), snapshot.get("git")
    frameworks = [f"{name} {packages[name]}" for name in ("torch", "tensorflow", "mlx") if name in packages]
    pairs = {
        "Chip": snapshot.get("chip") or "not told",
        "Cores": f"{snapshot.get('cpu_cores') or '?'} ({snapshot.get('cpu_threads') or '?'} threads)",
        "Memory": f"{memory / 2**30:.0f} GB" if memory else "not told",
        "System": f"{snapshot.get('os')} {snapshot.get('os_version') or ''}, {snapshot.get('architecture')}",
        "Python": f"{snapshot.get('python')}, installed: {', '.join(frameworks)}",
        "Power source": snapshot.get("power_source") or "not told",
        "Devices timed": ", ".join(f"{device.backend} ({device.name})" for device in devices) or "none",
        "Kit": f"commit {commit(git)}" if git else "not a checkout",
    }
    return Table("This machine", ("", ""), tuple(map(Row, pairs.items())))


def software_table(machine: dict, records: Sequence[Record]) -> Table:
    """What the cases of a run ran with: a row for each commit, set of packages, thread count and environment; without
    rows where the run did not note that."""
    known = {name: named(of) for name, of in named(machine.get("software")).items()}
    packages = [{(key, str(version)) for key, version in named(of.get("packages")).items()} for of in known.values()]
    shared, lines = set.intersection(*packages) if packages else set(), []
    for (name, of), installed in zip(known.items(), packages, strict=True):
        count = sum(getattr(record, "software", None) == name for record in records)
        differ = " ".join(" ".join(item) for item in sorted(installed - shared)) or "the same"
        environment = " ".join(f"{key}={value}" for key, value in named(of.get("environment")).items())
        about = (commit(of.get("git")), str(of.get("python")), str(of.get("threads") or "not known"), differ)
        lines.append(((f"{count:,}", *about, environment or "none set"), {}))
    columns = ("Cases", "Commit of the kit", "Python", "Threads", "Packages that differ", "Environment")
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


def printed_table(experiment: str | Declaration) -> Table:
    """What the article prints of an experiment beside its times and ratios: layers, settings, remarks."""
    about = declaration.of(experiment)
    values = published.rows(experiment=about.experiment)
    shown = (about.metric, about.time, *RATIOS)
    times = {(value["item"], value["row"]) for value in values if value["metric"] in shown}
    return published_table("What the article prints", [v for v in values if (v["item"], v["row"]) not in times])


def published_table(title: str, values: Sequence[dict]) -> Table:
    """Published values as they are printed, a row each."""
    keys = list(dict.fromkeys(key for value in values for key in value["config"]))
    lines = [("Part of the article", "Device", *map(metrics.words, keys), "Value", "As printed", "Note")]
    for value in values:
        config = (str(value["config"].get(key, "")) for key in keys)
        number = "" if value["value"] is None else f"{value['value']:,g} {value['unit']}"
        lines.append((value["item"], value["device"], *config, number, value["printed"], value["note"]))
    columns = [column for column in zip(*lines, strict=True) if any(column[1:]) or column[0] == "Device"]
    headings, *lines = zip(*columns, strict=True)
    return Table(title, headings, tuple(map(Row, lines)))


def _numbers(record: Record) -> dict:
    """What tables show of a case: nothing if it computed wrongly, unless it is a check. The journal keeps it."""
    return {} if record.status == "mismatch" and "check" not in record.config else record.metrics


def details_table(records: list[Record], best: roofline.Ceilings | None = None) -> Table:
    """What else was measured of each case of this machine, a row each, repeats apart; with `best`, this machine's
    ceilings, also the share of them that a case reaches."""
    lines = []
    there = {name for record in records for name, number in _numbers(record).items() if number.value}
    shown = [name for name in DETAILS if name in there or name == "flops_per_s"]
    for record in records:
        rate, load = cases.achieved(record), record.foreign_load
        values = _numbers(record) | ({"flops_per_s": rate} if rate else {})
        numbers = [with_interval(values[x], metrics.show(x)) if x in values else "" for x in shown]
        cells = (chip_name(record), settings(record), f"{record.parameters:,}" if record.parameters else "")
        cells += (*numbers, cases.losses(record), "" if load is None else f"{load:.2f}")
        about = {"case": record.case, "repeat": record.repeat, "status": record.status}
        lines.append((cells, about | {name: metric.value for name, metric in values.items()}))
    headings = (metrics.metric(name).heading for name in shown)
    columns = ("Chip", "Case", "Parameters", *headings, "Loss", "Others' load (cores)")
    meaning = [
        records
        and "Achieved: operations per step over its time, on ready batches where there were any. What was 0 in every "
        "case, or not measured, has no column.",
        any("±" in cell for cells, _ in lines for cell in cells)
        and "± is the 95 % interval within this run; another run may differ by more.",
    ]
    table = Table.of("What else was measured", columns, lines, meaning=meaning)
    shares = [roofline.share(record, best) if best else None for record in records]
    return roofline.with_shares(table, "Achieved", shares)


def checks_table(records: list[Record]) -> Table:
    """What the kit found out about itself on this machine: a row each check and device, in plain words;
    of several repeats the first that did not end well."""
    lines = []
    for repeats in groups(records):
        record = next((record for record in repeats if record.status != "ok"), repeats[0])
        status, name = record.status, str(record.config.get("check", record.case))
        found = (record.note if status == "ok" else record.reason) or ""
        noisy = status == "ok" and any("too-noisy" in other.flags for other in repeats)
        trust = "cannot be told" if noisy else TRUST.get(status, f"not known: {status}")
        if len(repeats) > 1:
            trust += f" ({sum(other.status == status for other in repeats)} of {len(repeats)} repeats)"
        flags = f" ({', '.join(record.flags)})" if record.flags else ""
        cells = (name[:1].upper() + name[1:], record.backend, trust, f"{found}{flags}")
        about = {"check": name, "device": record.backend, "status": status, "found": found}
        lines.append((cells, about | {name: metric.value for name, metric in record.metrics.items()}))
    columns = ("What", "Device", "May it be trusted?", "Why")
    return Table.of("What may be trusted on this machine", columns, lines, flag_notes(records))


def numbers_table(records: list[Record]) -> Table:
    """Every number of these cases, a row each, with its 95 % interval within this run where it has one."""
    lines = []
    for record in records:
        case = f"{settings(record) or record.case}, {record.backend}"
        for name, metric in _numbers(record).items():
            bounds = () if metric.low is None else (metric.low, metric.high)
            between = " to ".join(quantity(bound, metric.unit) for bound in bounds)
            ending = {"s": "_s", "B": "_bytes", "W": "_w", "J": "_j"}.get(metric.unit, "")
            words = name.removesuffix(ending).replace("_", " ")
            cells = (case, words, quantity(metric.value, metric.unit), between, f"{metric.n:,}" if metric.n else "")
            lines.append((cells, {"case": record.case, "metric": name, **metric.metric()}))
    return Table.of("Numbers", ("Case", "Number", "Value", "95 % interval", "From so many"), lines)
