"""The ranking of all devices against one of them, as a table, in words and as a figure."""

from __future__ import annotations

import math
from typing import Any

import pandas

from pomology.articles import published
from pomology.errors import PomologyError
from pomology.extras.ranking.speeds import MEASURED, PUBLISHED, WORK, speeds
from pomology.format import significant
from pomology.measure.estimate import REPEATS, Estimate
from pomology.report.figures import GREY, Line, nothing, points_figure
from pomology.report.table import SOFTWARE, Row, Table
from pomology.results import cases

SHARED = {"amp", "tf32"}  # faults of no effect where two devices both have them
MOST_ROWS = 12  # of the figure, which a first screen shows
ITSELF = "1 (the reference)"
NOTES = (
    "A speed is the geometric mean over the models that a device and the reference have both "
    "trained with the same batch size, settings, precision and kind of time.",
    "Parentheses: the number of those models and the range of their ratios. One model does not "
    "generalize.",
    "Times in brackets have a known problem, for example that data loading took longer than "
    "computing. No mean includes them.",
    SOFTWARE,
)
NOTHING = (
    "No ranking: no case of this run has a published time with the same model and settings. Smoke "
    "runs never have one."
)


def compared(known: pandas.DataFrame, reference: str) -> pandas.DataFrame:
    """Return the relative speed of each device in each workload that it shares with the reference.

    known: of `speeds`. reference: the device whose speed is 1. A row per device and workload has
    its `ratio`, whether it is `sound` (neither time has a fault of its own), and the `mean` over
    the sound workloads of the device, or over all where none is sound. The fastest device comes
    first.
    """
    from scipy import stats

    pairs = known.merge(known[known["device"].eq(reference)], on=WORK, suffixes=("", "_of"))
    pairs["ratio"] = pairs["value"] / pairs["value_of"]
    pairs["sound"] = [
        _sound(*both) for both in zip(pairs["faults"], pairs["faults_of"], strict=True)
    ]
    by_workload = ["device", "workload"]
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
    usable = table[table["sound"] | ~table.groupby("device")["sound"].transform("any")]
    table["mean"] = table["device"].map(usable.groupby("device")["ratio"].agg(stats.gmean))
    return table.sort_values(["mean", "device"], ascending=[False, True], kind="stable")


def _sound(faults: frozenset[str], others: frozenset[str]) -> bool:
    """Return whether two times may be compared; a fault that both share may make no difference."""
    shared = faults & others & SHARED
    return published.SERIOUS.isdisjoint((faults | others) - shared)


def references(known: pandas.DataFrame) -> list[str]:
    """Return the published devices that share a model with this machine, the best reference first.

    The best reference has most models in common, and most devices to compare with.
    """
    models: dict[str, int] = {}
    for own in known["device"][known["kind"].eq(MEASURED)].unique():
        rows = compared(known, own)
        rows = rows[rows["kind"].eq(PUBLISHED)]
        for device, sound in rows.groupby("device", sort=False)["sound"].sum().items():
            models[device] = models.get(device, 0) + int(sound)
    peers = {name: compared(known, name)["device"].nunique() for name in models}
    return sorted(models, key=lambda name: (models[name] < 2, -models[name] * peers[name], name))


def reference(known: pandas.DataFrame, against: str = "") -> str:
    """Return the device with which all others are compared, if possible a GPU.

    Raises PomologyError for an unknown device.
    """
    if against:
        if against not in set(known["device"]):
            names = ", ".join(sorted(set(known["device"])))
            raise PomologyError(f"against={against!r}: no such device; the ranking has {names}")
        return against
    nearest = references(known)
    processors = set(known["device"][known["role"].eq("cpu")])
    return next((name for name in nearest if name not in processors), next(iter(nearest), ""))


def comparison(ratio: float, other: str = "") -> str:
    """Return a ratio of speeds in words: `2.4× faster`, `8.3× slower than the M1 GPU`."""
    text = significant(max(ratio, 1 / ratio), 2)
    if text == "1.0":
        return f"as fast as the {other}" if other else "as fast"
    word = "faster" if ratio > 1 else "slower"
    return f"{text}× {word} than the {other}" if other else f"{text}× {word}"


def words(rows: pandas.DataFrame, other: str = "") -> str:
    """Return a device's mean and its models: `8.3× slower (2 models, 5.3 to 14×)`.

    Where a device is faster with some models and slower with others, the range is of speeds.
    """
    sound = rows["sound"].any()
    ratios = rows["ratio"][rows["sound"] | (not sound)]
    ends = [ratios.min(), ratios.max()]
    unit = "×"
    if ends[1] <= 1:
        ends = [1 / end for end in reversed(ends)]
    elif ends[0] < 1:
        unit = "× the speed"
    low, high = (significant(end, 2) for end in ends)
    count = "1 model" if len(ratios) == 1 else f"{len(ratios)} models, {low} to {high}{unit}"
    text = f"{comparison(rows['mean'].iloc[0], other)} ({count})"
    return text if sound else f"[{text}, use with care]"


