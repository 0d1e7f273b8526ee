"""Labelled images: MNIST, Fashion-MNIST, CIFAR-10, or stand-ins; and what the articles' loaders make of them.

macOS starts DataLoader workers by spawn: they import this module and unpickle the dataset, so a notebook may not
define a dataset class. None derives from torch's `Dataset`, which no DataLoader requires: importing takes no torch.
"""

import functools
import io
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pomology.data import synthetic
from pomology.data.hub import Dataset, Folder, Obtained, Request, obtain, read_parquet, reason, shown, split_files
from pomology.errors import PomologyError

Arrays = tuple[np.ndarray, np.ndarray]  # images, labels


@dataclass(frozen=True, eq=False)
class ImageSet(Obtained):
    """Labelled images in memory, for any framework: `images` uint8 (N, height, width[, 3]), `labels` int64 (N,)."""

    images: np.ndarray
    labels: np.ndarray
    classes: int = 10

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True, kw_only=True)
class _LabelledImages(Dataset):
    shape: tuple[int, ...]
    stand_in: Callable[[int, str], Arrays]  # (count, split)
    splits: Mapping[str, tuple[int, str]]  # images, and the first labels, in which sets of one form differ


_MNIST = _LabelledImages(
    name="MNIST",
    hub="ylecun/mnist",
    revision="77f3279092a1c1579b2250db8eafed0ad422088c",
    config="mnist",
    columns=("image", "label"),
    shape=(28, 28),
    stand_in=synthetic.digits,
    splits={"train": (60_000, "5041921314"), "test": (10_000, "7210414959")},
)
_FASHION_MNIST = replace(
    _MNIST,
    name="Fashion-MNIST",
    hub="zalando-datasets/fashion_mnist",
    revision="531be5e2ccc9dba0c201ad3ae567a4f3d16ecdd2",
    config="fashion_mnist",
    stand_in=synthetic.cloth_digits,
    splits={"train": (60_000, "9003027255"), "test": (10_000, "9211614657")},
)
_CIFAR10 = _LabelledImages(
    name="CIFAR-10",
    hub="uoft-cs/cifar10",
    revision="0b2714987fa478483af9968de7c934580d0bb9a2",
    config="plain_text",
    columns=("img", "label"),
    shape=(32, 32, 3),
    stand_in=synthetic.digits_on_photographs,
    splits={"train": (50_000, "6994112783"), "test": (10_000, "3880661631")},
)


def mnist(source: str = "auto", folder: Folder = None, split: str = "train", size: int | None = None) -> ImageSet:
    """MNIST (ylecun/mnist): 60,000 ("train") or 10,000 ("test") handwritten digits, 28 × 28. `folder`: parquet."""
    return _image_set(_MNIST, split, (source, folder, size))


def fashion_mnist(
    source: str = "auto", folder: Folder = None, split: str = "train", size: int | None = None
) -> ImageSet:
    """Fashion-MNIST (zalando-datasets/fashion_mnist): 60,000 or 10,000 grey pictures of clothes, 28 × 28. The article
    trains on 50,000 and validates on the 10,000 behind them. `folder`: parquet."""
    return _image_set(_FASHION_MNIST, split, (source, folder, size))


def cifar10(source: str = "auto", folder: Folder = None, split: str = "train", size: int | None = None) -> ImageSet:
    """CIFAR-10 (uoft-cs/cifar10): 50,000 or 10,000 colour photographs, 32 × 32. `folder`: parquet."""
    return _image_set(_CIFAR10, split, (source, folder, size))


def _image_set(dataset: _LabelledImages, split: str, request: Request) -> ImageSet:
    if split not in dataset.splits:
        raise PomologyError(f"{dataset.name} split: {split!r} should be one of {', '.join(dataset.splits)}")
    (count, _), size = dataset.splits[split], request[-1]

    def read(root: Path | None) -> tuple[Arrays, str]:
        paths, origin = split_files(dataset, root, split)
        return _decode(dataset, paths), origin

    stand_in = functools.partial(dataset.stand_in, min(size or count, count), split)
    (images, labels), kind, origin = obtain(dataset, request, read, stand_in)
    if wrong := {*labels.tolist()} - {*range(10)} or (not len(images) and "none"):
        raise PomologyError(f"{origin}: labels of images should be 0 to 9, not {wrong}")
    if kind == "real":
        for other in (_MNIST, _FASHION_MNIST, _CIFAR10):
            if other is not dataset and "".join(map(str, labels[:10])) == other.splits[split][1]:
                raise PomologyError(f"{origin}: has the labels of {other.name}: name the folder of {dataset.name}")
        if len(images) != count:
            origin += f"; {len(images):,} images where the article has {count:,}"
    return ImageSet(images[:size], labels[:size], name=dataset.name, kind=kind, origin=origin)


def _decode(dataset: _LabelledImages, paths: list[Path]) -> Arrays:
    """Images and labels of parquet files whose image column holds encoded files."""
    table, where = read_parquet(paths, dataset.columns), shown(paths[0])
    images = np.empty((table.num_rows, *dataset.shape), np.uint8)
    for row, item in enumerate(table.column(0).to_pylist()):
        try:
            picture = np.asarray(Image.open(io.BytesIO(item["bytes"])))
        except (OSError, TypeError, KeyError) as error:
            raise PomologyError(f"{where}: image {row} cannot be decoded: {reason(error)}") from error
        if picture.shape != dataset.shape:
            raise PomologyError(f"{where}: image {row} is {picture.shape}, should be {dataset.shape}")
        images[row] = picture
    return images, table.column(1).to_numpy().astype(np.int64)


class ArticleMNIST:
    """Images one by one along the article's way: array, PIL image, tensor. Items are (tensor, label).

    That way costs 20 to 30 µs an image, which is most of what the article's VAE table times at its large batch.
    """

    def __init__(self, images: ImageSet):
        import torch

        from pomology.data import transforms

        self.images, self.labels = torch.from_numpy(images.images), torch.from_numpy(images.labels)
        self.transform = functools.partial(transforms.compose, [transforms.to_tensor])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image, label = self.images[index], int(self.labels[index])
        return self.transform(Image.fromarray(image.numpy())), label


class MNISTPairs:
    """Pairs of random images for the Siamese network: (image, image, target), the images float32 (1, 28, 28), 0 to 255.

    At even indices of one class with target 1, at odd ones of two with target 0; drawn anew at every call as the
    article's script does, by Python's own generator, which a DataLoader's worker seeds by itself.
    """

    def __init__(self, images: ImageSet):
        import torch

        self.images = torch.from_numpy(images.images).unsqueeze(1)
        self.members = [np.flatnonzero(images.labels == label) for label in range(images.classes)]
        if min(map(len, self.members)) < 2:
            raise PomologyError(f"{images.name}: {len(images):,} images lack two images of every class for pairs")

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, Any, Any]:
        import torch

        label = other = random.randint(0, len(self.members) - 1)
        first = second = self._place(label)
        image = self.images[self.members[label][first]].clone().float()
        if same := index % 2 == 0:
            while second == first:
                second = self._place(label)
        else:
            while other == label:
                other = random.randint(0, len(self.members) - 1)
            second = self._place(other)
        other_image = self.images[self.members[other][second]].clone().float()
        return image, other_image, torch.tensor(int(same), dtype=torch.float)

    def _place(self, label: int) -> int:
        return random.randint(0, self.members[label].shape[0] - 1)
