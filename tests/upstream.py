"""The articles' own code, bare, and the notebooks' steps, on the clock, beside it.

Models and steps are as the articles' scripts write them, without the kit: pytorch/examples of May
2022 (vae, siamese_network, dcgan). Each function returns a step of the optimizer on a batch.

    python tests/upstream.py ROUND SECONDS

prints the ratios of the notebooks' steps to the bare ones as JSON, after so many seconds for each
notebook. `make bench` runs it in several processes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook
from torchvision.models import resnet18

from pomology.measure.clock import StepClock

BLOCK_S = 0.005  # that a block of steps takes at the least


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(784, 400)
        self.fc21 = nn.Linear(400, 20)
        self.fc22 = nn.Linear(400, 20)
        self.fc3 = nn.Linear(20, 400)
        self.fc4 = nn.Linear(400, 784)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return mu + eps * std

    def decode(self, z):
        h3 = F.relu(self.fc3(z))
        return torch.sigmoid(self.fc4(h3))

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 784))
        z = self.reparameterize(mu, logvar)
        return self.decode(z), mu, logvar


def vae(data):
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad()
        recon, mu, logvar = model(data)
        bce = F.binary_cross_entropy(recon, data.view(-1, 784), reduction="sum")
        loss = bce + -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        loss.backward()
        loss.item()
        optimizer.step()

    return step


class SiameseNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        model = resnet18(weights=None)
        model.conv1 = nn.Conv2d(1, 64, 7, 2, 3, bias=False)
        self.resnet = nn.Sequential(*list(model.children())[:-1])
        self.fc = nn.Sequential(nn.Linear(1024, 256), nn.ReLU(inplace=True), nn.Linear(256, 1))
        self.sigmoid = nn.Sigmoid()

    def forward_once(self, x):
        output = self.resnet(x)
        return output.view(output.size()[0], -1)

    def forward(self, one, other):
        output = torch.cat((self.forward_once(one), self.forward_once(other)), 1)
        return self.sigmoid(self.fc(output))


def siamese(one, other, targets):
    model = SiameseNetwork()
    criterion = nn.BCELoss()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)

    def step():
        optimizer.zero_grad()
        loss = criterion(model(one, other).squeeze(), targets)
        loss.backward()
        optimizer.step()

    return step


def dcgan(real):
    up = []
    for before, after, stride, padding in (
        (100, 512, 1, 0),
        (512, 256, 2, 1),
        (256, 128, 2, 1),
        (128, 64, 2, 1),
    ):
        up.append(nn.ConvTranspose2d(before, after, 4, stride, padding, bias=False))
        up += [nn.BatchNorm2d(after), nn.ReLU(True)]
    down = [nn.Conv2d(3, 64, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)]
    for before, after in ((64, 128), (128, 256), (256, 512)):
        down.append(nn.Conv2d(before, after, 4, 2, 1, bias=False))
        down += [nn.BatchNorm2d(after), nn.LeakyReLU(0.2, inplace=True)]
    net_g = nn.Sequential(*up, nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh())
    net_d = nn.Sequential(*down, nn.Conv2d(512, 1, 4, 1, 0, bias=False), nn.Sigmoid())
    criterion = nn.BCELoss()
    size = real.size(0)
    optimizer_d = torch.optim.Adam(net_d.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_g = torch.optim.Adam(net_g.parameters(), lr=2e-4, betas=(0.5, 0.999))

    def step():
        net_d.zero_grad()
        label = torch.full((size,), 1, dtype=real.dtype)
        output = net_d(real).view(-1, 1).squeeze(1)
        real_loss = criterion(output, label)
        real_loss.backward()
        output.mean().item()
        fake = net_g(torch.randn(size, 100, 1, 1))
        label.fill_(0)
        output = net_d(fake.detach()).view(-1, 1).squeeze(1)
        fake_loss = criterion(output, label)
        fake_loss.backward()
        output.mean().item()
        loss_d = real_loss + fake_loss
        optimizer_d.step()
        net_g.zero_grad()
        label.fill_(1)
        output = net_d(fake).view(-1, 1).squeeze(1)
        loss_g = criterion(output, label)
        loss_g.backward()
        output.mean().item()
        optimizer_g.step()
        loss_d.item()
        loss_g.item()

    return step


# Those that have made a step, in the order of their first.
OPTIMIZERS: list[torch.optim.Optimizer] = []


def note_optimizer(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if all(optimizer is not other for other in OPTIMIZERS):
        OPTIMIZERS.append(optimizer)


class Case:
    """A case of a notebook, and the loader of its one batch. Its steps and bare ones take turns.

    Blocks of bare steps (A) and of the notebook's on the clock (B) come as A B B A B A A B: each
    follows itself and the other as often, and a machine that drifts slows both. `ratios` are B / A
    of each four, without the warm-up.
    """

    device = torch.device("cpu")
    backend = SimpleNamespace(kind="cpu", synchronize=lambda: None)

    def __init__(
        self, batch: tuple, bare: Callable[[], None], seconds: float, config: dict[str, int]
    ):
        self.batch = batch
        self.bare = bare
        self.config = config
        self.ratios: list[float] = []
        pace_s = min(self.bare_s(1) for _ in range(3))
        self.size = math.ceil(BLOCK_S / pace_s)
        self.fours = max(3, round(seconds / (4 * self.size * pace_s)))

    def __getitem__(self, setting: str) -> int:
        return self.config[setting]

    def watch_model(self, model: nn.Module) -> nn.Module:
        return model

    def steps(self, batches: Any, part: str = "training", **_: Any) -> Iterator:
        """The notebook's loop over `__iter__`, on the clock; an evaluation has no batches."""
        if part != "training":
            return iter(())
        return StepClock(self.backend.synchronize, whole=True).steps(self)

    def ignore(self, *_: Any, **__: Any) -> None:
        """What else a notebook asks of a case takes no part in its steps."""

    require_memory = require_time = measure = loss = metric = note = ignore

    def occasional(self, *_: Any, **__: Any) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext()

    def __len__(self) -> int:
        return 2 * self.size * self.fours

    def __iter__(self) -> Iterator[tuple]:
        for number in range(self.fours):
            seconds = {"A": 0.0, "B": 0.0}
            for side in "BAAB" if number % 2 else "ABBA":
                if side == "A":
                    seconds["A"] += self.bare_s(self.size)
                    continue
                start = time.perf_counter()
                yield from itertools.repeat(self.batch, self.size)
                seconds["B"] += time.perf_counter() - start
            if number == 0:
                self.share_memory()
            if number >= max(1, self.fours // 20):
                self.ratios.append(seconds["B"] / seconds["A"])

    def bare_s(self, count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            self.bare()
        return time.perf_counter() - start

    def share_memory(self) -> None:
        """Let both sides use the same weights and optimizer's state.

        Where these lie makes one side up to 17 % faster for as long as a process lives.
        """
        states = [state_of(optimizer) for optimizer in OPTIMIZERS]
        half = len(states) // 2  # the bare ones made steps before any other
        for bare, own in zip(states[:half], states[half:], strict=True):
            for (weight, state), (other, others) in zip(bare.items(), own.items(), strict=True):
                assert weight.shape == other.shape
                weight.data = other.data
                state.update(
                    {key: value for key, value in others.items() if value.shape == weight.shape}
                )


def state_of(optimizer: torch.optim.Optimizer) -> dict:
    return {
        weight: optimizer.state[weight]
        for group in optimizer.param_groups
        for weight in group["params"]
    }


def workload(name: str) -> tuple[tuple, Callable[[], None], dict[str, int]]:
    """Return a batch for a notebook's loop, the bare step on it, and the settings of the case."""
    if name == "vae":
        images = torch.rand(128, 1, 28, 28)
        return (images, None), vae(images), {"batch_size": 128}
    if name == "siamese":
        batch = (*(255 * torch.rand(2, 64, 1, 28, 28)), torch.arange(64) % 2.0)
        return batch, siamese(*batch), {"batch_size": 64}
    images = torch.rand(64, 3, 64, 64)
    return (images, None), dcgan(images), {"batch_size": 64}


def compare(name: str, seconds: float) -> list[float]:
    """Return the ratios of a notebook's steps to the bare ones."""
    import test_notebooks

    OPTIMIZERS.clear()
    batch, bare, config = workload(name)
    case = Case(batch, bare, seconds, config)
    scope = test_notebooks.definitions(name, DataLoader=None)
    scope["train"].__globals__["DataLoader"] = lambda *_, **__: case
    scope["train"](case)
    return case.ratios


NOTEBOOKS = ("vae", "siamese", "dcgan")

if __name__ == "__main__":
    torch.manual_seed(int(sys.argv[1]))
    register_optimizer_step_post_hook(note_optimizer)
    print(json.dumps({name: compare(name, float(sys.argv[2])) for name in NOTEBOOKS}))
