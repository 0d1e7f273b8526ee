"""The articles' own code, bare: models and steps as their scripts write them, without the kit; and the notebooks'
steps, on the clock, beside them. `python tests/upstream.py ROUND SECONDS` is a round of `bench.py upstream`: it times
each notebook for so many seconds, and prints the ratios of its steps to the bare ones.

After pytorch/examples of May 2022 (vae, siamese_network, dcgan, word_language_model), torchvision 0.12's ResNet-18, and
lightly 1.4.10's ResNet-18 and loss. Each function gives a step of the article's optimiser on a batch.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from types import SimpleNamespace

import in_turn
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook


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


class BasicBlock(nn.Module):
    """torchvision's."""

    def __init__(self, inplanes, planes, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = None
        if stride != 1 or inplanes != planes:
            self.downsample = nn.Sequential(nn.Conv2d(inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class LightlyBlock(BasicBlock):
    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        return F.relu(out)


def layers(block):
    sizes = ((64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2))
    return [block(*size) for size in (*sizes, (512, 512, 1))]


class SiameseNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        stem = [nn.Conv2d(1, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
        self.resnet = nn.Sequential(*stem, nn.MaxPool2d(3, 2, 1), *layers(BasicBlock), nn.AdaptiveAvgPool2d((1, 1)))
        self.fc = nn.Sequential(nn.Linear(1024, 256), nn.ReLU(inplace=True), nn.Linear(256, 1))
        self.sigmoid = nn.Sigmoid()

    def forward_once(self, x):
        output = self.resnet(x)
        return output.view(output.size()[0], -1)

    def forward(self, one, other):
        output = torch.cat((self.forward_once(one), self.forward_once(other)), 1)
        return self.sigmoid(self.fc(output))


def siamese(one, other, targets):
    model, criterion = SiameseNetwork(), nn.BCELoss()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)

    def step():
        optimizer.zero_grad()
        loss = criterion(model(one, other).squeeze(), targets)
        loss.backward()
        optimizer.step()

    return step


def dcgan(real):
    up, down = [], []
    for before, after, stride, padding in ((100, 512, 1, 0), (512, 256, 2, 1), (256, 128, 2, 1), (128, 64, 2, 1)):
        up += [nn.ConvTranspose2d(before, after, 4, stride, padding, bias=False), nn.BatchNorm2d(after), nn.ReLU(True)]
    for before, after in ((3, 64), (64, 128), (128, 256), (256, 512)):
        down += [nn.Conv2d(before, after, 4, 2, 1, bias=False)] + [nn.BatchNorm2d(after)] * (before != 3)
        down += [nn.LeakyReLU(0.2, inplace=True)]
    net_g = nn.Sequential(*up, nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh())
    net_d = nn.Sequential(*down, nn.Conv2d(512, 1, 4, 1, 0, bias=False), nn.Sigmoid())
    criterion, size = nn.BCELoss(), real.size(0)
    optimizer_d, optimizer_g = (
        torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999)) for net in (net_d, net_g)
    )

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
        loss_d.item(), loss_g.item()

    return step


class TransformerModel(nn.Module):
    def __init__(self, ntoken, ninp, nhead, nhid, nlayers, dropout):
        super().__init__()
        self.src_mask, self.ninp, self.dropout = None, ninp, nn.Dropout(dropout)
        pe = torch.zeros(5000, ninp)
        position = torch.arange(0, 5000, dtype=torch.float).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, ninp, 2).float() * (-math.log(10000.0) / ninp))
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0).transpose(0, 1))
        layer = nn.TransformerEncoderLayer(ninp, nhead, nhid, dropout)
        self.transformer_encoder = nn.TransformerEncoder(layer, nlayers, enable_nested_tensor=False)
        self.encoder, self.decoder = nn.Embedding(ntoken, ninp), nn.Linear(ninp, ntoken)

    def forward(self, src):
        if self.src_mask is None or self.src_mask.size(0) != len(src):
            mask = (torch.triu(torch.ones(len(src), len(src))) == 1).transpose(0, 1)
            self.src_mask = mask.float().masked_fill(mask == 0, float("-inf")).masked_fill(mask == 1, 0.0)
        src = self.encoder(src) * math.sqrt(self.ninp)
        src = self.dropout(src + self.pe[: src.size(0), :])
        return F.log_softmax(self.decoder(self.transformer_encoder(src, self.src_mask)), dim=-1)


def transformer_lm(data, targets, words):
    model, criterion = TransformerModel(words, 200, 2, 200, 2, 0.2), nn.NLLLoss()

    def step():
        model.zero_grad()
        output = model(data).view(-1, words)
        loss = criterion(output, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-20)
        loss.item()

    parts = model.encoder, model.transformer_encoder, model.decoder
    step.weights = [weight for part in parts for weight in part.parameters()]  # in the order of the notebook's
    return step


