"""Images, photographs and where data come from: forms, damage, no network, stand-ins, and items as the articles'."""

import io
import json
import random
import re
import shutil
import subprocess
import sys
import threading
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from offline import cut_off, one_line_error
from PIL import Image

from pomology.data import hub, photographs, transforms
from pomology.data import images as data_images

torch = pytest.importorskip("torch")

IMAGE_SETS = {
    "MNIST": (data_images.mnist, "ylecun/mnist", "mnist", 60_000, (28, 28)),
    "Fashion-MNIST": (data_images.fashion_mnist, "zalando-datasets/fashion_mnist", "fashion_mnist", 60_000, (28, 28)),
    "CIFAR-10": (data_images.cifar10, "uoft-cs/cifar10", "plain_text", 50_000, (32, 32, 3)),
}


@pytest.fixture(autouse=True)
def network(monkeypatch, tmp_path_factory):
    return cut_off(monkeypatch, tmp_path_factory)


def arrays(shape=(28, 28), count=20):
    return np.random.default_rng(3).integers(0, 256, (count, *shape), np.uint8), np.arange(count) % 10


def encode(array, kind="PNG", **options):
    file = io.BytesIO()
    Image.fromarray(array).save(file, kind, **options)
    return file.getvalue()


def image_table(images, labels, column="image"):
    rows = [{"bytes": encode(image), "path": None} for image in images]
    return pyarrow.table({column: rows, "label": np.asarray(labels, np.int64)})


def write(path, table):
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, path)
    return path


@pytest.mark.parametrize("name", IMAGE_SETS)
def test_image_sets_from_parquet_shards_as_on_the_hub(tmp_path, name):
    load, _, config, count, shape = IMAGE_SETS[name]
    images, labels = arrays(shape)
    column = "img" if name == "CIFAR-10" else "image"
    for shard in range(2):
        part = slice(10 * shard, 10 * shard + 10)
        path = tmp_path / config / f"train-0000{shard}-of-00002.parquet"
        write(path, image_table(images[part], labels[part], column))
    write(tmp_path / config / "test-00000-of-00001.parquet", image_table(images[:3], labels[:3], column))
    real = load("auto", str(tmp_path))
    assert real.images.dtype == np.uint8 and real.labels.dtype == np.int64 and real.images.flags.writeable
    assert np.array_equal(real.images, images) and np.array_equal(real.labels, labels)
    assert real.origin == f"{name}, real: local folder; 20 images where the article has {count:,}"
    assert (real.name, real.kind, real.classes) == (name, "real", 10)
    assert np.array_equal(load("real", tmp_path / config, size=7).images, images[:7])
    assert len(load("real", tmp_path, split="test")) == 3


def test_unusable_image_folders(tmp_path, monkeypatch):
    def fails(*fragments, load=data_images.mnist, folder=tmp_path):
        return one_line_error(lambda: load("auto", folder), *fragments)

    fails("nowhere is not a folder", folder=tmp_path / "nowhere")
    fails("MNIST: nothing to read in ", "huggingface.co/datasets/ylecun/mnist", "train*.parquet")
    images, labels = arrays()
    path = write(tmp_path / "train.parquet", image_table(images, labels + 1))
    fails("0 to 9, not {10}")
    write(path, image_table(images[:0], labels[:0]).cast(image_table(images, labels).schema))
    fails("labels of images should be 0 to 9, not none")
    write(path, image_table(images, labels, "img"))
    fails("train.parquet", "expected image and label")
    fails("image 0 is (28, 28), should be (32, 32, 3)", load=data_images.cifar10)
    write(tmp_path / "copy" / "train.parquet", image_table(images, labels))
    fails("several folders")
    shutil.rmtree(tmp_path / "copy")
    write(path, pyarrow.table({"image": [{"bytes": b"no image", "path": None}], "label": [1]}))
    fails("train.parquet: image 0 cannot be decoded")
    path.write_bytes(path.read_bytes()[:-200])
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    text = fails("train.parquet: damaged or half downloaded", folder=f"~/{tmp_path.name}")
    assert str(tmp_path.parent) not in text


