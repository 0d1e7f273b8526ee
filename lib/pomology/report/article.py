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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pomology import write_whole
from pomology.articles import published
from pomology.articles.layout import KIT, LAYOUTS, Layout, experiment_of, notebooks_of
from pomology.format import (
    clock_time,
    gigabytes,
    gigaflops,
    growth,
    quantity,
    quantity_per_s,
    seconds,
    significant,
    spread,
)
from pomology.measure import intervals
from pomology.report import roofline

FLAGS = {
    "contended": "other programs used the processor meanwhile",
    "drift": "steps became slower or faster by over 10 % from the first third to the last",
    "few-steps": "fewer than 20 steady steps: its interval is a rough one",
    "on-battery": "on battery",
    "low-power": "in low-power mode",
    "busy": "other programs were using the processor before it began",
    "swapping": "memory was short: the machine moved over 1 MB a second into and out of swap, which takes time",
    "compressing": "memory was short: macOS compressed or decompressed over 10 MB a second, which takes time",
    "fallback-enabled": "operators that MPS lacks may have run on the CPU",
    "too-noisy": "its numbers scatter too much for a verdict",
}


LONG, MANY = 60, 6  # characters of a long remark, and columns of a table that leave it too little room


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
        head = "".join(f'<th style="text-align:left">{html.escape(column)}</th>' for column in self.columns)
        lines = []
        for row in self.rows:
            style = ' style="font-weight:600;background:rgba(213,94,0,.10)"' if row.kind == "measured" else ""
            lines.append(f'<tr class="{row.kind}"{style}>{self._cells(row)}</tr>')
        notes = "".join(f'<p style="margin:.2em 0;font-size:90%">{html.escape(note)}</p>' for note in self.notes)
        return (
            f'<div class="pomology-table"><p style="font-weight:600">{html.escape(self.title)}</p>'
            f'<div style="overflow-x:auto"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{''.join(lines)}</tbody></table></div>{notes}</div>"
        )

    def _cells(self, row: Row) -> str:
        """A long remark gets room: in the narrow column of a wide table its row would be as high as a page.

        That of a case without numbers begins where these would be, beside how it ended.
        """
        *cells, remark = row.cells
        empty = len(cells) - max((place for place, cell in enumerate(cells, 1) if cell), default=1)
        span = 1
        if row.kind == "measured" and len(remark) > LONG and empty > 1:
            span += empty
            cells = cells[:-empty]
        width = ";min-width:30em" if len(remark) > LONG and len(self.columns) > MANY and span == 1 else ""
        wide = f' colspan="{span}"' if span > 1 else ""
        shown = [f'<td style="text-align:left">{html.escape(cell)}</td>' for cell in cells]
        return "".join([*shown, f'<td{wide} style="text-align:left{width}">{html.escape(remark)}</td>'])

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


def _device_name(record: dict, with_framework: bool) -> str:
    name = chip_name(record)
    return f"{name}, {FRAMEWORKS.get(record['framework'], record['framework'])}" if with_framework else name


def line(record: dict) -> str:
    """A finished case in one line."""
    parts = [f"{record['experiment']}: {record['backend']}, {settings(record)}" if record["config"] else record["case"]]
    metrics = record["metrics"]
    if record["status"] != "ok":
        parts.append(f"{record['status']}" + (f" ({record['reason']})" if record["reason"] else ""))
    else:
        words = {"fit_s": "training", "pass_s": "a pass", "epoch_s": "epoch", "step_s": "step"}
        words |= {"forward_s": "forward pass", "kernel_s": "a call", "launch_s": "a launch"}
        name = next((name for name in words if name in metrics), None)
        passes = [metrics[name] for name in ("forward_s", "backward_s") if name in metrics]
        if "footprint_end_bytes" in metrics and not passes:  # what such a case is about, not its epoch
            ends = (quantity(metrics[f"footprint_{end}_bytes"]["value"], "B") for end in ("start", "end"))
            parts.append(f"footprint {' → '.join(ends)}")
        elif len(passes) == 2 and "fit_s" not in metrics:  # likewise
            shown = (f"{seconds(one['value'])}{spread(one)}" for one in passes)
            parts.append(", ".join(map(" ".join, zip(("forward", "backward"), shown, strict=True))))
        elif name is not None:
            how = f" {metrics[name]['how']}" if name in ("fit_s", "epoch_s") else ""
            parts.append(f"{words[name]} {seconds(metrics[name]['value'])}{spread(metrics[name])}{how}")
    if "loss_first" in metrics and "loss_last" in metrics:
        parts.append(f"loss {metrics['loss_first']['value']:.4g} → {metrics['loss_last']['value']:.4g}")
    if record.get("note"):
        parts.append(record["note"])
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


def comparable(records: Iterable[dict], metric: str = "") -> list[dict]:
    """The records whose seconds may stand beside published ones: the article's own model and shapes.

    Where the metric is FLOP/s, also those of smaller ones, which is what these can be compared by.
    """
    scaled_too = metric.endswith("flops_per_s")
    return [record for record in records if record["profile"] != "smoke" and (scaled_too or not record["scaled"])]


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
    half = intervals.t_quantile(0.95, len(values) - 1) * deviation / math.sqrt(len(values))
    low, value, high = (math.exp(x) if ratios else x for x in (mean - half, mean, mean + half))
    how = "measured" if all(metric["how"] == "measured" for metric in found) else "estimated"
    form = {"unit": found[0]["unit"], "n": len(found), "how": how, "repeats": True}
    return {"value": value, "low": low, "high": high, **form}


COLUMNS = ("Time per epoch", "of it computing", "Temperature", "Memory", "Power", "How")


