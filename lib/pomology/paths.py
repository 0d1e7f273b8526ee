"""Where the kit's files are, and how it writes them."""

import os
import re
from pathlib import Path

RESOURCES = Path(__file__).parent / "resources"


def root() -> Path:
    """The checkout that this package runs from: it has the notebooks, and gets the outputs. Else the current folder."""
    checkout = Path(__file__).resolve().parents[2]
    return checkout if (checkout / "notebooks").is_dir() else Path.cwd()


def redact(text: str) -> str:
    """A text without the folders of this machine, which may name a person: the checkout as `.`, the home as `~`."""
    for folder, short in ((root(), "."), (Path(os.path.expanduser("~")), "~")):
        if folder != Path(folder.anchor):
            text = re.sub(re.escape(str(folder)) + r"(?!\.?[\w-])", short, text)
    return text


def write_atomic(path: Path, text: str) -> None:
    """Write a file, whole or not at all, into a folder that is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".part")
    draft.write_text(text, encoding="utf-8", errors="replace", newline="")
    os.replace(draft, path)


def notebook_paths(folder: Path) -> list[Path]:
    """The files of all notebooks: those of an article in a folder of its own, what is about all of them beside these.

    JupyterLab keeps copies in hidden folders, which are none.
    """
    files = [*folder.glob("*.ipynb"), *folder.glob("*/*.ipynb")]
    return sorted(path for path in files if not path.parent.name.startswith("."))
