"""Siamese ResNet-18 in MLX."""

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import resnet_mlx
from losses_mlx import binary_cross_entropy


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        stem = [
            nn.Conv2d(1, 64, 7, 2, padding=3, bias=False),
            nn.BatchNorm(64),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        ]
        stages = resnet_mlx.stages((2, 2, 2, 2))
        self.features = nn.Sequential(*stem, *stages, lambda x: x.mean((1, 2)))
        self.compare = nn.Sequential(
            nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 1), nn.Sigmoid()
        )

    def __call__(self, left, right):
        return self.compare(
            mx.concatenate([self.features(left), self.features(right)], axis=1)
        ).squeeze(1)


def build(**_):
    model = Siamese()
    convolution, linear = nn.init.he_normal(), nn.init.glorot_uniform()
    for _, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            module.weight = convolution(module.weight, mode="fan_out", gain=2**0.5)
        elif isinstance(module, nn.Linear):
            module.weight, module.bias = linear(module.weight), mx.full(module.bias.shape, 0.01)
    return model


def forward(model, left, right, same):
    return model(left, right)


def loss(outputs, left, right, same):
    return binary_cross_entropy(outputs, same).mean()


def optimizer(lr, weight_decay):
    return optim.AdaDelta(lr)
