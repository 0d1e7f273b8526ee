"""Cases of a notebook on a mock MPS with planted faults: prints how each ended, as JSON."""

import functools
import json
import os
import sys
import tempfile

import fakes
import pretended_mps
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pomology.experiment.experiment import Experiment
from pomology.models import verify

aten, rehearsal = torch.ops.aten, pretended_mps.become(False)
pretended_mps.support = lambda name: "kernel"  # reading the list of MPS's takes seconds
fakes.quiet_machine(pytest.MonkeyPatch())


class Network(nn.Module):
    """Most of what the notebooks' models are made of."""

    def __init__(self):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 16, 3, stride=2), nn.BatchNorm2d(16)
        self.up = nn.ConvTranspose2d(16, 4, 4, 2, 1, bias=False)
        self.tokens = nn.Embedding(500, 24)
        self.layer = nn.TransformerEncoderLayer(24, 2, 32, 0.2, batch_first=True)
        self.first, self.head = nn.Linear(4 * 14 * 14, 24), nn.Linear(24, 500)

    def forward(self, images, tokens):
        seen = self.up(F.relu(self.norm(self.convolution(images)), inplace=True)).flatten(1)
        both = F.gelu(self.first(seen)).unsqueeze(1) + self.layer(self.tokens(tokens))
        return self.head(both + torch.randn_like(both) * 0.01)


def draw(count):
    return torch.rand(count, 3, 16, 16), torch.randint(500, (count, 5))


def one_step(model, count):
    images, tokens = draw(count)
    loss = F.cross_entropy(model(images, tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    return loss


PRECISIONS = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


def case_with(dtype, folder):
    """Status, reason, metrics, note and flags of a case, written as in a notebook."""
    experiment = Experiment("sustained_load", article="kit", budget_s=0.3, out=folder)
    (case,) = experiment.cases(batch_size=[12], precision=[PRECISIONS[dtype]])
    with case:
        torch.manual_seed(1)
        model = case.watch_model(Network().to(case.device))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        with torch.autocast(case.device.type, dtype=dtype, enabled=dtype is not torch.float32):
            before = {name: item.cpu().clone() for name, item in model.state_dict().items()}
            random = torch.get_rng_state()
            verify.step(case, model, one_step, optimizer)
            after = model.state_dict()
            assert all(torch.equal(before[name], after[name].cpu()) for name in before)
            assert all(weight.grad is None for weight in model.parameters())
            assert torch.equal(random, torch.get_rng_state()) and not optimizer.state
        batch = case.backend.to_device(draw(12))
        for _ in case.steps([batch] * 5, ready=False):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(*batch).flatten(0, 1), batch[1].flatten())
            loss.backward()
            optimizer.step()
            case.loss(loss.item())
    (record,) = experiment.records
    metrics = sorted(record.metrics)
    return record.status, record.reason or "", metrics, record.note or "", record.flags


def times(factor, place=0):
    def wrong(result, *_, **__):
        if not isinstance(result, tuple):
            return result * factor
        changed = list(result)
        if changed[place] is not None:  # a gradient that nobody needs
            changed[place] = changed[place] * factor
        return tuple(changed)

    return wrong


def softmax_at_a_shape(result, x, dim, *_, **__):
    return torch.softmax(x, 0) if len(x) > 2 else result


SHAPES = []


def second_size(result, *_, **__):
    SHAPES.append(result.shape)
    return result if result.shape == SHAPES[0] else result * 1.1


def one_row(result, *_, **__):
    if len(result) > 20:
        result[len(result) // 3] = 0.0
    return result


def one_nan(result, *_, **__):
    if len(result) > 20:
        result[7, 3] = float("nan")
    return result


def next_row(result, *_, **__):
    return result.roll(1, 0)


def in_place(factor):
    return lambda result, x, *_, **__: x.mul_(factor)


SOFTMAX = (aten._safe_softmax.default, aten._softmax.default)
PLANTS = {
    "matmul": {aten.mm.default: times(1.01)},
    "matmul, the second shape": {aten.addmm.default: second_size},
    "matmul, a row": {aten.mm.default: one_row},
    "matmul, a NaN": {aten.mm.default: one_nan},
    "a batch of matmuls": {aten.bmm.default: times(1.01)},
    "gradient of pictures": {aten.convolution_backward.default: times(1.02)},
    "gradient of weights": {aten.convolution_backward.default: times(1.02, 1)},
    "softmax at a shape": dict.fromkeys(SOFTMAX, softmax_at_a_shape),
    "gradient of softmax": {aten._softmax_backward_data.default: times(0.9)},
    "layer norm": {aten.native_layer_norm.default: times(1.01)},
    "sum": {aten.sum.dim_IntList: lambda result, x, *_, **__: result - 0.05 * result.abs().max()},
    "gradient of embedding": {aten.embedding_dense_backward.default: next_row},
    "update": {aten.addcdiv_.default: in_place(1.001)},
    "average of gradients": {aten.lerp_.Scalar: lambda result, x, y, w: x.copy_(y)},
}


def rounded(result, *_, **__):
    """What a sum in another order gives: another last digit or two."""
    return result * (1 + 1e-6 * torch.randn(result.shape, generator=NOISE))


NOISE = torch.Generator().manual_seed(1)
PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.convolution.default)


def spoil(wrong, inner, *arguments, **named):
    return wrong(inner(*arguments, **named), *arguments, **named)


def spoiled(plants):
    right = dict(pretended_mps.BY_HAND)
    for function, wrong in plants.items():
        inner = right.get(function, function)
        pretended_mps.BY_HAND[function] = functools.partial(spoil, wrong, inner)
    return right


answers = {}
with rehearsal.entered():
    rows = {name: (plants, torch.float32) for name, plants in PLANTS.items()}
    rows |= {precision: ({}, dtype) for dtype, precision in PRECISIONS.items()}
    rows["rounding"] = (dict.fromkeys(PRODUCTS, rounded), torch.float32)
    for name, (plants, dtype) in rows.items():
        right = spoiled(plants)
        with tempfile.TemporaryDirectory() as folder:
            answers[name] = case_with(dtype, folder)
        pretended_mps.BY_HAND.clear()
        pretended_mps.BY_HAND.update(right)
print(json.dumps(answers))
sys.stdout.flush()
os._exit(0)
