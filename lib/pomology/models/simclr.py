"""SimCLR on small pictures, the part around the model: two random views of every picture, and the kNN evaluation.

As in lightly's CIFAR-10 benchmark (`SimCLRTransform(input_size=32, cj_strength=0.5, gaussian_blur=0)`), without lightly
and torchvision; by PIL in the DataLoader's workers (`two_views`), or a batch at a time on the device (`device_views`).
"""

from __future__ import annotations

import copy
import functools
import io
import math
import os
import struct
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageEnhance

from pomology.data import transforms
from pomology.data.images import ImageSet
from pomology.errors import PomologyError

SIDE = 32  # of a view
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)  # of a crop: its share of the picture's area, its width to its height
FLIP, JITTER, GREY = 0.5, 0.8, 0.2  # how likely
CENTRE, STRENGTH = (1.0, 1.0, 1.0, 0.0), (0.4, 0.4, 0.4, 0.1)  # brightness, contrast and saturation; hue in turns
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, of red, green and blue


class View(NamedTuple):
    """The random numbers of one view; or, from `draw_views`, of n: tensors (n,), factors and order (n, 4).

    PIL makes the same views of them, whose pixels (0 to 1) differ by 0.01 on the average and 0.1 at the most: it cuts
    off to 256 levels after every step, and in hue before and after.
    """

    top: Any
    left: Any
    height: Any
    width: Any
    flip: Any
    factors: Any  # brightness, contrast, saturation: 1 changes nothing; hue in turns: 0 changes nothing
    order: Any  # which of the factors comes first, second, ... (0 to 3); -1 at all places: none is used
    grey: Any


# The changes of one view, each as torchvision 0.15 draws and makes it. Three draws decide nothing: of a rotation, of a
# flip upside down and of a blur, whose chance is 0. lightly makes them.


def _random_crop(picture: Image.Image) -> Image.Image:
    _, height, width = transforms.dimensions(picture)
    ratios, place = torch.log(torch.tensor(RATIO)), (0, 0, height, width)  # if ten times none fits
    for _ in range(10):
        area = height * width * torch.empty(1).uniform_(*SCALE).item()
        ratio = torch.exp(torch.empty(1).uniform_(ratios[0], ratios[1])).item()
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = (torch.randint(0, most + 1, size=(1,)).item() for most in (height - h, width - w))
            place = top, left, h, w
            break
    return _resized_crop(picture, *place)


@transforms.logged
def _resized_crop(picture: Image.Image, *place: int) -> Image.Image:
    return transforms.resize(transforms.crop(picture, *place), (SIDE, SIDE))


def _by_chance(chance: float, change: Callable, picture: Image.Image) -> Image.Image:
    return change(picture) if torch.rand(1) < chance else picture


def _never(picture: Image.Image) -> Image.Image:
    np.random.random_sample()
    return picture


@transforms.logged
def _flip(picture: Image.Image) -> Image.Image:
    return picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


@transforms.logged
def _enhance(picture: Image.Image, which: int, factor: float) -> Image.Image:
    return (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)[which](picture).enhance(factor)


@transforms.logged
def _turn_hue(picture: Image.Image, which: int, turns: float) -> Image.Image:
    hue, saturation, value = picture.convert("HSV").split()
    turned = np.array(hue, dtype=np.uint8) + np.int32(turns * 255).astype(np.uint8)  # goes round at 256
    return Image.merge("HSV", (Image.fromarray(turned), saturation, value)).convert(picture.mode)


def _color_jitter(picture: Image.Image) -> Image.Image:
    order = torch.randperm(4)
    factors = [float(torch.empty(1).uniform_(c - s, c + s)) for c, s in zip(CENTRE, STRENGTH, strict=True)]
    for which in order:
        number = next(number for number in range(4) if which == number)  # a comparison of tensors each
        picture = (_enhance, _enhance, _enhance, _turn_hue)[number](picture, number, factors[number])
    return picture


@transforms.logged
def _to_grey(picture: Image.Image) -> Image.Image:
    grey = np.array(picture.convert("L"), dtype=np.uint8)
    return Image.fromarray(np.dstack([grey] * 3))


def _may_grey(picture: Image.Image) -> Image.Image:
    transforms.dimensions(picture)  # asked of every picture, for the number of channels
    return _by_chance(GREY, _to_grey, picture)


_JITTER = transforms.Transform(_color_jitter)
_PLAIN = [transforms.to_tensor, transforms.Transform(lambda image: transforms.normalize(image, MEAN, STD))]
_VIEW = [transforms.Transform(_random_crop), _never]
_VIEW += [transforms.Transform(functools.partial(_by_chance, chance, _flip)) for chance in (FLIP, 0.0)]
_VIEW += [transforms.Transform(lambda picture: picture if torch.rand(1) > JITTER else _JITTER(picture))]
_VIEW += [transforms.Transform(_may_grey), _never, *_PLAIN]


