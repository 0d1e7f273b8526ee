"""The page of the collection: chips and experiments, and a page for each filter."""

import gc
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas

from pomology.extras.collection import check
from pomology.extras.compare.many import compare, key_of
from pomology.extras.prediction import devices, model
from pomology.extras.prediction.work import Work
from pomology.format import seconds, span, with_interval
from pomology.measure.estimate import REPEATS
from pomology.paths import RESOURCES, read_csv, write_atomic
from pomology.report import peaks, table
from pomology.results import cases

CELL = ["device", "experiment", "framework", "precision"]
MOST_DEVICES = 300  # on a page: those with most times, so that it has 3 MB at most
MOST_LINES = 200  # about refused and marked zips, on a page


def checked(places: Sequence[Path]) -> list[tuple[check.Checked, list[dict[str, Any]]]]:
    """Check zips by themselves and with each other; return them with the `times` of each."""
    # Looking for garbage takes half of the time, and there is none.
    with ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=gc.disable) as pool:
        found = list(pool.map(_checked, places, chunksize=4))
    sound = [one for one, _ in found if not one.refused]
    for one, broken in zip(sound, compare([one.traits for one in sound]), strict=True):
        one.broken.extend(broken)
    return found


def _checked(place: Path) -> tuple[check.Checked, list[dict[str, Any]]]:
    """Check a zip by itself; return it without its cases, and its times."""
    one = check.check(place)
    return one._replace(rows=[]), times(one)


def times(one: check.Checked) -> list[dict[str, Any]]:
    """Return a run's sound times of its largest case (that the reference run has) per CELL."""
    machine = str([one.machine.get(name) for name in ("chip", "cpu_cores", "memory_bytes", "gpus")])
    largest: dict[tuple, dict[str, Any]] = {}
    for record, own, *_ in one.rows:
        metric = next(filter(own.__contains__, check.STEPS), "")
        if record.status != "ok" or not metric or cases.DOUBTS.intersection(record.flags):
            continue
        config = {name: value for name, value in record.config.items() if name != "precision"}
        known = key_of(record) in check.reference()["counted"]
        time = {
            "device": cases.chip_name(record),
            "experiment": record.experiment,
            "framework": cases.framework_name(record.framework),
            "precision": cases.precision(record),
            "year": record.started[:4],
            "version": record.framework_version.partition("+")[0],
            "case": f"{cases.TIMES[metric]}, {cases.config_text(config)}",
            "machine": machine,
            "work": (record.flops_per_step, record.bytes_per_step),
            "rank": (known, record.flops_per_step or 0, record.case),
            "repeats": [],
        }
        best = largest.setdefault(tuple(time[name] for name in CELL), time)
        if time["rank"] > best["rank"]:
            best |= time
        if time["rank"] == best["rank"]:
            best["repeats"].append(own[metric])
    return list(largest.values())


def build(folder: Path) -> list[str]:
    """Check all zips of a folder; write index.html and a page per filter. Return lines."""
    found = checked(sorted(folder.glob("[!.]*.zip")))
    lines = [line for one, _ in found if one.broken for line in one.lines()]
    sound = [own for one, own in found if not one.refused]
    head = f"Runs accepted: {len(sound):,}, refused: {len(found) - len(sound):,}"
    frame = pandas.DataFrame([time for own in sound for time in own])
    pages = {"index": frame}
    for name in ("framework", "precision", "year") if len(frame) else ():
        pages |= {f"{name}-{value}".lower(): part for value, part in frame.groupby(name)}
    facts = {"pages": list(pages), "head": head, "lines": lines[:MOST_LINES], "of": len(lines)}
    facts |= {"colours": read_csv(RESOURCES / "colours.csv"), "most": MOST_DEVICES}
    for name, part in pages.items():
        shown = facts | (_table(part) if len(part) else {})
        text = table.template("collection.html.j2").render(shown, page=name)
        write_atomic(folder / f"{name}.html", text)
    return [*lines, head]


def _table(frame: pandas.DataFrame) -> dict[str, Any]:
    """Return a page's columns (experiment -> its most frequent case), and a row per device.

    A row has texts and what they are of, by experiment; a predicted one for a device with a data
    sheet that nobody has measured.
    """
    columns = frame.groupby("experiment")["case"].agg(lambda found: found.mode()[0]).to_dict()
    counts = frame["device"].value_counts()
    rows: dict[str, dict[str, list[tuple[str, str]]]] = {}
    shown = frame[frame["device"].isin(counts.index[:MOST_DEVICES])]
    for (device, experiment, *_, case), same in shown.groupby([*CELL, "case"]):
        other = "" if case == columns[experiment] else f" · {case}"
        rows.setdefault(device, {}).setdefault(experiment, []).append(_pooled(same, other))
    steps = frame[frame["case"].str.match("step,(?!.*operation)") & frame["work"].map(all)]
    steps = steps.query("framework == 'PyTorch' and precision == 'fp32'")
    work = steps.drop_duplicates("experiment").set_index("experiment")["work"]
    measured = {peaks.model_name(device): device for device in rows}
    for sheet in devices.published_devices().values():
        row = rows.setdefault(measured.get(peaks.model_name(sheet.name), sheet.name), {})
        for experiment in work.index.difference(list(row)):
            step, _ = model.fitted().predict(Work(0, *work[experiment], 0), sheet, "fp32")
            text = f"{seconds(step.value)} ({span(*step.bounds, seconds)})"
            row[experiment] = [(text, "predicted, fp32")]
    order = sorted(rows.items(), key=lambda item: (item[0] not in counts, item[0]))
    return {"columns": columns, "rows": order, "counts": counts}


def _pooled(same: pandas.DataFrame, other: str) -> tuple[str, str]:
    """Return the mean over machines of the means of their processes, and what it is of."""
    processes = same.explode("repeats").groupby("machine")["repeats"]
    pooled = processes.agg(lambda found: cases.mean_of_repeats(list(found)))
    mean = cases.mean_of_repeats(list(pooled))
    if 1 < len(pooled) < REPEATS:  # too few for an interval between machines
        values = [each.value for each in pooled]
        mean = mean.replace(low=min(values), high=max(values), covers="seen")
    first, versions = same.iloc[0], ", ".join(sorted(set(same["version"])))
    about = f"{first['framework']} {versions}, {first['precision']}"
    about += f" · machines: {len(pooled):,}, runs: {len(same):,}{other}"
    return with_interval(mean, seconds), about
