"""The articles' small models in PyTorch, for trying something on all of them.

A notebook of its own defines each of these next to its training step: `vae`, `siamese`, `dcgan` and
`transformer_lm`. Notebooks stay free to be changed, and no module reads them. So these are copies,
which a test compares with the notebooks' models: weights, losses and gradients are equal. The three
classifiers are those that `mlp_cnn_lstm` trains in Keras.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torchvision.models import resnet18

from pomology.models.workload import Workload

NOISE = 100  # random values from which DCGAN's generator makes an image


class VAE(nn.Module):
    """Variational autoencoder of digits, 1 x 28 x 28: 652,824 parameters."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(784, 400)
        self.mean = nn.Linear(400, 20)
        self.log_variance = nn.Linear(400, 20)
        self.widen = nn.Linear(20, 400)
        self.draw = nn.Linear(400, 784)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return redrawn images (n, 784), and mean and log-variance of their codes (n, 20)."""
        hidden = F.relu(self.hidden(images.view(-1, 784)))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        deviation = torch.exp(0.5 * log_variance)
        return self.decode(mean + torch.randn_like(deviation) * deviation), mean, log_variance

    def decode(self, code: torch.Tensor) -> torch.Tensor:
        """Return the images (n, 784) of codes (n, 20)."""
        return torch.sigmoid(self.draw(F.relu(self.widen(code))))


def vae_loss(
    images: torch.Tensor, redrawn: torch.Tensor, mean: torch.Tensor, log_variance: torch.Tensor
) -> torch.Tensor:
    """Return cross-entropy and Kullback-Leibler divergence, summed over the batch."""
    redrawing = F.binary_cross_entropy(redrawn, images.view(-1, 784), reduction="sum")
    divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
    return redrawing + divergence


class Siamese(nn.Module):
    """ResNet-18 of two digits, and the probability that both are equal: 11,432,897 parameters."""

    def __init__(self):
        super().__init__()
        resnet = resnet18()
        resnet.conv1 = nn.Conv2d(1, 64, 7, 2, padding=3, bias=False)
        self.features = nn.Sequential(*list(resnet.children())[:-1], nn.Flatten())
        self.compare = nn.Sequential(
            nn.Linear(1024, 256), nn.ReLU(inplace=True), nn.Linear(256, 1), nn.Sigmoid()
        )
        for module in self.compare:
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.constant_(module.bias, 0.01)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        features = torch.cat([self.features(left), self.features(right)], dim=1)
        return self.compare(features).squeeze(1)


def _up(channels_in: int, channels: int, stride: int = 2, padding: int = 1) -> list[nn.Module]:
    convolution = nn.ConvTranspose2d(channels_in, channels, 4, stride, padding, bias=False)
    return [convolution, nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]


def _down(channels_in: int, channels: int) -> list[nn.Module]:
    convolution = nn.Conv2d(channels_in, channels, 4, 2, 1, bias=False)
    return [convolution, nn.BatchNorm2d(channels), nn.LeakyReLU(0.2, inplace=True)]


def dcgan() -> nn.ModuleDict:
    """Return DCGAN's networks for images of 3 x 64 x 64.

    `generator` has 3,576,704 parameters, `discriminator` 2,765,568.
    """
    generator = nn.Sequential(
        *_up(NOISE, 512, 1, 0), *_up(512, 256), *_up(256, 128), *_up(128, 64),
        nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh(),
    )  # fmt: skip
    discriminator = nn.Sequential(
        nn.Conv2d(3, 64, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
        *_down(64, 128), *_down(128, 256), *_down(256, 512),
        nn.Conv2d(512, 1, 4, 1, 0, bias=False), nn.Sigmoid(), nn.Flatten(0),
    )  # fmt: skip
    networks = nn.ModuleDict({"generator": generator, "discriminator": discriminator})
    for module in networks.modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            nn.init.normal_(module.weight, 0.0, 0.02)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1.0, 0.02)
    return networks


def dcgan_losses(
    networks: nn.ModuleDict, photos: torch.Tensor, noise: torch.Tensor
) -> Iterator[torch.Tensor]:
    """Yield the losses of a step: of photographs, of generated images, and of the generator."""
    generator, discriminator = networks["generator"], networks["discriminator"]
    outputs = discriminator(photos)
    yield F.binary_cross_entropy(outputs, torch.ones_like(outputs))
    drawn = generator(noise)
    outputs = discriminator(drawn.detach())
    yield F.binary_cross_entropy(outputs, torch.zeros_like(outputs))
    outputs = discriminator(drawn)
    yield F.binary_cross_entropy(outputs, torch.ones_like(outputs))


class Positions(nn.Module):
    """Add sines and cosines of a word's position to its embedding; sequence first."""

    def __init__(self, size: int, dropout: float = 0.2, longest: int = 5000):
        super().__init__()
        position = torch.arange(longest, dtype=torch.float32).unsqueeze(1)
        rate = torch.exp(torch.arange(0, size, 2).float() * (-math.log(10_000.0) / size))
        waves = torch.stack([torch.sin(position * rate), torch.cos(position * rate)], dim=2)
        self.register_buffer("waves", waves.reshape(longest, 1, size))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(x + self.waves[: x.size(0)])


