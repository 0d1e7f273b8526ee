"""A run as one file for others, and what others sent.

`write` packs journals, machine.json, rendered pages, tables and figures of a run into a zip, after a look at all of it
for what names a person, a host, a folder, an address or a serial number.
"""

import base64
import contextlib
import html
import io
import ipaddress
import os
import pwd
import re
import socket
import struct
import sys
import unicodedata
import urllib.parse
import uuid
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from pomology.errors import PomologyError
from pomology.machine import snapshot
from pomology.paths import root
from pomology.report import page as report_page
from pomology.results import run as results_run
from pomology.results.archive import KINDS, open_zip

SMALL = 2**20  # bytes of a table or a figure that is shared
# Accounts and hosts that are called so everywhere: these words name nobody.
ANYBODY = frozenset(
    """
    root user users admin administrator guest nobody daemon runner ubuntu debian fedora jovyan vagrant mac macos apple
    macbook imac macmini macstudio mac-mini mac-studio mac-pro macbook-pro macbook-air linux localhost local home host
    hostname computer desktop laptop server workstation test tester default docker container none unknown localdomain
    lan internal domain example
    """.split()  # noqa: SIM905
)
PATTERNS = {
    "a home folder": (
        r"(?<![\w.~-])/(?:Users|home|Volumes)/(?!Shared\b|you\b|user\b|name\b)[^\s/\"'<>\\&|:;,()\[\]]+"
        r"|(?<![\w.~-])/root/[\w.-]+|(?<![\w.~-])(?:/private)?/var/folders/[\w+]+/[\w+]+"
        r"|(?<!\w)[A-Za-z]:[\\/]{1,4}(?:Users|Documents and Settings)[\\/]{1,4}[^\s/\"'<>\\&|:;,()\[\]]+"
    ),
    "the address of a network card": (
        r"(?<![\w:.-])(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}(?![\w:-])"
        r"|(?<![\w:.-])(?:[0-9A-Fa-f]{2}-){5}[0-9A-Fa-f]{2}(?![\w:-])"
        r"|(?<![\w:.-])(?=[\d.]*[a-fA-F])(?:[0-9A-Fa-f]{4}\.){2}[0-9A-Fa-f]{4}(?![\w:.-])"
    ),
    "an e-mail address": r"(?<![\w.@/-])[A-Za-z0-9][\w.+-]*@(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,}(?![\w(])",
    "a serial number": r"(?i:serial(?:[ _-]?number)?(?: \(system\))?)[\"']?\s*[:=#]\s*[\"']?(?=\w*\d)\w{6,}",
    "a serial number of a device": r"(?:UUID\W{1,4}|GPU-|MIG-)(?:[0-9A-Fa-f]+-){4}[0-9A-Fa-f]{12}(?![\w-])",
    "a computer's name": r"(?<![\w./-])[A-Za-z0-9]+(?:-[A-Za-z0-9]+)+\.(?:local|lan|home|internal)(?![\w.-])",
    "an environment variable": (
        r"(?<![A-Za-z0-9$])(?:USER|USERNAME|LOGNAME|HOSTNAME|COMPUTERNAME|SSH_[A-Z_]+|(?:[A-Z]+_)+(?:TOKEN|SECRET|KEY"
        r"|PASSWORD))(?:=|[\"'] ?: ?)[\"']?[^\s\"'=<>(){}$]{3,}"
    ),
    # Those that every machine has name nobody: /usr, /etc, /proc, /opt/homebrew and the like.
    "a folder": (
        r"(?<![\w.~:/<>)\]*-])/(?:mnt|media|srv|data|datasets|scratch|work|workspace|workspaces|projects?|nfs|net|export"
        r"|lustre|gpfs|storage|cluster|tmp(?!/ipykernel_)|private|run/user|opt(?!/(?:homebrew|conda|local|nvidia)\b))"
        r"/[\w.@+-]*[\w@+-]"
    ),
    "an access token": r"(?<!\w)(?:hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}|AKIA[A-Z0-9]{16})(?!\w)",
}
FOUR_NUMBERS = r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\d)"
COLONS = r"(?<![\w:.])[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:])"
VERSION = re.compile(r"(?:version|release|driver|[=<>~v-])[\s\"':]*$", re.IGNORECASE)  # stands before one
EMBEDDED = re.compile(r"data:([\w.+/-]*)[^,\"'<>\s]{0,80};base64,([A-Za-z0-9+/=\s]+)")
WORDS = re.compile(rb"[\t\x20-\x7e\x80-\xff]{5,}")  # what may be text among other bytes
PNG = b"\x89PNG\r\n\x1a\n"
# The same as a browser, a reader of JSON or a person sees it: the sign of such a spelling, and what undoes it.
SPELLINGS = (
    ("&", html.unescape),
    ("\\u", lambda text: re.sub(r"\\u([0-9a-fA-F]{4})", lambda code: chr(int(code[1], 16)), text)),
    ("\\/", lambda text: text.replace("\\/", "/")),
    ("<", lambda text: re.sub(r"<\w[^<>]*>", " ", text)),
    ("%2", urllib.parse.unquote),
    ("</", lambda text: html.unescape(re.sub(r"</?(?:span|a|b|i|em|strong|code|mark|u)\b[^<>]*>", "", text))),
    ("", lambda text: unicodedata.normalize("NFKC", text)),
)


