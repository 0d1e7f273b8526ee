"""Items as the articles' scripts read them, also in DataLoader's workers."""

import pickle
import subprocess
import sys

import lmdb
import numpy as np
import torch
from offline import one_line_error

from pomology.data import digits, images, photographs, synthetic, text


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


def test_batches_of_text_have_the_article_s_number():
    columns = text.batchify(np.arange(2_088_628), 20)
    batches = list(text.LanguageBatches(columns))
    assert len(batches) == len(text.LanguageBatches(columns)) == 2984
    assert batches[-1][0].shape == (25, 20)
    assert all((target == (data + 1).reshape(-1)).all() for data, target in batches)
    inputs, targets = text.windows(np.arange(100, 111), 3)
    assert inputs.tolist() == [[k, k + 1, k + 2] for k in range(100, 108)]
    assert (targets == inputs + 1).all()


def test_data_of_keras_and_mlx_notebooks_needs_no_pytorch():
    program = """
import sys
from pomology.data import images, speech, text
images.fashion_mnist("stand-in", "", 20), text.corpus(text.PENN_TREEBANK, "stand-in", "", 20)
assert not {"torch", "tensorflow", "mlx", "jax"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_images_are_side_by_side_and_keep_their_grey_values():
    row = images.pictures([np.array([[0, 51], [102, 255]]), np.zeros((2, 2))])
    assert row.size == (2 * 64, 64) and [row.getpixel((x, 0)) for x in (0, 32, 64)] == [0, 51, 0]
    colours = images.pictures([np.full((64, 8, 3), 0.6)])
    assert colours.size == (8, 64) and colours.getpixel((0, 0)) == (153, 153, 153)
