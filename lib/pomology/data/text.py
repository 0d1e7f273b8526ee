"""Text and speech for the large models of the profiling article, or stand-ins of the same shape.

`imdb`, `common_voice` and `penn_treebank` take `source`, `folder` and `size` as those of `pomology.data.images` do, and
what they return says `kind` and `origin` in the same way. Text for GPT-2 or Whisper needs the model's `tokenizer.json`. It
is taken from the folder of the data, else from Hugging Face's cache, else from its hub; without it the data is one that
cannot be had.

Items are dictionaries of numpy arrays, named as transformers' models name their inputs; a DataLoader makes tensors of
them. Their classes live here because macOS spawns the workers of a DataLoader. Importing this takes no framework.
"""

from __future__ import annotations

import csv
import functools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from pomology import PomologyError
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
from pomology.data.images import SPLITS, Corpus, TextSource, corpus_of_words

IMDB_REVIEWS = 25_000  # in each of the two splits
GPT2_VOCABULARY = 50_257
END_OF_TEXT = 50_256  # GPT-2 has no token for padding: its end of text pads
STAND_IN_CLIPS = 100_000  # the article names no release of Common Voice, so no number of clips
WHISPER_VOCABULARY = 51_865
SAMPLING_RATE = 16_000  # hertz, at which Whisper hears
IGNORED = -100  # a label that the losses of transformers pass over

# What tells a tokenizer from another with the same file name: some tokens and their numbers.
_GPT2 = {"<|endoftext|>": END_OF_TEXT}
_ENGLISH, _END, _START, _TRANSCRIBE, _NO_TIMESTAMPS = 50_259, 50_257, 50_258, 50_359, 50_363
_WHISPER = {"<|startoftranscript|>": _START, "<|transcribe|>": _TRANSCRIBE, "<|notimestamps|>": _NO_TIMESTAMPS}


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


# --- IMDB


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


# --- Common Voice


