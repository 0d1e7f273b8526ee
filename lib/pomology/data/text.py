"""Text and speech for the large models of the profiling article, or stand-ins of the same shape.

`imdb`, `common_voice` and `penn_treebank` take `source`, `folder` and `size` as those of `pomology.data.images` do, and
what they return says `kind` and `origin` in the same way. Text for GPT-2 or Whisper needs the model's
`tokenizer.json`: from the folder of the data, else from Hugging Face's cache, else from its hub; without it the data
cannot be had.

Items are dictionaries of numpy arrays, named as transformers' models name their inputs; a DataLoader makes tensors of
them. Their classes live here because macOS spawns the workers of a DataLoader. Importing this takes no framework.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pomology.data import synthetic
from pomology.data.hub import (
    Folder,
    damaged,
    find,
    hub_file,
    hub_tables,
    obtain,
    one_line,
    parquet_names,
    read_parquet,
    shown,
    without_bars,
)
from pomology.data.images import SPLITS
from pomology.errors import PomologyError

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


@dataclass(frozen=True)
class TextSource:
    """Where a text is published, and how many tokens and different words it must have, one `<eos>` a line counted."""

    name: str
    hub: str
    config: str
    tokens: Mapping[str, int]
    vocabulary: int
    files: str  # the author's own, {} for the part
    column: str = "text"
    tables: Callable[[str, str], tuple[dict[str, Any], str]] | None = None  # None: as the hub's cache has them


def wikitext2(source: str = "auto", folder: Folder = None, size: int | None = None) -> Corpus:
    """WikiText-2 by words, 33,278 different ones: 2,088,628 tokens to train, 217,646 to validate, 245,569 to test.

    The hub dataset Salesforce/wikitext, wikitext-2-v1, in which rare words are replaced; the raw one has more words.
    """
    return corpus_of_words(_WIKITEXT2, source, folder, size)


_WIKITEXT2 = TextSource(
    name="WikiText-2",
    hub="Salesforce/wikitext",
    config="wikitext-2-v1",
    tokens=WIKITEXT2_TOKENS,
    vocabulary=WIKITEXT2_VOCABULARY,
    files="wiki.{}.tokens",
)


def corpus_of_words(article: TextSource, source: str, folder: Folder, size: int | None) -> Corpus:
    """A text by words, from text files or parquet, a row a line; or its stand-in."""
    hub_splits = {"valid": "validation"}

    def from_tables(tables: dict[str, Any]) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
        rows = {part: tables[hub_splits.get(part, part)].column(article.column) for part in article.tokens}
        return _number_words({part: column.to_pylist() for part, column in rows.items()})

    (tokens, words), kind, origin = obtain(
        (article.name, article.hub, article.config),
        (source, folder, size),
        lambda root: _read_text_folder(article, root),
        from_tables,
        lambda: synthetic.text(article.tokens, article.vocabulary),
        article.tables,
    )
    counts = {part: len(numbers) for part, numbers in tokens.items()}
    if 0 in counts.values():
        raise PomologyError(f"{origin}: a part is empty ({counts}): get it again")
    if counts != article.tokens or len(words) != article.vocabulary:
        found, expected = (" + ".join(f"{count:,}" for count in c.values()) for c in (counts, article.tokens))
        origin += f"; {found} tokens, {len(words):,} words where the article has {expected}, {article.vocabulary:,}"
    first = {part: numbers[:size] for part, numbers in tokens.items()}
    return Corpus(article.name, **first, words=words, kind=kind, origin=origin)


def _read_text_folder(article: TextSource, root: Path) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    lines: dict[str, Iterable[str]] = {}
    for part in article.tokens:
        found = find(root, [*parquet_names(part), article.files.format(part), f"{part}.txt"], article.name)
        if found[0].suffix == ".parquet":
            lines[part] = read_parquet(found, (article.column,)).column(article.column).to_pylist()
            continue
        try:
            with found[0].open(encoding="utf-8") as file:
                lines[part] = file.readlines()
        except (OSError, UnicodeDecodeError) as error:
            raise damaged(found[0], error) from error
    return _number_words(lines)


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


IMDB_REVIEWS = 25_000  # in each of the two splits

GPT2_VOCABULARY = 50_257

END_OF_TEXT = 50_256  # GPT-2 has no token for padding: its end of text pads

IGNORED = -100  # a label that the losses of transformers pass over

# What tells a tokenizer from another with the same file name: some tokens and their numbers.
_GPT2 = {"<|endoftext|>": END_OF_TEXT}


def _tokenizer(model: str, hubs: Sequence[str], marks: dict[str, int], folder: Path | None = None) -> tuple[Any, str]:
    """A `tokenizers.Tokenizer`, and where it is from. Any of `hubs` has the same; the first one is asked for it."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # as is, but without a warning at every later fork
    import tokenizers

    if folder is not None and (folder / "tokenizer.json").is_file():
        path, how = folder / "tokenizer.json", "in the folder"
    else:
        path, how = _cached_first(hubs)
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # it raises nothing narrower
        raise damaged(path, error) from error
    for token, number in marks.items():
        if (found := tokenizer.token_to_id(token)) != number:
            raise PomologyError(f"{shown(path)}: {token} is {found}, should be {number}: not the tokenizer of {model}")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer, f"tokenizer of {model} {how}"


