"""Whisper's sizes and the FLOPs of a training step, for the model in each framework."""

from pomology.data.speech import TOKENS

BANDS, FRAMES, POSITIONS = 80, 3000, 1500  # mel bands, steps of 10 ms, and the encoder's positions
VOCABULARY = 51_865


def flops(width: int, layers: int) -> int:
    """Return the FLOPs of a step for each clip, by the sizes of the matrices.

    A matrix takes one multiply-add (MAC) per element and position, and attention one per query, key
    and width, twice. A layer of the encoder has matrices of 12 width². The decoder's has another
    attention, to the encoder: 2 width² for each of its own positions, and 2 width² for each of the
    encoder's. The two convolutions read three frames for each of theirs.
    """
    heard, said = POSITIONS, TOKENS
    first = FRAMES * 3 * BANDS * width
    second = heard * 3 * width**2
    encoder = heard * 12 * width**2 + 2 * heard**2 * width
    decoder = said * 14 * width**2 + heard * 2 * width**2 + 2 * said * (said + heard) * width
    macs = first + second + layers * (encoder + decoder) + said * VOCABULARY * width
    return 6 * macs - 2 * first  # 2 per MAC and pass; sound needs no gradient
