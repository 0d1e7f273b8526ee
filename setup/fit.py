"""Count the models of `pomology fit`, fit its model of times, and measure its errors.

`python setup/fit.py counts` writes counts.jsonl, which takes an hour; models that it has stay as
they are. `python setup/fit.py times` fits the model of times to the published runs, and writes
times.json. `python setup/fit.py` prints three Markdown tables, for docs/fit.md, in half an hour:
memory of real steps on this CPU; published speeds, each source predicted without its own runs;
published peaks of memory, of which nothing is fitted.
"""

import functools
import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas
from scipy.optimize import least_squares
from scipy.stats import binomtest

from pomology.articles import published
from pomology.extras.fit import counts, networks, published_runs, times
from pomology.extras.fit.plan import Plan
from pomology.extras.prediction import devices

CONFIGURATIONS = [
    ("smollm2-135m", Plan("full", precision="fp32", sequence=256)),
    ("smollm2-135m", Plan("full", precision="fp32", sequence=1024)),
    ("smollm2-135m", Plan("full", precision="fp32", sequence=512, batch=2, checkpointing=True)),
    ("smollm2-135m", Plan("full", precision="bf16", sequence=512)),
    ("smollm2-135m", Plan("lora", precision="fp32", sequence=512)),
    ("gpt2", Plan("full", precision="fp32", sequence=256)),
    ("gpt2", Plan("full", precision="fp32", sequence=512, batch=2, checkpointing=True)),
    ("gpt2", Plan("full", precision="fp32", sequence=1024)),
    ("gpt2", Plan("lora", precision="fp32", sequence=512, batch=2)),
    ("qwen2.5-0.5b", Plan("lora", precision="fp32", sequence=128)),
    ("qwen2.5-0.5b", Plan("lora", precision="fp32", sequence=512, checkpointing=True)),
    ("qwen2.5-0.5b", Plan("lora", precision="fp32", sequence=256)),
    ("qwen2.5-0.5b", Plan("full", precision="fp32", sequence=256)),
    ("qwen2.5-0.5b", Plan("full", precision="fp32", sequence=512, checkpointing=True)),
]
# glibc then returns freed memory to the system at once, so that resident memory follows it.
ALLOCATOR = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
}
# Sizes of a tiny model, whose steps load all libraries before memory is read.
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "vocab_size": 1000,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
SMALL_GPT2 = {"n_embd": 64, "n_layer": 1, "n_head": 2, "vocab_size": 1000}
NEEDED = ("sequence", "precision", "method", "batch", "tokens_per_s")
LONG = 1024  # tokens of a batch
# Software that is neither PyTorch nor MLX: shown, and not fitted.
NOT_FITTED = ("LLMQ",)
# Where a fit of `times` begins, and how firmly each number is held to it.
START = {
    "products half": 1 / 0.8,
    "products fp32": 1 / 0.7,
    "products Apple": 1 / 0.6,
    "attention": 0.9,
    "traffic": 0.8,
    "traffic fused": 0.5,
    "traffic MLX": 0.5,
    "dequantized": 3.0,
    "dequantized Apple": 3.0,
    "launch": 10e-6,
    "launch Apple": 30e-6,
    "power": 2.0,
}
HELD = 0.1
NO_SHEET = "no data sheet of the device"
GB = 1e9


