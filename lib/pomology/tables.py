"""An article's table with this machine in it: rows of text for people, and the same as numbers for a file.

A measured cell carries what it needs to be believed: its interval, whether the epoch ran whole or was estimated from
how many steps, and any flags. A case that did not end well shows its status instead, as the articles do.
"""

from __future__ import annotations

import csv
import html
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pomology import published, statistics, write_whole

FLAGS = {
    "contended": "other programs used the processor meanwhile",
    "drift": "steps became slower or faster by over 10 % from the first third to the last",
    "few-steps": "fewer than 20 steady steps: its interval is a rough one",
    "on-battery": "on battery",
    "low-power": "in low-power mode",
    "busy": "other programs were using the processor before it began",
    "fallback-enabled": "operators that MPS lacks may have run on the CPU",
}


@dataclass(frozen=True)
class Layout:
    """How an article prints an experiment: its title, and the headings of the settings that tell rows apart."""

    title: str
    settings: dict[str, str]


LAYOUTS = {
    "dcgan": Layout("Experiment 1: DCGAN on LSUN classrooms, 64 × 64 pixels", {"batch_size": "Batch size"}),
    "siamese": Layout("Experiment 2: Siamese network on MNIST", {"batch_size": "Batch size"}),
    "transformer_lm": Layout(
        "Experiment 3: Transformer language model on WikiText-2",
        {"batch_size": "Batch size", "embedding_size": "Embedding", "layers": "Layers", "hidden_size": "Hidden"},
    ),
    "vae": Layout("Experiment 4: variational autoencoder on MNIST", {"batch_size": "Batch size"}),
}


@dataclass(frozen=True)
class Row:
    """One line of a table; `kind` is `published`, `measured` or `plain`."""

    cells: tuple[str, ...]
    kind: str = "plain"


@dataclass(frozen=True)
class Table:
    """A table for people, which a notebook shows as HTML and a terminal as text. `data` holds it as numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    data: tuple[dict, ...] = field(default=(), repr=False)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(column)}</th>" for column in self.columns)
        lines = []
        for row in self.rows:
            style = ' style="font-weight:600;background:rgba(213,94,0,.10)"' if row.kind == "measured" else ""
            cells = "".join(f'<td style="text-align:left">{html.escape(cell)}</td>' for cell in row.cells)
            lines.append(f'<tr class="{row.kind}"{style}>{cells}</tr>')
        notes = "".join(f'<p style="margin:.2em 0;font-size:90%">{html.escape(note)}</p>' for note in self.notes)
        return (
            f'<div class="pomology-table"><p style="font-weight:600">{html.escape(self.title)}</p>'
            f'<div style="overflow-x:auto"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{''.join(lines)}</tbody></table></div>{notes}</div>"
        )

    def __str__(self) -> str:
        grid = [self.columns, *(row.cells for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
        grid.insert(1, tuple("-" * width for width in widths))
        lines = [self.title, ""]
        lines += ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in grid]
        return "\n".join([*lines, *self.notes])

    __repr__ = __str__


def save(table: Table, path: Path) -> None:
    """Write a table's numbers as CSV, whole or not at all."""
    columns = list(dict.fromkeys(key for row in table.data for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows(table.data)
    write_whole(path, text.getvalue())


# Numbers as people read them ------------------------------------------------------------------------------------------


def significant(value: float, digits: int = 3) -> str:
    """Three significant digits, thousands separated, never as a power of ten."""
    if value == 0:
        return "0"
    # Rounded first: 9.999 becomes 10.0, which has its first digit elsewhere.
    rounded = float(f"{value:.{digits - 1}e}")
    places = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:,.{places}f}"


def seconds(value: float) -> str:
    """`4.31 s`, `12.0 ms`, `1,584 s`: seconds down to a tenth of one."""
    for factor, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= 0.1 * factor or unit == "µs":
            return f"{significant(value / factor, 4 if value >= 1000 else 3)} {unit}"
    raise AssertionError


def spread(metric: dict) -> str:
    """` ± 2.1 %`: half the width of the interval over the value; nothing where there is no interval."""
    if metric["low"] is None or not metric["value"]:
        return ""
    share = 100 * (metric["high"] - metric["low"]) / 2 / metric["value"]
    return f" ± {significant(max(share, 0.1), 2 if share >= 1 else 1)} %"


def clock_time(value: float) -> str:
    """`40 s`, `1:30 min`, `2:05:00 h`."""
    minutes, rest = divmod(int(value + 0.5), 60)
    if minutes == 0:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} h" if hours else f"{minutes}:{rest:02} min"


def gigabytes(value: float) -> str:
    return f"{significant(value / 1e9)} GB"


def settings(record: dict) -> str:
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in record["config"].items())


