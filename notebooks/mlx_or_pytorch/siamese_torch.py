"""Siamese ResNet-18 in PyTorch; the model of its notebook."""

import torch
from torch.nn import functional as F

from pomology.models.definitions import definitions

notebook = definitions("siamese", "Siamese")


def build(**_):
    return notebook.Siamese()


def forward(model, left, right, same):
    return model(left, right)


def loss(outputs, left, right, same):
    return F.binary_cross_entropy(outputs, same)


def optimizer(part, lr, weight_decay):
    return torch.optim.Adadelta(part.parameters(), lr)