class Secret(NamedTuple):
    """A text that names this machine or who uses it. exact: capitals count."""

    what: str
    text: str
    exact: bool = False


def secrets() -> list[Secret]:
    """What this machine knows of its user and of itself, and a shared file must not say; the longest first."""
    account, serials = pwd.getpwuid(os.getuid()), {f"{uuid.getnode():012x}"}
    hosts = {socket.gethostname(), socket.getfqdn()}
    if sys.platform == "darwin":  # where a machine is mostly somebody's: Jane's MacBook Pro
        names = [snapshot.run_command("scutil", "--get", name) for name in ("ComputerName", "LocalHostName")]
        hosts |= {(name or "").strip() for name in names}
        listed = snapshot.run_command("ioreg", "-rd1", "-c", "IOPlatformExpertDevice") or ""
        serials |= set(re.findall(r'"IOPlatform(?:SerialNumber|UUID)" = "([^"]+)"', listed))
    identifiers = [Path("/sys/class/dmi/id", name) for name in ("product_serial", "board_serial", "product_uuid")]
    for place in (*identifiers, Path("/etc/machine-id")):
        with contextlib.suppress(OSError):  # not there, or for root only: then no run has it from there
            serials.add(place.read_text(encoding="utf-8", errors="replace").strip())
    addresses = {entry.address.partition("%")[0] for card in psutil.net_if_addrs().values() for entry in card}
    everywhere = re.compile(r"[0:]+1?|127\..*|0\.0\.0\.0")
    hidden = [value for name, value in os.environ.items() if re.search(r"TOKEN|SECRET|PASSWORD|_KEY$", name)]
    numbers = [text for text in serials if len(text) >= 6 and re.search(r"\d", text) and len(set(text)) > 3]
    texts = {
        "this machine's user name": {account.pw_name, os.environ.get("USER", "")},
        "a secret of this machine's environment": {value for value in hidden if len(value) >= 8},
        "the name of this machine's user": {account.pw_gecos.split(",")[0].strip()},
        "this machine's name": hosts | {host.partition(".")[0] for host in hosts},
        "a folder of this machine": {str(folder) for folder in (Path.home(), Path(account.pw_dir), root())},
        "an address of this machine": {text for text in addresses if not everywhere.fullmatch(text)},
        "a serial number of this machine": numbers,
    }
    # Capitals count in a user name: `max` is a word in every program, and Max wrote an article.
    known = [Secret(what, text, "user name" in what) for what, each in texts.items() for text in sorted(each)]
    known = [secret for secret in known if len(secret.text) > 2 and secret.text.lower() not in ANYBODY]
    return sorted(known, key=lambda secret: -len(secret.text))


def finding(name: str, data: bytes, known: list[Secret], versions: frozenset[str] = frozenset()) -> str | None:
    """What in a file must not be shared, first of all, without saying it in full; None if there is nothing.

    versions: texts of four numbers that are known to be no addresses.
    """
    if hit := _first(name, known, versions):
        return f"{name}: its name holds {_hint(*hit)}"
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return f"{name}: it is not text in UTF-8, which every file of a run is"
    if "\0" in text:
        return f"{name}: it holds a zero byte, which no file of a run does"
    for reading, embedded, least in _readings(text):
        if hit := _first(reading, [secret for secret in known if len(secret.text) >= least], versions):
            place = ", in a picture" if embedded else f", line {reading.count(chr(10), 0, hit[2]) + 1}"
            return f"{name}{place}: {_hint(*hit)}"
    return None


def _readings(text: str, embedded: bool = False, least: int = 0) -> Iterator[tuple[str, bool, int]]:
    """A text, its other spellings, and what is embedded in it; whether it is; and from which length on names count."""
    plain = EMBEDDED.sub("", text)
    spelt = (respell(plain) for sign, respell in SPELLINGS if sign in plain)
    yield from ((reading, embedded, least) for reading in dict.fromkeys((plain, *spelt)))
    for kind, encoded in EMBEDDED.findall(text):
        letters = re.sub(r"[^A-Za-z0-9+/]", "", encoded)
        data = base64.b64decode(letters[: len(letters) - (len(letters) % 4 == 1)] + "==")  # one letter alone is no byte
        if data.startswith(PNG):
            yield from _readings(_beside_pixels(data), True, least)
        elif "svg" in kind or "text" in kind:
            yield from _readings(_text(data), True, least)
        else:  # among the bytes of a photograph a short name turns up by accident
            yield from _readings(_text(b"\n".join(WORDS.findall(data))), True, 8)


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace").replace("\0", "\n")


