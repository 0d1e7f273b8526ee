"""Where numbers go and where they are looked for: the folders in `outputs/`, one a run.

Notebooks that are run by hand share one a day, `lab-<date>-<time>`, so that a notebook that
combines others has them. It holds one profile on one machine with one state of its software. A
set-up cell that is run again measures anew; what its notebook had measured there moves to
`earlier/` in the folder, and stands in no table any more.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.machine import snapshot as machine_snapshot
from pomology.paths import redact, root, write_atomic
from pomology.results.run import IDENTITY, Run, differing

if TYPE_CHECKING:
    import filelock

LOCK = ".lock"  # of who measures in a run's folder; it stays, and `make clean` leaves it

# Of journals that this process alone writes: held until it ends.
_held: dict[Path, filelock.FileLock] = {}


def note_machine(out: Path, profile: str) -> dict:
    """Write `machine.json` into a run's folder, unless it is there, and return what it says."""
    if (out / "machine.json").exists():
        return noted(out)
    power_source = machine_snapshot.conditions()["power_source"]
    snapshot = machine_snapshot.snapshot() | {"profile": profile, "power_source": power_source}
    _write(out, snapshot)
    return snapshot


def locked(out: Path, run: str, command: str) -> filelock.AcquireReturnProxy:
    """Return the lock of a folder, held; it goes with its process, however that ends.

    Raises PomologyError if another process holds it.
    """
    import filelock  # a tenth of a second, which only this needs

    try:
        return filelock.FileLock(out / LOCK, blocking=False).acquire()
    except filelock.Timeout:
        raise PomologyError(f"RUN={run}: another `pomology {command}` is running there") from None


def check_machine(out: Path) -> None:
    """Raise PomologyError where a run's folder must not take numbers of this machine.

    It may have numbers of another machine, or a copy of numbers, or have lost the file that says
    whose they are.
    """
    noted_here = (out / "machine.json").exists()
    if any(out.glob("*.jsonl*")):  # packed, too
        if not noted_here:
            problem = "has numbers, but no machine.json that says whose"
            raise PomologyError(f"RUN={out.name}: {problem}; choose another RUN")
        # Neither git nor `share` takes these along.
        if not (out / LOCK).exists() and not (out / ".partial").exists():
            problem = "is a copy of a run, not one of this checkout"
            raise PomologyError(f"RUN={out.name}: {problem}; choose another RUN")
    if noted_here:
        differ = of_another_machine(noted(out), machine_snapshot.snapshot())
        if differ:
            problem = f"was measured on another machine ({'; '.join(differ)})"
            raise PomologyError(f"RUN={out.name}: {problem}; choose another RUN")


def of_another_machine(noted: dict, now: dict) -> list[str]:
    """Return in what a run's machine is another one than this, which `now` describes."""
    pairs = differing([noted, now], (*IDENTITY, "os", "architecture"))
    return [
        f"{name} {one_line(before, 60)}, here {one_line(after, 60)}"
        for name, (before, after) in pairs.items()
        if before is not None and after is not None
    ]


def note(out: Path, **facts: Any) -> None:
    """Keep facts about a run in its `machine.json`, while none of its notebooks runs."""
    _write(out, noted(out) | facts)


def note_software(out: Path, threads: int | None) -> str:
    """Keep what cases run with from now on in a run's `machine.json`; return its name there.

    The name has 12 digits, others for another commit, package, thread count or variable of the
    environment.
    """
    software = machine_snapshot.software() | {"threads": threads}
    text = json.dumps(software, sort_keys=True)
    name = hashlib.sha256(text.encode()).hexdigest()[:12]
    folder = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # notebooks that are open at a time share a folder
        machine = noted(out)
        known = machine.get("software", {})
        if name not in known:
            _write(out, machine | {"software": known | {name: software}})
    finally:
        os.close(folder)
    return name


def noted(out: Path) -> dict:
    """Return what a run's `machine.json` says; raise PomologyError if it describes no machine."""
    machine = Run(out).machine
    if not machine:
        place = redact(str(out / "machine.json"))
        raise PomologyError(f"{place}: describes no machine; choose another folder")
    return machine


def by_hand(experiment: str, profile: str, framework: str = "") -> Path:
    """Return the folder for a notebook that is run by hand.

    It is the first of this day in which it may write, else a new one. While a kernel of the same
    notebook lives, it may still measure there: so a second one gets a folder of its own.
    """
    outputs = root() / "outputs"
    today = datetime.now()
    now = machine_snapshot.snapshot() | {"profile": profile}
    for place in sorted(outputs.glob(f"lab-{today:%Y%m%d}-*/machine.json")):
        folder = place.parent
        before = noted(folder)
        if _comparable(before, now) != _comparable(now, now) or not _alone(folder, experiment):
            continue
        if now["git"] and now["git"]["dirty"]:  # files were changed since the folder was begun
            _write(folder, before | {"git": now["git"]})
        _put_aside(folder, experiment, framework)
        return folder
    folder = outputs / f"lab-{today:%Y%m%d-%H%M%S}"
    while folder.exists():
        today += timedelta(seconds=1)
        folder = outputs / f"lab-{today:%Y%m%d-%H%M%S}"
    _alone(folder, experiment)
    return folder


def _put_aside(folder: Path, experiment: str, framework: str) -> None:
    """Move what a notebook has measured in a folder with a framework to `earlier/`.

    What it has measured there with another one stays, so that both stand in its tables.
    """
    journal = folder / f"{experiment}.jsonl"
    if not journal.exists():
        return
    earlier = folder / "earlier"
    earlier.mkdir(exist_ok=True)
    number = 1 + len(list(earlier.glob(f"{experiment}-*.jsonl")))
    lines = journal.read_bytes().splitlines(keepends=True)
    mine = f'"framework":"{framework}"'.encode()
    kept = [line for line in lines if framework and mine not in line]
    journal.rename(earlier / f"{experiment}-{number}.jsonl")
    if kept:
        write_atomic(journal, b"".join(kept))


def latest(names: Iterable[str], profile: str) -> Path | None:
    """Return the run's folder in which one of these notebooks has measured something last."""
    outputs = root() / "outputs"
    journals = [place for name in names for place in outputs.glob(f"*/{name}.jsonl")]
    for journal in sorted(journals, key=lambda place: place.stat().st_mtime, reverse=True):
        folder = journal.parent
        if (folder / "machine.json").exists() and noted(folder).get("profile") == profile:
            return folder
    return None


def _comparable(snapshot: dict, now: dict) -> dict:
    """Return what says that numbers may share a table: one machine with the same software."""
    facts = {name: snapshot.get(name) for name in now if name != "unknown"}
    # Not whether files were changed: another parameter in a notebook changes one.
    return facts | {"git": (snapshot.get("git") or {}).get("commit")}


def _alone(folder: Path, experiment: str) -> bool:
    """Return whether this process alone writes a notebook's journal, until it ends."""
    import filelock

    path = folder / ".partial" / f"{experiment}.lock"
    if path not in _held:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            _held[path] = filelock.FileLock(path, blocking=False).acquire().lock
        except filelock.Timeout:
            return False
    return True


def _write(out: Path, snapshot: dict) -> None:
    text = json.dumps(snapshot, indent=1, ensure_ascii=False) + "\n"
    write_atomic(out / "machine.json", text)
