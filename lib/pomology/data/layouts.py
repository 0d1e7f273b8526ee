"""Images and labels in the files that torchvision downloads: idx files, or CIFAR's batches.

torchvision's own readers do not fit: they import PyTorch, and a process of a Keras or MLX notebook
must have no second framework. They also take every well-formed idx file, of whatever dataset. So
numpy reads these files here, and a file is the dataset's only if its MD5 is the published one.
"""

import gzip
import hashlib
import math
import pickle
import struct
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pomology.data.hub import Missing, damaged, redacted
from pomology.errors import PomologyError

Arrays = tuple[np.ndarray, np.ndarray]
UNREADABLE = (OSError, EOFError, zlib.error, tarfile.TarError)  # of a file, packed or not


@dataclass(frozen=True)
class IdxFiles:
    """MNIST's format, in which a split has a file of images and one of labels.

    http://yann.lecun.com/exdb/mnist describes it. name: of the dataset. folder: torchvision's,
    below its root. checksums: the MD5 of each unpacked file, since a packed one has another after
    every packing.
    """

    name: str
    folder: str
    checksums: dict[str, str]

    def expected(self, split: str) -> str:
        """Return what a folder must have."""
        images, labels = self._names(split)
        folders = f"in it, in raw/, in {self.folder}/ or in {self.folder}/raw/"
        return f"{images} and {labels} (unpacked or .gz) {folders}"

    def read(self, root: Path, split: str, shape: tuple[int, ...]) -> tuple[Arrays, str] | None:
        """Return images uint8 of `shape` and labels int64 with their layout, or None without files.

        Raises PomologyError for a missing or damaged file, and Missing for another dataset.
        """
        names = self._names(split)
        below = root / self.folder
        for folder in (below / "raw", below, root / "raw", root):
            paths = [self._packed_or_not(folder / name) for name in names]
            if not any(paths):
                continue
            for name, path in zip(names, paths, strict=True):
                if path is None:
                    raise PomologyError(f"{redacted(folder)} lacks {name} (unpacked or .gz)")
            images, labels = self._array(paths[0], shape), self._array(paths[1], shape[:1])
            return (images, labels.astype(np.int64)), "idx files"
        return None

    @staticmethod
    def _names(split: str) -> tuple[str, str]:
        """Return the names of a split's files, of images and of labels."""
        prefix = {"train": "train", "test": "t10k"}[split]
        return f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"

    @staticmethod
    def _packed_or_not(path: Path) -> Path | None:
        """Return the path of a file or of its `.gz`, None if there is neither."""
        packed = path.with_name(f"{path.name}.gz")
        return next((file for file in (path, packed) if file.is_file()), None)

    def _array(self, path: Path, shape: tuple[int, ...]) -> np.ndarray:
        """Return the values of a file, uint8."""
        size = len(idx_header(shape)) + math.prod(shape)
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                content = file.read(size + 1)  # one more shows a file that is too long
        except UNREADABLE as error:
            raise damaged(path, error) from error
        problem = idx_problem(content, shape)
        if problem:
            raise damaged(path, problem)
        checksum = md5(content)
        if checksum != self.checksums[path.name.removesuffix(".gz")]:
            other = OWNERS.get(checksum)
            if other:
                raise Missing(f"{redacted(path)} is of {other}, not of {self.name}")
            raise damaged(path, f"its values are not those of {self.name}")
        values = np.frombuffer(content, np.uint8, offset=size - math.prod(shape))
        return values.reshape(shape).copy()  # PyTorch warns of an array that is not writable


