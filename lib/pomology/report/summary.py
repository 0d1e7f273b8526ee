"""The chart that no article has: all their devices and this machine on one axis, in operations a second.

A published time becomes operations a second by the work on paper, and is compared with the published peak of its
device; a measured rate is compared with the best product of the same run. Published peaks, each with its source, are in
`articles/data/peaks.csv`; no source has a peak of the articles' processors. Reads the records of a run; times nothing.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterator
from typing import NamedTuple

from pomology.articles import published
from pomology.articles.published import KIT, experiment_of
from pomology.format import plus_minus, quantity_per_s, significant
from pomology.measure.estimate import Estimate
from pomology.report import roofline
from pomology.report.roofline import NO_CEILINGS
from pomology.report.table import Table
from pomology.results import cases
from pomology.results.cases import chip_name, config_text, framework_name, settings
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
WORKLOAD_OF |= {"model_sizes vgg16": "vgg16"}
MEASURED_ONLY = "Timed on this machine only"
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
NOTES = (
    "Achieved: operations on paper (products, convolutions and attention) over the whole time that was printed, "
    "with what else is in it: loading data, validation, starting up. This machine's are of steps alone, on data "
    "that is on the device already, where such steps were timed.",
    "Peak: of the articles' devices the published one, in single precision, which is cores times clock on paper; "
    "of this machine the best product that the same run has measured, which is less than a published peak. So "
    "shares of the two are not the same measure: the same program on the same device has the larger share here.",
    "A share near or above 100 % is no mistake: a convolution may be computed with fewer operations than are "
    "counted (Winograd's). Of article 000's A6000 and of the 3090 the peak is that of TF32.",
    "VGG-16, LeNet-5, the perceptron and SimCLR at batch 512: times that article 000 points to and does not print. "
    "Those of LeNet-5 and the perceptron are seconds printed in hundredths of a minute, the shortest with an error "
    "of up to an eighth; they tell how fast pictures of digits are read, not how fast a device computes.",
    "Published times that are not here: those of the same trainings once more (the whole of SimCLR's; VGG-16's, "
    "LeNet-5's and the perceptron's with their evaluation), and launches of a kernel (article 001, table 6). "
    "Article 004 prints ratios and no times; of article 001 the figures 3 to 7 are pictures only, and table 5 is "
    "of energies.",
)
SMALLER = ", a smaller model"  # ends the settings of a case that is not the article's own model


class Rate(NamedTuple):
    """What a device achieves on a workload, FLOP/s, and the share of its peak that this is; None is not known.

    source: `published` or `measured`. role: `cpu`, `gpu` (published: of Apple) or `rival`. peak_flops_per_s: the
    published one, or the best product of the run. how: where the peak is from, or why there is none.
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
        *about, rate, peak, share, how = self
        about = dict(zip(self._fields, about, strict=False))
        about |= {"flops_per_s": rate.value, "low": rate.low, "high": rate.high, "peak_flops_per_s": peak}
        shares = {"share": "value", "share_low": "low", "share_high": "high"}
        return about | {key: getattr(share, name, None) for key, name in shares.items()} | {"how": how}


@functools.cache
def peaks() -> dict[tuple[str, str], tuple[float, str]]:
    """The published peaks: (device as the articles call it, precision) -> (FLOP/s, source)."""
    rows = published.read("peaks.csv")
    return {(row["device"], row["precision"]): (float(row["peak_flops_per_s"]), row["source"]) for row in rows}


def rates(records: list[Record]) -> list[Rate]:
    """Every published time that has a count of its operations, then this run's cases, also of smaller models, each
    workload's together; no smoke test, and no bare product, since the ceilings are the best of these."""
    known = [*dict.fromkeys(_published()), *_measured(records)]  # a row that is printed twice is there once
    order = [*WORKLOADS, *sorted({rate.workload for rate in known} - WORKLOADS.keys())]
    return sorted(known, key=lambda rate: order.index(rate.workload))


def _published() -> Iterator[Rate]:
    for row in published.rows():
        if not row["flops"] or row["metric"] == "energy_gpu_j_per_step":
            continue
        experiment, rate = row["experiment"], Estimate(row["flops"] / row["si"], "FLOP/s", how="published")
        # PyTorch computed in TF32, by default, on the devices that have such a peak.
        name = "tf32" if (row["device"], "tf32") in peaks() else row["precision"]
        peak, how = peaks().get((row["device"], name), (None, NO_PEAK))
        if experiment in CORES_UNKNOWN and row["role"] == "gpu":
            peak, how = None, "how many GPU cores it had is not told"
        name, _, version = row["framework"].partition(" ")
        shown = ", ".join(filter(None, (config_text(row["config"]), version)))
        about = (row["article"], WORKLOAD_OF.get(experiment, experiment), row["device"], shown, "published")
        about += (row["role"], name.replace("pytorch", "torch"), row["precision"], rate, peak)
        yield Rate(*about, peak and rate / Estimate.count(peak, "FLOP/s"), how)


