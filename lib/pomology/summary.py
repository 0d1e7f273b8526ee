"""The chart that no article has: all their devices and this machine on one axis, in operations a second.

A published time becomes operations a second by the work on paper, and is laid against the peak that the device's maker
names; a measured rate is laid against the best product of the same run. Makers' peaks are in `resources/peaks.csv`.
Reads records as they are in a journal; times nothing.
"""

from __future__ import annotations

import csv
import functools
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from pomology import RESOURCES, costs, published, roofline
from pomology.layouts import KIT, LAYOUTS, experiment_of
from pomology.tables import FRAMEWORKS, NO_CEILINGS, Row, Table, chip_name, combined, comparable, groups, settings
from pomology.units import quantity_per_s, significant, spread

# What the articles have timed and somebody has counted, in the order of the chart.
WORKLOADS = {
    "dcgan": "DCGAN",
    "siamese": "Siamese network",
    "transformer_lm": "Transformer language model",
    "vae": "Variational autoencoder",
    "simclr": "SimCLR with ResNet-18",
    "vgg16": "VGG-16 at 224 × 224 pixels",
    "gpt2_pretraining": "GPT-2-large, pre-training",
}
MEASURED_ONLY = "Timed on this machine only"
# The list of times that article 000 points to does not tell how many GPU cores its Macs had, and Apple's peaks are by
# their number.
CORES_UNKNOWN = ("rasbt_vgg16",)


@dataclass(frozen=True)
class Rate:
    """What a device achieves on a workload, FLOP/s, and the share of its peak that this is; None is not known.

    source: `published` or `measured`. role: `cpu`, `gpu` (of Apple) or `rival` of what is published, else `cpu` or
    `gpu`. peak_flops_per_s: the maker's, or of what is measured the best product of the run. how: where the peak is
    from, or why there is none. low, high: the 95 % interval, of the share with that of the peak in it.
    """

    article: str
    workload: str
    device: str
    settings: str
    source: str
    role: str
    framework: str
    precision: str
    flops_per_s: float
    low: float | None
    high: float | None
    peak_flops_per_s: float | None
    share: float | None
    share_low: float | None
    share_high: float | None
    how: str


def _by_samples(count: int, flops: float) -> Callable[[dict], float]:
    return lambda config: count * flops


# Operations of an epoch by embedding, layers, hidden size and batch size: 2,984 or 299 steps, then 622 batches forward.
LM_EPOCH_FLOPS = {
    (200, 2, 200, 20): 2984 * 30.09e9 + 622 * 5.01e9,  # a step of the notebook `transformer_lm`, and its validation's
    (500, 2, 500, 20): 2984 * 82.78e9 + 622 * 13.80e9,  # the same
    (500, 4, 500, 200): 299 * 956.7e9 + 622 * 15.95e9,  # the same
    (500, 6, 1024, 200): 299 * 1217.7e9 + 622 * 20.30e9,  # the same
    (500, 10, 1024, 200): 299 * 1563.6e9 + 622 * 26.06e9,  # the same
}


def _lm_epoch(config: dict) -> float:
    return LM_EPOCH_FLOPS[tuple(config[key] for key in ("embedding_size", "layers", "hidden_size", "batch_size"))]


def _simclr_epoch(config: dict) -> float:
    """Training, the pictures' features for its validation, and a part of the features that the start of fit() makes."""
    step, picture = 852.77e9, 1.1108e9  # a step of the notebook `simclr`; its backbone forward, a picture
    return 390 * step + (50_000 + 10_000) * picture + (50_000 + 2 * 128) * picture / config["epochs"]


