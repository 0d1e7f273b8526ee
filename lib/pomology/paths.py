"""Where the kit's files are, and how it reads and writes them."""

import csv
import os
import re
from pathlib import Path

from pomology.errors import PomologyError
from pomology.format import one_line

RESOURCES = Path(__file__).parent / "resources"


def root() -> Path:
    """Return the checkout that this package runs from, or else the current folder."""
    checkout = Path(__file__).resolve().parents[2]
    return checkout if (checkout / "notebooks").is_dir() else Path.cwd()


def redact(text: str) -> str:
    """Return a text without folders that may name a person: `.` is the checkout, `~` the home."""
    for folder, short in ((root(), "."), (Path(os.path.expanduser("~")), "~")):
        if folder != Path(folder.anchor):
            text = re.sub(re.escape(str(folder)) + r"(?!\.?[\w-])", short, text)
    return text


def read_file(path: Path) -> bytes:
    """Return a file's bytes. Raises PomologyError for one that cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise PomologyError(f"{one_line(path.name)}: cannot be read: {error.strerror}") from None


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table of the kit's own, as text."""
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file, whole or not at all, into a folder that is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".part")
    draft.write_bytes(content if isinstance(content, bytes) else content.encode(errors="replace"))
    os.replace(draft, path)


def notebook_paths(folder: Path) -> list[Path]:
    """Return the files of all notebooks, in this folder and in those of the articles."""
    files = [*folder.glob("*.ipynb"), *folder.glob("*/*.ipynb")]
    # JupyterLab keeps copies in hidden folders.
    return sorted(path for path in files if not path.parent.name.startswith("."))