def _measured(records: list[Record]) -> Iterator[Rate]:
    best = roofline.ceilings(records)
    for record, rate in roofline.rated(records, without=roofline.SOURCES):
        share, precision, ceiling = roofline.share(record, best, rate), cases.precision(record), best.over(record)
        how = f"no product in {precision} was measured in this run"
        if share:
            how = f"the best product in {precision} of this run, with {framework_name(ceiling.record)}"
            how += f"; {roofline.FASTER}, so clipped at 100 %" if share.value > 1 else ""
            share = roofline.clipped(share)
        shown = settings(record) + (SMALLER if record.scaled else "")
        about = (record.article, _workload(record), chip_name(record), shown, "measured", cases.kind(record))
        yield Rate(*about, record.framework, precision, rate, ceiling.value if share else None, share, how)


def _workload(record: Record) -> str:
    name = experiment_of(record.experiment)
    name = WORKLOAD_OF.get(name, name)
    with_model = name if name in WORKLOADS else f"{name} {record.config.get('model', '')}".strip()
    return WORKLOAD_OF.get(with_model, with_model)


def table(records: list[Record]) -> Table:
    """All rates with their shares, the articles' first in each workload; as numbers the same with all that is known."""
    lines = []
    for one in rates(records):
        rate = quantity_per_s(one.rate.value, "FLOP/s") + plus_minus(one.rate)
        peak = quantity_per_s(one.peak_flops_per_s, "FLOP/s") if one.peak_flops_per_s else ""
        device = f"{one.device}, {framework_name(one)}"
        device += "" if one.precision == "fp32" else f", {one.precision}"
        article = "the kit" if one.article == KIT else one.article
        cells = (WORKLOADS.get(one.workload, one.workload), article, device, one.settings, rate, peak, _percent(one))
        lines.append(((*cells, one.how), one.numbers(), one.source))
    columns = ("Workload", "Article", "Device", "Settings", "Achieved", "Peak", "Share of it", "The peak is")
    sources: dict[tuple[str, str], list[str]] = {}
    for row in published.read("peaks.csv"):
        sources.setdefault((row["source"], row["url"]), []).append(row["device"])
    shown = (f"{', '.join(devices)}: {source} ({url})" for (source, url), devices in sources.items())
    notes = (*NOTES, f"Sources of the published peaks: {'; '.join(shown)}.")
    notes += () if roofline.ceilings(records) else (NO_CEILINGS,)
    return Table.of("What every device achieves of its peak", columns, lines, notes)


def _percent(rate: Rate) -> str:
    """A share, as people read it, with its interval; empty if there is none."""
    if rate.share is None:
        return ""
    share, low, high = (significant(100 * (x or 0)) for x in (rate.share.value, rate.share.low, rate.share.high))
    return f"{share} %" + ("" if rate.share.low is None else f" ({low} to {high} %)")


def sentence(records: list[Record]) -> str:
    """How this machine compares, for who knows none of the articles; empty if it has measured no rate: medians of the
    best shares by model, over the models that both have timed, or if there are none of these over all of each."""
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
            models = f"{len(shares)} models" if len(shares) > 1 else "one model"
            work = f"Training {models} that the articles have timed too"
            work = work if both else f"Computing {models} that no article prints a time of"
            smaller = any(rate.settings.endswith(SMALLER) for rate in here if rate.share)
            work += " (smaller versions among them)" if smaller else ""
            parts.setdefault(work, []).append(f"{name} reached {_spread(shares)}")
        elif here:
            without.append(
                f"What share of its best this machine's {name} reached cannot be told: this run has timed no plain "
                "matrix product on it in the same precision (notebook ceilings does)."
            )
    best = "of the operations a second of its best plain matrix product."
    said = [f"{work}, this machine's {' and its '.join(devices)} {best}" for work, devices in parts.items()] + without
    if shares := _best(theirs):
        models = "the same models" if both else "theirs"
        said.append(
            f"The articles' GPUs reached {_spread(shares)} of their published peaks on {models} ({len(shares)} pairs "
            "of a model and a GPU). That is the harder test: a published peak is cores times clock on paper, and most "
            "of the articles' times have the loading of data in them."
        )
    return " ".join(said)


def _best(known: list[Rate]) -> list[float]:
    """The best share of each workload on each device."""
    shared = sorted((rate for rate in known if rate.share), key=lambda rate: rate.share.value)
    return list({(rate.workload, rate.device): rate.share.value for rate in shared}.values())


def _spread(shares: list[float]) -> str:
    middle, low, high = (significant(100 * share, 2) for share in (statistics.median(shares), min(shares), max(shares)))
    return f"{middle} %" if low == high else f"{low} to {high} % (median {middle} %)"