def article_table(experiment: str, records: list[dict], best: roofline.Ceilings | None = None) -> Table:
    """Published rows as printed, in the article's order, then this machine's.

    `records` are the finished cases of one experiment. Of several repeats the geometric mean is shown. Cases of the
    profile `smoke`, and those of a smaller model than the article's, are left out. best: this machine's ceilings; a
    table that shows operations a second tells the share of them that they are.
    """
    layout = LAYOUTS[experiment]
    if layout.everything:
        return ceilings_table(records, "001")
    if layout.apart:
        return _apart_table(experiment, records, best)
    if layout.columns:
        return _metrics_table(experiment, records, best)
    smoke = any(record["profile"] == "smoke" for record in records)
    scaled = any(record["scaled"] for record in records)
    records = comparable(records)
    rows, data, told = [], [], []
    for printed in _published_rows(experiment):
        cells = [printed["device"], *(str(printed["config"].get(key, "")) for key in layout.settings)]
        shown = printed["printed"]
        about, _, more = printed["notes"].get("epoch_s", "").partition("; ")
        if more and not shown.get("epoch_s"):
            told.append(f"{printed['device']}: {about}; {more}.")
        cells += [
            shown.get("epoch_s") or about,
            "",
            *(shown.get(key, "") for key in COLUMN_METRICS),
            "published",
        ]
        rows.append(Row(tuple(cells), "published"))
        data.append({"source": "published", "device": printed["device"], **printed["config"], **printed["si"]})
        data[-1]["status"] = printed["status"]
    flags: set[str] = set()
    origins = dict.fromkeys(record["data_origin"] for record in records if record.get("data_origin"))
    notes = told + [f"Data: {origin}." for origin in origins]
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


def _metrics_table(experiment: str, records: list[dict], best: roofline.Ceilings | None = None) -> Table:
    """As `article_table`, for an experiment whose table has columns of its own and times no epoch."""
    layout = LAYOUTS[experiment]
    metrics = [name for name, _ in layout.columns.values()]
    rows, data = [], []
    for printed in _published_rows(experiment, metrics):
        cells = [printed["device"] or "the article", *(str(printed["config"].get(key, "")) for key in layout.settings)]
        # What is printed in an image only is there without a text.
        cells += [printed["printed"].get(name, "") or printed["notes"].get(name, "") for name in metrics]
        cells.append("published")
        rows.append(Row(tuple(cells), "published"))
        data.append({"source": "published", "device": printed["device"], **printed["config"], **printed["si"]})
        data[-1]["status"] = printed["status"]
    smoke = [record for record in records if record["profile"] == "smoke"]
    flags: set[str] = set()
    several, refused = len({record["framework"] for record in records}) > 1, 0
    for repeats in groups([record for record in records if record["profile"] != "smoke"]):
        first, good = repeats[0], _good(repeats)
        told = (good or repeats)[-1]
        if layout.own and first["scaled"] and repeats[-1]["status"] == "too-big":
            refused += 1
            continue
        cells = [_device_name(first, several), *(str(first["config"].get(key, "")) for key in layout.settings)]
        for name, show in layout.columns.values():
            found = combined(repeats, name)
            untold = name in COLUMN_METRICS or name.startswith(("allocated_", "reserved_", "energy_", "power_"))
            missing = "" if not good else "not told" if untold else "not measured"
            if name in RATES and any(other in told["metrics"] for other in RATES):  # a copy does no operations
                missing = ""
            cells.append(f"{show(found['value'])}{spread(found)}" if found else missing)
            if found and name.endswith(SLOPES):
                cells[-1] = growth(found)
            begun = combined(repeats, name.replace("_end_", "_start_")) if "_end_" in name else None
            if found and begun:
                cells[-1] = f"{show(begun['value'])} → {show(found['value'])}"
            if found and first["scaled"] and name in layout.own:
                cells[-1] = "see the details"
            if name == "status":
                cells[-1] = "yes" if good else repeats[-1]["status"]
        if not good and "status" not in metrics:
            cells[1 + len(layout.settings)] = repeats[-1]["status"]
        how = _how(told, layout.metric) if good else None
        said = [how, told["reason"], told.get("note"), f"{len(good)} repeats" if len(good) > 1 else None]
        said += ["scaled"] if good and told["scaled"] else []
        flags |= {flag for record in repeats for flag in record["flags"]}
        said += sorted({flag for record in repeats for flag in record["flags"]})
        rows.append(Row((*cells, "; ".join(filter(None, said))), "measured"))
        data.append(_numbers(repeats))
    notes = []
    if any("±" in cell for row in rows for cell in row.cells):
        notes.append("± is the 95 % interval within this run; another run may differ by more.")
    notes += [f"Data: {one}." for one in dict.fromkeys(r["data_origin"] for r in records if r.get("data_origin"))]
    if smoke:
        notes.append("This was a smoke test, with tiny shapes: its numbers do not stand beside the article's.")
    if any(record["scaled"] for record in records if record not in smoke):
        notes.append("scaled: smaller than in the article. What can be compared is FLOP/s, not times.")
    if len(records) > len(smoke) and any(name.endswith(SLOPES) for name in metrics):
        notes.append(
            "In brackets: the 95 % interval of a slope over the steps behind the warm-up. One that holds 0 shows "
            "neither growth nor its absence."
        )
    if refused:
        notes.append(f"Too big as well were {refused} smaller cases, not shown; where they were tried, it says why.")
    notes += [f"{flag}: {FLAGS.get(flag, flag)}." for flag in sorted(flags)]
    columns = ("Device", *layout.settings.values(), *layout.columns, "Remarks")
    table = Table(layout.title, columns, tuple(rows), tuple(notes), tuple(data))
    if best and "flops_per_s" in metrics and experiment not in roofline.CEILINGS:
        ours = groups([record for record in records if record["profile"] != "smoke"])
        ours = [one for one in ours if not (layout.own and one[0]["scaled"] and one[-1]["status"] == "too-big")]
        shares = [roofline.share(repeats[0], best, _rate(repeats)) for repeats in ours]
        heading = next(heading for heading, (name, _) in layout.columns.items() if name == "flops_per_s")
        return _with_shares(table, heading, [None] * (len(rows) - len(ours)) + shares)
    return table


