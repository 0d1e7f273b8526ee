"""The ranking of all devices against one of them, as a table, in words and as a figure."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pandas

from pomology.articles import elsewhere
from pomology.errors import PomologyError
from pomology.extras.ranking.speeds import MEASURED, PUBLISHED, speeds
from pomology.format import significant
from pomology.report.figures import style
from pomology.report.table import SOFTWARE, Table
from pomology.results import cases

WORKLOADS = {
    "dcgan": "DCGAN",
    "siamese": "Siamese network",
    "transformer_lm": "Transformer language model",
    "vae": "Variational autoencoder (VAE)",
    "simclr": "SimCLR with ResNet-18",
    "gpt2_pretraining": "GPT-2-large, pre-training",
    "simclr_reference": "SimCLR with ResNet-18 at batch 512 (upstream)",
    "vgg16": "VGG-16 at 224 × 224 pixels (upstream)",
    "rasbt_lenet": "LeNet-5 on digits (upstream)",
    "rasbt_mlp": "Perceptron on digits (upstream)",
}
MOST_ROWS = 28  # of the figure
NOTES = (
    "“2× as fast” does twice as much of the same work in a second as the device that all are held against; “2× as "
    "long” half as much. The same work is the same model, batch size and other settings, precision, and kind of time.",
    "Behind a mean: how many models both devices have trained, and the least and the largest ratio among them. One "
    "model says nothing of others.",
    "In brackets, and in no mean: a time with a fault that its source names or its numbers show, as loading that took "
    "longer than computing.",
    SOFTWARE,
)
NOTHING = (
    "No ranking: this run has finished nothing that others have timed at the same settings, with the same model whole "
    "(a smoke run never has)."
)


def compared(known: pandas.DataFrame, reference: str) -> pandas.DataFrame:
    """Return how fast each device did each workload that it shares with the reference.

    Args:
        known: of `speeds`.
        reference: the device whose speed is 1.

    Returns:
        A row per device and workload: `ratio`, with `low` and `high` where the measured side has an interval, `sound`
        (whether no fault is between the two), and `mean` over the sound workloads of the device, or over all where
        none is sound. The fastest device comes first.
    """
    work = ["workload", "terms"]
    pairs = known.merge(known[known.device.eq(reference)], on=work, suffixes=("", "_of"))
    # A published time is printed without its interval.
    bounds = (
        pairs[["low_of", "high_of"]]
        .astype(float)
        .mask(pairs.kind_of.eq(PUBLISHED), pairs.value_of, axis=0)
    )
    itself = pairs.device.eq(reference)
    pairs["ratio"] = pairs.value / pairs.value_of
    pairs["low"] = (pairs.low / bounds.high_of).mask(itself, 1.0)
    pairs["high"] = (pairs.high / bounds.low_of).mask(itself, 1.0)
    pairs["sound"] = [_sound(*both) for both in zip(pairs.faults, pairs.faults_of, strict=True)]
    of = pairs.groupby(["device", "workload"], sort=False)
    pairs = pairs[pairs.sound | ~of.sound.transform("any")]
    groups = pairs.groupby(["device", "workload"], sort=False)
    means = groups[["ratio", "low", "high"]].agg(_mean)
    about = groups[["role", "kind", "sound"]].first()
    software = groups[["framework", "year"]].agg(list)
    table = means.join(about).join(software).reset_index()
    usable = table[table.sound | ~table.groupby("device").sound.transform("any")]
    table["mean"] = table.device.map(usable.groupby("device").ratio.agg(_mean))
    return table.sort_values(["mean", "device"], ascending=[False, True], kind="stable")


def _mean(values: pandas.Series) -> float:
    """Return the geometric mean; NaN where one value is missing."""
    if len(values) == 1 or values.isna().any():
        return values.iloc[0] if len(values) == 1 else math.nan
    return statistics.geometric_mean(values)


def _sound(faults: frozenset[str], others: frozenset[str]) -> bool:
    """Whether two times are of the same work; a fault that both have may make no difference."""
    return not ((faults | others) - (faults & others & elsewhere.SHARED)) & elsewhere.SERIOUS


def references(known: pandas.DataFrame) -> list[str]:
    """Return the published devices beside this machine, that with most models in common and most peers first."""
    counts: dict[str, int] = {}
    for own in known.device[known.kind.eq(MEASURED)].unique():
        beside = compared(known, own)
        for row in beside[beside.kind.eq(PUBLISHED)].itertuples():
            counts[row.device] = counts.get(row.device, 0) + row.sound
    peers = {name: compared(known, name).device.nunique() for name in counts}
    return sorted(counts, key=lambda name: (counts[name] < 2, -counts[name] * peers[name], name))


def reference(known: pandas.DataFrame, against: str = "") -> str:
    """Return the device that all are held against; the usual one is a GPU. Raises PomologyError for an unknown one."""
    if against and against not in set(known.device):
        names = ", ".join(sorted(set(known.device)))
        raise PomologyError(f"no device {against!r} is in the ranking: {names}")
    nearest = [] if against else references(known)
    gpus = [name for name in nearest if not known.role[known.device.eq(name)].eq("cpu").all()]
    return against or next(iter(gpus + nearest), "")


def times_as(ratio: float) -> str:
    """Return a ratio of speeds as people say it: `2.4× as fast`; below 1 `8.3× as long`."""
    text = significant(max(ratio, 1 / ratio), 2)
    return "as fast" if text == "1.0" else f"{text}× as {'fast' if ratio > 1 else 'long'}"


def words(rows: pandas.DataFrame, to: str = "") -> str:
    """Return a device's mean with what is behind it: `8.3× as long (2 models: 5.3 to 14)`."""
    used = rows[rows.sound] if rows.sound.any() else rows
    low, high = used.ratio.min(), used.ratio.max()
    ends = [times_as(low), times_as(high)]
    if low >= 1 or high <= 1:
        ends = [significant(end, 2) for end in sorted(max(end, 1 / end) for end in (low, high))]
    count = "one model" if len(used) == 1 else f"{len(used)} models: {' to '.join(ends)}"
    text = f"{times_as(rows['mean'].iloc[0])}{to} ({count}"
    return f"{text})" if rows.sound.any() else f"({text}), doubtful)"


