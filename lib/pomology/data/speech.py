"""Common Voice and what Whisper makes of it, or a stand-in."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pomology.data import synthetic
from pomology.data.hub import Dataset, Folder, Unavailable, damaged, obtain, shown
from pomology.data.text import IGNORED, load_tokenizer
from pomology.errors import PomologyError

STAND_IN_CLIPS = 100_000  # the article names no release of Common Voice, so no number of clips

WHISPER_VOCABULARY = 51_865

SAMPLING_RATE = 16_000  # hertz, at which Whisper hears

_COMMON_VOICE = Dataset(name="Common Voice", config="en")

_ENGLISH, _END, _START, _TRANSCRIBE, _NO_TIMESTAMPS = 50_259, 50_257, 50_258, 50_359, 50_363

_WHISPER = {"<|startoftranscript|>": _START, "<|transcribe|>": _TRANSCRIBE, "<|notimestamps|>": _NO_TIMESTAMPS}


@dataclass(frozen=True, eq=False)
class Speech:
    """Spoken sentences, read one by one: items {"input_features": float32 (80, 3000), "labels": int64 (tokens,)}.

    Labels: language, task, no timestamps, text, end; then `IGNORED`. The start of the transcript, which Whisper's
    decoder reads first, is not among them: transformers puts it before them when it makes the decoder's input.
    """

    store: Callable[[int], tuple[np.ndarray, Sequence[int]]]
    length: int
    tokens: int
    kind: str
    origin: str
    name: str = "Common Voice"
    vocabulary: int = WHISPER_VOCABULARY

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
    (store, length, words), kind, origin = obtain(
        _COMMON_VOICE,
        (source, folder, size),
        lambda root: _read_release(root, size, tokens),
        _no_hub,
        lambda: (functools.partial(_stand_in_clip, tokens=tokens), STAND_IN_CLIPS, ""),
    )
    return Speech(store, min(size or length, length), tokens, kind, origin + words)


def _no_hub() -> Any:
    raise Unavailable("no folder was named, and only the Mozilla Data Collective gives it, by hand")


def _stand_in_clip(index: int, tokens: int) -> tuple[np.ndarray, Sequence[int]]:
    features, numbers = synthetic.speech(index, tokens - 4)
    return features, [_ENGLISH, _TRANSCRIBE, _NO_TIMESTAMPS, *numbers, _END]


@dataclass(frozen=True)
class _Clips:
    """Clips of a release. Goes to a worker with its tokenizer, which can be pickled; the extractor is made there."""

    folder: Path
    rows: list[tuple[str, str]]  # file, sentence
    language: int
    tokenizer: Any
    tokens: int

    def __call__(self, index: int) -> tuple[np.ndarray, Sequence[int]]:
        file, sentence = self.rows[index]
        text = self.tokenizer.encode(sentence, add_special_tokens=False).ids
        numbers = [self.language, _TRANSCRIBE, _NO_TIMESTAMPS, *text][: self.tokens - 1]
        return log_mel(*_read_sound(self.folder / file)), [*numbers, _END]


def _read_release(root: Path, size: int | None, tokens: int) -> tuple[_Clips, int, str]:
    """The clips, how many, and where the tokenizer is from."""
    from pyarrow import ArrowException, csv

    # Only so deep: a search through `clips` would look at a million files.
    tables = [path for depth in ("", "*/", "*/*/") for path in sorted(root.glob(f"{depth}train.tsv"))]
    if not tables:
        raise PomologyError(f"Common Voice: no train.tsv in {shown(root)}: name one language of an unpacked release")
    if len(tables) > 1:
        raise PomologyError(f"Common Voice: train.tsv is in several folders below {shown(root)}: name one of them")
    table = tables[0]
    clips = table.parent / "clips"
    if not clips.is_dir():
        raise PomologyError(f"Common Voice: no folder clips beside {shown(table)}: unpack the release again")
    columns = ["path", "sentence", "locale"]
    try:
        form = csv.ParseOptions(delimiter="\t", quote_char=False)
        text = csv.ConvertOptions(include_columns=columns, column_types=dict.fromkeys(columns, "string"))
        listed = csv.read_csv(table, parse_options=form, convert_options=text).slice(0, size)
    except (ArrowException, OSError) as error:
        raise damaged(table, error) from error
    rows = list(zip(*(listed.column(name).to_pylist() for name in columns), strict=True))
    for number, row in enumerate(rows, 2):
        if not all(row) or Path(row[0]).name != row[0]:
            raise damaged(table, f"line {number} has no file name, sentence and locale")
    if not rows:
        raise damaged(table, "no clips are listed")
    if len(locales := {locale for _, _, locale in rows}) > 1:
        raise PomologyError(f"{shown(table)}: several languages ({', '.join(sorted(locales))}): should be one")
    hubs = [f"openai/whisper-{name}" for name in ("medium", "tiny", "base", "small", "large-v2")]
    tokenizer, words = load_tokenizer("Whisper", hubs, _WHISPER, table.parent)
    locale = locales.pop()
    language = tokenizer.token_to_id(f"<|{locale.split('-')[0]}|>")
    if language is None:
        raise PomologyError(f"{shown(table)}: Whisper has no token for the language {locale!r}: take another language")
    return _Clips(clips, [row[:2] for row in rows], language, tokenizer, tokens), len(rows), words


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
