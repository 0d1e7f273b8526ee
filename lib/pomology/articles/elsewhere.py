"""Times of training that others have published, each with its source and its faults.

They stand beside the articles' in the ranking and in the notebooks of `today/`.
"""

from __future__ import annotations

import functools
import re

from pomology.articles import published

# What can be wrong with a published time. One with a serious fault is in no mean.
FAULTS = {line["id"]: line["title"] for line in published.read("faults.csv")}
SERIOUS = {line["id"] for line in published.read("faults.csv") if line["serious"] == "yes"}
PRECISIONS = ("fp32", "tf32", "bf16", "amp", "fp16")
SHARED = {"amp", "tf32"}  # two devices that both have it did the same
# Experiments whose loaders take longer than a GPU computes, as 20 to 30 µs a digit
# (docs/findings.md).
LOADER_BOUND = ("vae", "rasbt_lenet", "rasbt_mlp")

# What sources call random numbers that are on the device already.
MADE_UP = ("synthetic", "ImageNet, syntetic", "random, on the GPU")


@functools.cache
def sources() -> dict[str, dict[str, str]]:
    """Return all sources by id: title, author, date, licence, note and address."""
    return {line["id"]: line for line in published.read("sources.csv")}


@functools.cache
def workloads() -> dict[str, str]:
    """Return what the sources trained: id -> title; the kit's experiments by their names."""
    return {line["id"]: line["title"] for line in published.read("workloads.csv")}


@functools.cache
def devices() -> dict[str, str]:
    """Return the names of devices: as articles and sources print them -> one name for each."""
    return {line["printed"]: line["device"] for line in published.read("devices.csv")}


@functools.cache
def rows(workload: str | None = None) -> tuple[dict, ...]:
    """Return the rows in the form of `published.rows`, with these keys of their own.

    config: what must be equal for two rows to have done the same. faults: of FAULTS. place: where
    in the source it is. checked: `text` where it was read a second time from the source's own text,
    else why it could not be.
    """
    found = []
    for line in published.read("elsewhere.csv"):
        if workload not in (None, line["workload"]):
            continue
        row = published.typed(line)
        config, faults = row["config"], row["faults"].split()
        if config.get("data") in MADE_UP:
            config["data"] = "random"
        if isinstance(config.get("batch_size"), str):  # in words, as the largest that fits
            faults.append("own-batch")
        row |= {"faults": tuple(faults), "year": row["year"][:4], "experiment": row["workload"]}
        row["device"] = devices().get(row["device"], row["device"])
        found.append(dict.fromkeys(("article", "backend", "note"), "") | {"status": "ok"} | row)
    return tuple(found)


def samples(row: dict) -> float:
    """Return how many samples `rate` counts as one; 0 where that is not known."""
    metric, config = row["metric"], row["config"]
    sequence, batch_size = config.get("sequence"), config.get("batch_size")
    if metric == "samples_per_s":
        return 1
    if metric == "tokens_per_s" and isinstance(sequence, int):
        return 1 / sequence
    if metric == "epoch_s":
        epoch = re.search(r"([\d,]+) images", config.get("data", ""))
        return int(epoch[1].replace(",", "")) if epoch else 0
    steps = {"fit_s": config.get("steps", 0), "steps_per_s": 1, "step_s": 1, "pass_s": 1}
    return batch_size * steps.get(metric, 0) if isinstance(batch_size, int) else 0


def work(row: dict) -> float | None:
    """Return the operations of what `rate` counts, forward and backward; None if not known."""
    size = row["config"].get("image_size") or row["config"].get("sequence")
    known = (row["workload"], str(size), "fp32")
    flops = sum(
        float(line["convolutions"]) + float(line["products"])
        for line in published.read("work.csv")
        if (line["workload"], line["size"], line["precision"]) == known
    )
    return flops * samples(row) or None


def rate(row: dict) -> float:
    """Return samples or tokens a second where those are printed, else whole pieces of work."""
    return row["si"] if row["metric"].endswith("_per_s") else 1 / row["si"]


def faults(row: dict) -> frozenset[str]:
    """Return those of an article's row: slow loading, and TF32 where PyTorch had it by default."""
    found = {"loader-bound"} if row["experiment"] in LOADER_BOUND else set()
    peaks = {(line["device"], line["precision"]) for line in published.read("peaks.csv")}
    return frozenset(found | ({"tf32"} if (row["device"], "tf32") in peaks else set()))
