"""Text by words (WikiText-2, Penn Treebank) and reviews in GPT-2's tokens (IMDB), or stand-ins of the same shape.

What GPT-2 or Whisper reads needs the model's `tokenizer.json`: from the folder of the data, else from Hugging Face's
cache, else from its hub; without it the data cannot be had.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pomology.data import synthetic
from pomology.data.hub import (
    Dataset,
    Folder,
    damaged,
    find_files,
    hub_file,
    hub_tables,
    obtain,
    read_parquet,
    read_text,
    shown,
)
from pomology.data.images import SPLITS
from pomology.errors import PomologyError

# --- running text, by words

WIKITEXT2_TOKENS = {"train": 2_088_628, "valid": 217_646, "test": 245_569}  # words and one <eos> a line

WIKITEXT2_VOCABULARY = 33_278


@dataclass(frozen=True, eq=False)
class Corpus:
    """Text as word numbers, int64 (tokens,) each; `words[number]` is the word, "<eos>" ends a line."""

    name: str
    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    words: tuple[str, ...]
    kind: str
    origin: str

    @property
    def vocabulary(self) -> int:
        return len(self.words)


@dataclass(frozen=True, kw_only=True)
class _Text(Dataset):
    tokens: Mapping[str, int]  # of each part, one <eos> a line counted
    vocabulary: int
    file: str  # the author's own, {} for the part
    # The hub has a script, which `datasets` does not run any more, and parquet files that it made of it.
    converted: bool = False


_WIKITEXT2 = _Text(
    name="WikiText-2",
    hub="Salesforce/wikitext",
    config="wikitext-2-v1",
    columns=("text",),
    tokens=WIKITEXT2_TOKENS,
    vocabulary=WIKITEXT2_VOCABULARY,
    file="wiki.{}.tokens",
)

_PENN_TREEBANK = _Text(
    name="Penn Treebank",
    hub="ptb-text-only/ptb_text_only",
    config="penn_treebank",
    columns=("sentence",),
    tokens={"train": 929_589, "valid": 73_760, "test": 82_430},
    vocabulary=10_000,
    file="ptb.{}.txt",
    converted=True,
)


def wikitext2(source: str = "auto", folder: Folder = None, size: int | None = None) -> Corpus:
    """WikiText-2 by words, 33,278 different ones: 2,088,628 tokens to train, 217,646 to validate, 245,569 to test.

    Of the variant wikitext-2-v1, in which rare words are replaced.
    """
    return _corpus(_WIKITEXT2, source, folder, size)


def penn_treebank(source: str = "auto", folder: Folder = None, size: int | None = None) -> Corpus:
    """Penn Treebank by words, 10,000 different ones: 929,589 tokens to train, 73,760 to validate, 82,430 to test.

    `folder`: Mikolov's ptb.train.txt, ptb.valid.txt and ptb.test.txt, or parquet.
    """
    return _corpus(_PENN_TREEBANK, source, folder, size)


def _corpus(dataset: _Text, source: str, folder: Folder, size: int | None) -> Corpus:
    def lines(root: Path, part: str) -> Iterable[str]:
        paths = find_files(root, dataset, part, dataset.file.format(part), f"{part}.txt")
        if paths[0].suffix == ".parquet":
            return read_parquet(paths, dataset.columns).column(0).to_pylist()
        return io.StringIO(read_text(paths[0]))

    def from_hub() -> tuple[Any, str]:
        tables, how = _converted_tables(dataset) if dataset.converted else hub_tables(dataset)
        tables["valid"] = tables["validation"]
        return _number_words({part: tables[part].column(*dataset.columns).to_pylist() for part in dataset.tokens}), how

    (tokens, words), kind, origin = obtain(
        dataset,
        (source, folder, size),
        lambda root: _number_words({part: lines(root, part) for part in dataset.tokens}),
        from_hub,
        lambda: synthetic.text(dataset.tokens, dataset.vocabulary),
    )
    counts = {part: len(numbers) for part, numbers in tokens.items()}
    if 0 in counts.values():
        raise PomologyError(f"{origin}: a part is empty ({counts}): get it again")
    if counts != dataset.tokens or len(words) != dataset.vocabulary:
        here, article = (" + ".join(f"{count:,}" for count in c.values()) for c in (counts, dataset.tokens))
        origin += f"; {here} tokens, {len(words):,} words where the article has {article}, {dataset.vocabulary:,}"
    first = {part: numbers[:size] for part, numbers in tokens.items()}
    return Corpus(dataset.name, **first, words=words, kind=kind, origin=origin)


def _converted_tables(dataset: _Text) -> tuple[dict[str, Any], str]:
    tables, how = {}, "cached"
    for split in ("train", "validation", "test"):
        file = f"{dataset.config}/{split}/0000.parquet"
        path, source = hub_file([dataset.hub], file, dataset=True, revision="refs/convert/parquet")
        tables[split], how = read_parquet([path], dataset.columns), max(how, source)  # downloaded, if one of them was
    return tables, how


def _number_words(lines: Mapping[str, Iterable[str]]) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Words by order of appearance, one `<eos>` behind every line, empty ones too: the article's counts need that."""
    numbers: dict[str, int] = {}
    tokens = {}
    for part, rows in lines.items():
        words = (word for row in rows for word in (*row.split(), "<eos>"))
        tokens[part] = np.array([numbers.setdefault(word, len(numbers)) for word in words], np.int64)
    return tokens, tuple(numbers)


