"""Synthetic data in place of the articles' datasets: a template per class, with noise.

It has the real data's number of samples, shapes, types and classes. It is equal in every call, is
made in seconds without files or network, and can be learned by a model.
"""

import io
import zlib
from collections.abc import Sequence

import numpy as np
from PIL import Image

END_OF_TEXT = 50_256  # GPT-2's
SPOKEN = 100  # different tokens in the speech


def images(shape: tuple[int, ...], split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images uint8 of a shape (N, height, width[, 3]) and labels int64 (N,), ten classes.

    A class is a pattern of squares of 4 x 4 pixels. The first images are the same for every N.
    """
    count, height, width, *channels = shape
    coarse = (10, height // 4, width // 4, *channels)
    patterns = np.random.default_rng(0).integers(0, 224, coarse, np.uint8)
    patterns = patterns.repeat(4, axis=1).repeat(4, axis=2)
    # Seeds of two numbers make labels and noise independent of each other, in each split anew.
    seed = ("train", "test").index(split)
    labels = np.random.default_rng([1, seed]).integers(0, 10, count)
    noise = np.random.default_rng([2, seed]).integers(0, 32, shape, np.uint8)
    return patterns[labels] + noise, labels


def photographs(count: int) -> list[bytes]:
    """Return JPEG files of 341 x 256 pixels: coloured spots, with noise for a usual file size."""
    generator = np.random.default_rng(0)
    files = []
    for _ in range(count):
        spots = Image.fromarray(generator.integers(0, 256, (6, 8, 3), np.uint8))
        soft = np.asarray(spots.resize((341, 256), Image.Resampling.BICUBIC), np.int16)
        noisy = soft + generator.integers(-14, 15, (256, 341, 1), np.int16)
        file = io.BytesIO()
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=75)
        files.append(file.getvalue())
    return files


def text(counts: dict[str, int], vocabulary: int) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return tokens int64 of each part, and the words, all of which occur in the first part.

    Word frequencies follow Zipf's law. Half of the words at odd places depend on the one before.
    """
    generator = np.random.default_rng(0)
    total = sum(counts.values())
    tokens = generator.zipf(1.2, total) % vocabulary
    successor = generator.permutation(vocabulary)
    odd = np.arange(1, total, 2)
    odd = odd[generator.random(len(odd)) < 0.5]
    tokens[odd] = successor[tokens[odd - 1]]
    # Each word occurs, also a rare one that was not drawn.
    tokens[:vocabulary] = np.arange(vocabulary)
    parts = np.split(tokens, np.cumsum(list(counts.values()))[:-1])
    words = ["<eos>", *(f"word-{number}" for number in range(1, vocabulary))]
    return dict(zip(counts, parts, strict=True)), words


def reviews(count: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return reviews in GPT-2's tokens int64 (count, length), and their labels int64 (count,).

    10 % of the tokens are among 100 of the review's class. The end of text pads.
    """
    generator = np.random.default_rng(0)
    first = generator.integers(0, 2, count // 2 + 1).repeat(2)[:count]
    labels = (first + np.arange(count)) % 2  # a small batch has both classes
    tokens = 200 + generator.zipf(1.2, (count, length)) % (END_OF_TEXT - 200)
    opinions = labels[:, None] * 100 + generator.integers(0, 100, (count, length))
    tokens = np.where(generator.random((count, length)) < 0.1, opinions, tokens)
    words = generator.lognormal(np.log(230), 0.47, (count, 1))  # IMDB's median and spread
    tokens[np.arange(length) >= words] = END_OF_TEXT
    return tokens, labels


def speech(index: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Return log-mel features float32 (80, 3000) of a clip, and its up to `tokens` text tokens.

    Each token lasts 0.3 s and has its own spectrum. Silence fills the clip up to 30 s.
    """
    spectra = np.random.default_rng(0).uniform(-0.8, 1.2, (SPOKEN, 80))
    generator = np.random.default_rng([1, index])
    numbers = generator.integers(0, SPOKEN, min(generator.integers(6, 24), tokens))
    sound = spectra[numbers].repeat(30, axis=0).T  # a frame is 10 ms
    features = np.full((80, 3000), -0.8, np.float32)
    features[:, : sound.shape[1]] = sound + generator.normal(0, 0.1, sound.shape)
    return features, numbers


def checksum(batches: Sequence[Sequence[np.ndarray]]) -> int:
    """Return a checksum of the arrays of batches, which is equal in every framework."""
    arrays = [np.ascontiguousarray(array) for batch in batches for array in batch]
    return zlib.crc32(b"".join(array.tobytes() for array in arrays))
