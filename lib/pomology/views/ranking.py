"""The ranking of all devices, published and measured, against one of them.

Two devices are compared where they did the same work: the same model, settings, precision and kind
of time. Of each such pair the ratio of speeds is taken, of a workload the geometric mean of its
settings, of two devices that of their workloads. A time with a fault that changes what was timed is
in no mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas

from pomology.articles import devices, published
from pomology.errors import PomologyError
from pomology.format import comparison, counted, significant
from pomology.measure.estimate import REPEATS, Estimate
from pomology.report.figures import Line, points_figure
from pomology.report.table import SOFTWARE, Row, Table
from pomology.results import cases, repeats
from pomology.results.run import Run
from pomology.views.speeds import MEASURED, PUBLISHED, WORK, speeds

SHARED = {"amp", "tf32"}  # faults of no effect where two devices both have them
# Flags of a case that change what was timed, as faults of a published time do.
OWN = cases.DOUBTS - {"few-steps", "few-calls", "too-noisy"}
MOST_ROWS = 12  # of the figure, which a first screen shows
ITSELF = "1 (the reference)"
NAMED = 3  # models of a headline
KNOWN_PROBLEM = dict.fromkeys(("measured", "published", "other"), "a known problem")
NOT_SHOWN = ", a difference that the repeats do not show"
NOTES = (
    "A speed is the geometric mean over the models that a device and the reference have both "
    "trained with the same batch size, settings, precision and kind of time.",
    "Parentheses: the number of those models and the range of their ratios. One model does not "
    "generalize.",
    "Times in brackets have a known problem, for example that data loading took longer than "
    "computing, or that other programs disturbed the case. No mean includes them, unless a device "
    "has no others.",
    SOFTWARE,
)
NOTHING = (
    "No ranking: no case of this run has a published time with the same model and settings. Smoke "
    "runs never have one."
)


def compared(speed_rows: pandas.DataFrame, reference: str) -> pandas.DataFrame:
    """Return the relative speed of each device in each workload that it shares with the reference.

    speed_rows: of `speeds`. reference: the device whose speed is 1. A row per device and workload
    has its `ratio`, whether it is `sound` (neither time has a fault of its own), whether it is
    `used` (a sound workload, or any of a device without one), and the `mean` of the used ones of
    the device. The fastest device comes first.
    """
    from scipy import stats

    pairs = _pairs(speed_rows, reference)
    by_workload = ["device", "workload"]
    # A workload with sound pairs has the mean of these alone.
    pairs = pairs[pairs["sound"] | ~pairs.groupby(by_workload)["sound"].transform("any")]
    groups = pairs.groupby(by_workload, sort=False)
    table = groups.agg(
        ratio=("ratio", stats.gmean),
        role=("role", "first"),
        kind=("kind", "first"),
        sound=("sound", "first"),
        framework=("framework", list),
        year=("year", list),
    ).reset_index()
    # So has a device with sound workloads.
    table["used"] = table["sound"] | ~table.groupby("device")["sound"].transform("any")
    means = table[table["used"]].groupby("device")["ratio"].agg(stats.gmean)
    table["mean"] = table["device"].map(means)
    return table.sort_values(["mean", "device"], ascending=[False, True], kind="stable")


def _pairs(speed_rows: pandas.DataFrame, reference: str) -> pandas.DataFrame:
    """Return each speed with that of the reference in the same work, their `ratio`, and `sound`."""
    of_reference = speed_rows[speed_rows["device"].eq(reference)]
    pairs = speed_rows.merge(of_reference, on=WORK, suffixes=("", "_of"))
    pairs["ratio"] = pairs["value"] / pairs["value_of"]
    pairs["sound"] = list(map(_sound, pairs["faults"], pairs["faults_of"]))
    return pairs


def _sound(faults: frozenset[str], others: frozenset[str]) -> bool:
    """Return whether two times may be compared; a fault that both share may make no difference.

    The flags of a case count as a published time's faults do.
    """
    shared = faults & others & SHARED
    return (published.SERIOUS | OWN).isdisjoint((faults | others) - shared)


def ranked(runs: Sequence[Run], against: str) -> tuple[str, pandas.DataFrame]:
    """Return the reference, by `reference`, and all devices compared with it."""
    speed_rows = speeds(runs)
    name, _ = _reference(speed_rows, against)
    return name, compared(speed_rows, name)


def reference(
    runs: Sequence[Run], against: str, gpus: Sequence[dict[str, Any]] = ()
) -> devices.Resolved:
    """Return the device of the ranking that a name means, and how it was chosen.

    against: as people type it, such as `M3 Max` or `rtx 4090`; "" takes the best one. Of several
    sizes this machine's is taken, or else the one with most models. gpus: those of the run's
    machine.json. Raises PomologyError for other names.
    """
    return _reference(speeds(runs), against, gpus)


def _reference(
    speed_rows: pandas.DataFrame, against: str, gpus: Sequence[dict[str, Any]] = ()
) -> devices.Resolved:
    if not against:
        return devices.Resolved(best_reference(speed_rows), "")
    rows = speed_rows.groupby("device").agg(kind=("kind", "first"), models=("workload", "nunique"))
    rows["kind"] = rows["kind"].ne(PUBLISHED)
    order = rows.sort_values(["kind", "models"], ascending=[True, False], kind="stable").index
    names = devices.Catalogue(tuple(order), "the one with most models", "row in the ranking")
    try:
        return devices.resolve(against, names, gpus)
    except PomologyError as error:
        raise PomologyError(f"against: {error}") from None


def best_reference(speed_rows: pandas.DataFrame) -> str:
    """Return a published device, if possible a GPU, that shares a model with this machine, or "".

    The best reference has most models in common, and most devices to compare with.
    """
    models: Counter[str] = Counter()
    for device in speed_rows["device"][speed_rows["kind"].eq(MEASURED)].unique():
        rows = compared(speed_rows, device)
        rows = rows[rows["kind"].eq(PUBLISHED)]
        models.update(rows.groupby("device")["sound"].sum().to_dict())
    peers = {name: compared(speed_rows, name)["device"].nunique() for name in models}
    processors = set(speed_rows["device"][speed_rows["role"].eq("cpu")])

    def rank(name: str) -> tuple:
        return name in processors, models[name] < 2, -models[name] * peers[name], name

    return min(models, key=rank, default="")


def words(rows: pandas.DataFrame, other: str = "", named: bool = False) -> str:
    """Return a device's mean and its models: `8.3× slower (2 models, 5.3 to 14×)`.

    Where a device is faster with some models and slower with others, the range is of speeds. named:
    whether a few models have their names instead: `8.3× slower (VAE 5.3×, DCGAN 14×)`.
    """
    ratios = rows["ratio"][rows["used"]]
    low, high, unit = ratios.min(), ratios.max(), "×"
    if high <= 1:
        low, high = 1 / high, 1 / low
    elif low < 1:
        unit = "× the speed"
    ends = f"{significant(low, 2)} to {significant(high, 2)}{unit}"
    count = "1 model" if len(ratios) == 1 else f"{len(ratios)} models, {ends}"
    used = [*rows[rows["used"]].itertuples()]
    if named and len(used) == 1:
        count = title(used[0].workload)
    elif named and len(used) <= NAMED:
        count = ", ".join(f"{title(row.workload)} {comparison(row.ratio)}" for row in used)
    text = f"{comparison(rows['mean'].iloc[0], other)} ({count})"
    return text if rows["sound"].any() else f"[{text}, use with care]"


def _mean(rows: pandas.DataFrame) -> str:
    """Return a device's mean in a figure, whose markers are its models."""
    count = int(rows["used"].sum())
    text = f"{comparison(rows['mean'].iloc[0])}, {counted(count, 'model')}"
    return text if rows["sound"].any() else f"[{text}]"


