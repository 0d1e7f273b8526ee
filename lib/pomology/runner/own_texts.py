"""Which texts are the kit's own: what its source says, with numbers and its own names where the source fills them in.

Of the notebooks, which anyone may change, only those count that have no other texts than when they were published.
"""

from __future__ import annotations

import ast
import builtins
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from pomology.paths import RESOURCES, notebook_paths, root

NOTEBOOKS = RESOURCES / "notebooks.txt"  # `python tests/make_map.py` writes it
LEFT_OUT = "(left out)"  # in place of what a form of the kit is filled with, but not with its own
LEAST = 8  # letters of a form beside what it is filled with: with fewer, any text would be of it
MOST_DIGITS = 15  # of what is filled in: the number of a card has 16
MOST_LETTERS, DEEPEST = 1_000, 4
FILLED = {*vars(builtins), "ConnectError", "ConnectTimeout", "ReadTimeout", "OutOfMemoryError", "NVMLError"}
FILLED |= {"CPUAccelerator", "MPSAccelerator", "CUDAAccelerator"}

NUMBER = r"[-−+<≥≤]?(?:\d{1,3}(?:,\d{3}){1,2}|\d{1,6})(?:\.\d{1,6})?(?:e[-+]?\d{1,3})?"
UNIT = r"(?: ?(?:%|×|x|[mµn]?s|min|h|[kMGT]?i?B(?:/s)?|[kMGTP]?FLOP(?:/s)?|[mk]?[WJ]|°C|K|[MG]Hz|cores?|bits?|steps?))?"
QUANTITY = rf"(?:about )?{NUMBER}{UNIT}"
VALUE = re.compile(rf"{QUANTITY}(?:(?: ± |: | to | and | of | \(|, ){QUANTITY}\)?)*|\d{{1,5}}(?:x\d{{1,5}}){{1,4}}")


def published() -> dict[str, str]:
    """The kit's notebooks: name -> `digest`."""
    return dict(line.split() for line in NOTEBOOKS.read_text(encoding="utf-8").splitlines())


def digests() -> str:
    """What `published` reads, of the notebooks as they are."""
    paths = sorted(notebook_paths(root() / "notebooks"), key=lambda path: path.stem)
    return "".join(f"{path.stem} {digest(path)}\n" for path in paths)


def digest(notebook: Path) -> str:
    """Of all texts and names in the code of a notebook; its numbers are for anyone to change."""
    return hashlib.sha256(json.dumps(sorted(_texts(_cells(notebook)))).encode()).hexdigest()[:16]


@functools.cache
def unchanged() -> dict[str, Path]:
    """The notebooks that are as they were published, by name."""
    known = published()
    return {path.stem: path for path in notebook_paths(root() / "notebooks") if known.get(path.stem) == digest(path)}


def _cells(notebook: Path) -> Iterator[ast.Module]:
    """The code of a notebook, a cell each; what is no Python, as IPython's own words, is of no text."""
    for cell in json.loads(notebook.read_bytes())["cells"]:
        try:
            yield ast.parse("".join(cell["source"]) if cell["cell_type"] == "code" else "")
        except SyntaxError:
            continue


def _texts(trees: Iterable[ast.Module]) -> set[str]:
    nodes = [node for tree in trees for node in ast.walk(tree)]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return texts | {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg}


@functools.cache
def _source() -> tuple[frozenset[str], list[tuple[int, str, re.Pattern]]]:
    """The texts of the kit's source; and its forms: how many letters each has, the longest part, and the pattern."""
    package = Path(__file__).parents[1]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(package.rglob("*.py"))]
    trees += [tree for path in unchanged().values() for tree in _cells(path)]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    joined = (node.values for node in nodes if isinstance(node, ast.JoinedStr))
    filled = [tuple(part.value if isinstance(part, ast.Constant) else "" for part in parts) for parts in joined]
    forms = []
    for parts in dict.fromkeys(filled):
        pattern = "".join(re.escape(part) if part else "(.*?)" for part in parts)
        pattern = re.sub(r"^(?:\\ |[:;,])+|(?:\\ |[:;,])+$", "", pattern)  # what joins it to another text
        letters = sum(map(str.isalpha, "".join(parts)))
        forms.append((letters, max(parts, key=len, default="").strip(" :;,"), re.compile(pattern, re.DOTALL)))
    return frozenset(_texts(trees)), sorted(forms, key=lambda form: -form[0])


def is_name(text: str) -> bool:
    """Whether the kit's source has this text, as a whole."""
    return text in _source()[0]


def is_value(text: str) -> bool:
    """Whether it is a number of few digits, with its unit and interval, or a shape."""
    return bool(VALUE.fullmatch(text)) and sum(map(str.isdigit, text)) <= MOST_DIGITS


@functools.cache
def own(text: str, within: int = 0) -> str | None:
    """A text as the kit makes it, with `LEFT_OUT` where a form is filled with something else; None for one that has
    none of its forms. within: in how many forms it stands; in one, a number or a name is enough."""
    if is_name(text) or (within and (not text or is_value(text) or text in FILLED)):
        return text
    if within > DEEPEST or len(text) > MOST_LETTERS or not (ways := list(_ways(text, within))):
        return None
    return next((way for way in ways if LEFT_OUT not in way), ways[0])


def _ways(text: str, within: int) -> Iterator[str]:
    """How a text can be read: by one form, or as two texts that each say something, or one beside a number."""
    for letters, part, pattern in _source()[1]:
        if part in text and (match := pattern.fullmatch(text)):
            groups = match.groups()
            if letters < LEAST:  # as `float32 of 128`; a chain of such would be any text
                named = all(is_value(group) or is_name(group) or group in FILLED for group in groups)
                says = letters and (within or any(map(is_value, groups)))
                if named and len(groups) <= 2 and (says or any(" " in group and is_name(group) for group in groups)):
                    yield text
                continue
            filled = [own(group, within + 1) for group in groups]
            yield _filled(match, filled)
    for sign in re.finditer(r"; |: |, (?:no )?| and |(?<=, and) |(?<=\w) (?=\d)", text):
        halves = text[: sign.start()], text[sign.end() :]
        each = [half if _short(half) else own(half) if " " in half else None for half in halves]
        if is_name(halves[0]) and is_value(halves[1]) and sign[0] == " ":
            yield text
        elif None not in each and (within or not all(map(_short, halves))):
            yield sign[0].join(each)


def _short(text: str) -> bool:
    """A number, or what a list of the kit has: `fp32, bf16 and CPU`."""
    return is_value(text) or bool(re.fullmatch(r"(b?fp?|tf|int)\d\d?|[CGT]PU|cpu|gpu|cuda|mps", text))


def _filled(match: re.Match, filled: list[str | None]) -> str:
    text, place = "", 0
    for number, part in enumerate(filled, 1):
        text += match.string[place : match.start(number)] + (LEFT_OUT if part is None else part)
        place = match.end(number)
    return text + match.string[place:]
