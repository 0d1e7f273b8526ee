"""pomology: how fast does this machine train neural networks, and why?

Importing the package imports no training framework; each module says what it is for.
"""

import os
import re
from pathlib import Path

__version__ = "0.1.0"

RESOURCES = Path(__file__).parent / "resources"


class PomologyError(Exception):
    """Bad input, said in one line that names the file, key or value and what would be right."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows of it (asked for by IPython): that line, without the way through this package."""
        return [f"{type(self).__name__}: {self}"]


def root() -> Path:
    """The checkout that this package runs from: it has the notebooks, and gets the outputs. Else the current folder."""
    checkout = Path(__file__).resolve().parents[2]
    return checkout if (checkout / "notebooks").is_dir() else Path.cwd()


def private(text: str) -> str:
    """A text without the folders of this machine, which may name a person: the checkout as `.`, the home as `~`."""
    for folder, short in ((root(), "."), (Path.home(), "~")):
        if folder != Path(folder.anchor):
            text = re.sub(re.escape(str(folder)) + r"(?!\.?[\w-])", short, text)
    return text


def write_whole(path: Path, text: str) -> None:
    """Write a file, whole or not at all, into a folder that is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".part")
    draft.write_text(text, encoding="utf-8", errors="replace", newline="")
    os.replace(draft, path)
