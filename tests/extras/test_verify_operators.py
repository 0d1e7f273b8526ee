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

def run(tf32=False, plant=None, free=2**40, limit_s=1.0, taken=step, named=""):
    notes, kept = [], dict(pretended_mps.BY_HAND)
    backend = SimpleNamespace(kind="gpu", backend="mps", tf32=tf32)
    backend.reset_peak_memory = lambda: None
    case = fakes.FakeCase(backend=backend, device=device)
    case.note = lambda *said: notes.extend(said)
    proof.LIMIT_S = limit_s
    proof.snapshot = SimpleNamespace(available_memory_bytes=lambda: free)
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
LEFT = {"no room": {"free": 8 * 2000}, "no time": {"limit_s": 0.0}}

def alone(function, *args):
    "One operator on the device: right; and with a number of one of its results wrong by a hundredth, in turn."
    def spoilt(*given, **more):
        result = function(*given, **more)
        numbers = [item for item in proof.results(function, result, given) if item is not None]
        numbers = [item for item in numbers if item.is_floating_point()]
        if spoil and spoil[0] < len(numbers):
            touched.append(1)
            wrong = numbers[spoil[0]]
            place = tuple((0, -1)[spoil[1]] for _ in wrong.shape)
            wrong[place] += 0.01 * wrong.abs().max() + 1e-3
        return result

    answers, move = [], lambda x: x.clone().to(device) if isinstance(x, torch.Tensor) else x
    pretended_mps.BY_HAND[function] = spoilt
    for spoil in (None, *((place, last) for place in range(5) for last in (0, 1))):
        touched = []
        given = [[move(y) for y in x] if isinstance(x, list) else move(x) for x in args]
        with proof.Proof(device) as held:
            function(*given)
        answers.append({"worst": held.worst, "left": held.left, "touched": len(touched)})
        if spoil and not touched:
            break
    pretended_mps.BY_HAND.pop(function)
    return answers

torch.manual_seed(2)
r, i = torch.randn, torch.randint
image, kernel = r(4, 4, 8, 8), r(6, 4, 3, 3)
plain = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
norm = aten.native_batch_norm(image, r(4), r(4), None, None, True, 0.1, 1e-5)
soft = torch.softmax(r(6, 9), 1)
ALONE = {
    "addmm": (aten.addmm.default, r(60), r(60, 7), r(7, 60)),
    "convolution's gradient": (
        aten.convolution_backward.default, r(4, 6, 8, 8), image, kernel, [6], *plain, [True] * 3),
    "batch norm": (
        aten.native_batch_norm.default, image, r(4), r(4), r(4), r(4).abs(), True, 0.1, 1e-5),
    "its gradient": (aten.native_batch_norm_backward.default, image.sin(), image, r(4), None, None,
        norm[1], norm[2], True, 1e-5, [True] * 3),
    "softmax's gradient": (
        aten._softmax_backward_data.default, r(6, 9), soft, 1, torch.float32),
    "embedding's gradient": (
        aten.embedding_dense_backward.default, r(7, 3, 5), i(40, (7, 3)), 40, -1, False),
    "foreach in place": (aten._foreach_mul_.Scalar, [r(3, 4), r(5)], 2.5),
    "in place": (aten.add_.Tensor, r(6, 9), r(6, 9)),
    "a sum": (aten.sum.dim_IntList, r(6, 9), [0], True),
}
groups = {"clean": CLEAN, "plants": PLANTS, "left": LEFT}
answers = {group: {name: run(**given) for name, given in rows.items()} for group, rows in groups.items()}
proof.LIMIT_S = 1.0
proof.snapshot = SimpleNamespace(available_memory_bytes=lambda: 2**40)
with rehearsal.entered():
    operators = {name: alone(*given) for name, given in ALONE.items()}

# MPS has one operator for all gradients of a linear layer, and a CPU has none.
x, weight, bias = r(5, 70, 8).requires_grad_(), r(90, 8).requires_grad_(), r(90).requires_grad_()
grad = r(5, 70, 90)
F.linear(x, weight, bias).backward(grad)
mine = proof._on_cpu(aten.linear_backward.default, (x, grad, weight, [True] * 3), {})
pairs = zip(mine(torch.float32), (x.grad, weight.grad, bias.grad), strict=True)
linear = [bool(torch.allclose(ours, right, atol=1e-4)) for ours, right in pairs]
answers |= {"operators": operators, "linear": linear}
print(json.dumps(answers))
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    return apart.answers(tmp_path_factory.mktemp("proof"), FRAME)


def test_a_step_that_is_right_passes(answers):
    assert {name: row["said"] for name, row in answers["clean"].items() if row["said"]} == {}


def test_a_fault_of_a_kernel_is_found_and_named(answers):
    for name, row in answers["plants"].items():
        assert row["named"] in row["said"], name


def test_every_number_that_an_operator_gives_is_compared(answers):
    """The first and last number of each result, wrong by a hundredth, and those written into."""
    for name, (right, *wrong) in answers["operators"].items():
        assert (right["worst"], right["left"]) == (None, {}), (name, right)
        wrong = [each for each in wrong if each["touched"]]
        assert wrong, name
        assert all(each["worst"] for each in wrong), (name, wrong)


def test_gradients_of_a_linear_layer_on_a_mac_are_compared(answers):
    assert answers["linear"] == [True] * 3


@pytest.mark.parametrize(
    ("row", "words"), [("no room", "too large for the CPU"), ("no time", "at more shapes")]
)
def test_what_was_not_compared_is_said(answers, row, words):
    text, flag = answers["left"][row]["notes"]
    assert answers["left"][row]["said"] == ""
    assert words in text
    assert flag == "unproved"
