"""Text by words (WikiText-2, Penn Treebank) and reviews in GPT-2's tokens (IMDB), or stand-ins of the same shape.

What GPT-2 or Whisper reads needs the model's `tokenizer.json`: from the folder of the data, else from Hugging Face's
cache, else from its hub; without it the data cannot be had.
"""

import functools
import hashlib
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pomology.data import hub, synthetic
from pomology.data.hub import Dataset, Folder, Obtained, Request, damaged, obtain, shown
from pomology.errors import PomologyError

WIKITEXT2_VOCABULARY = 33_278


@dataclass(frozen=True, eq=False)
class Corpus(Obtained):
    """Text as word numbers, int64 (tokens,) each; `words[number]` is the word, "<eos>" ends a line."""

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    words: tuple[str, ...]

    @property
    def vocabulary(self) -> int:
        return len(self.words)


@dataclass(frozen=True, kw_only=True)
class _Text(Dataset):
    tokens: Mapping[str, int]  # of each part, one <eos> a line counted
    vocabulary: int
    own: str  # the author's own file, {} for the part
    md5: Mapping[str, str] = field(default_factory=dict)  # of each part's lines, as the author's file has them


_WIKITEXT2 = _Text(
    name="WikiText-2",
    hub="Salesforce/wikitext",
    revision="b08601e04326c79dfdd32d625aee71d232d685c3",
    config="wikitext-2-v1",
    columns=("text",),
    tokens={"train": 2_088_628, "valid": 217_646, "test": 245_569},
    vocabulary=WIKITEXT2_VOCABULARY,
    own="wiki.{}.tokens",
)
# The hub has a script that makes it, and parquet files that the hub made with it: a branch that the hub writes, so no
# revision pins it. The lines are pinned instead, by the sums that torchtext 0.18 (datasets/penntreebank.py) has of
# Mikolov's files.
_PENN_TREEBANK = _Text(
    name="Penn Treebank",
    hub="ptb-text-only/ptb_text_only",
    config="penn_treebank",
    columns=("sentence",),
    file="{}/0000.parquet",
    revision="refs/convert/parquet",
    tokens={"train": 929_589, "valid": 73_760, "test": 82_430},
    vocabulary=10_000,
    own="ptb.{}.txt",
    md5={
        "train": "f26c4b92c5fdc7b3f8c7cdcb991d8420",
        "valid": "aa0affc06ff7c36e977d7cd49e3839bf",
        "test": "8b80168b89c18661a38ef683c0dc3721",
    },
)


def wikitext2(source: str = "auto", folder: Folder = None, size: int | None = None) -> Corpus:
    """WikiText-2 by words, 33,278 different ones: 2,088,628 tokens to train, 217,646 to validate, 245,569 to test.
    The variant wikitext-2-v1, without rare words. `folder`: its wiki.train.tokens and the others, or parquet."""
    return _corpus(_WIKITEXT2, (source, folder, size))


def penn_treebank(source: str = "auto", folder: Folder = None) -> Corpus:
    """Penn Treebank by words, 10,000 different ones: 929,589 tokens to train, 73,760 to validate, 82,430 to test.
    `folder`: Mikolov's ptb.train.txt, ptb.valid.txt and ptb.test.txt, or parquet."""
    return _corpus(_PENN_TREEBANK, (source, folder, None))


def _corpus(dataset: _Text, request: Request) -> Corpus:
    def read(root: Path | None) -> tuple[Any, str]:
        """Numbers words by their appearance. One `<eos>` is behind every line, empty ones too, as in the article."""
        numbers: dict[str, int] = {}
        tokens, origins = {}, []
        for part in dataset.tokens:
            split = "validation" if part == "valid" and not root else part
            paths, origin = hub.split_files(dataset, root, split, dataset.own.format(part), f"{part}.txt")
            if paths[0].suffix == ".parquet":
                lines = hub.read_parquet(paths, dataset.columns)[0].to_pylist()
                if not root and dataset.md5 and (md5 := _md5(lines)) != dataset.md5[part]:
                    raise hub.Unavailable(f"{origin}, has another text: MD5 of {part} {md5}, not {dataset.md5[part]}")
            else:
                lines = io.StringIO(hub.read_text(paths[0]))
            words = (word for line in lines for word in (*line.split(), "<eos>"))
            tokens[part] = np.array([numbers.setdefault(word, len(numbers)) for word in words], np.int64)
            origins.append(origin)
        return (tokens, tuple(numbers)), max(origins)  # downloaded, if one of them was

    stand_in = functools.partial(synthetic.text, dataset.tokens, dataset.vocabulary)
    (tokens, words), kind, origin = obtain(dataset, request, read, stand_in)
    counts = {part: len(numbers) for part, numbers in tokens.items()}
    if 0 in counts.values():
        raise PomologyError(f"{origin}: a part is empty ({counts}): get it again")
    if counts != dataset.tokens or len(words) != dataset.vocabulary:
        here, article = (" + ".join(f"{count:,}" for count in c.values()) for c in (counts, dataset.tokens))
        origin += f"; {here} tokens, {len(words):,} words where the article has {article}, {dataset.vocabulary:,}"
    first = {part: numbers[: request[-1]] for part, numbers in tokens.items()}
    return Corpus(**first, words=words, name=dataset.name, kind=kind, origin=origin)


