"""Papermill's client, with bounds on what a cell prints."""

import re
from typing import Any

from papermill.clientwrap import PapermillNotebookClient

MOST_PRINTED = 2**18  # characters of a cell's stdout, and of its stderr, that its notebook keeps
CUT = f"\n(What was printed after these {MOST_PRINTED:,} characters is not kept.)\n"


class Client(PapermillNotebookClient):
    """It joins what a cell prints as it comes: nbclient's own joining behind the cell takes time that grows with the
    square of a line's length, where nothing can stop it."""

    def output(self, outs: list, msg: dict, *about: Any) -> Any:
        more = msg["content"]
        for kept in outs if msg["msg_type"] == "stream" else ():
            if kept["output_type"] == "stream" and kept["name"] == more["name"]:
                kept["text"] = joined(kept["text"], more["text"])
                return kept
        if msg["msg_type"] == "stream":
            more["text"] = joined("", more["text"])
        return super().output(outs, msg, *about)


def joined(text: str, more: str) -> str:
    """What a cell has printed, with more of it; what a carriage return writes over is left out, as a terminal does."""
    if text.endswith(CUT):
        return text
    before, end, line = text.rpartition("\n")
    line = re.sub(r"^.*\r(?=[^\n])", "", line + more, flags=re.MULTILINE)
    text = before + end + line
    return text if len(text) <= MOST_PRINTED else text[:MOST_PRINTED] + CUT
