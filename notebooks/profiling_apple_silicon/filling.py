"""For the notebooks `memory` and `whisper_pretraining`: how large a batch fills the memory."""

import math

from pomology import format
from pomology.errors import PomologyError, TooBig

SPARED_BYTES = 1.5e9  # of the free memory, that a case near the limit leaves to the machine
SPARED_SHARE = 0.1
HOLES = 1.25  # times its tensors, that a process takes on a CPU, with holes in the C library's heap


def fill(case, bytes_of, what, share=0.9, most_bytes=math.inf):
    """Return how many clips, or parts of a batch, fill `share` of the free memory.

    At least 10 % of it or 1.5 GB stay free. bytes_of: the bytes of a step of one, and of two, from
    which those of more follow. what: one of them, in words. most_bytes: where the memory has room
    for more than that, it is the budget, and the case is `scaled`. Raises TooBig if not even one
    fits.
    """
    if not 0 < share <= 1:
        raise PomologyError(f"near is {share!r}; it must be a share of the memory, from 0 to 1")
    free = case.backend.free_memory()
    room = min(share * free, free - max(SPARED_BYTES, SPARED_SHARE * free))
    if case.backend.kind == "cpu":
        room /= HOLES
    budget = int(max(0, min(room, most_bytes)))
    if room > most_bytes:
        case.scaled = True
        case.note("not near the limit of the memory")
    amount = f"{budget / 1e9:.3g} GB of {free / 1e9:.3g} GB that were free"
    case.note(f"planned for {amount}")
    first = bytes_of(1)
    if first > budget:
        needed = format.quantity(first, "B")
        raise TooBig(f"one {what} needs at least {needed}; {amount} may be filled")
    return 1 + (budget - first) // (bytes_of(2) - first)