class LanguageModel(nn.Module):
    """Transformer that predicts each next word of `length` words; its inputs are (length, n).

    It has 13,828,478 parameters with 33,278 words, embeddings of 200, and two layers of 200.
    """

    def __init__(
        self, words: int, embedding_size: int, layers: int, hidden_size: int, length: int = 35
    ):
        super().__init__()
        self.scale = math.sqrt(embedding_size)
        self.embedding = nn.Embedding(words, embedding_size)
        self.positions = Positions(embedding_size)
        layer = nn.TransformerEncoderLayer(embedding_size, 2, hidden_size, 0.2)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.decoder = nn.Linear(embedding_size, words)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        mask = torch.full((length, length), -torch.inf).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.positions(self.embedding(tokens) * self.scale)
        # Else PyTorch compares the whole mask in every step, and waits for the device.
        x = self.encoder(x, mask=self.mask, is_causal=False)
        return F.log_softmax(self.decoder(x), dim=-1)


def language_model_loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of words: outputs (length, n, words), and targets (length, n)."""
    return F.nll_loss(output.flatten(0, 1), targets.flatten())


class ChannelsLast(nn.Module):
    """Flatten images (n, channels, height, width) with channels last, as Keras does."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.permute(0, 2, 3, 1).flatten(1)


class LastState(nn.Module):
    """LSTM over the lines of images (n, 1, lines, pixels); its last state, (n, hidden).

    Keras has one bias for each gate. So the second bias of PyTorch stays 0 and is not trained.
    """

    def __init__(self, pixels: int, hidden: int):
        super().__init__()
        self.lstm = nn.LSTM(pixels, hidden, batch_first=True)
        nn.init.zeros_(self.lstm.bias_hh_l0.requires_grad_(False))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(images.squeeze(1))
        return states[:, -1]


def mlp() -> nn.Sequential:
    """Return the perceptron of images of 28 x 28: 435,402 parameters."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 512),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def cnn() -> nn.Sequential:
    """Return the convolutional network of images of 28 x 28: 93,322 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        ChannelsLast(),
        nn.Linear(576, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def lstm() -> nn.Sequential:
    """Return the LSTM over the 28 lines of an image: 81,674 trained parameters."""
    return nn.Sequential(LastState(28, 128), nn.Linear(128, 10))


CLASSIFIERS = {"mlp": mlp, "cnn": cnn, "lstm": lstm}


def classifier(name: str) -> Workload:
    """Return the training of one of `CLASSIFIERS`, with Adam as in Keras: epsilon is 1e-7."""

    def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand(size, 1, 28, 28), torch.randint(10, (size,))

    def optimizer(model: nn.Module) -> torch.optim.Adam:
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        return torch.optim.Adam(trained, 1e-3, eps=1e-7)

    return Workload(build=CLASSIFIERS[name], batch=batch, optimizer=optimizer, step=_step)


def _step(model: nn.Module, optimizer: Any, images: torch.Tensor, labels: torch.Tensor) -> Any:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss
