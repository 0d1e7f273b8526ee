"""The files of a run: those in its folder, or in a zip that anybody may have made."""

import re
import zipfile
import zlib
from pathlib import Path

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.paths import MOST_BYTES

MOST_FILES = 10_000
MOST_ZIP_BYTES = 128 * 2**20
MOST_ALL_BYTES = 256 * 2**20  # unpacked

WORD = r"[A-Za-z0-9_][\w.+ -]{0,99}"
# machine.json and the journals; those of the reference run are packed.
READ = re.compile(rf"(machine\.json|{WORD}\.jsonl(\.gz)?)")
# In a zip also those of a folder, as the Finder packs a run.
IN_ZIP = re.compile(rf"({WORD}/)?{READ.pattern}")
# What zipfile raises for a malformed zip.
UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError)


def listed(folder: Path) -> list[str]:
    """Return the names of machine.json and the journals in a folder."""
    paths = sorted(folder.iterdir())
    return [path.name for path in paths if READ.fullmatch(path.name) and path.is_file()]


def unpacked(place: Path) -> dict[str, bytes]:
    """Return machine.json and the journals of a zip by name. All else in it stays packed.

    Raises PomologyError for a file that is not the zip of one run, or is over a limit.
    """
    try:
        if place.stat().st_size > MOST_ZIP_BYTES:
            raise ValueError(f"more than {MOST_ZIP_BYTES:,} bytes")
        with zipfile.ZipFile(place) as archive:
            members = [info for info in archive.infolist() if IN_ZIP.fullmatch(info.filename)]
            names = [info.filename.rpartition("/")[2] for info in members]
            size = sum(info.file_size for info in members)
            if not members:
                raise ValueError("neither machine.json nor a journal is in it")
            if len(set(names)) < len(names):
                raise ValueError("two of its files have one name")
            if len(archive.infolist()) > MOST_FILES or size > MOST_ALL_BYTES:
                raise ValueError(
                    f"more than {MOST_FILES:,} files or {MOST_ALL_BYTES:,} bytes unpacked"
                )
            return {name: _member(archive, info) for name, info in zip(names, members, strict=True)}
    except UNREADABLE as error:
        name = one_line(place.name, 80)
        raise PomologyError(f"{name}: not the zip of a run: {one_line(error)}") from None


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    with archive.open(info) as file:
        # No more than its list says, and to its end, where the checksum is compared.
        return file.read(info.file_size + 1)


def plain(name: str, data: bytes) -> bytes:
    """Return a file's bytes, of a `.gz` the unpacked ones.

    Raises PomologyError where it cannot be unpacked.
    """
    if not name.endswith(".gz"):
        return data
    try:
        data = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(data, MOST_BYTES + 1)
    except zlib.error as error:
        raise PomologyError(f"{name}: cannot be read: {error}") from None
    if len(data) > MOST_BYTES:
        raise PomologyError(f"{name}: more than {MOST_BYTES:,} bytes unpacked")
    return data
