"""ResNet-50 in MLX, with SGD and momentum."""

import mlx.nn as nn
import mlx.optimizers as optim
import resnet_mlx


def build(**_):
    return resnet_mlx.resnet50()


def forward(model, images, labels):
    return model(images)


def loss(outputs, images, labels):
    return nn.losses.cross_entropy(outputs, labels, reduction="mean")


def optimizer(lr, weight_decay):
    return optim.SGD(lr, momentum=0.9)