# Experiment -> (article, workload, the metric that is timed, operations of what is timed by its settings).
TIMED: dict[str, tuple[str, str, str, Callable[[dict], float]]] = {
    # Photographs; a step of the notebook `dcgan` at batch 1024.
    "dcgan": ("003", "dcgan", "epoch_s", _by_samples(168_103, 2541.8e9 / 1024)),
    # Pairs; a step of the notebook `siamese` at batch 1024.
    "siamese": ("003", "siamese", "epoch_s", _by_samples(60_000, 404.7e9 / 1024)),
    "transformer_lm": ("003", "transformer_lm", "epoch_s", _lm_epoch),
    # Digits; a step of the notebook `vae` at batch 5120.
    "vae": ("003", "vae", "epoch_s", _by_samples(60_000, 16.79e9 / 5120)),
    "simclr": ("000", "simclr", "epoch_s", _simclr_epoch),
    # The epoch as the notebook `model_sizes` counts it.
    "rasbt_vgg16": ("000", "vgg16", "epoch_s", _by_samples(1, LAYOUTS["model_sizes"].derived[0].flops)),
    # Sequences of the model that table 4 implies.
    "gpt2_pretraining": ("001", "gpt2_pretraining", "pass_s", lambda c: c["batch_size"] * costs.sequence_flops()),
}


@functools.cache
def peaks() -> dict[tuple[str, str], tuple[float, str]]:
    """The peaks that makers name: (device as the articles call it, precision) -> (FLOP/s, source)."""
    text = (RESOURCES / "peaks.csv").read_text(encoding="utf-8")
    lines = csv.DictReader(text.splitlines())
    return {(row["device"], row["precision"]): (float(row["peak_flops_per_s"]), row["source"]) for row in lines}


def rates(records: list[dict]) -> list[Rate]:
    """Every published time that has a count of its operations, then this run's cases, each workload's together.

    Of this run's: those of a smaller model too, which operations a second can be compared by; no smoke test, and no
    bare product, since the ceilings are the best of these.
    """
    found = _published() + _measured(records)
    order = [*WORKLOADS, *sorted({one.workload for one in found} - WORKLOADS.keys())]
    return sorted(found, key=lambda one: order.index(one.workload))


def _published() -> list[Rate]:
    found: dict[tuple, Rate] = {}
    for experiment, (article, workload, metric, flops) in TIMED.items():
        for row in published.values(article, experiment).to_dict("records"):
            if row["metric"] != metric or row["si"] is None:
                continue
            rate, about = flops(row["config"]) / row["si"], (row["device"], row["precision"])
            peak, how = peaks().get(about, (None, "the kit's list has no maker's peak of it"))
            if experiment in CORES_UNKNOWN and row["role"] == "gpu":
                peak, how = None, "how many GPU cores it had is not told"
            shown = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in row["config"].items())
            share = None if peak is None else rate / peak
            name, _, version = row["framework"].partition(" ")
            shown += f", {version}" if version else ""
            one = (article, workload, row["device"], shown, "published", row["role"], name.replace("pytorch", "torch"))
            # A row that is printed twice is there once.
            found[(*one, rate)] = Rate(*one, row["precision"], rate, None, None, peak, share, None, None, how)
    return list(found.values())


def _measured(records: list[dict]) -> list[Rate]:
    best, found = roofline.ceilings(records), []
    by_notebook: dict[str, list[dict]] = {}
    for record in comparable(records, "flops_per_s"):
        if record["experiment"] not in roofline.SOURCES:
            by_notebook.setdefault(record["experiment"], []).append(record)
    for repeats in [repeats for mine in by_notebook.values() for repeats in groups(mine)]:
        achieved = [(record, roofline.achieved(record)) for record in repeats]
        good = [record | {"metrics": {"flops_per_s": rate}} for record, rate in achieved if rate and rate["value"] > 0]
        rate = combined(good, "flops_per_s")
        if rate is None:
            continue
        first = good[0]
        share = roofline.share(first, best, rate)
        precision = roofline.precision(first)
        how = f"no product in {precision} was measured in this run"
        if share:
            how = f"the best product in {precision} of this run, with {FRAMEWORKS.get(share.ceiling.framework, '')}"
        shown = settings(first) + (", a smaller model" if first["scaled"] else "")
        about = (first["article"], _workload(first), chip_name(first), shown, "measured", roofline.kind(first))
        rated = (first["framework"], precision, rate["value"], rate["low"], rate["high"])
        shares = (share.value, share.low, share.high) if share else (None, None, None)
        found.append(Rate(*about, *rated, share.ceiling.value if share else None, *shares, how))
    return found


def _workload(record: dict) -> str:
    name, model = experiment_of(record["experiment"]), record["config"].get("model", "")
    if name in WORKLOADS:
        return name
    if name == "model_sizes" and model == "vgg16":
        return model
    return f"{name} {model}".strip()