def test_sets_of_one_form_are_not_confused(tmp_path):
    write(tmp_path / "train.parquet", image_table(arrays()[0][:12], [5, 0, 4, 1, 9, 2, 1, 3, 1, 4, 1, 2]))
    write(tmp_path / "test.parquet", image_table(arrays()[0][:12], [9, 2, 1, 1, 6, 1, 4, 6, 5, 7, 1, 2]))
    for asked, given, split in (("Fashion-MNIST", "MNIST", "train"), ("MNIST", "Fashion-MNIST", "test")):
        complaint = f"has the labels of {given}: name the folder of {asked}"
        one_line_error(lambda load=IMAGE_SETS[asked][0], split=split: load("auto", tmp_path, split), complaint)
        assert len(IMAGE_SETS[given][0]("auto", tmp_path, split)) == 12


@pytest.mark.parametrize(
    ("name", "low", "high"), [("MNIST", 0.8, 0.99), ("Fashion-MNIST", 0.8, 0.97), ("CIFAR-10", 0.4, 0.8)]
)
def test_image_stand_ins_have_the_articles_shape_and_can_be_learned_but_are_not_trivial(name, low, high):
    load, _, _, count, shape = IMAGE_SETS[name]
    whole, test = load("stand-in"), load("stand-in", split="test", size=1000)
    assert whole.images.shape == (count, *shape) and whole.images.dtype == np.uint8
    assert whole.labels.shape == (count,) and whole.labels.dtype == np.int64 and whole.classes == 10
    share = np.bincount(whole.labels, minlength=10) / count
    assert share.min() > 0.08 and share.max() < 0.12
    assert len({image.tobytes() for image in whole.images[::10]}) == count // 10  # no copies
    assert whole.origin == f"stand-in for {name}: asked for" and whole.kind == "stand-in"
    again = load("stand-in", size=100)
    assert np.array_equal(again.images, whole.images[:100]) and np.array_equal(again.labels, whole.labels[:100])
    assert again.origin == f"stand-in for {name}: asked for; the first 100 only"
    if name == "MNIST":
        assert (whole.images.max(axis=(1, 2)) > 150).all()  # no digit has left the frame
    known, asked = (images.reshape(len(images), -1).astype(np.float32) for images in (whole.images[:6000], test.images))
    nearest = (asked @ known.T - (known**2).sum(1) / 2).argmax(1)
    assert low < (whole.labels[nearest] == test.labels).mean() < high


def test_without_network_auto_says_why_and_real_refuses(monkeypatch, network):
    given = data_images.cifar10("auto", size=5)
    assert given.kind == "stand-in" and network
    why = "plain_text/train-00000-of-00001.parquet of uoft-cs/cifar10 is not in the cache, and no connection"
    assert given.origin.startswith(f"stand-in for CIFAR-10: {why} to the Hugging Face hub (ConnectError)")
    one_line_error(lambda: data_images.cifar10("real"), "no real data: ", why, "local folder")
    network.clear()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in data_images.cifar10("auto", size=5).origin and not network


@pytest.mark.parametrize(("status", "problem"), [(200, None), (503, "answered 503"), (0, "no answer")])
def test_the_hub_is_asked_first(monkeypatch, status, problem):
    release, asked = threading.Event(), []

    def head(url, timeout):
        asked.append(url)
        if not status:
            release.wait(10)
        return SimpleNamespace(status_code=status)

    monkeypatch.setattr("huggingface_hub.get_session", lambda: SimpleNamespace(head=head))
    answer = hub.hub_problem("datasets/ylecun/mnist", timeout_s=0.1)
    release.set()
    assert answer is None if problem is None else problem in answer
    assert asked == ["https://huggingface.co/datasets/ylecun/mnist/resolve/main/README.md"]


def test_a_split_is_downloaded_where_the_hub_answers(monkeypatch, tmp_path):
    images, labels = arrays()
    path, asked = write(tmp_path / "test.parquet", image_table(images, labels)), []

    def download(repository, **where):
        asked.append((repository, *where.values()))
        return str(path)

    monkeypatch.setattr(hub, "hub_problem", lambda repository: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    real = data_images.mnist("auto", split="test")
    assert np.array_equal(real.images, images) and "MNIST, real: ylecun/mnist (mnist), downloaded; 20" in real.origin
    ((name, file, kind, revision),) = asked
    assert (name, file, kind) == ("ylecun/mnist", "mnist/test-00000-of-00001.parquet", "dataset")
    assert re.fullmatch("[0-9a-f]{40}", revision)  # a commit: what is published later is another data set
    absent = huggingface_hub.errors.LocalEntryNotFoundError("gone")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: (_ for _ in ()).throw(absent))
    given = data_images.mnist("auto", size=5)
    assert given.kind == "stand-in" and "the download failed (LocalEntryNotFoundError)" in given.origin


