"""Datasets and stand-ins: formats, damage, absence of network, counts, learnability, and the items as the article's."""

import gzip
import http.server
import io
import json
import pickle
import random
import struct
import subprocess
import sys
import threading
from functools import partial

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from offline import cut_off, one_line_error
from PIL import Image

from pomology.data import hub as data_hub
from pomology.data import images as data_images
from pomology.data import photographs, synthetic
from pomology.data import text as data_text

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _no_network(monkeypatch, tmp_path_factory):
    return cut_off(monkeypatch, tmp_path_factory)


@pytest.fixture(scope="module")
def digits():
    return data_images.mnist("stand-in", size=6000)


@pytest.fixture(scope="module")
def corpus():
    return data_text.wikitext2("stand-in")


IMAGE_SETS = {
    "ylecun/mnist": data_images.mnist,
    "zalando-datasets/fashion_mnist": data_images.fashion_mnist,
    "uoft-cs/cifar10": data_images.cifar10,
}


def digit_arrays(count=20, seed=3):
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (count, 28, 28), np.uint8), np.arange(count, dtype=np.uint8) % 10


def write_idx(path, array):
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    (gzip.open if path.suffix == ".gz" else open)(path, "wb").write(header + array.tobytes())


def write_mnist_idx(folder, suffix="", count=20):
    images, labels = digit_arrays(count)
    write_idx(folder / f"train-images-idx3-ubyte{suffix}", images)
    write_idx(folder / f"train-labels-idx1-ubyte{suffix}", labels)
    return images, labels


def encode(array, kind="PNG", **options):
    file = io.BytesIO()
    Image.fromarray(array).save(file, kind, **options)
    return file.getvalue()


def image_table(images, labels):
    rows = [{"bytes": encode(image), "path": None} for image in images]
    return pyarrow.table({"image": rows, "label": labels.astype(np.int64)})


# --- MNIST


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist_from_idx_files(tmp_path, suffix):
    images, labels = write_mnist_idx(tmp_path, suffix)
    found = data_images.mnist("auto", tmp_path)
    assert found.images.dtype == np.uint8 and found.labels.dtype == np.int64 and found.images.flags.writeable
    assert np.array_equal(found.images, images) and np.array_equal(found.labels, labels)
    assert found.kind == "real" and "20 images where the article has 60,000" in found.origin
    assert np.array_equal(data_images.mnist("real", tmp_path, size=7).images, images[:7])


def test_mnist_idx_beside_its_packed_copy_and_in_a_subfolder(tmp_path):
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    images, _ = write_mnist_idx(folder)
    write_mnist_idx(folder, ".gz")
    assert np.array_equal(data_images.mnist("auto", tmp_path).images, images)


def test_mnist_from_parquet_shards_as_on_the_hub(tmp_path):
    images, labels = digit_arrays()
    (tmp_path / "mnist").mkdir()
    for shard in range(2):
        part = slice(10 * shard, 10 * shard + 10)
        path = tmp_path / "mnist" / f"train-0000{shard}-of-00002.parquet"
        pyarrow.parquet.write_table(image_table(images[part], labels[part]), path)
    pyarrow.parquet.write_table(image_table(images[:3], labels[:3]), tmp_path / "mnist" / "test-00000-of-00001.parquet")
    found = data_images.mnist("real", str(tmp_path))
    assert np.array_equal(found.images, images) and np.array_equal(found.labels, labels)
    assert len(data_images.mnist("real", tmp_path, split="test")) == 3


def damage_gzip(folder):
    path = folder / "train-images-idx3-ubyte.gz"
    write_mnist_idx(folder, ".gz")
    path.write_bytes(path.read_bytes()[:2000])
    return path


def damage_idx(folder):
    path = folder / "train-images-idx3-ubyte"
    write_mnist_idx(folder)
    path.write_bytes(path.read_bytes()[:-100])
    return path


def damage_idx_type(folder):
    write_mnist_idx(folder)
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(b"<html>please log in</html>")
    return path


def damage_parquet(folder):
    path = folder / "train-00000-of-00001.parquet"
    pyarrow.parquet.write_table(image_table(*digit_arrays()), path)
    path.write_bytes(path.read_bytes()[:-200])
    return path


def damage_image(folder):
    path = folder / "train-00000-of-00001.parquet"
    table = pyarrow.table({"image": [{"bytes": b"no image", "path": None}], "label": [1]})
    pyarrow.parquet.write_table(table, path)
    return path


def leave_unfinished(folder):
    write_mnist_idx(folder)
    path = folder / "train-images-idx3-ubyte.gz.part"
    path.touch()
    return path


@pytest.mark.parametrize("source", ["auto", "real"])
@pytest.mark.parametrize(
    "damage", [damage_gzip, damage_idx, damage_idx_type, damage_parquet, damage_image, leave_unfinished]
)
def test_damaged_mnist_is_one_line_that_names_the_file(tmp_path, source, damage):
    path = damage(tmp_path)
    one_line_error(lambda: data_images.mnist(source, tmp_path), path.name)


