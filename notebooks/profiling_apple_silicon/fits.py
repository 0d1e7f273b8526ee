"""Memory of training the four models, counted on tensors without data."""

import functools

import offload
import torch
from torch.nn import functional as F

from pomology.articles import published
from pomology.models import pretrained
from pomology.report.table import Row, Table

GIB = 2**30
BATCH_SIZES = {"whisper-medium": 4, "whisper-large": 32, "gpt2-large": 16, "gpt2-xl": 16}  # table 3
TEXT_TOKENS, LABEL_TOKENS = 128, 32  # GPT-2's texts, Whisper's labels; the article gives none
COUNTED_AS = {"unfused": "mps", "fused": "cuda"}  # attention -> a backend that computes it so


def build(name, checkpointing=False, task="classification"):
    """Return a model. `task` applies to GPT-2 only."""
    model = pretrained.build(name, "speech" if name.startswith("whisper") else task)
    if checkpointing:  # only the reentrant variant lets saved tensors be counted
        model.activation_checkpointing_enable({"use_reentrant": True})
    return model


def _causal(batch_size, tokens):
    # transformers would derive this mask from the values of a given one; tensors here have none.
    return torch.ones(batch_size, 1, tokens, tokens, dtype=torch.bool).tril()


def _speech_step(model, batch_size):
    labels = torch.zeros(batch_size, LABEL_TOKENS, dtype=torch.long)
    mask, sounds = _causal(batch_size, LABEL_TOKENS), torch.zeros(batch_size, 80, 3000)
    model(input_features=sounds, labels=labels, decoder_attention_mask=mask).loss.backward()


def _text_step(model, batch_size):
    tokens = torch.zeros(batch_size, TEXT_TOKENS, dtype=torch.long)
    mask = _causal(batch_size, TEXT_TOKENS)
    hidden = model.transformer(input_ids=tokens, attention_mask=mask).last_hidden_state
    labels = torch.zeros(batch_size, dtype=torch.long)
    F.cross_entropy(model.score(hidden)[:, -1], labels).backward()


@functools.cache
def work(name, attention, checkpointing=False):
    """Count a step at the batch size of table 3, with AdamW. attention: a key of `COUNTED_AS`."""
    one_step = _speech_step if name.startswith("whisper") else _text_step
    step = functools.partial(one_step, batch_size=BATCH_SIZES[name])
    backend = COUNTED_AS[attention]
    return pretrained.workload(name, lambda name: build(name, checkpointing), step, 2, backend)


@functools.cache
def parameters(name):
    """Return the number of all parameters and of trained parameters."""
    with torch.device("meta"):
        weights = list(build(name, task="language-model").parameters())
    trained = sum(weight.numel() for weight in weights if weight.requires_grad)
    return sum(weight.numel() for weight in weights), trained


def theoretical_table():
    """Return table 2 recomputed, from its rounded parameters and from counted ones."""
    columns = ("Model", "Parameters (model card)", "Parameters (counted)", "Trained")
    columns += ("Article: card × 16 / 1024", "Weights", "Gradients", "Two moments", "Sum", "In GB")
    columns += ("Article over sum",)
    printed = {
        (row["config"]["model"], row["metric"]): row["value"]
        for row in published.rows("001", "model_memory")
    }
    rows = []
    for name in BATCH_SIZES:
        count, trained = parameters(name)
        card, gib = printed[name, "parameters"], printed[name, "theoretical_bytes"]
        together = 4 * (count + 3 * trained)
        cells = [name, f"{card:g} M", f"{count:,}", f"{trained:,}", f"{card * 16 / 1024:.3f}"]
        cells += [f"{4 * size / GIB:.3f} GiB" for size in (count, trained, 2 * trained)]
        cells += [f"{together / GIB:.3f} GiB", f"{together / 1e9:.2f} GB"]
        cells.append(f"+{100 * (gib * GIB / together - 1):.1f} %")
        rows.append(Row(dict(zip(columns, cells, strict=True))))
    return Table("Table 2: origin of its numbers", rows)


def _ways(name, nvidia):
    """Yield the options to train, the plain one first, with the minimum memory of the device."""
    attention = "fused" if nvidia else "unfused"
    for checkpointing in (False, True):
        counted = work(name, attention, checkpointing)
        yield "with checkpointing" if checkpointing else "unchanged", counted.bytes
        if nvidia:
            way = "with offload and checkpointing" if checkpointing else "with offload"
            yield way, offload.placed(counted, lambda: build(name)).bytes


def workload_table():
    """Return table 3 with the memory that each workload needs and its device has."""
    columns = (
        "Scenario",
        "Workload",
        "Batch size",
        "Device",
        "Memory",
        "Theoretical",
        "Activations",
    )
    columns += ("Sum", "Share of memory", "Fits")
    rows = published.rows("001")
    memory = {row["device"]: int(row["value"]) for row in rows if row["metric"] == "memory_bytes"}
    lines = []
    for row in rows:
        if row["item"] != "Table 3":
            continue
        name, nvidia = row["config"]["model"], row["role"] == "rival"
        has = memory[row["device"]]
        plain = work(name, "fused" if nvidia else "unfused")
        shares = [(way, size / (has * GIB)) for way, size in _ways(name, nvidia)]
        fits = [f"{way}: {100 * share:.0f} %" for way, share in shares if share <= 1]
        cells = [str(row["config"]["scenario"]), name, str(BATCH_SIZES[name])]
        cells += [row["device"], f"{has} GiB"]
        sizes = plain.state_bytes, plain.saved_bytes, plain.bytes
        cells += [f"{size / GIB:.1f} GiB" for size in sizes]
        cells += [f"{100 * shares[0][1]:.0f} %", fits[0] if fits else "with no option"]
        lines.append(Row(dict(zip(columns, cells, strict=True)), kind="published"))
    title = "Table 3: memory of its workloads and of its devices"
    note = f"GPT-2 with texts of {TEXT_TOKENS} tokens, Whisper with labels of {LABEL_TOKENS} tokens"
    return Table(title, lines, [f"{note}; shorter ones need less."])