def chip_name(record: dict) -> str:
    """`AMD EPYC 7B13 CPU`: the processor or GPU without its maker's ornaments, and which of the two trained."""
    name = record["chip"] or "this machine"
    for ornament in ("(R)", "(TM)", "(tm)", " Processor", " CPU", "NVIDIA ", "GeForce "):
        name = name.replace(ornament, "")
    name = name.split(" @ ")[0].strip()
    kind = {"cpu": "CPU", "cuda": "CUDA"}.get(record["backend"], "GPU")
    return f"{name} {kind}"


def line(record: dict) -> str:
    """A finished case in one line."""
    parts = [f"{record['experiment']}: {record['backend']}, {settings(record)}" if record["config"] else record["case"]]
    metrics = record["metrics"]
    if record["status"] != "ok":
        parts.append(f"{record['status']}" + (f" ({record['reason']})" if record["reason"] else ""))
    elif "epoch_s" in metrics:
        parts.append(
            f"epoch {seconds(metrics['epoch_s']['value'])}{spread(metrics['epoch_s'])} {metrics['epoch_s']['how']}"
        )
    if "loss_first" in metrics and "loss_last" in metrics:
        parts.append(f"loss {metrics['loss_first']['value']:.4g} → {metrics['loss_last']['value']:.4g}")
    if record["flags"]:
        parts.append(", ".join(record["flags"]))
    if record["seconds"] is not None:
        parts.append(f"took {clock_time(record['seconds'])}")
    return " · ".join(parts)


# Tables ---------------------------------------------------------------------------------------------------------------


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


def comparable(records: Iterable[dict]) -> list[dict]:
    """The records whose seconds may stand beside published ones: the article's own model and shapes."""
    return [record for record in records if record["profile"] != "smoke" and not record["scaled"]]


def groups(records: Iterable[dict]) -> list[list[dict]]:
    """Repeats of the same case together, in order of first appearance."""
    found: dict[str, list[dict]] = {}
    for record in records:
        found.setdefault(record["case"], []).append(record)
    return list(found.values())


def combined(repeats: list[dict], name: str) -> dict | None:
    """A metric of a case: of its only run, or the geometric mean of several with the interval between them.

    Only runs with status `ok` count. None if there is none, or none has the metric. Where a value is 0 or less (as of
    swap, which may shrink), the mean is the arithmetic one.
    """
    found = [record["metrics"][name] for record in repeats if record["status"] == "ok" and name in record["metrics"]]
    if len(found) < 2:
        return found[0] if found else None
    ratios = all(metric["value"] > 0 for metric in found)
    values = [math.log(metric["value"]) if ratios else metric["value"] for metric in found]
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    half = statistics.t_quantile(0.95, len(values) - 1) * deviation / math.sqrt(len(values))
    low, value, high = (math.exp(x) if ratios else x for x in (mean - half, mean, mean + half))
    how = "measured" if all(metric["how"] == "measured" for metric in found) else "estimated"
    form = {"unit": found[0]["unit"], "n": len(found), "how": how, "repeats": True}
    return {"value": value, "low": low, "high": high, **form}


COLUMNS = ("Time per epoch", "of it computing", "Temperature", "Memory", "Power", "How")


def article_table(experiment: str, records: list[dict]) -> Table:
    """Published rows as printed, in the article's order, then this machine's.

    `records` are the finished cases of one experiment. Of several repeats the geometric mean is shown. Cases of the
    profile `smoke`, and those of a smaller model than the article's, are left out.
    """
    smoke = any(record["profile"] == "smoke" for record in records)
    scaled = any(record["scaled"] for record in records)
    records = comparable(records)
    layout = LAYOUTS[experiment]
    rows, data = [], []
    for printed in _published_rows(experiment):
        cells = [printed["device"], *(str(printed["config"].get(key, "")) for key in layout.settings)]
        shown = printed["printed"]
        cells += [shown.get("epoch_s", ""), "", *(shown.get(key, "") for key in COLUMN_METRICS), "published"]
        rows.append(Row(tuple(cells), "published"))
        data.append({"source": "published", "device": printed["device"], **printed["config"], **printed["si"]})
        data[-1]["status"] = printed["status"]
    flags: set[str] = set()
    origins = dict.fromkeys(record["data_origin"] for record in records if record.get("data_origin"))
    notes = [f"Data: {origin}." for origin in origins]
    several = 0
    for repeats in groups(records):
        first = repeats[0]
        cells = [chip_name(first), *(str(first["config"].get(key, "")) for key in layout.settings)]
        cells += _measured_cells(repeats)
        rows.append(Row(tuple(cells), "measured"))
        data.append(_numbers(repeats))
        flags |= {flag for record in repeats for flag in record["flags"]}
        several = max(several, len(_good(repeats)))
        notes += dict.fromkeys(
            f"{chip_name(first)}, {settings(first)}: {record['status']}: {record['reason']}."
            for record in repeats
            if record["status"] != "ok" and record["reason"]
        )
    if records:
        notes.append(
            f"± is the 95 % interval between {several} repeats, each in a process of its own."
            if several > 1
            else "± is the 95 % interval within this run; another run may differ by more (REPEATS=5 tells by how much)."
        )
        notes.append(
            "“Of it computing” is an epoch of the same loop on batches that are on the device already. Memory is the "
            "whole process on a CPU, and what the framework reserved on a GPU; the article does not say which."
        )
    if smoke:
        notes.append("This was a smoke test, with tiny shapes: its numbers do not stand beside the article's.")
    if scaled:
        notes.append("Where a smaller model ran than the article's, only its FLOP/s can be compared: see the details.")
    notes += [f"{flag}: {FLAGS.get(flag, flag)}." for flag in sorted(flags)]
    columns = ("Chip", *layout.settings.values(), *COLUMNS)
    return Table(layout.title, columns, tuple(rows), tuple(notes), tuple(data))


COLUMN_METRICS = ("temperature_c", "footprint_peak_bytes", "power_w")


def _published_rows(experiment: str) -> list[dict]:
    """The article's table, a dict a row: device, config, printed and SI values by metric, status of the time."""
    rows: dict[tuple, dict] = {}
    for value in published.values(experiment=experiment).to_dict("records"):
        key = (value["item"], value["row"])
        row = rows.setdefault(
            key, {"device": value["device"], "config": value["config"], "printed": {}, "si": {}, "status": "ok"}
        )
        row["printed"][value["metric"]] = value["printed"]
        if value["si"] is not None:
            row["si"][value["metric"]] = value["si"]
        if value["metric"] == "epoch_s":
            row["status"] = value["status"]
    return [row for row in rows.values() if "epoch_s" in row["printed"]]


def _good(repeats: list[dict]) -> list[dict]:
    return [record for record in repeats if record["status"] == "ok"]


def _measured_cells(repeats: list[dict]) -> list[str]:
    epoch, compute = combined(repeats, "epoch_s"), combined(repeats, "compute_epoch_s")
    if epoch is None:
        return [repeats[-1]["status"], "", "", "", "", ", ".join([repeats[-1]["data"], *repeats[-1]["flags"]])]
    temperature, power = combined(repeats, "temperature_c"), combined(repeats, "power_w")
    memory = combined(repeats, "reserved_peak_bytes") or combined(repeats, "footprint_peak_bytes")
    good = _good(repeats)
    training = good[0].get("blocks", {}).get("training", {})
    steps = sum(count for count, _ in training.get("steady", []))
    how = epoch["how"] if epoch["how"] == "measured" else f"estimated from {steps} steps"
    flags = sorted({flag for record in repeats for flag in record["flags"]})
    others = dict.fromkeys(record["status"] for record in repeats if record["status"] != "ok")
    count = f"{len(good)} of {len(repeats)} repeats ({', '.join(others)})" if others else f"{len(repeats)} repeats"
    return [
        f"{seconds(epoch['value'])}{spread(epoch)}",
        f"{seconds(compute['value'])}{spread(compute)}" if compute else "not measured",
        f"{temperature['value']:.0f} °C" if temperature else "not told",
        gigabytes(memory["value"]) if memory else "not told",
        f"{significant(power['value'], 2)} W" if power else "not told",
        ", ".join([how, *([count] if len(repeats) > 1 else []), good[0]["data"], *flags]),
    ]


def _numbers(repeats: list[dict]) -> dict:
    first = repeats[0]
    row = {"source": "measured", "device": chip_name(first), **first["config"]}
    for name in dict.fromkeys(name for record in repeats for name in record["metrics"]):
        metric = combined(repeats, name)
        if metric:
            row |= {name: metric["value"]}
            if metric["low"] is not None:
                row |= {f"{name}_low": metric["low"], f"{name}_high": metric["high"]}
            if name in ("epoch_s", "compute_epoch_s"):
                row[f"{name}_how"] = metric["how"]
    good = _good(repeats)
    flags = sorted({flag for record in repeats for flag in record["flags"]})
    row["status"] = "ok" if good else repeats[-1]["status"]
    return row | {"repeats": len(good or repeats), "flags": " ".join(flags)}


DETAILS = {
    "First step": ("first_step_s", seconds),
    "Step": ("step_s", seconds),
    "Achieved": ("flops_per_s", lambda value: f"{significant(value / 1e9)} GFLOP/s"),
    "Page faults": ("page_faults", lambda value: f"{value:,.0f}"),
    "Page-ins": ("page_ins", lambda value: f"{value:,.0f}"),
    "Swap": ("swap_bytes", lambda value: f"{value / 1e6:+,.0f} MB" if value else "0"),
}