def test_unusable_mnist_folders(tmp_path):
    one_line_error(lambda: data_images.mnist("auto", tmp_path / "nowhere"), "nowhere is not a folder")
    one_line_error(lambda: data_images.mnist("auto", tmp_path), "nothing to read", "train-images?idx3-ubyte")
    images, labels = digit_arrays()
    write_idx(tmp_path / "train-images-idx3-ubyte", images)
    write_idx(tmp_path / "train-labels-idx1-ubyte", labels[:-1])
    one_line_error(lambda: data_images.mnist("auto", tmp_path), "20 images but 19 labels")
    write_idx(tmp_path / "train-labels-idx1-ubyte", labels + 1)
    one_line_error(lambda: data_images.mnist("auto", tmp_path), "0 to 9, not 10")
    pyarrow.parquet.write_table(pyarrow.table({"picture": [1]}), tmp_path / "train.parquet")
    one_line_error(lambda: data_images.mnist("auto", tmp_path), "train.parquet", "expected image and label")
    (tmp_path / "copy").mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"picture": [1]}), tmp_path / "copy" / "train.parquet")
    one_line_error(lambda: data_images.mnist("auto", tmp_path), "several folders")


def test_paths_in_messages_hide_the_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "jane"))
    (tmp_path / "jane" / "sets").mkdir(parents=True)
    text = one_line_error(lambda: data_images.mnist("auto", "~/sets"), "~/sets")
    assert "jane" not in text
    (tmp_path / "jane" / "sets" / "train-images-idx3-ubyte").mkdir()  # not a file: passed over
    path = tmp_path / "jane" / "sets" / "train-images-idx3-ubyte.gz"
    path.write_bytes(b"not gzip")
    assert "jane" not in one_line_error(lambda: data_images.mnist("auto", "~/sets"), "damaged")


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        ({"source": "fake"}, "auto, real, stand-in"),
        ({"split": "valid"}, "train, test"),
        ({"source": "stand-in", "size": 0}, "at least 1"),
    ],
)
def test_wrong_parameters(arguments, fragment):
    one_line_error(lambda: data_images.mnist(**arguments), fragment)


def test_mnist_stand_in_has_the_articles_shape():
    found = data_images.mnist("stand-in")
    assert found.images.shape == (60_000, 28, 28) and found.images.dtype == np.uint8
    assert found.labels.shape == (60_000,) and found.labels.dtype == np.int64
    share = np.bincount(found.labels, minlength=10) / 60_000
    assert share.min() > 0.08 and share.max() < 0.12
    assert len(np.unique(found.images.reshape(60_000, -1)[::10], axis=0)) == 6000  # not copies of the 1,797
    assert (found.images.max(axis=(1, 2)) > 150).all()  # no digit has left the frame
    assert len(data_images.mnist("stand-in", split="test")) == 10_000


def test_mnist_stand_in_is_the_same_every_time_and_for_every_size(digits):
    again = data_images.mnist("stand-in", size=100)
    assert np.array_equal(again.images, digits.images[:100]) and np.array_equal(again.labels, digits.labels[:100])
    assert again.origin == "stand-in for MNIST: asked for; the first 100 only"


def test_mnist_stand_in_can_be_learned_but_is_not_trivial(digits):
    test = data_images.mnist("stand-in", split="test", size=2000)
    centroids = np.stack([digits.images[digits.labels == label].reshape(-1, 784).mean(0) for label in range(10)])
    scores = test.images.reshape(-1, 784) @ centroids.T - (centroids**2).sum(1) / 2
    accuracy = (scores.argmax(1) == test.labels).mean()
    assert 0.6 < accuracy < 0.9


def test_train_and_test_digits_have_different_originals():
    train, test = ({row.tobytes() for row in synthetic.bundled_digits(split)} for split in ("train", "test"))
    assert len(train | test) == 1797 and not train & test


# --- Fashion-MNIST


FIRST_LABELS = {
    "mnist": {"train": [5, 0, 4, 1, 9, 2, 1, 3, 1, 4], "test": [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]},
    "fashion_mnist": {"train": [9, 0, 0, 3, 0, 2, 7, 2, 5, 5], "test": [9, 2, 1, 1, 6, 1, 4, 6, 5, 7]},
}


def test_fashion_mnist_from_idx_as_torchvision_leaves_it(tmp_path):
    folder = tmp_path / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    images, labels = write_mnist_idx(folder, ".gz", count=12)
    write_idx(folder / "t10k-images-idx3-ubyte.gz", images[:4])
    write_idx(folder / "t10k-labels-idx1-ubyte.gz", labels[:4])
    found = data_images.fashion_mnist("auto", tmp_path)
    assert found.name == "Fashion-MNIST" and found.kind == "real" and "where the article has 60,000" in found.origin
    assert np.array_equal(found.images, images) and np.array_equal(found.labels, labels)
    test = data_images.fashion_mnist("auto", tmp_path, split="test")
    assert np.array_equal(test.images, images[:4]) and "has 10,000" in test.origin


def test_fashion_mnist_from_parquet(tmp_path):
    images, labels = digit_arrays()
    pyarrow.parquet.write_table(image_table(images, labels), tmp_path / "train-00000-of-00001.parquet")
    assert np.array_equal(data_images.fashion_mnist("real", tmp_path).images, images)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(("asked", "there"), [("fashion_mnist", "mnist"), ("mnist", "fashion_mnist")])
def test_sets_whose_files_have_the_same_names_are_not_confused(tmp_path, split, asked, there):
    images, _ = digit_arrays(12)
    prefix = {"train": "train", "test": "t10k"}[split]
    write_idx(tmp_path / f"{prefix}-images-idx3-ubyte", images)
    write_idx(tmp_path / f"{prefix}-labels-idx1-ubyte", np.array([*FIRST_LABELS[there][split], 1, 2], np.uint8))
    names = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}
    complaint = f"has the labels of {names[there]}: name the folder of {names[asked]}"
    one_line_error(lambda: getattr(data_images, asked)("auto", tmp_path, split), complaint)
    assert len(getattr(data_images, there)("auto", tmp_path, split)) == 12