def test_items_are_exact():
    grey = np.arange(256, dtype=np.uint8).reshape(8, 32)
    tensor = transforms.to_tensor(Image.fromarray(grey))
    assert tensor.shape == (1, 8, 32) and tensor.dtype == torch.float32 and tensor.is_contiguous()
    assert np.array_equal(tensor[0].numpy(), grey.astype(np.float32) / np.float32(255))
    colour = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    tensor = transforms.to_tensor(Image.fromarray(colour))
    assert np.array_equal(tensor.numpy(), colour.transpose(2, 0, 1).astype(np.float32) / np.float32(255))
    digits = data_images.mnist("stand-in", size=20)
    image, label = data_images.ArticleMNIST(digits)[11]
    assert type(label) is int and label == digits.labels[11]
    assert np.array_equal(image[0].numpy(), digits.images[11].astype(np.float32) / np.float32(255))


def test_pairs_are_of_one_class_at_even_indices_and_follow_their_seed():
    digits = data_images.mnist("stand-in", size=300)

    def place_of(image):
        (place,) = np.flatnonzero((digits.images == image.numpy().astype(np.uint8)).all(axis=(1, 2)))
        return place

    pairs, labels = data_images.MNISTPairs(digits), set()
    for index in range(200):
        first, second, target = pairs[index]
        assert first.shape == second.shape == (1, 28, 28) and target.shape == ()
        assert first.dtype == second.dtype == target.dtype == torch.float32
        places = place_of(first), place_of(second)
        label, other = digits.labels[[*places]]
        assert places[0] != places[1] and target.item() == float(label == other) == float(index % 2 == 0)
        labels |= {label, other}
    assert labels == set(range(10)) and first.max() > 200  # not normalised

    def draw(seed):
        random.seed(seed)
        return torch.stack([pairs[index][0] for index in range(10)])

    assert torch.equal(draw(1), draw(1)) and not torch.equal(draw(1), draw(2))
    few = data_images.mnist("stand-in", size=5)
    one_line_error(lambda: data_images.MNISTPairs(few), "two images of every class")


def photograph(seed, width=341, height=256):
    small = Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8))
    return np.asarray(small.resize((width, height), Image.Resampling.BICUBIC))


@pytest.fixture
def database(tmp_path):
    """A folder with 12 photographs in an lmdb, and their bytes."""
    import lmdb

    jpegs = [encode(photograph(seed), "JPEG", quality=75) for seed in range(12)]
    folder = tmp_path / "classroom_train_lmdb"
    with lmdb.open(str(folder), map_size=1 << 24) as environment, environment.begin(write=True) as transaction:
        for number, jpeg in enumerate(jpegs):
            transaction.put(f"{number:040}".encode(), jpeg)
    return tmp_path, jpegs


def test_lsun_from_lmdb(database):
    root, jpegs = database
    for folder in (root, root / "classroom_train_lmdb"):
        real = photographs.lsun_classroom("auto", folder)
        assert len(real) == 12 and real.kind == "real" and "12 images where the article has 168,103" in real.origin
        expected = np.asarray(Image.open(io.BytesIO(jpegs[7])).convert("RGB"))
        assert np.array_equal(np.asarray(real.picture(7)), expected)
    with pytest.raises(IndexError):
        real[12]
    assert len(photographs.lsun_classroom("auto", root, size=5)) == 5


