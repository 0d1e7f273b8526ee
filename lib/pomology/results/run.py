"""A run: its folder or zip, its machine, its journals."""

import json
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Self

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.machine import snapshot
from pomology.paths import read_file, redact, root
from pomology.results import archive, journal
from pomology.results.record import RENAMED, Record

MACHINE = "machine.json"
# What describing somebody's malformed machine.json can raise.
MALFORMED = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError)


class File(NamedTuple):
    """What is known of a file of a run.

    stamp: its size and time when it was read. problem: why it could not be used.
    """

    stamp: tuple[int, int] | None
    content: dict | journal.Contents | None
    problem: str = ""


class Run:
    """A run's folder or zip, also an unfinished one.

    A file is read when it is first asked for, and again once changed. Raises PomologyError for a
    place that is none, and later for a zip of which anything is not safe to read.
    """

    def __init__(self, place: str | Path):
        self.path = Path(place)
        self.name = self.path.resolve().name.removesuffix(".zip")
        self._files: dict[str, File] = {}
        if not (self.path.is_dir() or self.path.is_file()):
            name = one_line(self.path.name)
            raise PomologyError(f"{name}: no such folder or zip; runs are in outputs/")

    @classmethod
    def open(cls, name: str) -> Self:
        """By its name in outputs/, or by the path of a folder or zip."""
        place = locate(name)
        if place is None:
            raise unknown(one_line(name, 200))
        return cls(place)

    @property
    def machine(self) -> dict:
        """What machine.json says; empty if that is missing or malformed."""
        return (self._file(MACHINE).content or {}) if MACHINE in self._names() else {}

    @property
    def journals(self) -> dict[str, journal.Contents]:
        """What the journals hold, by experiment."""
        parts: dict[str, list[journal.Contents]] = {}
        for file in self._names():
            content = self._file(file).content
            if isinstance(content, journal.Contents):
                name = file.split(".jsonl")[0]
                name, _ = RENAMED.get(name, (name, {}))
                parts.setdefault(name, []).append(content)
        return {name: journal.joined(contents) for name, contents in parts.items()}

    @property
    def records(self) -> list[Record]:
        """A record for each finished case, of all journals."""
        return [record for contents in self.journals.values() for record in contents.records]

    @property
    def problems(self) -> list[str]:
        """A sentence for each file that could not be used."""
        names = self._names()
        problems = [self._file(name).problem for name in names]
        if MACHINE not in names:
            problems.append("machine.json is missing: nothing tells which machine this was.")
        return [problem for problem in problems if problem]

    @cached_property
    def _unpacked(self) -> dict[str, bytes]:
        """The files of a zip."""
        return {} if self.path.is_dir() else archive.unpacked(self.path)

    def _names(self) -> list[str]:
        return archive.listed(self.path) if self.path.is_dir() else list(self._unpacked)

    def _file(self, name: str) -> File:
        """Return what a file holds, read again if it has changed."""
        path = self.path / name
        stamp = None
        if self.path.is_dir():
            status = path.stat()
            stamp = (status.st_size, status.st_mtime_ns)
        if name not in self._files or self._files[name].stamp != stamp:
            self._files[name] = self._parsed(path, stamp)
        return self._files[name]

    def _parsed(self, path: Path, stamp: tuple[int, int] | None) -> File:
        try:
            data = self._unpacked[path.name] if stamp is None else read_file(path)
            data = archive.plain(path.name, data)
            if path.name != MACHINE:
                return File(stamp, journal.contents(path, data))
            machine = json.loads(data)
            snapshot.describe(machine)
            return File(stamp, machine)
        except PomologyError as error:
            return File(stamp, None, f"{redact(str(error))}.")
        except MALFORMED as error:
            return File(stamp, None, f"{path.name} cannot be read ({type(error).__name__}).")


def locate(name: str) -> Path | None:
    """The place of a run, by its name in outputs/ or its path; None if there is none."""
    outputs = root() / "outputs"
    places = (outputs / name, outputs / f"{name}.zip", Path(name)) if name else ()
    return next(filter(is_run, places), None)


def find(names: Iterable[str], variable: str) -> list[Path]:
    """Return the places of runs by their names or paths; a folder of runs is all that are in it.

    Raises PomologyError, which begins with the variable, for a name that is no run.
    """
    places = []
    for name in names:
        place = locate(name)
        inside = sorted(path for path in Path(name).glob("*") if is_run(path)) if name else []
        if place is None and not inside:
            raise unknown(f"{variable}: {one_line(name, 200)}")
        places += [place] if place else inside
    return list(dict.fromkeys(places))


def unknown(what: str) -> PomologyError:
    """What to raise where there is no such run."""
    known = sorted(path.parent.name for path in (root() / "outputs").glob("*/machine.json"))
    return PomologyError(f"{what}: no such run; outputs/ has {', '.join(known) or 'none'}")


def is_run(place: Path) -> bool:
    if place.is_dir():
        return (place / MACHINE).is_file() or any(place.glob("*.jsonl*"))
    return place.suffix == ".zip" and place.is_file()
