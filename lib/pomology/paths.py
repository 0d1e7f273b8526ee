"""Paths of pomology's files, and functions that read and write them."""

import contextlib
import csv
import errno
import fcntl
import functools
import getpass
import os
import re
import stat
import tempfile
import unicodedata
from html.entities import codepoint2name
from pathlib import Path

from pomology.errors import PomologyError
from pomology.format import one_line

RESOURCES = Path(__file__).parent / "resources"
EXTRAS = Path(__file__).parent / "extras"
# Names of users that name nobody, or parts of pomology's own paths.
USUAL_NAMES = ("root", "user", "admin", "runner", "ubuntu", "jovyan", "pomology", "data", "docs")


def root() -> Path:
    """Return the checkout that contains this package, or else the current folder."""
    checkout = Path(__file__).resolve().parents[2]
    return checkout if (checkout / "notebooks").is_dir() else Path.cwd()


def in_checkout() -> bool:
    """Return whether `root` is a checkout, which has the notebooks and their parameters."""
    return all((root() / name).is_dir() for name in ("notebooks", "params"))


def expanded(text: str) -> Path:
    """Return a path whose `~` is a home folder. Raises PomologyError for nobody's."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise PomologyError(f"{one_line(text)}: there is no such user's home folder") from None


def redact(text: str) -> str:
    """Replace folders that may name a person: the checkout by `.`, the home folder by `~`.

    In other paths the user's name becomes `user`. All are found as they are, and in the forms that
    JSON, Python, HTML and addresses give to letters outside of ASCII and to signs.
    """
    home = os.path.expanduser("~")
    folders = {str(root()): ".", home: "~", os.path.realpath(home): "~"}
    for folder, short in folders.items():
        if folder != Path(folder).anchor:  # `/` is in every path
            text = _written(folder).sub(short, text)
    name = ""
    with contextlib.suppress(KeyError, OSError):  # accounts in containers may have no name
        name = getpass.getuser()
    named = len(name) > 2 and name not in USUAL_NAMES
    return _written(f"/{name}").sub("/user", text) if named else text


@functools.lru_cache(maxsize=32)
def _written(path: str) -> re.Pattern[str]:
    """Return the pattern of a path in all forms that its characters may have."""
    characters = unicodedata.normalize("NFC", path)
    # The folder `work` is no part of the path of `workshop`, and `</pre>` is no path. Case makes no
    # difference to macOS.
    pattern = rf"(?<!<){''.join(map(_forms, characters))}(?!\.?[\w-])"
    return re.compile(pattern, re.IGNORECASE)


def _forms(character: str) -> str:
    """Return the pattern of a character, which macOS may write as a letter and its accent."""
    whole, parts = _codes(character), unicodedata.normalize("NFD", character)
    return whole if parts == character else f"(?:{whole}|{''.join(map(_codes, parts))})"


def _codes(character: str) -> str:
    """Return the pattern of one code point: itself, or as JSON, Python, HTML or an address."""
    if character.isascii() and character.isalnum():
        return character
    number = ord(character)
    wide = character.encode("utf-16-be").hex()
    units = [wide[place : place + 4] for place in range(0, len(wide), 4)]
    octets = [f"{octet:02x}" for octet in character.encode(errors="surrogateescape")]
    codes = [re.escape(character), rf"\\+{re.escape(character)}", f"&#0*{number};"]
    codes += [rf"&#x0*{number:x};", rf"\\+U{number:08x}", rf"\\+x{number:02x}"]
    codes += ["".join(rf"\\+u{unit}" for unit in units)]
    codes += [f"&{codepoint2name[number]};"] if number in codepoint2name else []
    codes += [r"\+"] if character == " " else []  # in the query of an address
    codes += ["".join(f"{sign}{octet}" for octet in octets) for sign in ("%", r"\\+x")]
    return f"(?:{'|'.join(codes)})"


def read_file(path: Path) -> bytes:
    """Return a file's bytes. Raises PomologyError if it cannot be read, or is no regular file."""
    try:
        require_regular(path)
        return path.read_bytes()
    except OSError as error:
        raise PomologyError(f"{one_line(path.name)}: cannot be read: {error.strerror}") from None


def read_text(path: Path) -> str:
    """Return a file's text, which is UTF-8. Raises PomologyError if it cannot be read."""
    try:
        return read_file(path).decode()
    except UnicodeDecodeError as error:
        raise PomologyError(f"{one_line(path.name)}: cannot be read: {error.reason}") from None


def require_regular(path: Path) -> None:
    """Raise OSError for a pipe, socket or device, of which a reader would wait for ever."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def name_of(path: Path) -> str:
    """Return the name of what a path leads to, also where a link leads to itself."""
    return Path(os.path.realpath(path)).name


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
    """Write a file atomically, creating its folder. Raises PomologyError if a folder is there."""
    # A process that is killed meanwhile leaves the old file whole, next to a draft.
    if path.is_dir():
        raise PomologyError(f"{one_line(path.name)}: cannot be written: it is a folder; remove it")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".part")
    draft.unlink(missing_ok=True)  # of a killed process; a pipe there would wait for ever
    with open(draft, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode(errors="replace"))
        file.flush()
        synchronize(file.fileno())  # or a power cut may leave the new name without the new bytes
    os.replace(draft, path)


def synchronize(descriptor: int, whole: bool = False) -> None:
    """Wait until a file's bytes are on the disk. Raises OSError if the disk fails or is full.

    whole: on macOS, flush the drive's cache, too, which takes longer. Network volumes, exFAT and
    FUSE refuse one of the two, or both; their bytes are then where the system has put them.
    """
    flushes = [os.fsync]
    if whole and hasattr(fcntl, "F_FULLFSYNC"):
        flushes.append(lambda number: fcntl.fcntl(number, fcntl.F_FULLFSYNC))
    for flush in flushes:
        try:
            flush(descriptor)
        except OSError as error:
            if error.errno in (errno.EIO, errno.ENOSPC, errno.EDQUOT):
                raise


def notebook_paths(folder: Path) -> list[Path]:
    """Return the paths of all notebooks in a folder and its subfolders, one level deep."""
    # JupyterLab and macOS keep hidden copies.
    return sorted([*folder.glob("[!.]*.ipynb"), *folder.glob("[!.]*/[!.]*.ipynb")])
