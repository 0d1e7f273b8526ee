"""VGG-16, ResNet and SimCLR of the articles, in PyTorch."""

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional as F
from torchvision import models


def vgg16(classes: int = 1000, batch_norm: bool = False) -> nn.Module:
    """Return torchvision's VGG-16: 138,357,544 parameters for 1000 classes."""
    build = models.vgg16_bn if batch_norm else models.vgg16
    return build(num_classes=classes)


VISION = {"vgg16": vgg16, "resnet18": models.resnet18, "resnet50": models.resnet50}


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


def without_diagonal(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Return logits (count, count) without those of a view and itself: (count, count - 1)."""
    if logits.is_meta:
        return logits[:, 1:]  # a mask of a tensor without contents has no known size
    return logits[~torch.eye(count, dtype=torch.bool, device=logits.device)].view(count, -1)


def nt_xent(first: torch.Tensor, second: torch.Tensor, temperature: float = 0.5) -> torch.Tensor:
    """Return SimCLR's loss, as lightly computes it, of two views of each image.

    first, second: outputs of the model, both of shape (images, 128). Each view must find the other
    view of its image among all others (Chen et al. 2020, arXiv 2002.05709, equation 1).
    """
    count = len(first)
    first, second = F.normalize(first, dim=1), F.normalize(second, dim=1)
    ones, one_other, other_one, others = (
        torch.einsum("nc,mc->nm", rows, columns) / temperature
        for rows, columns in ((first, first), (first, second), (second, first), (second, second))
    )
    ones, others = without_diagonal(ones, count), without_diagonal(others, count)
    logits = torch.cat((torch.cat((one_other, ones), 1), torch.cat((other_one, others), 1)))
    return F.cross_entropy(logits, torch.arange(count, device=first.device).repeat(2))
