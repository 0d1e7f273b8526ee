"""What stands in for an article's dataset where that is not at hand: arrays of the same shape, types and size.

Grown from the samples in `resources/samples` and the text that Python itself carries: without any other file, network
or framework, in seconds, the same on every call. A model can learn each. `pomology.data.hub` decides when to use them.
"""

import io
import math
from collections.abc import Mapping
from importlib.resources import files

import numpy as np
from PIL import Image

_SAMPLES = files("pomology") / "resources" / "samples"
_PIECE = 4096  # images at a time: the floating-point copy of all would take hundreds of megabytes
_SHAPES = 6_000  # different ones behind the 60,000 for Fashion-MNIST and the 50,000 for CIFAR-10

# --- labelled images: (images, labels) of `count` images of one split; the first n are the same for every count


def digits(count: int, split: str, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """For MNIST: uint8 (count, 28, 28), digits grown from the bundled 8 × 8 ones, which differ in train and test:
    turned, sheared, scaled, shifted, thicker and thinner."""
    table = np.loadtxt(str(_SAMPLES / "digits.csv.gz"), delimiter=",", dtype=np.uint8)  # 64 pixels to 16, and the label
    order = np.random.default_rng(0).permutation(len(table))
    table = table[order[300:] if split == "train" else order[:300]]
    # a margin, so that strokes at the edge fade out instead of being cut
    originals = [Image.fromarray(np.pad(row.reshape(8, 8) * np.uint8(15), 1)) for row in table[:, :64]]
    draws = _generator(seed, split).random((count, 8))
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
    for piece in _pieces(count):
        images[piece] = np.clip((images[piece] - threshold[piece]) * np.float32(2.2), 0, 255)
    return images, table[which, 64].astype(np.int64)


def cloth_digits(count: int, split: str) -> tuple[np.ndarray, np.ndarray]:
    """For Fashion-MNIST: uint8 (count, 28, 28), digits cut out of the photographs, turned to grey, as of cloth."""
    shapes, labels = digits(min(count, _SHAPES), split, seed=2)
    which = np.arange(count) % len(shapes)
    cloth = _cut_outs(28, count, _generator(3, split)).mean(axis=3, dtype=np.float32)
    images = np.empty((count, 28, 28), np.uint8)
    for piece in _pieces(count):
        images[piece] = shapes[which[piece]] * (0.35 + cloth[piece] * np.float32(0.65 / 255))
    return images, labels[which]


def digits_on_photographs(count: int, split: str) -> tuple[np.ndarray, np.ndarray]:
    """For CIFAR-10: uint8 (count, 32, 32, 3), digits before pieces of the photographs, coloured by class, roughly."""
    shapes, labels = digits(min(count, _SHAPES), split, seed=4)
    which = np.arange(count) % len(shapes)
    draws = _generator(5, split).random((count, 2), np.float32)
    hue = labels[which] / 10 + 0.3 * (draws[:, 0] - 0.5)
    colour = 130 + 110 * np.cos(2 * np.pi * (hue[:, None] + np.array([0, 1 / 3, 2 / 3])))
    colour = (colour * (0.6 + 0.4 * draws[:, 1:2])).astype(np.float32)
    images = _cut_outs(32, count, _generator(6, split))
    for piece in _pieces(count):
        share = np.pad(shapes[which[piece]], ((0, 0), (2, 2), (2, 2)))[..., None] * np.float32(1 / 255)
        images[piece] = images[piece] * (1 - share) + colour[piece, None, None, :] * share
    return images, labels[which]


def _pieces(count: int) -> list[slice]:
    return [slice(start, start + _PIECE) for start in range(0, count, _PIECE)]


def _generator(seed: int, split: str = "train") -> np.random.Generator:
    return np.random.default_rng([seed, ("train", "test").index(split)])


def _cut_outs(side: int, count: int, generator: np.random.Generator) -> np.ndarray:
    """Square pieces of the two photographs at half their size, some mirrored: uint8 (count, side, side, 3)."""
    halves = np.stack([np.asarray(photograph.reduce(2)) for photograph in _bundled_photographs()])
    height, width = halves.shape[1:3]
    every = np.lib.stride_tricks.sliding_window_view(halves, (side, side), axis=(1, 2))  # a view: copies nothing
    draws = generator.random((count, 4))
    which, top, left, mirror = (draws * [2, height - side + 1, width - side + 1, 2]).astype(np.int64).T
    pieces = np.empty((count, side, side, 3), np.uint8)
    for flipped in (0, 1):
        rows = np.flatnonzero(mirror == flipped)
        chosen = every[which[rows], top[rows], left[rows]].transpose(0, 2, 3, 1)
        pieces[rows] = chosen[:, :, ::-1] if flipped else chosen
    return pieces


def text(counts: Mapping[str, int], vocabulary: int) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """A text of the article's length and vocabulary: a Markov chain over Python's language reference, and rare words.

    Nine tokens in ten follow the chain of its word pairs; the tenth is one of the words that it lacks, by Zipf's law.
    Every word occurs in `train`. Releases of Python differ a little in the reference.
    """
    from pydoc_data.topics import topics

    numbers: dict[str, int] = {}
    paragraphs = [part.split() for topic in sorted(topics) for part in topics[topic].split("\n\n")]
    reference = np.array([numbers.setdefault(word, len(numbers)) for part in paragraphs for word in (*part, "<eos>")])
    total, known = sum(counts.values()), len(numbers)
    generator = np.random.default_rng(0)

    # Many chains at once. One step: go to a random place where the current word stands, and read the word behind it.
    places = np.argsort(reference, kind="stable")
    count = np.bincount(reference)
    start = np.cumsum(count) - count
    following = np.roll(reference, -1)  # round in a circle: no chain can get stuck at the end
    chains = 4096
    rows = np.empty((-(-total // chains), chains), np.int64)
    rows[0] = generator.choice(reference, chains)
    for step in range(1, len(rows)):
        word = rows[step - 1]
        rows[step] = following[places[start[word] + (generator.random(chains) * count[word]).astype(np.int64)]]
    tokens = rows.T.ravel()[:total]

    rare = np.cumsum(1 / np.arange(10, 10 + vocabulary - known))
    where = np.flatnonzero(generator.random(total) < 0.1)
    ranks = np.searchsorted(rare, generator.random(len(where)) * rare[-1], side="right")
    tokens[where] = known + np.minimum(ranks, len(rare) - 1)  # the minimum: rounding must not reach behind the last

    train = tokens[: counts["train"]]  # a view: what follows changes `tokens`
    occurrences = np.bincount(train, minlength=vocabulary)
    missing = np.flatnonzero(occurrences == 0)
    frequent = np.flatnonzero(occurrences[train] > 1000)  # a word that often here will not miss a few
    train[generator.choice(frequent, len(missing), replace=False)] = missing
    parts = np.split(tokens, np.cumsum(list(counts.values()))[:-1])
    words = (*numbers, *(f"rare-{number}" for number in range(known, vocabulary)))
    return dict(zip(counts, parts, strict=True)), words


def reviews(count: int, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For IMDB in GPT-2's tokens: tokens (count, length), lengths (count,) and labels (count,), int64 all. Tokens by
    Zipf's law; about one in ten is a word of praise or of blame, mostly as the label says. Nine in ten fill 128 tokens,
    as IMDB's have some 230 words. Behind its length a review is padded by the end of text. The first n are the same for
    every count."""
    end = 50256
    words = np.random.default_rng(7).permutation(end)
    opinions, words = words[:400].reshape(2, 200), words[400:]  # of blame and of praise; the others by their rank
    zipf = np.cumsum(1 / np.arange(5, 5 + len(words)))
    first_of_two = _generator(8).integers(0, 2, -(-count // 2))
    labels = np.stack((first_of_two, 1 - first_of_two), axis=1).ravel()[:count]
    lengths = np.exp(_generator(9).normal(math.log(230), 0.47, count)).astype(np.int64)
    lengths = np.clip(lengths, min(10, length), length)
    conviction = _generator(10).beta(4, 1.5, count)  # the share of a review's opinions that are of its label
    generator = _generator(11)
    tokens = np.empty((count, length), np.int64)
    for piece in _pieces(count):
        rows = tokens[piece]
        which, side, kind = generator.random((len(rows), 3, length), np.float32).transpose(1, 0, 2)
        rows[:] = words[np.searchsorted(zipf[:-1], which * zipf[-1])]
        own, label = side < conviction[piece, None], labels[piece, None]
        opinion = kind < 0.1
        rows[opinion] = opinions[np.where(own, label, 1 - label)[opinion], (which[opinion] * 200).astype(np.int64)]
        rows[np.arange(length) >= lengths[piece, None]] = end
    return tokens, lengths, labels


def speech(index: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """For Common Voice: log-mel features float32 (80, 3000), and at most `tokens` numbers that are "said" in them.

    Each sounds for 0.3 s in two bands that follow from the number, as vowels do; then silence up to 30 s. Values are as
    Whisper's: from a floor (silence) up to 2 above it.
    """
    generator = np.random.default_rng([12, index])
    count = min(int(generator.integers(6, 24)), tokens)
    numbers = (1000 ** generator.random(count) * 50 - 50).astype(np.int64)  # Zipf's law: the frequent are the low ones
    low, high = 8 + numbers * 7 % 31, 42 + numbers * 11 % 37
    from_low, from_high = np.arange(80) - low[:, None], np.arange(80) - high[:, None]
    sound = np.exp(-(from_low**2) / 8) + 0.7 * np.exp(-(from_high**2) / 18)
    frames = np.repeat(sound.T.astype(np.float32), 30, axis=1)  # of 10 ms
    frames += generator.standard_normal(frames.shape, np.float32) * np.float32(0.15)
    features = np.full((80, 3000), -0.8, np.float32)
    features[:, : frames.shape[1]] = np.clip(frames * np.float32(1.2) - np.float32(0.5), -0.8, 1.2)
    return features, numbers


def photographs(count: int) -> list[bytes]:
    """Cut-outs of the two bundled photographs: turned, mirrored, scaled, recoloured; 341 × 256, every fifth upright."""
    bundled = _bundled_photographs()
    generator = np.random.default_rng(0)
    jpegs = []
    for number in range(count):
        photograph = bundled[number % 2]
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


def _bundled_photographs() -> list[Image.Image]:
    return [Image.open(str(_SAMPLES / name)).convert("RGB") for name in ("china.jpg", "flower.jpg")]
