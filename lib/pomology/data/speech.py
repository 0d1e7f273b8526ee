"""Common Voice and what Whisper makes of it, or a stand-in."""

import csv
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pomology.data import synthetic
from pomology.data.hub import Dataset, Folder, Obtained, damaged, obtain, shown
from pomology.data.text import IGNORED, load_tokenizer
from pomology.errors import PomologyError

TOKENS = 32  # labels of a clip
STAND_IN_CLIPS = 100_000  # the article names no release of Common Voice, so no number of clips
SAMPLING_RATE = 16_000  # hertz, at which Whisper hears
Clip = tuple[np.ndarray, Sequence[int]]  # features, and labels

_COMMON_VOICE = Dataset(name="Common Voice", config="en", no_hub="only the Mozilla Data Collective gives it, by hand")
_ENGLISH, _END, _TRANSCRIBE, _NO_TIMESTAMPS = 50_259, 50_257, 50_359, 50_363
_REVISION = "169d4a4341b33bc18d8881c4b69c2e104e1cc0af"  # of openai/whisper-tiny, whose tokenizer every size has
_WHISPER = {"<|startoftranscript|>": 50_258, "<|transcribe|>": _TRANSCRIBE, "<|notimestamps|>": _NO_TIMESTAMPS}


@dataclass(frozen=True, eq=False)
class Speech(Obtained):
    """Spoken sentences, read one by one: items {"input_features": float32 (80, 3000), "labels": int64 (TOKENS,)}.

    Labels: language, task, no timestamps, text, end; then `IGNORED`. transformers puts the start before them.
    """

    store: Callable[[int], Clip]
    length: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Raises PomologyError if the clip is missing or damaged."""
        if not 0 <= index < self.length:
            raise IndexError(index)
        features, numbers = self.store(index)
        labels = np.full(TOKENS, IGNORED, np.int64)
        labels[: len(numbers)] = numbers
        return {"input_features": features, "labels": labels}


def common_voice(source: str = "auto", folder: Folder = None, size: int | None = None) -> Speech:
    """Common Voice's training clips as Whisper hears and writes them: log-mel features of 30 s, 32 labels.

    Only a `folder` has the real ones: one language of a release (datacollective.mozillafoundation.org), with
    `train.tsv` and `clips`. A longer sentence is cut, and still has its end.
    """
    read = functools.partial(_read_release, size=size)
    stand_in = _stand_in_clip, STAND_IN_CLIPS
    (store, length), kind, origin = obtain(_COMMON_VOICE, (source, folder, size), read, lambda: stand_in)
    return Speech(store, min(size or length, length), name=_COMMON_VOICE.name, kind=kind, origin=origin)


def _stand_in_clip(index: int) -> Clip:
    features, numbers = synthetic.speech(index, TOKENS - 4)
    return features, [_ENGLISH, _TRANSCRIBE, _NO_TIMESTAMPS, *numbers, _END]


def _clip(index: int, clips: Path, rows: list[tuple[str, str, str]], tokenizer: Any, language: int) -> Clip:
    """Of rows of (file, sentence, locale): its sound as features of 30 s, and its labels. Is pickled as a partial."""
    import soundfile

    file, sentence, _ = rows[index]
    try:
        sound, rate = soundfile.read(clips / file, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, OSError) as error:
        raise damaged(clips / file, error) from error
    if not len(sound):
        raise damaged(clips / file, "no sound in it")
    sound = resample(sound.mean(axis=1), rate, SAMPLING_RATE)
    features = _extractor()(sound, sampling_rate=SAMPLING_RATE, return_tensors="np")["input_features"][0]
    text = tokenizer.encode(sentence, add_special_tokens=False).ids
    numbers = [language, _TRANSCRIBE, _NO_TIMESTAMPS, *text][: TOKENS - 1]
    return np.ascontiguousarray(features, np.float32), [*numbers, _END]


def _read_release(root: Path, size: int | None) -> tuple[tuple[Callable, int], str]:
    """What gives a clip, how many there are, and where they and the tokenizer are from."""
    # Only so deep: a search through `clips` would look at a million files.
    tables = [path for depth in ("", "*/", "*/*/") for path in sorted(root.glob(f"{depth}train.tsv"))]
    if len(tables) != 1:
        there = "train.tsv in several folders" if tables else "no train.tsv"
        raise PomologyError(f"Common Voice: {there} in {shown(root)}: name one language of an unpacked release")
    table, clips = tables[0], tables[0].parent / "clips"
    try:
        with table.open(encoding="utf-8", newline="") as file:
            lines = itertools.islice(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE), size)
            rows = [(line.get("path"), line.get("sentence"), line.get("locale")) for line in lines]
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        raise damaged(table, error) from error
    for number, row in enumerate(rows, 2):
        if not all(row) or Path(row[0]).name != row[0]:
            raise damaged(table, f"line {number} has no file name, sentence and locale")
    locales = sorted({locale for _, _, locale in rows})
    if len(locales) != 1:
        raise PomologyError(f"{shown(table)}: its clips are of {len(locales)} languages {locales}: should be one")
    tokenizer, words = load_tokenizer("Whisper", "openai/whisper-tiny", _REVISION, _WHISPER, table.parent)
    language = tokenizer.token_to_id(f"<|{locales[0].split('-')[0]}|>")
    if language is None:
        raise PomologyError(f"{shown(table)}: Whisper has no token for the language {locales[0]!r}")
    clip = functools.partial(_clip, clips=clips, rows=rows, tokenizer=tokenizer, language=language)
    return (clip, len(rows)), f"local folder{words}"


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
