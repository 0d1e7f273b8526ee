"""The chart that no article has: all their devices and this machine on one axis, in operations a second.

A published time becomes operations a second by the work on paper, and is compared with the published peak of its
device; a measured rate is compared with the best of the same run. Published peaks, each with its source, are in
`articles/data/peaks.csv`; no source has a peak of the articles' processors. Reads the records of a run; times nothing.
"""

import functools
import json
import statistics
from collections.abc import Container, Iterator
from operator import itemgetter
from typing import NamedTuple

from pomology.articles import elsewhere, published
from pomology.format import few, quantity_per_s, significant
from pomology.measure.estimate import Estimate
from pomology.report import roofline
from pomology.report.table import YEARS, Table, grouped
from pomology.results import cases
from pomology.results.cases import chip_name, combined, config_text, framework_name, settings
from pomology.results.record import Record

# What the articles have timed and somebody has counted, in the order of the chart.
WORKLOADS = {
    "dcgan": "DCGAN",
    "siamese": "Siamese network",
    "transformer_lm": "Transformer language model",
    "vae": "Variational autoencoder (VAE)",
    "simclr": "SimCLR with ResNet-18",
    "gpt2_pretraining": "GPT-2-large, pre-training",
    # Upstream of article 000, which prints none of their times.
    "simclr_reference": "SimCLR with ResNet-18 at batch 512 (upstream)",
    "vgg16": "VGG-16 at 224 × 224 pixels (upstream)",
    "rasbt_lenet": "LeNet-5 on digits (upstream)",
    "rasbt_mlp": "Perceptron on digits (upstream)",
}
# Experiments of an article whose workload has another name.
WORKLOAD_OF = {"rasbt_vgg16": "vgg16", "memory": "memory_over_time", "model_sizes vgg16": "vgg16"}
# The list of times that article 000 points to does not tell how many GPU cores its Macs had, and Apple's peaks are by
# their number.
CORES_UNKNOWN = ("rasbt_vgg16", "rasbt_lenet", "rasbt_mlp")
NO_PEAK = "the kit has found no published peak of it"
NOTES = (
    "Achieved: operations on paper (products, convolutions and attention) over the whole time that was printed, "
    "with what else is in it: loading data, validation, starting up. So are this machine's at the settings of an "
    "article; “computing alone” are its steps on data that is on the device already, which no article prints.",
    YEARS,
    "Peak: of the articles' devices the published one, in single precision, which is cores times clock on paper; "
    "of this machine the best rate that the same run has measured, of a matrix product or on a processor of a "
    "convolution, which is less than a published peak. So "
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
CLEARLY = 1.2  # by how much medians of shares differ before the lower one is called slow
COMPUTING = ", computing alone"  # and of a rate without what else is in the time that an article prints


class Rate(NamedTuple):
    """What a device achieves on a workload, FLOP/s, and the share of its peak that this is; None is not known.

    source: `published` or `measured`. role: `cpu`, `gpu` (published: of Apple) or `rival`. setting: the article's own,
    as JSON, where it is that and the time is the whole one; empty also of times that no article prints.
    peak_flops_per_s: the published one, or the best of the run. how: where the peak is from, or why there is
    none.
    """

    article: str
    workload: str
    device: str
    settings: str
    source: str
    role: str
    framework: str
    version: str
    year: str
    precision: str
    setting: str
    rate: Estimate
    peak_flops_per_s: float | None
    share: Estimate | None
    how: str

    def numbers(self) -> dict:
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
        framework = row["framework"].partition(" ")[0].replace("pytorch", "torch")
        software = published.software(row["article"], row["device"], row["framework"], row["source"])
        about = (row["article"], WORKLOAD_OF.get(experiment, experiment), row["device"], config_text(row["config"]))
        about += ("published", row["role"], framework, *software, row["precision"])
        about += (_setting(row) if row["source"] == "article" else "", rate, peak)
        yield Rate(*about, peak and rate / Estimate.count(peak, "FLOP/s"), how)


def must_match(row: dict) -> dict:
    """What a case must have of a row's settings: of an epoch all but how many of them a mean was taken of."""
    return {key: value for key, value in row["config"].items() if (key, row["metric"]) != ("epochs", "epoch_s")}


def _setting(row: dict) -> str:
    return json.dumps(must_match(row), sort_keys=True)


def _measured(records: list[Record]) -> Iterator[Rate]:
    best, fewest = roofline.ceilings(records), {}
    rated = [(record, rate, _row(record)) for record, rate in roofline.rated(records, without=roofline.SOURCES)]
    for record, _, row in rated:  # a second way to run a setting has more keys in its config than the article's own
        key = (record.experiment, record.backend, row and _setting(row))
        fewest[key] = min(fewest.get(key, record), record, key=lambda case: len(case.config))
    for record, computing, row in rated:
        sides = [(computing, "", COMPUTING if row else SMALLER if record.scaled else "")]
        if row and fewest[record.experiment, record.backend, _setting(row)] is record:
            repeats = [other for other in records if (other.experiment, other.case) == (record.experiment, record.case)]
            if (time := combined(repeats, row["metric"])) and time.value > 0:
                sides.insert(0, (Estimate.count(row["flops"], "FLOP") / time, _setting(row), ""))
        for rate, setting, words in sides:
            share, precision, ceiling = roofline.share(record, best, rate), cases.precision(record), best.over(record)
            how = f"no product in {precision} was measured in this run"
            if share:
                operator = "convolution" if ceiling.record.config["operation"] == "convolution" else "product"
                how = f"the best {operator} in {precision} of this run, with {framework_name(ceiling.record)}"
                how += f"; {roofline.FASTER}, so clipped at 100 %" if share.value > 1 else ""
                share = roofline.clipped(share)
            about = (record.article, _workload(record), chip_name(record), settings(record) + words, "measured")
            about += (cases.kind(record), record.framework, record.framework_version, record.started[:4])
            yield Rate(*about, precision, setting, rate, ceiling.value if share else None, share, how)


def _row(record: Record) -> dict | None:
    """The published row of a case's setting, whose operations are in the time that the article prints; of several that
    count differently the one with the fewest. None of a smaller model, and where no article has timed that."""
    if record.scaled:
        return None
    own, rows = record.config, published.rows(experiment=published.experiment_of(record.experiment))
    rows = [row for row in rows if row["flops"] and row["source"] == "article" and row["metric"].endswith("_s")]
    pairs = [(row, row["config"].keys() & own.keys()) for row in rows]
    same = [row for row, keys in pairs if keys and all(row["config"][key] == own[key] for key in keys)]
    return min(same, key=lambda row: row["flops"], default=None)


def alike(known: list[Rate]) -> list[Rate]:
    """Of each workload and device its whole time at one setting of the article: of those that it has, the one at which
    a published device is fastest, so that it is the same for all that share one; of two frameworks the faster."""
    known = [rate for rate in known if rate.setting]
    slowest_first = sorted((rate for rate in known if rate.source == "published"), key=lambda rate: rate.rate.value)
    reach = {(rate.workload, rate.setting): rate.rate.value for rate in slowest_first}
    order = sorted(known, key=lambda rate: (reach[rate.workload, rate.setting], rate.rate.value))
    return list({(rate.workload, rate.source, rate.role, rate.device): rate for rate in order}.values())


def computing(known: list[Rate], workloads: Container[str]) -> list[Rate]:
    """Of each of these workloads and devices of this machine its steps alone: at the setting that `alike` takes, or if
    there is none, at the setting of the middle rate; of two frameworks the faster."""
    whole = {(rate.workload, rate.role): rate for rate in alike(known) if rate.source == "measured"}
    steps = [rate for rate in known if rate.source == "measured" and not rate.setting and rate.workload in workloads]
    chosen: dict[tuple[str, str], Rate] = {}
    for here in grouped(steps, lambda rate: (rate.workload, rate.role, rate.framework)):
        key = here[0].workload, here[0].role
        same = [rate for rate in here if key in whole and rate.settings == whole[key].settings + COMPUTING]
        ranked = sorted(same or here, key=lambda rate: rate.rate.value)
        middle = ranked[(len(ranked) - 1) // 2]
        chosen[key] = max(chosen.get(key, middle), middle, key=lambda rate: rate.rate.value)
    return list(chosen.values())


def _workload(record: Record) -> str:
    name = published.experiment_of(record.experiment)
    name = WORKLOAD_OF.get(name, name)
    with_model = name if name in WORKLOADS else f"{name} {record.config.get('model', '')}".strip()
    return WORKLOAD_OF.get(with_model, with_model)


def table(records: list[Record]) -> Table:
    """All rates with their shares, the articles' first in each workload; as numbers the same with all that is known."""
    lines = []
    for rate in rates(records):
        peak = quantity_per_s(rate.peak_flops_per_s, "FLOP/s") if rate.peak_flops_per_s else ""
        device = cases.with_software(rate.device, rate.framework, rate.version, rate.year)
        device += "" if rate.precision == "fp32" else f", {rate.precision}"
        article = "the kit" if rate.article == published.KIT else rate.article
        cells = (WORKLOADS.get(rate.workload, rate.workload), article, device, rate.settings)
        cells += (roofline.rate_text(rate.rate), peak, roofline.percent(rate.share), rate.how)
        lines.append((cells, rate.numbers(), rate.source))
    columns = ("Workload", "Article", "Device", "Settings", "Achieved", "Peak", "Share of it", "The peak is")
    sources = grouped(published.read("peaks.csv"), itemgetter("source", "url"))
    shown = (f"{', '.join(row['device'] for row in of)}: {of[0]['source']} ({of[0]['url']})" for of in sources)
    lacking = "" if roofline.ceilings(records) else roofline.NO_CEILINGS
    notes = [*NOTES, f"Sources of the published peaks: {'; '.join(shown)}.", lacking]
    return Table.of("What every device achieves of its peak", columns, lines, notes)


def _selected(records: list[Record]) -> tuple[list[Rate], list[Rate], list[Rate], set[str]]:
    """This machine's rates; of all whole times at the articles' own settings (`alike`), its computing alone, and
    the workloads that both have timed; of a run with none of these its computing is that on all that it has."""
    known = rates(records)
    whole, ours = alike(known), [rate for rate in known if rate.source == "measured"]
    timed = {rate.workload for rate in ours}
    both = timed & {rate.workload for rate in whole if rate.source == "published" and rate.share}
    return ours, whole, computing(known, both or timed), both


def sentence(records: list[Record]) -> str:
    """How this machine compares, for who knows none of the articles; empty if it has measured no rate."""
    ours, whole, alone, both = _selected(records)
    shared = [rate for rate in whole if rate.workload in both]
    sentences = []
    times = {"at the articles' own settings, loading and all else included": shared, "computing alone": alone}
    for role, name in {"cpu": "processor", "gpu": "GPU"}.items():
        parts = []
        for how, these in times.items():
            if here := [rate for rate in these if (rate.source, rate.role) == ("measured", role) and rate.share]:
                count = f"{len(here)} models" if len(here) > 1 else "one model"
                count += ", smaller versions among them" * any(rate.settings.endswith(SMALLER) for rate in here)
                parts.append(f"{_spread(here)} {how} ({count})")
        if parts:
            reached = "; ".join(parts)
            sentences.append(f"Of its best measured rate of operations this machine's {name} reached {reached}.")
        elif any(rate.role == role for rate in ours):
            sentences.append(
                f"What share of its best this machine's {name} reached cannot be told: this run has timed no plain "
                "matrix product on it in the same precision (notebook ceilings does)."
            )
    if printed := [rate for rate in shared if rate.source == "published" and rate.share]:
        sentences.append(
            f"The articles' GPUs reached {_spread(printed)} of their published peaks on the same models "
            f"({len(printed)} pairs of a model and a GPU, whole times). That is the harder test: a published peak is "
            "cores times clock on paper."
        )
    return " ".join(sentences)


def _spread(rates: list[Rate]) -> str:
    shares = [rate.share.value for rate in rates]
    about = "about " * any(few(rate.share.replace(unit="x")) for rate in rates)
    middle, low, high = (significant(100 * share, 2) for share in (statistics.median(shares), min(shares), max(shares)))
    return about + (f"{middle} %" if low == high else f"{low} to {high} % (median {middle} %)")


class Reach(NamedTuple):
    """How much of its peak a device reaches, by workload; 1 is all of it. whole: at a setting of the article (`alike`);
    alone: this machine's `computing`."""

    source: str
    role: str
    device: str
    whole: dict[str, Estimate]
    alone: dict[str, Estimate]

    @property
    def median(self) -> float:
        """Of the whole times, or where it has none, of the computing alone."""
        return statistics.median(share.value for share in (self.whole or self.alone).values())


def reaches(records: list[Record]) -> list[Reach]:
    """Every device with a known peak, this machine's first, and the nearest to their peaks first: on the workloads that
    articles have timed too, or of a run with none of these on all that it has."""
    _, whole, alone, _ = _selected(records)
    made: dict[tuple, Reach] = {}
    for rate in (*whole, *alone):
        if rate.share:
            about = (rate.source, rate.role, elsewhere.devices().get(rate.device, rate.device))
            reach = made.setdefault(about, Reach(*about, {}, {}))
            (reach.whole if rate.setting else reach.alone)[rate.workload] = rate.share
    return sorted(made.values(), key=lambda reach: (reach.source, -reach.median))


def slowest(known: list[Reach]) -> str:
    """Which of this machine's devices is slow for its peak, over the models that all of them have trained; empty where
    none has a share."""
    ours = [reach for reach in known if reach.source == "measured"]
    if len(ours) == 1:
        models = f"median of {count} models" if (count := len(ours[0].whole or ours[0].alone)) > 1 else "one model"
        share = f"reaches {percent(ours[0].median)} of its best measured rate ({models})"
        return f"None can be called slow, as only one was measured: the {ours[0].device} {share}."
    for how in ("whole", "alone") if ours else ():
        shares = [getattr(reach, how) for reach in ours]
        if shared := set.intersection(*map(set, shares)):
            medians = [statistics.median(share[name].value for name in shared) for share in shares]
            (least, slow), *others = sorted(zip(medians, (reach.device for reach in ours), strict=True))
            models = f"median of {len(shared)} models" if len(shared) > 1 else "one model"
            text = f"reaches {percent(least)} of its best measured rate, "
            text += ", ".join(f"the {name} {percent(median)} of its own" for median, name in others)
            text += f" ({models}, {'whole times' if how == 'whole' else 'computing alone'})."
            # Of medians so near to each other another run may have the order turned round.
            lead = "The {} is slow for its peak: it" if others[0][0] > CLEARLY * least else "None is the slower: the {}"
            return f"{lead.format(slow)} {text}"
    return "Which device is slow for its peak cannot be told: they have trained no model in common." if ours else ""


def percent(share: float) -> str:
    return f"{significant(100 * share, 2)} %"
