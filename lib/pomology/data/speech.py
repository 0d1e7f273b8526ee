"""Synthetic speech in the shape of Common Voice as Whisper's input."""

from dataclasses import dataclass

import numpy as np

from pomology.data import synthetic
from pomology.data.hub import Obtained
from pomology.data.text import IGNORED

TOKENS = 32  # labels per clip
ENGLISH, END, TRANSCRIBE, NO_TIMESTAMPS = 50_259, 50_257, 50_359, 50_363  # of Whisper's tokenizer


@dataclass(frozen=True, eq=False)
class Speech(Obtained):
    """Clips {"input_features": float32 (80, 3000), "labels": int64 (TOKENS,)}.

    Labels are language, task, no timestamps, text and end, padded with `IGNORED`.
    """

    clips: list[dict[str, np.ndarray]]


def stand_in(size: int) -> Speech:
    """Return synthetic clips of 30 s, with which a step costs the same as with real ones."""
    clips = []
    for index in range(size):
        features, numbers = synthetic.speech(index, TOKENS - 4)
        transcript = [ENGLISH, TRANSCRIBE, NO_TIMESTAMPS, *numbers, END]
        labels = np.full(TOKENS, IGNORED, np.int64)
        labels[: len(transcript)] = transcript
        clips.append({"input_features": features, "labels": labels})
    origin = f"synthetic data in place of Common Voice: {size:,} clips"
    return Speech(clips, name="Common Voice", kind="stand-in", origin=origin)