def _apart_table(experiment: str, records: list[dict], best: roofline.Ceilings | None = None) -> Table:
    """As `article_table`, where the article gives each framework a column of its own: a line for a device and setting.

    Of what is scaled, only what it achieved is shown.
    """
    layout = LAYOUTS[experiment]
    rows, data, lines = [], [], {}
    for value in published.values(experiment=experiment_of(experiment)).to_dict("records"):
        if value["metric"] == layout.time:
            _, printed = lines.setdefault((value["item"], value["row"]), (value, {}))
            printed[_apart(layout, value["framework"].replace("pytorch", "torch"), value["backend"])] = value["printed"]
            about = {"source": "published", "device": value["device"], "backend": value["backend"], **value["config"]}
            data.append(about | {layout.time: value["si"], "status": value["status"]})
    for value, printed in lines.values():
        cells = [value["device"], *(str(value["config"].get(key, "")) for key in layout.settings)]
        rows.append(Row((*cells, *(printed.get(name, "") for name in layout.apart), "", "published"), "published"))
    notes, found, shown = ["Published: seconds, as printed."], {}, set()
    for repeats in groups([record for record in records if record["profile"] != "smoke"]):
        if not (repeats[0]["scaled"] and repeats[-1]["status"] == "too-big"):
            key = (chip_name(repeats[0]), json.dumps(repeats[0]["config"], sort_keys=True))
            place = _apart(layout, repeats[0]["framework"], repeats[0]["backend"])
            found.setdefault(key, {})[place] = repeats
    for (chip, _), by_place in found.items():
        first = next(iter(by_place.values()))[0]
        times, achieved = dict.fromkeys(layout.apart, ""), []
        for name, repeats in by_place.items():
            time, rate = combined(repeats, layout.time), _rate(repeats)
            times[name] = f"{seconds(time['value'])}{spread(time)}" if time else repeats[-1]["status"]
            if time and first["scaled"]:
                times[name] = "scaled"
            if rate:
                share = roofline.share(repeats[0], best, rate) if best else None
                told = f" ({_percent(share)} of the best)" if share else ""
                framework = FRAMEWORKS.get(repeats[0]["framework"], repeats[0]["framework"])
                achieved.append(f"{framework} {quantity_per_s(rate['value'], 'FLOP/s')}{spread(rate)}{told}")
            told = dict.fromkeys(one["reason"] for one in repeats if one["status"] != "ok" and one["reason"])
            notes += [f"{chip}, {settings(first)}, {name}: {repeats[-1]['status']}: {reason}." for reason in told]
            data.append(_numbers(repeats) | {"backend": repeats[0]["backend"], "framework": repeats[0]["framework"]})
        flags = sorted({flag for repeats in by_place.values() for record in repeats for flag in record["flags"]})
        shown |= set(flags)
        cells = [chip, *(str(first["config"].get(key, "")) for key in layout.settings), *times.values()]
        rows.append(Row((*cells, "; ".join(achieved), ", ".join(flags)), "measured"))
    if found:
        notes.append("± is the 95 % interval within this run; another run may differ by more.")
    notes += [f"Data: {one}." for one in dict.fromkeys(r["data_origin"] for r in records if r.get("data_origin"))]
    if any(record["profile"] == "smoke" for record in records):
        notes.append("This was a smoke test, with tiny shapes: its numbers do not stand beside the article's.")
    if any("scaled" in row.cells for row in rows):
        notes.append("scaled: smaller than in the article. What can be compared is FLOP/s, not times.")
    notes += [f"{flag}: {FLAGS.get(flag, flag)}." for flag in sorted(shown)]
    columns = ("Device", *layout.settings.values(), *layout.apart, "Achieved", "Remarks")
    return Table(layout.title, columns, tuple(rows), tuple(notes), tuple(data))


def _apart(layout: Layout, framework: str, backend: str) -> str:
    """The heading under which a framework's time on a backend stands: the most exact one that fits."""
    fits = [name for name, meant in layout.apart.items() if f"{framework} {backend}".startswith(meant)]
    return max(fits, key=lambda name: len(layout.apart[name]))


def _how(record: dict, metric: str) -> str | None:
    """`estimated from 120 steps, stand-in`: how the time of an epoch or a training came about, and on which data."""
    if metric not in ("epoch_s", "fit_s") or metric not in record["metrics"]:
        return None
    steady = record.get("blocks", {}).get("training", {}).get("steady", [])
    how = record["metrics"][metric]["how"]
    return f"{how if how == 'measured' else f'estimated from {sum(n for n, _ in steady)} steps'}, {record['data']}"


RATES = ("flops_per_s", "bytes_per_s")  # of a product and of a pass over memory
SLOPES = ("_slope", "_slope_bytes")  # a slope may be 0, and then no share of it is an interval
COLUMN_METRICS = ("temperature_c", "footprint_peak_bytes", "power_w")


def _published_rows(experiment: str, metrics: Sequence[str] = ("epoch_s",)) -> list[dict]:
    """The article's table, a dict a row: device, config, printed and SI values by metric, status of the time.

    Only rows that print one of `metrics`.
    """
    rows: dict[tuple, dict] = {}
    for value in published.values(experiment=experiment_of(experiment)).to_dict("records"):
        key = (value["item"], value["row"])
        row = rows.setdefault(
            key,
            {name: value[name] for name in ("device", "config")}
            | {"status": "ok", "printed": {}, "si": {}, "notes": {}},
        )
        row["notes"][value["metric"]] = value["note"]
        row["printed"][value["metric"]] = value["printed"]
        if value["si"] is not None:
            row["si"][value["metric"]] = value["si"]
        if value["metric"] in metrics:
            row["status"] = value["status"]
    return [row for row in rows.values() if set(metrics) & set(row["printed"])]


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
            if name in ("epoch_s", "compute_epoch_s", "fit_s"):
                row[f"{name}_how"] = metric["how"]
    good = _good(repeats)
    flags = sorted({flag for record in repeats for flag in record["flags"]})
    row["status"] = "ok" if good else repeats[-1]["status"]
    return row | {"repeats": len(good or repeats), "flags": " ".join(flags)}


