"""The Siamese network in MLX."""

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from losses_mlx import binary_cross_entropy


class Residual(nn.Module):
    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.first_norm, self.second_norm = nn.BatchNorm(channels), nn.BatchNorm(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.shortcut = nn.Identity()
        if stride > 1 or channels_in != channels:
            convolution = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm(channels))

    def __call__(self, x):
        inside = self.second_norm(self.second(nn.relu(self.first_norm(self.first(x)))))
        return nn.relu(inside + self.shortcut(x))


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        stem = [nn.Conv2d(1, 64, 7, 2, padding=3, bias=False), nn.BatchNorm(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
        widths += [(128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
        self.features = nn.Sequential(*stem, *[Residual(*width) for width in widths], lambda x: x.mean((1, 2)))
        self.compare = nn.Sequential(nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 1), nn.Sigmoid())

    def __call__(self, left, right):
        return self.compare(mx.concatenate([self.features(left), self.features(right)], axis=1)).squeeze(1)


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
