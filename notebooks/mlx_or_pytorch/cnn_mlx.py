"""The CNN of Daniel 2023 in MLX."""

import mlx.nn as nn
from mlp_mlx import forward, loss, optimizer  # noqa: F401 (also the hooks of this model)


def build(**_):
    layers = [
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
    layers += [nn.Conv2d(64, 64, 3), nn.ReLU(), lambda images: images.reshape(len(images), -1)]
    return nn.Sequential(*layers, nn.Linear(576, 64), nn.ReLU(), nn.Linear(64, 10))
