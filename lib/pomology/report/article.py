"""An article's table with this machine in it: rows of text for people, and the same as numbers for a file.

A measured cell carries what it needs to be believed: its interval, whether the epoch ran whole or was estimated from
how many steps, and any flags. A case that did not end well shows its status instead, as the articles do.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from pomology.articles import published
from pomology.articles.layout import LAYOUTS, Layout, experiment_of
from pomology.format import (
    gigabytes,
    plus_minus,
    quantity_per_s,
    seconds,
    significant,
    slope_text,
)
from pomology.report import roofline
from pomology.report.roofline import _percent, _rate, _with_shares, ceilings_table
from pomology.report.table import Row, Table
from pomology.results.cases import (
    FLAGS,
    FRAMEWORKS,
    _device_name,
    _good,
    chip_name,
    combined,
    comparable,
    groups,
    settings,
)

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
            cells.append(f"{show(found['value'])}{plus_minus(found)}" if found else missing)
            if found and name.endswith(SLOPES):
                cells[-1] = slope_text(found)
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
            times[name] = f"{seconds(time['value'])}{plus_minus(time)}" if time else repeats[-1]["status"]
            if time and first["scaled"]:
                times[name] = "scaled"
            if rate:
                share = roofline.share(repeats[0], best, rate) if best else None
                told = f" ({_percent(share)} of the best)" if share else ""
                framework = FRAMEWORKS.get(repeats[0]["framework"], repeats[0]["framework"])
                achieved.append(f"{framework} {quantity_per_s(rate['value'], 'FLOP/s')}{plus_minus(rate)}{told}")
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
        f"{seconds(epoch['value'])}{plus_minus(epoch)}",
        f"{seconds(compute['value'])}{plus_minus(compute)}" if compute else "not measured",
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
