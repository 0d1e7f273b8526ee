"""VGG-16 and ResNet models of the articles, in PyTorch."""

import functools
from collections import OrderedDict
from typing import Any

import torch
from torch import nn
from torchvision import models

from pomology.models import cost


def vgg16(classes: int = 1000, batch_norm: bool = False) -> nn.Module:
    """Return torchvision's VGG-16: 138,357,544 parameters for 1000 classes."""
    build = models.vgg16_bn if batch_norm else models.vgg16
    return build(num_classes=classes)


VISION = {"vgg16": vgg16, "resnet18": models.resnet18, "resnet50": models.resnet50}


def workloads(name: str, shapes: list[tuple[int, int]]) -> list[cost.Workload]:
    """Count steps of `VISION[name]` with SGD and momentum.

    shapes: (images, pixels per side) of each step. Notebooks of other frameworks call this function
    by `isolated.call`.
    """

    def step(model: Any, batch_size: int, side: int) -> None:
        logits = model(torch.empty(batch_size, 3, side, side))
        labels = torch.zeros(batch_size, dtype=torch.long)
        nn.functional.cross_entropy(logits, labels).backward()

    return [
        cost.workload(VISION[name], functools.partial(step, batch_size=size, side=side), 1)
        for size, side in shapes
    ]


def cifar_resnet18() -> nn.Module:
    """Return the backbone of lightly's SimCLR benchmark: 3 x 32 x 32 inputs, 512 features.

    It has 11,168,832 parameters. The benchmark uses the layers of lightly 1.4.10's ResNet-18. These
    lack the ReLU after the first normalization, which is not a layer there.
    """
    network = models.resnet18()
    for module in network.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
        elif isinstance(module, nn.Conv2d):
            module.reset_parameters()  # lightly keeps PyTorch's default initialization
    stem = [nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64)]
    stages = [network.layer1, network.layer2, network.layer3, network.layer4]
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def simclr_resnet18() -> nn.Module:
    """Return `cifar_resnet18` with SimCLR's projection head, 128 outputs: 11,497,792 parameters."""
    head = nn.Sequential(
        nn.Linear(512, 512, bias=False),
        nn.BatchNorm1d(512),
        nn.ReLU(),
        nn.Linear(512, 128, bias=False),
        nn.BatchNorm1d(128),
    )
    return nn.Sequential(OrderedDict(backbone=cifar_resnet18(), head=head))
