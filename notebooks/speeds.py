"""Every published time of a training, and those of runs at the same settings, as speeds."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pandas

from pomology.articles import published
from pomology.results.cases import Case, pool

MEASURED, OTHER, PUBLISHED = "measured", "other", "published"  # other: a further run of the frame
# Experiments of an article whose workload has another name.
WORKLOAD_OF = {"rasbt_vgg16": "vgg16", "memory": "memory_over_time"}
# Devices as articles print them -> one name for each.
DEVICES = {line["printed"]: line["device"] for line in published.read("devices.csv")}
# Experiments whose loaders take longer than a GPU computes, as 20 to 30 µs a digit
# (docs/log/2026-11.md).
LOADER_BOUND = ("vae", "rasbt_lenet", "rasbt_mlp")
ALIASES = {"samples_per_s": "throughput", "steps_per_s": "step_s"}  # the kit's names of such rates
WORK = ["workload", "terms"]
ALIKE = [*WORK, "device", "role", "source", "framework", "version", "faults"]


def speeds(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Return one speed per device and work that two devices did, published or of a frame.

    frame: by `pomology.load`; its first run is this machine's, the others are other people's. Of
    machines that one source measured alike the middle one is taken, of several sources the fastest,
    and one without serious faults before others. Rows have `kind` (`measured`, `other` or
    `published`), `terms` (what was the same for all that have the same text), `faults` (of
    `published.FAULTS`, and flags of a case), and `value`: how often a second the work was done.
    """
    every = [*_published(), *_measured(frame, _published())]
    known = pandas.DataFrame(every).sort_values("value", kind="stable")
    alike = known.groupby(ALIKE, sort=False)
    middle = known[alike.cumcount() == (alike["value"].transform("size") - 1) // 2]
    sound = middle["faults"].map(published.SERIOUS.isdisjoint)
    ordered = middle.assign(sound=sound).sort_values(["sound", "value"], kind="stable")
    best = ordered.drop_duplicates([*WORK, "device"], keep="last").sort_index()
    return best[best.groupby(WORK)["device"].transform("size") > 1]


@functools.cache
def _published() -> tuple[dict[str, Any], ...]:
    """Return every published speed; an article's where its operations are counted."""
    rows = []
    for row in published.rows():
        if row["flops"] and row["metric"].endswith("_s"):
            about = {"source": row["article"], "faults": _published_faults(row)}
            about["workload"] = WORKLOAD_OF.get(row["experiment"], row["experiment"])
            rows.append(_published_speed(row | about, strict=False))
    for row in published.elsewhere():
        about = {"faults": frozenset(row["faults"])}
        rows.append(_published_speed(row | about, strict=True))
    return tuple(rows)


def _published_speed(row: dict[str, Any], strict: bool) -> dict[str, Any]:
    """Return a published row as a speed. strict: a case must have all of its settings."""
    # How many epochs a mean is of makes no difference.
    mean = row["metric"] == "epoch_s"
    config = {name: value for name, value in row["config"].items() if not mean or name != "epochs"}
    terms = config | {"precision": row["precision"], "metric": row["metric"]}
    framework, _, version = row["framework"].partition(" ")
    names = ("experiment", "workload", "source", "role", "year", "precision", "metric", "faults")
    return {name: row[name] for name in names} | {
        "kind": PUBLISHED,
        "terms": json.dumps(terms, sort_keys=True),
        "config": config,
        "strict": strict,
        "device": DEVICES.get(row["device"], row["device"]),
        "framework": framework.replace("py", ""),
        "version": version,
        "value": published.rate(row),
    }


def _measured(frame: pandas.DataFrame, known: Sequence[dict]) -> list[dict[str, Any]]:
    """Return the speeds of a frame's cases at each setting that somebody has published."""
    settings: dict[str, dict[str, dict]] = defaultdict(dict)
    for speed in known:
        settings[speed["experiment"]].setdefault(speed["terms"], speed)
    printed = {speed["device"] for speed in known}
    whole = frame["profile"].ne("smoke") & ~frame["scaled"]
    usual = frame[whole & ~frame["flags"].str.contains("other-way")]
    found: dict[tuple, dict[str, Any]] = {}
    # A second way to run a setting has more keys in its config than the article's own.
    for case in sorted(pool(usual), key=lambda case: len(case.config)):
        first = case.first
        own = first["run"] == frame["run"].iloc[0]
        suffix = "" if own else f" ({first['run']})"
        if own and first["device"] in printed:
            suffix = " (here)"
        about = {
            "kind": MEASURED if own else OTHER,
            "source": first["run"],
            "device": first["device"] + suffix,
            "role": case.kind if own else "",
            "framework": first["framework"],
            "version": first["framework_version"],
            "year": str(first["year"]),
            "faults": _faults(case),
        }
        for terms, speed in settings[first["experiment"]].items():
            value = _speed(case, speed)
            if value:
                work = {"workload": speed["workload"], "terms": terms, "value": value}
                key = (first["run"], first["experiment"], first["backend"], terms)
                found.setdefault(key, about | work)
    return [*found.values()]


def _speed(case: Case, wanted: dict[str, Any]) -> float | None:
    """Return how often a second a case did a published setting; None if it is another one."""
    config = wanted["config"]
    # An article's rows also name what is the same in all its cases.
    shared = config.keys() if wanted["strict"] else config.keys() & case.config.keys()
    same = bool(shared) and all(case.config.get(name) == config[name] for name in shared)
    metric = wanted["metric"]
    number = case.values.get(metric) or case.values.get(ALIASES.get(metric))
    if not (
        same and number and number.value > 0 and case.first["precision"] == wanted["precision"]
    ):
        return None
    return number.value if metric.endswith("_per_s") and number.unit != "s" else 1 / number.value


def _published_faults(row: dict[str, Any]) -> frozenset[str]:
    """Return those of an article's row: slow loading, and TF32 where PyTorch had it by default."""
    faults = {"loader-bound"} if row["experiment"] in LOADER_BOUND else set()
    for line in published.read("peaks.csv"):
        if (line["device"], line["precision"]) == (row["device"], "tf32"):
            faults.add("tf32")
    return frozenset(faults)


def _faults(case: Case) -> frozenset[str]:
    """Return the flags of a case, and `loader-bound` where loading took longer than computing."""
    flags = set(case.flags)
    whole = case.values.get("epoch_s")
    computing = case.values.get("compute_epoch_s")
    if whole and computing and whole.value > 2 * computing.value:
        flags.add("loader-bound")
    return frozenset(flags)
