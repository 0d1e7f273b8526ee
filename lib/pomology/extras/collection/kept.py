"""Checks of zips that were made before, kept by the hash of the zip.

A check depends on this package, on the reference run and on the history of the repository. The
first two are part of the key; a run at an unknown commit is checked anew each time.
"""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec

import pomology
from pomology.extras.collection import check, shared
from pomology.extras.compare.many import Traits
from pomology.paths import root

FOLDER = ".checked"  # in the folder of the zips; git ignores it
DIGITS = 32
READ = (".py", ".csv", ".json", ".jsonl", ".txt")  # suffixes of the package's files
# Rules whose verdict may be another one tomorrow, or after `git fetch`.
CHANGING = {"unknown commit", "date"}


class Kept(msgspec.Struct):
    """A checked zip without its cases. traits: its fields in their order."""

    broken: list[tuple[str, str]]
    marks: set[str]
    machine: dict[str, Any]
    times: dict[str, dict[str, float]]
    shapes: dict[int, tuple[float, str]]
    predicted: int
    proof: shared.Proof | None
    shown: list[shared.Time]


class OneZip(msgspec.Struct):
    """A checked zip, with what the pages show of it."""

    checked: check.Checked
    proof: shared.Proof | None
    times: list[shared.Time]


def read(path: Path, folder: Path) -> OneZip:
    """Return a zip with its check, which is read if a folder keeps it, else made and kept there."""
    file = folder / f"{_digest(path)}.msgpack"
    try:
        kept = msgspec.msgpack.decode(file.read_bytes(), type=Kept)
    except (OSError, msgspec.MsgspecError):  # none yet, or one that was not written whole
        kept = None
    if kept:
        traits = Traits(path.name, kept.times, kept.shapes, kept.predicted)
        name = check.short_name(path)
        one = check.Checked(name, kept.machine, [], kept.broken, kept.marks, traits)
        return OneZip(one, kept.proof, kept.shown)
    one = check.check(path)
    made = OneZip(one._replace(cases=[]), None, [])
    try:
        if not one.refused:
            made.proof, made.times = shared.proof(one), shared.times(one)
    except Exception as error:  # see check.check
        one.broken.append(check.unreadable(error))
    if CHANGING.isdisjoint(rule for rule, _ in one.broken):
        _keep(file, made)
    return made


def _keep(file: Path, one: OneZip) -> None:
    """Write a check; a folder that cannot be written only makes the next check slow."""
    checked = one.checked
    traits = checked.traits
    kept = Kept(
        broken=list(checked.broken),
        marks=checked.marks,
        machine=checked.machine,
        times=dict(traits.times),
        shapes=traits.shapes,
        predicted=traits.predicted,
        proof=one.proof,
        shown=one.times,
    )
    draft = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(msgspec.msgpack.encode(kept))
        draft.replace(file)
    except OSError as error:
        print(f"note: {FOLDER} cannot be written, so the next check is slow: {error.strerror}")


def _digest(path: Path) -> str:
    """Return the digits of a zip and of what its check depends on."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return hashlib.sha256(f"{digest} {_rules()}".encode()).hexdigest()[:DIGITS]


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
