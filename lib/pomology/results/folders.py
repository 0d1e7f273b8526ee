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

_held: dict[
    Path, filelock.FileLock
] = {}  # they go with this process: a folder's journals that it alone writes


def note_machine(out: Path, profile: str) -> dict:
    """Write `machine.json` into a run's folder, unless it is there; returns what it says."""
    if (out / "machine.json").exists():
        return noted(out)
    power_source = machine_snapshot.conditions()["power_source"]
    snapshot = machine_snapshot.snapshot() | {"profile": profile, "power_source": power_source}
    _write(out, snapshot)
    return snapshot


def locked(out: Path, run: str, command: str) -> filelock.AcquireReturnProxy:
    """The lock of a folder, held; it goes with its process, however that ends.

    Raises PomologyError if it is held.
    """
    import filelock  # a tenth of a second, which only this needs

    try:
        return filelock.FileLock(out / LOCK, blocking=False).acquire()
    except filelock.Timeout:
        raise PomologyError(f"RUN={run}: another `pomology {command}` is running there") from None


def check_machine(out: Path) -> None:
    """Raises PomologyError where a run's folder has numbers that another machine has measured, or a
    copy of numbers, or has lost the file that says whose they are: those of two machines must not
    stand under one name.
    """
    if any(out.glob("*.jsonl*")):  # packed, too
        if not (out / "machine.json").exists():
            raise PomologyError(
                f"RUN={out.name}: has numbers, but no machine.json that says whose; choose another RUN"
            )
        if not any(
            (out / name).exists() for name in (LOCK, ".partial")
        ):  # neither git nor `share` takes them along
            raise PomologyError(
                f"RUN={out.name}: is a copy of a run, not one of this checkout; choose another RUN"
            )
    if (out / "machine.json").exists() and (
        differ := of_another_machine(noted(out), machine_snapshot.snapshot())
    ):
        was = f"was measured on another machine ({'; '.join(differ)})"
        raise PomologyError(f"RUN={out.name}: {was}; choose another RUN")


def of_another_machine(noted: dict, now: dict) -> list[str]:
    """In what a run's machine is another one than this, which `now` describes."""
    pairs = differing([noted, now], (*IDENTITY, "os", "architecture")).items()
    return [
        f"{name} {one_line(a, 60)}, here {one_line(b, 60)}"
        for name, (a, b) in pairs
        if None not in (a, b)
    ]


def note(out: Path, **facts: Any) -> None:
    """Keep facts about a run in its `machine.json`, while none of its notebooks runs."""
    _write(out, noted(out) | facts)


def note_software(out: Path, threads: int | None) -> str:
    """Keep what cases run with from now on in a run's `machine.json`, under `software`; returns the
    name it has there, 12 digits that differ for another commit, package, thread count or variable
    of the environment.
    """
    software = machine_snapshot.software() | {"threads": threads}
    name = hashlib.sha256(json.dumps(software, sort_keys=True).encode()).hexdigest()[:12]
    (out / ".partial").mkdir(parents=True, exist_ok=True)
    with open(out / ".partial" / "machine.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # notebooks that are open at a time share a folder
        machine = noted(out)
        if name not in (known := machine.get("software", {})):
            _write(out, machine | {"software": known | {name: software}})
    return name


def noted(out: Path) -> dict:
    """What a run's `machine.json` says. Raises PomologyError if it describes no machine."""
    if machine := Run(out).machine:
        return machine
    raise PomologyError(
        f"{redact(str(out / 'machine.json'))}: describes no machine; choose another folder"
    )


def by_hand(experiment: str, profile: str) -> Path:
    """The folder for a notebook that is run by hand: the first of this day in which it may write,
    else a new one.

    While a kernel of the same notebook lives, it may still measure there: so a second one gets a
    folder of its own.
    """
    outputs, begun = root() / "outputs", datetime.now()
    now = machine_snapshot.snapshot() | {"profile": profile}
    for place in sorted(outputs.glob(f"lab-{begun:%Y%m%d}-*/machine.json")):
        folder, before = place.parent, noted(place.parent)
        if _kept(before, now) == _kept(now, now) and _alone(folder, experiment):
            if now["git"] and now["git"]["dirty"]:  # files were changed since the folder was begun
                _write(folder, before | {"git": now["git"]})
            journal, earlier = folder / f"{experiment}.jsonl", folder / "earlier"
            if journal.exists():
                earlier.mkdir(exist_ok=True)
                journal.rename(
                    earlier
                    / f"{experiment}-{1 + len(list(earlier.glob(f'{experiment}-*.jsonl')))}.jsonl"
                )
            return folder
    while (folder := outputs / f"lab-{begun:%Y%m%d-%H%M%S}").exists():
        begun += timedelta(seconds=1)
    _alone(folder, experiment)
    return folder


def latest(names: Iterable[str], profile: str) -> Path | None:
    """The run's folder in which one of these notebooks has measured something last; None if there
    is none.
    """
    journals = [place for name in names for place in (root() / "outputs").glob(f"*/{name}.jsonl")]
    folders = [
        place.parent
        for place in sorted(journals, key=lambda place: place.stat().st_mtime, reverse=True)
    ]
    begun = (folder for folder in folders if (folder / "machine.json").exists())
    return next((folder for folder in begun if noted(folder).get("profile") == profile), None)


def _kept(snapshot: dict, now: dict) -> dict:
    """What of a snapshot says that numbers may share a table: one machine with the same software."""
    commit = (snapshot.get("git") or {}).get(
        "commit"
    )  # not whether dirty: a changed parameter makes it so
    return {key: snapshot.get(key) for key in now if key not in ("unknown", "present_mhz")} | {
        "git": commit
    }


def _alone(folder: Path, experiment: str) -> bool:
    """Whether no other process is at this notebook's journal; none will be while this one lives."""
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
    write_atomic(out / "machine.json", json.dumps(snapshot, indent=1, ensure_ascii=False) + "\n")