# --- CIFAR-10


def colour_arrays(count=12, seed=5):
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (count, 32, 32, 3), np.uint8), generator.integers(0, 10, count, np.uint8)


def planes(image):
    """All of red row by row, then green, then blue: how the author's files hold an image."""
    return b"".join(image[:, :, colour].tobytes() for colour in range(3))


def python2_batch(images, labels):
    """A batch as Python 2 pickled it for the author's archive, opcode by opcode."""

    def text(content):
        return b"U" + bytes([len(content)]) + content

    pixels = b"".join(map(planes, images))
    shape = b"M" + struct.pack("<H", len(images)) + b"M" + struct.pack("<H", 3072) + b"\x86"
    array = b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n" + b"K\x00\x85" + text(b"b") + b"\x87R"
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    state = b"(K\x01" + shape + dtype + b"\x89T" + struct.pack("<I", len(pixels)) + pixels + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    names = b"](" + text(b"a.png") + text(b"b.png") + b"e"
    entries = text(b"batch_label") + text(b"training batch 1 of 5") + text(b"labels") + numbers
    return b"\x80\x02}(" + entries + text(b"data") + array + state + text(b"filenames") + names + b"u."


def binary_batch(images, labels):
    return b"".join(bytes([label]) + planes(image) for image, label in zip(images, labels, strict=True))


def write_cifar(folder, form):
    """Five batches and the test batch of 2 images each."""
    images, labels = colour_arrays()
    encoder, suffix = {"binary": (binary_batch, ".bin"), "python": (python2_batch, "")}[form]
    folder.mkdir(parents=True, exist_ok=True)
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    for number, name in enumerate(names):
        part = slice(2 * number, 2 * number + 2)
        (folder / f"{name}{suffix}").write_bytes(encoder(images[part], labels[part]))
    (folder / "batches.meta").write_bytes(b"names of the classes")
    return images, labels


@pytest.mark.parametrize(("form", "folder"), [("binary", "cifar-10-batches-bin"), ("python", "cifar-10-batches-py")])
def test_cifar10_from_the_authors_batches(tmp_path, form, folder):
    images, labels = write_cifar(tmp_path / folder, form)
    found = data_images.cifar10("auto", tmp_path)
    assert found.images.dtype == np.uint8 and found.labels.dtype == np.int64
    assert found.images.flags.writeable and found.images.flags.c_contiguous
    assert np.array_equal(found.images, images[:10]) and np.array_equal(found.labels, labels[:10])
    assert found.kind == "real" and "10 images where the article has 50,000" in found.origin
    test = data_images.cifar10("real", str(tmp_path), split="test")
    assert np.array_equal(test.images, images[10:]) and np.array_equal(test.labels, labels[10:])
    assert np.array_equal(data_images.cifar10("real", tmp_path, size=3).images, images[:3])


def test_a_python_batch_can_be_unpickled_by_pickle_itself():
    """That is: the batches that these tests write are what Python 2 wrote, not only what the reader takes."""
    images, labels = colour_arrays(3)
    batch = pickle.loads(python2_batch(images, labels), encoding="bytes")
    assert batch[b"labels"] == labels.tolist() and batch[b"data"].shape == (3, 3072)
    assert np.array_equal(batch[b"data"].reshape(3, 3, 32, 32).transpose(0, 2, 3, 1), images)


def test_cifar10_prefers_what_needs_no_unpickling(tmp_path):
    images, _ = write_cifar(tmp_path / "bin", "binary")
    write_cifar(tmp_path / "py", "python")
    (tmp_path / "py" / "data_batch_1").write_bytes(b"never read")
    assert np.array_equal(data_images.cifar10("real", tmp_path).images, images[:10])


def test_cifar10_from_parquet(tmp_path):
    images, labels = colour_arrays()
    table = image_table(images, labels).rename_columns(["img", "label"])
    (tmp_path / "plain_text").mkdir()
    path = tmp_path / "plain_text" / "train-00000-of-00001.parquet"
    pyarrow.parquet.write_table(table, path)
    found = data_images.cifar10("real", tmp_path)
    assert np.array_equal(found.images, images) and np.array_equal(found.labels, labels)
    pyarrow.parquet.write_table(image_table(images, labels), path)
    one_line_error(lambda: data_images.cifar10("real", tmp_path), path.name, "expected img and label")
    grey, labels = digit_arrays()
    pyarrow.parquet.write_table(image_table(grey, labels).rename_columns(["img", "label"]), path)
    one_line_error(lambda: data_images.cifar10("real", tmp_path), "image 0 is (28, 28), should be (32, 32, 3)")


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_code_is_refused(tmp_path, protocol):
    write_cifar(tmp_path, "python")
    trap = tmp_path / "trap"
    (tmp_path / "data_batch_3").write_bytes(pickle.dumps({"data": Malicious(trap)}, protocol))
    one_line_error(lambda: data_images.cifar10("auto", tmp_path), "data_batch_3", "open, as no batch of CIFAR-10 does")
    assert not trap.exists()


