"""Every published time of a training, and those of runs at the same settings, as speeds."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pandas

from pomology.articles import devices, published
from pomology.measure.estimate import Estimate
from pomology.results.record import Record
from pomology.results.repeats import Repeats, pool
from pomology.results.run import Run

MEASURED, OTHER, PUBLISHED = "measured", "other", "published"  # other: a further run of the frame
# Experiments of an article whose workload has another name.
WORKLOAD_OF = {"rasbt_vgg16": "vgg16", "memory": "memory_over_time"}
# Experiments whose loaders take longer than a GPU computes, as 20 to 30 µs a digit
# (docs/log/2026-11.md).
LOADER_BOUND = ("vae", "rasbt_lenet", "rasbt_mlp")
# Devices of articles, as printed, whose PyTorch computed in TF32 without being asked: convolutions
# on the A6000 of article 000, and products, too, in PyTorch 1.11 on the 3090 of article 002.
TF32_BY_DEFAULT = ("Nvidia A6000", "3090")
ALIASES = {"samples_per_s": "throughput", "steps_per_s": "step_s"}  # the kit's names of such rates
WORK = ["workload", "terms"]
ALIKE = [*WORK, "device", "role", "source", "framework", "version", "faults"]


def speeds(runs: Sequence[Run]) -> pandas.DataFrame:
    """Return one speed per device and work that two devices did, published or of runs.

    runs: the first one is this machine's, the others are other people's. Of
    machines that one source measured alike the middle one is taken, of several sources the fastest,
    and one without serious faults before others. Rows have `kind` (`measured`, `other` or
    `published`), `terms` (what was the same for all that have the same text), `faults` (of
    `published.FAULTS`, and flags of a case), and `value`: how often a second the work was done. A
    run's rows also have `by_repeat` (values by repeat) and `steps`: those that were timed of an
    estimated time, 0 of a measured one.
    """
    rows = [*_published(), *_measured(runs, _published())]
    by_value = pandas.DataFrame(rows).sort_values("value", kind="stable")
    alike = by_value.groupby(ALIKE, sort=False)
    # Of an even number the lower of the two in the middle, which is a measured speed, too.
    middle = by_value[alike.cumcount() == (alike["value"].transform("size") - 1) // 2]
    sound = middle["faults"].map(published.SERIOUS.isdisjoint)
    ordered = middle.assign(sound=sound).sort_values(["sound", "value"], kind="stable")
    best = ordered.drop_duplicates([*WORK, "device"], keep="last").sort_index()
    # What only one device did ranks nothing.
    return best[best.groupby(WORK)["device"].transform("size") > 1]


@functools.cache
def _published() -> tuple[dict[str, Any], ...]:
    """Return every published speed; an article's where its operations are counted."""
    rows = []
    for row in published.rows():
        if row["flops"] and row["metric"].endswith("_s"):
            fields = {
                "source": row["article"],
                "faults": _published_faults(row),
                "workload": WORKLOAD_OF.get(row["experiment"], row["experiment"]),
            }
            rows.append(_published_speed(row | fields, strict=False))
    others = [row | {"faults": frozenset(row["faults"])} for row in published.elsewhere()]
    rows += [_published_speed(row, strict=True) for row in others]
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
        "device": devices.canonical(row["device"], row["role"]),
        "framework": framework.replace("py", ""),
        "version": version,
        "value": published.rate(row),
    }


def _measured(runs: Sequence[Run], published_speeds: Sequence[dict]) -> list[dict[str, Any]]:
    """Return the speeds of the runs' cases at each setting that somebody has published."""
    settings: dict[str, dict[str, dict]] = defaultdict(dict)
    for speed in published_speeds:
        settings[speed["experiment"]].setdefault(speed["terms"], speed)
    printed = {speed["device"] for speed in published_speeds}
    measured_speeds: dict[tuple, dict[str, Any]] = {}
    pooled = [case for run in runs for case in pool(filter(_is_usual, run.records), run.name)]
    # A second way to run a setting has more keys in its config than the article's own.
    for case in sorted(pooled, key=lambda case: len(case.config)):
        first = case.first
        of_machine = case.run == runs[0].name
        suffix = "" if of_machine else f" ({case.run})"
        if of_machine and case.device in printed:
            suffix = " (here)"
        fields = {
            "kind": MEASURED if of_machine else OTHER,
            "source": case.run,
            "device": case.device + suffix,
            "role": case.kind if of_machine else "",
            "framework": first.framework,
            "version": first.framework_version,
            "year": first.started[:4],
            "faults": _faults(case),
        }
        for terms, speed in settings[first.experiment].items():
            value = _speed(case, speed, case.values)
            if value:
                speeds = {repeat: _speed(case, speed, one) for repeat, one in case.used.items()}
                by_repeat = {repeat: each for repeat, each in speeds.items() if each}
                work = {"workload": speed["workload"], "terms": terms, "value": value}
                work |= {"by_repeat": by_repeat, "steps": _steps(case, speed)}
                key = (case.run, first.experiment, first.backend, terms)
                measured_speeds.setdefault(key, fields | work)
    return [*measured_speeds.values()]


def _is_usual(record: Record) -> bool:
    """Return whether a case is the article's own, and not a smaller or another one."""
    return not (record.profile == "smoke" or record.scaled or "other-way" in record.flags)


def _steps(case: Repeats, setting: dict[str, Any]) -> int:
    """Return from how many timed steps the time of a setting was estimated; 0 if it was measured.

    setting: of a published speed.
    """
    time = case.values.get(setting["metric"])
    if time is None or time.how != "estimated":
        return 0
    return sum(steps for steps, _ in case.last.steady()) or 1


def _speed(case: Repeats, setting: dict[str, Any], values: Mapping[str, Estimate]) -> float | None:
    """Return how often a second a case did a published setting; None if it is another one.

    setting: of a published speed. values: of the case, over its repeats or of one.
    """
    config = setting["config"]
    # An article's rows also name what is the same in all its cases.
    shared = config.keys() if setting["strict"] else config.keys() & case.config.keys()
    same = bool(shared) and all(case.config.get(name) == config[name] for name in shared)
    metric = setting["metric"]
    number = values.get(metric) or values.get(ALIASES.get(metric))
    if not (same and number and number.value > 0 and case.precision == setting["precision"]):
        return None
    return number.value if metric.endswith("_per_s") and number.unit != "s" else 1 / number.value


def _published_faults(row: dict[str, Any]) -> frozenset[str]:
    """Return those of an article's row: slow loading, and TF32 where PyTorch had it by default."""
    faults = {"loader-bound"} if row["experiment"] in LOADER_BOUND else set()
    if row["device"] in TF32_BY_DEFAULT:
        faults.add("tf32")
    return frozenset(faults)


def _faults(case: Repeats) -> frozenset[str]:
    """Return the flags of a case, and `loader-bound` where loading took longer than computing."""
    flags = set(case.flags)
    whole = case.values.get("epoch_s")
    computing = case.values.get("compute_epoch_s")
    if whole and computing and whole.value > 2 * computing.value:
        flags.add("loader-bound")
    return frozenset(flags)
