"""Synthetic speech in the shape in which Whisper reads Common Voice."""

from dataclasses import dataclass

import numpy as np

from pomology.data import synthetic
from pomology.data.hub import Obtained
from pomology.data.text import IGNORED

TOKENS = 32  # labels of a clip
ENGLISH, END, TRANSCRIBE, NO_TIMESTAMPS = 50_259, 50_257, 50_359, 50_363  # of Whisper's tokenizer


@dataclass(frozen=True, eq=False)
class Speech(Obtained):
    """Clips {"input_features": float32 (80, 3000), "labels": int64 (TOKENS,)}.

    Labels are language, task, no timestamps, text and end, then `IGNORED`.
    """

    clips: list[dict[str, np.ndarray]]


def stand_in(size: int) -> Speech:
    """So many clips. A step costs the same with them as with real ones: each has 30 seconds."""
    clips = []
    for index in range(size):
        features, numbers = synthetic.speech(index, TOKENS - 4)
        said = [ENGLISH, TRANSCRIBE, NO_TIMESTAMPS, *numbers, END]
        labels = np.full(TOKENS, IGNORED, np.int64)
        labels[: len(said)] = said
        clips.append({"input_features": features, "labels": labels})
    origin = f"stand-in for Common Voice: {size:,} clips"
    return Speech(clips, name="Common Voice", kind="stand-in", origin=origin)
