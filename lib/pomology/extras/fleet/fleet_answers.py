"""What a machine of the fleet may answer, and what of its files is taken: a stranger's, as a shared zip is."""

import json
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec

from pomology.errors import PomologyError
from pomology.extras.fleet import fleet_wire as wire
from pomology.extras.fleet.fleet_worker import FILES, MOST_TEXT, Entry
from pomology.format import one_line
from pomology.machine import snapshot as machine_snapshot
from pomology.paths import read_file
from pomology.results import archive, folders, journal
from pomology.results.notebook_file import read_notebook
from pomology.results.run import MACHINE, MALFORMED
from pomology.runner.notebooks import notebooks

Text = Annotated[str, msgspec.Meta(max_length=2 * MOST_TEXT)]
Name = Annotated[str, msgspec.Meta(max_length=200)]


class Refused(Exception):
    """A machine's answer is none, or what it sent must not be used."""


class About(msgspec.Struct):
    kit: Name
    version: Name
    drawn: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{12}\Z")]
    machine: Text


class Begun(msgspec.Struct):
    """The job that runs now, if one does; busy: it was under way. missing: what has not come to its end."""

    job: Name
    busy: bool
    missing: Annotated[list[Name], msgspec.Meta(max_length=100_000)]


class Seen(msgspec.Struct):
    job: Name
    text: Text
    status: Annotated[int, msgspec.Meta(ge=-255, le=255)] | None


class Files(msgspec.Struct):
    files: dict[Name, Entry]


class Piece(msgspec.Struct):
    data: Annotated[bytes, msgspec.Meta(max_length=wire.PIECE)]


def machine_of(data: bytes) -> dict:
    """What a machine.json says. Raises Refused for one that describes no machine."""
    try:
        machine = json.loads(data)
        machine_snapshot.describe(machine)
        return machine
    except MALFORMED as error:
        raise Refused(f"{MACHINE} describes no machine ({type(error).__name__})") from None


async def take(ask: Callable[..., Awaitable[Any]], known: dict, run: str, profile: str, out: Path) -> list[str]:
    """Bring a machine's folder here up to date: with all that has changed there, or nothing. Returns what was taken.
    ask: `await ask(kind, question, ...)` gives a machine's answer. known: what it says of itself. Raises Refused."""
    files = (await ask(Files, "files", run=run)).files
    if wrong := next((name for name in files if not FILES.fullmatch(name)), None):
        raise Refused(f"sends {one_line(wrong)}, which is no file of a run")
    if len(files) > archive.MOST_FILES or sum(entry.size for entry in files.values()) > archive.MOST_ALL_BYTES:
        raise Refused("lists more than a run has")
    out.mkdir(parents=True, exist_ok=True)
    taken = []
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".partial-") as scratch:
        for name, entry in files.items():
            if (out / name).is_file() and Entry.of((out / name).read_bytes()) == entry:
                continue
            draft = Path(scratch, name)
            draft.parent.mkdir(exist_ok=True)
            with open(draft, "wb") as file:
                while (start := file.tell()) < entry.size:
                    size = min(wire.PIECE, entry.size - start)
                    data = (await ask(Piece, "take", run=run, name=name, start=start, size=size)).data
                    if len(data) != size:  # a byte at a time would take days
                        raise Refused(f"sends {name} in another size than it said")
                    file.write(data)
            if Entry.of(draft.read_bytes()) != entry:
                raise Refused(f"sends {name} with another content than it said")
            taken.append(name)
        try:
            _check(known, out, Path(scratch), taken, profile)
        except PomologyError as error:
            raise Refused(str(error)) from None
        # A notebook last: it says that its journal is whole.
        for name in sorted(taken, key=lambda name: (name != MACHINE, name.endswith(".ipynb"))):
            (out / name).parent.mkdir(exist_ok=True)
            os.replace(Path(scratch, name), out / name)
    return taken


def _check(known: dict, out: Path, scratch: Path, taken: Iterable[str], profile: str) -> None:
    """Raises Refused or PomologyError where files are not this machine's, or not of this kit's notebooks."""
    of_kit = {notebook.name: notebook.path for notebook in notebooks()}
    if taken and MACHINE not in taken and not (out / MACHINE).exists():
        raise Refused(f"sends no {MACHINE}, which says whose numbers they are")
    for name in taken:
        path = Path(name)
        if name == MACHINE:
            machine = machine_of(read_file(scratch / name))
            if differ := folders.of_another_machine(machine, known):
                raise Refused(f"sends another machine's {MACHINE} ({'; '.join(differ)})")
            if machine.get("profile") != profile:
                raise Refused(f"sends a run of profile {one_line(machine.get('profile'), 20)!r}")
            continue
        own = [each for each in of_kit if path.stem == each or path.stem.startswith(f"{each}-")]
        if not own:
            raise Refused(f"sends {name}, which no notebook of this kit leaves")
        if path.suffix == ".ipynb":
            if _code(scratch / name) != _code(of_kit[max(own, key=len)]):
                raise Refused(f"sends {name}, whose code is not this kit's")
            continue
        data = read_file(scratch / name)
        if (out / name).exists() and not data.startswith((out / name).read_bytes()):
            raise Refused(f"sends {name} without lines that are here already")
        for record in journal.contents(path, data).records:
            chips = {known.get("chip"), None} if record.backend == "cpu" else {record.chip}
            if record.experiment != path.stem or record.profile != profile or record.chip not in chips:
                raise Refused(f"sends {name} with a case of another notebook, profile or machine")


def _code(path: Path) -> list[str]:
    """What a notebook's code cells hold, without the parameters that a run puts in."""
    cells = [cell for cell in read_notebook(path)["cells"] if cell["cell_type"] == "code"]
    return ["".join(cell["source"]) for cell in cells if "injected-parameters" not in cell["metadata"].get("tags", ())]
