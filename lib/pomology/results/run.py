"""A run: its folder or zip, its machine, its journals."""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.machine import snapshot
from pomology.paths import read_file, redact, root
from pomology.results import archive, journal
from pomology.results.record import RENAMED, Record

MACHINE = "machine.json"

# What reading or showing somebody's malformed numbers can raise; the page names it in place of
# them.
MALFORMED = (
    PomologyError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


# Of machine.json, beside `processor`.
IDENTITY = (
    "chip",
    "cpu_cores",
    "cpu_threads",
    "performance_cores",
    "memory_bytes",
    "gpus",
    "virtual_machine",
)
ALIKE = 1.01  # sizes and clocks of one machine


def differing(machines: Sequence[dict], names: Sequence[str] = IDENTITY) -> dict[str, list]:
    """Return what tells two machines apart: its name -> what it is on each.

    names: what is compared, besides all of `processor`.
    """
    chips = [machine.get("processor") for machine in machines]
    chips = [chip if isinstance(chip, dict) else {} for chip in chips]
    pairs = {name: [machine.get(name) for machine in machines] for name in names}
    pairs |= {name: [each.get(name) for each in chips] for name in chips[0] | chips[1]}
    return {name: both for name, both in pairs.items() if not _alike(*both, ALIKE)}


def _alike(a: Any, b: Any, most: float) -> bool:
    numbers = all(type(each) in (int, float) and each > 0 for each in (a, b))
    return max(a, b) <= most * min(a, b) if numbers else a == b


class Run:
    """A run's folder or zip, also an unfinished one.

    A file is read when it is first asked for, and again once changed.

    machine: what machine.json says; empty if that is missing or malformed. journals: by experiment.
    records: of all journals, a finished case each. problems: a sentence for each file that could
    not be used. Raises PomologyError for a place that is none, or a zip of which anything is not
    safe to read.
    """

    def __init__(self, place: str | Path):
        self.path = Path(place)
        self.name = self.path.resolve().name.removesuffix(".zip")
        self._known: dict[
            str, tuple
        ] = {}  # by file name: its stamp, what it holds, and a problem or none
        if not (self.path.is_dir() or self.path.is_file()):
            raise PomologyError(
                f"{one_line(self.path.name)}: no such folder or zip; runs are in outputs/"
            )

    @classmethod
    def open(cls, name: str) -> Self:
        """By its name in outputs/, or by the path of a folder or zip."""
        if place := locate(name):
            return cls(place)
        raise unknown(one_line(name, 200))

    @property
    def machine(self) -> dict:
        return self._read(MACHINE).get(MACHINE, (None, {}))[1] or {}

    @property
    def journals(self) -> dict[str, journal.Contents]:
        by_name: dict[str, list[journal.Contents]] = {}
        for file, (_, held, _) in self._read().items():
            if isinstance(held, journal.Contents):
                name = file.split(".jsonl")[0]
                name, _ = RENAMED.get(name, (name, {}))
                by_name.setdefault(name, []).append(held)
        return {name: journal.joined(parts) for name, parts in by_name.items()}

    @property
    def records(self) -> list[Record]:
        return [record for contents in self.journals.values() for record in contents.records]

    @property
    def problems(self) -> list[str]:
        known = self._read()
        missing = "machine.json is missing: nothing tells which machine this was."
        return [why for *_, why in known.values() if why] + ([] if MACHINE in known else [missing])

    def _read(self, only: str | None = None) -> dict[str, tuple]:
        """What is known of all files, or of the one with this name."""
        if self.path.is_dir():
            names = [path.name for path in archive.listed(self.path) if only in (None, path.name)]
            for name in names:
                path = self.path / name
                status = path.stat()
                stamp = (status.st_size, status.st_mtime_ns)
                if self._known.get(name, (None,))[0] != stamp:
                    self._known[name] = (stamp, *self._parsed(name, partial(read_file, path)))
            return {name: self._known[name] for name in names}
        if not self._known:
            unpacked = archive.unpacked(self.path)
            self._known = {
                name: (None, *self._parsed(name, lambda data=data: data)) for name, data in unpacked
            }
        return self._known

    def _parsed(
        self, name: str, read: Callable[[], bytes]
    ) -> tuple[dict | journal.Contents | None, str | None]:
        try:
            data = archive.plain(name, read())
            if name != MACHINE:
                return journal.contents(self.path / name, data), None
            machine = json.loads(data)
            snapshot.describe(machine)
            return machine, None
        except PomologyError as error:
            return None, f"{redact(str(error))}."
        except MALFORMED as error:
            return None, f"{name} cannot be read ({type(error).__name__})."


def locate(name: str) -> Path | None:
    """The place of a run, by its name in outputs/ or its path; None if there is none."""
    outputs = root() / "outputs"
    places = (outputs / name, outputs / f"{name}.zip", Path(name)) if name else ()
    return next(filter(is_run, places), None)


def find(names: Iterable[str], variable: str) -> list[Path]:
    """Return the places of runs by their names or paths; a folder of runs stands for all that are in it.

    Raises PomologyError, which begins with the variable, for a name that is no run.
    """
    places = []
    for name in dict.fromkeys(names):
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
        return (place / "machine.json").is_file() or next(place.glob("*.jsonl*"), None) is not None
    return place.suffix == ".zip" and place.is_file()