@pytest.mark.parametrize(
    ("form", "name", "damage"),
    [
        ("binary", "data_batch_2.bin", lambda content: content[:-1]),
        ("binary", "data_batch_2.bin", lambda content: b""),
        ("python", "data_batch_2", lambda content: content[:-3000]),
        ("python", "data_batch_2", lambda content: b"<html>please log in</html>"),
        ("python", "data_batch_2", lambda content: b""),
        ("python", "data_batch_2", lambda content: pickle.dumps({b"data": 1, b"labels": [1]})),
        ("python", "data_batch_2", lambda content: pickle.dumps([1])),
        ("python", "data_batch_2", lambda content: content.replace(b"labels", b"lapels")),
        ("python", "data_batch_2", lambda content: content.replace(b"](K", b"](K\x01K", 1)),  # a label too many
    ],
)
def test_damaged_cifar10_is_one_line_that_names_the_file(tmp_path, form, name, damage):
    write_cifar(tmp_path, form)
    (tmp_path / name).write_bytes(damage((tmp_path / name).read_bytes()))
    one_line_error(lambda: data_images.cifar10("auto", tmp_path), name, "damaged or half downloaded")


def test_unusable_cifar10_folders(tmp_path):
    one_line_error(lambda: data_images.cifar10("auto", tmp_path), "nothing to read", "data_batch_[1-5].bin")
    images, _ = colour_arrays(2)
    (tmp_path / "data_batch_1.bin").write_bytes(binary_batch(images, [3, 10]))
    one_line_error(lambda: data_images.cifar10("auto", tmp_path), "0 to 9, not 10")


# --- stand-ins of both

COUNTS = {"fashion_mnist": (60_000, (28, 28)), "cifar10": (50_000, (32, 32, 3))}


@pytest.mark.parametrize("name", COUNTS)
def test_image_stand_ins_have_the_articles_shape(name):
    load, (count, shape) = getattr(data_images, name), COUNTS[name]
    found = load("stand-in")
    assert found.images.shape == (count, *shape) and found.images.dtype == np.uint8
    assert found.labels.shape == (count,) and found.labels.dtype == np.int64 and found.classes == 10
    share = np.bincount(found.labels, minlength=10) / count
    assert share.min() > 0.08 and share.max() < 0.12
    assert len(np.unique(found.images.reshape(count, -1)[::10], axis=0)) == count // 10
    again, test = load("stand-in", size=100), load("stand-in", split="test")
    assert np.array_equal(again.images, found.images[:100]) and np.array_equal(again.labels, found.labels[:100])
    assert len(test) == 10_000 and not np.array_equal(test.images[:100], found.images[:100])
    assert found.origin == f"stand-in for {found.name}: asked for" and found.kind == "stand-in"


def nearest_neighbour_accuracy(train, test):
    one, other = (part.images.reshape(len(part), -1).astype(np.float32) for part in (train, test))
    nearest = (other @ one.T - (one**2).sum(1) / 2).argmax(1)
    return (train.labels[nearest] == test.labels).mean()


@pytest.mark.parametrize(("name", "low", "high"), [("fashion_mnist", 0.8, 0.97), ("cifar10", 0.4, 0.8)])
def test_image_stand_ins_can_be_learned_but_are_not_trivial(name, low, high):
    train, test = (getattr(data_images, name)("stand-in", split=split, size=size) for split, size in PARTS)
    assert low < nearest_neighbour_accuracy(train, test) < high


PARTS = (("train", 6000), ("test", 1000))


class LastStep(torch.nn.Module):
    def forward(self, outputs):
        return outputs[0][:, -1]


def small_network(kind):
    nn = torch.nn
    return {
        "MLP": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10)),
        "CNN": lambda: nn.Sequential(
            *(nn.Unflatten(1, (1, 28)), nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(576, 10)),
        ),
        "LSTM": lambda: nn.Sequential(nn.LSTM(28, 32, batch_first=True), LastStep(), nn.Linear(32, 10)),
    }[kind]()


@pytest.mark.parametrize("kind", ["MLP", "CNN", "LSTM"])
def test_the_articles_kinds_of_network_learn_the_fashion_stand_in(kind):
    torch.manual_seed(0)
    (inputs, target), (held_out, truth) = (
        (torch.from_numpy(part.images).float() / 255, torch.from_numpy(part.labels))
        for part in (data_images.fashion_mnist("stand-in", split=split, size=size) for split, size in PARTS)
    )
    model = small_network(kind)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for rows in torch.cat([torch.randperm(6000) for _ in range(3)]).split(100):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs[rows]), target[rows]).backward()
        optimizer.step()
    assert (model(held_out).argmax(1) == truth).float().mean() > 0.5  # chance is 0.1


# --- where it comes from


def test_stand_ins_ask_no_network(_no_network, monkeypatch):
    monkeypatch.setattr(photographs, "STAND_IN_PHOTOGRAPHS", 4)
    images = [load("stand-in", size=5) for load in (data_images.mnist, data_images.fashion_mnist, data_images.cifar10)]
    kinds = {found.kind for found in (*images, data_text.wikitext2("stand-in"), photographs.lsun_classroom("stand-in"))}
    assert kinds == {"stand-in"} and not _no_network


@pytest.mark.parametrize("load", [*(partial(load, size=5) for load in IMAGE_SETS.values()), data_text.wikitext2])
def test_without_network_auto_says_why_and_real_refuses(_no_network, load):
    found = load("auto")
    assert found.kind == "stand-in" and _no_network
    why = ": not in the cache, and no connection to the Hugging Face hub (ConnectError)"
    assert found.origin.startswith(f"stand-in for {found.name}{why}")
    one_line_error(lambda: load("real"), "no real data: not in the cache", "local folder")


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"])
def test_offline_variables_are_honoured(monkeypatch, _no_network, name):
    monkeypatch.setenv(name, "1")
    assert f"{name} is set" in data_images.mnist("auto", size=5).origin
    assert not _no_network


