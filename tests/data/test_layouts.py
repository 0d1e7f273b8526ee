"""Datasets in the files that torchvision downloads: each layout, other datasets, damaged files."""

import functools
import gzip
import hashlib
import io
import pickle
import shutil
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from offline import cut_off, one_line_error
from torchvision import datasets

from pomology.data import hub, images, layouts

COUNTS = {"train": 30, "test": 20}
PREFIX = {"train": "train", "test": "t10k"}
BATCHES = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}


@pytest.fixture(autouse=True)
def network(monkeypatch, tmp_path_factory):
    """Block the network, and list the requests."""
    monkeypatch.delenv(hub.FOLDER, raising=False)
    return cut_off(monkeypatch, tmp_path_factory)


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


# MNIST --------------------------------------------------------------------------------------------


def idx(array: np.ndarray) -> bytes:
    """Write an array as http://yann.lecun.com/exdb/mnist describes the format."""
    return (
        bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + bytes(array)
    )


def drawn(seed: int) -> dict[str, np.ndarray]:
    """Return invented images and labels by the names of their files."""
    generator = np.random.default_rng(seed)
    arrays = {}
    for split, count in COUNTS.items():
        shape = (count, 28, 28)
        arrays[f"{PREFIX[split]}-images-idx3-ubyte"] = generator.integers(0, 256, shape, np.uint8)
        arrays[f"{PREFIX[split]}-labels-idx1-ubyte"] = generator.integers(0, 10, count, np.uint8)
    return arrays


DIGITS = drawn(0)
SMALL = replace(
    images.MNIST,
    shapes={split: (count, 28, 28) for split, count in COUNTS.items()},
    files=replace(layouts.MNIST, checksums={name: md5(idx(DIGITS[name])) for name in DIGITS}),
)


