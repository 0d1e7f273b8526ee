"""For the notebook `summary`: the ranking of all devices against one of them.

Two devices are compared where they did the same work: the same model, settings, precision and kind
of time. Of each such pair the ratio of speeds is taken, of a workload the geometric mean of its
settings, of two devices that of their workloads. A time with a fault that changes what was timed is
in no mean.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas
from speeds import MEASURED, PUBLISHED, WORK, speeds

from pomology.articles import published
from pomology.errors import PomologyError
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
    its `ratio`, whether it is `sound` (neither time has a fault of its own), whether it is `used`
    (a sound workload, or any of a device without one), and the `mean` of the used ones of the
    device. The fastest device comes first.
    """
    from scipy import stats

    pairs = known.merge(known[known["device"].eq(reference)], on=WORK, suffixes=("", "_of"))
    pairs["ratio"] = pairs["value"] / pairs["value_of"]
    pairs["sound"] = list(map(_sound, pairs["faults"], pairs["faults_of"]))
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
    table["used"] = table["sound"] | ~table.groupby("device")["sound"].transform("any")
    means = table[table["used"]].groupby("device")["ratio"].agg(stats.gmean)
    table["mean"] = table["device"].map(means)
    return table.sort_values(["mean", "device"], ascending=[False, True], kind="stable")


def _sound(faults: frozenset[str], others: frozenset[str]) -> bool:
    """Return whether two times may be compared; a fault that both share may make no difference."""
    shared = faults & others & SHARED
    return published.SERIOUS.isdisjoint((faults | others) - shared)


def ranked(frame: pandas.DataFrame, against: str) -> tuple[str, pandas.DataFrame]:
    """Return the reference, by default the best one, and all devices compared with it.

    Raises PomologyError for an unknown device.
    """
    known = speeds(frame)
    devices = set(known["device"])
    if against and against not in devices:
        names = ", ".join(sorted(devices))
        raise PomologyError(f"against={against!r}: no such device; the ranking has {names}")
    name = against or best_reference(known)
    return name, compared(known, name)


def best_reference(known: pandas.DataFrame) -> str:
    """Return a published device, if possible a GPU, that shares a model with this machine, or "".

    The best reference has most models in common, and most devices to compare with.
    """
    models: Counter[str] = Counter()
    for own in known["device"][known["kind"].eq(MEASURED)].unique():
        rows = compared(known, own)
        rows = rows[rows["kind"].eq(PUBLISHED)]
        models.update(rows.groupby("device")["sound"].sum().to_dict())
    peers = {name: compared(known, name)["device"].nunique() for name in models}
    processors = set(known["device"][known["role"].eq("cpu")])

    def rank(name: str) -> tuple:
        return name in processors, models[name] < 2, -models[name] * peers[name], name

    return min(models, key=rank, default="")


def comparison(ratio: float, other: str = "") -> str:
    """Return a ratio of speeds in words: `2.4× faster`, `8.3× slower than the M1 GPU`."""
    factor = significant(max(ratio, 1 / ratio), 2)
    text, joined = f"{factor}× {'faster' if ratio > 1 else 'slower'}", "than"
    if factor == "1.0":
        text, joined = "as fast", "as"
    return f"{text} {joined} the {other}" if other else text


def words(rows: pandas.DataFrame, other: str = "") -> str:
    """Return a device's mean and its models: `8.3× slower (2 models, 5.3 to 14×)`.

    Where a device is faster with some models and slower with others, the range is of speeds.
    """
    ratios = rows["ratio"][rows["used"]]
    low, high, unit = ratios.min(), ratios.max(), "×"
    if high <= 1:
        low, high = 1 / high, 1 / low
    elif low < 1:
        unit = "× the speed"
    ends = f"{significant(low, 2)} to {significant(high, 2)}{unit}"
    count = "1 model" if len(ratios) == 1 else f"{len(ratios)} models, {ends}"
    text = f"{comparison(rows['mean'].iloc[0], other)} ({count})"
    return text if rows["sound"].any() else f"[{text}, use with care]"


def with_model(row: Any) -> str:
    """Return a row of `compared` in words: `GPT-2 2.4× faster`, in brackets unless sound."""
    text = f"{title(row.workload)} {comparison(row.ratio)}"
    return text if row.sound else f"[{text}]"


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
    name, found = ranked(frame, against)
    lines = []
    for device, rows in found.groupby("device", sort=False):
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
    name, rows = ranked(frame, against)
    own_run = frame[frame["run"].isin(frame["run"].head(1))]
    single = own_run["repeat"].nunique() < REPEATS
    checks = own_run[own_run["metric"].eq("between_process_difference")]
    variations = {kind: value for (_, kind), value in cases.run_to_run(cases.pool(checks)).items()}
    lines = []
    for device, own in rows[rows["kind"].eq(MEASURED)].groupby("device", sort=False):
        text = words(own, name)
        mean, variation = own["mean"].iloc[0], variations.get(own["role"].iloc[0])
        if single and variation is None:
            text += ", from single runs without an interval"
        elif single and max(mean, 1 / mean) < cases.allowed([variation]):
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
    name, rows = ranked(frame, against)
    models = rows.groupby("device", sort=False)["sound"].sum()
    first = {*rows["device"][rows["kind"].ne(PUBLISHED)], name}
    order = sorted(models.index, key=lambda device: (device not in first, -models[device]))
    shown = order[:MOST_ROWS]
    if len(shown) < 2:
        return nothing()
    lines = []
    for device, own in rows[rows["device"].isin(shown)].groupby("device", sort=False):
        text, sound, doubtful = ITSELF, [Estimate(1.0)], []
        if device != name:
            text = words(own)
            sound = list(map(Estimate, own["ratio"][own["sound"]]))
            doubtful = list(map(Estimate, own["ratio"][~own["sound"]]))
        kind = (own["kind"].iloc[0], own["role"].iloc[0])
        lines.append(Line(device, kind, text, sound, doubtful))
    left = len(models) - len(shown)
    heading = f"{left} more devices in the table" if left else ""
    figure = points_figure({heading: lines}, f"training speed, {name} = 1 (higher is better)")
    figure.axes[0].axvline(1, color=GREY, linewidth=0.8, linestyle="dashed")
    return figure
