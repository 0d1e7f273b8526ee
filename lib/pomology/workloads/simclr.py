"""SimCLR on small pictures, the part around the model: two random views of every picture, and the kNN evaluation.

As in lightly's CIFAR-10 benchmark (`SimCLRTransform(input_size=32, cj_strength=0.5, gaussian_blur=0)`), without lightly
and torchvision; by PIL in the DataLoader's workers (`two_views`), or a batch at a time on the device (`device_views`).
"""

from __future__ import annotations

import copy
import io
import math
import struct
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageEnhance

from pomology.data.images import ImageSet, to_tensor
from pomology.errors import PomologyError

SIDE = 32  # of a view
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)  # of a crop: its share of the picture's area, its width to its height
FLIP, JITTER, GREY = 0.5, 0.8, 0.2  # how likely
CENTRE, STRENGTH = (1.0, 1.0, 1.0, 0.0), (0.4, 0.4, 0.4, 0.1)  # brightness, contrast and saturation; hue in turns
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, of red, green and blue


class View(NamedTuple):
    """The random numbers of one view; or, from `draw_views`, of n: tensors (n,), factors and order (n, 4).

    Both ways make the same views of them, whose pixels (0 to 1) differ by 0.01 on the average and 0.1 at the most: PIL
    cuts off to 256 levels after every step, and in hue before and after.
    """

    top: Any
    left: Any
    height: Any
    width: Any
    flip: Any
    factors: Any  # brightness, contrast, saturation: 1 changes nothing; hue in turns: 0 changes nothing
    order: Any  # which of the factors comes first, second, ... (0 to 3); -1 at all places: none is used
    grey: Any


def draw_view(side: int = SIDE) -> View:
    """The numbers of one view of a `side` × `side` picture, from PyTorch's global generator in torchvision's order.

    Three draws decide nothing: of a rotation, a flip upside down and a blur, whose chance is 0. lightly makes them.
    """

    def uniform(low: float, high: float) -> Any:
        return torch.empty(1).uniform_(low, high)

    crop = 0, 0, side, side  # if ten times none fits
    for _ in range(10):
        area, ratio = side * side * uniform(*SCALE).item(), torch.exp(uniform(*map(math.log, RATIO))).item()
        width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < width <= side and 0 < height <= side:
            top, left = (torch.randint(0, side - size + 1, (1,)).item() for size in (height, width))
            crop = top, left, height, width
            break
    np.random.random_sample()  # for a rotation, by numpy's global generator
    flip = bool(torch.rand(1) < FLIP)
    torch.rand(1)  # for a flip upside down
    order, factors = (-1, -1, -1, -1), CENTRE
    if not torch.rand(1) > JITTER:
        order = tuple(torch.randperm(4).tolist())
        factors = tuple(uniform(c - s, c + s).item() for c, s in zip(CENTRE, STRENGTH, strict=True))
    grey = bool(torch.rand(1) < GREY)
    np.random.random_sample()  # for a blur
    return View(*crop, flip, factors, order, grey)


def apply_view(picture: Image.Image, view: View) -> Image.Image:
    """A view of an RGB picture, SIDE × SIDE, by PIL, in whole grey levels as torchvision makes it."""
    picture = picture.crop((view.left, view.top, view.left + view.width, view.top + view.height))
    picture = picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    if view.flip:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    for which in view.order:
        if which == 3:
            hue, saturation, value = picture.convert("HSV").split()
            turned = np.array(hue) + np.int32(view.factors[3] * 255).astype(np.uint8)  # goes round at 256
            picture = Image.merge("HSV", (Image.fromarray(turned), saturation, value)).convert("RGB")
        elif which >= 0:
            enhancer = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)[which]
            picture = enhancer(picture).enhance(view.factors[which])
    return picture.convert("L").convert("RGB") if view.grey else picture


def two_views(picture: Image.Image) -> tuple[Any, Any]:
    """Two random views of an RGB picture, each float32 (3, SIDE, SIDE), normalised; bit by bit torchvision's."""
    return tuple(normalised(apply_view(picture, draw_view(picture.height))) for _ in range(2))


def normalised(picture: Image.Image) -> Any:
    """The picture as it is, float32 (3, height, width), normalised: what the kNN evaluation embeds."""
    return _normalise(to_tensor(picture))


def pixels(picture: Image.Image) -> Any:
    """The picture as it is, uint8 (3, height, width): what `device_views` takes, in batches."""
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()


def _normalise(images: Any) -> Any:
    """Images (..., 3, height, width). Without tensors of constants, which would have to be moved to the device."""
    channels = zip(images.unbind(-3), MEAN, STD, strict=True)
    return torch.stack([(channel - mean) / deviation for channel, mean, deviation in channels], -3)


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
    """Labelled pictures, decoded from PNG one by one when asked for: items are (transform(picture), label).

    The article reads a folder of files. Here they lie in memory, as one tensor, which spawned workers share.
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

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(self.picture(index)), int(self.labels[index])


def draw_views(count: int, generator: Any, side: int = SIDE) -> View:
    """The numbers of `count` views, distributed as those of `draw_view`, from a generator on the CPU."""

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
        return _normalise(apply_views(torch.cat((images, images)), views)).chunk(2)


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