def md5(content: bytes) -> str:
    """Return the MD5 of a file's content, in hexadecimal digits."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def idx_header(shape: tuple[int, ...]) -> bytes:
    """Return the first bytes of an idx file of uint8: magic number and shape, big-endian."""
    return struct.pack(f">{1 + len(shape)}I", 0x0800 + len(shape), *shape)


def idx_problem(content: bytes, shape: tuple[int, ...]) -> str:
    """Return how an idx file differs from one of this shape, or ""."""
    header = idx_header(shape)
    size = len(header) + math.prod(shape)
    if len(content) >= len(header):
        magic, *lengths = struct.unpack_from(f">{1 + len(shape)}I", content)
        expected = 0x0800 + len(shape)
        if magic != expected:
            return f"magic number 0x{magic:08x}, expected 0x{expected:08x}"
        if tuple(lengths) != shape:
            return f"shape {tuple(lengths)}, expected {shape}"
    if len(content) > size:
        return f"more than {size:,} bytes"
    return f"{len(content):,} bytes, expected {size:,}" if len(content) < size else ""


@dataclass(frozen=True)
class Batches:
    """CIFAR-10's format: pickled batches, in a folder or in the archive that has this folder.

    https://www.cs.toronto.edu/~kriz/cifar.html describes it. checksums: split -> file -> MD5.
    """

    folder: str
    archive: str
    checksums: dict[str, dict[str, str]]

    def expected(self, split: str) -> str:
        """Return what a folder must have."""
        names = list(self.checksums[split])
        files = f"{names[0]} to {names[-1]}" if len(names) > 1 else names[0]
        return f"{files} in it or in {self.folder}/, or {self.archive}"

    def read(self, root: Path, split: str, shape: tuple[int, ...]) -> tuple[Arrays, str] | None:
        """Return images uint8 of `shape` and labels int64 with their layout, or None without files.

        Raises PomologyError for a missing or damaged file.
        """
        names = self.checksums[split]
        for folder in (root / self.folder, root):
            paths = [folder / name for name in names]
            if any(path.is_file() for path in paths):
                contents = {path.name: self._content(path) for path in paths}
                return self._arrays(folder, contents, split, shape), self.folder
        packed = root / self.archive
        if packed.is_file():
            contents = self._unpacked(packed, split)
            return self._arrays(packed, contents, split, shape), self.archive
        return None

    @staticmethod
    def _content(path: Path) -> bytes:
        """Return a batch's bytes. Raises PomologyError if the file is missing or unreadable."""
        if not path.is_file():
            raise PomologyError(f"{redacted(path.parent)} lacks {path.name}")
        try:
            return path.read_bytes()
        except OSError as error:
            raise damaged(path, error) from error

    def _unpacked(self, path: Path, split: str) -> dict[str, bytes]:
        """Return the contents of a split's files in an archive, of which none is written."""
        contents = {}
        try:
            # As a stream: the batches are in another order, and going back unpacks all again.
            with tarfile.open(path, "r|gz") as archive:
                for member in archive:
                    name = member.name.rpartition("/")[2]
                    if name in self.checksums[split] and member.isfile():
                        contents[name] = archive.extractfile(member).read()
        except UNREADABLE as error:
            raise damaged(path, error) from error
        for name in self.checksums[split]:
            if name not in contents:
                raise damaged(path, f"without {self.folder}/{name}")
        return contents

    def _arrays(
        self, path: Path, contents: dict[str, bytes], split: str, shape: tuple[int, ...]
    ) -> Arrays:
        """Return images (N, height, width, channels) and labels (N,) of a split's batches, by name.

        path: of their folder or archive, for errors.
        """
        images, labels = [], []
        for name, checksum in self.checksums[split].items():
            # Reading a pickle runs the code in it, so only the published file is read.
            if md5(contents[name]) != checksum:
                raise damaged(path / name, "its MD5 is not the published one")
            batch = pickle.loads(contents[name], encoding="latin1")  # by Python 2
            images.append(batch["data"])
            labels.extend(batch["labels"])
        # A row has the red values of an image, then the green and the blue ones.
        count, height, width, channels = shape
        planes = np.concatenate(images).reshape(count, channels, height, width)
        return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), np.array(labels, np.int64)


MNIST = IdxFiles(
    "MNIST",
    "MNIST",
    {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
)
FASHION_MNIST = IdxFiles(
    "Fashion-MNIST",
    "FashionMNIST",
    {
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
)
OWNERS = {
    checksum: dataset.name
    for dataset in (MNIST, FASHION_MNIST)
    for checksum in dataset.checksums.values()
}
# The MD5s are those of torchvision.datasets.CIFAR10.
CIFAR10 = Batches(
    "cifar-10-batches-py",
    "cifar-10-python.tar.gz",
    {
        "train": {
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        },
        "test": {"test_batch": "40351d587109b95175f43aff81a1287e"},
    },
)


def owner(labels: np.ndarray) -> str:
    """Return the dataset, of MNIST and Fashion-MNIST, whose labels (N,) these are, or ""."""
    content = idx_header(labels.shape) + labels.astype(np.uint8).tobytes()
    return OWNERS.get(md5(content), "")
