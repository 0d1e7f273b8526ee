"""SimCLR on small pictures, around the model: two random views of each, and kNN evaluation.

As in lightly's CIFAR-10 benchmark: SimCLRTransform(input_size=32, cj_strength=0.5,
gaussian_blur=0). Views are made by torchvision in the loader, or on the device in batches.
"""

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import torch
from PIL import Image
from torch.nn import functional as F
from torchvision import transforms

from pomology.data.images import ImageSet

SIDE = 32  # of a view
SCALE = (0.08, 1.0)  # of a crop's area, as a share of the picture's
RATIO = (3 / 4, 4 / 3)  # of a crop's width to its height
JITTER, HUE = 0.4, 0.1  # of brightness, contrast and saturation; of hue, in turns
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's

pixels = transforms.PILToTensor()  # uint8 (3, height, width), which `device_views` takes
normalised = transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
_jitter = transforms.ColorJitter(JITTER, JITTER, JITTER, HUE)
_view = transforms.Compose(
    [
        transforms.RandomResizedCrop(SIDE, SCALE, RATIO),
        transforms.RandomHorizontalFlip(0.5),
        transforms.RandomVerticalFlip(0.0),  # it never flips, but lightly draws for it
        transforms.RandomApply([_jitter], 0.8),
        transforms.RandomGrayscale(0.2),
        normalised,
    ]
)


def two_views(picture: Image.Image) -> list[torch.Tensor]:
    """Two random views of an RGB picture, each float32 (3, SIDE, SIDE), normalised."""
    return [_view(picture), _view(picture)]


class PNGPictures(torch.utils.data.Dataset):
    """Labelled pictures, decoded from PNG one by one: items are (transform(picture), label, name).

    The article reads a folder of files. Here they are in one tensor, which spawned workers share.
    """

    def __init__(self, images: ImageSet, transform: Callable[[Image.Image], Any]):
        files = io.BytesIO()
        self.starts = []
        for image in images.images:
            self.starts.append(files.tell())
            Image.fromarray(image).save(files, "PNG")
        self.starts.append(files.tell())
        self.files = torch.frombuffer(bytearray(files.getbuffer()), dtype=torch.uint8)
        self.labels = images.labels
        self.transform = transform

    def __len__(self) -> int:
        return len(self.labels)

    def with_transform(self, transform: Callable[[Image.Image], Any]) -> "PNGPictures":
        """The same pictures, nothing copied, as items of another kind."""
        other = copy.copy(self)
        other.transform = transform
        return other

    def picture(self, index: int) -> Image.Image:
        """The decoded picture, RGB."""
        start, end = self.starts[index : index + 2]
        return Image.open(io.BytesIO(self.files[start:end].numpy())).convert("RGB")

    def __getitem__(self, index: int) -> tuple[Any, int, str]:
        label = int(self.labels[index])
        return self.transform(self.picture(index)), label, f"{label}/{index:05}.png"


def device_views(images: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Two random views of each image, float32 (B, 3, SIDE, SIDE), normalised, on their device.

    `images` are uint8 (B, 3, side, side), and the generator is on the CPU. Unlike in `two_views`, a
    crop that does not fit is cut, and the colours of a batch are changed in one order. Shapes
    depend on B alone, since MPS compiles a graph for each.
    """
    count = 2 * len(images)
    device = images.device

    def uniform(low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(count, generator=generator)

    area = uniform(*SCALE)
    ratio = uniform(math.log(RATIO[0]), math.log(RATIO[1])).exp()
    width = (area * ratio).sqrt().clamp(max=1)
    height = (area / ratio).sqrt().clamp(max=1)
    side = torch.where(uniform(0, 1) < 0.5, -width, width)  # a negative one mirrors
    x = (1 - width) * uniform(-1, 1)
    y = (1 - height) * uniform(-1, 1)
    zero = torch.zeros(count)
    crops = torch.stack([side, zero, x, zero, height, y], 1).view(count, 2, 3).to(device)
    jittered = uniform(0, 1) < 0.8
    factors = [torch.where(jittered, uniform(1 - JITTER, 1 + JITTER), 1) for _ in range(3)]
    turns = torch.where(jittered, uniform(-HUE, HUE), 0)
    grey = (uniform(0, 1) < 0.2).float()
    numbers = torch.stack([*factors, turns, grey]).to(device).view(5, count, 1, 1, 1)

    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        grid = F.affine_grid(crops, [count, 3, SIDE, SIDE], align_corners=False)
        views = torch.cat((images, images)).float() / 255
        views = F.grid_sample(views, grid, padding_mode="border", align_corners=False)
        for change in torch.randperm(4, generator=generator).tolist():
            views = changed(views, change, numbers[change])
        views = torch.lerp(views, _luminance(views), numbers[4])
        channels = zip(views.unbind(1), MEAN, STD, strict=True)
        return torch.stack([(channel - mean) / std for channel, mean, std in channels], 1).chunk(2)


def changed(images: torch.Tensor, change: int, amount: torch.Tensor) -> torch.Tensor:
    """Images (B, 3, height, width) from 0 to 1 with another brightness, contrast, saturation or hue.

    `change` is 0 to 3 in this order, and `amount` (B, 1, 1, 1) a factor, or of hue turns.
    """
    if change == 3:
        return _turned(images, amount)
    grey = _luminance(images)
    base = (0, grey.mean((2, 3), keepdim=True), grey)[change]
    return (base + amount * (images - base)).clamp(0, 1)


def _luminance(images: torch.Tensor) -> torch.Tensor:
    red, green, blue = images.split(1, 1)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def _turned(images: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Hue turned; value and chroma stay, and a channel lies below the value by its hue's share."""
    red, green, blue = images.split(1, 1)
    value = images.amax(1, keepdim=True)
    chroma = value - images.amin(1, keepdim=True)
    divisor = torch.where(chroma > 0, chroma, 1)
    sixths = torch.where(value == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor)
    sixths = torch.where(value == red, (green - blue) / divisor, sixths) + 6 * turns
    distance = torch.cat([(sixths + place) % 6 for place in (5, 3, 1)], 1)
    return value - chroma * torch.minimum(distance, 4 - distance).clamp(0, 1)


def knn_predict(
    feature: torch.Tensor,
    bank: torch.Tensor,
    labels: torch.Tensor,
    classes: int,
    k: int,
    t: float = 0.1,
) -> torch.Tensor:
    """The classes of each feature, likeliest first, int64 (B, classes), by k nearest neighbours.

    `feature` (B, D) and `bank` (D, N) have unit length, `labels` (N,) are the bank's. A neighbour
    votes with exp(cosine / t), after Wu et al. 2018 (arXiv 1805.01978), as in lightly's benchmark.
    """
    cosines, neighbours = torch.mm(feature, bank).topk(k, dim=1)
    votes = labels.expand(len(feature), -1).gather(1, neighbours)
    one_hot = torch.zeros(len(feature) * k, classes, device=feature.device)
    one_hot = one_hot.scatter(1, votes.reshape(-1, 1), 1.0).reshape(len(feature), k, classes)
    return (one_hot * (cosines / t).exp().unsqueeze(2)).sum(1).argsort(1, descending=True)