def with_model(row: Any) -> str:
    """Return a row of `compared` in words: `GPT-2 2.4× faster`, in brackets unless sound."""
    text = f"{title(row.workload)} {comparison(row.ratio)}"
    return text if row.sound else f"[{text}]"


def title(workload: str) -> str:
    """Return the name of a workload for people."""
    return published.WORKLOADS.get(workload, workload.replace("_", " "))


def software(rows: pandas.DataFrame) -> str:
    """Return the frameworks and years of a device's times: `PyTorch 2022`."""
    frameworks = rows["framework"].explode().unique()
    names = "/".join(cases.framework_name(name) for name in frameworks)
    years = rows["year"].explode()
    return f"{names} {'–'.join(dict.fromkeys((years.min(), years.max())))}"


def ranking_table(runs: Sequence[Run], against: str = "") -> Table:
    """Return the ranking of all devices, including those of further runs.

    runs: this machine's run first. against: the reference device, whose speed
    is 1; empty takes the best one. Raises PomologyError for a device that no row has.
    """
    name, compared_rows = ranked(runs, against)
    lines = []
    for device, rows in compared_rows.groupby("device", sort=False):
        text, models = ITSELF, map(title, rows["workload"])
        if device != name:
            text, models = words(rows), map(with_model, rows.itertuples())
        used = rows["ratio"][rows["used"]]
        numbers = {
            "device": device,
            "against": name,
            "speed": rows["mean"].iloc[0],
            "low": used.min(),
            "high": used.max(),
            "models": int(rows["sound"].sum()),
            "doubtful": int((~rows["sound"]).sum()),
        }
        cells = {
            "Device": device,
            f"Training speed, {name} = 1": text,
            "By model": ", ".join(models),
            "Software": software(rows),
        }
        lines.append(Row(cells, numbers, rows["kind"].iloc[0]))
    heading = f"Training speed of all devices, compared with the {name}" if name else "Ranking"
    return Table(heading, lines, NOTES if lines else (NOTHING,))