class Speech:
    """Spoken sentences, heard one by one: items {"input_features": float32 (80, 3000), "labels": int64 (tokens,)}.

    Labels: language, task, no timestamps, text, end; then `IGNORED`. The start of the transcript, which Whisper's
    decoder reads first, is not among them: transformers puts it before them when it makes the decoder's input.
    """

    def __init__(
        self,
        store: Callable[[int], tuple[np.ndarray, Sequence[int]]],
        length: int,
        tokens: int,
        kind: str,
        origin: str,
    ):
        self.store, self.length, self.tokens, self.kind, self.origin = store, length, tokens, kind, origin
        self.name, self.vocabulary = "Common Voice", WHISPER_VOCABULARY

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Raises PomologyError if the clip is missing or damaged."""
        if not 0 <= index < self.length:
            raise IndexError(index)
        features, numbers = self.store(index)
        labels = np.full(self.tokens, IGNORED, np.int64)
        labels[: len(numbers)] = numbers
        return {"input_features": features, "labels": labels}


def common_voice(source: str = "auto", folder: Folder = None, size: int | None = None, tokens: int = 32) -> Speech:
    """Common Voice's training clips as Whisper hears and writes them: log-mel features of 30 s, `tokens` labels.

    `folder` is the only way to the real ones, as they are given by hand only (datacollective.mozillafoundation.org):
    one language of a release, with `train.tsv` and `clips`. A longer sentence is cut, and still has its end.
    """
    if not 5 <= tokens <= 448:
        raise PomologyError(f"Common Voice tokens: {tokens} should be 5 to 448, what Whisper's decoder can write")
    store, kind, origin = obtain(
        ("Common Voice", None, "en"),
        (source, folder, size),
        lambda root: _read_release(root, size, tokens),
        None,
        lambda: _StandInClips(tokens),
        nowhere="no folder was named, and only the Mozilla Data Collective gives it, by hand",
    )
    length = len(store)
    if kind == "real":
        origin += f"; {store.tokenizer_origin}"
    return Speech(store, min(size or length, length), tokens, kind, origin)


@dataclass(frozen=True)
class _StandInClips:
    tokens: int

    def __len__(self) -> int:
        return STAND_IN_CLIPS

    def __call__(self, index: int) -> tuple[np.ndarray, Sequence[int]]:
        features, numbers = synthetic.speech(index, self.tokens - 4)
        return features, [_ENGLISH, _TRANSCRIBE, _NO_TIMESTAMPS, *numbers, _END]


@dataclass(frozen=True)
class _Clips:
    """Clips of a release. Goes to a worker with its tokenizer, which can be pickled; the extractor is made there."""

    folder: Path
    rows: list[tuple[str, str]]  # file, sentence
    language: int
    tokenizer: Any
    tokenizer_origin: str
    tokens: int

    def __len__(self) -> int:
        return len(self.rows)

    def __call__(self, index: int) -> tuple[np.ndarray, Sequence[int]]:
        file, sentence = self.rows[index]
        text = self.tokenizer.encode(sentence, add_special_tokens=False).ids
        numbers = [self.language, _TRANSCRIBE, _NO_TIMESTAMPS, *text][: self.tokens - 1]
        return log_mel(*_read_sound(self.folder / file)), [*numbers, _END]


def _read_release(root: Path, size: int | None, tokens: int) -> _Clips:
    # Only so deep: a search through `clips` would look at a million files.
    found = [path for depth in ("", "*/", "*/*/") for path in sorted(root.glob(f"{depth}train.tsv"))]
    if not found:
        raise PomologyError(f"Common Voice: no train.tsv in {shown(root)}: name one language of an unpacked release")
    if len(found) > 1:
        raise PomologyError(f"Common Voice: train.tsv is in several folders below {shown(root)}: name one of them")
    (table,) = found
    clips = table.parent / "clips"
    if not clips.is_dir():
        raise PomologyError(f"Common Voice: no folder clips beside {shown(table)}: unpack the release again")
    try:
        with table.open(encoding="utf-8", newline="") as file:
            lines = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            columns = {"path", "sentence", "locale"}
            if not columns <= {*(lines.fieldnames or ())}:
                raise PomologyError(f"{shown(table)}: columns {lines.fieldnames}: expected path, sentence and locale")
            rows = [(line["path"], line["sentence"], line["locale"]) for line in islice(lines, size)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise damaged(table, error) from error
    for number, row in enumerate(rows, 2):
        if not all(row) or Path(row[0]).name != row[0]:
            raise damaged(table, f"line {number} has no file name, sentence and locale")
    if not rows:
        raise damaged(table, "no clips are listed")
    if len(locales := {locale for _, _, locale in rows}) > 1:
        raise PomologyError(f"{shown(table)}: several languages ({', '.join(sorted(locales))}): should be one")
    hubs = [f"openai/whisper-{name}" for name in ("medium", "tiny", "base", "small", "large-v2")]
    tokenizer, which = _tokenizer("Whisper", hubs, _WHISPER, table.parent)
    (locale,) = locales
    language = tokenizer.token_to_id(f"<|{locale.split('-')[0]}|>")
    if language is None:
        raise PomologyError(f"{shown(table)}: Whisper has no token for the language {locale!r}: take another language")
    return _Clips(clips, [row[:2] for row in rows], language, tokenizer, which, tokens)


def _read_sound(path: Path) -> tuple[np.ndarray, int]:
    """A sound file as float32 (samples,), its channels averaged, and its samples a second."""
    import soundfile

    try:
        sound, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, OSError) as error:
        raise damaged(path, error) from error
    if not len(sound):
        raise damaged(path, "no sound in it")
    return sound.mean(axis=1), rate


def log_mel(sound: np.ndarray, rate: int) -> np.ndarray:
    """Whisper's features of a sound (samples,), cut or padded with silence to 30 s: float32 (80, 3000)."""
    sound = resample(sound, rate, SAMPLING_RATE)
    features = _extractor()(sound, sampling_rate=SAMPLING_RATE, return_tensors="np")["input_features"][0]
    return np.ascontiguousarray(features, np.float32)


@functools.cache
def _extractor() -> Any:
    from transformers import WhisperFeatureExtractor

    return WhisperFeatureExtractor()  # its defaults are Whisper's; nothing is looked up


def resample(sound: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """A sound (samples,) at `wanted` samples a second: what both rates can carry is kept, what only one can is not."""
    if rate == wanted:
        return sound
    length = math.ceil(len(sound) * wanted / rate)
    seconds = math.ceil(len(sound) / rate)  # whole ones: then both lengths are whole, and easy to transform
    spectrum = np.fft.rfft(sound, seconds * rate)  # which its inverse cuts, or fills up with zeros
    return (np.fft.irfft(spectrum, seconds * wanted)[:length] * (wanted / rate)).astype(np.float32)


# --- Penn Treebank


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
