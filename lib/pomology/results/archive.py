"""Journals of runs in folders and shared zips, read with limits."""

from __future__ import annotations

import io
import os
import re
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pomology.errors import PomologyError

MOST_FILES = 2_000

MOST_ZIP_BYTES = 128 * 2**20

MOST_BYTES = 64 * 2**20  # of a file

MOST_ALL_BYTES = 256 * 2**20  # of all files, unpacked

WORD = r"[A-Za-z0-9_][\w.+ -]{0,99}"

KINDS = re.compile(rf"(?:machine\.json|{WORD}\.(?:jsonl|html)|tables/{WORD}\.csv|figures/{WORD}\.svg)")

READ = re.compile(rf"(?:machine\.json|{WORD}\.jsonl)")

UNREADABLE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, NotImplementedError, RuntimeError, ValueError),
    IndexError,
)

ARCHIVE = re.compile(r"\.(?:zip|gz|tgz|bz2|xz|zst|7z|rar|tar|dmg|iso)$", re.IGNORECASE)


class File(NamedTuple):
    """A file of a run's folder. stamp: changes when the file does. wrong: why it must not be read, in a line."""

    place: Path
    stamp: tuple[int, int]
    wrong: str | None

    def read(self) -> bytes:
        """Raises PomologyError for a file that must not or cannot be read."""
        shown = f"{_shown(self.place.parent.name)}/{_shown(self.place.name)}"
        if self.wrong:
            raise PomologyError(f"{shown}: {self.wrong}")
        try:
            with open(self.place, "rb", buffering=0) as file:
                return file.read(self.stamp[0])
        except OSError as error:
            raise PomologyError(f"{shown}: cannot be read: {error.strerror}") from None


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
    """`machine.json` and the journals of a run's zip, one after the other: names and contents.

    Raises PomologyError, in a line that names the file and what is wrong, for what is not safe to read.
    """
    if not place.is_file():
        raise PomologyError(f"{_shown(place.name)}: no such folder or zip; runs are in outputs/")
    if place.stat().st_size > MOST_ZIP_BYTES:
        raise PomologyError(f"{_shown(place.name)}: {place.stat().st_size:,} bytes; at most {MOST_ZIP_BYTES:,}")
    with open(place, "rb") as file:
        yield from _in_zip(place.name, file)


def _in_zip(zip_name: str, file: io.IOBase) -> Iterator[tuple[str, bytes]]:
    archive, members = _open_zip(zip_name, file)
    for name, about in members.items():
        if not READ.fullmatch(name):
            continue
        try:
            with archive.open(about) as member:
                data = member.read(about.file_size + 1)
        except UNREADABLE as error:
            why = f"{_shown(name)} cannot be unpacked: {_shown(str(error))}"
            raise PomologyError(f"{_shown(zip_name)}: {why}") from None
        if len(data) != about.file_size:
            raise PomologyError(f"{_shown(zip_name)}: {_shown(name)} is not as long as the zip says")
        yield name, data


def _open_zip(zip_name: str, file: io.IOBase) -> tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]:
    """A zip whose list of contents is as that of a run may be, and its members without the folder they share."""
    try:
        # The list itself may be the bomb. Its size stands in the last 22 bytes, where no comment follows.
        if file.seek(0, os.SEEK_END) < 22:
            raise ValueError("it is shorter than any zip")
        file.seek(-22, os.SEEK_END)
        end = file.read()
        if end[:4] != b"PK\5\6" or end[-2:] != b"\0\0":
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
        if wrong := _wrong(about):
            raise PomologyError(f"{_shown(zip_name)}: {_shown(about.orig_filename)} {wrong}")
        same = unicodedata.normalize("NFKC", about.filename).casefold()
        if same in seen:
            raise PomologyError(
                f"{_shown(zip_name)}: {_shown(about.filename)} and {_shown(seen[same])} are one file on a Mac"
                if about.filename != seen[same]
                else f"{_shown(zip_name)}: {_shown(about.filename)} is in it twice"
            )
        seen[same] = about.filename
        members[about.filename] = about
    top = {name.partition("/")[0] for name in members if not name.startswith("__MACOSX/")}
    if len(top) == 1 and not any(READ.fullmatch(name) for name in members):
        (folder,) = top
        members = {name.removeprefix(f"{folder}/"): about for name, about in members.items()}
    if not any(READ.fullmatch(name) for name in members):
        raise PomologyError(f"{_shown(zip_name)}: not a run: neither machine.json nor a journal is in it")
    return archive, members


def _wrong(about: zipfile.ZipInfo) -> str | None:
    """What is wrong with a member of a zip, judged by its entry in the list alone."""
    name = about.orig_filename
    parts = name.split("/")
    if name != about.filename or not name.isprintable() or "\\" in name or ":" in name:
        return "has a name that no file of a run has"
    if name.startswith("/") or ".." in parts or "" in parts[:-1]:
        return "has a path that leads out of its folder"
    if len(parts) > 4 or len(name) > 300:
        return "lies deeper than any file of a run"
    if stat.S_IFMT(about.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "is a link or another special file"
    if about.flag_bits & 0x41:  # of the file, or of the whole list
        return "is encrypted"
    if about.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "is packed in another way than a zip commonly is"
    if ARCHIVE.search(name):
        return "is an archive inside the archive"
    if about.file_size > MOST_BYTES:
        return f"has {about.file_size:,} bytes unpacked; at most {MOST_BYTES:,}"
    return None


def _shown(name: str) -> str:
    """A name from a stranger's file, in a line for people."""
    name = "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in name[:80])
    return name or "a file without a name"
