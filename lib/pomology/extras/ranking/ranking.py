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
MOST_ROWS = 28  # of the figure
ITSELF = "1 (the reference)"
NOTES = (
    "“2× as fast” does twice as much of the same work in a second as the device that all are held "
    "against. The same work: same model, batch size and other settings, precision, kind of time.",
    "Behind a mean: how many models both devices have trained, and the range of their ratios. One "
    "model says nothing of others.",
    "In brackets, and in no mean: a time with a fault that its source names or its numbers show, "
    "as loading that took longer than computing.",
    SOFTWARE,
)
NOTHING = (
    "No ranking: this run has finished nothing that others have timed at the same settings, with "
    "the same model whole (a smoke run never has)."
)


def compared(known: pandas.DataFrame, reference: str) -> pandas.DataFrame:
    """Return how fast each device did each workload that it shares with the reference.

    known: of `speeds`. reference: the device whose speed is 1. A row per device and workload has
    its `ratio`, whether it is `sound` (no fault is between the two), and the `mean` over the sound
    workloads of the device, or over all where none is sound. The fastest device comes first.
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
    """Return whether two times are of the same work; a fault of both may make no difference."""
    shared = faults & others & SHARED
    return published.SERIOUS.isdisjoint((faults | others) - shared)


def references(known: pandas.DataFrame) -> list[str]:
    """Return the published devices that share a model with this machine, the nearest first.

    The nearest has most models in common and most peers.
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
    """Return the device that all are held against, as a rule a GPU.

    Raises PomologyError for an unknown one.
    """
    if against:
        if against not in set(known["device"]):
            names = ", ".join(sorted(set(known["device"])))
            raise PomologyError(f"no device {against!r} is in the ranking: {names}")
        return against
    nearest = references(known)
    processors = set(known["device"][known["role"].eq("cpu")])
    return next((name for name in nearest if name not in processors), next(iter(nearest), ""))


def times_as(ratio: float) -> str:
    """Return a ratio of speeds as people say it: `2.4× as fast`; below 1 `8.3× as long`."""
    text = significant(max(ratio, 1 / ratio), 2)
    return "as fast" if text == "1.0" else f"{text}× as {'fast' if ratio > 1 else 'long'}"


def words(rows: pandas.DataFrame, to: str = "") -> str:
    """Return a device's mean with what is behind it: `8.3× as long (2 models: 5.3 to 14)`."""
    sound = rows["sound"].any()
    ratios = rows["ratio"][rows["sound"] | (not sound)]
    low, high = ratios.min(), ratios.max()
    ends = [times_as(low), times_as(high)]
    if low >= 1 or high <= 1:
        ends = [significant(end, 2) for end in sorted(max(end, 1 / end) for end in (low, high))]
    count = "one model" if len(ratios) == 1 else f"{len(ratios)} models: {' to '.join(ends)}"
    text = f"{times_as(rows['mean'].iloc[0])}{to} ({count})"
    return text if sound else f"({text}, doubtful)"


def title(workload: str) -> str:
    return published.WORKLOADS.get(workload, workload.replace("_", " "))


def software(rows: pandas.DataFrame) -> str:
    """Return the frameworks and years of a device's times: `PyTorch 2022`."""
    frameworks = rows["framework"].explode().unique()
    names = "/".join(cases.framework_name(name) for name in frameworks)
    years = rows["year"].explode()
    return f"{names} {'–'.join(dict.fromkeys((years.min(), years.max())))}"


def ranking_table(frame: pandas.DataFrame, against: str = "") -> Table:
    """Return the ranking of all devices; the rows of other people's runs are among them.

    frame: by `pomology.load`, this machine's run first. against: the device that stands at 1, as a
    row is called; empty takes the usual one. Raises PomologyError for a device that no row has.
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
                f"{model} {times_as(r)}" for model, r in zip(models, rows["ratio"], strict=True)
            ]
            models = [m if s else f"({m})" for m, s in zip(models, rows["sound"], strict=True)]
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
        cells = {"Device": device, f"Trains, against the {name}": text}
        cells |= {"By model": ", ".join(models), "Measured with": software(rows)}
        lines.append(Row(cells, numbers, rows["kind"].iloc[0]))
    heading = f"How fast every device trains, against {name or 'others'}"
    return Table(heading, lines, NOTES if lines else (NOTHING,))


def sentences(frame: pandas.DataFrame) -> list[str]:
    """Return how fast each device of this machine is, against the nearest one of each kind.

    A single run is as fast as a device where two runs of the same thing here differ by more.
    """
    known = speeds(frame)
    own_run = frame[frame["run"].eq(frame["run"].iloc[0])]
    single = own_run["repeat"].nunique() < REPEATS
    checks = own_run[own_run["metric"].eq("between_process_difference")]
    variations = {kind: value for (_, kind), value in cases.run_to_run(cases.pool(checks)).items()}
    nearest = sorted(references(known), key=lambda name: name.endswith("CPU"))
    roles = known.groupby("device")["role"].first()
    lines = []
    for own in known["device"][known["kind"].eq(MEASURED)].unique():
        variation = variations.get(roles[own]) if single else 0.0
        parts: dict[str, str] = {}
        for name in nearest:
            rows = compared(known, name)
            rows = rows[rows["device"].eq(own)]
            if rows["sound"].any():
                text = words(rows, f" as the {name}")
                if abs(math.log(rows["mean"].iloc[0])) < math.log(cases.allowed([variation or 0])):
                    text += ", within run-to-run variation"
                parts.setdefault(roles[name], text)
        if parts:
            lines.append(f"The {own} trains the same model {'; '.join(parts.values())}.")
            if variation is None:
                lines.append("These are single runs; how much two of them differ is not measured.")
            elif single:
                percent = significant(100 * variation, 1)
                lines.append(f"These are single runs: two of them differ by about {percent} %.")
    return lines


def ranking_figure(frame: pandas.DataFrame, against: str = "") -> Any:
    """Return a matplotlib Figure: a row per device, the fastest on top, a mark per model.

    A mark is hollow where one of the two times is doubtful. Devices with few models are in the
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
    heading = f"{left} more devices are in the table" if left else ""
    figure = points_figure({heading: lines}, f"speed, {name} = 1 (right is faster)")
    figure.axes[0].axvline(1, color=GREY, linewidth=0.8, linestyle="dashed")
    return figure