def ratio_table(experiment: str, records: list[dict]) -> Table:
    """How many times faster one device is than another, and the average, least and most of it.

    First what the article prints, then this machine's GPU against its CPU in the time that the article takes: for each
    setting that ran here the ratio CPU time / GPU time with its interval, or the reason why there is none.
    """
    layout = LAYOUTS[experiment]
    values = published.values(experiment=experiment_of(experiment)).to_dict("records")
    rows, data = [], []
    for value in values:
        if value["metric"] in RATIOS:
            number = value["note"] if value["value"] is None else RATIOS[value["metric"]](value["value"])
            versus = str(value["config"].get("versus", ""))
            settings = [str(value["config"].get(key, "")) for key in layout.settings]
            rows.append(Row((value["device"], versus, *settings, number, value["printed"]), "published"))
            data.append({"source": "published", "device": value["device"], **value["config"], "ratio": value["value"]})
    found = []
    ours = [record for record in records if record["profile"] != "smoke"]  # scaled alike on both devices
    for config in {json.dumps(record["config"]): record["config"] for record in ours}.values():
        ratio, reason = _ratio([record for record in ours if record["config"] == config], layout.time or layout.metric)
        settings = [str(config.get(key, "")) for key in layout.settings]
        shown = f"{significant(ratio['value'])}×{spread(ratio)}" if ratio else ""
        rows.append(Row(("GPU here", "CPU here", *settings, shown or reason, ""), "measured"))
        data.append({"source": "measured", "device": "gpu", "versus": "cpu", **config, **(ratio or {"reason": reason})})
        if ratio:
            found.append(ratio["value"])
    count = len(ours) and len({json.dumps(record["config"]) for record in ours})
    for word, reduce in (("average", lambda x: sum(x) / len(x)), ("minimum", min), ("maximum", max)):
        if count:
            note = f"of {len(found)} of {count}" if 0 < len(found) < count else ""
            shown = f"{significant(reduce(found))}×" if found else "no pair of times to compare"
            first = [word, *[""] * (len(layout.settings) - 1)]
            rows.append(Row(("GPU here", "CPU here", *first, shown, note), "measured"))
            data.append({"source": "measured", "device": word, "ratio": reduce(found) if found else None})
    notes = []
    if found:
        notes.append("± is the 95 % interval of both times within their runs, put together; see the table of times.")
    if any(record["profile"] == "smoke" for record in records):
        notes.append("This was a smoke test: its times are compared with nothing.")
    columns = ("Device", "Against", *layout.settings.values(), "Times faster", "As printed")
    return Table("How many times faster", columns, tuple(rows), tuple(notes), tuple(data))


# How a published ratio is shown.
RATIOS = {
    "speedup": lambda value: f"{value:g}×",
    "slowdown": lambda value: f"{value:g}× slower",
    "faster_percent": lambda value: f"{value:g} % faster",
}


def _ratio(records: list[dict], metric: str) -> tuple[dict | None, str]:
    """CPU time over GPU time of one setting, as value, low and high; or the reason why it cannot be told."""
    times = {}
    for kind in ("cpu", "gpu"):
        there = [record for record in records if ("cpu" if record["backend"] == "cpu" else "gpu") == kind]
        if not there:
            return None, f"no {kind.upper()} was timed here"
        if len(groups(there)) > 1:
            return None, f"{len(groups(there))} cases on the {kind.upper()} match"
        times[kind] = combined(there, metric)
        if times[kind] is None:
            return None, f"{kind.upper()}: {there[-1]['status']}"
    cpu, gpu = times["cpu"], times["gpu"]
    bounded = None not in (cpu["low"], gpu["low"]) and gpu["low"] > 0
    bounds = (cpu["low"] / gpu["high"], cpu["high"] / gpu["low"]) if bounded else (None, None)
    return {"value": cpu["value"] / gpu["value"], "low": bounds[0], "high": bounds[1]}, ""


def printed_table(experiment: str) -> Table:
    """What the article prints of an experiment beside its times and ratios: layers, settings, remarks."""
    layout = LAYOUTS[experiment]
    values = published.values(experiment=experiment_of(experiment)).to_dict("records")
    times = {
        (value["item"], value["row"]) for value in values if value["metric"] in (layout.metric, layout.time, *RATIOS)
    }
    rest = [value for value in values if (value["item"], value["row"]) not in times]
    keys = list(dict.fromkeys(key for value in rest for key in value["config"]))
    rows = []
    for value in rest:
        config = [str(value["config"].get(key, "")) for key in keys]
        number = "" if value["value"] is None else f"{value['value']:,g} {value['unit']}"
        rows.append(Row((value["item"], value["device"], *config, number, value["printed"], value["note"])))
    named = [key.replace("_", " ").capitalize() for key in keys]
    columns = ("Part of the article", "Device", *named, "Value", "As printed", "Note")
    used = [place for place in range(len(columns)) if any(row.cells[place] for row in rows) or place in (1,)]
    rows = [Row(tuple(row.cells[place] for place in used)) for row in rows]
    return Table("What the article prints", tuple(columns[place] for place in used), tuple(rows))


DETAILS = {
    "First step": ("first_step_s", seconds),
    "Step": ("step_s", seconds),
    "Achieved": ("flops_per_s", gigaflops),
    "Page faults": ("page_faults", lambda value: f"{value:,.0f}"),
    "Page-ins": ("page_ins", lambda value: f"{value:,.0f}"),
    "Swap": ("swap_bytes", lambda value: f"{value / 1e6:+,.0f} MB" if value else "0"),
}

# Columns only where there is such a number.
MORE_DETAILS = {
    "Forward": ("forward_s", seconds),
    "Backward": ("backward_s", seconds),
    "Update": ("update_s", seconds),
    "Swapped": ("swapped_bytes", lambda value: f"{value / 1e6:,.0f} MB"),
    "Compressed": ("compressed_bytes", lambda value: f"{value / 1e6:,.0f} MB"),
    "CPU busy": ("cpu_busy", lambda value: f"{value:.0f} %"),
    "GPU busy": ("gpu_busy", lambda value: f"{value:.0f} %"),
    "Largest error": ("max_abs_error", lambda value: f"{value:.1e}"),
}


def details_table(experiment: str, records: list[dict], best: roofline.Ceilings | None = None) -> Table:
    """What else was measured of each case of this machine, a row each, repeats apart; with `best`, this machine's
    ceilings, also the share of them that a case reaches."""
    rows, data = [], []
    there = {name for record in records for name in record["metrics"]}
    shown = DETAILS | {heading: (name, show) for heading, (name, show) in MORE_DETAILS.items() if name in there}
    for record in records:
        metrics = record["metrics"]
        loss = [metrics[name]["value"] for name in ("loss_first", "loss_last") if name in metrics]
        cells = [chip_name(record), settings(record), f"{record['parameters'] or 0:,}" if record["parameters"] else ""]
        cells += [
            f"{show(metrics[name]['value'])}{spread(metrics[name])}" if name in metrics else ""
            for name, show in shown.values()
        ]
        cells.append(" → ".join(f"{value:.4g}" for value in loss))
        cells.append("" if record["foreign_load"] is None else f"{record['foreign_load']:.2f}")
        rows.append(Row(tuple(cells), "plain"))
        numbers = {name: metric["value"] for name, metric in metrics.items()}
        data.append({"case": record["case"], "repeat": record["repeat"], "status": record["status"], **numbers})
    columns = ("Chip", "Case", "Parameters", *shown, "Loss", "Others' load (cores)")
    notes = ("Achieved: operations of a step over its time, on ready batches where there were any.",) if records else ()
    if any("±" in cell for row in rows for cell in row.cells):
        notes += ("± is the 95 % interval within this run; another run may differ by more.",)
    table = Table("Measured besides", columns, tuple(rows), notes, tuple(data))
    return _with_shares(table, "Achieved", [roofline.share(record, best) for record in records]) if best else table


BEST = "Of this machine's best"


def _with_shares(table: Table, heading: str, shares: list[roofline.Share | None]) -> Table:
    """The same table with a column behind `heading`; the table itself where no row has a share of a ceiling."""
    if not any(shares):
        return table
    place = table.columns.index(heading) + 1
    rows, data = [], []
    for row, numbers, share in zip(table.rows, table.data, shares, strict=True):
        rows.append(replace(row, cells=(*row.cells[:place], _percent(share), *row.cells[place:])))
        bounds = {"share_of_best_low": share.low, "share_of_best_high": share.high} if share and share.low else {}
        data.append(numbers | ({"share_of_best": share.value} | bounds if share else {}))
    said = (
        f"{BEST}: of the best rate that a product reached on this device in this precision, in this run (the notebook "
        "ceilings), in whichever framework.",
        *_over(shares),
    )
    columns = (*table.columns[:place], BEST, *table.columns[place:])
    return replace(table, columns=columns, rows=tuple(rows), notes=(*table.notes, *said), data=tuple(data))


def _percent(share: roofline.Share | None) -> str:
    """`42.0 % ± 1.2 %`, where the ± is half the interval, in the same points."""
    if share is None:
        return ""
    half = "" if share.low is None else f" ± {significant(max(50 * (share.high - share.low), 0.01), 2)}"
    return f"{significant(100 * share.value)}{half} %"


def _over(shares: Iterable[roofline.Share | None]) -> list[str]:
    """What a share above 100 % means, if there is one."""
    if not any(share and share.value > 1 for share in shares):
        return []
    return ["More than 100 %: the ceiling was measured while the machine was slower. Run the ceilings again, alone."]


# The roofline ---------------------------------------------------------------------------------------------------------


def ceilings_table(records: list[dict], article: str = "") -> Table:
    """The best that this machine reached in this run: operations a second by device and precision, bytes a second.

    article: the one whose devices' peaks come first, as printed.
    """
    best, rows, data, flags = roofline.ceilings(records), [], [], set()
    names = {roofline.kind(record): chip_name(record) for record in records}
    for value in published.values(article=article).to_dict("records") if article else []:
        if value["metric"] == "peak_flops_per_s" and value["si"]:
            rate = f"{value['printed']} {value['unit']}"
            said = f"published, {value['item'].lower()}: {value['note']}"
            rows.append(Row((value["device"], "fp32", rate, "", said), "published"))
            about = {"source": "published", "device": value["device"], "precision": "fp32"}
            data.append(about | {"flops_per_s": value["si"]})
    for kind in ("cpu", "gpu"):
        mine = [(precision, one) for (where, precision), one in sorted(best.rates.items()) if where == kind]
        for precision, one in mine:
            reached = f"{quantity_per_s(one.value, 'FLOP/s')}{spread(vars(one))}"
            rows.append(_ceiling_row(names[kind], precision, one, reached, ""))
            data.append(_ceiling_numbers(kind, precision, one, "flops_per_s"))
        if kind in best.bandwidths:
            one = best.bandwidths[kind]
            reached = f"{quantity_per_s(one.value, 'B/s')}{spread(vars(one))}"
            rows.append(_ceiling_row(names[kind], "", one, "", reached))
            data.append(_ceiling_numbers(kind, "", one, "bytes_per_s"))
        flags |= {flag for _, one in mine for flag in one.flags}
    notes = []
    if article:
        notes.append("The article's rates are the makers' peaks, in single precision; this machine's are measured.")
    if best:
        notes.append("± is the 95 % interval within this run; another run may differ by more.")
    else:
        notes.append(NO_CEILINGS)
    if any(record["profile"] == "smoke" for record in records):
        notes.append("This was a smoke test, with tiny shapes: it has no ceilings.")
    notes += [f"{flag}: {FLAGS.get(flag, flag)}." for flag in sorted(flags)]
    columns = ("Device", "Precision", "Best rate", "Memory bandwidth", "Reached by")
    title = "Peaks of the article's devices, and the ceilings of this machine" if article else "This machine's ceilings"
    return Table(title, columns, tuple(rows), tuple(notes), tuple(data))


