"""What fits a machine and what does not: the articles' workloads on pretended machines.

The memory that each takes (GiB: weights, gradients, optimiser; kept for the backward pass) was worked out by hand from
the articles' sizes; the kit must count the same. Larger models are counted in `test_model_memory.py` and
`test_gpt2_finetuning.py`; here it is asked which machine takes them.
"""

from __future__ import annotations

import contextlib

import pytest
import torch
from counting import by_layers
from test_notebooks import definitions

from pomology import errors
from pomology.devices.torch import TorchDevice
from pomology.experiment.case import Case
from pomology.machine import snapshot
from pomology.workloads import pretrained
from pomology.workloads.cost import Workload

GIB = 2**30
SHARE = 0.75  # of the memory: what Metal recommends


def needs(state: float, saved: float) -> Workload:
    return Workload(parameters=1, flops=1, state_bytes=round(state * GIB), saved_bytes=round(saved * GIB))


@pytest.fixture
def mac(monkeypatch):
    """MPS on a Mac with that many GB, of which nothing is used."""

    def of(gigabytes: int) -> TorchDevice:
        total = gigabytes * GIB
        monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: int(SHARE * total))
        monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 0)
        monkeypatch.setattr(snapshot, "available_memory_bytes", lambda: total)
        made = TorchDevice("cpu")
        made.backend, made.kind = "mps", "gpu"
        return made

    return of


class Nobody:
    """As much of an experiment as a case asks for before it is entered."""

    precision = "fp32"


# Counted --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("notebook", "row", "state_mib", "saved_mib"),
    [("vae", 1, 10, 48), ("siamese", 1, 175, 729), ("transformer_lm", 0, 105, 107), ("transformer_lm", 4, 409, 3395)],
)
def test_memory_is_counted_as_by_hand(notebook, row, state_mib, saved_mib):
    """At batch 5120, at batch 1024, and with 2 and 10 layers."""
    scope = definitions(notebook)
    work = scope["work"]((scope["rows"] if "rows" in scope else scope["batch_sizes"])[row])
    assert work.state_bytes * 1024 / GIB == pytest.approx(state_mib, rel=0.01)
    assert work.saved_bytes * 1024 / GIB == pytest.approx(saved_mib, rel=0.02)


def test_gpt2_large_with_lora_takes_what_it_should_where_attention_is_fused():
    """At batch 16 and 128 tokens. With matrices of attention: `test_gpt2_finetuning.py`."""
    from peft import LoraConfig, get_peft_model

    # Of rank 8 on the 36 layers' (1280 -> 3840); the classifier is there twice, and one of it trained.
    adapters, weights = 36 * 8 * (1280 + 3840), 774_030_080 + 2560
    # CUDA's dropout keeps a byte where others keep a float: 73 of them, and 36 more of the adapters' inputs.
    dropped = 16 * 128 * 1280 * 3 / GIB

    def build():
        lora = LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=16, lora_dropout=0.1, fan_in_fan_out=True)
        return get_peft_model(pretrained.build("gpt2-large", "classification")[0], lora)

    def step(model):
        inner = model.base_model.model
        inner.config.pad_token_id = None  # else it looks for padding among tokens that have no values here
        hidden = inner.transformer(input_ids=torch.zeros(16, 128, dtype=torch.long)).last_hidden_state
        classes = torch.zeros(16, dtype=torch.long)
        torch.nn.functional.cross_entropy(inner.score(hidden)[:, -1], classes).backward()

    work = by_layers(build, step, optimizer_slots=2, backend="cuda")
    assert work.state_bytes == 4 * (weights + adapters + 2560) + 12 * (adapters + 2560)  # 12 more where it is trained
    assert work.saved_bytes / GIB == pytest.approx(9.85 - 109 * dropped, rel=0.01)


# Refused --------------------------------------------------------------------------------------------------------------


def test_memory_that_others_use_counts(mac, monkeypatch):
    case = Case(Nobody(), mac(8), {})
    case.require_memory(needs(3, 2))
    monkeypatch.setattr(snapshot, "available_memory_bytes", lambda: 4 * GIB)
    with pytest.raises(errors.TooBig, match=r"5\.4 GB .* 4\.3 GB are free"):
        case.require_memory(needs(3, 2))


# GPT-2-large on 16 GB. Batch size, LoRA, what it takes (GiB) where attention is written out and where it is fused, and
# the devices that refuse it: Metal recommends 12 GB, and the driver of a card keeps half a GB.
SIXTEEN = [
    (16, False, 24.22, 22.6, {"cpu", "mps", "cuda"}),
    (1, False, 12.32, 12.22, {"mps"}),
    (16, True, 13.81, 11.9, {"mps"}),
    (1, True, 3.6, 3.5, set()),
]


@pytest.mark.parametrize(("batch", "lora", "written", "fused", "refused"), SIXTEEN)
@pytest.mark.parametrize("backend", ["cpu", "mps", "cuda"])
def test_a_16_gb_machine_refuses_gpt2_large(mac, monkeypatch, backend, batch, lora, written, fused, refused):
    device = mac(16)
    device.backend, device.kind = backend, "cpu" if backend == "cpu" else "gpu"
    if backend == "cuda":
        monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda *_: (16 * GIB - GIB // 2, 16 * GIB))
        # What the computer around the card has free is another matter.
        monkeypatch.setattr(snapshot, "available_memory_bytes", lambda: 1)
    case = Case(Nobody(), device, {"batch_size": batch})
    work = needs(0, fused if backend == "cuda" else written)
    free = {"cpu": 16, "mps": 12, "cuda": 15.5}[backend] * GIB / 1e9
    words = rf"^needs \d+\.\d GB at the least .*; {free:.1f} GB are free$"
    with pytest.raises(errors.TooBig, match=words) if backend in refused else contextlib.nullcontext():
        case.require_memory(work)