def test_lsun_is_on_no_hub(monkeypatch, _no_network):
    monkeypatch.setattr(photographs, "STAND_IN_PHOTOGRAPHS", 4)
    assert (
        photographs.lsun_classroom("auto").origin
        == "stand-in for LSUN classroom: no folder was named, and no hub has it"
    )
    one_line_error(lambda: photographs.lsun_classroom("real"), "LSUN classroom: no real data")
    assert not _no_network


@pytest.fixture
def local_hub(monkeypatch):
    """A server on this machine in the hub's place; `status` 0 is one that never answers."""
    monkeypatch.undo()  # the network is needed, for the loopback only
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("HF_DATASETS_OFFLINE", raising=False)
    release = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            if not server.status:
                release.wait(10)
            self.send_response(server.status or 200)
            self.end_headers()

        def log_message(self, *_):
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield server
    release.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "problem"), [(200, None), (503, "answered 503"), (404, "answered 404"), (0, "ReadTimeout")]
)
def test_the_hub_is_asked_first(local_hub, status, problem):
    local_hub.status = status
    answer = data_hub.hub_problem("ylecun/mnist", timeout_s=0.3)
    assert answer is None if problem is None else problem in answer


@pytest.mark.parametrize("damaged", [False, True])
def test_what_fails_in_a_download_is_told_apart(monkeypatch, damaged):
    import datasets

    def fail(*_, **__):
        if damaged:
            raise datasets.exceptions.DatasetGenerationError("An error occurred\nwhile generating the dataset")
        raise ConnectionError("Couldn't reach the hub")

    monkeypatch.setattr(data_hub, "hub_problem", lambda hub: None)
    monkeypatch.setattr(datasets, "load_dataset", fail)
    if damaged:
        one_line_error(lambda: data_images.mnist("auto", size=5), "damaged or half downloaded (An error occurred while")
    else:
        assert "the download failed (ConnectionError)" in data_images.mnist("auto", size=5).origin


def fill_cache(cache, images, labels, hub="ylecun/mnist", config="mnist", column="image"):
    """What `datasets` leaves behind in its cache for a set of images, written by its own writer."""
    import datasets
    from datasets.arrow_writer import ArrowWriter

    name = hub.split("/")[1]
    folder = cache / hub.replace("/", "___") / config / "0.0.0" / "77f3279092a1c1579b2250db8eafed0ad422088c"
    folder.mkdir(parents=True)
    features = datasets.Features({column: datasets.Image(), "label": datasets.ClassLabel(num_classes=10)})
    splits = []
    for split in ("train", "test"):
        with ArrowWriter(path=str(folder / f"{name}-{split}.arrow"), features=features) as writer:
            writer.write_table(image_table(images, labels).rename_columns([column, "label"]))
            writer.finalize()
        splits.append({"name": split, "num_bytes": 1, "num_examples": len(images), "dataset_name": name})
    info = datasets.DatasetInfo(
        features=features,
        splits=splits,
        builder_name="parquet",
        dataset_name=name,
        config_name=config,
        version="0.0.0",
    )
    info.write_to_directory(str(folder))
    return folder


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    return tmp_path


def test_the_cache_is_used_without_network(cache, _no_network):
    images, labels = digit_arrays()
    fill_cache(cache, images, labels)
    found = data_images.mnist("real")
    assert np.array_equal(found.images, images) and np.array_equal(found.labels, labels)
    assert found.origin.startswith("MNIST, real: ylecun/mnist (mnist), cached; 20 images")
    assert not _no_network


@pytest.mark.parametrize(
    ("hub", "config", "column", "arrays"),
    [
        ("zalando-datasets/fashion_mnist", "fashion_mnist", "image", digit_arrays),
        ("uoft-cs/cifar10", "plain_text", "img", colour_arrays),
    ],
)
def test_the_cache_of_the_other_image_sets(cache, _no_network, hub, config, column, arrays):
    images, labels = arrays()
    fill_cache(cache, images, labels, hub, config, column)
    found = IMAGE_SETS[hub]("real", split="test")
    assert np.array_equal(found.images, images) and np.array_equal(found.labels, labels)
    assert f"real: {hub} ({config}), cached" in found.origin and not _no_network


@pytest.mark.parametrize("source", ["auto", "real"])
@pytest.mark.parametrize("name", ["mnist-train.arrow", "dataset_info.json"])
def test_a_damaged_cache_is_one_line(cache, source, name):
    folder = fill_cache(cache, *digit_arrays())
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    one_line_error(lambda: data_images.mnist(source), folder.name, "delete it")


def test_a_download_that_did_not_end_is_one_line_where_it_cannot_go_on(cache):
    (cache / "ylecun___mnist" / "mnist" / "0.0.0" / "77f3.incomplete").mkdir(parents=True)
    one_line_error(lambda: data_images.mnist("auto"), "77f3.incomplete", "did not end", "no connection")


# --- WikiText-2

TEXTS = {
    "train": " \n = An Apple = \n \n The apple <unk> is a fruit . \n",
    "valid": " The fruit \n",
    "test": " An apple \n \n",
}
WORDS = ["<eos>", "=", "An", "Apple", "The", "apple", "<unk>", "is", "a", "fruit", "."]


def assert_small_corpus(found):
    lines = found.train
    assert [found.words[number] for number in lines] == [
        *("<eos>", "=", "An", "Apple", "=", "<eos>", "<eos>"),
        *("The", "apple", "<unk>", "is", "a", "fruit", ".", "<eos>"),
    ]
    assert [found.words[number] for number in found.valid] == ["The", "fruit", "<eos>"]
    assert [found.words[number] for number in found.test] == ["An", "apple", "<eos>", "<eos>"]
    assert list(found.words) == WORDS and found.vocabulary == 11 and found.train.dtype == np.int64
    assert found.kind == "real"
    assert "15 + 3 + 4 tokens, 11 words where the article has 2,088,628 + 217,646 + 245,569, 33,278" in found.origin


