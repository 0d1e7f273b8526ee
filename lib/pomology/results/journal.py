"""The journal of an experiment: JSON, one object a line, only ever appended.

A line with `"event": "start"` is written before a case and one with `"event": "end"` after it, each
flushed to the disk before anything else happens, so that a killed process costs the case it was in
and no other. Journals may come from other people's machines: nothing in them is ever evaluated.
"""

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path

from pomology.format import one_line
from pomology.paths import read_file
from pomology.results.record import RETRIED, UNTRIED, Record, Start, Status, checked, parse

# A case that was under way when its process vanished is tried once more, in case it was the process
# that was at fault.
ATTEMPTS = 2
KILLED = "began and never ended: its process was killed"
# The variable by which the runner names the backends of which a kernel measures one case, since
# what a case compiled stays in the memory of its process (a notebook's `one_case_per_kernel`).
ONE_CASE_ON = "POMOLOGY_ONE_CASE_ON"


class Journal:
    """One experiment's journal file. Opening it creates the folder."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def start(self, record: Start | dict) -> Start:
        """Append the line of a case that begins."""
        return self._append("start", record)

    def end(self, record: Record | dict) -> Record:
        """Append the line of a finished case."""
        return self._append("end", record)

    def _append(self, event: str, record: Start | dict) -> Start | Record:
        """Write one line and wait until the disk has it.

        Raises ValueError for what the schema or JSON does not have, as a wrong status or NaN.
        """
        fields = record.line() if isinstance(record, Start) else record
        entry = checked({"schema": 1} | fields | {"event": event})
        line = json.dumps(entry.line(), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        with open(self.path, "ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a line that a crash left torn stays by itself
                    file.write(b"\n")
            # File names in messages may hold what is no text.
            file.write(line.encode(errors="replace") + b"\n")
            file.flush()
            os.fsync(file.fileno())
            if hasattr(fcntl, "F_FULLFSYNC"):  # on macOS fsync leaves it in the drive's own memory
                fcntl.fcntl(file.fileno(), fcntl.F_FULLFSYNC)
        return entry

    def finish_open(self, status: Status, reason: str) -> list[str]:
        """Give every case that began and has no end this status, and return their names."""
        open_starts = read(self.path).open_starts
        return [self.end(Record.ended(start, status, reason)).case for start in open_starts]


@dataclass
class Contents:
    """What a journal holds.

    records: the last line of each case and repeat, in the order in which they began; one that never
    ended stands as `crashed`, and its start in open_starts. attempts: how often each (case, repeat)
    began since it last ended. problems: a sentence if some of its lines could not be used.
    """

    records: list[Record]
    open_starts: list[Start]
    attempts: dict[tuple[str, int], int]
    problems: list[str]

    def done(self, case: str, repeat: int) -> bool:
        """Whether this case needs no further attempt."""
        attempts = self.attempts.get((case, repeat))
        if attempts:
            return attempts >= ATTEMPTS
        ended = [each for each in self.records if (each.case, each.repeat) == (case, repeat)]
        return bool(ended) and ended[0].status not in RETRIED


def read(path: Path) -> Contents:
    """Read a journal, as `read_file` does; one that is not there reads as empty."""
    return contents(path.name, read_file(path) if path.exists() else b"")


def contents(name: str, data: bytes) -> Contents:
    """Read the bytes of a journal of this name. A torn or malformed line is passed over."""
    latest: dict[tuple[str, int], Start] = {}
    attempts: dict[tuple[str, int], int] = {}
    bad_lines = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            entry = parse(line)
        except (ValueError, RecursionError) as error:
            bad_lines.append(f"line {number} ({one_line(error, 200)})")
            continue
        key = entry.case, entry.repeat
        latest[key] = entry
        if isinstance(entry, Record):
            attempts.pop(key, None)
        else:
            attempts[key] = attempts.get(key, 0) + 1
    records = [
        entry if isinstance(entry, Record) else Record.ended(entry, "crashed", KILLED)
        for entry in latest.values()
    ]
    problems = []
    if bad_lines:
        what = f"{len(bad_lines):,} of its lines passed over, the first {bad_lines[0]}"
        problems.append(f"{one_line(name)}: {what}.")
    return Contents(records, [latest[key] for key in attempts], attempts, problems)


def fills_kernel(status: str) -> bool:
    """Return whether a case with this status was tried, and is not tried again."""
    return status not in (*RETRIED, *UNTRIED, "unsupported")
