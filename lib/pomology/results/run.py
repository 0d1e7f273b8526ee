"""A run: its folder or zip, its machine, its journals; and which folder takes new numbers."""

import hashlib
import json
import math
import re
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.machine import snapshot as machine_snapshot
from pomology.paths import read_file, root, write_atomic
from pomology.results import journal
from pomology.results.record import RENAMED, Record

MACHINE = "machine.json"
# Of who measures in a run's folder. It stays, also after `make clean`; neither git nor `share`
# takes it along, so that a folder without it is a copy.
LOCK = ".lock"
MOST_FILES = 10_000  # of a zip
MOST_UNPACKED_BYTES = 256 * 2**20
MOST_BYTES = 64 * 2**20  # of a journal that is packed by itself
# The files of a run that are read: those of the reference run are packed. In a zip they may be in a
# folder, as the Finder packs a run.
READ = re.compile(r"([\w][\w.+ -]*/)?(machine\.json|\w[\w.+ -]*\.jsonl(\.gz)?)")


class Run:
    """A run's folder or zip, also an unfinished one, as it is when it is first asked for something.

    Raises PomologyError, then, for a file that cannot be read.
    """

    def __init__(self, place: str | Path):
        self.path = Path(place)
        self.name = self.path.resolve().name.removesuffix(".zip")

    @cached_property
    def machine(self) -> dict:
        """What machine.json says; empty if that is missing or malformed."""
        place = self.path / MACHINE  # of a folder, without the journals next to it
        try:
            machine = json.loads(read_file(place) if place.is_file() else self._files[MACHINE])
        except (KeyError, ValueError):
            return {}
        return machine if isinstance(machine, dict) else {}

    @cached_property
    def journals(self) -> dict[str, journal.Contents]:
        """What the journals hold, by experiment; older runs have several of one."""
        parts = defaultdict(list)
        for file, data in self._files.items():
            if file != MACHINE:
                name = file.split(".jsonl")[0]
                parts[RENAMED.get(name, (name,))[0]].append(data)
        return {
            name: journal.contents(f"{name}.jsonl", b"\n".join(data))
            for name, data in parts.items()
        }

    @cached_property
    def records(self) -> list[Record]:
        """A record for each finished case, of all journals."""
        return [record for contents in self.journals.values() for record in contents.records]

    @cached_property
    def problems(self) -> list[str]:
        """A sentence for each file that could not be used."""
        found = [problem for each in self.journals.values() for problem in each.problems]
        if not self.machine:
            what = "cannot be read" if MACHINE in self._files else "is missing"
            found.append(f"machine.json {what}: nothing tells which machine this was.")
        return found

    @cached_property
    def _files(self) -> dict[str, bytes]:
        """The contents of machine.json and the journals, by name."""
        if self.path.is_dir():
            paths = [path for path in sorted(self.path.iterdir()) if READ.fullmatch(path.name)]
            files = {path.name: read_file(path) for path in paths}
        else:
            files = _unzipped(self.path)
        return {name: _plain(name, data) for name, data in files.items()}


def _unzipped(place: Path) -> dict[str, bytes]:
    """Return machine.json and the journals of a zip by name. All else in it stays packed.

    Raises PomologyError for a file that is not the zip of one run, or is over a limit.
    """
    files = {}
    try:
        with zipfile.ZipFile(place) as archive:
            members = [info for info in archive.infolist() if READ.fullmatch(info.filename)]
            size = sum(info.file_size for info in members)
            if len(members) > MOST_FILES or size > MOST_UNPACKED_BYTES:
                raise ValueError(f"over {MOST_FILES:,} files or {MOST_UNPACKED_BYTES:,} bytes")
            for info in members:
                files[info.filename.rpartition("/")[2]] = archive.read(info)
        if not 0 < len(files) == len(members):
            raise ValueError("it has no journal, or two of one name")
    except Exception as error:  # zipfile raises many for a file that is no zip, or damaged
        name = one_line(place.name, 80)
        raise PomologyError(f"{name}: not the zip of a run: {one_line(error)}") from None
    return files


def _plain(name: str, data: bytes) -> bytes:
    """Return a file's bytes, of a `.gz` the unpacked ones, up to a limit: then a line is torn."""
    if not name.endswith(".gz"):
        return data
    try:
        return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(data, MOST_BYTES)
    except zlib.error as error:
        raise PomologyError(f"{name}: cannot be read: {error}") from None


def locate(name: str) -> Path | None:
    """The place of a run, by its name in outputs/ or its path; None if there is none."""
    outputs = root() / "outputs"
    places = (outputs / name, outputs / f"{name}.zip", Path(name))
    return next(filter(is_run, places), None)


def find(names: Iterable[str], variable: str) -> list[Path]:
    """Return the places of runs by their names or paths; a folder of runs is all that are in it.

    Raises PomologyError, which begins with the variable, for a name that is no run.
    """
    places = []
    for name in names:
        place = locate(name)
        found = [place] if place else sorted(filter(is_run, Path(name).glob("*")))
        if not found:
            raise unknown(f"{variable}: {one_line(name, 200)}")
        places += found
    return list(dict.fromkeys(places))