@pytest.mark.parametrize("form", ["wiki.{}.tokens", "{}.txt"])
def test_wikitext_from_text_files(tmp_path, form):
    for part, text in TEXTS.items():
        (tmp_path / form.format(part)).write_text(text, encoding="utf-8")
    assert_small_corpus(data_text.wikitext2("auto", tmp_path))
    assert len(data_text.wikitext2("auto", tmp_path, size=3).train) == 3


def test_wikitext_from_parquet_prefers_the_articles_variant(tmp_path):
    for config in ("wikitext-2-v1", "wikitext-2-raw-v1"):
        (tmp_path / config).mkdir()
        for part, text in TEXTS.items():
            rows = [line + "\n" if line.strip() else "" for line in text.splitlines()]
            rows = ["raw"] if "raw" in config else rows
            name = "validation" if part == "valid" else part
            path = tmp_path / config / f"{name}-00000-of-00001.parquet"
            pyarrow.parquet.write_table(pyarrow.table({"text": rows}), path)
    assert_small_corpus(data_text.wikitext2("real", tmp_path))


def test_unusable_wikitext_folders(tmp_path):
    for part, text in TEXTS.items():
        (tmp_path / f"{part}.txt").write_text(text, encoding="utf-8")
    (tmp_path / "valid.txt").write_text("")
    one_line_error(lambda: data_text.wikitext2("auto", tmp_path), "'valid': 0")
    (tmp_path / "valid.txt").write_bytes(b"half a letter \xe2\x80")
    one_line_error(lambda: data_text.wikitext2("auto", tmp_path), "valid.txt", "damaged")
    (tmp_path / "valid.txt").unlink()
    one_line_error(lambda: data_text.wikitext2("auto", tmp_path), "wiki.valid.tokens")


def test_corpus_stand_in_has_the_articles_counts(corpus):
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (2_088_628, 217_646, 245_569)
    assert corpus.vocabulary == 33_278 and len(set(corpus.words)) == 33_278
    assert np.array_equal(np.unique(corpus.train), np.arange(33_278))
    for part in (corpus.train, corpus.valid, corpus.test):
        assert part.dtype == np.int64 and part.min() >= 0 and part.max() < 33_278
    assert corpus.origin == "stand-in for WikiText-2: asked for"


def test_corpus_stand_in_is_the_same_every_time(corpus):
    assert np.array_equal(corpus.train, data_text.wikitext2("stand-in").train)


def test_corpus_stand_in_can_be_learned(corpus):
    def cross_entropy(probability):
        return -np.log2(probability).mean()

    vocabulary, train, valid = corpus.vocabulary, corpus.train, corpus.valid
    unigram = np.bincount(train, minlength=vocabulary) / len(train)
    pairs, counts = np.unique(train[:-1] * vocabulary + train[1:], return_counts=True)
    asked = valid[:-1] * vocabulary + valid[1:]
    place = np.minimum(np.searchsorted(pairs, asked), len(pairs) - 1)
    seen = np.where(pairs[place] == asked, counts[place], 0) / (unigram[valid[:-1]] * len(train))
    alone = cross_entropy(unigram[valid[1:]])
    assert cross_entropy(0.8 * seen + 0.2 * unigram[valid[1:]]) < alone - 2  # bits, on text that was not counted
    frequencies = np.sort(unigram)[::-1]
    assert 0.02 < frequencies[0] < 0.1 and frequencies[5000:].sum() < 0.2  # a few words are most of the text


def test_batches_as_in_the_article(corpus):
    counts = []
    for tokens, batch_size in ((corpus.train, 20), (corpus.train, 200), (corpus.valid, 10)):
        batches = data_text.LanguageBatches(data_text.batchify(tokens, batch_size))
        shapes = [pair[0].shape for pair in batches]
        assert len(shapes) == len(batches)
        counts.append((len(batches), shapes[0], shapes[-1]))
    assert counts == [(2984, (35, 20), (25, 20)), (299, (35, 200), (12, 200)), (622, (35, 10), (28, 10))]


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
def test_a_batch_is_text_and_its_continuation(convert):
    columns = data_text.batchify(np.arange(23), 2)
    assert columns.tolist() == [[row, row + 11] for row in range(11)] and columns.flags.c_contiguous
    pairs = list(data_text.LanguageBatches(convert(columns), bptt=4))
    assert [len(inputs) for inputs, _ in pairs] == [4, 4, 2]
    for inputs, target in pairs:
        assert target.tolist() == (inputs + 1).reshape(-1).tolist()


# --- items


def test_to_tensor_divides_by_255_exactly():
    grey = np.arange(256, dtype=np.uint8).reshape(8, 32)
    tensor = data_images.to_tensor(Image.fromarray(grey))
    assert tensor.shape == (1, 8, 32) and tensor.dtype == torch.float32 and tensor.is_contiguous()
    assert np.array_equal(tensor[0].numpy(), grey.astype(np.float32) / np.float32(255))
    colour = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    tensor = data_images.to_tensor(Image.fromarray(colour))
    assert np.array_equal(tensor.numpy(), colour.transpose(2, 0, 1).astype(np.float32) / np.float32(255))


