"""ResNet and VGG, as the articles train them: layer for layer torchvision's, and lightly's ResNet-18 for CIFAR-10.

Also in what works in place, which takes less memory and time: in torchvision (0.11 to 0.28) ReLUs and the sum with the
shortcut, in lightly 1.4.10 the sum only.
"""

from __future__ import annotations

import functools
import importlib
from collections import OrderedDict
from typing import Any


def vgg16(classes: int = 1000, batch_norm: bool = False) -> Any:
    """VGG-16 (Simonyan and Zisserman 2014) for pictures of 3 x 224 x 224: 138,357,544 parameters for 1000 classes."""
    from torch import nn

    layers: list[Any] = []
    channels = 3
    for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            layers.append(nn.Conv2d(channels, width, 3, padding=1))
            layers += [nn.BatchNorm2d(width)] if batch_norm else []
            layers.append(nn.ReLU(inplace=True))
            channels = width
        layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten()]
    for inputs in (512 * 7 * 7, 4096):
        layers += [nn.Linear(inputs, 4096), nn.ReLU(inplace=True), nn.Dropout()]
    model = nn.Sequential(*layers, nn.Linear(4096, classes))
    for layer in model:
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0, 0.01)
            nn.init.zeros_(layer.bias)
    return model


def resnet18() -> Any:
    """ResNet-18 (He et al. 2015) for pictures of 3 x 224 x 224 and 1000 classes: 11,689,512 parameters."""
    return _resnet("torch", (2, 2, 2, 2), bottleneck=False)


def resnet50() -> Any:
    """ResNet-50, with torchvision's stride in the 3 x 3 convolution of a block: 25,557,032 parameters."""
    return _resnet("torch", (3, 4, 6, 3), bottleneck=True)


VISION = {"vgg16": vgg16, "resnet18": resnet18, "resnet50": resnet50}


def _resnet(framework: str, depths: tuple[int, ...], bottleneck: bool) -> Any:
    nn: Any = importlib.import_module(f"{framework}.nn")
    if framework == "torch":
        norm, relu, pool = nn.BatchNorm2d(64), nn.ReLU(inplace=True), [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    else:  # the mean leaves nothing to flatten, but PyTorch counts that layer too
        norm, relu, pool = nn.BatchNorm(64), nn.ReLU(), [lambda images: images.mean((1, 2)), nn.Identity()]
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), norm, relu, nn.MaxPool2d(3, 2, 1)]
    head = [*pool, nn.Linear(2048 if bottleneck else 512, 1000)]
    model = nn.Sequential(*stem, *_stages(framework, depths, bottleneck), *head)
    for layer in model.modules() if framework == "torch" else ():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return model


def cifar_resnet18() -> Any:
    """The backbone of the SimCLR benchmark: ResNet-18 for 3 x 32 x 32, giving 512 features: 11,168,832 parameters.

    lightly 1.4.10 writes the ReLU behind the first normalisation as a function, and takes layers only: there is none.
    """
    from torch import nn

    stem = [nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64)]
    stages = _stages("torch", (2, 2, 2, 2), inplace=False)
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def simclr_resnet18() -> Any:
    """`cifar_resnet18` and SimCLR's projection head to 128 numbers, as `backbone` and `head`: 11,497,792 parameters."""
    from torch import nn

    head = [nn.Linear(512, 512, bias=False), nn.BatchNorm1d(512), nn.ReLU()]
    head += [nn.Linear(512, 128, bias=False), nn.BatchNorm1d(128)]
    return nn.Sequential(OrderedDict(backbone=cifar_resnet18(), head=nn.Sequential(*head)))


def mlx_resnet18() -> Any:
    """`resnet18` in MLX, for N x H x W x 3; nested as in PyTorch, so that weights have the same names."""
    return _resnet("mlx", (2, 2, 2, 2), bottleneck=False)


def mlx_resnet50() -> Any:
    """`resnet50` in MLX, likewise."""
    return _resnet("mlx", (3, 4, 6, 3), bottleneck=True)


def mlx_cifar_resnet18() -> Any:
    """`cifar_resnet18` in MLX."""
    import mlx.nn as nn

    stem = [nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm(64)]
    return nn.Sequential(*stem, *_stages("mlx", (2, 2, 2, 2)), lambda images: images.mean((1, 2)))


def _stages(framework: str, depths: tuple[int, ...], bottleneck: bool = False, inplace: bool = True) -> list[Any]:
    """The residual blocks, in four stages of 64, 128, 256 and 512 channels; each but the first halves the picture."""
    channels, blocks = 64, []
    for stage, depth in enumerate(depths):
        for number in range(depth):
            stride = 2 if stage and not number else 1
            blocks.append(_residual(framework)(channels, 64 << stage, stride, bottleneck, inplace))
            channels = blocks[-1].channels
    return blocks


@functools.cache
def _residual(framework: str) -> type:
    """The class of a residual block, made when it is first wanted: no framework is imported before."""
    nn: Any = importlib.import_module(f"{framework}.nn")
    norm = nn.BatchNorm2d if framework == "torch" else nn.BatchNorm

    class Residual(nn.Module):
        """Two 3 x 3 convolutions, or 1 x 1, 3 x 3 and 1 x 1 to four times the width, added to the block's input."""

        def __init__(self, channels: int, width: int, stride: int, bottleneck: bool, inplace: bool):
            super().__init__()
            relu = functools.partial(nn.ReLU, inplace) if framework == "torch" else nn.ReLU
            self.channels = 4 * width if bottleneck else width
            sizes = [(1, 1, width), (3, stride, width), (1, 1, self.channels)]
            layers, before = [], channels
            for kernel, step, after in sizes if bottleneck else [(3, stride, width), (3, 1, width)]:
                layers += [nn.Conv2d(before, after, kernel, step, kernel // 2, bias=False), norm(after), relu()]
                before = after
            self.layers = nn.Sequential(*layers[:-1])  # the last ReLU comes after the sum
            self.shortcut = nn.Identity()
            if stride != 1 or channels != self.channels:
                convolution = nn.Conv2d(channels, self.channels, 1, stride, bias=False)
                self.shortcut = nn.Sequential(convolution, norm(self.channels))
            self.relu = relu()

        def forward(self, images):
            inside = self.layers(images)
            inside += self.shortcut(images)
            return self.relu(inside)

    if framework != "torch":
        Residual.__call__ = Residual.forward
    return Residual
