"""A table: rows, headings and notes, as text, HTML and CSV."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from pomology.errors import PomologyError
from pomology.paths import read_file, write_atomic
from pomology.results.cases import FLAGS
from pomology.results.record import Record

LONG, MANY = 60, 6  # characters of a long remark, and columns of a table that leave it too little room
WRAPPED = 30  # characters of a text that may be broken into lines

# Notes under tables of published times.
SOFTWARE = (
    "Between the published times and this machine's are years of software, which alone can make a slower chip the "
    "faster one."
)
YEARS = f"In brackets behind a device: the version of its framework, as far as it is known, and the year. {SOFTWARE}"

# For where no page has a style sheet, as in a notebook; a page's own says the same and more.
STYLE = """
.pomology-table table { border-collapse: collapse; }
.pomology-table .scroll { overflow-x: auto; }
.pomology-table th, .pomology-table td { text-align: left !important; }
.pomology-table td.remark { min-width: 30em; }
.pomology-table tr.measured { font-weight: 600; background: rgba(213, 94, 0, .10) !important; }
.pomology-table p { margin: .2em 0; font-size: 90%; }
.pomology-table p.title { font-size: 100%; font-weight: 600; }
"""


@dataclass(frozen=True)
class Row:
    """One line of a table; its kind is its ground."""

    cells: tuple[str, ...]
    kind: Literal["published", "measured", "other", "plain"] = "plain"


@dataclass(frozen=True)
class Table:
    """A table for people, which a notebook shows as HTML and a terminal as text. `data` holds it as numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    data: tuple[dict, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, title: str, columns: Iterable[str], lines: Iterable[tuple], notes: Iterable[Any] = ()) -> Table:
        """Of lines, each its cells, its numbers and perhaps its kind; an empty note is none."""
        lines = list(lines)
        rows = tuple(Row(tuple(cells), *kind) for cells, _, *kind in lines)
        return cls(title, tuple(columns), rows, tuple(filter(None, notes)), tuple(line[1] for line in lines))

    def _repr_html_(self) -> str:
        return f"<style>{STYLE}</style>{self.html()}"

    def html(self) -> str:
        """The table as markup, whose looks are those of the page that it stands on."""
        head = "".join(f"<th>{html.escape(column)}</th>" for column in self.columns)
        rows = "".join(f'<tr class="{row.kind}">{self._cells(row)}</tr>' for row in self.rows)
        title = f'<p class="title">{html.escape(self.title)}</p>' if self.title else ""
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return (
            f'<div class="pomology-table">{title}<div class="scroll"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{rows}</tbody></table></div>{notes}</div>"
        )

    def _cells(self, row: Row) -> str:
        """A long remark gets room: in the narrow column of a wide table its row would be as high as a page.

        That of a case without numbers begins where these would be, beside how it ended.
        """
        *cells, remark = row.cells
        filled, long = max((place for place, cell in enumerate(cells, 1) if cell), default=1), len(remark) > LONG
        span = 1 + len(cells) - filled
        if row.kind != "measured" or not long or span < 3:
            filled, span = len(cells), 1
        cells = [*cells[:filled], remark]
        attributes = [' class="long"' if len(cell) >= WRAPPED else "" for cell in cells]
        if span > 1:
            attributes[-1] = f' colspan="{span}" class="long"'
        elif long and len(self.columns) > MANY:
            attributes[-1] = ' class="remark"'
        return "".join(f"<td{about}>{html.escape(cell)}</td>" for cell, about in zip(cells, attributes, strict=True))

    __html__ = html  # what a template asks for

    def __str__(self) -> str:
        grid = [self.columns, *(row.cells for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
        grid.insert(1, tuple("-" * width for width in widths))
        lines = ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in grid]
        return "\n".join([self.title, "", *lines, *self.notes])

    __repr__ = __str__


class _Saved(msgspec.Struct):
    """A table in a file. sources: the journals that it was made from, and how long each was."""

    table: Table
    sources: dict[str, int]


def save(table: Table, place: Path, sources: dict[str, int], numbers: bool = True) -> None:
    """Write a table as JSON and HTML, and its numbers as CSV; each file whole or not at all.

    place: without an ending. numbers: whether it has any.
    """
    write_atomic(Path(f"{place}.json"), msgspec.json.encode(_Saved(table, sources)).decode())
    page, text = Path(f"{place}.html"), f'<!DOCTYPE html>\n<meta charset="utf-8">{table._repr_html_()}\n'
    if not page.is_file() or read_file(page) != text.encode():  # else its time says since when it is so
        write_atomic(page, text)
    if numbers:
        write_numbers(Path(f"{place}.csv"), table.data)


def write_numbers(place: Path, data: Sequence[dict], headings: Sequence[str] = ()) -> None:
    """As CSV. headings: also of no data."""
    text = io.StringIO()
    writer = csv.DictWriter(text, headings or list(dict.fromkeys(key for row in data for key in row)))
    writer.writeheader()
    writer.writerows(data)
    write_atomic(place, text.getvalue())


def saved(place: Path, sources: dict[str, int] | None) -> Table | None:
    """A table that `save` has written; None where it is missing, or its journals have grown since then.

    sources: the journals as they are now; None takes a table of any age.
    """
    try:
        kept = msgspec.json.decode(read_file(Path(f"{place}.json")), type=_Saved)
    except (PomologyError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # somebody else's may be malformed: then, too, it is made from the journals
    return kept.table if sources in (None, kept.sources) else None


def grouped(items: Iterable[Any], key: Callable[[Any], Any]) -> list[list]:
    """Those of one key together, in the order in which they appear."""
    groups: dict[Any, list] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def flag_notes(records: Iterable[Record]) -> list[str]:
    """What the flags of these cases mean."""
    return [f"{flag}: {FLAGS.get(flag, flag)}." for flag in sorted({f for record in records for f in record.flags})]