def test_article_mnist_items(digits):
    dataset = data_images.ArticleMNIST(digits)
    image, label = dataset[11]
    assert len(dataset) == 6000 and type(label) is int and label == digits.labels[11]
    assert np.array_equal(image[0].numpy(), digits.images[11].astype(np.float32) / np.float32(255))


def find_label(digits, image):
    matches = (digits.images == image.numpy().astype(np.uint8)).all(axis=(1, 2))
    assert matches.sum() == 1
    return digits.labels[matches][0], int(np.flatnonzero(matches)[0])


def test_pairs_are_of_one_class_at_even_indices():
    digits = data_images.mnist("stand-in", size=300)
    pairs = data_images.MNISTPairs(digits, seed=5)
    labels = set()
    for index in range(200):
        first, second, target = pairs[index]
        assert (
            first.shape == second.shape == (1, 28, 28) and first.dtype == second.dtype == target.dtype == torch.float32
        )
        (label, place), (other, other_place) = find_label(digits, first), find_label(digits, second)
        assert target.shape == () and target.item() == float(label == other) == float(index % 2 == 0)
        assert place != other_place
        labels |= {label, other}
    assert labels == set(range(10)) and first.max() > 200  # not normalised


def test_pairs_follow_their_seed_and_not_the_global_one():
    digits = data_images.mnist("stand-in", size=300)

    def draw(seed, global_seed):
        random.seed(global_seed)
        pairs = data_images.MNISTPairs(digits, seed)
        return torch.stack([pairs[index][0] for index in range(10)])

    assert torch.equal(draw(1, 1), draw(1, 2)) and not torch.equal(draw(1, 1), draw(2, 1))


def test_pairs_need_two_images_a_class():
    one_line_error(lambda: data_images.MNISTPairs(data_images.mnist("stand-in", size=5)), "two images of every class")


@pytest.mark.skipif(sys.platform == "win32", reason="fork")
@pytest.mark.parametrize("context", ["spawn", "fork"])
def test_workers_draw_different_pairs(context):
    if context == "fork" and sys.platform == "darwin":
        pytest.skip("macOS libraries do not survive fork")
    pairs = data_images.MNISTPairs(data_images.mnist("stand-in", size=300), seed=1)
    _ = pairs[0]  # the parent's generator is in use when the workers start
    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(pairs, 8, num_workers=2, multiprocessing_context=context)
    first, second = (next_batch[0] for _, next_batch in zip(range(2), loader, strict=False))
    assert not torch.equal(first, second)


