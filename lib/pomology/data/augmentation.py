"""Two random views of each image, which SimCLR compares.

The views are those of lightly's CIFAR-10 benchmark, `SimCLRTransform(input_size=32,
cj_strength=0.5, gaussian_blur=0)`. torchvision makes them in the loader.
"""

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torchvision import transforms

from pomology.data.images import ImageSet

SIDE = 32  # pixels along each side of a view
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet

normalized = transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
_view = transforms.Compose(
    [
        transforms.RandomResizedCrop(SIDE, scale=(0.08, 1.0)),
        transforms.RandomHorizontalFlip(0.5),
        transforms.RandomVerticalFlip(0.0),  # draws a value, as lightly does
        transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8),
        transforms.RandomGrayscale(0.2),
        normalized,
    ]
)


def two_views(image: Image.Image) -> list[torch.Tensor]:
    """Return two random views of an RGB image, each float32 (3, SIDE, SIDE), normalized."""
    return [_view(image), _view(image)]


class PNGImages(torch.utils.data.Dataset):
    """Labeled images, decoded from PNG one by one: items are (transform(image), label, name).

    The article reads a folder of files. Here the files are in one tensor, which spawned workers
    share, unless they have been written to a folder.
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
        self.folder: Path | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def with_transform(self, transform: Callable[[Image.Image], Any]) -> "PNGImages":
        """Return the same images with another transform, without copying them."""
        other = copy.copy(self)
        other.transform = transform
        return other

    def written(self, folder: Path) -> "PNGImages":
        """Write the files into a folder, and return the same images, read from there."""
        other = copy.copy(self)
        for index in range(len(self)):
            path = folder / self.name(index)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self._bytes(index))
        other.files, other.starts, other.folder = torch.empty(0, dtype=torch.uint8), [], folder
        return other

    def name(self, index: int) -> str:
        """Return the name of a file, in the folder of its class."""
        return f"{int(self.labels[index])}/{index:05}.png"

    def image(self, index: int) -> Image.Image:
        """Decode one image as RGB."""
        if self.folder is not None:
            with Image.open(self.folder / self.name(index)) as image:
                return image.convert("RGB")
        return Image.open(io.BytesIO(self._bytes(index))).convert("RGB")

    def _bytes(self, index: int) -> bytes:
        start, end = self.starts[index : index + 2]
        return self.files[start:end].numpy().tobytes()

    def __getitem__(self, index: int) -> tuple[Any, int, str]:
        return self.transform(self.image(index)), int(self.labels[index]), self.name(index)
