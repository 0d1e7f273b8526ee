"""Items as the articles' scripts read them, and synthetic data that a small model can learn."""

import pickle

import lmdb
import numpy as np
import pytest
import torch
from offline import one_line_error
from PIL import Image

from pomology.data import digits, hub, images, photographs, speech, synthetic, text
from pomology.errors import PomologyError


def test_mnist_items_are_exact():
    source = images.mnist("stand-in", "", 20)
    image, label = digits.ArticleMNIST(source)[11]
    assert type(label) is int and label == source.labels[11]
    assert image.shape == (1, 28, 28) and image.dtype == torch.float32
    assert np.array_equal(image[0].numpy(), source.images[11] / np.float32(255))


def test_pairs_are_of_one_class_at_even_indices():
    source = images.mnist("stand-in", "", 300)
    pairs = digits.MNISTPairs(source)

    def place_of(image):
        (place,) = np.flatnonzero((source.images == image.numpy().astype(np.uint8)).all((1, 2)))
        return place

    for index in range(100):
        first, second, target = pairs[index]
        assert first.shape == (1, 28, 28) and first.dtype == target.dtype == torch.float32
        places = [place_of(first), place_of(second)]
        label, other = source.labels[places]
        assert places[0] != places[1] and target == (label == other) == (index % 2 == 0)
    few = images.mnist("stand-in", "", 5)
    one_line_error(lambda: digits.MNISTPairs(few), "two images of every class")


def test_a_worker_can_read_lsun(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "classroom_train_lmdb"  # as written by LSUN's tool
    jpegs = synthetic.photographs(4)
    with lmdb.open(str(folder), map_size=1 << 24) as database, database.begin(write=True) as change:
        for number, file in enumerate(jpegs):
            change.put(f"{number:040}".encode(), file)
    real = photographs.lsun_classroom("real", str(tmp_path))
    assert "local folder; 4 images where the article has 168,103" in real.origin
    assert list(tmp_path.iterdir()) == [folder]
    sent = pickle.dumps(real)
    del real  # a process can open the database only once
    files, received = photographs.JPEGs(jpegs), pickle.loads(sent)
    for index in range(4):
        assert torch.equal(received[index][0], files[index][0])


def test_photographs_of_any_names_and_sizes_are_read(tmp_path):
    sizes = {"a b/Übung 1.JPG": (300, 200), "x.png": (40, 90), "c/d/e.webp": (64, 64)}
    for name, size in sizes.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (255, 0, 0)).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / ".hidden.png").write_text("no image, either")
    real = photographs.lsun_classroom("real", str(tmp_path))
    assert len(real) == 168_103 and real.kind == "real"
    assert real.origin.endswith("other photographs, of a local folder; 3 files, which repeat")
    sent = pickle.loads(pickle.dumps(real))
    for index in (0, 1, 2, 168_102):
        image, label = sent[index]
        assert image.shape == (3, 64, 64) and label == 0
        assert image[0].min() > 0.9 and image[1:].max() < -0.9  # red
    # One that is no image is named when it is read.
    (tmp_path / "x.png").write_bytes(b"no image")
    broken = photographs.lsun_classroom("real", str(tmp_path))
    with pytest.raises(PomologyError, match=r"x\.png: damaged or another file"):
        broken[2]
    for path in tmp_path.rglob("*.*"):
        path.unlink()
    with pytest.raises(PomologyError, match=r"no classroom_train_lmdb and no file of an image in"):
        photographs.lsun_classroom("real", str(tmp_path))


def test_a_folder_of_all_datasets_may_have_other_images(tmp_path, monkeypatch):
    Image.new("L", (28, 28)).save(tmp_path / "digit.png")
    monkeypatch.setenv(hub.FOLDER, str(tmp_path))
    assert photographs.lsun_classroom("auto").kind == "stand-in"


def test_batches_of_text_have_the_article_s_number():
    columns = text.batchify(np.arange(2_088_628), 20)
    batches = list(text.LanguageBatches(columns))
    assert len(batches) == len(text.LanguageBatches(columns)) == 2984
    assert batches[-1][0].shape == (25, 20)
    assert all((target == (data + 1).reshape(-1)).all() for data, target in batches)
    inputs, targets = text.windows(np.arange(100, 111), 3)
    assert inputs.tolist() == [[k, k + 1, k + 2] for k in range(100, 108)]
    assert (targets == inputs + 1).all()


@pytest.mark.parametrize(
    ("load", "count", "shape"),
    [(images.mnist, 60_000, (28, 28)), (images.cifar10, 50_000, (32, 32, 3))],
)
def test_images(load, count, shape):
    train, test = load("stand-in"), load("stand-in", split="test")
    assert train.images.shape == (count, *shape) and train.images.dtype == np.uint8
    assert test.images.shape == (10_000, *shape) and set(train.labels) == set(range(10))
    assert np.array_equal(load("stand-in", "", 100).images, train.images[:100])
    means = [train.images[:2000][train.labels[:2000] == label].mean(0) for label in range(10)]
    distances = [((test.images[:500] - mean) ** 2).reshape(500, -1).sum(1) for mean in means]
    assert (np.argmin(distances, 0) == test.labels[:500]).mean() > 0.9


@pytest.mark.parametrize("source", [text.WIKITEXT2, text.PENN_TREEBANK])
def test_text(source):
    corpus = text.corpus(source, "stand-in")
    train, valid, size = corpus.train, corpus.valid, corpus.vocabulary
    assert {"train": len(train), "valid": len(valid)} == source.tokens
    assert len(set(corpus.words)) == size == source.vocabulary
    assert np.array_equal(np.unique(train), np.arange(size))
    # A word's most frequent successor in one part often follows it in the other, too.
    pairs, times = np.unique(train[:-1] * size + train[1:], return_counts=True)
    pairs = pairs[np.argsort(times)]
    successor = np.zeros(size, np.int64)
    successor[pairs // size] = pairs % size
    right = (successor[valid[:-1]] == valid[1:]).mean()
    assert right > 2 * np.bincount(valid).max() / len(valid)


def test_reviews():
    corpus = text.reviews()
    tokens, mask, labels = corpus.tokens, corpus.mask, corpus.labels
    assert tokens.shape == mask.shape == (25_000, 128) and 0.48 < labels.mean() < 0.52
    assert ((tokens == text.END_OF_TEXT) == (mask == 0)).all()
    seen, unseen = slice(20_000), slice(20_000, None)
    praise, blame = (
        np.bincount(tokens[seen][labels[seen] == label].ravel(), minlength=50_257)
        for label in (1, 0)
    )
    weight = np.log(praise + 1) - np.log(blame + 1)  # naive Bayes
    score = (weight[tokens[unseen]] * mask[unseen]).sum(1)
    assert ((score > 0) == labels[unseen]).mean() > 0.9


def test_speech():
    spectra = {}
    for clip in speech.stand_in(40).clips:
        features, labels = clip["input_features"], clip["labels"]
        assert features.shape == (80, 3000) and labels.shape == (32,)
        assert labels[:3].tolist() == [speech.ENGLISH, speech.TRANSCRIBE, speech.NO_TIMESTAMPS]
        spoken = labels[3 : labels.tolist().index(speech.END)]
        for place, number in enumerate(spoken):  # a token always sounds the same
            spectrum = features[:, 30 * place : 30 * place + 30].mean(1)
            assert np.abs(spectra.setdefault(number, spectrum) - spectrum).max() < 0.2
    assert len(spectra) > 50
