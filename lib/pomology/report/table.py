"""A table: rows, headings and notes, as text, HTML and CSV."""

from __future__ import annotations

import csv
import html
import io
from dataclasses import dataclass, field
from pathlib import Path

from pomology.paths import write_atomic

LONG, MANY = 60, 6  # characters of a long remark, and columns of a table that leave it too little room


@dataclass(frozen=True)
class Row:
    """One line of a table; `kind` is `published`, `measured` or `plain`."""

    cells: tuple[str, ...]
    kind: str = "plain"


@dataclass(frozen=True)
class Table:
    """A table for people, which a notebook shows as HTML and a terminal as text. `data` holds it as numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    data: tuple[dict, ...] = field(default=(), repr=False)

    def _repr_html_(self) -> str:
        head = "".join(f'<th style="text-align:left">{html.escape(column)}</th>' for column in self.columns)
        lines = []
        for row in self.rows:
            style = ' style="font-weight:600;background:rgba(213,94,0,.10)"' if row.kind == "measured" else ""
            lines.append(f'<tr class="{row.kind}"{style}>{self._cells(row)}</tr>')
        notes = "".join(f'<p style="margin:.2em 0;font-size:90%">{html.escape(note)}</p>' for note in self.notes)
        return (
            f'<div class="pomology-table"><p style="font-weight:600">{html.escape(self.title)}</p>'
            f'<div style="overflow-x:auto"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{''.join(lines)}</tbody></table></div>{notes}</div>"
        )

    def _cells(self, row: Row) -> str:
        """A long remark gets room: in the narrow column of a wide table its row would be as high as a page.

        That of a case without numbers begins where these would be, beside how it ended.
        """
        *cells, remark = row.cells
        empty = len(cells) - max((place for place, cell in enumerate(cells, 1) if cell), default=1)
        span = 1
        if row.kind == "measured" and len(remark) > LONG and empty > 1:
            span += empty
            cells = cells[:-empty]
        width = ";min-width:30em" if len(remark) > LONG and len(self.columns) > MANY and span == 1 else ""
        wide = f' colspan="{span}"' if span > 1 else ""
        shown = [f'<td style="text-align:left">{html.escape(cell)}</td>' for cell in cells]
        return "".join([*shown, f'<td{wide} style="text-align:left{width}">{html.escape(remark)}</td>'])

    def __str__(self) -> str:
        grid = [self.columns, *(row.cells for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
        grid.insert(1, tuple("-" * width for width in widths))
        lines = [self.title, ""]
        lines += ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in grid]
        return "\n".join([*lines, *self.notes])

    __repr__ = __str__


def save(table: Table, path: Path) -> None:
    """Write a table's numbers as CSV, whole or not at all."""
    columns = list(dict.fromkeys(key for row in table.data for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows(table.data)
    write_atomic(path, text.getvalue())
