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
# What the sources trained: id -> title; the kit's experiments by their names.
WORKLOADS = {line["id"]: line["title"] for line in published.read("workloads.csv")}


@functools.cache
def rows(workload: str | None = None) -> tuple[dict, ...]:
    """Return the rows in the form of `published.rows`, with these keys of their own.

    config: what must be equal for two rows to have done the same; of random numbers that are on
    the device already `data` is `random`, whatever the source calls them. faults: of FAULTS. place: where
    in the source it is. checked: `text` where it was read a second time from the source's own text,
    else why it could not be.
    """
    found = []
    for line in published.read("elsewhere.csv"):
        if workload not in (None, line["workload"]):
            continue
        row = dict.fromkeys(("article", "backend", "note"), "") | published.typed(line)
        row |= {"status": "ok", "experiment": row["workload"]}
        row["faults"] = tuple(row["faults"].split())
        found.append(row)
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


def rate(row: dict) -> float:
    """Return samples or tokens a second where those are printed, else whole pieces of work."""
    return row["si"] if row["metric"].endswith("_per_s") else 1 / row["si"]
