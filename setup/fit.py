"""Count the models of `pomology fit`, and measure its errors.

`python setup/fit.py counts` writes counts.jsonl, which takes an hour; models that it has stay as
they are. `python setup/fit.py` prints three Markdown tables, for docs/fit.md, in half an hour:
memory of real steps on this CPU; speeds of finetuning.csv; its peaks of memory. Nothing of
finetuning.csv is fitted.
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
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas

from pomology.articles import published
from pomology.extras.fit import answer, counts, networks
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
NO_SHEET = "no data sheet of the device"
GB = 1e9
# Names of the linear layers in the models of the Llama and Qwen families.
LINEAR = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"


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


def planned(row: dict[str, str]) -> Plan:
    """Return the plan of a row of finetuning.csv, with the command's defaults where it is empty."""
    return Plan(
        method=row["method"],
        rank=int(row["rank"] or 8),
        sequence=round(float(row["sequence"])),
        batch=int(row["batch"]),
        precision="fp32" if row["precision"] == "tf32" else row["precision"],
        checkpointing=row["checkpointing"] == "true",
        framework="mlx" if row["framework"] == "mlx" else "torch",
        targets=row["targets"].replace("all-linear", LINEAR),
        layers=int(row["layers"] or 0),
    )


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


@functools.cache
def predictions() -> pandas.DataFrame:
    """Return the rows of finetuning.csv, those that can be predicted with their errors.

    why: the reason why a row's speed is not predicted, or "". ratio: measured over predicted time
    of a step. memory: counted over published peak, where there is one.
    """
    sheets = devices.published_devices()
    results = []
    for row in published.read("finetuning.csv"):
        device = sheets.get(row["device"])
        why = obstacle(row, device)
        all_stated = row["checkpointing"] and (row["rank"] or row["method"] == "full")
        result = row | {
            "why": why,
            "ratio": np.nan,
            "memory": np.nan,
            "inside": False,
            "stated": "all settings stated" if all_stated else "checkpointing or rank assumed",
            "maker": "Apple" if device and device.backend == "mps" else "NVIDIA",
            "length": "",
        }
        results.append(result)
        # Memory can be compared without a data sheet.
        if why and not (why == NO_SHEET and row["peak_memory_gb"]):
            continue
        plan = planned(row)
        long = plan.batch * plan.sequence > LONG
        result["length"] = f"{'more than' if long else 'at most'} {LONG:,} tokens in a batch"
        need = counts.need(row["model"], plan, device.backend if device else "cuda")
        if row["peak_memory_gb"]:
            result["memory"] = need.bytes / (float(row["peak_memory_gb"]) * GB)
        if device:
            step, _ = answer.predicted(need, plan._replace(precision=row["precision"]), device)
            step_s = plan.batch * float(row["sequence"]) / float(row["tokens_per_s"])
            result["ratio"] = step_s / step.value
            result["inside"] = step.low <= step_s <= step.high
        print(row["device_printed"], row["framework"], row["model"], plan, file=sys.stderr)
        print(f"  {result['ratio']:.2f} {result['memory']:.2f}", file=sys.stderr, flush=True)
    return pandas.DataFrame(results)


def grouped(rows: pandas.DataFrame, line: Callable[[pandas.DataFrame], list[str]]) -> list:
    """Return a line for all rows, and one for each value of some columns."""
    lines = [["all", *line(rows)]]
    for column in ("maker", "stated", "length", "method", "framework"):
        lines += [[str(name), *line(part)] for name, part in rows.groupby(column, sort=False)]
    return lines


def speed_line(rows: pandas.DataFrame) -> list[str]:
    """Return the cells of `speeds` for some rows: number, three shares, ratios."""
    errors = (1 / rows["ratio"] - 1).abs()
    shares = [errors.median(), (errors <= 0.3).mean(), rows["inside"].mean()]
    return [str(len(rows)), *(f"{100 * share:.0f} %" for share in shares), ratios(rows["ratio"])]


def ratios(values: pandas.Series) -> str:
    """Return the median and the range of ratios."""
    return f"{values.median():.2f} ({values.min():.2f} to {values.max():.2f})"


def speeds() -> str:
    """Return the table of predicted and published speeds, and why others are not predicted."""
    rows = predictions()
    head = [
        *("runs", "n", "median error", "within 30 %", "in the 90 % interval"),
        "measured over predicted time: median (range)",
    ]
    lines = grouped(rows[rows["why"].eq("")], speed_line)
    reasons = Counter(why for why in rows["why"] if why).most_common()
    others = "; ".join(f"{count}: {why}" for why, count in reasons)
    return f"{table(head, lines)}\n\n{len(rows)} rows; not predicted: {others}"


def memory_line(rows: pandas.DataFrame) -> list[str]:
    """Return the cells of `published_memory` for some rows: number, two shares, ratios."""
    errors = (rows["memory"] - 1).abs()
    shares = [errors.median(), (errors <= 0.3).mean()]
    return [str(len(rows)), *(f"{100 * share:.0f} %" for share in shares), ratios(rows["memory"])]


def published_memory() -> str:
    """Return the table of counted and published peaks of memory."""
    rows = predictions()
    head = ["runs", "n", "median error", "within 30 %", "counted over published: median (range)"]
    return table(head, grouped(rows[rows["memory"].notna()], memory_line))


def write_counts() -> None:
    """Add the counts of models that the table lacks."""
    kept = dict(counts.table())
    for row in networks.rows():
        for framework in ("torch", "mlx"):
            for backend, plan in counts.tabled(framework):
                key = counts.key(row["name"], plan, backend)
                if key not in kept:
                    counted = counts.count(networks.find(row["name"]), plan, backend)
                    kept[key] = counts.telling(counted)
                    print(key, flush=True)
    lines = [json.dumps([key, *values], separators=(",", ":")) for key, values in kept.items()]
    counts.TABLE.write_text("\n".join(sorted(lines)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["counts"]:
        write_counts()
    elif sys.argv[1:]:
        name, plan = json.loads(sys.argv[1])
        print(real_bytes(name, Plan(*plan)))
    else:
        for write_table in (memory_on_cpu, speeds, published_memory):
            print(f"{write_table()}\n", flush=True)
