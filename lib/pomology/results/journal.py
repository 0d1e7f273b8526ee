"""The record of a case, and the journal that keeps it: JSON, one object a line, only ever appended.

A line with `"event": "start"` is written before a case and one with `"event": "end"` after it, each flushed to the disk
before anything else happens, so that a killed process costs the case it was in and no other. Journals may come from
other people's machines: they are read as plain JSON, and nothing in them is ever evaluated.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.results.record import ATTEMPTS, RETRIED, SCHEMA, Record, Start, Status, checked, parse

MOST_BYTES = 64 * 2**20
MOST_LINES = 100_000  # more than any run writes
MOST_NAMED = 3  # of the lines of a journal that cannot be used


class Journal:
    """One experiment's journal file. Opening it creates the folder; a line that a crash left torn stays by itself."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def start(self, record: Start | dict) -> None:
        """Append the line of a case that begins. Raises ValueError if a key of the schema is missing or wrong."""
        self._append("start", record)

    def end(self, record: Record | dict) -> Record:
        """Append the line of a finished case. Raises ValueError if a key of the schema is missing or wrong."""
        return self._append("end", record)

    def _append(self, event: str, record: Start | dict) -> Start | Record:
        """Write one line and wait until the disk has it. Raises ValueError for what the schema or JSON lacks (NaN)."""
        given = record.line() if isinstance(record, Start) else record
        try:
            entry = checked({"event": event, "schema": SCHEMA, **given})
        except ValueError as error:
            raise ValueError(f"record of case {given.get('case')!r}: {error}") from None
        line = json.dumps(entry.line(), allow_nan=False, ensure_ascii=False, separators=(",", ":")) + "\n"
        with open(self.path, "ab+") as file:
            if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                line = "\n" + line
            file.write(line.encode(errors="replace"))  # file names in messages may hold what is no text
            file.flush()
            os.fsync(file.fileno())
            if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync leaves the line in the drive's own memory
                fcntl.fcntl(file.fileno(), fcntl.F_FULLFSYNC)
        return entry

    def finish_open(self, status: Status, reason: str) -> list[str]:
        """Give every case that began and has no end this status; returns their names. For a process that watches."""
        starts = read(self.path).open_starts
        for start in starts:
            self.end(Record.ended(start, status, reason))
        return [start.case for start in starts]


@dataclass
class Contents:
    """What a journal holds.

    records: the last line of each finished case and repeat, in the order in which they began; one that never ended is
    among them as `crashed`. open_starts: the start lines of those. attempts: how often each (case, repeat) began since
    it last ended. problems: one sentence for each line that could not be used.
    """

    path: Path
    records: list[Record] = field(default_factory=list)
    open_starts: list[Start] = field(default_factory=list)
    attempts: dict[tuple[str, int], int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def done(self, case: str, repeat: int) -> bool:
        """Whether this case needs no further attempt."""
        if any((start.case, start.repeat) == (case, repeat) for start in self.open_starts):
            return self.attempts.get((case, repeat), 0) >= ATTEMPTS
        return any(
            (record.case, record.repeat) == (case, repeat) and record.status not in RETRIED for record in self.records
        )


def read(path: str | Path) -> Contents:
    """Read a journal; a file that is not there reads as empty. Raises PomologyError for one that is too large, and as
    `contents` does."""
    path = Path(path)
    if not path.exists():
        return Contents(path)
    if path.stat().st_size > MOST_BYTES:
        raise PomologyError(f"{path}: {path.stat().st_size:,} bytes; a journal has at most {MOST_BYTES:,}")
    return contents(path, path.read_bytes())


def contents(path: Path, data: bytes, kind: type = Record) -> Contents:
    """What a journal's bytes hold. A torn or malformed line is passed over and reported in `problems`.

    kind: as in `record.parse`. Raises PomologyError for a journal of another schema, or with more lines than any run
    writes.
    """
    held, name, unusable = Contents(path), one_line(path.name), 0
    if data.count(b"\n") > MOST_LINES:
        raise PomologyError(f"{name}: more than {MOST_LINES:,} lines")
    latest: dict[tuple[str, int], Start] = {}
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            entry = parse(line, kind)
        except PomologyError as error:
            raise PomologyError(f"{name}, line {number}: {error}") from None
        except ValueError as error:
            unusable += 1
            if unusable <= MOST_NAMED:
                held.problems.append(f"{name}, line {number}: {one_line(error, 250)}; passed over")
            continue
        key = (entry.case, entry.repeat)
        latest[key] = entry
        if isinstance(entry, kind):
            held.attempts.pop(key, None)
        else:
            held.attempts[key] = held.attempts.get(key, 0) + 1
    if unusable > MOST_NAMED:
        held.problems.append(f"{name}: {unusable - MOST_NAMED} more lines that cannot be used")
    why = "began and never ended: its process was killed"
    for entry in latest.values():
        ended = isinstance(entry, kind)
        held.records.append(entry if ended else kind.ended(entry, "crashed", why))
        held.open_starts += [] if ended else [entry]
    return held
