"""Random rows on a mock GPU whose operators round in their own way, and which of them are refused:

    python tests/random_rows.py ROWS NOISE FAULT

fault: 0, or the share by which one of a row's products is wrong. Prints the answers as JSON.
"""

import functools
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import fakes
import pretended_mps
import torch
from torch import nn
from torch.nn import functional as F

from pomology.errors import Mismatch
from pomology.models import verify

count, noise, fault = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
pretended_mps.support = lambda name: "kernel"
rehearsal, own, aten = pretended_mps.Rehearsal(), torch.Generator().manual_seed(1), torch.ops.aten
PRODUCTS = (aten.mm, aten.addmm, aten.bmm, aten.convolution, aten.convolution_backward)


class Noisy(dict):
    # Every operator but copies and views has rounding of its own, as of its result's last digit where that is half.
    faulty = None

    def get(self, function, otherwise):
        right, base = dict.get(self, function, otherwise), function.overloadpacket
        if function in pretended_mps.COPIES or function.is_view or base in (aten.clone, aten._unsafe_view):
            return right

        def call(*given, **named):
            result = right(*given, **named)
            for item in result if isinstance(result, tuple) else [result]:
                if isinstance(item, torch.Tensor) and item.is_floating_point() and item.numel():
                    size = max(noise, torch.finfo(item.dtype).eps / 4)
                    scale = item.abs() + (item.square().mean().sqrt() if base in PRODUCTS else 0)
                    item.add_(size * scale * torch.randn(item.shape, generator=own).to(item.dtype))
                    if self.faulty is base:
                        item.mul_(1 + fault)
            return result

        return call


pretended_mps.BY_HAND = Noisy(pretended_mps.BY_HAND)


class Residual(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return x + self.layers(x)


class Recurrent(nn.LSTM):
    def forward(self, x):
        return super().forward(x)[0]


def row(chosen: random.Random) -> tuple[nn.Module, Callable, Callable]:
    """A model, so many inputs for it, and its loss: like one of those that the notebooks train, of any shape."""
    n, w, kind = chosen.randint(5, 60), 8 * chosen.randint(1, 6), chosen.randrange(7)
    size, words = 2 * chosen.randint(4, 12), chosen.randint(20, 4000)

    def pictures(count):
        return torch.rand(count, 3, size, size)

    def like(target, loss):
        """A loss against random targets."""
        return lambda y: loss(y.float(), target(len(y)))

    if kind == 0:  # a residual network
        inside = nn.Conv2d(w, w, 3, padding=1, bias=False), nn.BatchNorm2d(w), nn.ReLU(inplace=True)
        stem = nn.Conv2d(3, w, 3, padding=1), nn.BatchNorm2d(w), nn.ReLU(), nn.MaxPool2d(2), Residual(*inside)
        model = nn.Sequential(*stem, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(w, 10))
        return model, pictures, like(lambda count: torch.randint(10, (count,)), F.cross_entropy)
    if kind == 1:  # DCGAN
        up = nn.ConvTranspose2d(n, w, 4, bias=False), nn.BatchNorm2d(w), nn.ReLU(True)
        down = nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(8 * 16, 1)
        model = nn.Sequential(*up, nn.ConvTranspose2d(w, 3, 4, 2, 1), nn.Tanh(), *down)
        target = like(lambda count: torch.rand(count, 1), F.binary_cross_entropy_with_logits)
        return model, lambda count: torch.randn(count, n, 1, 1), target
    if kind == 2:  # VAE
        model = nn.Sequential(nn.Linear(n, w), nn.ReLU(), nn.Linear(w, n), nn.Sigmoid())
        error = like(lambda count: torch.rand(count, n), functools.partial(F.mse_loss, reduction="sum"))
        return model, lambda count: torch.rand(count, n), lambda y: error(y) - (1 - y.float().exp()).mean()
    if kind == 3:  # Siamese
        model = nn.Sequential(nn.Conv2d(3, w, 3, 2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(w))
        model(pictures(1))
        return model, pictures, lambda y: F.pairwise_distance(y.float(), y.float().flip(0) + 0.1).clamp(min=0.1).mean()
    head, perceptron = nn.Linear(w, words), (nn.Linear(w, 4 * w), nn.GELU("tanh"), nn.Linear(4 * w, w))
    if kind == 4:
        middle = [nn.TransformerEncoderLayer(w, 2, 4 * w, 0.2, batch_first=True)]
    elif kind == 5:
        middle = [Recurrent(w, w, batch_first=True)]
    else:  # as GPT-2's
        middle = [Residual(nn.LayerNorm(w), *perceptron, nn.Dropout(0.1)), nn.LayerNorm(w)]
    model = nn.Sequential(nn.Embedding(words, w), *middle, head)
    if kind == 6:
        head.weight = model[0].weight

    def loss(y):
        return F.cross_entropy(y.float().flatten(0, 1), torch.randint(words, (len(y) * n,)))

    return model, lambda count: torch.randint(words, (count, n)), loss


def refused(number: int, notes: list[str]) -> str:
    """Why a row is refused; empty if it is not. Its notes are added."""
    chosen = random.Random(number)
    torch.manual_seed(number)
    precision = chosen.choice((torch.float32, torch.float32, torch.float16, torch.bfloat16))
    cast = precision is not torch.float32
    case = fakes.FakeCase(device=rehearsal.handle, config={}, batch_size=chosen.randint(2, 40))
    case.precision = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}[precision]
    case.experiment = SimpleNamespace(budget_s=1.0)
    case.note, case.metric = lambda *said: notes.append(said[0]), lambda *_: None
    case.backend = SimpleNamespace(kind="gpu", backend="mps", framework="torch", tf32=False, free_memory=lambda: 2**30)
    case.backend.reset_peak_memory = lambda: None
    Noisy.faulty = None
    with rehearsal.entered():
        model, draw, loss = row(chosen)
        model.to(rehearsal.handle)

        def step(model, size):
            with torch.autocast(rehearsal.handle.type, dtype=precision if cast else torch.bfloat16, enabled=cast):
                value = loss(model(draw(size)))
                value.backward()
                return value

        Noisy.faulty = chosen.choice(PRODUCTS[:2] if fault else (None,))
        try:
            optimizer = chosen.choice((torch.optim.Adam, torch.optim.AdamW, torch.optim.Adadelta, torch.optim.SGD))
            verify.step(case, model, step, optimizer(model.parameters(), lr=10 ** chosen.uniform(-5, -1)))
        except Mismatch as error:
            return f"{number}, {precision}: {error}"
    return ""


notes: list[str] = []
said = [refused(number, notes) for number in range(count)]
print(json.dumps({"rows": count, "said": [each for each in said if each], "left": Counter(notes)}), flush=True)
os._exit(0)  # the pretended device does not end by itself
