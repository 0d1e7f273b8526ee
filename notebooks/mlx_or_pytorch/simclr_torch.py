"""SimCLR in PyTorch, on views that are already augmented; the loss of its notebook."""

import torch

from pomology.models import vision
from pomology.models.definitions import definitions

notebook = definitions("simclr", "nt_xent")


def build(**_):
    return vision.simclr_resnet18()


def forward(model, first, second):
    return model(first), model(second)


def loss(outputs, first, second):
    return notebook.nt_xent(*outputs)


def optimizer(part, lr, weight_decay):
    return torch.optim.SGD(part.parameters(), lr, momentum=0.9, weight_decay=weight_decay)
