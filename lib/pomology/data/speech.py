"""Common Voice as Whisper hears and writes it, or a stand-in."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas

from pomology.data import synthetic
from pomology.data.hub import Obtained, Unavailable, damaged, obtain, shown
from pomology.data.text import IGNORED, load_tokenizer
from pomology.errors import PomologyError

TOKENS = 32  # labels of a clip
HERTZ = 16_000  # at which Whisper hears
WHISPER_REVISION = "169d4a4341b33bc18d8881c4b69c2e104e1cc0af"  # all sizes share a tokenizer
ENGLISH, END, TRANSCRIBE, NO_TIMESTAMPS = 50_259, 50_257, 50_359, 50_363
Clip = dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Speech(Obtained):
    """Clips {"input_features": float32 (80, 3000), "labels": int64 (TOKENS,)}.

    Labels are language, task, no timestamps, text and end, then `IGNORED`.
    """

    clips: list[Clip]


def common_voice(source: str, folder: str = "", size: int = 64) -> Speech:
    """The first `size` training clips of Common Voice.

    `folder` is one language of a release of the Mozilla Data Collective: `train.tsv` and `clips`.
    """

    def read(root):
        return _read_release(root, size)

    def stand_in():
        sounds = [synthetic.speech(index, TOKENS - 4) for index in range(size)]
        return [_clip(features, ENGLISH, numbers) for features, numbers in sounds]

    clips, kind, origin = obtain("Common Voice", source, folder, size, read, stand_in)
    return Speech(clips, name="Common Voice", kind=kind, origin=origin)


def _clip(features: np.ndarray, language: int, text: np.ndarray | list[int]) -> Clip:
    numbers = [language, TRANSCRIBE, NO_TIMESTAMPS, *text][: TOKENS - 1]
    labels = np.full(TOKENS, IGNORED, np.int64)
    labels[: len(numbers) + 1] = [*numbers, END]
    return {"input_features": features, "labels": labels}


def _read_release(root: Path | None, size: int) -> tuple[list[Clip], str]:
    if root is None:
        raise Unavailable("no folder was named, and only the Mozilla Data Collective has it")
    table = root / "train.tsv"
    if not table.is_file():
        raise PomologyError(f"Common Voice: no train.tsv in {shown(root)}: name one language")
    tokenizer, how = load_tokenizer("openai/whisper-tiny", WHISPER_REVISION)
    clips = []
    for row in pandas.read_csv(table, sep="\t", quoting=3, nrows=size).itertuples():
        language = tokenizer.token_to_id(f"<|{row.locale.split('-')[0]}|>")
        text = tokenizer.encode(row.sentence, add_special_tokens=False).ids
        clips.append(_clip(_features(root / "clips" / row.path), language, text))
    return clips, f"local folder{how}"


def _features(path: Path) -> np.ndarray:
    """Whisper's log-mel features of 30 s, float32 (80, 3000)."""
    import soundfile
    from scipy.signal import resample_poly
    from transformers import WhisperFeatureExtractor

    try:
        sound, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, OSError) as error:
        raise damaged(path, error) from error
    mono = resample_poly(sound.mean(axis=1), HERTZ, rate)
    extract = WhisperFeatureExtractor()  # its defaults are Whisper's
    return extract(mono, sampling_rate=HERTZ, return_tensors="np")["input_features"][0]
