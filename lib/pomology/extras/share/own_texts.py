"""Which texts are the kit's own: literals of its source, with numbers and short words between them."""

import ast
import builtins
import functools
import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pomology

LEFT_OUT = "(left out)"  # in place of what stands between phrases of the kit, and is not its own
LEAST = 8  # letters of a phrase; with fewer, any text would be made of them
MOST_DIGITS, MOST_LETTERS = 15, 1_000  # of a value: the number of a card has 16; and of a text
# What stands in the kit's texts and not in its source: names of exceptions, and what frameworks say.
FOREIGN = {*vars(builtins), "ConnectError", "ConnectTimeout", "ReadTimeout", "OutOfMemoryError", "NVMLError"}
FOREIGN |= {"CPUAccelerator", "MPSAccelerator", "CUDAAccelerator", "No supported gpu backend found!"}

NUMBER = r"[-−+<≥≤]?(?:\d{1,3}(?:,\d{3}){1,2}|\d{1,6})(?:\.\d{1,6})?(?:e[-+]?\d{1,3})?"
UNIT = r"(?: ?(?:%|×|x|[mµn]?s|min|h|[kMGT]?i?B(?:/s)?|[kMGTP]?FLOP(?:/s)?|[mk]?[WJ]|°C|K|[MG]Hz|cores?|bits?|steps?))?"
QUANTITY = rf"(?:about )?{NUMBER}{UNIT}"
VALUE = re.compile(rf"{QUANTITY}(?:(?: ± |: | to | and | of | \(|, ){QUANTITY}\)?)*|\d{{1,5}}(?:x\d{{1,5}}){{1,4}}")
KIND = re.compile(r"(b?fp?|tf|int)\d\d?|[CGT]PU|cpu|gpu|cuda|mps")  # of numbers and devices, as lists name them
EDGES = " .,:;()/%'\"!\n-"
MOST_WORDS = 2  # beside phrases, as a passphrase may be made of the kit's; more stand beside numbers


def _texts(trees: Iterable[ast.Module]) -> set[str]:
    nodes = [node for tree in trees for node in ast.walk(tree)]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return texts | {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg}


@functools.cache
def names() -> frozenset[str]:
    """The literals of the kit's source, those between the braces of its f-strings too."""
    trees = [
        ast.parse(path.read_text(encoding="utf-8")) for path in sorted(Path(pomology.__file__).parent.rglob("*.py"))
    ]
    return frozenset(_texts(trees))


@functools.cache
def _literals() -> frozenset[str]:
    """Those as they stand in a text: without signs at their ends and the unit of a value before them; and of a text to
    be formatted its parts."""
    parts = {part.strip(EDGES) for text in {*names(), *FOREIGN} for part in text.split("{}")}
    return frozenset(parts | {re.sub(rf"^{UNIT}(?!\w)", "", part).strip(EDGES) for part in parts}) - {""}


def is_value(text: str) -> bool:
    """Whether it is a number of few digits, with its unit and interval, or a shape."""
    return bool(VALUE.fullmatch(text)) and sum(map(str.isdigit, text)) <= MOST_DIGITS


@functools.cache
def own(text: str) -> str | None:
    """A text as the kit makes it, with `LEFT_OUT` where something else stands between its phrases; None for one that
    has none of them, but for a few words beside numbers."""
    if text in names():
        return text
    if len(text) > MOST_LETTERS:
        return None
    runs = [list(run) for _, run in itertools.groupby(_pieces(text), lambda piece: piece[1] == "phrase")]
    known = [piece for run in runs if all(kind for _, kind in run) for piece in run]
    kinds = [kind for _, kind in known]
    words, others, phrases = (kinds.count(kind) for kind in ("word", "name", "phrase"))
    values, most = 2 * kinds.count("value") + kinds.count("kind"), MOST_WORDS if phrases else 0
    few = words <= values + most and words + others <= values + 4 * most
    good = [all(kind for _, kind in run) and (few or not {"word", "name"} & {kind for _, kind in run}) for run in runs]
    if not (phrases or all(good)):
        return None
    texts = ["".join(piece for piece, _ in run) for run in runs]
    return "".join(part if fine else _left_out(part) for part, fine in zip(texts, good, strict=True))


def _pieces(text: str) -> Iterator[tuple[str, str]]:
    """Each piece of a text with its kind: the longest literal at its place, a value, or a word that is neither."""
    starts = (cut.start() for cut in re.finditer(r"\b(?=\w)(?<!\d[.:-])", text))  # none within an address
    cuts, place = sorted({0, *starts, len(text)}), 0
    while place < len(cuts) - 1:
        for end in range(len(cuts) - 1, place, -1):
            piece = text[cuts[place] : cuts[end]]
            if kind := _kind(piece.strip(EDGES)):
                break
        yield piece, kind
        place = end


def _kind(text: str) -> str:
    if is_value(text) or KIND.fullmatch(text):
        return "value" if is_value(text) else "kind"
    if text not in _literals():
        return ""
    if " " in text and sum(map(str.isalpha, text)) >= LEAST:
        return "phrase"
    return "word" if re.fullmatch(r"[A-Z]?[a-z']{2,}", text) and text != "of" else "name"


def _left_out(text: str) -> str:
    before, after = (re.search(sign, text)[0] for sign in (r"^[ ,:;(]*", r"[ ,:;)]*$"))
    return before + LEFT_OUT + after
