"""WikiText-2 and Penn Treebank as words, or synthetic text; reviews in GPT-2's tokens."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pomology.data import hub, synthetic
from pomology.data.synthetic import END_OF_TEXT

IMDB_REVIEWS = 25_000  # of the training set
IGNORED = -100  # a label that transformers' losses ignore


@dataclass(frozen=True, eq=False)
class Corpus(hub.Obtained):
    """Text as word indices int64 (tokens,) into `words`; "<eos>" ends a line."""

    train: np.ndarray
    valid: np.ndarray
    words: list[str]

    @property
    def vocabulary(self) -> int:
        return len(self.words)


@dataclass(frozen=True, kw_only=True)
class TextDataset(hub.Dataset):
    """A dataset with a text in a column, and its expected size, with one <eos> per line."""

    column: str
    tokens: dict[str, int]
    vocabulary: int


WIKITEXT2 = TextDataset(
    "WikiText-2",
    "Salesforce/wikitext",
    "b08601e04326c79dfdd32d625aee71d232d685c3",
    "wikitext-2-v1",
    column="text",
    tokens={"train": 2_088_628, "valid": 217_646},
    vocabulary=33_278,
)
# The hub regenerates this branch, so the counts of tokens and words verify the text.
PENN_TREEBANK = TextDataset(
    "Penn Treebank",
    "ptb-text-only/ptb_text_only",
    "refs/convert/parquet",
    "penn_treebank",
    "{}/0000.parquet",
    column="sentence",
    tokens={"train": 929_589, "valid": 73_760},
    vocabulary=10_000,
)


def corpus(text: TextDataset, source: str, folder: str = "", size: int = 0) -> Corpus:
    """Return the words of `WIKITEXT2`, without rare words, or of `PENN_TREEBANK`."""
    size = 0 if size >= text.tokens["train"] else size  # all of them

    def read(root):
        numbers: dict[str, int] = {}  # word -> index, in order of first appearance
        parts = {}
        for part, split in {"train": "train", "valid": "validation"}.items():
            path, origin = hub.find(text, split, root)
            (lines,) = hub.read_parquet(path, text.column)
            words = [word for line in lines for word in (*line.split(), "<eos>")]
            parts[part] = np.array([numbers.setdefault(word, len(numbers)) for word in words])
        counts = {part: len(tokens) for part, tokens in parts.items()}
        if (counts, len(numbers)) != (text.tokens, text.vocabulary):
            expected = f"expected {text.tokens} of {text.vocabulary} words"
            raise hub.damaged(path, f"{counts} tokens of {len(numbers)} words, {expected}")
        return (parts, list(numbers)), origin

    def stand_in():
        return synthetic.text(text.tokens, text.vocabulary)

    (parts, words), provenance = hub.obtain(text.name, source, folder, size, read, stand_in)
    train, valid = (tokens[: size or None] for tokens in parts.values())
    return Corpus(train, valid, words, **provenance)


def batchify(tokens: np.ndarray, batch_size: int) -> np.ndarray:
    """Return tokens (n,) as columns of continuous text, (n // batch_size, batch_size)."""
    rows = len(tokens) // batch_size
    return np.ascontiguousarray(tokens[: rows * batch_size].reshape(batch_size, rows).T)


class LanguageBatches:
    """Batches along the rows of `batchify`: data (up to bptt, batch) and flat targets."""

    def __init__(self, tokens: Any, bptt: int = 35):
        self.tokens = tokens
        self.bptt = bptt
        self.starts = range(0, len(tokens) - 1, bptt)

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for start in self.starts:
            end = min(start + self.bptt, self.starts.stop)
            yield self.tokens[start:end], self.tokens[start + 1 : end + 1].reshape(-1)


def windows(tokens: np.ndarray, context_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a window of inputs at every token, (n, context_size), and targets one token later."""
    every = np.lib.stride_tricks.sliding_window_view(tokens, context_size + 1)
    return every[:, :-1], every[:, 1:]


@dataclass(frozen=True, eq=False)
class Reviews(hub.Obtained):
    """Reviews: `tokens` and `mask` (1 for text, 0 for padding) int64 (n, length), and `labels`."""

    tokens: np.ndarray
    mask: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "input_ids": self.tokens[index],
            "attention_mask": self.mask[index],
            "labels": self.labels[index],
        }


def reviews(size: int = 0, length: int = 128) -> Reviews:
    """Return synthetic reviews in the shape of IMDB, with label 0 (negative) or 1 (positive).

    size: 0 is IMDB's 25,000. length: of each review in GPT-2's tokens, cut or padded. A step costs
    the same as with real reviews.
    """
    size = size or IMDB_REVIEWS
    tokens, labels = synthetic.reviews(size, length)
    mask = (tokens != END_OF_TEXT).astype(np.int64)
    origin = f"synthetic data in place of IMDB: {size:,} reviews"
    return Reviews(tokens, mask, labels, name="IMDB", kind="stand-in", origin=origin)
