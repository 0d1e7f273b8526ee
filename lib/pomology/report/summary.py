"""The chart that no article has: all their devices and this machine on one axis, in operations a second.

A published time becomes operations a second by the work on paper, and is laid against the published peak of its device;
a measured rate is laid against the best product of the same run. Published peaks, each with its source, are in
`articles/data/peaks.csv`: for processors nobody was found to publish one. Reads records as they are in a journal; times
nothing.
"""

from __future__ import annotations

import functools
import statistics
from dataclasses import dataclass

from pomology.articles import published
from pomology.articles.published import KIT, experiment_of
from pomology.format import plus_minus, quantity_per_s, significant
from pomology.measure.estimate import Estimate
from pomology.report import roofline
from pomology.report.roofline import NO_CEILINGS
from pomology.report.table import Row, Table
from pomology.results import cases
from pomology.results.cases import FRAMEWORKS, chip_name, combined, comparable, groups, settings

# What the articles have timed and somebody has counted, in the order of the chart.
WORKLOADS = {
    "dcgan": "DCGAN",
    "siamese": "Siamese network",
    "transformer_lm": "Transformer language model",
    "vae": "Variational autoencoder",
    "simclr": "SimCLR with ResNet-18",
    "vgg16": "VGG-16 at 224 × 224 pixels",
    "rasbt_lenet": "LeNet-5 on digits",
    "rasbt_mlp": "Perceptron on digits",
    "gpt2_pretraining": "GPT-2-large, pre-training",
}
# Experiments of an article whose workload has another name.
WORKLOAD_OF = {"simclr_reference": "simclr", "rasbt_vgg16": "vgg16", "memory": "memory_over_time"}
MEASURED_ONLY = "Timed on this machine only"
# Under the chart at the top of a page.
CAPTION = (
    "Left: operations of the training, counted on paper, over its time; further right is faster, and each upright line "
    "is ten times the one before it. Right: how much that is of the device's peak, which is the published one of the "
    "articles' GPUs, and of this machine the best plain matrix product of this run; no published peak was found of the "
    "articles' processors. A mark is a device at the fastest of its settings, this machine with its 95 % interval. "
    "Every setting, and what no article has timed, is in the notebook summary."
)
# The list of times that article 000 points to does not tell how many GPU cores its Macs had, and Apple's peaks are by
# their number.
CORES_UNKNOWN = ("rasbt_vgg16", "rasbt_lenet", "rasbt_mlp")
NO_PEAK = "the kit has found no published peak of it"
SMALLER = ", a smaller model"  # ends the settings of a case that is not the article's own model


@dataclass(frozen=True)
class Rate:
    """What a device achieves on a workload, FLOP/s, and the share of its peak that this is; None is not known.

    source: `published` or `measured`. role: `cpu`, `gpu` (of Apple) or `rival` of what is published, else `cpu` or
    `gpu`. peak_flops_per_s: the published one, or of what is measured the best product of the run. how: where the peak
    is from, or why there is none. low, high: the 95 % interval, of the share with that of the peak in it.
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


@functools.cache
def peaks() -> dict[tuple[str, str], tuple[float, str]]:
    """The published peaks: (device as the articles call it, precision) -> (FLOP/s, source)."""
    return {
        (row["device"], row["precision"]): (float(row["peak_flops_per_s"]), row["source"])
        for row in published.read("peaks.csv")
    }


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
    for row in published.values().to_dict("records"):
        experiment = row["experiment"]
        if row["flops"] and row["metric"] != "energy_j_per_step":
            rate = row["flops"] / row["si"]
            peak, how = peaks().get((row["device"], row["precision"]), (None, NO_PEAK))
            if experiment in CORES_UNKNOWN and row["role"] == "gpu":
                peak, how = None, "how many GPU cores it had is not told"
            shown = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in row["config"].items())
            share = None if peak is None else rate / peak
            name, _, version = row["framework"].partition(" ")
            shown += f", {version}" if version else ""
            about = (row["article"], WORKLOAD_OF.get(experiment, experiment), row["device"], shown)
            one = (*about, "published", row["role"], name.replace("pytorch", "torch"))
            # A row that is printed twice is there once.
            found[(*one, rate)] = Rate(*one, row["precision"], rate, None, None, peak, share, None, None, how)
    return list(found.values())


def _measured(records: list[dict]) -> list[Rate]:
    best, found = roofline.ceilings(records), []
    by_notebook: dict[str, list[dict]] = {}
    for record in comparable(records, "flops_per_s"):
        if record.experiment not in roofline.SOURCES:
            by_notebook.setdefault(record.experiment, []).append(record)
    for repeats in [repeats for mine in by_notebook.values() for repeats in groups(mine)]:
        achieved = [(record, cases.achieved(record)) for record in repeats]
        good = [record.replace(metrics={"flops_per_s": rate}) for record, rate in achieved if rate and rate.value > 0]
        rate = combined(good, "flops_per_s")
        if rate is None:
            continue
        first = good[0]
        share = roofline.share(first, best, rate)
        precision = cases.precision(first)
        ceiling = best.rates.get((cases.kind(first), precision))
        how = f"no product in {precision} was measured in this run"
        if share:
            how = f"the best product in {precision} of this run, with {FRAMEWORKS.get(ceiling.record.framework, '')}"
        shown = settings(first) + (SMALLER if first.scaled else "")
        about = (first.article, _workload(first), chip_name(first), shown, "measured", cases.kind(first))
        rated = (first.framework, precision, rate.value, rate.low, rate.high)
        shares = (share.value, share.low, share.high) if share else (None, None, None)
        found.append(Rate(*about, *rated, ceiling.value if share else None, *shares, how))
    return found


def _workload(record: dict) -> str:
    name, model = experiment_of(record.experiment), record.config.get("model", "")
    name = WORKLOAD_OF.get(name, name)
    if name in WORKLOADS:
        return name
    if name == "model_sizes" and model == "vgg16":
        return model
    return f"{name} {model}".strip()


def table(records: list[dict]) -> Table:
    """All rates with their shares, the articles' first in each workload; as numbers the same with all that is known."""
    found, rows = rates(records), []
    for one in found:
        measured = Estimate(one.flops_per_s, "FLOP/s", one.low, one.high)
        rate = quantity_per_s(measured.value, "FLOP/s") + plus_minus(measured)
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
        "Peak: of the articles' devices the published one, in single precision, which is cores times clock on paper; "
        "of this machine the best product that the same run has measured, which is less than a published peak. So "
        "shares of the two are not the same measure: the same program on the same device has the larger share here.",
        "A share near or above 100 % is no mistake: a convolution may be computed with fewer operations than are "
        "counted (Winograd's), and on an A6000 or a 3090 in TF32, as PyTorch lets it by default.",
        "VGG-16, LeNet-5, the perceptron and SimCLR at batch 512: times that article 000 points to and does not print. "
        "Those of LeNet-5 and the perceptron are seconds printed in hundredths of a minute, the shortest with an error "
        "of up to an eighth; they tell how fast pictures of digits are read, not how fast a device computes.",
        "Published times that are not here: those of the same trainings once more (the whole of SimCLR's; VGG-16's, "
        "LeNet-5's and the perceptron's with their evaluation), and launches of a kernel (article 001, table 6). "
        "Article 004 prints ratios and no times; of article 001 the figures 3 to 7 are pictures only, and table 5 is "
        "of energies.",
        f"Sources of the published peaks: {_sources()}.",
    ]
    if not roofline.ceilings(records):
        notes.append(NO_CEILINGS)
    data = tuple({name: getattr(one, name) for name in Rate.__dataclass_fields__} for one in found)
    return Table("What every device achieves of its peak", columns, tuple(rows), tuple(notes), data)


