"""A step operator by operator, on a mock MPS: right, and with faults planted in it."""

import apart
import pytest

FRAME = """
import json, math, os, sys
from types import SimpleNamespace
import torch
from torch import nn
from torch.nn import functional as F
import fakes
import pretended_mps
from pomology.errors import Mismatch
from pomology.extras.verify_operators import proof

aten, rehearsal = torch.ops.aten, pretended_mps.Rehearsal()
pretended_mps.support = lambda name: "kernel"  # reading the list of MPS's takes seconds
device = rehearsal.handle

class Network(nn.Module):
    "Most of what the notebooks' models are made of."
    def __init__(self, words=500, width=24):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 16, 3, stride=2, bias=True), nn.BatchNorm2d(16)
        self.up = nn.ConvTranspose2d(16, 4, 4, 2, 1, bias=False)
        self.tokens = nn.Embedding(words, width)
        self.layer = nn.TransformerEncoderLayer(width, 2, 32, 0.2, batch_first=True)
        self.first, self.head = nn.Linear(4 * 14 * 14, width), nn.Linear(width, words)

    def forward(self, images, tokens):
        seen = self.up(F.relu(self.norm(self.convolution(images)), inplace=True)).flatten(1)
        read = self.layer(self.tokens(tokens))
        both = F.gelu(self.first(seen)).unsqueeze(1) + read
        return self.head(both + torch.randn_like(both) * 0.01)

def step(model, count):
    words = model.head.out_features
    images, tokens = torch.rand(count, 3, 16, 16), torch.randint(words, (count, 5))
    F.cross_entropy(model(images, tokens).flatten(0, 1), tokens.flatten()).backward()

def run(tf32=False, plant=None, taken=step, named=""):
    notes, kept = [], dict(pretended_mps.BY_HAND)
    backend = SimpleNamespace(kind="gpu", backend="mps", tf32=tf32)
    backend.reset_peak_memory = lambda: None
    case = fakes.FakeCase(backend=backend, device=device)
    case.note = lambda *said: notes.extend(said)
    torch.manual_seed(1)
    with rehearsal.entered():
        network = Network().to(device)
        for function, wrong in (plant or {}).items():
            right = kept.get(function, function)
            pretended_mps.BY_HAND[function] = (
                lambda *a, wrong=wrong, right=right, **k: wrong(right(*a, **k), *a, **k)
            )
        try:
            proof.prove(case, network, taken, 6)
            said = ""
        except Mismatch as error:
            said = str(error)
        pretended_mps.BY_HAND.clear()
        pretended_mps.BY_HAND.update(kept)
    return {"said": said, "notes": notes, "named": named}

def autocast(kind):
    def taken(model, count):
        with torch.autocast(device.type, dtype=kind):
            step(model, count)
    return taken

def chopped(result, *_, **__):
    "As TF32 in place of fp32: of the result, to be simple."
    return (result.view(torch.int32) & ~0x1FFF).view(torch.float32)

def second_size(result, *_, _seen=[], **__):
    "Right at the first shape, wrong at every other one."
    _seen.append(tuple(result.shape))
    return result if result.shape == _seen[0] else result * 1.1

PLANTS = {
    "TF32": {"named": "convolution of", "plant": {aten.convolution.default: chopped}},
    "the gradient of weights": {"named": "convolution_backward of", "plant": {
        aten.convolution_backward.default: lambda result, *_, **__: (
            result[0], result[1].roll(1, 0), *result[2:])}},
    "the second shape": {"named": "addmm of", "plant": {aten.addmm.default: second_size}},
    "one NaN": {"named": "is not finite", "plant": {
        aten.mm.default: lambda result, *_, **__: result.index_fill(
            0, torch.tensor([3]), math.nan)}},
    "the wrong dimension": {"named": "_safe_softmax of", "plant": {
        aten._safe_softmax.default: lambda result, x, *_, **__: torch.softmax(x, 0)}},
    "half": {"named": "mm of", "taken": autocast(torch.bfloat16), "plant": {
        aten.mm.default: lambda result, *_, **__: result * 1.1}},
}
CLEAN = {
    "fp32": {}, "fp16": {"taken": autocast(torch.float16)},
    "TF32 as it ships": {"tf32": True, "plant": {aten.convolution.default: chopped}},
}

groups = {"clean": CLEAN, "plants": PLANTS}
answers = {group: {name: run(**given) for name, given in rows.items()} for group, rows in groups.items()}

# MPS has one operator for all gradients of a linear layer, and a CPU has none.
x, weight, bias, grad = (torch.randn(shape) for shape in ((5, 70, 8), (90, 8), (90,), (5, 70, 90)))
for tensor in (x, weight, bias):
    tensor.requires_grad_()
F.linear(x, weight, bias).backward(grad)
mine = proof._on_cpu(aten.linear_backward.default, (x, grad, weight, [True] * 3), {})
pairs = zip(mine(torch.float32), (x.grad, weight.grad, bias.grad), strict=True)
linear = [bool(torch.allclose(ours, right, atol=1e-4)) for ours, right in pairs]
answers["linear"] = linear
print(json.dumps(answers))
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    return apart.answers(tmp_path_factory.mktemp("proof"), FRAME)


def test_a_step_that_is_right_passes_and_says_what_was_not_compared(answers):
    assert {name: row["said"] for name, row in answers["clean"].items() if row["said"]} == {}
    text, flag = answers["clean"]["fp32"]["notes"]
    assert "it draws random numbers" in text and flag == "unproved"


def test_a_fault_of_a_kernel_is_found_and_named(answers):
    for name, row in answers["plants"].items():
        assert row["named"] in row["said"], name


def test_gradients_of_a_linear_layer_on_a_mac_are_compared(answers):
    assert answers["linear"] == [True] * 3
