"""Where numbers go and where they are looked for: the folders in `outputs/`, one a run.

Notebooks that are run by hand share one, `lab-<digits>`, so that a notebook that combines others
has them. The digits stand for a profile, this machine and the state of its software. A set-up cell
that is run again measures anew.
"""

import hashlib
import json
import math
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.machine import snapshot as machine_snapshot
from pomology.paths import root, write_atomic
from pomology.results.run import MACHINE, Run

# Of who measures in a run's folder. It stays, also after `make clean`; neither git nor `share`
# takes it along, so that a folder without it is a copy.
LOCK = ".lock"
IDENTITY = ("chip", "cpu_cores", "memory_bytes", "gpus", "os")  # of a machine, in machine.json


def note_machine(out: Path, profile: str) -> dict:
    """Write `machine.json` into a run's folder, unless it is there, and return what it says."""
    if not (out / MACHINE).exists():
        out.mkdir(parents=True, exist_ok=True)
        power_source = machine_snapshot.conditions()["power_source"]
        facts = {"profile": profile, "power_source": power_source}
        note(out, **machine_snapshot.snapshot() | facts)
        (out / LOCK).touch()
    return Run(out).machine


def locked(out: Path, run: str, command: str) -> AbstractContextManager:
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

    It may have numbers of another machine, or a copy of numbers.
    """
    problem = ""
    if any(out.glob("*.jsonl*")) and not (out / LOCK).exists():
        problem = "is a copy of a run, not one of this checkout"
    elif (out / MACHINE).exists():
        before, now = Run(out).machine, machine_snapshot.snapshot()
        for name in IDENTITY:
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

    Another commit of the kit has another folder, but not a changed file: another parameter in a
    notebook changes one, and each record names its software, see `note_software`. What the notebook
    measured there moves to `earlier/`, but for what it measured with another framework, so that
    both stand in its tables.
    """
    snapshot = machine_snapshot.snapshot()
    commit = (snapshot.pop("git", None) or {}).get("commit")
    folder = root() / "outputs" / f"lab-{_digits([snapshot, commit, profile], 6)}"
    journal = folder / f"{experiment}.jsonl"
    if journal.exists():
        earlier = folder / "earlier"
        earlier.mkdir(exist_ok=True)
        number = 1 + len(list(earlier.glob(f"{experiment}-*.jsonl")))
        lines = journal.read_bytes().splitlines(keepends=True)
        mine = f'"framework":"{framework}"'.encode()
        kept = [line for line in lines if framework and mine not in line]
        journal.rename(earlier / f"{experiment}-{number}.jsonl")
        if kept:
            write_atomic(journal, b"".join(kept))
    return folder


def latest(names: Iterable[str], profile: str) -> Path | None:
    """Return the run's folder in which one of these notebooks has measured something last."""
    journals = [path for name in names for path in (root() / "outputs").glob(f"*/{name}.jsonl")]
    for journal in sorted(journals, key=lambda path: path.stat().st_mtime, reverse=True):
        if Run(journal.parent).machine.get("profile") == profile:
            return journal.parent
    return None