def title(workload: str) -> str:
    return published.WORKLOADS.get(workload, workload.replace("_", " "))


def software(rows: pandas.DataFrame) -> str:
    """Return the frameworks and years of a device's times: `PyTorch 2022`."""
    frameworks = rows["framework"].explode().unique()
    names = "/".join(cases.framework_name(name) for name in frameworks)
    years = rows["year"].explode()
    return f"{names} {'–'.join(dict.fromkeys((years.min(), years.max())))}"


def ranking_table(frame: pandas.DataFrame, against: str = "") -> Table:
    """Return the ranking of all devices, including those of further runs.

    frame: by `pomology.load`, this machine's run first. against: the reference device, whose speed
    is 1; empty takes the best one. Raises PomologyError for a device that no row has.
    """
    known = speeds(frame)
    name = reference(known, against)
    lines = []
    for device, rows in compared(known, name).groupby("device", sort=False):
        text = ITSELF
        models = [title(workload) for workload in rows["workload"]]
        if device != name:
            text = words(rows)
            models = [
                f"{model} {comparison(r)}" for model, r in zip(models, rows["ratio"], strict=True)
            ]
            models = [m if s else f"[{m}]" for m, s in zip(models, rows["sound"], strict=True)]
        used = rows["ratio"][rows["sound"] | (not rows["sound"].any())]
        numbers = {
            "device": device,
            "against": name,
            "speed": rows["mean"].iloc[0],
            "low": used.min(),
            "high": used.max(),
            "models": int(rows["sound"].sum()),
            "doubtful": int((~rows["sound"]).sum()),
        }
        cells = {"Device": device, f"Training speed, {name} = 1": text}
        cells |= {"By model": ", ".join(models), "Software": software(rows)}
        lines.append(Row(cells, numbers, rows["kind"].iloc[0]))
    heading = f"Training speed of all devices, compared with the {name}" if name else "Ranking"
    return Table(heading, lines, NOTES if lines else (NOTHING,))


def headline(frame: pandas.DataFrame, against: str = "") -> str:
    """Return the speed of each device of this machine, compared with the reference.

    A difference of single runs below the run-to-run variation is named as such, and so are a
    battery and the low-power mode.
    """
    known = speeds(frame)
    name = reference(known, against)
    own_run = frame[frame["run"].isin(frame["run"].head(1))]
    single = own_run["repeat"].nunique() < REPEATS
    checks = own_run[own_run["metric"].eq("between_process_difference")]
    variations = {kind: value for (_, kind), value in cases.run_to_run(cases.pool(checks)).items()}
    rows = compared(known, name)
    lines = []
    for device, own in rows[rows["kind"].eq(MEASURED)].groupby("device", sort=False):
        text = words(own, name)
        variation = variations.get(own["role"].iloc[0])
        if single and variation is None:
            text += ", from single runs without an interval"
        elif single and abs(math.log(own["mean"].iloc[0])) < math.log(cases.allowed([variation])):
            text += ", which is within run-to-run variation"
        lines.append(f"The {device} is {text}.")
    for flag in ("on-battery", "low-power"):
        if lines and own_run["flags"].str.contains(flag).any():
            lines.append(f"In some cases {cases.FLAGS[flag]}.")
    return " ".join(lines) or NOTHING


def ranking_figure(frame: pandas.DataFrame, against: str = "") -> Any:
    """Return a matplotlib Figure: a row per device, the fastest on top, a marker per model.

    A marker is open where one of the two times has a fault. Devices with few models are in the
    table only.
    """
    known = speeds(frame)
    name = reference(known, against)
    rows = compared(known, name)
    models = rows.groupby("device", sort=False)["sound"].sum()
    first = {*rows["device"][rows["kind"].ne(PUBLISHED)], name}
    order = sorted(models.index, key=lambda device: (device not in first, -models[device]))
    shown = set(order[:MOST_ROWS])
    if len(shown) < 2:
        return nothing()
    lines = []
    for device, own in rows[rows["device"].isin(shown)].groupby("device", sort=False):
        sound = [Estimate(ratio) for ratio in own["ratio"][own["sound"]]]
        doubtful = [Estimate(ratio) for ratio in own["ratio"][~own["sound"]]]
        text = words(own)
        if device == name:
            sound = [Estimate(1.0)]
            doubtful = []
            text = ITSELF
        kind = (own["kind"].iloc[0], own["role"].iloc[0])
        lines.append(Line(device, kind, text, sound, doubtful))
    left = len(models) - len(shown)
    heading = f"{left} more devices in the table" if left else ""
    figure = points_figure({heading: lines}, f"training speed, {name} = 1 (higher is better)")
    figure.axes[0].axvline(1, color=GREY, linewidth=0.8, linestyle="dashed")
    return figure
