"""Names as people type them: spelling that makes no difference, and similar names for an error."""

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from pomology.errors import PomologyError
from pomology.format import one_line

SIMILAR = 0.6  # least ratio of difflib; below it, `distilbert` is similar to `whisper-tiny`
SHARED = re.compile(r"[a-z]{4,}")  # a word of names, such as the `bert` of `distilbert`


class Resolved(NamedTuple):
    """A name in the data. note: how it was chosen, or "" where there was no choice."""

    name: str
    note: str = ""


def spelling(name: str) -> str:
    """Return a name without case, spaces and punctuation: `rtx4090` for `RTX 4090`.

    Points stay, since `Llama 3.1 8B` is not `Llama 3 18B`.
    """
    return re.sub(r"[^\w.]|_", "", name.casefold())


def containing(text: str, names: Iterable[str]) -> list[str]:
    """Return the names that contain all words of a text.

    The number of a word with a letter does not go on: `M6` is not in `M60`, but `40` in `4090`.
    """
    patterns = []
    for word in filter(None, map(spelling, re.split(r"[\s/_-]+", text))):
        lookahead = r"(?!\d)" if re.search(r"[a-z]\d+$", word) else ""
        patterns.append(re.compile(re.escape(word) + lookahead))
    if not patterns:  # a text without words is in no name
        return []
    return [name for name in names if all(pattern.search(spelling(name)) for pattern in patterns)]


def listed(texts: Sequence[str], word: str = "or") -> str:
    """Return texts as `A`, `A or B`, `A, B or C`."""
    return f" {word} ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


def similar(
    name: str, names: Iterable[str], key: Callable[[str], str] = spelling, most: int = 3
) -> list[str]:
    """Return the most similar names, or none where no name is similar.

    First come names that contain all words of the given one, then similarly spelled ones, then
    those that share a word with it. key: what is compared of a name; of several names with the same
    key the first one is returned.
    """
    by_key: dict[str, str] = {}
    for candidate in names:
        by_key.setdefault(key(candidate), candidate)
    typed = spelling(name)
    # Two letters may be anywhere: `t5` in `resnet50`.
    with_all_words = sorted(containing(name, by_key), key=len) if len(typed) > 2 else []
    close = difflib.get_close_matches(key(name), by_key, most, SIMILAR)
    sharing = [
        candidate_key
        for candidate_key, candidate in by_key.items()
        if any(word in typed for word in SHARED.findall(candidate.casefold()))
    ]
    sharing = difflib.get_close_matches(key(name), sharing, most, 0)
    keys = dict.fromkeys([*with_all_words, *close, *sharing])
    return [by_key[most_similar] for most_similar in keys][:most]


def unknown(
    name: str, kind: str, names: Iterable[str], command: str, key: Callable[[str], str] = spelling
) -> PomologyError:
    """Return the error, in one line, for a name of nothing.

    kind: of thing, such as `device`. names: all names. command: lists them. key: see `similar`.
    """
    return PomologyError(
        f"{one_line(name)}: unknown {kind}{hint(name, names, key)}; `{command}` lists all"
    )


def hint(name: str, names: Iterable[str], key: Callable[[str], str] = spelling) -> str:
    """Return `; similar names: A, B, C` for an error, or "" without any. key: see `similar`."""
    close = ", ".join(similar(name, names, key))
    return f"; similar names: {close}" if close else ""
