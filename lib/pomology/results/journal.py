"""Journal of an experiment: an append-only file with one JSON object per line.

Each case has a line with `"event": "start"` and one with `"event": "end"`. Both are flushed to the
disk at once, so a killed process loses only the case that was running. Journals from other machines
are untrusted: nothing in them is evaluated.
"""

import json
import os
from codecs import BOM_UTF8
from dataclasses import dataclass
from pathlib import Path

from pomology.format import one_line
from pomology.paths import read_file, synchronize
from pomology.results.record import RETRIED, UNTRIED, Record, Start, Status, checked, parse

# A case whose process was killed is tried once more, since the process may have been the cause.
ATTEMPTS = 2
KILLED = "began and never ended: its process was killed"
UNREAD = "began, and a line that cannot be read follows, which may be its end"
# Environment variable in which the runner lists the backends on which a kernel may run one case
# only, since compiled code stays in memory (`one_case_per_kernel` of a notebook).
ONE_CASE_ON = "POMOLOGY_ONE_CASE_ON"


class Journal:
    """Journal file of one experiment, in a folder that is created if necessary."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def start(self, record: Start | dict) -> Start:
        """Append the start line of a case."""
        return self._append("start", record)

    def end(self, record: Record | dict) -> Record:
        """Append the end line of a case."""
        return self._append("end", record)

    def _append(self, event: str, record: Start | dict) -> Start | Record:
        """Write one line and wait until it is on the disk. Raises ValueError outside the schema."""
        fields = record.line() if isinstance(record, Start) else record
        entry = checked({"schema": 1} | fields | {"event": event})
        line = json.dumps(entry.line(), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        with open(self.path, "ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a line torn by a crash must not join the new one
                    file.write(b"\n")
            # File names in messages may not be valid Unicode.
            file.write(line.encode(errors="replace") + b"\n")
            file.flush()
            synchronize(file.fileno(), whole=True)
        return entry

    def finish_open(self, status: Status, reason: str) -> list[str]:
        """End every open case with this status; return their names."""
        open_starts = read(self.path).open_starts
        return [self.end(Record.ended(start, status, reason)).case for start in open_starts]


@dataclass
class Contents:
    """Contents of a journal.

    records: last record of each case and repeat, in order of their start, with status `crashed` if
    it never ended, and `error` if its end may be a line that cannot be read. open_starts: starts
    of cases that never ended. attempts: (case, repeat) -> number of starts since its last end.
    problems: a sentence if lines could not be used.
    """

    records: list[Record]
    open_starts: list[Start]
    attempts: dict[tuple[str, int], int]
    problems: list[str]

    def done(self, case: str, repeat: int) -> bool:
        """Return whether a case needs no further attempt."""
        attempts = self.attempts.get((case, repeat))
        if attempts:
            return attempts >= ATTEMPTS
        return any(
            (record.case, record.repeat) == (case, repeat) and record.status not in RETRIED
            for record in self.records
        )

    @property
    def ended(self) -> list[Record]:
        """The records of cases that have ended."""
        return [
            record for record in self.records if (record.case, record.repeat) not in self.attempts
        ]


def read(path: Path) -> Contents:
    """Read a journal; a missing file counts as empty. Raises PomologyError if unreadable."""
    return contents(path.name, read_file(path) if path.exists() else b"")


def contents(name: str, data: bytes) -> Contents:
    """Parse the bytes of a journal; torn and malformed lines are skipped and reported."""
    latest: dict[tuple[str, int], Start] = {}
    attempts: dict[tuple[str, int], int] = {}
    unread: set[tuple[str, int]] = set()
    begun = None  # the last case that has begun and not ended
    bad_lines = []
    for number, line in enumerate(data.removeprefix(BOM_UTF8).split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            entry = parse(line)
        except (ValueError, RecursionError) as error:
            bad_lines.append(f"line {number} ({one_line(error, 200)})")
            unread |= {begun} - {None}
            continue
        # A case that was tried again keeps its position, that of its first start.
        key = entry.case, entry.repeat
        latest[key] = entry
        unread.discard(key)
        if isinstance(entry, Record):
            attempts.pop(key, None)
            begun = None
        else:
            attempts[key] = attempts.get(key, 0) + 1
            begun = key
    records = []
    for key, entry in latest.items():
        if not isinstance(entry, Record):
            ending = ("error", UNREAD) if key in unread else ("crashed", KILLED)
            entry = Record.ended(entry, *ending)
        records.append(entry)
    problems = []
    if bad_lines:
        text = f"skipped {len(bad_lines):,} unreadable lines, the first in {bad_lines[0]}"
        problems.append(f"{one_line(name)}: {text}.")
    return Contents(records, [latest[key] for key in attempts], attempts, problems)


def fills_kernel(status: str) -> bool:
    """Return whether a case with this status ran, and will not run again."""
    return status not in (*RETRIED, *UNTRIED, "unsupported")