def unknown(what: str) -> PomologyError:
    """What to raise where there is no such run."""
    known = sorted(path.parent.name for path in (root() / "outputs").glob("*/machine.json"))
    return PomologyError(f"{what}: no such run; outputs/ has {', '.join(known) or 'none'}")


def is_run(place: Path) -> bool:
    if place.is_dir():
        return (place / MACHINE).is_file() or any(place.glob("*.jsonl*"))
    return place.suffix == ".zip" and place.is_file()


def note_machine(out: Path, profile: str) -> dict:
    """Write `machine.json` into a run's folder, unless it is there, and return what it says."""
    if not (out / MACHINE).exists():
        out.mkdir(parents=True, exist_ok=True)
        power_source = machine_snapshot.conditions()["power_source"]
        facts = {"profile": profile, "power_source": power_source}
        note(out, **machine_snapshot.snapshot() | facts)
        (out / LOCK).touch()
    return Run(out).machine


def locked(out: Path) -> AbstractContextManager:
    """Return the lock of a folder, held; it goes with its process, however that ends.

    Raises PomologyError if another process holds it.
    """
    import filelock  # a tenth of a second, which only this needs

    try:
        return filelock.FileLock(out / LOCK, blocking=False).acquire()
    except filelock.Timeout:
        text = f"RUN={out.name}: another `pomology reproduce` is running there"
        raise PomologyError(text) from None


def check_machine(out: Path) -> None:
    """Raise PomologyError where a run's folder must not take numbers of this machine.

    It may have numbers of another machine, or a copy of numbers.
    """
    problem = ""
    if any(out.glob("*.jsonl*")) and not (out / LOCK).exists():
        problem = "is a copy of a run, not one of this checkout"
    elif (out / MACHINE).exists():
        before, now = Run(out).machine, machine_snapshot.snapshot()
        for name in ("chip", "cpu_cores", "memory_bytes", "gpus", "os"):
            was, is_now = before.get(name), now.get(name)
            # A kernel keeps a little more or less of the memory for itself.
            close = name == "memory_bytes" and math.isclose(was or 0, is_now or 0, rel_tol=0.01)
            if was != is_now and not close:
                problem = f"has {name} {was}, this machine {is_now}"
    if problem:
        raise PomologyError(f"RUN={out.name}: {one_line(problem, 200)}; choose another RUN")


def note(out: Path, **facts: Any) -> None:
    """Keep facts about a run in its `machine.json`, while none of its notebooks runs."""
    text = json.dumps(Run(out).machine | facts, indent=1, ensure_ascii=False)
    write_atomic(out / MACHINE, text + "\n")


def note_software(out: Path, threads: int | None) -> str:
    """Keep what cases run with from now on in a run's `machine.json`; return its name there.

    The name has 12 digits, others for another commit, package, thread count or variable of the
    environment.
    """
    software = machine_snapshot.software() | {"threads": threads}
    name = _digits(software, 12)
    note(out, software=Run(out).machine.get("software", {}) | {name: software})
    return name


def _digits(facts: Any, count: int) -> str:
    """Return hexadecimal digits that differ where any of these facts does."""
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:count]


def by_hand(experiment: str, profile: str, framework: str = "") -> Path:
    """Return the folder for notebooks that are run by hand, and clear it for this one.

    They share `outputs/lab-<digits>`, so that a notebook that combines others has them. The digits
    stand for the profile, this machine, its software and the kit's commit, but for no changed file,
    as every record names its own. What the notebook measured there moves to `earlier/`: its set-up
    cell measures anew. What it measured with another framework stays, for its tables.
    """
    snapshot = machine_snapshot.snapshot()
    commit = (snapshot.pop("git", None) or {}).get("commit")
    folder = root() / "outputs" / f"lab-{_digits([snapshot, commit, profile], 6)}"
    path = folder / f"{experiment}.jsonl"
    if path.exists():
        earlier = folder / "earlier"
        earlier.mkdir(exist_ok=True)
        number = 1 + len(list(earlier.glob(f"{experiment}-*.jsonl")))
        lines = path.read_bytes().splitlines(keepends=True)
        mine = f'"framework":"{framework}"'.encode()
        kept = [line for line in lines if framework and mine not in line]
        path.rename(earlier / f"{experiment}-{number}.jsonl")
        if kept:
            write_atomic(path, b"".join(kept))
    return folder


def latest(names: Iterable[str], profile: str) -> Path | None:
    """Return the run's folder in which one of these notebooks has measured something last."""
    paths = [path for name in names for path in (root() / "outputs").glob(f"*/{name}.jsonl")]
    for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True):
        if Run(path.parent).machine.get("profile") == profile:
            return path.parent
    return None
