"""What fits a Mac and what does not: the articles' workloads on pretended 8, 16, 36 and 192 GB of unified memory.

The memory that each takes (GiB: weights, gradients, optimiser; kept for the backward pass with attention's matrices
written out, as MPS does in training) was worked out by hand from the articles' sizes; the kit must count the same.
"""

from __future__ import annotations

import re

import psutil
import pytest
import torch
from test_notebooks import definitions

from pomology import device, experiment, machine
from pomology.models import Workload, workload

GIB = 2**30
SIZES = (8, 16, 36, 192)
# Metal recommends about three quarters of the memory.
SHARE = 0.75


def gpt2(width: int, layers: int, heads: int, batch: int, length: int = 128) -> Workload:
    """GPT-2 with a classifier of two classes, AdamW."""
    from transformers import GPT2Config, GPT2ForSequenceClassification

    shape = GPT2Config(n_embd=width, n_layer=layers, n_head=heads, num_labels=2)

    def step(model):
        hidden = model.transformer(input_ids=torch.zeros(batch, length, dtype=torch.long)).last_hidden_state
        classes = torch.zeros(batch, dtype=torch.long)
        torch.nn.functional.cross_entropy(model.score(hidden)[:, -1], classes).backward()

    return workload(lambda: GPT2ForSequenceClassification(shape).train(), step, optimizer_slots=2)


def whisper_medium(batch: int, tokens: int = 32) -> Workload:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sides = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in WHISPER_MEDIUM.items()}
    shape = WhisperConfig(d_model=1024, vocab_size=51865, **sides)

    def step(model):
        labels = torch.zeros(batch, tokens, dtype=torch.long)
        model(input_features=torch.zeros(batch, 80, 3000), labels=labels).loss.backward()

    return workload(lambda: WhisperForConditionalGeneration(shape).train(), step, optimizer_slots=2)


WHISPER_MEDIUM = {"layers": 24, "attention_heads": 16, "ffn_dim": 4096}


def notebook(name: str, row: int) -> Workload:
    scope = definitions(name)
    return scope["work"]((scope["rows"] if "rows" in scope else scope["batch_sizes"])[row])


# name -> how to count it, GiB of state, GiB kept, and the sizes of Macs (GB) on which it cannot fit.
CASES = {
    "vae, batch 5120": (lambda: notebook("vae", 1), 10 / 1024, 48 / 1024, ()),
    "siamese, batch 1024": (lambda: notebook("siamese", 1), 175 / 1024, 729 / 1024, ()),
    "transformer_lm, 2 layers": (lambda: notebook("transformer_lm", 0), 105 / 1024, 107 / 1024, ()),
    "transformer_lm, 10 layers": (lambda: notebook("transformer_lm", 4), 409 / 1024, 3395 / 1024, ()),
    "gpt2-large, batch 16": (lambda: gpt2(1280, 36, 20, 16), 11.53, 12.69, (8, 16)),
    "gpt2-xl, batch 16": (lambda: gpt2(1600, 48, 25, 16), 23.21, 21.1, (8, 16, 36)),
    "whisper-medium, batch 4": (lambda: whisper_medium(4), 11.38, 23.5, (8, 16, 36)),
}


@pytest.fixture(scope="module", params=sorted(CASES))
def counted(request):
    count, state, saved, refused = CASES[request.param]
    return count(), state, saved, refused


def test_memory_is_counted_as_by_hand(counted):
    work, state, saved, _ = counted
    assert work.state_bytes / GIB == pytest.approx(state, rel=0.01)
    assert work.saved_bytes / GIB == pytest.approx(saved, rel=0.02)


@pytest.fixture
def mac(monkeypatch):
    """MPS on a Mac with that many GB, of which nothing is used."""

    def of(gigabytes: int) -> device.Device:
        total = gigabytes * GIB
        monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: int(SHARE * total))
        monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 0)
        monkeypatch.setattr(machine, "available_memory_bytes", lambda: total)
        made = device.Device("cpu")
        made.backend, made.kind = "mps", "gpu"
        return made

    return of


class Nobody:
    """As much of an experiment as a case asks for before it is entered."""

    precision = "fp32"


@pytest.mark.parametrize("gigabytes", SIZES)
def test_what_cannot_fit_is_refused_before_anything_is_allocated(counted, mac, gigabytes):
    work, _, _, refused = counted
    case = experiment.Case(Nobody(), mac(gigabytes), {"batch_size": 1})
    before = psutil.Process().memory_info().rss
    said = ""
    try:
        case.requires(work)
    except experiment.TooBig as error:
        said = str(error)
    needed = f"{work.bytes / GIB:.1f} GiB on a Mac with {gigabytes} GB"
    if gigabytes in refused:
        assert said, f"too big, and not refused: {needed} would swap long before memory is out"
        assert re.match(r"needs \d+\.\d GB at the least .* GB are free$", said)
    else:
        assert not said, f"refused, though it fits: {needed}: {said}"
    assert psutil.Process().memory_info().rss - before < 2**26


def test_memory_that_others_use_counts(mac, monkeypatch):
    work = Workload(parameters=1, flops=1, state_bytes=3 * GIB, saved_bytes=2 * GIB)
    case = experiment.Case(Nobody(), mac(8), {})
    case.requires(work)
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: 4 * GIB)
    with pytest.raises(experiment.TooBig, match=r"5\.4 GB .* 4\.3 GB are free"):
        case.requires(work)