def headline(runs: Sequence[Run], against: str = "") -> str:
    """Return the speed of each device of this machine, compared with the reference.

    Each has its evidence: models, repeats or a single run, timed steps, and years of software. A
    difference within run-to-run variation is named as such, and so are disturbed cases, a battery
    and the low-power mode.
    """
    speed_rows = speeds(runs)
    name, _ = _reference(speed_rows, against)
    rows = compared(speed_rows, name)
    pairs = _pairs(speed_rows, name)
    records = runs[0].records
    variations = repeats.run_to_run_by_kind(records)
    lines = []
    for device, of_device in rows[rows["kind"].eq(MEASURED)].groupby("device", sort=False):
        if device == name:
            continue
        own = pairs[pairs["device"].eq(device)]
        # Those that the mean is of: see `compared`.
        used = own[own["sound"]] if own["sound"].any() else own
        speed = _speed_in_repeats(used)
        text = words(of_device, name, named=True)
        parts = _evidence(used, speed)
        left = int((~of_device["used"]).sum())
        parts += [f"left out, with a known problem: {counted(left, 'model')}"] if left else []
        evidence = "; ".join(parts)
        text = f"{text[:-1]}; {evidence})" if text.endswith(")") else f"{text} ({evidence})"
        variation = variations.get(of_device["role"].iloc[0])
        mean = of_device["mean"].iloc[0]
        if speed is not None:
            text += NOT_SHOWN if speed.low <= 1 <= speed.high else ""
        elif variation is not None and max(mean, 1 / mean) < repeats.allowed([variation]):
            text += ", which is within run-to-run variation"
        lines.append(f"The {device} is {text}.")
    timed = [record for record in records if record.status == "ok"]
    disturbed = [record for record in timed if cases.DISTURBED.intersection(record.flags)]
    if lines and disturbed:
        flags = sorted({flag for one in disturbed for flag in cases.DISTURBED & {*one.flags}})
        count = f"{len(disturbed)} of {len(timed):,} measured runs of cases"
        lines.append(f"{count} were disturbed ({', '.join(flags)}).")
    for flag in ("on-battery", "low-power"):
        if lines and any(flag in record.flags for record in records):
            lines.append(f"In some cases {cases.FLAGS[flag]}.")
    own = rows["device"].eq(name) & rows["kind"].eq(MEASURED)
    if not lines and own.any():
        return f"The {name} is the reference itself; `against` names another one."
    alone = f"No case of this run has a published time of the {name} with the same settings."
    return " ".join(lines) or (alone if name else NOTHING)


