"""Synthetic data: shapes and sizes of the real data, and that a small model can learn it."""

import numpy as np
import pytest

from pomology.data import images, speech, text


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
