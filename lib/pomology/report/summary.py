"""The chart that no article has: all their devices and this machine on one axis, in operations a second.

A published time becomes operations a second by the work on paper, and is compared with the published peak of its
device; a measured rate is compared with the best product of the same run. Published peaks, each with its source, are in
`articles/data/peaks.csv`; no source has a peak of the articles' processors. Reads the records of a run; times nothing.
"""

from __future__ import annotations

import functools
import statistics
from dataclasses import asdict, dataclass

from pomology.articles import published
from pomology.articles.published import KIT, experiment_of
from pomology.format import plus_minus, quantity_per_s, significant
from pomology.measure.estimate import Estimate
from pomology.report import roofline
from pomology.report.roofline import NO_CEILINGS
from pomology.report.table import Row, Table
from pomology.results import cases
from pomology.results.cases import FRAMEWORKS, chip_name, settings
from pomology.results.record import Record

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
    is from, or why there is none.
    """

    article: str
    workload: str
    device: str
    settings: str
    source: str
    role: str
    framework: str
    precision: str
    rate: Estimate
    peak_flops_per_s: float | None
    share: Estimate | None
    how: str

    def numbers(self) -> dict:
        """The row of a table."""
        about = asdict(self)
        share, how = about.pop("share"), about.pop("how")
        rate, peak = about.pop("rate"), about.pop("peak_flops_per_s")
        about |= {"flops_per_s": rate.value, "low": rate.low, "high": rate.high, "peak_flops_per_s": peak}
        bounds = (share.value, share.low, share.high) if share else (None, None, None)
        return about | dict(zip(("share", "share_low", "share_high"), bounds, strict=True)) | {"how": how}


@functools.cache
def peaks() -> dict[tuple[str, str], tuple[float, str]]:
    """The published peaks: (device as the articles call it, precision) -> (FLOP/s, source)."""
    rows = published.read("peaks.csv")
    return {(row["device"], row["precision"]): (float(row["peak_flops_per_s"]), row["source"]) for row in rows}


def rates(records: list[Record]) -> list[Rate]:
    """Every published time that has a count of its operations, then this run's cases, each workload's together.

    Of this run's: those of a smaller model too, which operations a second can be compared by; no smoke test, and no
    bare product, since the ceilings are the best of these.
    """
    known = [*_published(), *_measured(records)]
    order = [*WORKLOADS, *sorted({rate.workload for rate in known} - WORKLOADS.keys())]
    return sorted(known, key=lambda rate: order.index(rate.workload))


def _published() -> list[Rate]:
    known: dict[tuple, Rate] = {}
    for row in published.rows():
        experiment = row["experiment"]
        if row["flops"] and row["metric"] != "energy_j_per_step":
            rate = Estimate(row["flops"] / row["si"], "FLOP/s", how="published")
            peak, how = peaks().get((row["device"], row["precision"]), (None, NO_PEAK))
            if experiment in CORES_UNKNOWN and row["role"] == "gpu":
                peak, how = None, "how many GPU cores it had is not told"
            share = None if peak is None else rate / Estimate.count(peak, "FLOP/s")
            name, _, version = row["framework"].partition(" ")
            shown = [f"{key.replace('_', ' ')} {value}" for key, value in row["config"].items()]
            shown = ", ".join([*shown, version] if version else shown)
            about = (row["article"], WORKLOAD_OF.get(experiment, experiment), row["device"], shown, "published")
            about += (row["role"], name.replace("pytorch", "torch"))
            # A row that is printed twice is there once.
            known[(*about, rate)] = Rate(*about, row["precision"], rate, peak, share, how)
    return list(known.values())


def _measured(records: list[Record]) -> list[Rate]:
    best, measured = roofline.ceilings(records), []
    for record, rate in roofline.rated(records, without=roofline.SOURCES):
        share, precision, ceiling = roofline.share(record, best, rate), cases.precision(record), best.over(record)
        how = f"no product in {precision} was measured in this run"
        if share:
            how = f"the best product in {precision} of this run, with {FRAMEWORKS.get(ceiling.record.framework, '')}"
        shown = settings(record) + (SMALLER if record.scaled else "")
        about = (record.article, _workload(record), chip_name(record), shown, "measured", cases.kind(record))
        about += (record.framework, precision, rate)
        measured.append(Rate(*about, ceiling.value if share else None, share, how))
    return measured


def _workload(record: Record) -> str:
    name, model = experiment_of(record.experiment), record.config.get("model", "")
    name = WORKLOAD_OF.get(name, name)
    if name in WORKLOADS:
        return name
    if name == "model_sizes" and model == "vgg16":
        return model
    return f"{name} {model}".strip()


def table(records: list[Record]) -> Table:
    """All rates with their shares, the articles' first in each workload; as numbers the same with all that is known."""
    known, rows = rates(records), []
    for one in known:
        rate = quantity_per_s(one.rate.value, "FLOP/s") + plus_minus(one.rate)
        peak = quantity_per_s(one.peak_flops_per_s, "FLOP/s") if one.peak_flops_per_s else ""
        device = f"{one.device}, {FRAMEWORKS.get(one.framework, one.framework)}"
        device += "" if one.precision == "fp32" else f", {one.precision}"
        article = "the kit" if one.article == KIT else one.article
        cells = (WORKLOADS.get(one.workload, one.workload), article, device, one.settings, rate, peak, _percent(one))
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
    title, data = "What every device achieves of its peak", tuple(one.numbers() for one in known)
    return Table(title, columns, tuple(rows), tuple(notes), data)


