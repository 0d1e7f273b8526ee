"""MNIST, Fashion-MNIST and CIFAR-10, or synthetic images, as arrays for any framework."""

import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from pomology.data import hub, layouts, synthetic


@dataclass(frozen=True, eq=False)
class ImageSet(hub.Obtained):
    """Labelled images: `images` uint8 (N, height, width[, 3]), `labels` int64 (N,)."""

    images: np.ndarray
    labels: np.ndarray
    classes: int = 10

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True, kw_only=True)
class ImageDataset(hub.Dataset):
    """A dataset of images on the hub, and in the files that torchvision downloads.

    column: that of the images in Parquet files. shapes: of the images of each split.
    """

    column: str
    shapes: dict[str, tuple[int, ...]]
    files: layouts.IdxFiles | layouts.Batches


MNIST = ImageDataset(
    "MNIST",
    "ylecun/mnist",
    "77f3279092a1c1579b2250db8eafed0ad422088c",
    "mnist",
    column="image",
    shapes={"train": (60_000, 28, 28), "test": (10_000, 28, 28)},
    files=layouts.MNIST,
)
FASHION_MNIST = ImageDataset(
    "Fashion-MNIST",
    "zalando-datasets/fashion_mnist",
    "531be5e2ccc9dba0c201ad3ae567a4f3d16ecdd2",
    "fashion_mnist",
    column="image",
    shapes=MNIST.shapes,
    files=layouts.FASHION_MNIST,
)
CIFAR10 = ImageDataset(
    "CIFAR-10",
    "uoft-cs/cifar10",
    "0b2714987fa478483af9968de7c934580d0bb9a2",
    "plain_text",
    column="img",
    shapes={"train": (50_000, 32, 32, 3), "test": (10_000, 32, 32, 3)},
    files=layouts.CIFAR10,
)


def mnist(source: str, folder: str = "", size: int = 0, split: str = "train") -> ImageSet:
    """Return MNIST: 60,000 ("train") or 10,000 ("test") handwritten digits, 28 x 28."""
    return image_set(MNIST, source, folder, size, split)


def fashion_mnist(source: str, folder: str = "", size: int = 0, split: str = "train") -> ImageSet:
    """Return Fashion-MNIST: 60,000 or 10,000 grey images of clothes, 28 x 28."""
    return image_set(FASHION_MNIST, source, folder, size, split)


def cifar10(source: str, folder: str = "", size: int = 0, split: str = "train") -> ImageSet:
    """Return CIFAR-10: 50,000 or 10,000 colour photographs, 32 x 32."""
    return image_set(CIFAR10, source, folder, size, split)


def image_set(
    dataset: ImageDataset, source: str, folder: str, size: int, split: str = "train"
) -> ImageSet:
    """Return a split of a dataset.

    folder: has the hub's Parquet files, or the files that torchvision downloads. It may be the one
    that torchvision was given as `root`, its subfolder of the dataset, or `raw` in that.
    """
    shape = dataset.shapes[split]
    size = 0 if size >= shape[0] else size  # all of them

    def read(root):
        if root is None or hub.in_folder(dataset, split, root):
            return _from_parquet(dataset, split, root)
        local = dataset.files.read(root, split, shape)
        if local is None:
            raise hub.missing(dataset, split, root, dataset.files.expected(split))
        arrays, layout = local
        return arrays, f"local folder, {layout}"

    def stand_in():
        count = min(size or shape[0], shape[0])
        return synthetic.images((count, *shape[1:]), split)

    (images, labels), provenance = hub.obtain(dataset.name, source, folder, size, read, stand_in)
    return ImageSet(images[: size or None], labels[: size or None], **provenance)


def _from_parquet(
    dataset: ImageDataset, split: str, root: Path | None
) -> tuple[layouts.Arrays, str]:
    """Return images and labels from a Parquet file with encoded images, and its origin."""
    path, origin = hub.find(dataset, split, root)
    cells, numbers = hub.read_parquet(path, dataset.column, "label")
    try:
        decoded = [Image.open(io.BytesIO(cell["bytes"])) for cell in cells]
        images = np.stack([np.asarray(image) for image in decoded])
        labels = np.array(numbers, np.int64)
    except (OSError, TypeError, ValueError) as error:
        raise hub.damaged(path, error) from error
    if images.shape != dataset.shapes[split]:
        raise hub.damaged(path, f"images of {images.shape}, expected {dataset.shapes[split]}")
    # The files of all datasets on the hub have one name, so a folder may have another dataset's.
    other = layouts.owner(labels)
    if other not in ("", dataset.name):
        raise hub.Missing(f"{hub.redacted(path)} is of {other}, not of {dataset.name}")
    return (images, labels), origin


def pictures(images: Iterable[np.ndarray]) -> Image.Image:
    """Return images side by side, enlarged by a whole factor, as one image.

    images: all height x width, or all height x width x 3 with values from 0 to 1.
    """
    row = np.hstack(list(images)).astype(float)
    # Grey values are stretched from black to white; colours have their range already.
    low, high = (0.0, 1.0) if row.ndim == 3 else (row.min(), row.max())
    grey = np.clip((row - low) / (high - low or 1.0), 0, 1)
    times = max(1, 64 // len(row))
    large = grey.repeat(times, axis=0).repeat(times, axis=1)
    return Image.fromarray((255 * large).astype(np.uint8))