def test_an_unusable_lmdb_is_one_line(database):
    path = database[0] / "classroom_train_lmdb" / "data.mdb"
    whole = path.read_bytes()
    for content in (b"<html>please log in</html>" * 1000, whole[: len(whole) // 4]):
        path.write_bytes(content)  # lmdb maps it: a process that reads behind its end is killed
        one_line_error(lambda: photographs.lsun_classroom("auto", path.parent), "data.mdb: damaged or half downloaded")


def test_lsun_from_a_folder_of_jpegs(tmp_path):
    empty = "neither classroom_train_lmdb/data.mdb nor JPEG files"
    one_line_error(lambda: photographs.lsun_classroom("auto", tmp_path), empty)
    (tmp_path / "a").mkdir()
    for number, name in enumerate(("a/1.jpg", "a/2.JPEG", "b.webp", "notes.txt")):
        (tmp_path / name).write_bytes(encode(photograph(number), "JPEG"))
    real = photographs.lsun_classroom("real", tmp_path)
    assert len(real) == 3 and [real[index][0].shape for index in range(3)] == [(3, 64, 64)] * 3
    content = (tmp_path / "b.webp").read_bytes()
    (tmp_path / "b.webp").write_bytes(content[: len(content) // 4])
    one_line_error(lambda: real[2], "b.webp", "cannot be decoded")


def test_lsun_stand_in(monkeypatch, network):
    monkeypatch.setattr(photographs, "STAND_IN_PHOTOGRAPHS", 40)
    given = photographs.lsun_classroom("auto")
    assert given.origin == "stand-in for LSUN classroom: no folder was named, and no hub has it" and not network
    one_line_error(lambda: photographs.lsun_classroom("real"), "LSUN classroom: no real data")
    assert len(given) == 168_103 and given.kind == "stand-in"
    image, label = given[168_102]
    assert image.shape == (3, 64, 64) and image.dtype == torch.float32 and label == 0
    assert -1 <= image.min() < -0.3 and 0.3 < image.max() <= 1 and torch.equal(image, given[168_102 % 40][0])
    assert given.store == photographs.lsun_classroom("stand-in").store  # the same every time
    assert len(set(given.store)) == 40 and 8_000 < np.mean([len(jpeg) for jpeg in given.store]) < 25_000
    pictures = [np.asarray(given.picture(index)) for index in range(40)]
    assert {picture.shape for picture in pictures} == {(256, 341, 3), (341, 256, 3)}
    # no cut-out reaches over the edge of its photograph
    assert min(picture[[0, 0, -1, -1], [0, -1, 0, -1]].max() for picture in pictures) > 0


def test_the_shorter_side_becomes_64_and_the_middle_is_taken():
    bands = np.zeros((256, 512, 3), np.uint8)  # black, 200 px wide; then red up to 312; then white
    bands[:, 200:312] = (255, 0, 0)
    bands[:, 312:] = 255
    wide = photographs.dcgan_transform(Image.fromarray(bands))
    upright = photographs.dcgan_transform(Image.fromarray(bands.transpose(1, 0, 2).copy())).transpose(1, 2)
    # 512 × 256 becomes 128 × 64, of which columns 32 to 96 stay: red is 50 to 78 there, so 18 to 46 in the item
    assert wide.shape == (3, 64, 64) and torch.equal(wide, upright)
    assert (wide[0, :, :17] == -1).all() and (wide[0, :, 19:] == 1).all()
    assert (wide[1, :, :45] == -1).all() and (wide[1, :, 47:] == 1).all()


CONTEXTS = ["spawn", *(["fork"] if sys.platform == "linux" else [])]  # macOS's libraries do not survive fork


@pytest.mark.parametrize("context", CONTEXTS)
def test_workers_read_the_lmdb_and_draw_pairs_of_their_own(database, context):
    digits = data_images.mnist("stand-in", size=1000)
    real, pairs = photographs.lsun_classroom("real", database[0]), data_images.MNISTPairs(digits)
    expected = torch.stack([real[index][0] for index in range(12)])
    _ = pairs[0]  # the parent's generator is in use when the workers start
    both = torch.utils.data.ConcatDataset([real, pairs])  # one set of workers, since one takes seconds to start
    batches = [range(place, place + 4) for place in range(0, 20, 4)]  # three of photographs, two of pairs
    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(both, batch_sampler=batches, num_workers=2, multiprocessing_context=context)
    *images, first, second = [batch[0] for batch in loader]
    assert torch.equal(torch.cat(images), expected)
    assert not torch.equal(first, second)  # drawn by different workers


def test_importing_and_stand_ins_take_no_framework(tmp_path):
    write(tmp_path / "train.parquet", image_table(*arrays()))
    program = f"""
import json, sys
from pomology.data import images, photographs, speech, text
images.mnist("stand-in", size=50), images.cifar10("stand-in", size=50), text.imdb("stand-in", size=5)
speech.common_voice("stand-in")[0], text.windows(text.penn_treebank("stand-in").train, 8)
before = sorted(sys.modules)
images.fashion_mnist("real", {str(tmp_path)!r})  # a TensorFlow notebook reads it, too: one framework to a process
print(json.dumps([before, sorted(sys.modules)]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    before, after = ({*modules} for modules in json.loads(done.stdout))
    frameworks = {"torch", "tensorflow", "mlx", "jax", "transformers", "datasets"}
    assert not (frameworks | {"pandas", "pyarrow", "lmdb", "tokenizers", "soundfile"}) & before
    assert "pyarrow" in after and not (frameworks | {"sklearn"}) & after
