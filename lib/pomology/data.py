"""The articles' datasets, or stand-ins of the same shape; and every class that a DataLoader worker must import.

`mnist`, `wikitext2` and `lsun_classroom` take the same parameters:

- `source`: "auto" takes the article's dataset where it is in `folder`, cached or to be downloaded, else the stand-in;
  "real" insists; "stand-in" asks neither disk nor network;
- `folder`: a local copy. MNIST: parquet or IDX files. WikiText-2: parquet or text. LSUN: lmdb or JPEG files;
- `size`: the first images or tokens only, for smoke tests.

What comes back says in `kind` ("real" or "stand-in") and in `origin` (one line, for tables) what it is and why. Damaged
or half-downloaded data raise PomologyError, whatever the source; only data that cannot be had make "auto" take the
stand-in.

A stand-in has the article's number of samples, shapes, types and vocabulary size, can be learned, is the same on every
call, and is built in seconds from the samples in `resources/samples` and the text that Python itself carries.

macOS starts DataLoader workers by spawn: they import this module and unpickle the dataset, so no dataset class may live
in a notebook. None derives from torch's `Dataset`, as no DataLoader asks for that: this module imports without torch.
Another set of labelled images is one `_ImageSource` and one function like `mnist`.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import random
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pomology import PomologyError

SOURCES = ("auto", "real", "stand-in")
SPLITS = ("train", "test")
WIKITEXT2_TOKENS = {"train": 2_088_628, "valid": 217_646, "test": 245_569}  # words and one <eos> a line
WIKITEXT2_VOCABULARY = 33_278
LSUN_CLASSROOM_IMAGES = 168_103
STAND_IN_PHOTOGRAPHS = 1_024  # different ones behind the 168,103 of the stand-in

_UNFINISHED = {".incomplete", ".part", ".partial", ".crdownload", ".download", ".tmp"}
_JPEG_SUFFIXES = {".jpg", ".jpeg", ".webp"}  # the exporter of LSUN names its JPEG files .webp

Folder = str | Path | None


class _Unobtainable(Exception):
    """The real data is neither here nor to be had; the text says why."""


# --- labelled images


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
    classes: int
    counts: Mapping[str, int]
    stand_in: Callable[[int, str], tuple[np.ndarray, np.ndarray]]  # (count, split) -> images, labels
    columns: tuple[str, str] = ("image", "label")


def mnist(source: str = "auto", folder: Folder = None, split: str = "train", size: int | None = None) -> ImageSet:
    """MNIST (on the hub: ylecun/mnist): 60,000 ("train") or 10,000 ("test") handwritten digits of 28 × 28."""
    return _image_set(_MNIST, source, folder, split, size)


def _image_set(article: _ImageSource, source: str, folder: Folder, split: str, size: int | None) -> ImageSet:
    if split not in SPLITS:
        raise PomologyError(f"{article.name} split: {split!r} should be one of {', '.join(SPLITS)}")
    count = article.counts[split]
    (images, labels), kind, origin = _obtain(
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
    if kind == "real" and len(images) != count:
        origin += f"; {len(images):,} images where the article has {count:,}"
    return ImageSet(article.name, images[:size], labels[:size], article.classes, kind, origin)


def _read_image_folder(article: _ImageSource, root: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    prefix = {"train": "train", "test": "t10k"}[split]
    # "-idx3-ubyte" on the usual copies, ".idx3-ubyte" on others; an unpacked file wins over the packed one beside it
    images, labels = (
        [f"{prefix}-{part}?idx{dimensions}-ubyte", f"{prefix}-{part}?idx{dimensions}-ubyte.gz"]
        for part, dimensions in (("images", 1 + len(article.shape)), ("labels", 1))
    )
    found = _find(root, [*_parquet_names(split), *images], article.name)
    if found[0].suffix == ".parquet":
        return _decode_table(article, _read_parquet(found, article.columns), _shown(found[0]))
    return _read_idx(found[0], article.shape), _read_idx(_find(root, labels, article.name)[0], ()).astype(np.int64)


def _read_idx(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """An IDX file (0, 0, type, number of dimensions, big-endian sizes, then the bytes) as uint8 (N, *shape)."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(path, error) from error
    start = 4 * (2 + len(shape))
    sizes = tuple(int(size) for size in np.frombuffer(data[4:start], ">u4")) if len(data) >= start else ()
    if data[:4] != bytes((0, 0, 8, 1 + len(shape))) or sizes[1:] != shape:
        raise _damaged(path, f"not an IDX file of bytes with items of {shape}")
    if len(data) - start != math.prod(sizes):
        raise _damaged(path, f"{len(data):,} bytes do not hold the {sizes[0]:,} items that it announces")
    return np.frombuffer(data, np.uint8, offset=start).reshape(sizes).copy()  # a copy: torch wants it writable


