"""ResNet in MLX, for images of N x H x W x 3; weights are named as in torchvision."""

import mlx.core as mx
import mlx.nn as nn


class Block(nn.Module):
    """Two 3 x 3 convolutions, or 1 x 1, 3 x 3 and 1 x 1, added to the block's input."""

    def __init__(self, channels: int, width: int, stride: int, bottleneck: bool):
        super().__init__()
        sizes = [(3, stride, width), (3, 1, width)]
        if bottleneck:
            sizes = [(1, 1, width), (3, stride, width), (1, 1, 4 * width)]
        self.depth = len(sizes)
        before = channels
        for number, (kernel, step, after) in enumerate(sizes, 1):
            self[f"conv{number}"] = _convolution(before, after, kernel, step)
            self[f"bn{number}"] = nn.BatchNorm(after)
            before = after
        if stride > 1 or before != channels:
            self.downsample = nn.Sequential(
                _convolution(channels, before, 1, stride),
                nn.BatchNorm(before),
            )

    def __call__(self, images: mx.array) -> mx.array:
        inside = images
        for number in range(1, self.depth + 1):
            inside = self[f"bn{number}"](self[f"conv{number}"](inside))
            if number < self.depth:
                inside = nn.relu(inside)
        return nn.relu(inside + (self.downsample(images) if "downsample" in self else images))


class ResNet(nn.Module):
    """torchvision's ResNet for 1000 classes; `depths` are the blocks of its four stages."""

    def __init__(self, depths: tuple[int, ...], bottleneck: bool):
        super().__init__()
        self.conv1 = _convolution(3, 64, 7, 2)
        self.bn1 = nn.BatchNorm(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1, self.layer2, self.layer3, self.layer4 = stages(depths, bottleneck)
        self.fc = nn.Linear(2048 if bottleneck else 512, 1000)

    def __call__(self, images: mx.array) -> mx.array:
        images = self.maxpool(nn.relu(self.bn1(self.conv1(images))))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            images = stage(images)
        return self.fc(images.mean((1, 2)))


def resnet18() -> nn.Module:
    """Build ResNet-18 with 11,689,512 parameters."""
    return ResNet((2, 2, 2, 2), bottleneck=False)


def resnet50() -> nn.Module:
    """Build ResNet-50 with 25,557,032 parameters."""
    return ResNet((3, 4, 6, 3), bottleneck=True)


def cifar_resnet18() -> nn.Module:
    """Build ResNet-18 without its last layer for 32 x 32 pixels, as `vision.cifar_resnet18`."""
    stem = [_convolution(3, 64, 3, 1), nn.BatchNorm(64)]
    return nn.Sequential(*stem, *stages((2, 2, 2, 2)), lambda images: images.mean((1, 2)))


def _convolution(before: int, after: int, kernel: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=False)


def stages(depths: tuple[int, ...], bottleneck: bool = False) -> list[nn.Sequential]:
    """Build stages of 64, 128, 256 and 512 channels; all but the first halve the image."""
    result = []
    channels = 64
    for stage, depth in enumerate(depths):
        width = 64 << stage
        blocks = []
        for block in range(depth):
            stride = 2 if stage > 0 and block == 0 else 1
            blocks.append(Block(channels, width, stride, bottleneck))
            channels = 4 * width if bottleneck else width
        result.append(nn.Sequential(*blocks))
    return result
