"""Where the kit's files are, and how it writes them."""

import os
import re
from pathlib import Path

from pomology.errors import PomologyError
from pomology.format import one_line

RESOURCES = Path(__file__).parent / "resources"
MOST_BYTES = 64 * 2**20  # of a file that is read


def root() -> Path:
    """The checkout that this package runs from: it has the notebooks, and gets the outputs. Else the current folder."""
    checkout = Path(__file__).resolve().parents[2]
    return checkout if (checkout / "notebooks").is_dir() else Path.cwd()


def foreign_paths() -> list[str]:
    """Return the entries of PYTHONPATH that belong to other environments: all that do not hold this library."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [entry for entry in entries if entry and not (Path(entry) / "pomology").is_dir()]


def redact(text: str) -> str:
    """A text without the folders of this machine, which may name a person: the checkout as `.`, the home as `~`."""
    for folder, short in ((root(), "."), (Path(os.path.expanduser("~")), "~")):
        if folder != Path(folder.anchor):
            text = re.sub(re.escape(str(folder)) + r"(?!\.?[\w-])", short, text)
    return text


def read_file(path: Path, most: int = MOST_BYTES) -> bytes:
    """A file's bytes. Raises PomologyError, in a line, for what cannot be read, or is larger."""
    name = one_line(path.name)
    try:
        if path.stat().st_size <= most:
            return path.read_bytes()
    except OSError as error:
        raise PomologyError(f"{name}: cannot be read: {error.strerror}") from None
    raise PomologyError(f"{name}: no file of at most {most:,} bytes")


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file, whole or not at all, into a folder that is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".part")
    draft.write_bytes(content if isinstance(content, bytes) else content.encode(errors="replace"))
    os.replace(draft, path)


def notebook_paths(folder: Path) -> list[Path]:
    """The files of all notebooks: those of an article in a folder of its own, what is about all of them beside these.
    JupyterLab keeps copies in hidden folders, which are none."""
    files = [*folder.glob("*.ipynb"), *folder.glob("*/*.ipynb")]
    return sorted(path for path in files if not path.parent.name.startswith("."))