def write_idx(folder: Path, packed: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in DIGITS.items():
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
        else:
            (folder / name).write_bytes(idx(array))


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("layout", ["MNIST/raw", "MNIST", "raw", "."])
def test_idx_files_are_read_at_each_level(tmp_path, network, packed, layout):
    write_idx(tmp_path / "data" / layout, packed)
    for folder in (tmp_path / "data", tmp_path / "data" / layout):
        for split in COUNTS:
            real = images.image_set(SMALL, "auto", str(folder), 0, split)
            assert np.array_equal(real.images, DIGITS[f"{PREFIX[split]}-images-idx3-ubyte"])
            assert np.array_equal(real.labels, DIGITS[f"{PREFIX[split]}-labels-idx1-ubyte"])
            assert (real.kind, real.origin) == ("real", "MNIST, real: local folder, idx files")
    assert not network


def test_idx_files_are_read_as_torchvision_reads_them(tmp_path):
    write_idx(tmp_path / "MNIST/raw", packed=False)
    for split in COUNTS:
        real = images.image_set(SMALL, "real", str(tmp_path), 7, split)
        theirs = datasets.MNIST(tmp_path, train=split == "train")
        assert np.array_equal(real.images, theirs.data[:7].numpy())
        assert np.array_equal(real.labels, theirs.targets[:7].numpy())
        assert real.images.flags.writeable and real.labels.dtype == np.int64
        assert real.origin == "MNIST, real: local folder, idx files; the first 7 only"


def test_each_dataset_is_read_from_its_own_folder(tmp_path):
    clothes = drawn(1)
    checksums = {name: md5(idx(array)) for name, array in clothes.items()}
    files = replace(layouts.FASHION_MNIST, checksums=checksums)
    fashion = replace(images.FASHION_MNIST, shapes=SMALL.shapes, files=files)
    write_idx(tmp_path / "MNIST/raw", packed=False)
    (tmp_path / "FashionMNIST/raw").mkdir(parents=True)
    for name, array in clothes.items():
        (tmp_path / "FashionMNIST/raw" / name).write_bytes(idx(array))
    for dataset, arrays in ((SMALL, DIGITS), (fashion, clothes)):
        real = images.image_set(dataset, "real", str(tmp_path), 0)
        assert np.array_equal(real.images, arrays["train-images-idx3-ubyte"])
        assert real.origin == f"{dataset.name}, real: local folder, idx files"


@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_of_another_dataset_are_refused(tmp_path, monkeypatch, packed):
    fashion = replace(SMALL, name="Fashion-MNIST", files=layouts.FASHION_MNIST)
    for checksum in SMALL.files.checksums.values():
        monkeypatch.setitem(layouts.OWNERS, checksum, "MNIST")
    write_idx(tmp_path, packed)
    words = "is of MNIST, not of Fashion-MNIST"
    one_line_error(lambda: images.image_set(fashion, "auto", str(tmp_path), 0), words)
    # A folder for all datasets may have one of them at its top.
    monkeypatch.setenv(hub.FOLDER, str(tmp_path))
    assert images.image_set(fashion, "auto", "", 0).kind == "stand-in"
    assert images.image_set(SMALL, "auto", "", 0).kind == "real"


def test_only_the_published_values_are_real_data(tmp_path):
    shapes = {"images-idx3": (60_000, 28, 28), "labels-idx1": (60_000,)}
    for kind, shape in shapes.items():
        content = gzip.compress(idx(np.zeros(shape, np.uint8)), compresslevel=1)
        (tmp_path / f"train-{kind}-ubyte.gz").write_bytes(content)
    for load in (images.mnist, images.fashion_mnist):
        call = functools.partial(load, "auto", str(tmp_path))
        one_line_error(call, "damaged", "its values are not those")


IMAGES = "train-images-idx3-ubyte"
LABELS = "train-labels-idx1-ubyte"
HEAD = idx(DIGITS[IMAGES])[:16]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (IMAGES, idx(DIGITS[LABELS]), "magic number 0x00000801, expected 0x00000803"),
        (LABELS, idx(DIGITS[IMAGES]), "magic number 0x00000803, expected 0x00000801"),
        (IMAGES, b"<!DOCTYPE html><html>", "magic number 0x3c21444f, expected 0x00000803"),
        (IMAGES, idx(DIGITS[IMAGES][:29]), "shape (29, 28, 28), expected (30, 28, 28)"),
        (LABELS, idx(DIGITS[LABELS][:29]), "shape (29,), expected (30,)"),
        (IMAGES, idx(DIGITS[IMAGES])[:-5], "23,531 bytes, expected 23,536"),
        (IMAGES, idx(DIGITS[IMAGES]) + b"?", "more than 23,536 bytes"),
        (LABELS, b"", "0 bytes, expected 38"),
        (IMAGES, HEAD + bytes(30 * 28 * 28), "its values are not those of MNIST"),
        (LABELS, idx(9 - DIGITS[LABELS]), "its values are not those of MNIST"),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
def test_a_damaged_idx_file_is_an_error(tmp_path, packed, name, content, words):
    write_idx(tmp_path / "raw", packed)
    path = tmp_path / "raw" / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(content) if packed else content)
    load = functools.partial(images.image_set, SMALL, "auto", str(tmp_path), 0)
    one_line_error(load, str(path), words, "download it again")


def test_a_damaged_gz_file_is_an_error(tmp_path):
    write_idx(tmp_path, packed=True)
    path = tmp_path / f"{IMAGES}.gz"
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-7] ^= 1  # of the checksum
    for content in (whole[:-9], whole[:2000], bytes(flipped), idx(DIGITS[IMAGES]), b"", b"PK"):
        path.write_bytes(content)
        one_line_error(
            lambda: images.image_set(SMALL, "auto", str(tmp_path), 0), f"{path}: damaged"
        )
    path.write_bytes(whole)
    assert images.image_set(SMALL, "auto", str(tmp_path), 0).kind == "real"


