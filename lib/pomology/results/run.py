"""A run: its folder, its machine, its journals."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from pomology.errors import PomologyError
from pomology.machine import snapshot
from pomology.paths import redact
from pomology.results import journal

# What reading or showing somebody's malformed numbers can raise; said on the page in place of them.
MALFORMED = (PomologyError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError)


@dataclass
class Run:
    """What is in a run's folder. journals: by experiment. problems: a sentence for each file that could not be used."""

    path: Path
    machine: dict = field(default_factory=dict)
    journals: dict[str, journal.Contents] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def records(self) -> list[dict]:
        return [record for contents in self.journals.values() for record in contents.records]


def load(folder: str | Path) -> Run:
    """Read a run's folder, also an unfinished one. Raises PomologyError if there is no such folder."""
    run = Run(Path(folder))
    if not run.path.is_dir():
        raise PomologyError(f"{folder}: no such folder; runs are in outputs/")
    place = run.path / "machine.json"
    try:
        found = json.loads(place.read_bytes())
        snapshot.describe(found)
        run.machine = found
    except FileNotFoundError:
        run.problems.append("machine.json is missing: nothing tells which machine this was.")
    except (*MALFORMED, RecursionError) as error:
        run.problems.append(f"machine.json cannot be read ({type(error).__name__}).")
    for path in sorted(run.path.glob("*.jsonl")):
        try:
            run.journals[path.stem] = journal.read(path)
        except (*MALFORMED, OSError) as error:
            run.problems.append(f"{redact(str(error))}.")
    return run