def table(records: list[dict]) -> Table:
    """All rates with their shares, the articles' first in each workload; as numbers the same with all that is known."""
    found, rows = rates(records), []
    for one in found:
        interval = {"value": one.flops_per_s, "low": one.low, "high": one.high, "how": "measured", "n": None}
        rate = quantity_per_s(one.flops_per_s, "FLOP/s") + spread(interval)
        peak = quantity_per_s(one.peak_flops_per_s, "FLOP/s") if one.peak_flops_per_s else ""
        device = f"{one.device}, {FRAMEWORKS.get(one.framework, one.framework)}"
        device += "" if one.precision == "fp32" else f", {one.precision}"
        article = "the kit" if one.article == KIT else one.article
        cells = (WORKLOADS.get(one.workload, one.workload), article, device, one.settings, rate, peak, percent(one))
        rows.append(Row((*cells, one.how), one.source))
    columns = ("Workload", "Article", "Device", "Settings", "Achieved", "Peak", "Share of it", "The peak is")
    notes = [
        "Achieved: operations on paper (products, convolutions and attention) over the whole time that was printed, "
        "with what else is in it: loading data, validation, starting up. This machine's are of steps alone, on data "
        "that is on the device already, where such steps were timed.",
        "Peak: of the articles' devices what their makers name, in single precision; of this machine the best product "
        "that the same run has measured, which is less than a maker's peak. So shares of the two are not the same "
        "measure: the same program on the same device has the larger share here.",
        "A convolution may be computed with fewer operations than are counted (Winograd's), and on an A6000 or a 3090 "
        "in TF32, as PyTorch lets it by default: both are faster than the peak it is held against.",
        "Not here: article 004, which prints ratios and no times; times of which nobody has counted the operations.",
    ]
    if not roofline.ceilings(records):
        notes.append(NO_CEILINGS)
    data = tuple({name: getattr(one, name) for name in Rate.__dataclass_fields__} for one in found)
    return Table("What every device achieves of its peak", columns, tuple(rows), tuple(notes), data)


def percent(one: Rate) -> str:
    """A share, as people read it, with its interval; empty if there is none."""
    if one.share is None:
        return ""
    bounds = [f"{significant(100 * bound)}" for bound in (one.share_low, one.share_high) if bound is not None]
    return f"{significant(100 * one.share)} %" + (f" ({bounds[0]} to {bounds[1]} %)" if len(bounds) == 2 else "")


def sentence(records: list[dict]) -> str:
    """How this machine compares: the medians of the best shares by workload; empty if it has measured no rate.

    Of this machine the workloads that the articles have timed too, or all if there are none of these.
    """
    found = rates(records)
    ours = [one for one in found if one.source == "measured"]
    if not ours:
        return ""
    ours = [one for one in ours if one.workload in WORKLOADS] or ours
    parts = []
    for role, name in (("cpu", "processor"), ("gpu", "GPU")):
        best = _best([one for one in ours if one.role == role])
        if best:
            parts.append(f"On its {name} this machine reaches {_median(best)} of the best product that it was timed at")
    if not parts:
        return "This run lacks the machine's ceilings (notebook ceilings), so nobody can tell which share it reaches."
    theirs = _median(_best([one for one in found if one.source == "published"]), "pairs of a workload and a device")
    return (
        f"{'. '.join(parts)}. The articles' devices reach {theirs} of the peak that their makers name. That is the "
        "harder measure: a peak is a sum on paper, and their times have the loading of data in them."
    )


def _best(found: list[Rate]) -> list[float]:
    """The best share of each workload on each device."""
    best: dict[tuple[str, str], float] = {}
    for one in found:
        if one.share is not None:
            key = (one.workload, one.device)
            best[key] = max(best.get(key, 0.0), one.share)
    return list(best.values())


def _median(shares: list[float], what: str = "workloads") -> str:
    middle, low, high = (significant(100 * one, 2) for one in (statistics.median(shares), min(shares), max(shares)))
    if len(shares) == 1:
        return f"{middle} % (one workload)"
    return f"in the median {middle} % ({len(shares)} {what}, from {low} to {high} %)"
