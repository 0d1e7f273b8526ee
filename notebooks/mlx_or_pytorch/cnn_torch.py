"""The CNN of Daniel 2023 in PyTorch."""

from mlp_torch import forward, loss, optimizer  # noqa: F401 (also the hooks of this model)
from torch import nn


class ChannelsLast(nn.Module):
    """Flatten images with channels last, as Keras does before a dense layer."""

    def forward(self, images):
        return images.permute(0, 2, 3, 1).flatten(1)


def build(**_):
    layers = [
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
    layers += [
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        ChannelsLast(),
        nn.Linear(576, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    ]
    return nn.Sequential(*layers)