NO_CEILINGS = "This run has no ceilings yet: run the notebooks ceilings and ceilings_mlx into the same folder first."


def _ceiling_row(name: str, precision: str, one: roofline.Ceiling, rate: str, memory: str) -> Row:
    config = ", ".join(str(value).replace("x", " × ") for key, value in one.config.items() if key != "precision")
    by = "; ".join([FRAMEWORKS.get(one.framework, one.framework), f"{one.experiment}: {config}", *one.flags])
    return Row((name, precision, rate, memory, by), "measured")


def _ceiling_numbers(kind: str, precision: str, one: roofline.Ceiling, metric: str) -> dict:
    numbers = {metric: one.value, f"{metric}_low": one.low, f"{metric}_high": one.high}
    return {"source": "measured", "device": kind, "precision": precision, **numbers, "framework": one.framework}


@dataclass(frozen=True)
class Point:
    """An experiment's best case on a device: under which roof it lies, and how far below. None is what is not known."""

    name: str
    record: dict
    rate: dict
    share: roofline.Share | None
    intensity: float | None
    roof: roofline.Roof | None


def roofline_points(records: list[dict]) -> list[Point]:
    """The best case of every experiment, operation, framework, device and precision, by operations a second.

    Cases of a smaller model than the article's count too, since operations a second are what they can be compared by;
    those of a smoke test and the ceilings themselves do not.
    """
    best, found = roofline.ceilings(records), {}
    for repeats in _cases_of_a_run(comparable(records, "flops_per_s")):
        first, rate = _good(repeats)[0] if _good(repeats) else repeats[0], _rate(repeats)
        if rate is None or first["experiment"] in roofline.CEILINGS:
            continue
        operation = first["config"].get("operation")
        name = experiment_of(first["experiment"]) + (f" {operation}" if operation else "")
        key = (roofline.kind(first), name, first["framework"], first["backend"], roofline.precision(first))
        if key not in found or rate["value"] > found[key].rate["value"]:
            roof = roofline.roof(first, best, rate)
            found[key] = Point(name, first, rate, roofline.share(first, best, rate), roofline.intensity(first), roof)
    return [found[key] for key in sorted(found)]


def _cases_of_a_run(records: list[dict]) -> list[list[dict]]:
    """Repeats together, as `groups`, of several experiments, whose cases may have one name."""
    found: dict[tuple[str, str], list[dict]] = {}
    for record in records:
        found.setdefault((record["experiment"], record["case"]), []).append(record)
    return list(found.values())


def _rate(repeats: list[dict]) -> dict | None:
    """Operations a second of a case, of several repeats together."""
    rates = [(record, roofline.achieved(record)) for record in repeats]
    made = [record | {"metrics": {"flops_per_s": rate}} for record, rate in rates if rate is not None]
    return combined(made, "flops_per_s")


def roofline_table(records: list[dict]) -> Table:
    """Where the best case of every experiment lies under this machine's roofs, a row each."""
    points, rows, data = roofline_points(records), [], []
    for point in points:
        record, roof, share = point.record, point.roof, point.share
        said = [*(["scaled"] if record["scaled"] else []), *record["flags"]]
        rows.append(
            Row(
                (
                    point.name,
                    _device_name(record, True),
                    roofline.precision(record),
                    ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in record["config"].items() if value),
                    f"{quantity_per_s(point.rate['value'], 'FLOP/s')}{spread(point.rate)}",
                    _percent(share) or "no ceiling",
                    significant(point.intensity) if point.intensity else "not counted",
                    roof.limit if roof else "",
                    f"{significant(100 * roof.share)} %" if roof else "",
                    ", ".join(said),
                ),
                "measured",
            )
        )
        about = {"experiment": record["experiment"], "case": record["case"], "flops_per_s": point.rate["value"]}
        shares = {"share_of_best": share.value, "low": share.low, "high": share.high} if share else {}
        roofs = {"limit": roof.limit, "roof_flops_per_s": roof.flops_per_s, "share_of_roof": roof.share} if roof else {}
        data.append({**about, **shares, "flops_per_byte": point.intensity, **roofs})
    columns = ("Experiment", "Device", "Precision", "Best case", "Achieved", BEST, "Operations a byte", "Limited by")
    columns += ("Of that roof", "Remarks")
    notes = _roofline_notes(records, points)
    return Table("Where each experiment lies", columns, tuple(rows), tuple(notes), tuple(data))


def _roofline_notes(records: list[dict], points: list[Point]) -> list[str]:
    """What a reader has to know of the table, and what is not in it, with the reason."""
    notes = [] if roofline.ceilings(records) else [NO_CEILINGS]
    if points:
        notes.append(
            "Operations a byte are counted on paper: what each operator of a step reads and writes by itself, and the "
            "optimiser's update. Fused operators and caches move less, so a case may stand above the memory's roof."
        )
    notes += _over(point.share for point in points)
    shown = {point.record["experiment"] for point in points}
    rest = [r for r in records if r["experiment"] not in (*shown, *roofline.CEILINGS) and r["article"] != KIT]
    without: dict[str, dict[str, None]] = {}
    for record in rest:
        reason = "smoke test" if record["profile"] == "smoke" else record["status"]
        reason = "no operations were counted" if reason == "ok" else reason
        without.setdefault(reason, {})[record["experiment"]] = None
    notes += [f"Not in the table ({reason}): {', '.join(names)}." for reason, names in without.items()]
    flags = {flag for point in points for flag in point.record["flags"]}
    notes += [f"{flag}: {FLAGS.get(flag, flag)}." for flag in sorted(flags)]
    return notes


FRAMEWORKS = {"torch": "PyTorch", "tensorflow": "TensorFlow", "mlx": "MLX"}


def side_by_side(experiment: str, records: list[dict], frameworks: tuple[str, str] = ("torch", "mlx")) -> Table:
    """The same cases in two frameworks, on the same kind of device, with proof that they are the same.

    Proof are equal inputs (`inputs_checksum`) and results that both passed their check against one reference. The ratio
    is the first framework's time over the second's, with both intervals put together. A case that only one framework
    has, or that did not end well, is there with the reason.
    """
    layout, first, second = LAYOUTS[experiment], *frameworks
    metric = layout.time or layout.metric
    cases: dict[tuple, dict[str, list[dict]]] = {}
    for record in records:
        key = ("CPU" if record["backend"] == "cpu" else "GPU", json.dumps(record["config"], sort_keys=True))
        cases.setdefault(key, {}).setdefault(record["framework"], []).append(record)
    rows, data = [], []
    for (kind, _), found in cases.items():
        config = next(iter(found.values()))[0]["config"]
        times = {name: combined(found.get(name, []), metric) for name in frameworks}
        errors = {name: combined(found.get(name, []), "max_abs_error") for name in frameworks}
        remark, same = _sameness(found, frameworks)
        a, b = times[first], times[second]
        ratio = a["value"] / b["value"] if a and b and same else None
        bounds = None
        if ratio and None not in (a["low"], b["low"]) and b["low"] > 0:
            bounds = (a["low"] / b["high"], a["high"] / b["low"])
        shown = f"{significant(ratio)}×" if ratio else ""
        shown += f" ({significant(bounds[0])} to {significant(bounds[1])})" if bounds else ""
        cells = [kind, *(str(config.get(key, "")) for key in layout.settings)]
        for name in frameworks:
            ended = found[name][-1]["status"] if name in found else ""
            cells.append(f"{seconds(times[name]['value'])}{spread(times[name])}" if times[name] else ended)
        cells += [shown, remark, *(f"{errors[name]['value']:.1e}" if errors[name] else "" for name in frameworks)]
        rows.append(Row(tuple(cells)))
        row = {"device": kind, **config, "same": same, "ratio": ratio, "remark": remark}
        row |= {f"{name}_{metric}": times[name] and times[name]["value"] for name in frameworks}
        row |= {f"{name}_max_abs_error": errors[name] and errors[name]["value"] for name in frameworks}
        data.append(row | ({"ratio_low": bounds[0], "ratio_high": bounds[1]} if bounds else {}))
    notes = []
    for name in frameworks:
        if not any(record["framework"] == name for record in records):
            wanted = next((one for one in notebooks_of(experiment) if one.endswith(f"_{name}")), name)
            notes.append(f"{FRAMEWORKS[name]} has no numbers in this run: run {wanted} into the same folder first.")
    if any(record["profile"] == "smoke" for record in records):
        notes.append("This was a smoke test, with tiny shapes.")
    if rows:
        proof = layout.proof or (
            "The same: equal inputs, and both results within the tolerance of the same reference, which neither "
            "framework computed"
        )
        notes.append(
            f"{proof}. One time over the other: above 1 the other is faster. In brackets, and behind ±: 95 % "
            "intervals within this run; another may differ by more."
        )
    names = [FRAMEWORKS[name] for name in frameworks]
    columns = ("Device", *layout.settings.values(), *names, " over ".join(names))
    columns += ("Remarks", *(f"Error, {name}" for name in names))
    return Table(f"{' and '.join(names)}, side by side", columns, tuple(rows), tuple(notes), tuple(data))


def _sameness(found: dict[str, list[dict]], frameworks: tuple[str, str]) -> tuple[str, bool]:
    """Whether two frameworks computed the same, and how that is known, or what speaks against it."""
    for name in frameworks:
        if name not in found:
            return f"not run with {FRAMEWORKS[name]}", False
    if not all(_good(found[name]) for name in frameworks):
        return "no pair of times", False
    good = [record for name in frameworks for record in _good(found[name])]
    sums = {record["metrics"].get("inputs_checksum", {}).get("value") for record in good}
    if None in sums or not all("max_abs_error" in record["metrics"] for record in good):
        return "not checked against a reference", False
    if len(sums) > 1:
        return "other inputs: not the same", False
    flags = sorted({flag for record in good for flag in record["flags"]})
    return ", ".join(["the same", *flags]), True


TRUST = {"ok": "yes", "mismatch": "no", "unsupported": "not to be had"}


def checks_table(records: list[dict]) -> Table:
    """What the kit found out about itself on this machine: a row each check and device, in plain words.

    Of several repeats the first that did not end well is shown.
    """
    rows, data = [], []
    for repeats in groups(records):
        record = next((record for record in repeats if record["status"] != "ok"), repeats[0])
        status, name = record["status"], str(record["config"].get("check", record["case"]))
        found = record.get("note") if status == "ok" else record["reason"]
        trust = TRUST.get(status, f"not known: {status}")
        if status == "ok" and "too-noisy" in record["flags"]:
            trust = "cannot be told"
        if len(repeats) > 1:
            trust += f" ({sum(r['status'] == status for r in repeats)} of {len(repeats)} repeats)"
        flags = f" ({', '.join(record['flags'])})" if record["flags"] else ""
        rows.append(Row((name[:1].upper() + name[1:], record["backend"], trust, f"{found or ''}{flags}")))
        numbers = {name: metric["value"] for name, metric in record["metrics"].items()}
        data.append({"check": name, "device": record["backend"], "status": status, "found": found or "", **numbers})
    notes = [f"{flag}: {FLAGS.get(flag, flag)}." for flag in sorted({f for record in records for f in record["flags"]})]
    columns = ("What", "Device", "May it be trusted?", "Why")
    return Table("What may be trusted on this machine", columns, tuple(rows), tuple(notes), tuple(data))


def numbers_table(records: list[dict]) -> Table:
    """Every number of these cases, a row each, with its 95 % interval within this run where it has one."""
    rows, data = [], []
    for record in records:
        for name, metric in record["metrics"].items():
            bounds = [metric["low"], metric["high"]]
            between = " to ".join(quantity(bound, metric["unit"]) for bound in bounds) if None not in bounds else ""
            case = f"{settings(record) or record['case']}, {record['backend']}"
            value = quantity(metric["value"], metric["unit"])
            ending = {"s": "_s", "B": "_bytes", "W": "_w", "J": "_j"}.get(metric["unit"], "")
            words = name.removesuffix(ending).replace("_", " ")
            rows.append(Row((case, words, value, between, f"{metric['n']:,}" if metric["n"] else "")))
            data.append({"case": record["case"], "metric": name, **{key: metric[key] for key in metric}})
    columns = ("Case", "Number", "Value", "95 % interval", "From so many")
    return Table("Numbers", columns, tuple(rows), (), tuple(data))