def _decode_table(article: _ImageSource, table: Any, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of a pyarrow table whose image column holds encoded files, as the hub's image sets do."""
    images = np.empty((table.num_rows, *article.shape), np.uint8)
    for row, item in enumerate(table.column(article.columns[0]).to_pylist()):
        try:
            picture = np.asarray(Image.open(io.BytesIO(item["bytes"])))
        except (OSError, TypeError, KeyError) as error:
            raise PomologyError(f"{where}: image {row} cannot be decoded: {_line(error)}") from error
        if picture.shape != article.shape:
            raise PomologyError(f"{where}: image {row} is {picture.shape}, should be {article.shape}")
        images[row] = picture
    return images, table.column(article.columns[1]).to_numpy().astype(np.int64)


def _bundled_digits(split: str) -> np.ndarray:
    """The bundled digits of one split, a row each: 64 pixels from 0 to 16, and the label."""
    with _sample("digits.csv.gz") as file, gzip.open(file, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.uint8)
    order = np.random.default_rng(0).permutation(len(table))
    return table[order[300:] if split == "train" else order[:300]]


def _stand_in_digits(count: int, split: str) -> tuple[np.ndarray, np.ndarray]:
    """`count` digits of 28 × 28 from the bundled 8 × 8 ones: turned, sheared, scaled, shifted, thicker and thinner.

    Train and test descend from different originals. The first n are the same for every `count`.
    """
    table = _bundled_digits(split)
    # a margin, so that strokes at the edge fade out instead of being cut
    originals = [Image.fromarray(np.pad(row.reshape(8, 8) * np.uint8(15), 1)) for row in table[:, :64]]
    draws = np.random.default_rng([1, SPLITS.index(split)]).random((count, 8))
    which = (draws[:, 0] * len(table)).astype(np.int64)
    angle, shear, x_shift, y_shift = (2 * draws[:, 1:5] - 1).T * [[math.radians(15)], [0.2], [1.5], [1.5]]
    scale = 0.36 + 0.10 * draws[:, 5]  # 8 pixels of the original become 17 to 22
    width = scale * (0.95 + 0.15 * draws[:, 6])
    a, b = width * np.cos(angle), shear * scale - width * np.sin(angle)
    d, e = scale * np.sin(angle), scale * np.cos(angle)
    c, f = 5 - a * (14 + x_shift) - b * (14 + y_shift), 5 - d * (14 + x_shift) - e * (14 + y_shift)
    maps = np.stack((a, b, c, d, e, f), axis=1).tolist()  # from the 28 × 28 pixels to those of the padded original
    images = np.empty((count, 28, 28), np.uint8)
    for row, (original, affine) in enumerate(zip(which, maps, strict=True)):
        picture = originals[original].transform((28, 28), Image.Transform.AFFINE, affine, Image.Resampling.BICUBIC)
        images[row] = np.asarray(picture)
    threshold = (45 + 45 * draws[:, 7]).astype(np.float32).reshape(-1, 1, 1)
    for start in range(0, count, 4096):  # by pieces: the floating-point copy of all would take 190 MB
        piece = slice(start, start + 4096)
        images[piece] = np.clip((images[piece] - threshold[piece]) * np.float32(2.2), 0, 255)
    return images, table[which, 64].astype(np.int64)


_MNIST = _ImageSource(
    "MNIST", "ylecun/mnist", "mnist", (28, 28), 10, {"train": 60_000, "test": 10_000}, stand_in=_stand_in_digits
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


# --- text


@dataclass(frozen=True, eq=False)
class Corpus:
    """Text as word numbers, int64 (tokens,) each; `words[number]` is the word, "<eos>" ends a line."""

    name: str
    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    words: tuple[str, ...]
    kind: str
    origin: str

    @property
    def vocabulary(self) -> int:
        return len(self.words)


def wikitext2(source: str = "auto", folder: Folder = None, size: int | None = None) -> Corpus:
    """WikiText-2 by words, 33,278 different ones: 2,088,628 tokens to train, 217,646 to validate, 245,569 to test.

    The hub dataset Salesforce/wikitext, wikitext-2-v1, in which rare words are replaced; the raw one has more words.
    """
    hub_splits = {"valid": "validation"}
    (tokens, words), kind, origin = _obtain(
        ("WikiText-2", "Salesforce/wikitext", "wikitext-2-v1"),
        (source, folder, size),
        _read_text_folder,
        lambda tables: _number_words({p: _lines(tables[hub_splits.get(p, p)]) for p in WIKITEXT2_TOKENS}),
        _stand_in_text,
    )
    counts = {part: len(numbers) for part, numbers in tokens.items()}
    if 0 in counts.values():
        raise PomologyError(f"{origin}: a part is empty ({counts}): get it again")
    if counts != WIKITEXT2_TOKENS or len(words) != WIKITEXT2_VOCABULARY:
        found, expected = (" + ".join(f"{count:,}" for count in c.values()) for c in (counts, WIKITEXT2_TOKENS))
        origin += f"; {found} tokens, {len(words):,} words where the article has {expected}, {WIKITEXT2_VOCABULARY:,}"
    first = {part: numbers[:size] for part, numbers in tokens.items()}
    return Corpus("WikiText-2", **first, words=words, kind=kind, origin=origin)


def _read_text_folder(root: Path) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    lines: dict[str, Iterable[str]] = {}
    for part in WIKITEXT2_TOKENS:
        found = _find(root, [*_parquet_names(part), f"wiki.{part}.tokens", f"{part}.txt"], "WikiText-2")
        if found[0].suffix == ".parquet":
            lines[part] = _lines(_read_parquet(found, ("text",)))
            continue
        try:
            with found[0].open(encoding="utf-8") as file:
                lines[part] = file.readlines()
        except (OSError, UnicodeDecodeError) as error:
            raise _damaged(found[0], error) from error
    return _number_words(lines)


def _lines(table: Any) -> list[str]:
    return table.column("text").to_pylist()


def _number_words(lines: Mapping[str, Iterable[str]]) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Words by order of appearance, one `<eos>` behind every line, empty ones too: the article's counts need that."""
    numbers: dict[str, int] = {}
    tokens = {}
    for part, rows in lines.items():
        words = (word for row in rows for word in (*row.split(), "<eos>"))
        tokens[part] = np.array([numbers.setdefault(word, len(numbers)) for word in words], np.int64)
    return tokens, tuple(numbers)


def _stand_in_text() -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """A text of the article's length and vocabulary: a Markov chain over Python's language reference, and rare words.

    Nine tokens in ten follow the chain of word pairs found in the reference; the tenth is one of the words that the
    reference lacks, by Zipf's law. Every word occurs in `train`. Releases of Python differ a little in the reference.
    """
    from pydoc_data.topics import topics

    numbers: dict[str, int] = {}
    paragraphs = [part.split() for topic in sorted(topics) for part in topics[topic].split("\n\n")]
    reference = np.array([numbers.setdefault(word, len(numbers)) for part in paragraphs for word in (*part, "<eos>")])
    total, known = sum(WIKITEXT2_TOKENS.values()), len(numbers)
    generator = np.random.default_rng(0)

    # Many chains at once. One step: go to a random place where the current word stands, and read the word behind it.
    places = np.argsort(reference, kind="stable")
    count = np.bincount(reference)
    start = np.cumsum(count) - count
    following = np.roll(reference, -1)  # round in a circle: no chain can get stuck at the end
    chains = 4096
    text = np.empty((-(-total // chains), chains), np.int64)
    text[0] = generator.choice(reference, chains)
    for step in range(1, len(text)):
        word = text[step - 1]
        text[step] = following[places[start[word] + (generator.random(chains) * count[word]).astype(np.int64)]]
    tokens = text.T.ravel()[:total]

    rare = np.cumsum(1 / np.arange(10, 10 + WIKITEXT2_VOCABULARY - known))
    where = np.flatnonzero(generator.random(total) < 0.1)
    ranks = np.searchsorted(rare, generator.random(len(where)) * rare[-1], side="right")
    tokens[where] = known + np.minimum(ranks, len(rare) - 1)  # the minimum: rounding must not reach behind the last

    train = tokens[: WIKITEXT2_TOKENS["train"]]  # a view: what follows changes `tokens`
    occurrences = np.bincount(train, minlength=WIKITEXT2_VOCABULARY)
    missing = np.flatnonzero(occurrences == 0)
    frequent = np.flatnonzero(occurrences[train] > 1000)  # a word that often here will not miss a few
    train[generator.choice(frequent, len(missing), replace=False)] = missing
    parts = np.split(tokens, np.cumsum(list(WIKITEXT2_TOKENS.values()))[:-1])
    words = (*numbers, *(f"rare-{number}" for number in range(known, WIKITEXT2_VOCABULARY)))
    return dict(zip(WIKITEXT2_TOKENS, parts, strict=True)), words


def batchify(tokens: np.ndarray, batch_size: int) -> np.ndarray:
    """Tokens (n,) in `batch_size` columns of running text, (n // batch_size, batch_size); the rest is dropped."""
    rows = len(tokens) // batch_size
    return np.ascontiguousarray(tokens[: rows * batch_size].reshape(batch_size, rows).T)


class LanguageBatches:
    """(data, target) along the rows of what `batchify` made: data (≤ bptt, batch), target flat, one row further.

    Takes a numpy array or a tensor on any device: slices it, copies nothing but what flattening needs.
    """

    def __init__(self, tokens: Any, bptt: int = 35):
        self.tokens, self.bptt = tokens, bptt

    def __len__(self) -> int:
        return max(0, -(-(len(self.tokens) - 1) // self.bptt))

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        last = len(self.tokens) - 1
        for start in range(0, last, self.bptt):
            end = min(start + self.bptt, last)
            yield self.tokens[start:end], self.tokens[start + 1 : end + 1].reshape(-1)


# --- photographs


def dcgan_transform(picture: Image.Image) -> Any:
    """Shorter side to 64, then the middle 64 × 64, as float32 (3, 64, 64) from -1 to 1: what the DCGAN is fed."""
    side, shorter = 64, min(picture.size)
    width, height = (side * length // shorter for length in picture.size)
    left, top = round((width - side) / 2), round((height - side) / 2)
    picture = picture.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + side, top + side))
    return to_tensor(picture).sub(0.5).div(0.5)


class JPEGSet:
    """Photographs decoded one by one when asked for: items are (transform(picture), 0).

    `store[i]` gives a file's bytes or its path; a store smaller than `length` is used again and again.
    """

    def __init__(self, name: str, store: Sequence[bytes | str] | _JPEGDatabase, length: int, kind: str, origin: str):
        self.name, self.store, self.length, self.kind, self.origin = name, store, length, kind, origin
        self.transform = dcgan_transform

    def __len__(self) -> int:
        return self.length

    def picture(self, index: int) -> Image.Image:
        """The decoded photograph, RGB. Raises PomologyError if its file is damaged."""
        if not 0 <= index < self.length:
            raise IndexError(index)
        item = self.store[index % len(self.store)]
        try:
            return Image.open(io.BytesIO(item) if isinstance(item, bytes) else item).convert("RGB")
        except OSError as error:
            where = f"image {index}" if isinstance(item, bytes) else _shown(Path(item))
            raise PomologyError(f"{self.name}: {where} cannot be decoded: {_line(error)}") from error

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(self.picture(index)), 0


class _JPEGDatabase:
    """The values of an lmdb, by the order of their keys."""

    def __init__(self, folder: Path):
        import lmdb

        self.path = str(folder.resolve())
        try:
            with _lmdb_environment(self.path).begin() as transaction, transaction.cursor() as cursor:
                self.keys = list(cursor.iternext(keys=True, values=False))
        except (lmdb.Error, OSError) as error:
            raise _damaged(folder / "data.mdb", error) from error
        if not self.keys:
            raise _damaged(folder / "data.mdb", "holds no images")

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> bytes:
        with _lmdb_environment(self.path).begin() as transaction:
            return transaction.get(self.keys[index])


_lmdb_environments: dict[str, tuple[int, Any]] = {}  # path -> process, handle: lmdb opens nothing twice in one process


def _lmdb_environment(path: str) -> Any:
    """The handle of this process, which no pickle can carry and no child may use after fork."""
    import lmdb

    process, environment = _lmdb_environments.get(path, (None, None))
    if process == os.getpid():
        return environment
    if environment is not None:
        environment.close()  # the parent's
    environment = lmdb.open(path, readonly=True, lock=False, create=False, readahead=False)
    # lmdb maps the file, and reading a page that is not there kills the process. The last few need not be there: those
    # that were freed in the transaction that took them.
    needed = (environment.info()["last_pgno"] - 16) * environment.stat()["psize"]
    if (present := os.path.getsize(f"{path}/data.mdb")) < needed:
        environment.close()
        raise OSError(f"{present:,} bytes, should be {needed:,} at the least")
    _lmdb_environments[path] = os.getpid(), environment
    return environment


def lsun_classroom(source: str = "auto", folder: Folder = None, size: int | None = None) -> JPEGSet:
    """LSUN classroom: 168,103 photographs with a shorter side of 256, JPEG quality 75, as (3, 64, 64) from -1 to 1.

    No hub has it: `folder` is the only way to the real one (`classroom_train_lmdb`, 3.1 GB, as fyu/lsun fetches it).
    """
    names = ("LSUN classroom", None, "classroom_train_lmdb")
    store, kind, origin = _obtain(names, (source, folder, size), _read_jpeg_folder, None, _stand_in_jpegs)
    length = len(store) if kind == "real" else LSUN_CLASSROOM_IMAGES
    if length != LSUN_CLASSROOM_IMAGES:
        origin += f"; {length:,} images where the article has {LSUN_CLASSROOM_IMAGES:,}"
    return JPEGSet(names[0], store, min(size or length, length), kind, origin)


def _read_jpeg_folder(root: Path) -> list[str] | _JPEGDatabase:
    if (root / "data.mdb").is_file():
        return _JPEGDatabase(root)
    paths = sorted(str(path) for path in root.rglob("*") if path.suffix.lower() in _JPEG_SUFFIXES)
    if not paths:
        raise PomologyError(f"LSUN classroom: neither classroom_train_lmdb/data.mdb nor JPEG files in {_shown(root)}")
    return paths


def _stand_in_jpegs() -> list[bytes]:
    """Cut-outs of the two bundled photographs: turned, mirrored, scaled, recoloured; 341 × 256, every fifth upright."""
    photographs = []
    for name in ("china.jpg", "flower.jpg"):
        with _sample(name) as file:
            photographs.append(Image.open(file).convert("RGB"))
    generator = np.random.default_rng(0)
    jpegs = []
    for number in range(STAND_IN_PHOTOGRAPHS):
        photograph = photographs[number % 2]
        width, height = (256, 341) if number % 5 == 0 else (341, 256)
        scale, angle = generator.uniform(0.6, 1.1), math.radians(generator.uniform(-10, 10))
        mirror = generator.choice((-1, 1))
        c, s = scale * math.cos(angle), scale * math.sin(angle)
        half_width, half_height = (width * c + height * abs(s)) / 2, (width * abs(s) + height * c) / 2
        x = generator.uniform(half_width, photograph.width - half_width)
        y = generator.uniform(half_height, photograph.height - half_height)
        shift_x = x - mirror * c * width / 2 + s * height / 2
        shift_y = y - mirror * s * width / 2 - c * height / 2
        affine = (mirror * c, -s, shift_x, mirror * s, c, shift_y)
        picture = photograph.transform((width, height), Image.Transform.AFFINE, affine, Image.Resampling.BILINEAR)
        red, green, blue = generator.uniform(0.7, 1.2) * generator.uniform(0.85, 1.15, 3)
        picture = picture.convert("RGB", (red, 0, 0, 0, 0, green, 0, 0, 0, 0, blue, 0))
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=75)
        jpegs.append(file.getvalue())
    return jpegs


# --- where it comes from


def _obtain(
    names: tuple[str, str | None, str],
    request: tuple[str, Folder, int | None],
    from_folder: Callable[[Path], Any],
    from_tables: Callable[[dict[str, Any]], Any] | None,
    stand_in: Callable[[], Any],
) -> tuple[Any, str, str]:
    """(data, kind, origin) of `names` (dataset, hub id, hub configuration) for `request` (source, folder, size).

    `from_folder` gets the folder, or its subfolder named as the configuration; `from_tables` pyarrow tables by split.
    """
    (name, hub, config), (source, folder, size) = names, request
    if source not in SOURCES:
        raise PomologyError(f"{name} source: {source!r} should be one of {', '.join(SOURCES)}")
    if size is not None and size < 1:
        raise PomologyError(f"{name} size: {size} should be at least 1, or None for all")
    first = "" if size is None else f"; the first {size:,} only"
    if source == "stand-in":
        return stand_in(), "stand-in", f"stand-in for {name}: asked for{first}"
    if folder:
        root = Path(folder).expanduser()
        if not root.is_dir():
            raise PomologyError(f"{name} folder: {_shown(root)} is not a folder")
        root = root / config if (root / config).is_dir() else root
        for file in root.iterdir():
            if file.suffix in _UNFINISHED:
                raise _damaged(file, "a download that did not end")
        return from_folder(root), "real", f"{name}, real: local folder{first}"
    try:
        if hub is None:
            raise _Unobtainable("no folder was named, and no hub has it")
        tables, how = _hub_tables(hub, config)
    except _Unobtainable as error:
        if source == "real":
            remedy = "name a local folder that holds it, or set the source to auto or stand-in"
            raise PomologyError(f"{name}: no real data: {error}; {remedy}") from error
        return stand_in(), "stand-in", f"stand-in for {name}: {error}{first}"
    return from_tables(tables), "real", f"{name}, real: {hub} ({config}), {how}{first}"


def _hub_tables(hub: str, config: str) -> tuple[dict[str, Any], str]:
    """Every split of a Hugging Face dataset as a pyarrow table, and whether it was "cached" or "downloaded".

    The cache is read first and without network: `datasets` by itself would try to connect for 23 s where there is none.
    Raises _Unobtainable if the dataset is neither cached nor reachable, PomologyError if what there is is damaged.
    """
    from huggingface_hub import constants

    cache = Path(os.environ.get("HF_DATASETS_CACHE") or Path(constants.HF_HOME) / "datasets")
    found = sorted((cache / hub.replace("/", "___") / config).glob("*/*/"))  # version / hash
    if any(path.suffix != ".incomplete" for path in found):
        return _load(hub, config, cache, offline=True, blame=found[-1]), "cached"
    problem = _hub_problem(hub)
    if problem is None:
        return _load(hub, config, cache, offline=False, blame=cache), "downloaded"
    if found:
        raise _damaged(found[-1], f"a download that did not end, and {problem}")
    raise _Unobtainable(f"not in the cache, and {problem}")


def _load(hub: str, config: str, cache: Path, offline: bool, blame: Path) -> dict[str, Any]:
    import datasets
    import pyarrow
    from huggingface_hub.errors import HTTPError

    datasets.disable_progress_bars()  # they and the warnings would stand in the rendered notebook
    datasets.logging.set_verbosity_error()
    was_offline, datasets.config.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE, offline
    try:
        splits = datasets.load_dataset(hub, config, cache_dir=str(cache))
        return {name: split.with_format("arrow")[:] for name, split in splits.items()}
    except (HTTPError, ConnectionError, TimeoutError, datasets.exceptions.DatasetNotFoundError) as error:
        raise _Unobtainable(f"not in the cache, and the download failed ({type(error).__name__})") from error
    except (datasets.exceptions.DatasetsError, pyarrow.ArrowException, OSError, ValueError, KeyError) as error:
        raise _damaged(blame, error) from error
    finally:
        datasets.config.HF_HUB_OFFLINE = was_offline


def _hub_problem(hub: str, timeout_s: float = 3.0) -> str | None:
    """Why the hub cannot be asked now, or None. Through its own client, which knows the proxy and the certificates."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        if os.environ.get(name, "").upper() in {"1", "ON", "YES", "TRUE"}:
            return f"{name} is set"
    from huggingface_hub import constants, get_session
    from huggingface_hub.errors import HTTPError

    answers: list[str | None] = []

    def ask() -> None:
        try:
            url = f"{constants.ENDPOINT}/datasets/{hub}/resolve/main/README.md"
            status = get_session().head(url, timeout=timeout_s).status_code
            answers.append(None if status < 400 else f"the Hugging Face hub answered {status}")
        except (HTTPError, OSError, ValueError) as error:
            answers.append(f"no connection to the Hugging Face hub ({type(error).__name__})")

    thread = threading.Thread(target=ask, daemon=True)  # because looking up a name has no time limit of its own
    thread.start()
    thread.join(timeout_s + 0.5)
    return answers[0] if answers else f"no answer from the Hugging Face hub within {timeout_s:g} s"


def _parquet_names(split: str) -> list[str]:
    return [f"{split}*.parquet", f"*-{split}*.parquet", f"{split}*/*.parquet"]


def _find(root: Path, patterns: list[str], name: str) -> list[Path]:
    """The files below `root` that match the first pattern that any match; all of them in one folder, in order."""
    for pattern in patterns:
        if found := sorted(path for path in root.rglob(pattern) if path.is_file()):
            if len({path.parent for path in found}) > 1:
                raise PomologyError(f"{name}: {pattern} is in several folders below {_shown(root)}: name one of them")
            return found
    raise PomologyError(f"{name}: nothing to read in {_shown(root)}: expected one of {', '.join(patterns)}")


def _read_parquet(paths: list[Path], columns: tuple[str, ...]) -> Any:
    import pyarrow
    from pyarrow.parquet import ParquetFile

    tables = []
    for path in paths:
        try:
            table = ParquetFile(path).read()
        except (pyarrow.ArrowException, OSError) as error:
            raise _damaged(path, error) from error
        if not {*columns} <= {*table.column_names}:
            raise PomologyError(f"{_shown(path)}: columns {table.column_names}: expected {' and '.join(columns)}")
        tables.append(table.select(list(columns)))
    return pyarrow.concat_tables(tables)


def _sample(name: str) -> Any:
    return (files("pomology") / "resources" / "samples" / name).open("rb")


def _shown(path: Path) -> str:
    """A path that may stand in a shared notebook: without the name of the person whose home it is in."""
    path, home = path.absolute(), Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _line(error: Exception | str) -> str:
    text = " ".join(str(error).split()).replace(str(Path.home()), "~") or type(error).__name__
    return text if len(text) <= 200 else text[:200] + "…"


def _damaged(path: Path, why: Exception | str) -> PomologyError:
    return PomologyError(f"{_shown(path)}: damaged or half downloaded ({_line(why)}): delete it and get it again")
