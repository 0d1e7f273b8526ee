"""MNIST, Fashion-MNIST and CIFAR-10, or synthetic images, as arrays for any framework."""

import io
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from PIL import Image

from pomology.data import hub, synthetic


@dataclass(frozen=True, eq=False)
class ImageSet(hub.Obtained):
    """Labelled images: `images` uint8 (N, height, width[, 3]), `labels` int64 (N,)."""

    images: np.ndarray
    labels: np.ndarray
    classes: int = 10

    def __len__(self) -> int:
        return len(self.images)


MNIST = hub.Dataset("MNIST", "ylecun/mnist", "77f3279092a1c1579b2250db8eafed0ad422088c", "mnist")
FASHION_MNIST = hub.Dataset(
    "Fashion-MNIST",
    "zalando-datasets/fashion_mnist",
    "531be5e2ccc9dba0c201ad3ae567a4f3d16ecdd2",
    "fashion_mnist",
)
CIFAR10 = hub.Dataset(
    "CIFAR-10",
    "uoft-cs/cifar10",
    "0b2714987fa478483af9968de7c934580d0bb9a2",
    "plain_text",
)


def mnist(source: str, folder: str = "", size: int = 0, split: str = "train") -> ImageSet:
    """Return MNIST: 60,000 ("train") or 10,000 ("test") handwritten digits, 28 x 28."""
    return _image_set(MNIST, "image", (60_000, 28, 28), source, folder, size, split)


def fashion_mnist(source: str, folder: str = "", size: int = 0, split: str = "train") -> ImageSet:
    """Return Fashion-MNIST: 60,000 or 10,000 grey images of clothes, 28 x 28."""
    return _image_set(FASHION_MNIST, "image", (60_000, 28, 28), source, folder, size, split)


def cifar10(source: str, folder: str = "", size: int = 0, split: str = "train") -> ImageSet:
    """Return CIFAR-10: 50,000 or 10,000 colour photographs, 32 x 32."""
    return _image_set(CIFAR10, "img", (50_000, 32, 32, 3), source, folder, size, split)


def _image_set(dataset, column, shape, source, folder, size, split) -> ImageSet:
    """Return a split of a dataset. shape: that of all training images; a test has 10,000."""
    if split == "test":
        shape = (10_000, *shape[1:])

    def read(root):
        path, where = hub.find(dataset, split, root)
        cells, labels = hub.read_parquet(path, column, "label")
        try:
            decoded = [Image.open(io.BytesIO(cell["bytes"])) for cell in cells]
            images = np.stack([np.asarray(image) for image in decoded])
        except (OSError, TypeError, ValueError) as error:
            raise hub.damaged(path, error) from error
        if images.shape != shape:
            raise hub.damaged(path, f"images of {images.shape}, expected {shape}")
        return (images, np.array(labels)), where

    def stand_in():
        count = min(size or shape[0], shape[0])
        return synthetic.images((count, *shape[1:]), split)

    (images, labels), about = hub.obtain(dataset.name, source, folder, size, read, stand_in)
    return ImageSet(images[: size or None], labels[: size or None], **about)


def pictures(images: Iterable[np.ndarray]) -> Image.Image:
    """Return images side by side, enlarged by a whole factor, as one image.

    images: all height x width, or all height x width x 3 with values from 0 to 1.
    """
    row = np.hstack(list(images)).astype(float)
    low, high = (0.0, 1.0) if row.ndim == 3 else (row.min(), row.max())
    grey = np.clip((row - low) / (high - low or 1.0), 0, 1)
    times = max(1, 64 // len(row))
    large = grey.repeat(times, axis=0).repeat(times, axis=1)
    return Image.fromarray((255 * large).astype(np.uint8))