def test_a_folder_without_the_files_is_an_error_that_says_which_are_read(tmp_path):
    def load(dataset):
        return lambda: images.image_set(dataset, "auto", str(tmp_path), 0)

    folders = "(unpacked or .gz) in it, in raw/, in MNIST/ or in MNIST/raw/, or train-00000-of-"
    one_line_error(load(images.MNIST), f"{tmp_path} lacks it; expected", IMAGES, LABELS, folders)
    one_line_error(load(images.FASHION_MNIST), "in FashionMNIST/raw/, or train-00000-of-")
    parts = "data_batch_1 to data_batch_5 in it or in cifar-10-batches-py/, or cifar-10-python.tar"
    one_line_error(load(images.CIFAR10), parts, "uoft-cs/cifar10")
    write_idx(tmp_path / "raw", packed=False)
    (tmp_path / "raw" / LABELS).unlink()
    one_line_error(load(SMALL), f"{tmp_path}/raw lacks {LABELS} (unpacked or .gz)")


# CIFAR-10 -----------------------------------------------------------------------------------------


def batch(pixels: np.ndarray, labels: list[int]) -> bytes:
    """Write a batch as CIFAR-10's are, a pickle by Python 2: its strings are of bytes."""

    def string(content: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(content)) + content

    numbers = b"".join(b"K" + bytes((label,)) for label in labels)
    shape = b"".join(b"M" + struct.pack("<H", length) for length in pixels.shape)
    dtype = b"cnumpy\ndtype\n" + string(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + string(b"|") + b"NNN" + b"J\xff\xff\xff\xff" * 2 + b"K\x00tb"
    empty = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85" + string(b"b") + b"tR"
    )
    array = empty + b"(K\x01" + shape + b"\x86" + dtype + b"\x89" + string(bytes(pixels)) + b"tb"
    items = string(b"labels") + b"](" + numbers + b"e" + string(b"data") + array
    return b"\x80\x02}(" + items + b"u."


def invented() -> tuple[dict[str, bytes], dict[str, tuple[np.ndarray, list[int]]]]:
    """Return batches of four images, and the images and labels of each split."""
    generator = np.random.default_rng(2)
    contents = {}
    arrays = {}
    for split, names in BATCHES.items():
        colours = generator.integers(0, 256, (4 * len(names), 32, 32, 3), np.uint8)
        labels = generator.integers(0, 10, 4 * len(names)).tolist()
        arrays[split] = (colours, labels)
        for number, name in enumerate(names):
            part = slice(4 * number, 4 * number + 4)
            planes = np.stack([colours[part, ..., channel] for channel in range(3)], 1)
            contents[name] = batch(planes.reshape(4, 3072), labels[part])
    return contents, arrays


CONTENTS, PHOTOGRAPHS = invented()
CHECKSUMS = {split: {name: md5(CONTENTS[name]) for name in BATCHES[split]} for split in BATCHES}
SMALL_CIFAR10 = replace(
    images.CIFAR10,
    shapes={"train": (20, 32, 32, 3), "test": (4, 32, 32, 3)},
    files=replace(layouts.CIFAR10, checksums=CHECKSUMS),
)