def title(workload: str) -> str:
    return (WORKLOADS | elsewhere.workloads()).get(workload, workload.replace("_", " "))


def software(rows: pandas.DataFrame) -> str:
    """Return the frameworks and years of a device's times: `PyTorch 2022`."""
    names = dict.fromkeys(cases.FRAMEWORKS.get(name, name) for of in rows.framework for name in of)
    years = sorted({year for of in rows.year for year in of})
    return f"{'/'.join(names)} {'–'.join(dict.fromkeys((years[0], years[-1])))}"


def ranking_table(frame: pandas.DataFrame, against: str = "") -> Table:
    """Return the ranking of all devices; the rows of other people's runs in the frame are among them.

    Args:
        frame: by `pomology.load`, this machine's run first.
        against: the device that stands at 1, as a row is called; empty takes the usual one.

    Raises:
        PomologyError: for a device that no row has.
    """
    known = speeds(frame)
    name = reference(known, against)
    lines = []
    for device, rows in compared(known, name).groupby("device", sort=False):
        by_model = [f"{title(row.workload)} {times_as(row.ratio)}" for row in rows.itertuples()]
        shown = [
            text if sound else f"({text})" for text, sound in zip(by_model, rows.sound, strict=True)
        ]
        used = rows[rows.sound] if rows.sound.any() else rows
        numbers = {"device": device, "against": name, "speed": rows["mean"].iloc[0]}
        numbers |= {"low": used.ratio.min(), "high": used.ratio.max()}
        numbers |= {"models": int(rows.sound.sum()), "doubtful": int((~rows.sound).sum())}
        text = "1 (the reference)" if device == name else words(rows)
        models = ", ".join(map(title, rows.workload)) if device == name else ", ".join(shown)
        lines.append(((device, text, models, software(rows)), numbers, rows.kind.iloc[0]))
    columns = ("Device", f"Trains, against the {name}", "By model", "Measured with")
    heading = f"How fast every device trains, against {name or 'others'}"
    return Table.of(heading, columns, lines, NOTES if lines else (NOTHING,))


def sentences(frame: pandas.DataFrame) -> list[str]:
    """Return how fast each device of this machine is, against the nearest published device of each kind."""
    known, lines = speeds(frame), []
    nearest = sorted(references(known), key=lambda name: name.endswith("CPU"))
    for own in known.device[known.kind.eq(MEASURED)].unique():
        parts: dict[str, str] = {}
        for name in nearest:
            rows = compared(known, name)
            rows = rows[rows.device.eq(own)]
            role = known.role[known.device.eq(name)].iloc[0]
            if rows.sound.any() and role not in parts:
                parts[role] = words(rows, f" as the {name}")
        lines += [f"The {own} trains the same model {', '.join(parts.values())}."] if parts else []
    return lines


@style.styled
def ranking_figure(frame: pandas.DataFrame, against: str = "") -> Any:
    """Return a matplotlib Figure: a row per device, the fastest on top, a mark per model, a stroke for the mean.

    A mark is hollow where one of the two times is doubtful; bars are the intervals of what was measured.
    """
    known = speeds(frame)
    name = reference(known, against)
    rows = compared(known, name)
    models = rows.groupby("device", sort=False).sound.sum()
    own = rows.device[rows.kind.ne(PUBLISHED)].unique()
    kept = [
        *own,
        name,
        *models.drop([*own, name], errors="ignore").sort_values(ascending=False).index,
    ][:MOST_ROWS]
    devices = [device for device in models.index if device in kept]
    if len(devices) < 2:
        return style.nothing()
    figure = style.figure_of(style.WIDTH, 1.2 + 0.25 * len(devices))
    axis = figure.subplots()
    axis.set(
        xscale="log", ylim=(len(devices) - 0.4, -0.6), xlabel=f"speed, {name} = 1 (right is faster)"
    )
    axis.axvline(1, color=style.GREY, linewidth=0.8, linestyle="dashed")
    axis.grid(axis="x")
    for place, device in enumerate(devices):
        of = rows[rows.device.eq(device)]
        kind = style.DEVICES[of.kind.iloc[0], of.role.iloc[0]]
        colour = style.COLOURS[kind]
        for row in of.itertuples():
            fill = colour if row.sound else "none"
            axis.plot([row.ratio], [place], style.MARKS[kind], color=colour, markerfacecolor=fill)
        axis.hlines([place] * len(of), of.low, of.high, color=colour, linewidth=2)
        axis.plot(
            of["mean"].iloc[:1], [place], "|", color=colour, markersize=13, markeredgewidth=2.4
        )
        text = f"{'1 (the reference)' if device == name else words(of)}  {software(of)}"
        axis.text(1.01, place, text, transform=axis.get_yaxis_transform(), va="center", fontsize=9)
    axis.set_yticks(range(len(devices)), devices)
    axis.tick_params(axis="y", length=0)
    style.plain_ticks(axis.xaxis)
    left = len(models) - len(devices)
    axis.set_title(f"{left} more devices are in the table" if left else "")
    style.device_key(figure, {style.DEVICES[key] for key in zip(rows.kind, rows.role, strict=True)})
    return figure
