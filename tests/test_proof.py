"""The proof of a training step, on a pretended GPU, clean and with the known faults of GPUs planted in it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FRAME = """
import contextlib, json, math, os, sys
from types import SimpleNamespace
import torch
from torch import nn
from torch.nn import functional as F
import pretended_mps
from pomology.errors import Mismatch
from pomology.workloads import proof

aten, rehearsal = torch.ops.aten, pretended_mps.Rehearsal()
device = rehearsal.handle

class Network(nn.Module):
    "Most of what the notebooks' models are made of."
    def __init__(self, words=500, width=24):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 16, 3, stride=2, bias=True), nn.BatchNorm2d(16)
        self.up = nn.ConvTranspose2d(16, 4, 4, 2, 1, bias=False)
        self.tokens, self.lstm = nn.Embedding(words, width), nn.LSTM(width, width, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(width, 2, 32, 0.2, batch_first=True)
        self.first, self.head = nn.Linear(4 * 14 * 14, width), nn.Linear(width, words)

    def forward(self, images, tokens):
        seen = self.up(F.relu(self.norm(self.convolution(images)), inplace=True)).flatten(1)
        read = self.layer(self.lstm(self.tokens(tokens))[0])
        both = F.gelu(self.first(seen)).unsqueeze(1) + read
        return self.head(both + torch.randn_like(both) * 0.01)

def step(model, count):
    words = model.head.out_features
    images, tokens = torch.rand(count, 3, 16, 16), torch.randint(words, (count, 5))
    F.cross_entropy(model(images, tokens).flatten(0, 1), tokens.flatten()).backward()

def run(model=Network, taken=step, count=6, precision="fp32", tf32=False, plant=None, **more):
    notes, kept = [], dict(pretended_mps.BY_HAND)
    backend = SimpleNamespace(kind="gpu", backend="mps", tf32=tf32, free_memory=lambda: 2**24)
    backend.reset_peak_memory = lambda: None
    case = SimpleNamespace(backend=backend, device=device, batch_size=count, precision=precision, config=more)
    case.note = notes.append
    torch.manual_seed(1)
    with rehearsal.entered():
        network = model().to(device)
        before = {name: item.cpu().clone() for name, item in network.state_dict().items()}
        random = torch.get_rng_state()
        for function, wrong in (plant or {}).items():
            right = kept.get(function, function)
            pretended_mps.BY_HAND[function] = lambda *a, wrong=wrong, right=right, **k: wrong(right(*a, **k), *a, **k)
        try:
            proof.prove(case, network, taken)
            said = ""
        except Mismatch as error:
            said = str(error)
        finally:
            pretended_mps.BY_HAND.clear()
            pretended_mps.BY_HAND.update(kept)
        after = {name: item.cpu() for name, item in network.state_dict().items()}
        assert all(torch.equal(before[name], after[name]) for name in before), "the proof changed the model"
        assert all(weight.grad is None for weight in network.parameters())
        assert torch.equal(random, torch.get_rng_state())
    return {"said": said, "notes": notes}

def autocast(kind):
    def taken(model, count):
        with torch.autocast(device.type, dtype=kind):
            step(model, count)
    return taken

def big(result, a, b, *_, **__):
    "As PyTorch 2.13 on M1 and M2: what lies behind the numbers is added to sums over 32,767 of them and more."
    return result + 0.2 * result.abs().max() if a.shape[-1] >= 32767 else result

def chopped(result, *_, **__):
    "As TF32 in place of fp32: of the result, to be simple."
    return (result.view(torch.int32) & ~0x1FFF).view(torch.float32)

def second_size(result, *_, _seen=[], **__):
    "Right at the first shape, wrong at every other one."
    _seen.append(tuple(result.shape))
    return result if result.shape == _seen[0] else result * 1.1

calls = []
def late(result, *_, **__):
    "Wrong unless somebody waits after every operator."
    calls.append(0)
    return result if proof_is_on() else result * 1.5

def proof_is_on():
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
    return any(isinstance(mode, proof.Proof) for mode in _get_current_dispatch_mode_stack()) or proving
proving = False
enter = proof.Proof.__enter__
def entering(self):
    global proving
    proving = True
    return enter(self)
def leaving(self, *given, leave=proof.Proof.__exit__):
    global proving
    proving = False
    return leave(self, *given)
proof.Proof.__enter__, proof.Proof.__exit__ = entering, leaving

first = lambda change: lambda result, *_, **__: (change(result[0]), *result[1:])
PLANTS = {
    "mm over 32,767": {"model": lambda: Network(33_000), "plant": {aten.mm.default: big}},
    "bmm": {"plant": {aten.bmm.default: lambda result, *_, **__: result * 1.01}},
    "fp32 in TF32": {"plant": {aten.addmm.default: chopped}},
    "convolution in TF32": {"plant": {aten.convolution.default: chopped}},
    "NaN": {"plant": {aten.mm.default: lambda result, *_, **__: result * math.nan}},
    "the gradient of pictures": {"plant": {aten.convolution_backward.default: first(lambda x: x * 1.02)}},
    "the gradient of weights": {"plant": {
        aten.convolution_backward.default: lambda result, *_, **__: (result[0], result[1].roll(1, 0), *result[2:])}},
    "batch normalisation": {"plant": {aten.native_batch_norm_backward.default: first(lambda x: x + 0.01)}},
    "relu not applied": {"plant": {aten.relu_.default: lambda result, x, *_, **__: x.copy_(x - 0.1)}},
    "gelu": {"plant": {aten.gelu.default: lambda result, x, *_, **__: F.silu(x)}},
    "a row of many": {"model": lambda: Network(33_000), "count": 400, "plant": {
        aten.embedding_dense_backward.default: lambda result, *_, **__: result.index_fill(0, torch.tensor([7]), 1.0)}},
    "the second shape": {"plant": {aten.addmm.default: second_size}},
    "late": {"plant": {aten.mm.default: late}},
    "half": {"taken": autocast(torch.bfloat16), "precision": "bf16", "plant": {
        aten.mm.default: lambda result, *_, **__: result * 1.1}},
}
CLEAN = {
    "fp32": {}, "one": {"count": 1}, "many words": {"model": lambda: Network(33_000), "count": 3},
    "fp16": {"taken": autocast(torch.float16), "precision": "fp16"},
    "bf16": {"taken": autocast(torch.bfloat16), "precision": "bf16"},
    "TF32 as it ships": {"tf32": True, "plant": {aten.convolution.default: chopped}},
}
answers = {name: run(**given) for name, given in (CLEAN | PLANTS).items()}
off = run(tf32=True, plant={aten.convolution.default: chopped}) | run(**{"tf32": True, "plant": None})
print(json.dumps(answers))
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture(scope="module")
def answers():
    command = [sys.executable, "-W", "ignore", "-c", FRAME]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    texts = {"capture_output": True, "text": True, "env": environment}
    done = subprocess.run(command, check=False, cwd=Path(__file__).parent, **texts)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


CLEAN = ("fp32", "one", "many words", "fp16", "bf16", "TF32 as it ships")


@pytest.mark.parametrize("row", CLEAN)
def test_a_step_that_is_right_passes(answers, row):
    assert answers[row] == {"said": "", "notes": []}


WORDS = {
    "mm over 32,767": "mm of",
    "bmm": "bmm of",
    "fp32 in TF32": "addmm of",
    "convolution in TF32": "convolution of",
    "NaN": "not finite",
    "the gradient of pictures": "convolution_backward of",
    "the gradient of weights": "convolution_backward of",
    "batch normalisation": "native_batch_norm_backward of",
    "relu not applied": "relu_ of 6×16×7×7",
    "gelu": "gelu of",
    "a row of many": "embedding_dense_backward of",
    "the second shape": "addmm of",
    "late": "the gradient of ",
    "half": "mm of",
}


@pytest.mark.parametrize("fault", WORDS)
def test_a_fault_of_a_kernel_is_found_and_named(answers, fault):
    assert WORDS[fault] in answers[fault]["said"], answers[fault]