def details_table(experiment: str, records: list[dict]) -> Table:
    """What else was measured of each case of this machine, a row each, repeats apart."""
    rows, data = [], []
    for record in records:
        metrics = record["metrics"]
        loss = [metrics[name]["value"] for name in ("loss_first", "loss_last") if name in metrics]
        cells = [chip_name(record), settings(record), f"{record['parameters'] or 0:,}" if record["parameters"] else ""]
        cells += [show(metrics[name]["value"]) if name in metrics else "" for name, show in DETAILS.values()]
        cells.append(" → ".join(f"{value:.4g}" for value in loss))
        cells.append("" if record["foreign_load"] is None else f"{record['foreign_load']:.2f}")
        rows.append(Row(tuple(cells), "plain"))
        numbers = {name: metric["value"] for name, metric in metrics.items()}
        data.append({"case": record["case"], "repeat": record["repeat"], "status": record["status"], **numbers})
    columns = ("Chip", "Case", "Parameters", *DETAILS, "Loss", "Others' load (cores)")
    notes = ("Achieved: floating-point operations of a step over its time on ready batches.",) if records else ()
    return Table("Measured besides", columns, tuple(rows), notes, tuple(data))


def measured_lookup(records: list[dict]) -> published.Lookup:
    """A lookup for `published.test` over this machine's records: roles `cpu` and `gpu`, SI units, intervals."""

    def look(experiment: str, metric: str, role: str | None, config: dict) -> published.Value:
        if role not in ("cpu", "gpu"):
            return published.Value(None, reason=f"needs {role or 'another machine'}, which is not this machine's")
        # By the device that was asked for: what ran out of memory at once was observed nowhere.
        here = [
            record
            for record in comparable(records)
            if record["experiment"] == experiment
            and ("cpu" if record["backend"] == "cpu" else "gpu") == role
            and all(
                (record[key] if key in published.FIELDS else record["config"].get(key)) == want
                for key, want in config.items()
            )
        ]
        what = f"{experiment} on {role} with {json.dumps(config)}"
        if not here:
            kind = "GPU" if role == "gpu" else "CPU"
            return published.Value(None, reason=f"no such {kind} case of {experiment} was run here")
        if len(groups(here)) > 1:
            return published.Value(None, reason=f"{what}: {len(groups(here))} cases match; the term must say which")
        if metric == "status":
            return published.Value(here[-1]["status"])
        found = combined(here, metric)
        if found is None:
            return published.Value(None, reason=f"{what}: {metric} was not measured ({here[-1]['status']})")
        return published.Value(found["value"], found["low"], found["high"])

    return look


def claims_table(claims: Sequence[published.Claim], records: list[dict]) -> Table:
    """Each claim with two verdicts: on the article's own numbers, and on this machine's, with the numbers compared."""
    rows, data = [], []
    for claim in claims:
        theirs = published.test(claim, published.published_lookup(claim.article))
        ours = published.test(claim, measured_lookup(records))
        rows.append(Row((claim.id, claim.claim, _verdict(theirs, claim), _verdict(ours, claim))))
        verdicts = {"published": theirs.status, "here": ours.status, "reason": ours.reason}
        data.append({"id": claim.id, "claim": claim.claim, **verdicts})
    columns = ("Claim", "The article says", "On its own numbers", "On this machine")
    return Table("Claims", columns, tuple(rows), (), tuple(data))


def _verdict(verdict: published.Verdict, claim: published.Claim, most: int = 4) -> str:
    """`does not hold: 0.748 > 1 no, 3.04 > 1 yes`."""
    # Those that fail come first, then those whose intervals overlap; what lacks a number is not shown.
    known = [made for made in verdict.numbers if made.left.value is not None and made.right.value is not None]
    judged = sorted(known, key=lambda made: (made.holds is not False, made.holds is not None))
    words = {True: "yes", False: "no", None: "too close to tell"}
    shown = [f"{_side(made.left)} {made.operator} {_side(made.right)} {words[made.holds]}" for made in judged]
    parts = [", ".join(shown[:most]) + (f", and {len(shown) - most} more" if len(shown) > most else "")]
    if verdict.status == published.CANNOT_BE_TOLD and (not known or len(known) < len(verdict.numbers)):
        parts.append(f"needs {claim.needs.removeprefix('needs ')}")
    return f"{verdict.status}: {'; '.join(filter(None, parts))}"


def _side(number: published.Value) -> str:
    return number.value if isinstance(number.value, str) else significant(number.value)
