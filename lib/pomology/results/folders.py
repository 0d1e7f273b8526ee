"""Where numbers go and where they are looked for: the folders in `outputs/`, one a run.

`pomology reproduce` names the folder of a run. Notebooks that are run by hand share one a day, so that those which lay
others together find these: `lab-<date>-<time>`, by when it was begun. One folder holds one profile on one machine with
one state of its software. A set-up cell that is run again measures anew, perhaps with other parameters or other code;
what its notebook had measured in that folder moves to `earlier/` in it, and stands in no table any more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pomology.errors import PomologyError
from pomology.machine import snapshot as machine_snapshot
from pomology.paths import redact, root, write_atomic

if TYPE_CHECKING:
    import filelock

_held: dict[Path, filelock.FileLock] = {}  # they go with this process: a folder's journals that it alone writes


def note_machine(out: Path, profile: str) -> dict:
    """Write `machine.json` into a run's folder, unless it is there; returns what it says."""
    if (out / "machine.json").exists():
        return noted(out)
    snapshot = machine_snapshot.snapshot() | {
        "profile": profile,
        "power_source": machine_snapshot.conditions()["power_source"],
    }
    _write(out, snapshot)
    return snapshot


def noted(out: Path) -> dict:
    """What a run's `machine.json` says. Raises PomologyError if that is no JSON object."""
    path = out / "machine.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise PomologyError(f"{redact(str(path))}: not JSON; remove it or choose another folder")
    return found


def by_hand(experiment: str, profile: str) -> Path:
    """The folder for a notebook that is run by hand: the first of this day in which it may write, else a new one.

    What this notebook has measured there before is set aside. While the kernel that did lives, it may still measure: so
    a second kernel gets a folder of its own.
    """
    outputs, begun = root() / "outputs", datetime.now()
    now = machine_snapshot.snapshot() | {"profile": profile}
    for folder in sorted(outputs.glob(f"lab-{begun:%Y%m%d}-*/machine.json")):
        folder = folder.parent
        before = noted(folder)
        if _alike(before, now) and _alone(folder, experiment):
            if now["git"] and now["git"]["dirty"]:  # files were changed since the folder was begun
                _write(folder, before | {"git": now["git"]})
            _set_aside(folder, experiment)
            return folder
    while (folder := outputs / f"lab-{begun:%Y%m%d-%H%M%S}").exists():
        begun += timedelta(seconds=1)
    _alone(folder, experiment)
    return folder


def latest(names: Iterable[str], profile: str) -> Path | None:
    """The run's folder in which one of these notebooks has measured something last; None if there is none."""
    found = [place for name in names for place in (root() / "outputs").glob(f"*/{name}.jsonl")]
    for place in sorted(found, key=lambda place: place.stat().st_mtime, reverse=True):
        if (place.parent / "machine.json").exists() and noted(place.parent).get("profile") == profile:
            return place.parent
    return None


def _alike(before: dict, now: dict) -> bool:
    """Whether two snapshots are of one machine with the same software, so that their numbers may share a table."""

    def kept(snapshot: dict) -> dict:
        commit = (snapshot.get("git") or {}).get("commit")  # not whether dirty: a changed parameter makes it so
        return {key: snapshot.get(key) for key in now if key != "unknown"} | {"git": commit}

    return kept(before) == kept(now)


def _alone(folder: Path, experiment: str) -> bool:
    """Whether no other process is at this notebook's journal; none will be while this one lives."""
    import filelock  # a tenth of a second, which only this needs

    path = folder / ".partial" / f"{experiment}.lock"
    if path not in _held:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(path, blocking=False)
        try:
            lock.acquire()
        except filelock.Timeout:
            return False
        _held[path] = lock
    return True


def _set_aside(folder: Path, experiment: str) -> None:
    journal, aside = folder / f"{experiment}.jsonl", folder / "earlier"
    if journal.exists():
        aside.mkdir(exist_ok=True)
        number = 1 + len(list(aside.glob(f"{experiment}-*.jsonl")))
        journal.rename(aside / f"{experiment}-{number}.jsonl")


def _write(out: Path, snapshot: dict) -> None:
    write_atomic(out / "machine.json", json.dumps(snapshot, indent=1, ensure_ascii=False) + "\n")
