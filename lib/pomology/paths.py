"""Paths of pomology's files, and functions that read and write them."""

import csv
import os
import re
import tempfile
from pathlib import Path

from pomology.errors import PomologyError
from pomology.format import one_line

RESOURCES = Path(__file__).parent / "resources"
EXTRAS = Path(__file__).parent / "extras"


def root() -> Path:
    """Return the checkout that contains this package, or else the current folder."""
    checkout = Path(__file__).resolve().parents[2]
    return checkout if (checkout / "notebooks").is_dir() else Path.cwd()


def in_checkout() -> bool:
    """Return whether `root` is a checkout, which has the notebooks and their parameters."""
    return all((root() / name).is_dir() for name in ("notebooks", "params"))


def redact(text: str) -> str:
    """Replace folders that may name a person: the checkout by `.`, the home folder by `~`."""
    for folder, short in ((root(), "."), (Path(os.path.expanduser("~")), "~")):
        if folder != Path(folder.anchor):  # `/` is in every path
            # The folder `work` is no part of the path of `workshop`.
            text = re.sub(re.escape(str(folder)) + r"(?!\.?[\w-])", short, text)
    return text


def read_file(path: Path) -> bytes:
    """Return a file's bytes. Raises PomologyError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise PomologyError(f"{one_line(path.name)}: cannot be read: {error.strerror}") from None


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows of one of pomology's tables, as text."""
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def make_folder(folder: Path) -> None:
    """Create a folder if necessary. Raises PomologyError if no file can be written in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(bytes(2**16))  # a full disk has room for an empty file
    except OSError as error:
        raise PomologyError(f"{redact(str(folder))}: cannot be written: {error.strerror}") from None


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file atomically, creating its folder if necessary."""
    # A process that is killed meanwhile leaves the old file whole, next to a draft.
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".part")
    draft.write_bytes(content if isinstance(content, bytes) else content.encode(errors="replace"))
    os.replace(draft, path)


def notebook_paths(folder: Path) -> list[Path]:
    """Return the paths of all notebooks in a folder and its subfolders, one level deep."""
    # JupyterLab and macOS keep hidden copies.
    return sorted([*folder.glob("[!.]*.ipynb"), *folder.glob("[!.]*/[!.]*.ipynb")])