def write_batches(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in CONTENTS.items():
        (folder / name).write_bytes(content)


def write_archive(path: Path, contents: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in reversed(contents.items()):  # not by name in the real one, either
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def load_cifar10(folder, split="train"):
    return images.image_set(SMALL_CIFAR10, "auto", str(folder), 0, split)


@pytest.mark.parametrize("layout", ["extracted", "archive", "both"])
def test_cifar10_is_read_from_batches_and_from_the_archive(tmp_path, network, layout):
    folders = [tmp_path]
    if layout != "archive":
        write_batches(tmp_path / "cifar-10-batches-py")
        folders.append(tmp_path / "cifar-10-batches-py")
    if layout != "extracted":
        write_archive(tmp_path / "cifar-10-python.tar.gz", CONTENTS)
    before = sorted(tmp_path.rglob("*"))
    for folder in folders:
        for split, (colours, labels) in PHOTOGRAPHS.items():
            real = load_cifar10(folder, split)
            assert np.array_equal(real.images, colours) and real.labels.tolist() == labels
            assert real.images.flags.c_contiguous and real.labels.dtype == np.int64
            kind = "cifar-10-python.tar.gz" if layout == "archive" else "cifar-10-batches-py"
            assert real.origin == f"CIFAR-10, real: local folder, {kind}"
    assert sorted(tmp_path.rglob("*")) == before and not network


def test_cifar10_is_read_as_torchvision_reads_it(tmp_path, monkeypatch):
    meta = pickle.dumps({"label_names": []})
    write_batches(tmp_path / "cifar-10-batches-py")
    (tmp_path / "cifar-10-batches-py/batches.meta").write_bytes(meta)
    monkeypatch.setattr(datasets.CIFAR10, "train_list", [*CHECKSUMS["train"].items()])
    monkeypatch.setattr(datasets.CIFAR10, "test_list", [*CHECKSUMS["test"].items()])
    monkeypatch.setitem(datasets.CIFAR10.meta, "md5", md5(meta))
    for split in BATCHES:
        theirs = datasets.CIFAR10(tmp_path, train=split == "train")
        real = load_cifar10(tmp_path, split)
        assert np.array_equal(real.images, theirs.data)
        assert real.labels.tolist() == theirs.targets


def test_the_checksums_of_cifar10_are_torchvision_s():
    theirs = {"train": datasets.CIFAR10.train_list, "test": datasets.CIFAR10.test_list}
    assert images.CIFAR10.files.checksums == {split: dict(theirs[split]) for split in theirs}
    assert images.CIFAR10.files.folder == datasets.CIFAR10.base_folder
    assert images.CIFAR10.files.archive == datasets.CIFAR10.filename


class Hostile:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("packed", [True, False])
def test_no_code_in_another_pickle_is_run(tmp_path, packed):
    victim = tmp_path / "victim"
    contents = CONTENTS | {"data_batch_3": pickle.dumps(Hostile(victim))}
    if packed:
        write_archive(tmp_path / "cifar-10-python.tar.gz", contents)
    else:
        write_batches(tmp_path)
        (tmp_path / "data_batch_3").write_bytes(contents["data_batch_3"])
    one_line_error(lambda: load_cifar10(tmp_path), "data_batch_3: damaged", "MD5")
    assert not victim.exists()
    pickle.loads(contents["data_batch_3"])
    assert victim.exists()


def test_damaged_batches_and_archives_are_errors(tmp_path):
    write_batches(tmp_path)
    (tmp_path / "data_batch_5").write_bytes(CONTENTS["data_batch_5"][:-1])
    one_line_error(lambda: load_cifar10(tmp_path), "data_batch_5: damaged", "MD5")
    assert load_cifar10(tmp_path, "test").kind == "real"
    (tmp_path / "data_batch_5").unlink()
    one_line_error(lambda: load_cifar10(tmp_path), f"{tmp_path} lacks data_batch_5")

    packed = tmp_path / "packed"
    packed.mkdir()
    archive = packed / "cifar-10-python.tar.gz"
    few = {name: CONTENTS[name] for name in CONTENTS if name != "data_batch_2"}
    write_archive(archive, few)
    one_line_error(lambda: load_cifar10(packed), "without cifar-10-batches-py/data_batch_2")
    write_archive(archive, CONTENTS)
    whole = archive.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:300], b"<html>", b"", gzip.compress(b"x")):
        archive.write_bytes(content)
        one_line_error(lambda: load_cifar10(packed), f"{archive}: damaged")
    shutil.rmtree(packed)
    packed.mkdir()
    one_line_error(lambda: load_cifar10(packed), "lacks it; expected")