def _md5(lines: Iterable[str]) -> str:
    """Of the lines as Mikolov wrote them: a blank before each word, and one before the end of the line."""
    text = "".join(f" {' '.join(line.split())} \n" for line in lines)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def batchify(tokens: np.ndarray, batch_size: int) -> np.ndarray:
    """Tokens (n,) in `batch_size` columns of running text, (n // batch_size, batch_size); the rest is dropped."""
    rows = len(tokens) // batch_size
    return np.ascontiguousarray(tokens[: rows * batch_size].reshape(batch_size, rows).T)


class LanguageBatches:
    """(data, target) along the rows of what `batchify` made, array or tensor: data (≤ bptt, batch), target flat."""

    def __init__(self, tokens: Any, bptt: int = 35):
        self.tokens, self.bptt, self.last = tokens, bptt, len(tokens) - 1

    def __len__(self) -> int:
        return max(0, -(-self.last // self.bptt))

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for start in range(0, self.last, self.bptt):
            end = min(start + self.bptt, self.last)
            yield self.tokens[start:end], self.tokens[start + 1 : end + 1].reshape(-1)


def windows(tokens: np.ndarray, context_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets (n, context_size) each, of running text (tokens,): a target is the token behind its input.
    A window begins at every token. Views of `tokens`, read only."""
    if not 1 <= context_size < len(tokens):
        raise PomologyError(f"windows: context_size {context_size:,} should be 1 to {len(tokens) - 1:,}")
    every = np.lib.stride_tricks.sliding_window_view(tokens, context_size + 1)
    return every[:, :-1], every[:, 1:]


IMDB_REVIEWS = 25_000  # to train on
GPT2_REVISION = "607a30d783dfa663caf39e06633721c8d4cfcd7e"  # as huggingface_hub's documentation has it
END_OF_TEXT = 50_256  # GPT-2 has no token for padding: its end of text pads
IGNORED = -100  # a label that the losses of transformers pass over

_IMDB = Dataset(
    name="IMDB",
    hub="stanfordnlp/imdb",
    revision="e6281661ce1c48d982bc483cf8a173c1bbeb5d31",
    config="plain_text",
    columns=("text", "label"),
)


@dataclass(frozen=True, eq=False)
class Reviews(Obtained):
    """Texts in tokens, right-padded: `tokens` and `mask` int64 (n, length), mask 1 where text is; `labels` (n,)."""

    tokens: np.ndarray
    mask: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.tokens[index], "attention_mask": self.mask[index], "labels": self.labels[index]}


def imdb(source: str = "auto", folder: Folder = None, length: int = 128, size: int | None = None) -> Reviews:
    """IMDB (stanfordnlp/imdb): the 25,000 reviews of films to train on, label 0 for blame and 1 for praise.

    Cut or padded to `length` of GPT-2's tokens, and in an order drawn once for all, as the published one is by label:
    the first few are of both. `folder`: parquet.
    """
    if length < 1:
        raise PomologyError(f"IMDB length: {length} should be at least 1 token")

    def read(root: Path | None) -> tuple[tuple, str]:
        paths, origin = hub.split_files(_IMDB, root, "train")
        texts, labels = (column.to_pylist() for column in hub.read_parquet(paths, _IMDB.columns).columns)
        if {*labels} != {0, 1}:
            raise PomologyError(f"{shown(paths[0])}: labels should be 0 or 1, and reviews of both be there")
        order = np.random.default_rng(0).permutation(len(texts))[:size]
        chosen = [texts[place] for place in order]
        marks = {"<|endoftext|>": END_OF_TEXT}
        tokenizer, words = load_tokenizer("GPT-2", "openai-community/gpt2", GPT2_REVISION, marks, root)
        tokens, lengths = np.full((len(order), length), END_OF_TEXT, np.int64), np.empty(len(order), np.int64)
        for start in range(0, len(order), 1000):  # an encoding holds far more than its numbers
            part = tokenizer.encode_batch(chosen[start : start + 1000], add_special_tokens=False)
            for row, encoding in enumerate(part, start):
                lengths[row] = min(len(encoding.ids), length)
                tokens[row, : lengths[row]] = encoding.ids[:length]
        return (tokens, lengths, np.array(labels, np.int64)[order], len(texts)), origin + words

    def stand_in() -> tuple:
        return *synthetic.reviews(min(size or IMDB_REVIEWS, IMDB_REVIEWS), length), IMDB_REVIEWS

    (tokens, lengths, labels, count), kind, origin = obtain(_IMDB, (source, folder, size), read, stand_in)
    if count != IMDB_REVIEWS:
        origin += f"; {count:,} reviews where the article has {IMDB_REVIEWS:,}"
    mask = (np.arange(length) < lengths[:, None]).astype(np.int64)
    return Reviews(tokens, mask, labels, name="IMDB", kind=kind, origin=origin)


def load_tokenizer(
    model: str, repository: str, revision: str, marks: Mapping[str, int], folder: Path | None
) -> tuple[Any, str]:
    """A `tokenizers.Tokenizer`, and where it is from. revision: a commit of the hub's. marks: tokens that distinguish
    it from those of other models, whose files have the same name."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # as is, but without a warning at every later fork
    import tokenizers

    path, how = folder and folder / "tokenizer.json", "in the folder"
    if not path or not path.is_file():
        path, how = hub.hub_file(repository, "tokenizer.json", revision)
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # it raises nothing narrower
        raise damaged(path, error) from error
    for token, number in marks.items():
        if (actual := tokenizer.token_to_id(token)) != number:
            raise PomologyError(f"{shown(path)}: {token} is {actual}, should be {number}: not the tokenizer of {model}")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer, f"; tokenizer of {model} {how}"