def two_views(picture: Image.Image) -> list[Any]:
    """Two random views of an RGB picture, each float32 (3, SIDE, SIDE), normalised; bit by bit torchvision's, and made
    by the same steps."""
    return [transforms.compose(_VIEW, picture) for _ in range(2)]


def normalised(picture: Image.Image) -> Any:
    """The picture as it is, float32 (3, height, width), normalised: what the kNN evaluation embeds."""
    return transforms.compose(_PLAIN, picture)


def pixels(picture: Image.Image) -> Any:
    """The picture as it is, uint8 (3, height, width): what `device_views` takes, in batches."""
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()


def _png(image: np.ndarray) -> bytes:
    """A PNG file: rows as differences to the left neighbour, in Huffman's code only. By hand: Pillow chooses a filter
    for every row, and its files take a third longer to decode, which is part of what is timed."""
    height, width, _ = image.shape
    differences = np.diff(image, axis=1, prepend=np.zeros_like(image[:, :1])).reshape(height, -1)
    packer = zlib.compressobj(1, strategy=zlib.Z_HUFFMAN_ONLY)
    body = packer.compress(np.insert(differences, 0, 1, axis=1)) + packer.flush()  # filter 1 begins each row
    file = b"\x89PNG\r\n\x1a\n"
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    for kind, content in ((b"IHDR", header), (b"IDAT", body), (b"IEND", b"")):
        file += struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    return file