def _sources() -> str:
    devices: dict[tuple[str, str], list[str]] = {}
    for row in published.read("peaks.csv"):
        devices.setdefault((row["source"], row["url"]), []).append(row["device"])
    return "; ".join(f"{', '.join(names)}: {source} ({url})" for (source, url), names in devices.items())


def percent(one: Rate) -> str:
    """A share, as people read it, with its interval; empty if there is none."""
    if one.share is None:
        return ""
    bounds = [f"{significant(100 * bound)}" for bound in (one.share_low, one.share_high) if bound is not None]
    return f"{significant(100 * one.share)} %" + (f" ({bounds[0]} to {bounds[1]} %)" if len(bounds) == 2 else "")


def sentence(records: list[dict]) -> str:
    """How this machine compares, for who knows none of the articles; empty if it has measured no rate.

    Medians of the best shares by model, of this machine and of the articles' devices, over the models that both have
    timed; over all that each has timed if there are none of these.
    """
    found = rates(records)
    ours, theirs = ([one for one in found if one.source == source] for source in ("measured", "published"))
    if not ours:
        return ""
    both = {one.workload for one in ours} & {one.workload for one in theirs if one.share is not None}
    ours, theirs = ([one for one in side if one.workload in both or not both] for side in (ours, theirs))
    parts: dict[str, list[str]] = {}
    untold = []
    for role, name in (("cpu", "processor"), ("gpu", "GPU")):
        mine = [one for one in ours if one.role == role]
        rated = [one for one in mine if one.share is not None]
        if rated:
            shares = _best(rated)
            parts.setdefault(_work(len(shares), rated, bool(both)), []).append(f"{name} reached {_spread(shares)}")
        elif mine:
            untold.append(
                f"What share of its best this machine's {name} reached cannot be told: this run has timed no plain "
                "matrix product on it in the same precision (notebook ceilings does)."
            )
    said = [
        f"{work}, this machine's {' and its '.join(devices)} of the operations a second of its best plain matrix "
        "product."
        for work, devices in parts.items()
    ] + untold
    shares = _best(theirs)
    if shares:
        models = "the same models" if both else "theirs"
        said.append(
            f"The articles' GPUs reached {_spread(shares)} of their published peaks on {models} ({len(shares)} pairs "
            "of a model and a GPU). That is the harder test: a published peak is cores times clock on paper, and most "
            "of the articles' times have the loading of data in them."
        )
    return " ".join(said)


def _work(count: int, rated: list[Rate], published_too: bool) -> str:
    """What this machine's shares are of, as the beginning of a sentence."""
    smaller = [one.settings.endswith(SMALLER) for one in rated]
    version = (" (in a smaller version)" if count == 1 else " (in smaller versions)") if all(smaller) else ""
    if any(smaller) and not version:
        version = " (some of it in a smaller version)" if count == 1 else " (some in smaller versions)"
    if published_too:
        models = "one model" if count == 1 else f"{count} models"
        return f"Training {models} that the articles have timed too{version}"
    works = "one workload" if count == 1 else f"{count} workloads"
    return f"Computing {works} that no article prints a time of{version}"


def _best(found: list[Rate]) -> list[float]:
    """The best share of each workload on each device."""
    best: dict[tuple[str, str], float] = {}
    for one in found:
        if one.share is not None:
            key = (one.workload, one.device)
            best[key] = max(best.get(key, 0.0), one.share)
    return list(best.values())


def _spread(shares: list[float]) -> str:
    middle, low, high = (significant(100 * one, 2) for one in (statistics.median(shares), min(shares), max(shares)))
    return f"{middle} %" if low == high else f"{low} to {high} % (median {middle} %)"
