"""A step operator by operator, on a mock MPS: right, and with faults planted in it."""

import itertools
from types import SimpleNamespace

import apart
import pytest
import torch

from pomology.extras.verify_operators import proof, sample
from pomology.results import cases

FRAME = """
import json, math, os, sys
from types import SimpleNamespace
import torch
from torch import nn
from torch.nn import functional as F
import fakes
import pretended_mps
from pomology.errors import Mismatch
from pomology.extras.verify_operators import proof, sample

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

def run(model=Network, taken=step, count=6, tf32=False, plant=None, free=2**40, limit_s=1.0, named="", **more):
    notes, kept = [], dict(pretended_mps.BY_HAND)
    backend = SimpleNamespace(kind="gpu", backend="mps", tf32=tf32, free_memory=lambda: 2**20)
    backend.reset_peak_memory = lambda: None
    case = fakes.FakeCase(backend=backend, device=device, batch_size=count, config=more)
    case.note, proof.LIMIT_S, numbers = lambda *said: notes.extend(said), limit_s, {}
    case.metric = lambda name, value, unit: numbers.update({name: value})
    sample.snapshot = SimpleNamespace(available_memory_bytes=lambda: free)
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
    return {"said": said, "notes": notes, "named": named, "numbers": numbers}

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

def row_of_many(result, *_, **__):
    return result.index_fill(0, torch.tensor([len(result) // 3]), 0.0) if len(result) > 99 else result

def one_nan(result, *_, **__):
    if len(result) > 9999:
        result[70, 20] = math.nan
    return result

proving = []
enter, leave = proof.Proof.__enter__, proof.Proof.__exit__
proof.Proof.__enter__ = lambda self: proving.append(1) or enter(self)
proof.Proof.__exit__ = lambda self, *given: proving.clear() or leave(self, *given)

def late(result, *_, **__):
    "Wrong unless somebody waits after every operator."
    return result if proving else result * 1.5

memory = []
def filled(result, shape, value, **__):
    memory.append(math.isnan(value))
    return result
def reads_free(result, a, b, *_, **__):
    return result.index_fill(0, torch.tensor([0]), math.nan) if any(memory) else result

first = lambda change: lambda result, *_, **__: (None if result[0] is None else change(result[0]), *result[1:])
PLANTS = {
    "mm over 32,767": {"named": "mm of", "model": lambda: Network(33_000), "plant": {aten.mm.default: big}},
    "convolution in TF32": {"named": "convolution of", "plant": {aten.convolution.default: chopped}},
    "the gradient of weights": {"named": "convolution_backward of", "plant": {
        aten.convolution_backward.default: lambda result, *_, **__: (result[0], result[1].roll(1, 0), *result[2:])}},
    "the second shape": {"named": "addmm of", "plant": {aten.addmm.default: second_size}},
    "late": {"named": "the gradient of ", "plant": {aten.mm.default: late}},
    "behind memory that is not zero": {"named": "mm of",
        "plant": {aten.full.default: filled, aten.mm.default: reads_free}},
    "a row of few": {"named": "mm of 500×30 and 30×24", "plant": {aten.mm.default: row_of_many}},
    "one NaN of many": {"named": "mm of 33000×300 and 300×24 is not finite",
        "model": lambda: Network(33_000), "count": 60, "plant": {aten.mm.default: one_nan}},
    "of what is not contiguous": {"named": "mm of", "plant": {aten.mm.default: lambda result, a, b, **__: (
        result if a.is_contiguous() and b.is_contiguous() else result * 1.01)}},
    "softmax over another dimension": {"named": "_safe_softmax of", "plant": {
        aten._safe_softmax.default: lambda result, x, dim, *_, **__: torch.softmax(x, 0)}},
    "half": {"named": "mm of", "taken": autocast(torch.bfloat16), "plant": {
        aten.mm.default: lambda result, *_, **__: result * 1.1}},
}
CLEAN = {
    "fp32": {}, "one": {"count": 1}, "many words": {"model": lambda: Network(33_000), "count": 3},
    "fp16": {"taken": autocast(torch.float16)},
    "bf16": {"taken": autocast(torch.bfloat16)},
    "TF32 as it ships": {"tf32": True, "plant": {aten.convolution.default: chopped}},
}
LEFT = {"no room": {"free": 8 * 2000}, "no time": {"limit_s": 0.0}}

def alone(function, *args):
    "One operator on the device: right; and with a number of one of its results wrong by a hundredth, in turn."
    def spoilt(*given, **more):
        result = function(*given, **more)
        numbers = [item for item in sample.results(function, result, given) if item is not None]
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
grouped, up = (*plain[:-1], 2), (*plain[:3], True, [0, 0], 1)
norm = aten.native_batch_norm(image, r(4), r(4), None, None, True, 0.1, 1e-5)
layer = aten.native_layer_norm(r(6, 5, 8), [8], r(8), r(8), 1e-5)
pooled = aten.max_pool2d_with_indices(image, [2, 2], [2, 2])
soft, large = torch.softmax(r(6, 9), 1), r(3, 90, 90)
ALONE = {
    "mm": (aten.mm.default, r(60, 7), r(7, 60)),
    "addmm": (aten.addmm.default, r(60), r(60, 7), r(7, 60)),
    "convolution": (aten.convolution.default, image, kernel, r(6), *plain),
    "its gradient": (
        aten.convolution_backward.default, r(4, 6, 8, 8), image, kernel, [6], *plain, [True] * 3),
    "its gradient upwards": (
        aten.convolution_backward.default, r(4, 6, 8, 8), image, r(4, 6, 3, 3), [6], *up, [True] * 3),
    "its gradient upwards of many": (
        aten.convolution_backward.default, r(4, 40, 8, 8), r(4, 30, 8, 8), r(30, 40, 3, 3), [40], *up, [True] * 3),
    "batch norm": (aten.native_batch_norm.default, image, r(4), r(4), r(4), r(4).abs(), True, 0.1, 1e-5),
    "its gradient there": (aten.native_batch_norm_backward.default, image.sin(), image, r(4), None, None, norm[1],
        norm[2], True, 1e-5, [True] * 3),
    "layer norm": (aten.native_layer_norm.default, r(6, 5, 8), [8], r(8), r(8), 1e-5),
    "layer norm's gradient": (aten.native_layer_norm_backward.default, r(6, 5, 8), r(6, 5, 8), [8], layer[1],
        layer[2], r(8), r(8), [True] * 3),
    "softmax": (aten._softmax.default, r(6, 9), 1, False),
    "softmax's gradient": (aten._softmax_backward_data.default, r(6, 9), soft, 1, torch.float32),
    "pooling": (aten.max_pool2d_with_indices.default, image, [2, 2], [2, 2]),
    "pooling's gradient": (aten.max_pool2d_with_indices_backward.default, r(4, 4, 4, 4), image, [2, 2], [2, 2],
        [0, 0], [1, 1], False, pooled[1]),
    "embedding's gradient": (aten.embedding_dense_backward.default, r(7, 3, 5), i(40, (7, 3)), 40, -1, False),
    "index put": (aten.index_put_.default, r(9, 4), [i(9, (3,))], r(3, 4), True),
    "foreach in place": (aten._foreach_mul_.Scalar, [r(3, 4), r(5)], 2.5),
    "in place": (aten.add_.Tensor, r(6, 9), r(6, 9)),
    "a dropout": (aten.native_dropout.default, r(60, 9), 0.3, True),
    "a loss": (aten.nll_loss_forward.default, r(6, 9), i(9, (6,)), None, 1, -100),
    "a sum": (aten.sum.dim_IntList, r(6, 9), [0], True),
    "many": (aten.mul.Tensor, large, r(90, 1)),
    "a loss's gradient of many": (
        aten.nll_loss_backward.default, r(()), r(90, 300), i(300, (90,)), None, 1, -100, r(())),
    "softmax of many": (aten._softmax.default, large, -1, False),
    "embedding's gradient of many": (
        aten.embedding_dense_backward.default, r(7, 3, 900), i(40, (7, 3)), 40, -1, False),
    "a sum of many": (aten.sum.dim_IntList, r(300, 90), [0], True),
    "batch norm of many": (
        aten.native_batch_norm.default, r(9, 20, 12, 12), r(20), r(20), r(20), r(20).abs(), True, 0.1, 1e-5),
    "pooling of many": (aten.max_pool2d_with_indices.default, r(9, 20, 12, 12), [2, 2], [2, 2]),
}
groups = {"clean": CLEAN, "plants": PLANTS, "left": LEFT}
answers = {group: {name: run(**given) for name, given in rows.items()} for group, rows in groups.items()}
sample.LARGE, sample.SUMMED = 20_000, 1_000_000
with rehearsal.entered():
    operators = {name: alone(*given) for name, given in ALONE.items()}

# What no processor has, so that the parts are asked for: as MPS takes a linear layer, and its pooling's gradient.
x, grad, weight = r(5, 70, 8), r(5, 70, 90), r(90, 8)
right = [(grad @ weight), grad.flatten(0, 1).t() @ x.flatten(0, 1), grad.sum((0, 1))]
ties = torch.zeros(2, 4, 8, 8)
sums = torch.nn.functional.max_pool2d(ties.requires_grad_(), 2), r(2, 4, 4, 4)
sums[0].backward(sums[1])
MACS = {
    "linear": (aten.linear.default, (x, weight, r(90)), None),
    "linear backward": (aten.linear_backward.default, (x, grad, weight, [True] * 3), right),
    "pooling backward": (aten.max_pool2d_backward.default, (sums[1], ties.detach(), [2, 2]), [ties.grad.flip(-1)]),
}
MACS["linear"] = (*MACS["linear"][:2], [F.linear(*MACS["linear"][1])])
macs = {}
for name, (function, given, results) in MACS.items():
    def excess(results):
        held = proof.Proof(torch.device("cpu"))
        for again, pick in sample.parts(function, given, {}):
            held._compare(name, [], results, pick, again)
        return held.worst is not None
    macs[name] = [excess(results)]
    for place, item in enumerate(results):
        for number in (0, -1):
            wrong = item.clone()
            wrong.view(-1)[number] += 0.01 * item.abs().max()
            macs[name].append(excess([*results[:place], wrong, *results[place + 1:]]))
answers |= {"operators": operators, "macs": macs}
print(json.dumps(answers))
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    return apart.answers(tmp_path_factory.mktemp("proof"), FRAME)


def test_a_step_that_is_right_passes(answers):
    clean = {name: row for name, row in answers["clean"].items() if row["said"] or len(row["notes"]) != 1}
    assert not clean
    for row in answers["clean"].values():
        assert row["notes"][0].startswith("held against the CPU before it was timed") and row["numbers"]["proof_s"] > 0


def test_a_fault_of_a_kernel_is_found_and_named(answers):
    assert len(answers["plants"]) == 11
    assert not {
        name: row for name, row in answers["plants"].items() if row["named"] not in row["said"] or row["numbers"]
    }


def test_every_number_that_an_operator_gives_is_looked_at(answers):
    """Each result's first and last number, wrong by a hundredth of the largest; those written into, too."""
    for name, (right, *wrong) in answers["operators"].items():
        assert (right["worst"], right["left"]) == (None, {}), (name, right)
        wrong = [each for each in wrong if each["touched"]]
        assert wrong and all(each["worst"] for each in wrong), (name, wrong)


def test_what_only_a_mac_has_is_looked_at(answers):
    for name, (right, *wrong) in answers["macs"].items():
        assert not right and wrong and all(wrong), (name, right, wrong)


def test_what_was_not_held_against_the_cpu_is_said(answers):
    for row, words in (("no room", "too large for the CPU"), ("no time", "at more shapes than the CPU computes")):
        _, text, flag = answers["left"][row]["notes"]
        assert answers["left"][row]["said"] == "" and words in text and flag == "unproved", answers["left"][row]
    assert "unproved" in cases.FLAGS


def test_a_fault_in_one_row_of_eleven_is_among_those_that_are_computed():
    for size in (49, 100, 1000, 33_278):
        seen = sample.some(torch.arange(size), 0, sample.ROWS).tolist()
        assert seen[0] == 0 and seen[-1] == size - 1 and len(set(seen)) == sample.ROWS
        assert max(b - a for a, b in itertools.pairwise(seen)) <= size / 11 + 1


def test_a_cpu_is_asked_for_nothing():
    assert proof.prove(SimpleNamespace(backend=SimpleNamespace(kind="cpu")), None, None) is None
