"""The articles' datasets, or stand-ins of the same shape; and every class that a DataLoader worker must import.

`mnist`, `fashion_mnist`, `cifar10`, `wikitext2` and `lsun_classroom` take the same parameters:

- `source`: "auto" takes the article's dataset where it is in `folder`, cached or to be downloaded, else the stand-in;
  "real" insists; "stand-in" asks neither disk nor network;
- `folder`: a local copy, also one that torchvision or Keras made. MNIST and Fashion-MNIST: parquet or IDX files.
  CIFAR-10: parquet, binary or Python batches. WikiText-2: parquet or text. LSUN: lmdb or JPEG files;
- `size`: the first images or tokens only, for smoke tests.

What comes back says in `kind` ("real" or "stand-in") and in `origin` (one line, for tables) what it is and why. Damaged
or half-downloaded data raise PomologyError, whatever the source; only data that cannot be had make "auto" take the
stand-in.

A stand-in has the article's number of samples, shapes, types and vocabulary size: see `pomology.data.synthetic`.

macOS starts DataLoader workers by spawn: they import this module and unpickle the dataset, so no dataset class may live
in a notebook. None derives from torch's `Dataset`, as no DataLoader asks for that: this module imports without torch.
Labelled images are plain arrays, for any framework. Another set of them is one `_ImageSource` and one function.
"""

from __future__ import annotations

import gzip
import io
import math
import pickle
import random
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pomology.data import synthetic
from pomology.data.hub import Folder, damaged, find, obtain, one_line, parquet_names, read_parquet, shown
from pomology.errors import PomologyError

SPLITS = ("train", "test")


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Labelled images in memory: `images` uint8 (N, height, width[, 3]), `labels` int64 (N,)."""

    name: str
    images: np.ndarray
    labels: np.ndarray
    classes: int
    kind: str
    origin: str

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class _ImageSource:
    """Where a set of labelled images is published, what it must look like, and what stands in for it."""

    name: str
    hub: str
    config: str
    shape: tuple[int, ...]
    counts: Mapping[str, int]
    begins: Mapping[str, tuple[int, ...]]  # the first labels: they tell sets of one form apart
    patterns: Callable[[str], list[str]]  # split -> the files of the author's own form
    read: Callable[[list[Path], str], tuple[np.ndarray, np.ndarray]]  # (those files, split) -> images, labels
    stand_in: Callable[[int, str], tuple[np.ndarray, np.ndarray]]  # (count, split) -> images, labels
    columns: tuple[str, str] = ("image", "label")
    classes: int = 10


def mnist(source: str = "auto", folder: Folder = None, split: str = "train", size: int | None = None) -> ImageSet:
    """MNIST (on the hub: ylecun/mnist): 60,000 ("train") or 10,000 ("test") handwritten digits of 28 × 28."""
    return _image_set(_MNIST, source, folder, split, size)


def fashion_mnist(
    source: str = "auto", folder: Folder = None, split: str = "train", size: int | None = None
) -> ImageSet:
    """Fashion-MNIST (zalando-datasets/fashion_mnist): 60,000 or 10,000 grey pictures of clothes, 28 × 28.

    The article trains on 50,000 and validates on the 10,000 behind them.
    """
    return _image_set(_FASHION_MNIST, source, folder, split, size)


def cifar10(source: str = "auto", folder: Folder = None, split: str = "train", size: int | None = None) -> ImageSet:
    """CIFAR-10 (uoft-cs/cifar10): 50,000 ("train") or 10,000 ("test") colour photographs of 32 × 32."""
    return _image_set(_CIFAR10, source, folder, split, size)


def _image_set(article: _ImageSource, source: str, folder: Folder, split: str, size: int | None) -> ImageSet:
    if split not in SPLITS:
        raise PomologyError(f"{article.name} split: {split!r} should be one of {', '.join(SPLITS)}")
    count = article.counts[split]
    (images, labels), kind, origin = obtain(
        (article.name, article.hub, article.config),
        (source, folder, size),
        lambda path: _read_image_folder(article, path, split),
        lambda tables: _decode_table(article, tables[split], f"{article.hub} ({split})"),
        lambda: article.stand_in(min(size or count, count), split),
    )
    if len(images) != len(labels) or not len(images):
        raise PomologyError(f"{origin}: {len(images):,} images but {len(labels):,} labels")
    if labels.min() < 0 or labels.max() >= article.classes:
        raise PomologyError(f"{origin}: labels should be 0 to {article.classes - 1}, not {labels.max()}")
    if kind == "real":
        for other in (_MNIST, _FASHION_MNIST, _CIFAR10):
            if other is not article and tuple(labels[:10]) == other.begins[split]:
                raise PomologyError(f"{origin}: has the labels of {other.name}: name the folder of {article.name}")
        if len(images) != count:
            origin += f"; {len(images):,} images where the article has {count:,}"
    return ImageSet(article.name, images[:size], labels[:size], article.classes, kind, origin)


def _read_image_folder(article: _ImageSource, root: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    found = find(root, [*parquet_names(split), *article.patterns(split)], article.name)
    if found[0].suffix == ".parquet":
        return _decode_table(article, read_parquet(found, article.columns), shown(found[0]))
    return article.read(found, split)


def _decode_table(article: _ImageSource, table: Any, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of a pyarrow table whose image column holds encoded files, as the hub's image sets do."""
    images = np.empty((table.num_rows, *article.shape), np.uint8)
    for row, item in enumerate(table.column(article.columns[0]).to_pylist()):
        try:
            picture = np.asarray(Image.open(io.BytesIO(item["bytes"])))
        except (OSError, TypeError, KeyError) as error:
            raise PomologyError(f"{where}: image {row} cannot be decoded: {one_line(error)}") from error
        if picture.shape != article.shape:
            raise PomologyError(f"{where}: image {row} is {picture.shape}, should be {article.shape}")
        images[row] = picture
    return images, table.column(article.columns[1]).to_numpy().astype(np.int64)