def train(config: dict[str, Any], plan: Plan, steps: int) -> None:
    """Train a model with random weights in a bare loop, without anything of pomology."""
    import torch
    import transformers
    from peft import LoraConfig, get_peft_model

    network_class = getattr(transformers, config["architectures"][0])
    torch.set_default_dtype({"fp32": torch.float32, "bf16": torch.bfloat16}[plan.precision])
    network = network_class(network_class.config_class(**config)).train()
    torch.set_default_dtype(torch.float32)
    if plan.checkpointing:
        network.activation_checkpointing_enable({"use_reentrant": False})
    if plan.method == "lora":
        network = get_peft_model(network, LoraConfig(r=plan.rank, lora_alpha=2 * plan.rank))
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    for _ in range(steps):
        tokens = torch.randint(0, 1000, (plan.batch, plan.sequence))
        network(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def real_bytes(name: str, plan: Plan) -> int:
    """Return the peak of two steps' resident memory, above that of a process with libraries."""
    import psutil

    config = networks.find(name)
    small = SMALL_GPT2 if "n_embd" in config else SMALL
    train(config | small, plan._replace(sequence=16), 2)
    gc.collect()
    process = psutil.Process()
    before = peak = process.memory_info().rss
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, process.memory_info().rss)
            time.sleep(0.001)

    watching = threading.Thread(target=watch)
    watching.start()
    train(config, plan, 2)
    done.set()
    watching.join()
    return peak - before


