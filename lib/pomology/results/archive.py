"""Journals of runs in folders and shared zips, read with limits."""

import hashlib
import io
import os
import re
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple, Self

import msgspec

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.paths import MOST_BYTES, read_file

MOST_FILES = 2_000
MOST_ZIP_BYTES = 128 * 2**20
MOST_ALL_BYTES = 256 * 2**20  # of all files, unpacked

WORD = r"[A-Za-z0-9_][\w.+ -]{0,99}"
KINDS = re.compile(rf"(?:machine\.json|{WORD}\.(?:jsonl|html)|tables/{WORD}\.csv|figures/{WORD}\.svg)")
READ = re.compile(rf"(?:machine\.json|{WORD}\.jsonl(?:\.gz)?)")  # a run that is kept for long has packed journals
ARCHIVE = re.compile(r"\.(?:zip|gz|tgz|bz2|xz|zst|7z|rar|tar|dmg|iso)$", re.IGNORECASE)

# What the unpacking of a malformed zip can raise.
UNREADABLE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError, ValueError, IndexError)


class Entry(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What a list says of a file."""

    size: Annotated[int, msgspec.Meta(ge=0, le=MOST_BYTES)]
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]

    @classmethod
    def of(cls, data: bytes) -> Self:
        return cls(len(data), hashlib.sha256(data).hexdigest())


def refused(names: Collection[str], read: Collection[Entry]) -> str:
    """Why a list of files must not be a run's, in words; empty if it may. read: those of them that are read."""
    if len({unicodedata.normalize("NFKC", name).casefold() for name in names}) < len(names):
        return "two of its files are one on a Mac"
    if len(read) > MOST_FILES or sum(entry.size for entry in read) > MOST_ALL_BYTES:
        return f"too large; at most {MOST_FILES:,} files and {MOST_ALL_BYTES:,} bytes"
    return ""


class File(NamedTuple):
    """A file of a run's folder. stamp: changes when the file does. wrong: why it must not be read, in a line."""

    place: Path
    stamp: tuple[int, int]
    wrong: str | None

    def read(self) -> bytes:
        """Raises PomologyError for a file that must not or cannot be read."""
        name = f"{_shown(self.place.parent.name)}/{_shown(self.place.name)}"
        if self.wrong:
            raise PomologyError(f"{name}: {self.wrong}")
        data = read_file(self.place)
        if self.place.suffix == ".gz":
            try:
                data = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(data, MOST_BYTES + 1)
            except zlib.error as error:
                raise PomologyError(f"{name}: cannot be read: {error}") from None
        if len(data) > MOST_BYTES:
            raise PomologyError(f"{name}: too large; at most {MOST_BYTES:,} bytes unpacked")
        return data


def listed(folder: Path) -> list[File]:
    """`machine.json` and the journals of a run's folder. Raises PomologyError where they are too many."""
    with os.scandir(folder) as entries:
        chosen = sorted((entry for entry in entries if READ.fullmatch(entry.name)), key=lambda entry: entry.name)
    if len(chosen) > MOST_FILES:
        raise PomologyError(f"{_shown(folder.name)}: {len(chosen):,} journals; at most {MOST_FILES:,}")
    files, total = [], 0
    for entry in chosen:
        about, wrong = entry.stat(follow_symlinks=False), None
        # Neither a link, which may lead anywhere, nor a pipe, which may never end.
        if not stat.S_ISREG(about.st_mode):
            wrong = "not a file of its own, as a link or a pipe is none"
        elif about.st_size > MOST_BYTES or total + about.st_size > MOST_ALL_BYTES:
            wrong = f"too large; at most {MOST_BYTES:,} bytes a file, {MOST_ALL_BYTES:,} together"
        else:
            total += about.st_size
        files.append(File(folder / entry.name, (about.st_size, about.st_mtime_ns), wrong))
    return files


def unpacked(place: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents of what `listed` gives of a folder. Raises PomologyError for what is not safe to read."""
    if place.stat().st_size > MOST_ZIP_BYTES:
        raise PomologyError(f"{_shown(place.name)}: {place.stat().st_size:,} bytes; at most {MOST_ZIP_BYTES:,}")
    with open(place, "rb") as file:
        archive, members = open_zip(place.name, file)
        for name, about in members.items():
            if not READ.fullmatch(name):
                continue
            try:
                with archive.open(about) as member:
                    data = member.read(about.file_size + 1)
                if len(data) != about.file_size:
                    raise ValueError("it is not as long as the zip says")
            except UNREADABLE as error:
                why = f"{_shown(name)} cannot be unpacked: {_shown(str(error))}"
                raise PomologyError(f"{_shown(place.name)}: {why}") from None
            yield name, data


def open_zip(zip_name: str, file: io.IOBase) -> tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]:
    """A zip whose list of contents is as that of a run may be, and its members without the folder they share."""
    try:
        # The list itself may be the bomb. Its size stands in the last 22 bytes, where no comment follows.
        file.seek(max(0, file.seek(0, os.SEEK_END) - 22))
        end = file.read()
        if len(end) < 22 or end[:4] != b"PK\5\6" or end[-2:] != b"\0\0":
            raise ValueError("its end is not that of a zip without a comment")
        if int.from_bytes(end[12:16], "little") > MOST_FILES * 500:
            raise ValueError("it lists more than a run has")
        archive = zipfile.ZipFile(file)
        listed = archive.infolist()
    except UNREADABLE as error:
        raise PomologyError(f"{_shown(zip_name)}: not a zip that can be read: {_shown(str(error))}") from None
    if len(listed) > MOST_FILES:
        raise PomologyError(f"{_shown(zip_name)}: {len(listed):,} files; a run has at most {MOST_FILES:,}")
    total = sum(about.file_size for about in listed)
    if total > MOST_ALL_BYTES:
        raise PomologyError(f"{_shown(zip_name)}: {total:,} bytes unpacked; a run has at most {MOST_ALL_BYTES:,}")
    seen: dict[str, str] = {}
    members = {}
    for about in listed:
        name = about.filename
        before = seen.setdefault(unicodedata.normalize("NFKC", name).casefold(), name)
        twice = "is in it twice" if name in members else f"and {_shown(before)} are one file on a Mac"
        if wrong := _wrong(about) or ((name in members or before != name) and twice):
            raise PomologyError(f"{_shown(zip_name)}: {_shown(about.orig_filename)} {wrong}")
        members[name] = about
    top = {name.partition("/")[0] for name in members if not name.startswith("__MACOSX/")}
    if len(top) == 1 and not any(map(READ.fullmatch, members)):
        (folder,) = top
        members = {name.removeprefix(f"{folder}/"): about for name, about in members.items()}
    if not any(map(READ.fullmatch, members)):
        raise PomologyError(f"{_shown(zip_name)}: not a run: neither machine.json nor a journal is in it")
    return archive, members


def _wrong(about: zipfile.ZipInfo) -> str | None:
    """What is wrong with a member of a zip, judged by its entry in the list alone."""
    name, kind, size = about.orig_filename, stat.S_IFMT(about.external_attr >> 16), about.file_size
    parts, packed = name.split("/"), (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    odd = name != about.filename or not name.isprintable() or "\\" in name or ":" in name
    checks = (
        (odd, "has a name that no file of a run has"),
        (name.startswith("/") or ".." in parts or "" in parts[:-1], "has a path that leads out of its folder"),
        (len(parts) > 4 or len(name) > 300, "lies deeper than any file of a run"),
        (kind not in (0, stat.S_IFREG, stat.S_IFDIR), "is a link or another special file"),
        (about.flag_bits & 0x41, "is encrypted"),  # the file, or the whole list
        (about.compress_type not in packed, "is packed in another way than a zip commonly is"),
        (ARCHIVE.search(name), "is an archive inside the archive"),
        (size > MOST_BYTES, f"has {size:,} bytes unpacked; at most {MOST_BYTES:,}"),
    )
    return next((why for wrong, why in checks if wrong), None)


def _shown(name: str) -> str:
    return one_line(name, 80) or "a file without a name"
