"""Checks of zips that were made before, kept by the hash of the zip.

A check depends on this package, on the reference run and on the history of the repository. The
first two are part of the key; a run at an unknown commit is checked anew each time.
"""

from __future__ import annotations

import functools
import hashlib
import os
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

import pomology
from pomology.extras.collection import check, shared
from pomology.extras.compare.many import Traits
from pomology.paths import require_regular, root

FOLDER = ".checked"  # in the folder of the zips; git ignores it
DIGITS = 32
READ = (".py", ".csv", ".json", ".jsonl", ".txt")  # suffixes of the package's files
# Rules whose verdict may be another one tomorrow, or after `git fetch`.
CHANGING = {"unknown commit", "date"}
_TIMES = msgspec.msgpack.Decoder(list[shared.Time])


class Kept(msgspec.Struct):
    """A checked zip without its cases. shown: its times, which only the pages need."""

    broken: list[tuple[str, str]]
    marks: set[str]
    machine: dict[str, Any]
    times: dict[str, dict[str, float]]
    shapes: dict[int, tuple[float, str]]
    predicted: int
    proof: shared.Proof | None
    shown: msgspec.Raw


_DECODER = msgspec.msgpack.Decoder(Kept)


class OneZip:
    """A checked zip, with what the pages show of it. proof: None for one that is refused."""

    def __init__(self, name: str, kept: Kept):
        traits = Traits(name, kept.times, kept.shapes, kept.predicted)
        self.checked = check.Checked(name, kept.machine, [], list(kept.broken), kept.marks, traits)
        self.proof = kept.proof
        self._shown = kept.shown

    @cached_property
    def times(self) -> list[shared.Time]:
        """Its sound times, none of one that is refused."""
        return _TIMES.decode(self._shown)


def find(path: Path, folder: Path) -> OneZip | None:
    """Return a zip whose check a folder keeps, None for one that has to be checked."""
    try:
        return OneZip(check.short_name(path), _DECODER.decode(_file(path, folder).read_bytes()))
    except (OSError, msgspec.MsgspecError):  # none, or one that was not written whole
        return None


def make(path: Path, folder: Path) -> bytes:
    """Check a zip, and keep its check in a folder; return it as it is kept."""
    one = check.check(path)
    proof, shown = None, []
    try:
        if not one.refused:
            proof, shown = shared.proof(one), shared.times(one)
    except Exception as error:  # see check.check
        one.broken.append(check.unreadable(error))
        proof, shown = None, []
    traits = one.traits
    kept = Kept(
        broken=list(one.broken),
        marks=one.marks,
        machine=one.machine,
        times=dict(traits.times),
        shapes=traits.shapes,
        predicted=traits.predicted,
        proof=proof,
        shown=msgspec.Raw(msgspec.msgpack.encode(shown)),
    )
    data = msgspec.msgpack.encode(kept)
    if path.is_file() and CHANGING.isdisjoint(rule for rule, _ in one.broken):
        _keep(_file(path, folder), data)
    return data


def decoded(path: Path, data: bytes) -> OneZip:
    """Return a zip with a check that `make` has made."""
    return OneZip(check.short_name(path), _DECODER.decode(data))


def _keep(file: Path, data: bytes) -> None:
    """Write a check; a folder that cannot be written only makes the next check slow."""
    draft = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(data)
        draft.replace(file)
    except OSError as error:
        print(f"note: {FOLDER} cannot be written, so the next check is slow: {error.strerror}")


def _file(path: Path, folder: Path) -> Path:
    """Return where a check is kept, by the digits of the zip and of what its check depends on.

    Raises OSError for what is no file.
    """
    require_regular(path)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    digits = hashlib.sha256(f"{digest} {_rules()}".encode()).hexdigest()[:DIGITS]
    return folder / f"{digits}.msgpack"


@functools.cache
def _rules() -> str:
    """Return the digits of this package and of the reference run."""
    digest = hashlib.sha256()
    package = Path(pomology.__file__).parent
    reference = root() / "outputs" / "reference-cpu"
    paths = [path for path in package.rglob("*") if path.suffix in READ]
    for path in (*sorted(paths), *sorted(reference.glob("*.json*"))):
        digest.update(f"{path.name} {path.stat().st_size} ".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
