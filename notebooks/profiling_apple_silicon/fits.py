"""The memory that training the four models takes, counted on tensors without contents."""

import functools

import offload
import torch
from torch.nn import functional as F

from pomology.articles import published
from pomology.models import pretrained
from pomology.report.table import Row, Table

GIB = 2**30
BATCH_SIZES = {"whisper-medium": 4, "whisper-large": 32, "gpt2-large": 16, "gpt2-xl": 16}  # table 3
TEXT_TOKENS, LABEL_TOKENS = 128, 32  # of GPT-2's texts and Whisper's labels; the article names none
COUNTED_AS = {"written out": "mps", "fused": "cuda"}  # attention: a backend that computes it so


def build(name, checkpointing=False, task="classification"):
    """Return a model; Whisper has no other task than its own."""
    model = pretrained.build(name, "speech" if name.startswith("whisper") else task)
    if checkpointing:  # the reentrant kind shows what it keeps
        model.activation_checkpointing_enable({"use_reentrant": True})
    return model


def _causal(batch_size, tokens):
    # transformers makes such a mask by looking into a given one, and tensors here have no values.
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
    """Count a step at the batch size of table 3, with AdamW. attention: of `COUNTED_AS`."""
    one_step = _speech_step if name.startswith("whisper") else _text_step
    step = functools.partial(one_step, batch_size=BATCH_SIZES[name])
    backend = COUNTED_AS[attention]
    return pretrained.workload(name, lambda name: build(name, checkpointing), step, 2, backend)


@functools.cache
def parameters(name):
    """Return the number of parameters, and of those that are trained."""
    with torch.device("meta"):
        weights = list(build(name, task="language-model").parameters())
    trained = sum(weight.numel() for weight in weights if weight.requires_grad)
    return sum(weight.numel() for weight in weights), trained


def theoretical_table():
    """Table 2: the article's numbers, from its rounded parameters, and the counted ones."""
    columns = ("Model", "Parameters on the card", "Counted", "of them trained", "Card × 16 / 1024")
    columns += ("Weights", "Gradients", "Two moments", "Together", "in GB")
    columns += ("The article's number is more by",)
    printed = {
        (row["config"]["model"], row["metric"]): row["value"]
        for row in published.rows("001", "model_memory")
    }
    rows = []
    for name in BATCH_SIZES:
        count, trained = parameters(name)
        card, gib = printed[name, "parameters"], printed[name, "theoretical_bytes"]
        together = 4 * (count + 3 * trained)
        cells = [name, f"{card:g} M", f"{count:,}", f"{trained:,}", f"{card * 16 / 1024:.3f} “GiB”"]
        cells += [f"{4 * size / GIB:.3f} GiB" for size in (count, trained, 2 * trained)]
        cells += [f"{together / GIB:.3f} GiB", f"{together / 1e9:.2f} GB"]
        cells.append(f"{100 * (gib * GIB / together - 1):.1f} %")
        rows.append(Row(dict(zip(columns, cells, strict=True))))
    return Table("Where the numbers of table 2 come from", rows)


def _ways(name, nvidia):
    """Yield the ways to train, the usual first, and what a device must at least hold in each."""
    attention = "fused" if nvidia else "written out"
    for checkpointing in (False, True):
        counted = work(name, attention, checkpointing)
        yield "with checkpointing" if checkpointing else "as it is", counted.bytes
        if nvidia:
            way = "with offload and checkpointing" if checkpointing else "with offload"
            yield way, offload.placed(counted, lambda: build(name)).bytes


def workload_table():
    """Table 3 by arithmetic: what each workload needs, and what the article's device has."""
    columns = ("Scenario", "Workload", "Batch size", "Device", "Memory", "Theoretical", "Kept")
    columns += ("Together", "of its memory", "Fits")
    rows = published.rows("001")
    memory = {row["device"]: int(row["value"]) for row in rows if row["metric"] == "memory_bytes"}
    lines = []
    for row in rows:
        if row["item"] != "Table 3":
            continue
        name, nvidia = row["config"]["model"], row["role"] == "rival"
        has = memory[row["device"]]
        plain = work(name, "fused" if nvidia else "written out")
        shares = [(way, size / (has * GIB)) for way, size in _ways(name, nvidia)]
        fits = [f"{way}: {100 * share:.0f} %" for way, share in shares if share <= 1]
        cells = [str(row["config"]["scenario"]), name, str(BATCH_SIZES[name])]
        cells += [row["device"], f"{has} GiB"]
        sizes = plain.state_bytes, plain.saved_bytes, plain.bytes
        cells += [f"{size / GIB:.1f} GiB" for size in sizes]
        cells += [f"{100 * shares[0][1]:.0f} %", fits[0] if fits else "in no way"]
        lines.append(Row(dict(zip(columns, cells, strict=True)), kind="published"))
    title = "Table 3: what its workloads need, and what its devices have"
    note = f"GPT-2 with texts of {TEXT_TOKENS} tokens, Whisper with labels of {LABEL_TOKENS}"
    return Table(title, lines, [f"{note}; shorter ones need less."])