class PNGPictures:
    """Labelled pictures, decoded from PNG one by one when asked for: items are (transform(picture), label, file name).

    The article reads a folder of files. Here they are in memory, as one tensor, which spawned workers share.
    transform: `two_views`, `normalised`, `pixels`, or any function that a worker can import.
    """

    def __init__(self, images: ImageSet, transform: Callable[[Image.Image], Any]):
        if images.images.ndim != 4 or images.images.shape[1] != images.images.shape[2]:
            raise PomologyError(f"{images.name}: images of {images.images.shape[1:]}: should be square and in colour")
        content = [_png(image) for image in images.images]
        self.ends = np.cumsum([0, *map(len, content)])
        self.files = torch.frombuffer(bytearray().join(content), dtype=torch.uint8)
        self.labels, self.transform = images.labels, transform

    def __len__(self) -> int:
        return len(self.labels)

    def with_transform(self, transform: Callable[[Image.Image], Any]) -> PNGPictures:
        """The same pictures, nothing copied, as items of another kind."""
        other = copy.copy(self)
        other.transform = transform
        return other

    def picture(self, index: int) -> Image.Image:
        """The decoded picture, RGB."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        start, end = self.ends[index : index + 2]
        return Image.open(io.BytesIO(self.files[start:end].numpy())).convert("RGB")

    def __getitem__(self, index: int) -> tuple[Any, int, str]:
        picture, label = self.picture(index), int(self.labels[index])
        return self.transform(picture), label, os.path.relpath(f"/cifar10/{label}/{index:05}.png", "/cifar10")


def draw_views(count: int, generator: Any, side: int = SIDE) -> View:
    """The numbers of `count` views, distributed as those of `two_views`, from a generator on the CPU."""

    def uniform(low: float, high: float, *shape: int) -> Any:
        return low + (high - low) * torch.rand(*shape, generator=generator)

    area = side * side * uniform(*SCALE, count, 10)
    ratio = torch.exp(uniform(*map(math.log, RATIO), count, 10))
    widths, heights = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (widths > 0) & (widths <= side) & (heights > 0) & (heights <= side)
    first = fits.int().argmax(1, keepdim=True)  # where none of the ten fits: all of the picture
    width, height = (torch.where(fits.any(1), size.gather(1, first)[:, 0], side) for size in (widths, heights))
    top, left = ((torch.rand(count, generator=generator) * (side - size + 1)).floor() for size in (height, width))
    flip = torch.rand(count, generator=generator) < FLIP
    jitter = torch.rand(count, 1, generator=generator) < JITTER
    centre = torch.tensor(CENTRE)
    factors = torch.where(jitter, centre + torch.tensor(STRENGTH) * uniform(-1, 1, count, 4), centre)
    order = torch.where(jitter, torch.rand(count, 4, generator=generator).argsort(1), -1)
    grey = torch.rand(count, generator=generator) < GREY
    return View(top.int(), left.int(), height.int(), width.int(), flip, factors, order, grey)


def device_views(images: Any, generator: Any) -> tuple[Any, Any]:
    """Two random views of each image, float32 (B, 3, SIDE, SIDE), normalised, on the images' device.

    images: uint8 (B, 3, side, side). generator: on the CPU. Not under autocast, which would make half-precision crops.
    """
    with torch.no_grad():
        views = draw_views(2 * len(images), generator, images.shape[-1])
        made = apply_views(torch.cat((images, images)), views).unbind(-3)
        # By numbers: tensors of them would have to be moved to the device.
        channels = [(channel - mean) / deviation for channel, mean, deviation in zip(made, MEAN, STD, strict=True)]
        return torch.stack(channels, -3).chunk(2)


def apply_views(images: Any, views: View) -> Any:
    """A view of each image: uint8 (B, 3, side, side) to float32 (B, 3, SIDE, SIDE) from 0 to 1, on the same device.

    Only operators that MPS has, in float32, of shapes that depend on the batch size alone.
    """
    # the numbers in one piece: one transfer instead of eight
    packed = torch.cat([part.reshape(len(images), -1).float() for part in views], 1).to(images.device)
    top, left, height, width, flip, *factors = packed[:, :9].reshape(-1, 9, 1, 1).unbind(1)
    order, grey = packed[:, 9:13].reshape(-1, 4, 1, 1, 1), packed[:, 13].reshape(-1, 1, 1, 1)
    factors = [factor[:, None] for factor in factors]

    rows = _crop_weights(images.shape[-2], top, height, torch.zeros_like(flip))
    columns = _crop_weights(images.shape[-1], left, width, flip)
    images = rows[:, None] @ (images.float() / 255) @ columns[:, None].transpose(2, 3)
    for which in order.unbind(1):
        images = _jitter(images, factors, which)
    return torch.where(grey > 0, _luminance(images), images)


def _crop_weights(side: int, start: Any, size: Any, flip: Any) -> Any:
    """What each of `side` pixels gives to each of SIDE, (B, SIDE, side): bilinear from a crop alone, as PIL has it."""
    pixel, target = (torch.arange(n, dtype=torch.float32, device=start.device) + 0.5 for n in (side, SIDE))
    step, target = size / SIDE, target[:, None]
    centre = start + torch.where(flip > 0, SIDE - target, target) * step
    weights = (1 - (pixel - centre).abs() / step.clamp(min=1)).clamp(min=0)
    weights = weights * ((pixel > start) & (pixel < start + size))
    return weights / weights.sum(2, keepdim=True)


def _jitter(images: Any, factors: Any, which: Any) -> Any:
    """One of the four changes to each image: `which` (B, 1, 1, 1) is 0 to 3, or -1 for none."""
    brightness, contrast, saturation, hue = factors
    grey = _luminance(images)
    base = torch.where(which == 1, grey.mean((2, 3), keepdim=True), torch.where(which == 2, grey, 0.0))
    factor = torch.where(which == 0, brightness, torch.where(which == 1, contrast, saturation))
    mixed = (base + factor * (images - base)).clamp(0, 1)
    changed = torch.where(which == 3, _turned(images, hue), mixed)
    return torch.where(which >= 0, changed, images)


def _luminance(images: Any) -> Any:
    """(B, 1, height, width), with the weights of PIL's mode L."""
    red, green, blue = images.split(1, 1)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def _turned(images: Any, turns: Any) -> Any:
    """Hue turned with value and chroma kept: a channel lies below the value by chroma times a function of the hue."""
    red, green, blue = images.split(1, 1)
    value = images.amax(1, keepdim=True)
    chroma = value - images.amin(1, keepdim=True)
    divisor = torch.where(chroma > 0, chroma, 1.0)
    below = torch.where(value == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor)
    sixths = torch.where(value == red, (green - blue) / divisor, below) + 6 * turns
    away = torch.cat([(sixths + place) % 6 for place in (5, 3, 1)], 1)
    return value - chroma * torch.minimum(away, 4 - away).clamp(0, 1)


def knn_predict(feature: Any, bank: Any, labels: Any, classes: int, k: int = 200, t: float = 0.1) -> Any:
    """The classes of each feature, likeliest first, int64 (B, classes), by its k nearest neighbours in the bank.

    feature (B, D) and bank (D, N) of unit length; labels int64 (N,) of the bank. A neighbour votes with
    exp(cosine / t). After Wu et al. 2018 (arXiv 1805.01978), as in lightly's benchmark.
    """
    if not 1 <= k <= bank.shape[1]:
        raise PomologyError(f"kNN: k is {k}, should be 1 to {bank.shape[1]:,}, the number of features in the bank")
    weights, neighbours = torch.mm(feature, bank).topk(k, dim=1)
    votes = torch.gather(labels.expand(len(feature), -1), 1, neighbours)
    one_hot = torch.zeros(len(feature) * k, classes, device=feature.device)
    one_hot = one_hot.scatter(1, votes.reshape(-1, 1), 1.0).reshape(len(feature), k, classes)
    return (one_hot * (weights / t).exp().unsqueeze(2)).sum(1).argsort(1, descending=True)