def simclr(one, other):
    stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)]
    backbone = nn.Sequential(*stem, *layers(LightlyBlock), nn.AdaptiveAvgPool2d(1))
    head = [nn.Linear(512, 512, bias=False), nn.BatchNorm1d(512), nn.ReLU()]
    head = nn.Sequential(*head, nn.Linear(512, 128, bias=False), nn.BatchNorm1d(128))
    parameters = [*backbone.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=6e-2, momentum=0.9, weight_decay=5e-4)

    def nt_xent(out0, out1):
        out0, out1 = nn.functional.normalize(out0, dim=1), nn.functional.normalize(out1, dim=1)
        diag_mask = torch.eye(len(out0), dtype=torch.bool)
        logits_00 = torch.einsum("nc,mc->nm", out0, out0) / 0.5
        logits_01 = torch.einsum("nc,mc->nm", out0, out1) / 0.5
        logits_10 = torch.einsum("nc,mc->nm", out1, out0) / 0.5
        logits_11 = torch.einsum("nc,mc->nm", out1, out1) / 0.5
        logits_00 = logits_00[~diag_mask].view(len(out0), -1)
        logits_11 = logits_11[~diag_mask].view(len(out0), -1)
        logits = torch.cat([torch.cat([logits_01, logits_00], 1), torch.cat([logits_10, logits_11], 1)])
        return nn.functional.cross_entropy(logits, torch.arange(len(out0)).repeat(2))

    def step():
        optimizer.zero_grad()
        z0, z1 = (head(backbone(x).flatten(start_dim=1)) for x in (one, other))
        nt_xent(z0, z1).backward()
        optimizer.step()

    return step


class Case(in_turn.InTurn):
    """Of a notebook, with the loader of its one batch. Both sides use the same weights and optimizer's state: where
    these lie in memory makes the steps of one side up to 17 % faster for as long as a process lives."""

    device = torch.device("cpu")

    def watch_model(self, model):
        self.weights = list(model.parameters())
        return model

    def settle(self):
        half = len(OPTIMIZERS) // 2  # the bare ones made steps before any other
        kept = [(_weights(bare), _weights(own)) for bare, own in zip(OPTIMIZERS[:half], OPTIMIZERS[half:], strict=True)]
        for bare, own in kept or [({key: {} for key in side} for side in (self.bare.weights, self.weights))]:
            for (weight, state), (other, others) in zip(bare.items(), own.items(), strict=True):
                assert weight.shape == other.shape
                weight.data = other.data
                state |= {name: kept for name, kept in others.items() if kept.shape == weight.shape}


OPTIMIZERS: list[torch.optim.Optimizer] = []  # those that have made a step, in the order of their first


def _note(optimizer: torch.optim.Optimizer, *_) -> None:
    if all(optimizer is not other for other in OPTIMIZERS):
        OPTIMIZERS.append(optimizer)


def _weights(optimizer: torch.optim.Optimizer) -> dict:
    return {weight: optimizer.state[weight] for group in optimizer.param_groups for weight in group["params"]}


def given(name: str) -> tuple[tuple, Callable[[], None], dict[str, int]]:
    """A batch for a notebook's loop, the bare step on it, and the settings of the case."""
    words, model = 33_278, {"batch_size": 20, "embedding_size": 200, "layers": 2, "hidden_size": 200}
    if name == "vae":
        images = torch.rand(128, 1, 28, 28)
        return (images, None), vae(images), {"batch_size": 128}
    if name == "siamese":
        batch = (*(255 * torch.rand(2, 64, 1, 28, 28)), torch.arange(64) % 2.0)
        return batch, siamese(*batch), {"batch_size": 64}
    if name == "dcgan":
        images = torch.rand(64, 3, 64, 64)
        return (images, None), dcgan(images), {"batch_size": 64}
    if name == "transformer_lm":
        batch = torch.randint(words, (35, 20)), torch.randint(words, (700,))
        return batch, transformer_lm(*batch, words), model
    views = torch.randn(2, 32, 3, 32, 32)
    return (views, None, None), simclr(*views), {"batch_size": 32}


def compare(name: str, seconds: float) -> list[float]:
    """The ratios of a notebook's steps to the bare ones."""
    import test_notebooks

    OPTIMIZERS.clear()
    batch, bare, config = given(name)
    case = Case([batch], bare, seconds, config)
    scope = test_notebooks.definitions(name, DataLoader=None)
    scope["train"].__globals__["DataLoader"] = lambda *_, **__: case
    if name != "simclr":
        scope["train"](case)
        return case.ratios
    module = scope["SimCLR"](SimpleNamespace(augmentation="loader"), None, None)  # Lightning has the loop otherwise
    module.log = lambda *_: None
    (optimizer,), _ = module.configure_optimizers()
    for number, views in enumerate(case.steps(case)):
        optimizer.zero_grad()
        module.training_step(views, number).backward()
        optimizer.step()
    return case.ratios


NOTEBOOKS = ("vae", "siamese", "dcgan", "transformer_lm", "simclr")

if __name__ == "__main__":
    torch.manual_seed(int(sys.argv[1]))
    register_optimizer_step_post_hook(_note)
    print(json.dumps({name: compare(name, float(sys.argv[2])) for name in sys.argv[3:] or NOTEBOOKS}))
