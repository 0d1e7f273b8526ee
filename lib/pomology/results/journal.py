"""The record of a case, and the journal that keeps it: JSON, one object a line, only ever appended.

A line with `"event": "start"` is written before a case and one with `"event": "end"` after it, each flushed to the disk
before anything else happens, so that a killed process costs the case it was in and no other. Journals may come from
other people's machines: they are read as plain JSON, and nothing in them is ever evaluated.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pomology.errors import PomologyError

if TYPE_CHECKING:
    import pandas
from pomology.results.record import ATTEMPTS, RETRIED, SCHEMA, problem


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


class Journal:
    """One experiment's journal file. Opening it creates the folder; a line that a crash left torn stays by itself."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def append(self, record: dict) -> None:
        """Write one line and wait until the disk has it. Raises ValueError for a record that is not JSON (as NaN)."""
        line = json.dumps(record, allow_nan=False, ensure_ascii=False, separators=(",", ":")) + "\n"
        with open(self.path, "ab+") as file:
            if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                line = "\n" + line
            file.write(line.encode(errors="replace"))  # file names in messages may hold what is no text
            file.flush()
            os.fsync(file.fileno())
            if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync leaves the line in the drive's own memory
                fcntl.fcntl(file.fileno(), fcntl.F_FULLFSYNC)

    def start(self, record: dict) -> None:
        self.append({"event": "start", "schema": SCHEMA, **record})

    def end(self, record: dict) -> None:
        """Append the line of a finished case. Raises ValueError if a key of the schema is missing or wrong."""
        record = {"event": "end", "schema": SCHEMA, **record}
        if wrong := problem(record):
            raise ValueError(f"record of case {record.get('case')!r}: {wrong}")
        self.append(record)

    def finish_open(self, status: str, reason: str) -> list[str]:
        """Give every case that began and has no end this status; returns their names. For a process that watches."""
        journal = read(self.path)
        for start in journal.open_starts:
            self.end(_ended(start, status, reason))
        return [start["case"] for start in journal.open_starts]


@dataclass
class Contents:
    """What a journal holds.

    records: the last line of each finished case and repeat, in the order in which they began; one that never ended is
    among them as `crashed`. open_starts: the start lines of those. attempts: how often each (case, repeat) began since
    it last ended.
    problems: one sentence for each line that could not be used.
    """

    path: Path
    records: list[dict] = field(default_factory=list)
    open_starts: list[dict] = field(default_factory=list)
    attempts: dict[tuple[str, int], int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def done(self, case: str, repeat: int) -> bool:
        """Whether this case needs no further attempt."""
        if any(start["case"] == case and start["repeat"] == repeat for start in self.open_starts):
            return self.attempts.get((case, repeat), 0) >= ATTEMPTS
        return any(
            record["case"] == case and record["repeat"] == repeat and record["status"] not in RETRIED
            for record in self.records
        )


def read(path: str | Path, most_bytes: int = 64 * 2**20) -> Contents:
    """Read a journal; a file that is not there reads as empty.

    A torn or malformed line is passed over and reported in `problems`. Raises PomologyError for a newer schema or a
    file larger than `most_bytes`.
    """
    path = Path(path)
    contents = Contents(path)
    if not path.exists():
        return contents
    if path.stat().st_size > most_bytes:
        raise PomologyError(f"{path}: {path.stat().st_size:,} bytes; a journal has at most {most_bytes:,}")
    ended: dict[tuple[str, int], dict] = {}
    starts: dict[tuple[str, int], dict] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line, parse_constant=_refuse)
        except (ValueError, RecursionError):
            contents.problems.append(f"{path.name}, line {number}: torn or not JSON; passed over")
            continue
        schema = record.get("schema") if isinstance(record, dict) else None
        if isinstance(schema, int) and schema > SCHEMA:
            raise PomologyError(
                f"{path}, line {number}: schema {schema} is newer than this kit's {SCHEMA}; update pomology to read it"
            )
        begins = isinstance(record, dict) and record.get("event") == "start"
        wrong = problem(_ended(record, "crashed", "") if begins else record)
        if wrong:
            contents.problems.append(f"{path.name}, line {number}: {wrong}; passed over")
            continue
        key = (record["case"], record["repeat"])
        if begins:
            starts[key] = record
            contents.attempts[key] = contents.attempts.get(key, 0) + 1
            ended.setdefault(key, {})
        else:
            starts.pop(key, None)
            contents.attempts.pop(key, None)
            ended[key] = record
    contents.open_starts = list(starts.values())
    for key, start in starts.items():
        ended[key] = _ended(start, "crashed", "began and never ended: its process was killed")
    contents.records = [record for record in ended.values() if record]
    return contents


def _ended(start: dict, status: str, reason: str) -> dict:
    """The end line for a case of which only the start line is known."""
    blank = {
        "seconds": None,
        "foreign_load": None,
        "parameters": None,
        "flops_per_step": None,
        "metrics": {},
        "flags": [],
    }
    return {**blank, **start, "event": "end", "status": status, "reason": reason}


def frame(records: Iterable[dict]) -> pandas.DataFrame:
    """One row a record: its keys, the keys of `config`, and each metric as `NAME`, `NAME_low`, `NAME_high`, `NAME_how`.

    Keys of `config` that the record has already keep the record's value.
    """
    import pandas

    rows = []
    for record in records:
        row = {key: value for key, value in record.items() if key not in ("metrics", "blocks")}
        for key, value in record["config"].items():
            row.setdefault(key, value)
        for name, metric in record["metrics"].items():
            row[name] = metric["value"]
            for key in ("low", "high", "how", "n"):
                row[f"{name}_{key}"] = metric[key]
        rows.append(row)
    return pandas.DataFrame(rows)
