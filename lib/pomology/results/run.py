"""A run: its folder or zip, its machine, its journals."""

from __future__ import annotations

import json
from pathlib import Path

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.machine import snapshot
from pomology.paths import redact, root
from pomology.results import archive, journal
from pomology.results.record import Record

# What reading or showing somebody's malformed numbers can raise; said on the page in place of them.
MALFORMED = (PomologyError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError)


class Run:
    """A run's folder or zip, also an unfinished one. What it holds is read when it is first asked for, and a file of it
    again only once it has changed.

    machine: what machine.json says; empty if that is missing or malformed. journals: by experiment. records: of all
    journals, a finished case each. problems: a sentence for each file that could not be used.

    Raises PomologyError, in a line, for a place that is none or is not safe to read.
    """

    def __init__(self, place: str | Path):
        self.path = Path(place)
        self.name = self.path.resolve().name.removesuffix(".zip")
        self._known: dict[str, tuple] = {}  # by file name: its stamp, what it holds, and a problem or none
        self._read()

    @classmethod
    def open(cls, name: str) -> Run:
        """By its name in outputs/, or by the path of a folder or zip."""
        return cls(find(name))

    @property
    def machine(self) -> dict:
        return self._read().get("machine.json", (None, {}))[1] or {}

    @property
    def journals(self) -> dict[str, journal.Contents]:
        files = self._read().items()
        return {Path(name).stem: held for name, (_, held, _) in files if isinstance(held, journal.Contents)}

    @property
    def records(self) -> list[Record]:
        return [record for contents in self.journals.values() for record in contents.records]

    @property
    def problems(self) -> list[str]:
        known = self._read()
        missing = "machine.json is missing: nothing tells which machine this was."
        return ([] if "machine.json" in known else [missing]) + [why for *_, why in known.values() if why]

    def _read(self) -> dict[str, tuple]:
        if self.path.is_dir():
            files = archive.listed(self.path)
            self._known = {file.name: self._known.get(file.name) for file in files}
            for file in files:
                known = self._known[file.name]
                if known is None or known[0] != file.stamp:
                    self._known[file.name] = (file.stamp, *self._parsed(file.name, file.read()))
        elif not self._known:
            self._known = {name: (None, *self._parsed(name, data)) for name, data in archive.unpacked(self.path)}
        return self._known

    def _parsed(self, name: str, data: bytes) -> tuple[dict | journal.Contents | None, str | None]:
        try:
            held = _machine(data) if name == "machine.json" else journal.contents(self.path / name, data)
        except PomologyError as error:
            return None, f"{redact(str(error))}."
        return held, None


def _machine(data: bytes) -> dict:
    try:
        found = json.loads(data)
        snapshot.describe(found)
    except MALFORMED as error:
        raise PomologyError(f"machine.json cannot be read ({type(error).__name__})") from None
    return found


def find(name: str) -> Path:
    """The place of a run, by its name in outputs/ or its path. Raises PomologyError, which names those that are."""
    outputs = root() / "outputs"
    for place in (outputs / name, outputs / f"{name}.zip", Path(name)) if name else ():
        if is_run(place):
            return place
    known = sorted(path.parent.name for path in outputs.glob("*/machine.json"))
    raise PomologyError(f"{one_line(name, 200)}: no such run; outputs/ has {', '.join(known) or 'none'}")


def is_run(place: Path) -> bool:
    if place.is_dir():
        return (place / "machine.json").is_file() or next(place.glob("*.jsonl"), None) is not None
    return place.suffix == ".zip" and place.is_file()


def load(folder: str | Path) -> Run:
    return Run(folder)