def table(head: list[str], lines: Iterable[list[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *lines])


def memory_on_cpu() -> str:
    """Run CONFIGURATIONS, each in a process of its own, and return the table of their memory."""
    lines = []
    errors = []
    for name, plan in CONFIGURATIONS:
        command = [sys.executable, __file__, json.dumps([name, plan])]
        environment = os.environ | ALLOCATOR
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        real = int(done.stdout.split()[-1])
        need = counts.need(name, plan, "cpu").bytes
        errors.append(abs(need / real - 1))
        configuration = f"{name}, {plan.method}, {plan.precision}, {plan.batch} × {plan.sequence}"
        if plan.checkpointing:
            configuration += ", checkpointing"
        sizes = [f"{size / GB:.3f} GB" for size in (need, real)]
        lines.append([configuration, *sizes, f"{need / real:.3f}"])
    median = f"median error {100 * np.median(errors):.1f} %, largest {100 * max(errors):.1f} %"
    return f"{table(['configuration', 'counted', 'real', 'ratio'], lines)}\n\n{median}"


def obstacle(row: dict[str, str], device: Any) -> str:
    """Return why the speed of a row of finetuning.csv is not predicted; "" if it is.

    device: its data sheet, None if there is none.
    """
    missing = [name for name in NEEDED if not row[name]]
    if missing:
        return f"{missing[0]} not stated"
    if row["precision"] not in ("fp32", "tf32", "bf16", "fp16"):
        return f"{row['precision']} is not counted"
    if not row["model"]:
        return "no such model in models.csv"
    return "" if device else NO_SHEET


def bert_rows() -> list[dict[str, str]]:
    """Return published trainings of BERT on GPUs as rows of finetuning.csv."""
    empty = dict.fromkeys(published_runs.rows()[0], "")
    rows = []
    for row in published.other_sources():
        if not row["source"].startswith("bert-apple-silicon") or row["role"] == "cpu":
            continue
        if published.SERIOUS & set(row["faults"].split()):  # memory that swaps
            continue
        config = json.loads(row["config"])
        tokens = config["batch_size"] * config["sequence"] * config["steps"]
        stated = {
            "source": "https://github.com/lucadiliello/pytorch-apple-silicon-benchmarks",
            "device": row["device"],
            "device_printed": row["device"],
            "framework": "torch",
            "model": "bert-base",
            "method": "full",
            "precision": row["precision"],
            "batch": str(config["batch_size"]),
            "sequence": str(config["sequence"]),
            "checkpointing": "false",
            "path": "plain",
            "tokens_per_s": str(tokens / float(row["value"])),
        }
        rows.append(empty | stated)
    return rows


@functools.cache
def counted() -> pandas.DataFrame:
    """Return the published runs, counted where that is possible.

    why: the reason why a row's speed is not predicted, or "". step_s: measured. parts, names:
    see `times`. memory: counted over published peak, where there is one.
    """
    sheets = devices.published_devices()
    results = []
    for row in [*published_runs.rows(), *bert_rows()]:
        device = sheets.get(row["device"])
        why = obstacle(row, device)
        all_stated = row["checkpointing"] and (row["rank"] or row["method"] == "full")
        varies = "mean per sample" in row["note"]  # the longest, not stated, sets the peak
        result = row | {
            "why": why,
            "memory": np.nan,
            "step_s": np.nan,
            "author": published_runs.author(row),
            "stated": bool(all_stated and not varies),
            "maker": devices.MAKERS[device.maker] if device else "",
            "length": "",
        }
        results.append(result)
        # Memory can be compared without a data sheet.
        if why and not (why == NO_SHEET and row["peak_memory_gb"]):
            continue
        plan = published_runs.planned(row)
        backend = device.backend if device else "cuda"
        long = plan.batch * plan.sequence > LONG
        result["length"] = f"{'more than' if long else 'at most'} {LONG:,} tokens in a batch"
        need = counts.need(row["model"], plan, backend)
        if row["peak_memory_gb"]:
            result["memory"] = need.bytes / (float(row["peak_memory_gb"]) * GB)
        if device:
            plan = plan._replace(precision=row["precision"])
            fused = row["path"] in ("fused", "compiled")
            tokens = plan.batch * float(row["sequence"]) * plan.accumulation
            result["step_s"] = tokens / float(row["tokens_per_s"])
            result["parts"] = times.parts(need, plan, device)
            result["names"] = times.names(plan, backend, fused)
        print(row["device_printed"], row["framework"], row["model"], plan, file=sys.stderr)
    return pandas.DataFrame(results)


def errors_of(rows: pandas.DataFrame, numbers: dict[str, float]) -> np.ndarray:
    """Return the logarithms of measured over predicted times."""
    seconds = times.Parts(*np.array(rows["parts"].tolist()).T)
    factors = [[numbers[name] if name else 1.0 for name in names] for names in rows["names"]]
    predicted = times.total(seconds, times.Parts(*np.array(factors).T), numbers["power"])
    return np.log(rows["step_s"].to_numpy(float) / predicted)


def fitted(rows: pandas.DataFrame) -> dict[str, float]:
    """Return the numbers of `times` that fit measured steps best.

    The loss is the absolute logarithm of measured over predicted time, where n runs of one source
    together weigh the root of n. Each number is held weakly to START, so that one that no run has
    stays there.
    """
    rows = rows[~rows["framework"].isin(NOT_FITTED)]
    weights = rows.groupby("author")["step_s"].transform("size").to_numpy() ** -0.5
    start = np.log(list(START.values()))

    def residuals(logarithms: np.ndarray) -> np.ndarray:
        errors = weights * errors_of(rows, dict(zip(START, np.exp(logarithms), strict=True)))
        # The squares of these are absolute values.
        roots = np.sign(errors) * np.sqrt(np.abs(errors) + 1e-9)
        return np.concatenate([roots, HELD * (logarithms - start)])

    random = np.random.default_rng(0)
    starts = [start, *(start + random.normal(0, 0.2, len(start)) for _ in range(2))]
    best = min((least_squares(residuals, each) for each in starts), key=lambda fit: fit.cost)
    return dict(zip(START, np.exp(best.x).tolist(), strict=True))


def spread(rows: pandas.DataFrame) -> list[float]:
    """Return the bounds of 90 % of the errors, where n of one source weigh the root of n."""
    rows = rows[~rows["framework"].isin(NOT_FITTED)]
    weights = rows.groupby("author")["error"].transform("size") ** -0.5
    return weighted_ends(rows["error"].to_numpy(float), weights.to_numpy(float))


@functools.cache
def left_out() -> pandas.DataFrame:
    """Return the runs with a speed, each predicted from the other sources alone.

    error: the logarithm of measured over predicted time. inside: whether it is in the interval that
    the errors of the other sources give. ratio: measured over predicted time.
    """
    rows = counted()
    rows = rows[rows["why"].eq("")].copy()
    for author in rows["author"].unique():
        own = rows["author"].eq(author)
        rows.loc[own, "error"] = errors_of(rows[own], fitted(rows[~own]))
    for author in rows["author"].unique():
        own = rows["author"].eq(author)
        low, high = spread(rows[~own])
        rows.loc[own, "inside"] = rows.loc[own, "error"].between(low, high)
    rows["ratio"] = np.exp(rows["error"])
    return rows


def calibrated(rows: pandas.DataFrame) -> dict[str, Any]:
    """Return how far a run is from its prediction times the error of another run.

    Both are of one source, device and framework, as on the machine where something was measured.
    spread: the bounds of 90 % of these, as logarithms, where n runs together weigh the root of n.
    """
    rows = rows[~rows["framework"].isin(NOT_FITTED)]
    differences, weights, groups = [], [], 0
    for _, alike in rows.groupby(["author", "device", "framework"]):
        if len(alike) < 2:
            continue
        groups += 1
        errors = alike["error"].to_numpy(float)
        between = np.subtract.outer(errors, errors)[~np.eye(len(errors), dtype=bool)]
        differences += between.tolist()
        weights += [len(errors) ** 0.5 / len(between)] * len(between)
    ends = weighted_ends(np.array(differences), np.array(weights))
    return {"spread": [round(end, 4) for end in ends], "pairs": len(weights) // 2, "groups": groups}


def weighted_ends(values: np.ndarray, weights: np.ndarray) -> list[float]:
    """Return the bounds of 90 % of some values with weights."""
    order = np.argsort(values)
    ordered, heavy = values[order], weights[order]
    shares = (heavy.cumsum() - heavy / 2) / heavy.sum()
    return [float(np.interp(share, shares, ordered)) for share in (0.05, 0.95)]


def write_times() -> None:
    """Fit the numbers of `times` to all runs, and write them with what the errors were."""
    rows = left_out()
    of_kind = rows[~rows["framework"].isin(NOT_FITTED)]
    by_maker = of_kind.groupby("maker")
    kept = {
        "numbers": {name: float(f"{number:.4g}") for name, number in fitted(rows).items()},
        "spread": [round(end, 4) for end in spread(rows)],
        "calibrated": calibrated(rows),
        "errors": {
            **of_speeds(of_kind),
            "sources": of_kind["author"].nunique(),
            "makers": {maker: of_speeds(part) for maker, part in by_maker},
        },
    }
    times.KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def of_speeds(rows: pandas.DataFrame) -> dict[str, float]:
    """Return the number of some rows, their median error, and two shares of them."""
    off = (1 / rows["ratio"] - 1).abs()
    return {
        "runs": len(rows),
        "median": round(float(off.median()), 4),
        "within 30 %": round(float((off <= 0.3).mean()), 4),
        "inside": round(float(rows["inside"].mean()), 4),
    }


def grouped(
    rows: pandas.DataFrame,
    columns: Sequence[str],
    line: Callable[[pandas.DataFrame], list[str]],
) -> list:
    """Return a line for all rows, and one for each value of some columns."""
    lines = [["all", *line(rows)]]
    for column in columns:
        parts = rows[rows[column].ne("")].groupby(column, sort=False)
        lines += [[str(name), *line(part)] for name, part in parts]
    return lines


def speed_line(rows: pandas.DataFrame) -> list[str]:
    """Return the cells of `speeds` for some rows."""
    errors = of_speeds(rows)
    inside = int(rows["inside"].sum())
    chance = binomtest(inside, len(rows), 0.9, alternative="less").pvalue
    median, near, shown = (
        f"{100 * errors[name]:.0f} %" for name in ("median", "within 30 %", "inside")
    )
    return [
        str(errors["runs"]),
        median,
        near,
        f"{inside} ({shown})",
        f"{chance:.2g}",
        ratios(rows["ratio"]),
    ]


def ratios(values: pandas.Series) -> str:
    """Return the median and the range of ratios."""
    return f"{values.median():.2f} ({values.min():.2f} to {values.max():.2f})"


def speeds() -> str:
    """Return the table of predicted and published speeds, and why others are not predicted."""
    rows = left_out()
    head = [
        *("runs", "n", "median error", "within 30 %", "in the 90 % interval", "p of so few"),
        "measured over predicted time: median (range)",
    ]
    columns = ("maker", "method", "length", "path", "author")
    of_kind = rows[~rows["framework"].isin(NOT_FITTED)]
    lines = grouped(of_kind, columns, speed_line)
    lines += [
        [f"{name}, not fitted", *speed_line(rows[rows["framework"].eq(name)])]
        for name in NOT_FITTED
    ]
    every = counted()
    reasons = Counter(why for why in every["why"] if why).most_common()
    others = "; ".join(f"{count}: {why}" for why, count in reasons)
    return f"{table(head, lines)}\n\n{len(every)} rows; not predicted: {others}"


def memory_line(rows: pandas.DataFrame) -> list[str]:
    """Return the cells of `published_memory` for some rows: number, two shares, ratios."""
    errors = (rows["memory"] - 1).abs()
    shares = [errors.median(), (errors <= 0.1).mean()]
    return [str(len(rows)), *(f"{100 * share:.1f} %" for share in shares), ratios(rows["memory"])]


def published_memory() -> str:
    """Return the tables of counted and published peaks of memory.

    The first has the runs whose software, method and shape are stated, by path.
    """
    rows = counted()
    rows = rows[rows["memory"].notna()]
    stated = rows[rows["path"].ne("") & rows["stated"]]
    head = ["runs", "n", "median error", "within 10 %", "counted over published: median (range)"]
    tables = [
        table(head, grouped(some, columns, memory_line))
        for some, columns in ((stated, ("path",)), (rows, ("maker", "method", "author")))
    ]
    return "\n\n".join([tables[0], few(rows), tables[1]])


def few(rows: pandas.DataFrame) -> str:
    """Return the table of the peaks of MLX and of mixtures of experts, each row on its own.

    Of these there are too few for a summary.
    """
    lines = []
    for row in rows.to_dict("records"):
        if row["framework"] != "mlx" and not networks.has_experts(row["model"]):
            continue
        plan = published_runs.planned(row)
        published_gb = float(row["peak_memory_gb"])
        kind = "MLX" if row["framework"] == "mlx" else f"{row['path']}, {row['precision']}"
        training = f"{row['model']}, {plan.method}, {kind}, {plan.batch} × {plan.sequence:,}"
        sizes = [f"{published_gb:.2f}", f"{row['memory'] * published_gb:.2f}"]
        lines.append([training, row["device"], *sizes, f"{row['memory']:.2f}"])
    return table(["run", "device", "published GB", "counted GB", "ratio"], lines)


def write_counts() -> None:
    """Add the counts that the table lacks: of models, and of published LoRA trainings."""
    kept = dict(counts.table())
    for row in networks.rows():
        for backend, plan in counts.tabled(row):
            key = counts.key(row["name"], plan, backend)
            if key not in kept:
                counted = counts.count(networks.find(row["name"]), plan, backend)
                kept[key] = counts.telling(counted)
                print(key, flush=True)
    sheets = devices.published_devices()
    for row in published_runs.lora():
        if row["device"] in sheets:
            backend, plan = sheets[row["device"]].backend, published_runs.planned(row)
            key = counts.key(row["model"], plan, backend)
            if key not in kept:
                counted = counts.count(networks.find(row["model"]), counts.alike(plan), backend)
                kept[key] = counts.telling(counted)
                print(key, flush=True)
    lines = [json.dumps([key, *values], separators=(",", ":")) for key, values in kept.items()]
    counts.TABLE.write_text("\n".join(sorted(lines)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["counts"]:
        write_counts()
    elif sys.argv[1:] == ["times"]:
        write_times()
    elif sys.argv[1:]:
        name, plan = json.loads(sys.argv[1])
        print(real_bytes(name, Plan(*plan)))
    else:
        for write_table in (memory_on_cpu, speeds, published_memory):
            print(f"{write_table()}\n", flush=True)