def _idx_names(split: str, part: str = "images", dimensions: int = 3) -> list[str]:
    """`-idx3-ubyte` on the usual copies, `.idx3-ubyte` on others; an unpacked file wins over a packed one beside it."""
    name = f"{'train' if split == 'train' else 't10k'}-{part}?idx{dimensions}-ubyte"
    return [name, f"{name}.gz"]


def _read_idx_pair(found: list[Path], split: str) -> tuple[np.ndarray, np.ndarray]:
    images = _read_idx(found[0], (28, 28))
    labels = find(found[0].parent, _idx_names(split, "labels", 1), f"labels of {found[0].name}")
    return images, _read_idx(labels[0], ()).astype(np.int64)


def _read_idx(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """An IDX file (0, 0, type, number of dimensions, big-endian sizes, then the bytes) as uint8 (N, *shape)."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, error) from error
    start = 4 * (2 + len(shape))
    sizes = tuple(int(size) for size in np.frombuffer(data[4:start], ">u4")) if len(data) >= start else ()
    if data[:4] != bytes((0, 0, 8, 1 + len(shape))) or sizes[1:] != shape:
        raise damaged(path, f"not an IDX file of bytes with items of {shape}")
    if len(data) - start != math.prod(sizes):
        raise damaged(path, f"{len(data):,} bytes do not hold the {sizes[0]:,} items that it announces")
    return np.frombuffer(data, np.uint8, offset=start).reshape(sizes).copy()  # a copy: torch wants it writable


def _cifar_names(split: str) -> list[str]:
    name = "data_batch_[1-5]" if split == "train" else "test_batch"
    return [f"{name}.bin", name]


def _read_cifar(found: list[Path], split: str) -> tuple[np.ndarray, np.ndarray]:
    """Batches of CIFAR-10, binary (a label and 3,072 bytes an image) or pickled; both hold red, green, blue planes."""
    batches = []
    for path in found:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise damaged(path, error) from error
        if path.suffix != ".bin":
            batches.append(_unpickle_cifar(path, data))
        elif not data or len(data) % 3073:
            raise damaged(path, f"{len(data):,} bytes are not a number of images of 3,073 bytes each")
        else:
            batches.append(np.frombuffer(data, np.uint8).reshape(-1, 3073))
    rows = np.concatenate(batches)
    images = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), rows[:, 0].astype(np.int64)


class _Recipe:
    """Stands where a pickle would make a numpy array, and only keeps what it would be made of."""

    def __init__(self, *_: Any):
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _CIFARUnpickler(pickle.Unpickler):
    """A pickle can run any code; this one can name an array of numpy, nothing else, and does not make that either."""

    def find_class(self, module: str, name: str) -> type[_Recipe]:
        if module.split(".")[0] == "numpy" and name in {"_reconstruct", "ndarray", "dtype"}:
            return _Recipe
        raise pickle.UnpicklingError(f"asks for {module}.{name}, as no batch of CIFAR-10 does")


def _unpickle_cifar(path: Path, data: bytes) -> np.ndarray:
    """A Python batch of CIFAR-10, labels and pixels, as the rows of a binary one: uint8 (N, 3073)."""
    try:
        batch = _CIFARUnpickler(io.BytesIO(data), encoding="bytes").load()
        labels = np.array(batch[b"labels"], np.uint8)
        _, _, _, by_columns, pixels = batch[b"data"].state
        pixels = np.frombuffer(pixels, np.uint8).reshape((len(labels), 3072), order="F" if by_columns else "C")
        return np.column_stack((labels, pixels))
    except Exception as error:  # whatever bytes that are no pickle, or another one, may bring about
        raise damaged(path, error) from error


_MNIST = _ImageSource(
    name="MNIST",
    hub="ylecun/mnist",
    config="mnist",
    shape=(28, 28),
    counts={"train": 60_000, "test": 10_000},
    begins={"train": (5, 0, 4, 1, 9, 2, 1, 3, 1, 4), "test": (7, 2, 1, 0, 4, 1, 4, 9, 5, 9)},
    patterns=_idx_names,
    read=_read_idx_pair,
    stand_in=synthetic.digits,
)

_FASHION_MNIST = replace(
    _MNIST,
    name="Fashion-MNIST",
    hub="zalando-datasets/fashion_mnist",
    config="fashion_mnist",
    begins={"train": (9, 0, 0, 3, 0, 2, 7, 2, 5, 5), "test": (9, 2, 1, 1, 6, 1, 4, 6, 5, 7)},
    stand_in=synthetic.cloth_digits,
)

_CIFAR10 = _ImageSource(
    name="CIFAR-10",
    hub="uoft-cs/cifar10",
    config="plain_text",
    shape=(32, 32, 3),
    counts={"train": 50_000, "test": 10_000},
    begins={"train": (6, 9, 9, 4, 1, 1, 2, 7, 8, 3), "test": (3, 8, 8, 0, 6, 6, 1, 6, 3, 1)},
    patterns=_cifar_names,
    read=_read_cifar,
    stand_in=synthetic.digits_on_photographs,
    columns=("img", "label"),
)


def to_tensor(picture: Image.Image) -> Any:
    """A PIL image of bytes (modes L and RGB) as a float32 tensor (channels, height, width) from 0 to 1."""
    import torch  # an import that is done already costs 0.1 µs

    pixels = torch.from_numpy(np.array(picture, np.uint8))
    pixels = pixels.view(picture.height, picture.width, len(picture.getbands()))
    return pixels.permute(2, 0, 1).contiguous().to(torch.float32).div(255)


class ArticleMNIST:
    """Images one by one along the article's way: array, PIL image, `transform`. Items are (tensor, label).

    That way costs 20 to 30 µs an image, which is most of what the article's VAE table times at its large batch.
    """

    def __init__(self, images: ImageSet, transform: Callable[[Image.Image], Any] = to_tensor):
        import torch

        self.images, self.labels = torch.from_numpy(images.images), torch.from_numpy(images.labels)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        picture = Image.fromarray(self.images[index].numpy())
        return self.transform(picture), int(self.labels[index])


class MNISTPairs:
    """Pairs of random images for the Siamese network: (image, image, target), the images float32 (1, 28, 28), 0 to 255.

    An even index gives two images of one class and target 1, an odd one two of different classes and target 0, drawn
    anew at every call. The draws follow `seed`; in a DataLoader's worker they follow the seed that the DataLoader gave
    to that worker, so that workers and epochs differ (`torch.manual_seed` decides them).
    """

    def __init__(self, images: ImageSet, seed: int = 0):
        import torch

        self.images = torch.from_numpy(images.images).unsqueeze(1)
        self.members = [np.flatnonzero(images.labels == label) for label in range(images.classes)]
        if min(map(len, self.members)) < 2:
            raise PomologyError(
                f"{images.name}: pairs need two images of every class, {len(images):,} images lack them"
            )
        self.seed = seed
        self._seeded_with: int | None = None
        self._random = random.Random()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, Any, Any]:
        import torch
        from torch.utils.data import get_worker_info

        worker = get_worker_info()
        seed = self.seed if worker is None else worker.seed
        if seed != self._seeded_with:
            self._random.seed(seed)
            self._seeded_with = seed
        below, classes = self._random.randrange, len(self.members)
        label = below(classes)
        one = other = self.members[label]
        first = below(len(one))
        if same := index % 2 == 0:
            second = (first + 1 + below(len(one) - 1)) % len(one)  # any but the first
        else:
            other = self.members[(label + 1 + below(classes - 1)) % classes]
            second = below(len(other))
        image, other_image = self.images[one[first]], self.images[other[second]]
        return image.clone().float(), other_image.clone().float(), torch.tensor(float(same))
