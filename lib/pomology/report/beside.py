"""The published rows that stand beside a machine's own: an article's, or those of other sources."""

import itertools
from typing import Any

from pomology.articles import elsewhere, published
from pomology.results import cases

AXES = {"batch_size", "precision"}  # settings that other sources vary in one measurement
# Workloads of the same model, in another training.
ALIKE = {"bert_base": ("bert_base_squad",), "gpt2_small": ("gpt2_small_book",)}


def of_article(experiment: str) -> list[dict[str, Any]]:
    """Return the rows of an experiment in the article's order, with these keys more.

    label: the device, and what it was timed with. line: what is equal in the values of one row of
    the article. flops_per_s: the operations on paper over the printed time, None where either is
    missing. remark: why a value is no number.
    """
    rows = []
    for row in published.rows(experiment=experiment):
        timed = row["flops"] and row["si"] and row["si_unit"] == "s"
        added = {
            "label": _label(row) if row["device"] else "the article",
            "line": (row["item"], row["row"], row["framework"], row["backend"]),
            "flops_per_s": row["flops"] / row["si"] if timed else None,
            "remark": row["note"] if row["printed"] and row["si"] is None else "",
        }
        rows.append(row | added)
    return rows


def of_others(workload: str) -> list[dict[str, Any]]:
    """Return what other sources have timed, with the same keys: by precision, the fastest first.

    Of the same measurement at several batch sizes the fastest is a row. flops_per_s: the printed
    speed times the operations on paper, None where those are not known.
    """

    def order(row: dict) -> tuple:
        return elsewhere.PRECISIONS.index(row["precision"]), -(row["flops_per_s"] or 0.0)

    found = []
    workloads = (workload, *ALIKE.get(workload, ()))
    for row in itertools.chain.from_iterable(map(elsewhere.rows, workloads)):
        if row["metric"] in ("forward_s", "backward_s"):  # parts of a pass
            continue
        config = row["config"] | {"precision": row["precision"]}
        if row["workload"] != workload:
            config["training"] = elsewhere.workloads()[row["workload"]]
        setting = cases.config_text({key: config[key] for key in config if key not in AXES})
        remarks = [row["source"], setting, *(elsewhere.FAULTS[fault] for fault in row["faults"])]
        flops = elsewhere.work(row)
        source = elsewhere.sources()[row["source"]]
        added = {
            "config": config,
            "metric": "throughput" if row["metric"].endswith("_per_s") else row["metric"],
            "label": _label(row),
            "line": (_label(row), row["precision"], row["faults"], setting),
            "flops_per_s": flops * elsewhere.rate(row) if flops else None,
            "printed": f"{row['bound']}{row['value']:,.6g} {row['unit']}",
            "remark": "; ".join(filter(None, remarks)),
            "note": "{id}: {title}, {author}, {date}, {url}".format_map(source),
        }
        found.append(row | added)
    rows: dict[tuple, dict] = {}
    for row in sorted(found, key=order):
        rows.setdefault(row["line"], row)
    return list(rows.values())


def _label(row: dict[str, Any]) -> str:
    return cases.with_software(row["device"], row["framework"], row["version"], row["year"])