def batchify(tokens: np.ndarray, batch_size: int) -> np.ndarray:
    """Tokens (n,) in `batch_size` columns of running text, (n // batch_size, batch_size); the rest is dropped."""
    rows = len(tokens) // batch_size
    return np.ascontiguousarray(tokens[: rows * batch_size].reshape(batch_size, rows).T)


class LanguageBatches:
    """(data, target) along the rows of what `batchify` made: data (≤ bptt, batch), target flat, one row further.

    Takes a numpy array or a tensor on any device: slices it, copies nothing but what flattening needs.
    """

    def __init__(self, tokens: Any, bptt: int = 35):
        self.tokens, self.bptt = tokens, bptt

    def __len__(self) -> int:
        return max(0, -(-(len(self.tokens) - 1) // self.bptt))

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        last = len(self.tokens) - 1
        for start in range(0, last, self.bptt):
            end = min(start + self.bptt, last)
            yield self.tokens[start:end], self.tokens[start + 1 : end + 1].reshape(-1)


def windows(tokens: np.ndarray, context_size: int, stride: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets (n, context_size) each, of running text (tokens,): a target is the token behind its input.

    A window begins every `stride` tokens: 1 is at every place; None is behind the last target of the window before, so
    that windows share nothing. Views of `tokens`, read only; what is too short for a window is dropped.
    """
    if context_size < 1 or (stride is not None and stride < 1):
        raise PomologyError(f"windows: context_size {context_size} and stride {stride} should be at least 1")
    if len(tokens) <= context_size:
        raise PomologyError(f"windows: {len(tokens):,} tokens are too few for a context_size of {context_size:,}")
    every = np.lib.stride_tricks.sliding_window_view(tokens, context_size + 1)[:: stride or context_size + 1]
    return every[:, :-1], every[:, 1:]


# --- reviews, in a model's tokens

IMDB_REVIEWS = 25_000  # in each of the two splits

GPT2_VOCABULARY = 50_257

END_OF_TEXT = 50_256  # GPT-2 has no token for padding: its end of text pads

IGNORED = -100  # a label that the losses of transformers pass over

_IMDB = Dataset(name="IMDB", hub="stanfordnlp/imdb", config="plain_text", columns=("text", "label"))


@dataclass(frozen=True, eq=False)
class Reviews:
    """Texts in tokens, right-padded: `tokens` and `mask` int64 (n, length), mask 1 where text is; `labels` int64 (n,).

    Items: {"input_ids", "attention_mask", "labels"}, for a classifier.
    """

    name: str
    tokens: np.ndarray
    mask: np.ndarray
    labels: np.ndarray
    kind: str
    origin: str
    vocabulary: int = GPT2_VOCABULARY

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.tokens[index], "attention_mask": self.mask[index], "labels": self.labels[index]}


def imdb(
    source: str = "auto", folder: Folder = None, split: str = "train", length: int = 128, size: int | None = None
) -> Reviews:
    """IMDB (stanfordnlp/imdb): 25,000 reviews of films, "train" or "test", label 0 for blame and 1 for praise.

    Cut or padded to `length` of GPT-2's tokens, and in an order drawn once for all, as the published one is by label:
    the first few are of both. `folder`: parquet as on the hub, or the authors' aclImdb.
    """
    if split not in SPLITS:
        raise PomologyError(f"IMDB split: {split!r} should be one of {', '.join(SPLITS)}")
    if length < 1:
        raise PomologyError(f"IMDB length: {length} should be at least 1 token")

    def tokenizer(root: Path | None = None) -> tuple[Any, str]:
        return load_tokenizer("GPT-2", ("openai-community/gpt2",), {"<|endoftext|>": END_OF_TEXT}, root)

    def from_folder(root: Path) -> tuple[Any, ...]:
        texts, labels, count = _read_reviews(root, split, size)
        return *_encode(texts, tokenizer(root), length), labels, count

    def from_hub() -> tuple[tuple[Any, ...], str]:
        gpt2 = tokenizer()  # before the reviews, which are no use without it
        tables, how = hub_tables(_IMDB)
        texts, labels, count = _choose(tables[split], size, f"{_IMDB.hub} ({split})")
        return (*_encode(texts, gpt2, length), labels, count), how

    def stand_in() -> tuple[Any, ...]:
        tokens, lengths, labels = synthetic.reviews(min(size or IMDB_REVIEWS, IMDB_REVIEWS), length, split)
        return tokens, lengths, "", labels, IMDB_REVIEWS

    (tokens, lengths, words, labels, count), kind, origin = obtain(
        _IMDB, (source, folder, size), from_folder, from_hub, stand_in
    )
    origin += words
    if count != IMDB_REVIEWS:
        origin += f"; {count:,} reviews where the article has {IMDB_REVIEWS:,}"
    mask = (np.arange(length) < lengths[:, None]).astype(np.int64)
    return Reviews("IMDB", tokens, mask, labels, kind, origin)


def _read_reviews(root: Path, split: str, size: int | None) -> tuple[list[str], np.ndarray, int]:
    """The texts that are wanted, their labels, and how many there are in all."""
    root = root / "aclImdb" if (root / "aclImdb").is_dir() else root
    folders = [root / split / name for name in ("neg", "pos")]
    if not any(folder.is_dir() for folder in folders):
        paths = find_files(root, _IMDB, split, f"{split}/neg and {split}/pos")
        return _choose(read_parquet(paths, _IMDB.columns), size, shown(paths[0]))
    import pyarrow

    files = [(str(path), label) for label, folder in enumerate(folders) for path in sorted(folder.glob("*.txt"))]
    if len({label for _, label in files}) < 2:
        raise PomologyError(f"IMDB: no reviews in {split}/neg or {split}/pos in {shown(root)}: unpack it again")
    table = pyarrow.table(dict(zip(_IMDB.columns, zip(*files, strict=True), strict=True)))
    paths, labels, count = _choose(table, size, shown(root / split))
    return [read_text(Path(path)) for path in paths], labels, count


def _choose(table: Any, size: int | None, where: str) -> tuple[list[str], np.ndarray, int]:
    if not (count := table.num_rows):
        raise PomologyError(f"{where}: no reviews: get it again")
    table = table.take(np.random.default_rng(0).permutation(count)[:size])
    labels = table.column("label").to_numpy()
    if not np.isin(labels, (0, 1)).all():
        raise PomologyError(f"{where}: labels should be 0 or 1")
    return table.column("text").to_pylist(), labels.astype(np.int64), count


def load_tokenizer(
    model: str, hubs: Sequence[str], marks: Mapping[str, int], folder: Path | None = None
) -> tuple[Any, str]:
    """A `tokenizers.Tokenizer`, and where it is from: any of `hubs` has the same. `marks`: tokens that distinguish it
    from those of other models, whose files have the same name."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # as is, but without a warning at every later fork
    import tokenizers

    if folder is not None and (folder / "tokenizer.json").is_file():
        path, how = folder / "tokenizer.json", "in the folder"
    else:
        path, how = hub_file(hubs, "tokenizer.json")
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


def _encode(texts: list[str], gpt2: tuple[Any, str], length: int) -> tuple[np.ndarray, np.ndarray, str]:
    """(tokens (n, length), lengths (n,), which tokenizer)."""
    tokenizer, words = gpt2
    tokens = np.full((len(texts), length), END_OF_TEXT, np.int64)
    lengths = np.empty(len(texts), np.int64)
    for start in range(0, len(texts), 1000):  # an encoding holds far more than its numbers
        encodings = tokenizer.encode_batch(texts[start : start + 1000], add_special_tokens=False)
        for row, encoding in enumerate(encodings, start):
            numbers = encoding.ids[:length]
            lengths[row] = len(numbers)
            tokens[row, : len(numbers)] = numbers
    return tokens, lengths, words
