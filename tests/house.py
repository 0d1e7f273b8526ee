"""The house rules that no other tool knows: how long a module may be, and words that the kit no longer uses.

`python tests/house.py` names what breaks them; `--lower` writes counts that have become smaller into vocabulary.json.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "lib" / "pomology"
MOST_LINES = 400  # of a module

# In text: what says it in the field's words.
WORDS = {
    r"lays?|laid": "show, place, compare",
    r"lies|lie": "is, stands",
    r"saw": "ran on, observed",
    r"room": "memory budget",
    r"twins?": "parity, reference",
    r"fore(see|sees|saw|seen)": "require, estimate",
    r"aside": "occasional",
    r"told|tells?|telling": "say, show, available, distinguish",
    r"finds": "returns, detects",
    r"theirs": "the other's",
}
# Names of variables that name nothing.
NAMES = {"one", "found", "mine", "theirs", "told", "said", "twin", "twins", "lies", "saw", "room", "aside"}
# What has one of these words in it and stays.
ALLOWED = {
    r"cannot be told here|\bcannot be told\b": "a verdict's value, which stands in runs that exist",
    r"cannot tell here|cannot tell\b": "the verdict in the field's words",
    r'"aside"': "a key of the journal",
    r"tell .{1,40}? apart|told apart|tells .{1,40}? apart": "plain English for to distinguish",
}
VOCABULARY = Path(__file__).with_name("vocabulary.json")  # file -> how many it may have; the number may only go down

_WORD = re.compile(rf"\b({'|'.join(WORDS)})\b", re.IGNORECASE)
_ALLOWED = re.compile("|".join(ALLOWED), re.IGNORECASE | re.DOTALL)


def too_long() -> list[str]:
    """A line for each module of the package that is too long."""
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sorted(PACKAGE.rglob("*.py"))}
    long = {path.relative_to(ROOT): length for path, length in lengths.items() if length > MOST_LINES}
    return [f"{path}: {length} lines; a module has at most {MOST_LINES}" for path, length in long.items()]


def in_text(text: str) -> list[str]:
    """The words in a text that the kit no longer uses."""
    return [match[0] for match in _WORD.finditer(_ALLOWED.sub(" ", text))]


def in_module(source: str) -> Iterator[tuple[int, str]]:
    """(line, word) of the comments, texts and names of a module that should be others."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from ((token.start[0], word) for word in in_text(token.string))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            # With its quotes, by which a key of the journal is known; without its escapes.
            yield from ((node.lineno, word) for word in in_text(f'"{node.value}"'))
        name = {ast.Name: "id", ast.arg: "arg", ast.Attribute: "attr"}.get(type(node))
        stored = not isinstance(getattr(node, "ctx", None), (ast.Load, ast.Del))
        if name and stored and getattr(node, name) in NAMES:
            yield node.lineno, f"the name `{getattr(node, name)}`"


def in_notebook(document: dict) -> list[tuple[int, str]]:
    """(number of the cell, word) of a notebook's text."""
    cells = [(number, cell) for number, cell in enumerate(document["cells"]) if cell["cell_type"] == "markdown"]
    return [(number, word) for number, cell in cells for word in in_text("".join(cell["source"]))]


def vocabulary() -> dict[str, list[tuple[int, str]]]:
    """What should be other words, by file; files without any are left out."""
    places = dict.fromkeys(PACKAGE.rglob("*.py"), in_module)
    places |= {path: in_notebook for path in (ROOT / "notebooks").rglob("*.ipynb") if ".ipynb_" not in str(path)}
    counted = {}
    for path, look in sorted(places.items()):
        text = path.read_text(encoding="utf-8")
        if words := sorted(look(json.loads(text) if path.suffix == ".ipynb" else text)):
            counted[path.relative_to(ROOT).as_posix()] = words
    return counted


def too_many_words() -> list[str]:
    """A line for each file with more such words than it had."""
    before = json.loads(VOCABULARY.read_text(encoding="utf-8"))
    return [
        f"{name}: {len(words)} words that the kit no longer uses, at most {before.get(name, 0)} before: "
        + ", ".join(f"{word} ({line})" for line, word in words)
        for name, words in vocabulary().items()
        if len(words) > before.get(name, 0)
    ]


def lower() -> None:
    """Write down the counts that have become smaller."""
    before, now = json.loads(VOCABULARY.read_text(encoding="utf-8")), vocabulary()
    fewer = {name: min(len(words), before[name]) for name, words in now.items() if name in before}
    VOCABULARY.write_text(json.dumps(fewer, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if "--lower" in sys.argv:
        lower()
    wrong = too_long() + too_many_words()
    print("\n".join(wrong), end="\n" if wrong else "")
    sys.exit(bool(wrong))
