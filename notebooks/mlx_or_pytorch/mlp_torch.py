"""The MLP of Daniel 2023 in PyTorch; Adam has the epsilon of Keras."""

import torch
from torch import nn
from torch.nn import functional as F


def build(**_):
    layers = [
        nn.Flatten(),
        nn.Linear(784, 512),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(512, 64),
        nn.ReLU(),
    ]
    return nn.Sequential(*layers, nn.Linear(64, 10))


def forward(model, images, labels):
    return model(images)


def loss(outputs, images, labels):
    return F.cross_entropy(outputs, labels)


def optimizer(part, lr, weight_decay):
    return torch.optim.Adam(
        [weight for weight in part.parameters() if weight.requires_grad], lr, eps=1e-7
    )
