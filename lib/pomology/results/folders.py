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
from pomology.results.run import MACHINE, Run

if TYPE_CHECKING:
    import filelock

# Of who measures in a run's folder. It stays, also after `make clean`; neither git nor `share`
# takes it along, so that a folder without it is a copy.
LOCK = ".lock"
# Of machine.json.
IDENTITY = (
    "chip",
    "cpu_cores",
    "cpu_threads",
    "performance_cores",
    "memory_bytes",
    "gpus",
    "virtual_machine",
    "os",
    "architecture",
)
ALIKE = 1.01  # sizes and clocks of one machine


def note_machine(out: Path, profile: str) -> dict:
    """Write `machine.json` into a run's folder, unless it is there, and return what it says."""
    if (out / MACHINE).exists():
        return noted(out)
    power_source = machine_snapshot.conditions()["power_source"]
    snapshot = machine_snapshot.snapshot() | {"profile": profile, "power_source": power_source}
    _write(out, snapshot)
    (out / LOCK).touch()
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
    problem = ""
    if not (out / MACHINE).exists():
        if any(out.glob("*.jsonl*")):  # packed, too
            problem = "has numbers, but no machine.json that says whose"
    elif differing := differences(noted(out), machine_snapshot.snapshot()):
        problem = f"was measured on another machine ({'; '.join(differing)})"
    elif any(out.glob("*.jsonl*")) and not (out / LOCK).exists():
        problem = "is a copy of a run, not one of this checkout"
    if problem:
        raise PomologyError(f"RUN={out.name}: {problem}; choose another RUN")


def differences(before: dict, now: dict) -> list[str]:
    """Return in what a run's machine is another one than this, which `now` describes."""
    pairs = {name: (before.get(name), now.get(name)) for name in IDENTITY}
    return [
        f"{name} {one_line(old, 60)}, here {one_line(new, 60)}"
        for name, (old, new) in pairs.items()
        if old is not None and new is not None and not _alike(old, new)
    ]


def _alike(old: Any, new: Any) -> bool:
    numbers = all(type(each) in (int, float) for each in (old, new))
    return max(old, new) <= ALIKE * min(old, new) if numbers else old == new


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
        known = noted(out).get("software", {})
        if name not in known:
            note(out, software=known | {name: software})
    finally:
        os.close(folder)
    return name


def noted(out: Path) -> dict:
    """Return what a run's `machine.json` says; raise PomologyError if it describes no machine."""
    machine = Run(out).machine
    if not machine:
        place = redact(str(out / MACHINE))
        raise PomologyError(f"{place}: describes no machine; choose another folder")
    return machine


def by_hand(experiment: str, profile: str, framework: str = "") -> Path:
    """Return the folder for a notebook that is run by hand: the first of this day that fits."""
    outputs = root() / "outputs"
    today = datetime.now()
    now = machine_snapshot.snapshot() | {"profile": profile}
    for place in sorted(outputs.glob(f"lab-{today:%Y%m%d}-*/{MACHINE}")):
        folder = place.parent
        if _facts(noted(folder), now) == _facts(now, now):
            _put_aside(folder, experiment, framework)
            return folder
    folder = outputs / f"lab-{today:%Y%m%d-%H%M%S}"
    while folder.exists():
        today += timedelta(seconds=1)
        folder = outputs / f"lab-{today:%Y%m%d-%H%M%S}"
    return folder


def _facts(snapshot: dict, now: dict) -> dict:
    """Return what says that numbers may share a table: one machine with the same software.

    Not whether files of the kit were changed, since another parameter in a notebook changes one:
    each record names that, see `note_software`.
    """
    facts = {name: snapshot.get(name) for name in now if name != "unknown"}
    return facts | {"git": (snapshot.get("git") or {}).get("commit")}


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
        if (folder / MACHINE).exists() and noted(folder).get("profile") == profile:
            return folder
    return None


def _write(out: Path, snapshot: dict) -> None:
    text = json.dumps(snapshot, indent=1, ensure_ascii=False) + "\n"
    write_atomic(out / MACHINE, text)
