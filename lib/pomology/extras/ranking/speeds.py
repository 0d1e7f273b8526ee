"""Every published time of a training, and those of runs at the same settings, as speeds that can be divided."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from typing import Any

import pandas

from pomology.articles import elsewhere, published
from pomology.measure.estimate import Estimate
from pomology.results import cases
from pomology.results.pool import Case, pool

MEASURED, OTHER, PUBLISHED = "measured", "other", "published"  # other: a further run of the frame
# Experiments of an article whose workload has another name.
WORKLOAD_OF = {"rasbt_vgg16": "vgg16", "memory": "memory_over_time", "model_sizes vgg16": "vgg16"}
ALIASES = {"samples_per_s": "throughput", "steps_per_s": "step_s"}  # the kit's names of such rates
WORK = ["workload", "terms"]
ALIKE = [*WORK, "device", "role", "source", "framework", "version", "faults"]


def speeds(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Return one speed per device and work that two devices did, from the rows of `every`.

    Of machines that one source measured alike it is the middle one, of several sources the fastest, and one without
    serious faults before others.
    """
    known = every(frame).sort_values("value", kind="stable")
    alike = known.groupby(ALIKE, sort=False)
    middle = known[alike.cumcount() == (alike.value.transform("size") - 1) // 2]
    sound = middle.faults.map(lambda faults: not faults & elsewhere.SERIOUS)
    ordered = middle.assign(sound=sound).sort_values(["sound", "value"], kind="stable")
    best = ordered.drop_duplicates([*WORK, "device"], keep="last").sort_index()
    return best[best.groupby(WORK).device.transform("size") > 1]


def every(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Return all published speeds, and those of a frame's cases at a published setting.

    Args:
        frame: by `pomology.load`. Its first run is this machine's, the others are other people's.

    Returns:
        Rows with `kind` (`measured`, `other` or `published`), `terms` (what was the same for all that have the same
        text), `faults` (of `elsewhere.FAULTS`, and flags of a case), `flops` (operations on paper, where counted), and
        how much of the work was done in a second: `value`, `low`, `high`.
    """
    rows = _published()
    known = pandas.DataFrame([speed for speed, _ in rows] + _measured(frame, rows))
    return known.astype({"low": float, "high": float})


@functools.cache
def _published() -> tuple[tuple[dict, dict], ...]:
    """Return every published speed with the row that it is from; an article's where its operations are counted."""
    rows = []
    for row in published.rows():
        if row["flops"] and row["metric"].endswith("_s"):
            of = (row["article"], row["device"], row["framework"], row["source"])
            more = {
                "strict": False,
                "faults": elsewhere.faults(row),
                "year": published.software(*of)[1],
            }
            rows.append(
                row | more | {"workload": WORKLOAD_OF.get(row["experiment"], row["experiment"])}
            )
    for row in elsewhere.rows():
        more = {
            "strict": True,
            "experiment": row["workload"],
            "article": row["source"],
            "flops": None,
        }
        rows.append(row | more)
    found = []
    for row in rows:
        terms = must_match(row) | {"precision": row["precision"], "metric": row["metric"]}
        framework, _, version = row["framework"].partition(" ")
        names = ("experiment", "workload", "role", "year", "flops", "precision")
        speed = {name: row[name] for name in names}
        speed |= {"terms": json.dumps(terms, sort_keys=True), "kind": PUBLISHED}
        speed |= {
            "device": elsewhere.devices().get(row["device"], row["device"]),
            "printed": row["device"],
        }
        speed |= {"settings": cases.config_text(row["config"]), "source": row["article"]}
        speed |= {"framework": framework.replace("py", ""), "version": version}
        speed |= {"faults": frozenset(row["faults"]), "value": elsewhere.rate(row)}
        speed |= {"low": None, "high": None}
        speed["rate"] = Estimate(speed["value"], "1/s", how="published")
        found.append((speed, row))
    return tuple(found)


def must_match(row: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that a case shares with a published row; how many epochs a mean is of is none."""
    mean = row["metric"] == "epoch_s"
    return {name: value for name, value in row["config"].items() if not (mean and name == "epochs")}


def _measured(frame: pandas.DataFrame, known: tuple[tuple[dict, dict], ...]) -> list[dict]:
    """Return the speeds of a frame's cases at each setting that somebody has published."""
    rows: dict[str, dict] = defaultdict(dict)
    # Of several counts of the same work it is the one with the fewest operations.
    for speed, row in sorted(known, key=lambda pair: pair[1]["flops"] or 0):
        rows[row["experiment"]].setdefault(speed["terms"], row)
    printed = {speed["device"] for speed, _ in known}
    usual = frame[frame.experiment.isin(rows)]
    usual = usual[
        usual.profile.ne("smoke") & ~usual.scaled & ~usual["flags"].str.contains("other-way")
    ]
    found: dict[tuple, dict] = {}
    # A second way to run a setting has more keys in its config than the article's own.
    for case in sorted(pool(usual), key=lambda case: len(case.config)):
        first = case.first
        own = first["run"] == frame.run.iloc[0]
        suffix = "" if own else f" ({first['run']})"
        suffix = " (here)" if own and first["device"] in printed else suffix
        about = {"device": first["device"] + suffix, "role": case.kind if own else ""}
        about |= {"kind": MEASURED if own else OTHER, "source": first["run"]}
        about |= {name: first[name] for name in ("experiment", "framework", "precision")}
        about |= {"printed": first["device"], "version": first["framework_version"]}
        about |= {"year": str(first["year"]), "faults": _faults(case)}
        for terms, row in rows[first["experiment"]].items():
            wanted = must_match(row)
            # An article's rows also name what is the same in all its cases.
            shared = wanted.keys() if row["strict"] else wanted.keys() & case.config.keys()
            same = bool(shared) and all(case.config.get(name) == wanted[name] for name in shared)
            rate = _rate(case, row["metric"])
            if same and rate and first["precision"] == row["precision"]:
                work = {"workload": row["workload"], "terms": terms, "flops": row["flops"]}
                work |= {"rate": rate, "value": rate.value, "low": rate.low, "high": rate.high}
                work |= {"settings": cases.config_text(case.config)}
                key = (first["run"], first["experiment"], first["backend"], terms)
                found.setdefault(key, about | work)
    return [*found.values()]


def _rate(case: Case, metric: str) -> Estimate | None:
    """Return pieces a second, or the inverse of a time, by the source's or the kit's name of them."""
    number = case.values.get(metric, case.values.get(ALIASES.get(metric, metric)))
    if not number or number.value <= 0:
        return None
    return number if metric.endswith("_per_s") and number.unit != "s" else 1 / number


def _faults(case: Case) -> frozenset[str]:
    """Return the flags of a case, and `loader-bound` where loading took longer than computing."""
    flags = set(case.flags)
    whole, computing = case.values.get("epoch_s"), case.values.get("compute_epoch_s")
    if whole and computing and whole.value > 2 * computing.value:
        flags.add("loader-bound")
    return frozenset(flags)
