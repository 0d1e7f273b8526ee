"""Published results of other sources than the articles, as rows next to measured cases."""

from pomology.articles import published
from pomology.results import cases

PRECISIONS = ("fp32", "tf32", "bf16", "amp", "fp16")
# Workload and size of a sample -> FLOPs per sample, forward and backward.
WORK = {
    (line["workload"], line["size"]): float(line["convolutions"]) + float(line["products"])
    for line in published.read("work.csv")
    if line["precision"] == "fp32"
}
TF32 = "tf32"  # the fault of a source that does not tell it from fp32
AXES = {"batch_size", "precision"}  # settings that a source varies within one measurement
# Workloads of the same model in another task; of LoRA those of other models.
ALIKE = {
    "bert_base": ["bert_base_squad"],
    "gpt2_small": ["gpt2_small_book"],
    "lora": [name for name in published.WORKLOADS if name.startswith("lora_")],
}


def rows(workload):
    """Return table rows by precision, the fastest first.

    A measurement at several batch sizes becomes one row, the fastest; of LoRA each has a row. Its
    `flops_per_s` is the printed speed times the FLOP count, or None without a count;
    `throughput` in samples/s, or in tokens/s if the source counts these, None if not known.
    """
    table_rows = [_row(row) for row in published.elsewhere(workload)]
    axes = {"precision"} if workload == "lora" else AXES
    for other in ALIKE.get(workload, ()):
        training = published.WORKLOADS[other]
        for row in published.elsewhere(other):
            # A training of LoRA has the name of its model, which its rows need not repeat.
            model = {"model": row["config"].get("model", training)} if workload == "lora" else {}
            table_rows.append(_row(row, axes, training=training, **model))
    # Forward and backward passes alone cannot be compared with a step.
    table_rows = [row for row in table_rows if row["metric"] not in ("forward_s", "backward_s")]
    table_rows.sort(key=lambda row: -(row["flops_per_s"] or 0.0))
    table_rows.sort(key=lambda row: PRECISIONS.index(row["precision"]))
    fastest = {}
    for row in table_rows:
        fastest.setdefault(row["line"], row)
    return list(fastest.values())


def work(row):
    """Return the FLOPs of the unit that a row's rate counts; None if unknown."""
    size = row["config"].get("image_size") or row["config"].get("sequence")
    return WORK.get((row["workload"], str(size)), 0) * row["samples"] or None


def _row(row, axes=AXES, **settings):
    label = cases.published_device(row)
    faults = row["faults"]
    if TF32 in faults and row["precision"] == "fp32":  # no row of fp32, whatever its source says
        row = row | {"precision": "tf32", "faults": tuple(each for each in faults if each != TF32)}
    config = row["config"] | {"precision": row["precision"]} | settings
    setting = cases.config_text({key: config[key] for key in config if key not in axes})
    remarks = [row["source"], setting, *(published.FAULTS[fault] for fault in faults)]
    flops = work(row)
    per_s = published.rate(row) * (1 if row["unit"].startswith("tokens") else row["samples"])
    source = published.SOURCES[row["source"]]
    is_rate = row["metric"].endswith("_per_s")
    printed = f"{row['bound']}{row['value']:,.6g} {row['unit']}"
    if row["unit"] == "steps/s":  # this column has samples per second
        printed = f"{per_s:,.4g} samples/s ({row['value']:,.3g} steps/s)"
    return row | {
        "config": config,
        "metric": "throughput" if is_rate else row["metric"],
        "si": per_s if is_rate else row["si"],
        "line": (label, row["precision"], row["faults"], setting),
        "flops_per_s": flops * published.rate(row) if flops else None,
        "throughput": per_s or None,
        "printed": printed,
        "remark": "; ".join(filter(None, remarks)),
        "note": "{id}: {title}, {author}, {date}, {url}".format_map(source),
    }
