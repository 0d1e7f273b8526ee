"""ResNet-50 in PyTorch, with SGD and momentum."""

import torch
from torch.nn import functional as F
from torchvision.models import resnet50


def build(**_):
    return resnet50()


def forward(model, images, labels):
    return model(images)


def loss(outputs, images, labels):
    return F.cross_entropy(outputs, labels)


def optimizer(part, lr, weight_decay):
    return torch.optim.SGD(part.parameters(), lr, momentum=0.9)