def _cached_first(hubs: Sequence[str]) -> tuple[Path, str]:
    with without_bars():
        from huggingface_hub import try_to_load_from_cache

    for hub in hubs:
        if isinstance(path := try_to_load_from_cache(hub, "tokenizer.json"), str):
            return Path(path), "cached"
    return hub_file(hubs[0], "tokenizer.json")


@dataclass(frozen=True, eq=False)
class Reviews:
    """Texts in tokens, right-padded: `tokens` and `mask` int64 (n, length), mask 1 where text is; `labels` int64 (n,).

    Items: {"input_ids", "attention_mask", "labels"}, for a classifier. A language model takes `input_ids` as its labels
    too, with `IGNORED` where the mask is 0.
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
    hub = "stanfordnlp/imdb"

    def tokenizer(root: Path | None = None) -> tuple[Any, str]:
        return _tokenizer("GPT-2", ("openai-community/gpt2",), _GPT2, root)

    def from_folder(root: Path) -> tuple[Any, ...]:
        chosen = _review_folder(root, split, size)
        return *_encode(*chosen[:2], tokenizer(root), length), chosen[2]

    def from_hub(hub: str, config: str) -> tuple[dict[str, Any], str]:
        found = tokenizer()  # before the reviews, which are no use without it
        tables, how = hub_tables(hub, config)
        return {"reviews": tables[split], "tokenizer": found}, how

    def from_tables(tables: dict[str, Any]) -> tuple[Any, ...]:
        texts, labels, there = _review_table(tables["reviews"], size, f"{hub} ({split})")
        return *_encode(texts, labels, tables["tokenizer"], length), there

    def stand_in() -> tuple[Any, ...]:
        return *synthetic.reviews(min(size or IMDB_REVIEWS, IMDB_REVIEWS), length, split), None, IMDB_REVIEWS

    (tokens, lengths, labels, words, there), kind, origin = obtain(
        ("IMDB", hub, "plain_text"), (source, folder, size), from_folder, from_tables, stand_in, from_hub
    )
    if words:
        origin += f"; {words}"
    if not np.isin(labels, (0, 1)).all():
        raise PomologyError(f"{origin}: labels should be 0 or 1, not {labels.min()} to {labels.max()}")
    if there != IMDB_REVIEWS:
        origin += f"; {there:,} reviews where the article has {IMDB_REVIEWS:,}"
    mask = (np.arange(length) < lengths[:, None]).astype(np.int64)
    return Reviews("IMDB", tokens, mask, labels, kind, origin)


def _chosen(count: int, size: int | None, where: str) -> np.ndarray:
    if not count:
        raise PomologyError(f"{where}: no reviews: get it again")
    return np.random.default_rng(0).permutation(count)[:size]


def _review_folder(root: Path, split: str, size: int | None) -> tuple[list[str], np.ndarray, int]:
    """The texts that are wanted, their labels, and how many there are in all."""
    root = root / "aclImdb" if (root / "aclImdb").is_dir() else root
    folders = [root / split / name for name in ("neg", "pos")]
    if not (root / split).is_dir() or not any(folder.is_dir() for folder in folders):
        found = find(root, parquet_names(split), f"IMDB (or {split}/neg and {split}/pos)")
        return _review_table(read_parquet(found, ("text", "label")), size, shown(found[0]))
    for folder in folders:
        if not folder.is_dir():
            raise PomologyError(f"IMDB: no {split}/{folder.name} in {shown(root)}: unpack it again")
    paths = [(path, label) for label, folder in enumerate(folders) for path in sorted(folder.glob("*.txt"))]
    texts, labels = [], []
    for row in _chosen(len(paths), size, shown(root / split)):
        path, label = paths[row]
        try:
            texts.append(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise damaged(path, error) from error
        labels.append(label)
    return texts, np.array(labels, np.int64), len(paths)


def _review_table(table: Any, size: int | None, where: str) -> tuple[list[str], np.ndarray, int]:
    there = table.num_rows
    table = table.take(_chosen(there, size, where))
    try:
        labels = table.column("label").to_numpy().astype(np.int64)
    except (ValueError, TypeError) as error:
        raise PomologyError(f"{where}: labels should be 0 or 1: {one_line(error)}") from error
    texts = table.column("text").to_pylist()
    if not all(isinstance(text, str) for text in texts):
        raise PomologyError(f"{where}: column text should hold text in every row")
    return texts, labels, there


def _encode(texts: list[str], labels: np.ndarray, found: tuple[Any, str], length: int) -> tuple[Any, ...]:
    """(tokens (n, length), lengths (n,), labels, which tokenizer)."""
    tokenizer, which = found
    tokens = np.full((len(texts), length), END_OF_TEXT, np.int64)
    lengths = np.empty(len(texts), np.int64)
    for start in range(0, len(texts), 1000):  # an encoding holds far more than its numbers
        encodings = tokenizer.encode_batch(texts[start : start + 1000], add_special_tokens=False)
        for row, encoding in enumerate(encodings, start):
            numbers = encoding.ids[:length]
            lengths[row] = len(numbers)
            tokens[row, : len(numbers)] = numbers
    return tokens, lengths, labels, which


def penn_treebank(source: str = "auto", folder: Folder = None, size: int | None = None) -> Corpus:
    """Penn Treebank by words, 10,000 different ones: 929,589 tokens to train, 73,760 to validate, 82,430 to test.

    `folder`: Mikolov's ptb.train.txt, ptb.valid.txt and ptb.test.txt, or parquet.
    """
    return corpus_of_words(_PENN_TREEBANK, source, folder, size)


def _treebank_tables(hub: str, config: str) -> tuple[dict[str, Any], str]:
    """The hub's own conversion to parquet: the dataset itself is a script, which `datasets` runs no more."""
    files = {
        part: hub_file(hub, f"{config}/{part}/0000.parquet", dataset=True, revision="refs/convert/parquet")
        for part in ("train", "validation", "test")
    }
    tables = {part: read_parquet([path], ("sentence",)) for part, (path, _) in files.items()}
    return tables, max(how for _, how in files.values())  # downloaded, if one of them was


_PENN_TREEBANK = TextSource(
    name="Penn Treebank",
    hub="ptb-text-only/ptb_text_only",
    config="penn_treebank",
    tokens={"train": 929_589, "valid": 73_760, "test": 82_430},
    vocabulary=10_000,
    files="ptb.{}.txt",
    column="sentence",
    tables=_treebank_tables,
)


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
