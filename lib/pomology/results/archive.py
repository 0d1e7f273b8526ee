"""The journals and machine.json of a run, read from its folder or from a zip that anybody may have made."""

import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.paths import MOST_BYTES

MOST_FILES = 10_000
MOST_ZIP_BYTES = 128 * 2**20
MOST_ALL_BYTES = 256 * 2**20  # unpacked

WORD = r"[A-Za-z0-9_][\w.+ -]{0,99}"
READ = re.compile(
    rf"(machine\.json|{WORD}\.jsonl(\.gz)?)"
)  # the reference run's journals are packed
# What zipfile raises for a malformed zip.
UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError)


def listed(folder: Path) -> list[Path]:
    """Return machine.json and the journals in a folder."""
    return [
        path for path in sorted(folder.iterdir()) if READ.fullmatch(path.name) and path.is_file()
    ]


def unpacked(place: Path) -> Iterator[tuple[str, bytes]]:
    """Yield machine.json and the journals of a zip: their names and bytes. All else in it stays packed.

    Raises PomologyError for a file that is not the zip of one run, or is over a limit.
    """
    try:
        if place.stat().st_size > MOST_ZIP_BYTES:
            raise ValueError(f"more than {MOST_ZIP_BYTES:,} bytes")
        with zipfile.ZipFile(place) as archive:
            for name, member in _members(archive).items():
                with archive.open(member) as file:
                    yield (
                        name,
                        file.read(member.file_size + 1),
                    )  # to its end, where the checksum is compared
    except UNREADABLE as error:
        raise PomologyError(
            f"{one_line(place.name, 80)}: not the zip of a run: {one_line(error)}"
        ) from None


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return what is read of a zip, by name: of the top, else of a folder, as the Finder packs a run."""
    infos = archive.infolist()
    chosen = [info for info in infos if READ.fullmatch(info.filename)]
    if not chosen:
        chosen = [info for info in infos if READ.fullmatch(info.filename.partition("/")[2])]
    members = {info.filename.rpartition("/")[2]: info for info in chosen}
    if not members:
        raise ValueError("neither machine.json nor a journal is in it")
    if len(members) < len(chosen):
        raise ValueError("two of its files have one name")
    if len(infos) > MOST_FILES or sum(info.file_size for info in chosen) > MOST_ALL_BYTES:
        raise ValueError(f"more than {MOST_FILES:,} files or {MOST_ALL_BYTES:,} bytes unpacked")
    return members


def plain(name: str, data: bytes) -> bytes:
    """Return a file's bytes, of a `.gz` the unpacked ones. Raises PomologyError where it cannot be unpacked."""
    if not name.endswith(".gz"):
        return data
    try:
        data = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(data, MOST_BYTES + 1)
    except zlib.error as error:
        raise PomologyError(f"{name}: cannot be read: {error}") from None
    if len(data) > MOST_BYTES:
        raise PomologyError(f"{name}: more than {MOST_BYTES:,} bytes unpacked")
    return data
