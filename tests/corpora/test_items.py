"""Items as the articles' scripts read them, also in DataLoader's workers."""

import json
import random
import subprocess
import sys

import lmdb
import numpy as np
import pytest
import torch
from offline import one_line_error
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader

from pomology.data import digits, images, photographs, synthetic, text


def test_mnist_items_are_exact():
    source = images.mnist("stand-in", "", 20)
    image, label = digits.ArticleMNIST(source)[11]
    assert type(label) is int and label == source.labels[11]
    assert image.shape == (1, 28, 28) and image.dtype == torch.float32
    assert np.array_equal(image[0].numpy(), source.images[11] / np.float32(255))


def test_pairs_are_of_one_class_at_even_indices_and_follow_their_seed():
    source = images.mnist("stand-in", "", 300)
    pairs = digits.MNISTPairs(source)

    def place_of(image):
        (place,) = np.flatnonzero((source.images == image.numpy().astype(np.uint8)).all((1, 2)))
        return place

    labels = set()
    for index in range(200):
        first, second, target = pairs[index]
        assert first.shape == second.shape == (1, 28, 28) and target.shape == ()
        assert first.dtype == second.dtype == target.dtype == torch.float32
        places = [place_of(first), place_of(second)]
        label, other = source.labels[places]
        assert places[0] != places[1] and target == (label == other) == (index % 2 == 0)
        labels |= {label, other}
    assert labels == set(range(10))

    def draw(seed):
        random.seed(seed)
        return torch.stack([pairs[index][0] for index in range(10)])

    assert torch.equal(draw(1), draw(1)) and not torch.equal(draw(1), draw(2))
    few = images.mnist("stand-in", "", 5)
    one_line_error(lambda: digits.MNISTPairs(few), "two images of every class")


@pytest.fixture
def classrooms(tmp_path):
    """A folder as LSUN's tool leaves it, with 12 photographs."""
    folder = tmp_path / "classroom_train_lmdb"
    with lmdb.open(str(folder), map_size=1 << 24) as database, database.begin(write=True) as change:
        for number, file in enumerate(synthetic.photographs(12)):
            change.put(f"{number:040}".encode(), file)
    return tmp_path


def test_the_shorter_side_becomes_64_and_the_middle_is_taken():
    bands = np.zeros((256, 512, 3), np.uint8)  # black, red from 200 to 312, then white
    bands[:, 200:312] = (255, 0, 0)
    bands[:, 312:] = 255
    wide = photographs.TRANSFORM(Image.fromarray(bands))
    # 512 x 256 becomes 128 x 64, of which 32 to 96 stay; red is 50 to 78 there, 18 to 46 here.
    assert wide.shape == (3, 64, 64) and wide.dtype == torch.float32
    assert (wide[0, :, :17] == -1).all() and (wide[0, :, 19:] == 1).all()
    assert (wide[1, :, :45] == -1).all() and (wide[1, :, 47:] == 1).all()


@pytest.mark.parametrize("context", ["spawn", "fork"] if sys.platform == "linux" else ["spawn"])
def test_workers_read_lsun_and_draw_pairs_of_their_own(classrooms, context, monkeypatch):
    monkeypatch.chdir(classrooms)
    real = photographs.lsun_classroom("real", str(classrooms))
    assert "local folder; 12 images where the article has 168,103" in real.origin
    assert [path.name for path in classrooms.iterdir()] == ["classroom_train_lmdb"]
    files = photographs.JPEGs(synthetic.photographs(12))
    expected = torch.stack([files[index][0] for index in range(12)])
    source = images.mnist("stand-in", "", 1000)
    pairs = digits.MNISTPairs(source)
    _ = pairs[0]  # the parent's generator is in use when the workers start
    mnist = digits.ArticleMNIST(source)
    every = ConcatDataset([real, pairs, mnist])
    batches = [range(place, place + 4) for place in (0, 4, 8, 12, 16, 1012)]
    loader = DataLoader(every, batch_sampler=batches, num_workers=2, multiprocessing_context=context)
    *photos, first, second, items = [batch[0] for batch in loader]
    assert torch.equal(torch.cat(photos), expected)
    assert not torch.equal(first, second)  # drawn by different workers
    assert torch.equal(items, torch.stack([mnist[index][0] for index in range(4)]))


def test_batches_of_text_are_as_many_as_the_article_s():
    steps = []
    for tokens, batch_size in ((2_088_628, 20), (217_646, 10)):
        columns = text.batchify(np.arange(tokens), batch_size)
        batches = list(text.LanguageBatches(columns))
        assert len(batches) == len(text.LanguageBatches(columns))
        assert all((target == (data + 1).reshape(-1)).all() for data, target in batches)
        steps.append((len(batches), batches[-1][0].shape))
    assert steps == [(2984, (25, 20)), (622, (28, 10))]
    inputs, targets = text.windows(np.arange(100, 111), 3)
    assert inputs.tolist() == [[k, k + 1, k + 2] for k in range(100, 108)]
    assert (targets == inputs + 1).all()


def test_keras_and_mlx_notebooks_get_their_data_without_pytorch():
    program = """
import json, sys
from pomology.data import images, speech, text
images.fashion_mnist("stand-in"), text.corpus(text.PENN_TREEBANK, "stand-in")
print(json.dumps([name for name in ("torch", "tensorflow", "mlx", "jax") if name in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert json.loads(done.stdout) == []
