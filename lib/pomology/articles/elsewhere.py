"""What others have published: times of training, each with its source, and what is wrong with it.

They stand beside the articles' in the ranking and in the notebooks of `today/`, and in no table of the articles.
"""

from __future__ import annotations

import functools
import json
import re

from pomology.articles import published

# What can be wrong with a published time. With one of these it is drawn hollow, and is in no mean.
FAULTS = {
    "amp": "mixed precision, where the others are fp32",
    "evaluation": "evaluation is in the time",
    "few-steps": "of fewer than 20 steps",
    "loader-bound": "loading data took longer than computing",
    "nan-loss": "the loss was no number at the end",
    "no-optimizer": "without the step of the optimizer",
    "one-run": "measured once",
    "own-batch": "at a batch size of its own, which the source does not print",
    "profiler": "measured with a profiler on",
    "shared": "on a machine that others used meanwhile",
    "stand-in": "of data that was made up",
    "start-up": "the start of the program is in the time",
    "swapping": "memory was short: the machine swapped",
    "tf32": "in TF32, which the source does not say",
    "unclear": "what was timed is not quite clear from its source",
}
# Without those that are so common, and change a time so little, that a number with nothing else stays in the mean.
SERIOUS = FAULTS.keys() - {"one-run", "stand-in", "few-steps", "no-optimizer"}
PRECISIONS = ("fp32", "tf32", "bf16", "amp", "fp16")
SHARED = {"amp", "tf32"}  # of two devices that both have it: they did the same
# Experiments of the articles. A digit takes their loaders 20 to 30 µs (docs/findings.md), an epoch of them over 1 s:
# most print little more, and processors no more than GPUs with a hundred times their peak.
LOADER_BOUND = ("vae", "rasbt_lenet", "rasbt_mlp")

# Workloads of the same model, in another training.
ALIKE = {"bert_base": ("bert_base_squad",), "gpt2_small": ("gpt2_small_book",)}
# How sources call samples of random numbers that are on the device already.
MADE_UP = ("synthetic", "ImageNet, syntetic", "random, on the GPU")
# Of a training step of torchvision's ResNet-50, for a picture: three times the 4.089 billion multiply-adds of the
# forward pass, less the gradient of the first layer's input (64 × 112² × 7² × 3), which no training computes.
RESNET50_FLOPS = 2 * (3 * 4.089e9 - 64 * 112**2 * 7**2 * 3)
# Of BERT-base and GPT-2-small: what a token's last matrix gives out.
BLOCKS, WIDTH = 12, 768
OUTPUTS = {"bert_base": 0, "bert_base_squad": 0, "gpt2_small": 50_257, "gpt2_small_book": 50_257}


@functools.cache
def sources() -> dict[str, dict[str, str]]:
    """All sources, by their id: title, author, date, licence, note, and the address, with the commit or the revision
    where the place has one."""
    return {line["id"]: line for line in published.read("sources.csv")}


@functools.cache
def workloads() -> dict[str, str]:
    """What the sources trained, by id, in words; the kit's own experiments are there by their names."""
    return {line["id"]: line["title"] for line in published.read("workloads.csv")}


@functools.cache
def devices() -> dict[str, str]:
    """How the articles and the sources call a device -> one name for it, and for what they name alike."""
    return {line["printed"]: line["device"] for line in published.read("devices.csv")}


@functools.cache
def _rows() -> tuple[dict, ...]:
    return tuple(map(_read_row, published.read("elsewhere.csv")))


def _read_row(line: dict[str, str]) -> dict:
    value = float(line["value"])
    config = json.loads(line["config"])
    if config.get("data") in MADE_UP:
        config["data"] = "random"
    faults = line["faults"].split()
    if isinstance(config.get("batch_size"), str):  # in words, as the largest that fits on each device
        faults.append("own-batch")
    device = devices().get(line["device"], line["device"])
    row = {"value": value, "faults": tuple(faults), "config": config, "device": device}
    return {**line, **row, **published.in_si(line, value)}


def rows(workload: str | None = None) -> list[dict]:
    """The rows, as published.rows has those of the articles, with these keys of their own.

    config: what must be equal for two rows to have done the same. faults: of FAULTS. place: where in the source it is.
    checked: `text` where it was read a second time from the source's own text, else why it could not be.
    """
    return [row for row in _rows() if workload in (None, row["workload"])]


def beside(workload: str) -> list[dict]:
    """The rows of a workload, and of those ALIKE, as a notebook shows them, in the form of `published.rows`.

    flops_per_s: the printed speed times the work on paper; None where nobody has counted that.
    """
    found = []
    for name in (workload, *ALIKE.get(workload, ())):
        for row in rows(name):
            if row["metric"] in ("forward_s", "backward_s"):  # parts of a pass
                continue
            config = {**row["config"], "precision": row["precision"]}
            if name != workload:
                config["training"] = workloads()[name]
            metric = "throughput" if row["metric"].endswith("_per_s") else row["metric"]
            work = _work(row)
            found.append({**row, "config": config, "metric": metric, "flops_per_s": work and work * rate(row)})
    return found


def samples(row: dict) -> float:
    """How many samples `rate` counts as one; 0 where that is not known."""
    config = row["config"]
    metric = row["metric"]
    if metric == "samples_per_s":
        return 1
    if metric == "tokens_per_s":
        tokens = config.get("sequence")
        return 1 / tokens if isinstance(tokens, int) else 0
    if metric == "epoch_s":
        images = re.search(r"([\d,]+) images", config.get("data", ""))
        return int(images[1].replace(",", "")) if images else 0
    size = config.get("batch_size")
    if not isinstance(size, int):
        return 0
    if metric == "fit_s":
        return size * config.get("steps", 0)
    return size if metric in ("steps_per_s", "step_s", "pass_s") else 0


def _work(row: dict) -> float | None:
    """Operations of what `rate` counts, forward and backward, a multiply-add as two; None where nobody counted them."""
    workload = row["workload"]
    tokens = row["config"].get("sequence")
    sample = RESNET50_FLOPS if workload == "resnet50" and row["config"].get("image_size") == 224 else 0
    if isinstance(tokens, int) and workload in OUTPUTS:
        products = BLOCKS * 12 * WIDTH**2 + OUTPUTS[workload] * WIDTH
        sample = 6 * tokens * (products + BLOCKS * 2 * tokens * WIDTH)  # and attention, without skipping what is masked
    return sample * samples(row) or None


def rate(row: dict) -> float:
    """How much of its work a device did in a second: samples or tokens where those are printed, else whole pieces."""
    return row["si"] if row["metric"].endswith("_per_s") else 1 / row["si"]


def faults(row: dict) -> frozenset[str]:
    """Those of an article's row: its loading, and the precision that PyTorch had by default (peaks.csv)."""
    found = set()
    if row["experiment"] in LOADER_BOUND:
        found.add("loader-bound")
    if any(line["device"] == row["device"] and line["precision"] == "tf32" for line in published.read("peaks.csv")):
        found.add("tf32")
    return frozenset(found)