def measured_lookup(records: list[dict]) -> published.Lookup:
    """A lookup for `published.test` over this machine's records: roles `cpu` and `gpu`, SI units, intervals.

    What an article says of NVIDIA GPUs as such (`rival` with the backend `cuda`), or of a GPU by name, is tested where
    there is one. `gpus` are this machine's, by their backends: an Apple GPU is one for PyTorch and one for MLX.
    """

    def gpus(experiment: str, role: str) -> tuple[str, ...]:
        ours = [record for record in comparable(records) if experiment_of(record["experiment"]) == experiment]
        found = dict.fromkeys(record["backend"] for record in ours if record["backend"] != "cpu")
        return tuple(found) if role == "gpu" else ()

    chips = {_model(record["chip"]) for record in records if record["backend"] != "cpu" and record["chip"]}

    def look(experiment: str, metric: str, role: str | None, config: dict) -> published.Value:
        if role in gpus(experiment, "gpu") and "backend" not in config:
            role, config = "gpu", {**config, "backend": role}
        named = role is not None and role not in published.ROLES
        if (role == "rival" and config.get("backend") == "cuda") or (named and _model(role) in chips):
            role = "gpu"
        if role not in ("cpu", "gpu", None):
            return published.Value(None, reason=f"needs {role or 'another machine'}, which is not this machine's")
        # By the device that was asked for: what ran out of memory at once was observed nowhere.
        here = [
            record
            for record in (comparable(records) if role else records)  # counts are right however small the shapes
            if experiment_of(record["experiment"]) == experiment
            and role in (None, "cpu" if record["backend"] == "cpu" else "gpu")
            and all(
                (_field(record, key) if key in published.FIELDS else record["config"].get(key)) == want
                for key, want in config.items()
            )
        ]
        what = f"{experiment} on {role or 'any device'} with {json.dumps(config)}"
        if not here:
            kind = {"gpu": "GPU ", "cpu": "CPU "}.get(role, "")
            return published.Value(None, reason=f"no such {kind}case of {experiment} was run here")
        if role is None:  # what is counted, and so the same on every device
            counts = {record["metrics"][metric]["value"] for record in here if metric in record["metrics"]}
            if len(counts) == 1:
                return published.Value(*3 * tuple(counts))  # value, low and high
        if len(groups(here)) > 1:
            return published.Value(None, reason=f"{what}: {len(groups(here))} cases match; the term must say which")
        if metric == "status":
            return published.Value(here[-1]["status"])
        found = combined(here, metric)
        if found is None:
            return published.Value(None, reason=f"{what}: {metric} was not measured ({here[-1]['status']})")
        source = f"{here[-1]['experiment']}: {here[-1]['case']}: {metric}"
        return published.Value(found["value"], found["low"], found["high"], source=source)

    look.devices = gpus
    return look


def _field(record: dict, key: str) -> str:
    if key == "maker":
        return "Apple" if (record["chip"] or "").startswith("Apple") else ""
    return record[key]


def _model(device: str) -> str:
    """What tells GPUs apart in their names: `A6000` and `NVIDIA RTX A6000` are one, `RTX 4090 Laptop` is another."""
    return "".join(word for word in device.casefold().split() if word not in MAKERS)


MAKERS = ("nvidia", "geforce", "quadro", "rtx", "apple")


def claims_table(claims: Sequence[published.Claim], records: list[dict]) -> Table:
    """Each claim with two verdicts: on the article's own numbers, and on this machine's, with the numbers compared."""
    rows, data = [], []
    for claim in claims:
        theirs = published.test(claim, published.published_lookup(claim.article))
        ours = published.test(claim, measured_lookup(records))
        # The articles measured more than they print: why theirs cannot be told is not what would be needed here.
        printed = claim.holds_in_published.partition(": ")[2]
        cells = (_verdict(theirs, printed), _verdict(ours, f"needs {claim.needs.removeprefix('needs ')}"))
        rows.append(Row((claim.id, claim.claim, *cells)))
        verdicts = {"published": theirs.status, "here": ours.status, "reason": ours.reason}
        data.append({"id": claim.id, "claim": claim.claim, **verdicts})
    columns = ("Claim", "The article says", "On its own numbers", "On this machine")
    return Table("Claims", columns, tuple(rows), (), tuple(data))


def _verdict(verdict: published.Verdict, lacks: str, most: int = 4) -> str:
    """`does not hold: 0.748 > 1 no, 3.04 > 1 yes`."""
    # Those that fail come first, then those whose intervals overlap; what lacks a number is not shown.
    known = [made for made in verdict.numbers if made.left.value is not None and made.right.value is not None]
    judged = sorted(known, key=lambda made: (made.holds is not False, made.holds is not None))
    words = {True: "yes", False: "no", None: "too close to tell"}
    shown = [f"{_side(made.left)} {made.operator} {_side(made.right)} {words[made.holds]}" for made in judged]
    parts = [", ".join(shown[:most]) + (f", and {len(shown) - most} more" if len(shown) > most else "")]
    if verdict.status == published.CANNOT_BE_TOLD and (not known or len(known) < len(verdict.numbers)):
        parts.append(lacks)
    return f"{verdict.status}: {'; '.join(filter(None, parts))}"


def _side(number: published.Value) -> str:
    """`0.748 (0.731 to 0.765)`: with its 95 % interval where it has one."""
    if isinstance(number.value, str):
        return number.value
    bounds = [bound for bound in (number.low, number.high) if bound is not None and math.isfinite(bound)]
    between = f" ({significant(bounds[0])} to {significant(bounds[1])})" if len(set(bounds)) == 2 else ""
    return significant(number.value) + between
