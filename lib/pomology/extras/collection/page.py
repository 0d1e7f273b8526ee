"""The page of the collection: chips and experiments, and a page for each filter."""

import gc
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas

from pomology.articles import devices as names
from pomology.extras.collection import check
from pomology.extras.compare.many import compare, key_of
from pomology.extras.prediction import devices, model
from pomology.extras.prediction.work import Work
from pomology.format import seconds, span, with_interval
from pomology.measure.estimate import REPEATS
from pomology.paths import RESOURCES, read_csv, write_atomic
from pomology.report import table
from pomology.results import cases, repeats

CELL = ["device", "experiment", "framework", "precision"]
MOST_DEVICES = 300  # on a page: those with most times, so that it has 3 MB at most
MOST_LINES = 200  # about refused and marked zips, on a page


def checked(paths: Sequence[Path]) -> list[tuple[check.Checked, list[dict[str, Any]]]]:
    """Check zips by themselves and with each other; return them with the `times` of each."""
    # Looking for garbage takes half of the time, and there is none.
    with ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=gc.disable) as pool:
        zips = list(pool.map(_checked, paths, chunksize=4))
    sound = [one for one, _ in zips if not one.refused]
    for one, broken in zip(sound, compare([one.traits for one in sound]), strict=True):
        one.broken.extend(broken)
    return zips


def _checked(path: Path) -> tuple[check.Checked, list[dict[str, Any]]]:
    """Check a zip by itself; return it without its cases, and its times."""
    one = check.check(path)
    return one._replace(cases=[]), times(one)


def times(one: check.Checked) -> list[dict[str, Any]]:
    """Return a run's sound times of its largest case (that the reference run has) per CELL."""
    machine = str([one.machine.get(name) for name in ("chip", "cpu_cores", "memory_bytes", "gpus")])
    largest: dict[tuple, dict[str, Any]] = {}
    for record, recomputed, *_ in one.cases:
        metric = next((name for name in check.STEPS if name in recomputed), "")
        if record.status != "ok" or not metric or cases.DOUBTS.intersection(record.flags):
            continue
        config = {name: value for name, value in record.config.items() if name != "precision"}
        in_reference = key_of(record) in check.reference()["counted"]
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
            "rank": (in_reference, record.flops_per_step or 0, record.case),
            "repeats": [],
        }
        best = largest.setdefault(tuple(time[name] for name in CELL), time)
        if time["rank"] > best["rank"]:
            best |= time
        if time["rank"] == best["rank"]:
            best["repeats"].append(recomputed[metric])
    return list(largest.values())


def build(folder: Path) -> list[str]:
    """Check all zips of a folder; write index.html and a page per filter. Return lines."""
    zips = checked(sorted(folder.glob("[!.]*.zip")))
    lines = [line for one, _ in zips if one.broken for line in one.lines()]
    accepted = [times_of_zip for one, times_of_zip in zips if not one.refused]
    head = f"Runs accepted: {len(accepted):,}, refused: {len(zips) - len(accepted):,}"
    frame = pandas.DataFrame([time for times_of_zip in accepted for time in times_of_zip])
    pages = {"index": frame}
    for name in ("framework", "precision", "year") if len(frame) else ():
        pages |= {f"{name}-{value}".lower(): part for value, part in frame.groupby(name)}
    facts = {
        "pages": list(pages),
        "head": head,
        "lines": lines[:MOST_LINES],
        "of": len(lines),
        "colours": read_csv(RESOURCES / "colours.csv"),
        "most": MOST_DEVICES,
    }
    for name, part in pages.items():
        content = facts | (_table(part) if len(part) else {})
        text = table.template("collection.html.j2").render(content, page=name)
        write_atomic(folder / f"{name}.html", text)
    return [*lines, head]


def _table(frame: pandas.DataFrame) -> dict[str, Any]:
    """Return a page's columns (experiment -> its most frequent case), and a row per device.

    A row has texts and what they are of, by experiment; a predicted one for a device with a data
    sheet that nobody has measured.
    """
    columns = frame.groupby("experiment")["case"].agg(lambda cases_of: cases_of.mode()[0]).to_dict()
    counts = frame["device"].value_counts()
    rows: dict[str, dict[str, list[tuple[str, str]]]] = {}
    most_measured = frame[frame["device"].isin(counts.index[:MOST_DEVICES])]
    for (device, experiment, *_, case), same in most_measured.groupby([*CELL, "case"]):
        other = "" if case == columns[experiment] else f" · {case}"
        rows.setdefault(device, {}).setdefault(experiment, []).append(_pooled(same, other))
    steps = frame[frame["case"].str.match("step,(?!.*operation)") & frame["work"].map(all)]
    steps = steps.query("framework == 'PyTorch' and precision == 'fp32'")
    work = steps.drop_duplicates("experiment").set_index("experiment")["work"]
    # A measured device of unknown size gets the predictions for the smallest one.
    sheets = names.with_data_sheet()
    measured = {variant: device for device in rows for variant in names.variants(device, sheets)}
    for name in sheets.names:
        shown_as = measured.get(name, name)
        row = rows.setdefault(shown_as, {})
        of = "" if shown_as == name else f" for {name}"
        for experiment in work.index.difference(list(row)):
            device = devices.with_data_sheet(name).device
            step, _ = model.fitted().predict(Work(0, *work[experiment], 0), device, "fp32")
            text = f"{seconds(step.value)} ({span(*step.bounds, seconds)})"
            row[experiment] = [(text, f"predicted{of}, fp32")]
    order = sorted(rows.items(), key=lambda item: (item[0] not in counts, item[0]))
    return {"columns": columns, "rows": order, "counts": counts}


def _pooled(same: pandas.DataFrame, other: str) -> tuple[str, str]:
    """Return the mean over machines of the means of their processes, and what it is of."""
    processes = same.explode("repeats").groupby("machine")["repeats"]
    pooled = processes.agg(lambda times: repeats.mean_of_repeats(list(times)))
    mean = repeats.mean_of_repeats(list(pooled))
    if 1 < len(pooled) < REPEATS:  # too few for an interval between machines
        values = [estimate.value for estimate in pooled]
        mean = mean.replace(low=min(values), high=max(values), covers="seen")
    first, versions = same.iloc[0], ", ".join(sorted(set(same["version"])))
    source = f"{first['framework']} {versions}, {first['precision']}"
    source += f" · machines: {len(pooled):,}, runs: {len(same):,}{other}"
    return with_interval(mean, seconds), source
