"""torchvision's transforms of a PIL picture (0.12 to 0.15), step by step with all that they do for one.

The articles' scripts read their pictures one by one through these, and that is most of some of their times: modules,
checks and a call of PyTorch's log of API uses take a part of it, so they are here too.
"""

import functools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy as np
import torch
from PIL import Image


class Transform(torch.nn.Module):
    """A function of a picture as a module, which most of torchvision's transforms are."""

    def __init__(self, function: Callable[[Any], Any]):
        super().__init__()
        self.function = function

    def forward(self, picture: Any) -> Any:
        return self.function(picture)


def compose(transforms: Sequence[Callable[[Any], Any]], picture: Any) -> Any:
    for transform in transforms:
        picture = transform(picture)
    return picture


def logged(function: Callable) -> Callable:
    """As each of torchvision's functions begins: a use is logged, unless a script is compiled; then what it is given
    is looked at."""

    @functools.wraps(function)
    def call(picture: Any, *arguments: Any) -> Any:
        if not torch.jit.is_scripting() and not torch.jit.is_tracing():
            name = function.__name__ if isinstance(function, FunctionType) else function.__class__.__name__
            torch._C._log_api_usage_once(f"{function.__module__}.{name}")
        if not isinstance(picture, (Image.Image, torch.Tensor)):
            raise TypeError(f"should be a PIL picture or a tensor, not {type(picture).__name__}")
        return function(picture, *arguments)

    return call


@logged
def dimensions(picture: Image.Image) -> tuple[int, int, int]:
    """Channels, height and width."""
    width, height = picture.size
    return len(picture.getbands()), height, width


@logged
def to_tensor(picture: Image.Image) -> Any:
    """A PIL image of bytes (modes L and RGB) as a float32 tensor (channels, height, width) from 0 to 1."""
    default = torch.get_default_dtype()
    kind = {"I": np.int32, "I;16": np.int16, "F": np.float32}.get(picture.mode, np.uint8)
    pixels = torch.from_numpy(np.array(picture, kind, copy=True))
    pixels = pixels.view(picture.size[1], picture.size[0], dimensions(picture)[0])
    pixels = pixels.permute((2, 0, 1)).contiguous()
    return pixels.to(dtype=default).div(255) if isinstance(pixels, torch.ByteTensor) else pixels


@logged
def normalize(image: Any, mean: Sequence[float], std: Sequence[float]) -> Any:
    """(image - mean) / std by channel."""
    image = image.clone()
    means, deviations = (torch.as_tensor(each, dtype=image.dtype, device=image.device) for each in (mean, std))
    if (deviations == 0).any():
        raise ValueError(f"std is {std}: no channel's may be 0")
    return image.sub_(means.view(-1, 1, 1)).div_(deviations.view(-1, 1, 1))


@logged
def resize(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    """size: height and width."""
    return picture.resize(tuple(size[::-1]), Image.Resampling.BILINEAR)


@logged
def crop(picture: Image.Image, top: int, left: int, height: int, width: int) -> Image.Image:
    return picture.crop((left, top, left + width, top + height))


def resize_shorter(picture: Image.Image, side: int) -> Image.Image:
    shorter = min(picture.size)
    return resize(picture, tuple(side * length // shorter for length in picture.size[::-1]))


def center_crop(picture: Image.Image, side: int) -> Image.Image:
    _, height, width = dimensions(picture)
    return crop(picture, round((height - side) / 2), round((width - side) / 2), side, side)
