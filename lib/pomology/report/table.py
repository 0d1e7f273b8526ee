"""A table: rows, headings and notes, as text, HTML and CSV."""

from __future__ import annotations

import csv
import html
import io
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import msgspec

from pomology.errors import PomologyError
from pomology.paths import read_file, write_atomic
from pomology.results.cases import FLAGS
from pomology.results.record import Record

MANY = 6  # columns of a table, above which a remark stands below its row; of twice as many cells are narrow
SENTENCE = 48  # characters, which no number with its interval has
TERMINAL = 100  # characters of a line of text
GAP = "  "
# Between a number and its unit no line ends; before its interval one may.
BOUND = re.compile(r"(?<=\d) (?=(?!to\b)[^\W\d_]|%)|(?<=±) ")

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
.pomology-table tr:has(+ tr.more) td { border-bottom: 0; }
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
    """A table for people, which a notebook shows as HTML and a terminal as text. `data` holds it as numbers.

    meaning: what its numbers mean, which is read before them; notes: the rest, behind them. main: the column that a
    phone shows below the first cell of a row, before any scrolling.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    data: tuple[dict, ...] = field(default=(), repr=False)
    meaning: tuple[str, ...] = ()
    main: str = ""

    @classmethod
    def of(
        cls, title: str, columns: Iterable[str], lines: Iterable[tuple], notes: Iterable = (), meaning: Iterable = ()
    ) -> Table:
        """Of lines, each its cells, its numbers and perhaps its kind; an empty note is none."""
        lines = list(lines)
        rows = tuple(Row(tuple(cells), *kind) for cells, _, *kind in lines)
        notes, meaning = (tuple(filter(None, texts)) for texts in (notes, meaning))
        return cls(title, tuple(columns), rows, notes, tuple(line[1] for line in lines), meaning)

    def _repr_html_(self) -> str:
        return f"<style>{STYLE}</style>{self.html()}"

    def html(self) -> str:
        """The table as markup, whose looks are those of the page that it stands on."""
        wide = '<table class="wide">' if len(self.columns) > 1.5 * MANY else "<table>"
        below = len(self.columns) > MANY and self.columns[-1] == "Remarks"
        head = "".join(f"<th>{html.escape(column)}</th>" for column in self.columns[: -below or None])
        rows = "".join(self._markup(row, below) for row in self.rows)
        title = f'<p class="title">{html.escape(self.title)}</p>' if self.title else ""
        meaning, notes = (
            "".join(f"<p>{html.escape(text)}</p>" for text in texts) for texts in (self.meaning, self.notes)
        )
        return (
            f'<div class="pomology-table">{title}{meaning}<div class="scroll">{wide}<thead><tr>{head}</tr></thead>'
            f"<tbody>{rows}</tbody></table></div>{notes}</div>"
        )

    def _markup(self, row: Row, below: bool) -> str:
        """A row; its remark in one of its own, since in the narrow column of a wide table it would be high as a page.

        What is published needs no word there: its ground says so.
        """
        cells, remark = row.cells[: -below or None], row.cells[-1] if below and row.cells[-1] != row.kind else ""
        attributes = [' class="long"' if len(cell) >= SENTENCE else "" for cell in cells]
        if self.main in self.columns[1:]:
            attributes[0] += f' data-main="{html.escape(row.cells[self.columns.index(self.main)])}"'
        texts = (BOUND.sub("\N{NO-BREAK SPACE}", html.escape(cell)) for cell in cells)
        text = "".join(f"<td{about}>{cell}</td>" for cell, about in zip(texts, attributes, strict=True))
        more = f'<td colspan="{len(cells)}"><span>{html.escape(remark)}</span></td>'
        return f'<tr class="{row.kind}">{text}</tr>' + f'<tr class="{row.kind} more">{more}</tr>' * bool(remark)

    __html__ = html  # what a template asks for

    def __str__(self) -> str:
        """In lines of `TERMINAL` characters: cells are wrapped, or where words are too long, a row is a list."""
        grid = [self.columns, *(row.cells for row in self.rows)]
        columns = list(zip(*grid, strict=True))
        widths = [max(map(len, column)) for column in columns]
        least = [max(len(word) for cell in column for word in cell.split() or [""]) for column in columns]
        most = TERMINAL - len(GAP) * (len(widths) - 1)
        while sum(widths) > most and (wide := [n for n, width in enumerate(widths) if width > least[n]]):
            widths[max(wide, key=widths.__getitem__)] -= 1
        if sum(widths) <= most:
            grid.insert(1, tuple("-" * width for width in widths))
            lines = [line for cells in grid for line in _wrapped(cells, widths)]
        else:
            lines = [line for row in self.rows for line in _listed(self.columns, row.cells)]
        return "\n".join([self.title, *self.meaning, "", *lines, *self.notes])

    __repr__ = __str__


def _wrapped(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """The lines of a row, whose cells are wrapped to these widths."""
    parts = [textwrap.wrap(cell, width, break_long_words=False) for cell, width in zip(cells, widths, strict=True)]
    lines = zip_longest(*parts, fillvalue="")
    return [GAP.join(map(str.ljust, line, widths)).rstrip() for line in lines] or [""]


def _listed(columns: Sequence[str], cells: Sequence[str]) -> list[str]:
    """A row as a list of its columns, without those that are empty."""
    first, *rest = zip(columns, cells, strict=True)
    texts = (f"{GAP}{heading}: {cell}" for heading, cell in rest if cell)
    return [first[1], *(textwrap.fill(text, TERMINAL, subsequent_indent=2 * GAP) for text in texts)]


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
