"""Rendered notebooks without names, addresses and keys, in whatever way these are encoded."""

import base64
import contextlib
import getpass
import html
import io
import os
import re
import socket
import unicodedata
from pathlib import Path
from urllib.parse import unquote

from pomology.errors import PomologyError

SECRET = re.compile("TOKEN(?!IZERS)|SECRET|PASSW|_KEY$")  # names of environment variables
USUAL = ("root", "/root", "user", "admin", "runner", "ubuntu", "jovyan", "localhost")
# Addresses of mail and machines, not versions such as 7.4.2.24; detect-secrets finds neither.
ADDRESS = re.compile(r"\w@[\w-]+\.[a-z]|(?<![\w.])\d{2,3}(\.\d{1,3}){3}(?![\w.])")
EMBEDDED = re.compile(r"data:[\w/+.;=-]*;base64,((?:[\w+/=\s]|%0A)*)")
ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|[nrt])")
ANSI = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")


def rendered(folder: Path) -> dict[str, str]:
    """Return a run's rendered notebooks: file name -> HTML.

    Raises PomologyError for a notebook with the name of this machine, its user or home folder, with
    a secret of the environment, or with text that looks like an address or a key.
    """
    names = [name.lower() for name in own_names()]
    pages = {}
    for path in sorted(set(folder.glob("*.html")) - {folder / "index.html"}):
        page = path.read_text(encoding="utf-8")
        for text in readings(f"{path.name}\n{page}"):
            named = any(name in text.lower() for name in names)
            if named or ADDRESS.search(text) or holds_key(text):
                raise PomologyError(f"{path.name}: contains a name or key; omit NOTEBOOKS=1")
        pages[path.name] = page
    return pages


def readings(page: str) -> set[str]:
    """Return a page as it is, with each layer of encodings removed, and all without tags, too."""
    texts = set()
    text = EMBEDDED.sub(embedded, page)
    while text not in texts:
        texts.add(text)
        text = EMBEDDED.sub(embedded, html.unescape(unquote(text)))
        text = ESCAPE.sub(lambda code: chr(int(code[1] or code[2] or "20", 16)), text)
        text = ANSI.sub("", unicodedata.normalize("NFKC", text))
        # A soft hyphen must not split a name.
        characters = (letter for letter in text if letter.isspace() or letter.isprintable())
        text = "".join(characters)
    return texts | {re.sub(r"<[^<>]*>", "", text) for text in texts}


def embedded(data: re.Match) -> str:
    """Return the texts in an embedded file; of a picture those next to its pixels."""
    from PIL import Image

    letters = re.sub("[^A-Za-z0-9+/]", "", unquote(data[1]))
    content = base64.b64decode(letters + "A" * (-len(letters) % 4))
    try:
        with Image.open(io.BytesIO(content)) as picture:
            picture.load()  # texts may follow the pixels
            return f" {picture.info} {dict(picture.getexif())} "
    except OSError:  # no picture
        return f" {content.decode(errors='replace')} "


def holds_key(text: str) -> bool:
    """Return whether detect-secrets finds a key or password in a text."""
    from detect_secrets.core.scan import scan_line
    from detect_secrets.settings import default_settings

    with default_settings() as settings:
        # These detectors match numbers and commits.
        settings.disable_plugins("Base64HighEntropyString", "HexHighEntropyString")
        # Longer lines take minutes. Parts overlap, so that none splits a key.
        parts = re.findall(r"(?=(.{1,400}))(?:.{1,200}|$)", text)
        return any(True for part in parts for _ in scan_line(part))


def own_names() -> list[str]:
    """Return the names of this machine, its user and home folder, and the environment's secrets."""
    names = [os.path.expanduser("~"), socket.gethostname().partition(".")[0]]
    names += [value for name, value in os.environ.items() if SECRET.search(name)]
    with contextlib.suppress(KeyError, OSError):  # accounts in containers may have no name
        names.append(getpass.getuser())
    return [name for name in names if len(name) > 3 and name not in USUAL]