def _beside_pixels(data: bytes) -> str:
    """What stands beside the pixels of a PNG, packed or not, and behind its end."""
    pieces, place, kind = [], len(PNG), b""
    while place + 8 <= len(data) and kind != b"IEND":
        length, kind = struct.unpack(">I4s", data[place : place + 8])
        body = data[place + 8 : place + 8 + length]
        place += 12 + length
        if kind != b"IDAT":
            pieces.append(body)
        for start in range(min(len(body), 200)) if kind in (b"zTXt", b"iTXt", b"iCCP") else ():
            with contextlib.suppress(zlib.error):  # where what is packed begins depends on the words before it
                pieces.append(zlib.decompressobj().decompress(body[start:], SMALL))
    return _text(b"\n".join([*pieces, data[place:]]))


def _hint(what: str, text: str, _: int) -> str:
    return f"{what} ({text[: min(3, len(text) // 2)]!r}…)"


def _first(text: str, known: list[Secret], versions: frozenset[str]) -> tuple[str, str, int] | None:
    """What is there, its text, and where."""
    for exact in (True, False):
        chosen = {each.text if exact else each.text.lower(): each.what for each in known if each.exact is exact}
        names = "|".join(map(re.escape, chosen)) or r"(?!)"
        pattern = rf"(?<![A-Za-z0-9_])(?:{names})(?![A-Za-z0-9_])"  # a name stands by itself
        if hit := re.search(pattern, text, 0 if exact else re.IGNORECASE):
            return chosen[hit[0] if exact else hit[0].lower()], hit[0], hit.start()
    for what, pattern in PATTERNS.items():
        if hit := re.search(pattern, text):
            return what, hit[0], hit.start()
    for hit in re.finditer(f"{FOUR_NUMBERS}|{COLONS}", text):
        if hit[0] not in versions and _is_address(hit[0], text[max(hit.start() - 12, 0) : hit.start()]):
            return "an IP address", hit[0], hit.start()
    return None


def _is_address(text: str, before: str) -> bool:
    """Not a version, a time of day, a slice of Python, or an address that every machine has."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if address.version == 4:
        return not (address.is_loopback or address.is_unspecified or VERSION.search(before))
    return sum(map(bool, text.split(":"))) > 2 and len(text.partition(":")[0]) >= 3


def write(folder: str | Path) -> Path:
    """Render a run's folder, check it, and pack it into a zip beside it; returns where that is.

    The same run makes the same bytes. Raises PomologyError, and writes nothing, if a file says what must not be shared.
    """
    folder = Path(folder)
    report_page.build(folder)
    files, run_name = {}, folder.resolve().name
    for place in sorted(path for pattern in ("*", "tables/*", "figures/*") for path in folder.glob(pattern)):
        name = place.relative_to(folder).as_posix()
        own = KINDS.fullmatch(name) and place.is_file() and not place.is_symlink()
        if own and ("/" not in name or place.stat().st_size <= SMALL):
            files[name] = place.read_bytes()
    for name in [name for name in files if name.endswith(".html")]:  # of what is not sent, no link is left
        page = files[name].decode(errors="surrogateescape")
        files[name] = report_page.links_into(page, files).encode(errors="surrogateescape")
    known, versions, machine = secrets(), frozenset(), results_run.Run(folder).machine
    with contextlib.suppress(*results_run.MALFORMED):  # versions may be four numbers, as addresses are
        versions = frozenset(map(str, [*machine["packages"].values(), machine["python"], machine["os_version"]]))
    for name, data in {f"{run_name}.zip": b"", **files}.items():
        if hit := finding(name, data, known, versions):
            raise PomologyError(f"{hit}: a shared run must not hold that; nothing was written")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in files.items():
            # Dated 1980, as all of them: when it was packed is nobody's business.
            about = zipfile.ZipInfo(f"{run_name}/{name}")
            about.create_system, about.external_attr = 3, 0o100644 << 16
            archive.writestr(about, data, zipfile.ZIP_DEFLATED, 9)
    place = folder.resolve().with_name(f"{run_name}.zip")
    open_zip(place.name, packed)  # what others would refuse is not sent to them
    draft = place.with_name(f"{place.name}.part")
    draft.write_bytes(packed.getvalue())
    os.replace(draft, place)
    return place