def test_every_dataset_can_be_pickled(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(photographs, "STAND_IN_PHOTOGRAPHS", 4)
    write_lmdb(tmp_path / "classroom_train_lmdb")
    database = photographs.lsun_classroom("real", tmp_path)
    before = database[1][0]  # opens the handle that must not travel
    for dataset in (data_images.ArticleMNIST(digits), photographs.lsun_classroom("stand-in"), database):
        copy = pickle.loads(pickle.dumps(dataset))
        assert len(copy) == len(dataset) and torch.equal(copy[1][0], dataset[1][0])
        assert copy[1][1] == dataset[1][1]
    assert torch.equal(before, database[1][0])
    one, two = data_images.MNISTPairs(digits, 3), pickle.loads(pickle.dumps(data_images.MNISTPairs(digits, 3)))
    assert torch.equal(one[0][0], two[0][0])


# --- LSUN


def photograph(seed, width=341, height=256):
    generator = np.random.default_rng(seed)
    small = Image.fromarray(generator.integers(0, 256, (8, 8, 3), np.uint8))
    return np.asarray(small.resize((width, height), Image.Resampling.BICUBIC))


def write_lmdb(folder, count=12):
    import lmdb

    jpegs = [encode(photograph(seed), "JPEG", quality=75) for seed in range(count)]
    with lmdb.open(str(folder), map_size=1 << 24) as environment, environment.begin(write=True) as transaction:
        for number, jpeg in enumerate(jpegs):
            transaction.put(f"{number:040}".encode(), jpeg)
    return jpegs


def test_lsun_from_lmdb(tmp_path):
    jpegs = write_lmdb(tmp_path / "classroom_train_lmdb")
    for folder in (tmp_path, tmp_path / "classroom_train_lmdb"):
        found = photographs.lsun_classroom("auto", folder)
        assert len(found) == 12 and found.kind == "real" and "12 images where the article has 168,103" in found.origin
        expected = np.asarray(Image.open(io.BytesIO(jpegs[7])).convert("RGB"))
        assert np.array_equal(np.asarray(found.picture(7)), expected)
    with pytest.raises(IndexError):
        found[12]
    assert len(photographs.lsun_classroom("auto", tmp_path, size=5)) == 5


def test_lsun_from_a_folder_of_jpegs(tmp_path):
    (tmp_path / "a").mkdir()
    for number, name in enumerate(("a/1.jpg", "a/2.JPEG", "b.webp")):
        (tmp_path / name).write_bytes(encode(photograph(number), "JPEG"))
    (tmp_path / "notes.txt").write_text("not a picture")
    found = photographs.lsun_classroom("real", tmp_path)
    assert len(found) == 3 and [found[index][0].shape for index in range(3)] == [(3, 64, 64)] * 3
    content = (tmp_path / "b.webp").read_bytes()
    (tmp_path / "b.webp").write_bytes(content[: len(content) // 2])
    one_line_error(lambda: found[2], "b.webp", "cannot be decoded")


@pytest.mark.parametrize("keep", [0.3, 0.01, 0])
def test_a_damaged_lmdb_is_one_line_and_no_crash(tmp_path, keep):
    write_lmdb(tmp_path / "classroom_train_lmdb")
    path = tmp_path / "classroom_train_lmdb" / "data.mdb"
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    # in another process, because lmdb kills the process that reads behind the end of its file
    program = (
        "import sys; from pomology import PomologyError; from pomology.data import images as data\n"
        "try: dataset = data.lsun_classroom('auto', sys.argv[1])\n"
        "except PomologyError as error: print(error); sys.exit(3)\n"
        "[dataset.store[index] for index in range(len(dataset))]"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    assert "data.mdb: damaged or half downloaded" in done.stdout and done.stdout.count("\n") == 1


def test_an_lsun_folder_with_nothing_in_it(tmp_path):
    one_line_error(
        lambda: photographs.lsun_classroom("auto", tmp_path), "neither classroom_train_lmdb/data.mdb nor JPEG files"
    )


def test_lsun_stand_in(monkeypatch):
    monkeypatch.setattr(photographs, "STAND_IN_PHOTOGRAPHS", 40)
    found = photographs.lsun_classroom("stand-in")
    assert len(found) == 168_103 and found.kind == "stand-in"
    image, label = found[168_102]
    assert image.shape == (3, 64, 64) and image.dtype == torch.float32 and label == 0
    assert -1 <= image.min() < -0.3 and 0.3 < image.max() <= 1
    assert torch.equal(image, found[168_102 % 40][0])
    assert found.store == photographs.lsun_classroom("stand-in").store  # the same every time
    assert len(set(found.store)) == 40
    sizes = {Image.open(io.BytesIO(jpeg)).size for jpeg in found.store}
    assert sizes == {(341, 256), (256, 341)}
    assert 8_000 < np.mean([len(jpeg) for jpeg in found.store]) < 25_000
    assert all(np.asarray(found.picture(index)).std() > 15 for index in range(40))
    corners = [np.asarray(found.picture(index))[[0, 0, -1, -1], [0, -1, 0, -1]].max() for index in range(40)]
    assert min(corners) > 0  # no cut-out reaches over the edge of its photograph


@pytest.mark.parametrize("upright", [False, True])
def test_the_shorter_side_becomes_64_and_the_middle_is_taken(upright):
    bands = np.zeros((256, 512, 3), np.uint8)  # black, 200 px wide; then red up to 312; then white
    bands[:, 200:312] = (255, 0, 0)
    bands[:, 312:] = 255
    picture = Image.fromarray(bands.transpose(1, 0, 2).copy() if upright else bands)
    tensor = photographs.dcgan_transform(picture)
    tensor = tensor.transpose(1, 2) if upright else tensor
    # 512 × 256 becomes 128 × 64, of which columns 32 to 96 stay: red is 50 to 78 there, so 18 to 46 in the item
    assert tensor.shape == (3, 64, 64)
    assert (tensor[0, :, :17] == -1).all() and (tensor[0, :, 19:] == 1).all()
    assert (tensor[1, :, :45] == -1).all() and (tensor[1, :, 47:] == 1).all()


def test_odd_sizes_are_cut_as_the_article_did():
    # 300 × 200 becomes 96 × 64, and 16 columns go on either side
    ramp = np.repeat(np.linspace(0, 255, 300).astype(np.uint8)[None, :, None], 200, 0).repeat(3, 2)
    tensor = photographs.dcgan_transform(Image.fromarray(ramp))
    whole = np.asarray(Image.fromarray(ramp).resize((96, 64), Image.Resampling.BILINEAR))
    expected = (whole[:, 16:80].astype(np.float32) / 255 - 0.5) / 0.5
    assert np.allclose(tensor.numpy(), expected.transpose(2, 0, 1), atol=1e-6)


# --- workers


def test_a_spawned_worker_reads_what_the_parent_reads(tmp_path):
    write_lmdb(tmp_path / "classroom_train_lmdb")
    dataset = photographs.lsun_classroom("real", tmp_path)
    expected = torch.stack([dataset[index][0] for index in range(len(dataset))])
    loader = torch.utils.data.DataLoader(dataset, 4, num_workers=1, multiprocessing_context="spawn")
    assert torch.equal(torch.cat([images for images, _ in loader]), expected)


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
def test_a_forked_worker_opens_the_lmdb_for_itself(tmp_path):
    write_lmdb(tmp_path / "classroom_train_lmdb")
    dataset = photographs.lsun_classroom("real", tmp_path)
    expected = torch.stack([dataset[index][0] for index in range(len(dataset))])
    loader = torch.utils.data.DataLoader(dataset, 4, num_workers=2, multiprocessing_context="fork")
    assert torch.equal(torch.cat([images for images, _ in loader]), expected)


def modules_after(program):
    program = (
        f"import sys, json; from pomology.data import images as data; {program}; print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return {*json.loads(done.stdout)}


def test_importing_takes_no_framework():
    modules = modules_after("data.fashion_mnist('stand-in', size=50), data.cifar10('stand-in', size=50)")
    assert not {"torch", "tensorflow", "mlx", "pandas", "datasets", "pyarrow", "lmdb"} & modules


def test_arrays_can_be_had_without_any_framework(cache, tmp_path):
    """A TensorFlow notebook reads them, too: one framework to a process."""
    fill_cache(cache, *digit_arrays(), "zalando-datasets/fashion_mnist", "fashion_mnist")
    write_cifar(tmp_path / "cifar", "python")
    modules = modules_after(f"data.fashion_mnist('real'), data.cifar10('real', {str(tmp_path / 'cifar')!r})")
    assert "datasets" in modules and not {"torch", "tensorflow", "mlx", "jax", "sklearn"} & modules