def _sources() -> str:
    devices: dict[tuple[str, str], list[str]] = {}
    for row in published.read("peaks.csv"):
        devices.setdefault((row["source"], row["url"]), []).append(row["device"])
    return "; ".join(f"{', '.join(names)}: {source} ({url})" for (source, url), names in devices.items())


def _percent(one: Rate) -> str:
    """A share, as people read it, with its interval; empty if there is none."""
    if one.share is None:
        return ""
    share, low, high = (significant(100 * (x or 0)) for x in (one.share.value, one.share.low, one.share.high))
    return f"{share} %" + ("" if one.share.low is None else f" ({low} to {high} %)")


def sentence(records: list[Record]) -> str:
    """How this machine compares, for who knows none of the articles; empty if it has measured no rate.

    Medians of the best shares by model, of this machine and of the articles' devices, over the models that both have
    timed; over all that each has timed if there are none of these.
    """
    known = rates(records)
    ours, theirs = ([rate for rate in known if rate.source == source] for source in ("measured", "published"))
    if not ours:
        return ""
    both = {rate.workload for rate in ours} & {rate.workload for rate in theirs if rate.share}
    ours, theirs = ([rate for rate in side if rate.workload in both or not both] for side in (ours, theirs))
    parts: dict[str, list[str]] = {}
    without = []
    for role, name in (("cpu", "processor"), ("gpu", "GPU")):
        here = [rate for rate in ours if rate.role == role]
        if shares := _best(here):
            parts.setdefault(_work(len(shares), here, bool(both)), []).append(f"{name} reached {_spread(shares)}")
        elif here:
            without.append(
                f"What share of its best this machine's {name} reached cannot be told: this run has timed no plain "
                "matrix product on it in the same precision (notebook ceilings does)."
            )
    sentences = [
        f"{work}, this machine's {' and its '.join(devices)} of the operations a second of its best plain matrix "
        "product."
        for work, devices in parts.items()
    ] + without
    if shares := _best(theirs):
        models = "the same models" if both else "theirs"
        sentences.append(
            f"The articles' GPUs reached {_spread(shares)} of their published peaks on {models} ({len(shares)} pairs "
            "of a model and a GPU). That is the harder test: a published peak is cores times clock on paper, and most "
            "of the articles' times have the loading of data in them."
        )
    return " ".join(sentences)


def _work(count: int, here: list[Rate], published_too: bool) -> str:
    """What this machine's shares are of, as the beginning of a sentence."""
    smaller = [rate.settings.endswith(SMALLER) for rate in here if rate.share]
    version = (" (in a smaller version)" if count == 1 else " (in smaller versions)") if all(smaller) else ""
    if any(smaller) and not version:
        version = " (some of it in a smaller version)" if count == 1 else " (some in smaller versions)"
    if published_too:
        models = "one model" if count == 1 else f"{count} models"
        return f"Training {models} that the articles have timed too{version}"
    works = "one workload" if count == 1 else f"{count} workloads"
    return f"Computing {works} that no article prints a time of{version}"


def _best(known: list[Rate]) -> list[float]:
    """The best share of each workload on each device."""
    shares: dict[tuple[str, str], list[float]] = {}
    for rate in known:
        if rate.share:
            shares.setdefault((rate.workload, rate.device), []).append(rate.share.value)
    return [max(several) for several in shares.values()]


def _spread(shares: list[float]) -> str:
    middle, low, high = (significant(100 * share, 2) for share in (statistics.median(shares), min(shares), max(shares)))
    return f"{middle} %" if low == high else f"{low} to {high} % (median {middle} %)"