def _speed_in_repeats(pairs: pandas.DataFrame) -> Estimate | None:
    """Return the mean relative speed with its interval between repeats; None of too few."""
    common = set.intersection(*({*by_repeat} for by_repeat in pairs["by_repeat"]))
    if len(common) < REPEATS:
        return None
    from scipy import stats

    means = []
    for repeat in sorted(common):
        ratios = [by_repeat[repeat] for by_repeat in pairs["by_repeat"]] / pairs["value_of"]
        by_workload = ratios.groupby(pairs["workload"]).agg(stats.gmean)
        means.append(Estimate(float(stats.gmean(by_workload))))
    return repeats.mean_of_repeats(means)


def _evidence(pairs: pandas.DataFrame, speed: Estimate | None) -> list[str]:
    """Return what a speed rests on: repeats, timed steps, and the years of the software.

    speed: its interval between repeats, None of single runs.
    """
    texts = ["single runs" if pairs["by_repeat"].map(len).max() < REPEATS else "few clean repeats"]
    if speed is not None:
        low, high, unit = speed.low, speed.high, "×"
        if high < 1:
            low, high = 1 / high, 1 / low
        elif low < 1:
            unit = "× the speed"
        ends = f"{significant(low, 2)} to {significant(high, 2)}{unit}"
        texts = [f"95 % between {speed.n} repeats: {ends}"]
    steps = sorted(pairs["steps"][pairs["steps"] > 0].astype(int))
    if steps:
        ends = counted(steps[-1], "step")
        ends = f"{steps[0]} to {ends}" if steps[0] < steps[-1] else ends
        which = "all" if len(steps) == len(pairs) else f"{len(steps)} of {len(pairs)}"
        texts.append(f"{which} times extrapolated from {ends}")
    # A model's ratio is the mean of its settings.
    if len(pairs) > pairs["workload"].nunique():
        ends = (comparison(pairs["ratio"].max()), comparison(pairs["ratio"].min()))
        texts.append(f"single settings from {ends[0]} to {ends[1]}")
    years = [_years(pairs[column]) for column in ("year", "year_of")]
    if years[0] != years[1]:
        texts.append(f"software of {years[0]} against {years[1]}")
    return texts


def _years(years: Any) -> str:
    """Return the range of some years: `2022–2023`."""
    return "–".join(dict.fromkeys((str(years.min()), str(years.max()))))


def ranking_figure(runs: Sequence[Run], against: str = "") -> Any:
    """Return a Figure or None: a row per device, the fastest on top, a marker per model.

    A marker is open where one of the two times has a fault. Devices with few models are in the
    table only.
    """
    name, rows = ranked(runs, against)
    models = rows.groupby("device", sort=False)["sound"].sum()
    first = {*rows["device"][rows["kind"].ne(PUBLISHED)], name}
    order = sorted(models.index, key=lambda device: (device not in first, -models[device]))
    drawn = order[:MOST_ROWS]
    if len(drawn) < 2:
        return None
    lines = []
    for device, of_device in rows[rows["device"].isin(drawn)].groupby("device", sort=False):
        text, sound, doubtful = ITSELF, [Estimate(1.0)], []
        if device != name:
            text = _mean(of_device)
            sound = list(map(Estimate, of_device["ratio"][of_device["sound"]]))
            doubtful = list(map(Estimate, of_device["ratio"][~of_device["sound"]]))
        kind = (of_device["kind"].iloc[0], of_device["role"].iloc[0])
        lines.append(Line(device, kind, text, sound, doubtful))
    left = len(models) - len(drawn)
    remark = f"{left} more devices in the table" if left else ""
    label = f"training speed, {name} = 1 (higher is better)"
    meaning = {"open_means": KNOWN_PROBLEM, "remark": remark}
    return points_figure({"": lines}, label, equal=True, **meaning)
