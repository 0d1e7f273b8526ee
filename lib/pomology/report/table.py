"""A table: rows, headings and notes, as text, HTML and CSV; and the templates of the kit's pages."""

from __future__ import annotations

import csv
import functools
import html
import io
import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from pomology.measure.estimate import Estimate
from pomology.paths import RESOURCES, write_atomic
from pomology.results.cases import FLAGS

PAGE = RESOURCES / "page"  # templates and the style sheet
TERMINAL, GAP = 100, "  "  # characters of a line of text, and between two columns
# Between a number and its unit no line ends; before its interval one may.
BOUND = re.compile(r"(?<=\d) (?=(?!to\b)[^\W\d_]|%)|(?<=±) ")

# Notes under tables of published times.
SOFTWARE = (
    "Between the published times and this machine's are years of software, which alone can make a slower chip the "
    "faster one."
)
YEARS = f"In brackets behind a device: the version of its framework, as far as it is known, and the year. {SOFTWARE}"


@functools.cache
def _templates() -> Any:
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        autoescape=True, loader=jinja2.FileSystemLoader(PAGE), trim_blocks=True
    )
    environment.globals["style"] = Markup((PAGE / "style.css").read_text(encoding="utf-8"))
    environment.filters["text"] = lambda text: Markup(html.escape(text))
    environment.filters["cell"] = lambda text: Markup(
        BOUND.sub("\N{NO-BREAK SPACE}", html.escape(text))
    )
    return environment


def filled(template: str, **values: Any) -> str:
    """One of the kit's templates with what it shows; texts are escaped there."""
    return _templates().get_template(template).render(values)


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
        cls,
        title: str,
        columns: Iterable[str],
        lines: Iterable[tuple],
        notes: Iterable = (),
        meaning: Iterable = (),
    ) -> Table:
        """Of lines, each its cells, its numbers and perhaps its kind; an empty note is none."""
        lines = list(lines)
        rows = tuple(Row(tuple(cells), *kind) for cells, _, *kind in lines)
        notes, meaning = (tuple(filter(None, texts)) for texts in (notes, meaning))
        return cls(title, tuple(columns), rows, notes, tuple(line[1] for line in lines), meaning)

    def html(self, styled: bool = False) -> str:
        """The table as markup, which looks as the page that it stands on does, or `styled` by itself."""
        main = self.columns.index(self.main) if self.main in self.columns[1:] else 0
        return filled("table.html.j2", table=self, main=main, styled=styled)

    __html__ = html  # what a template asks for

    def _repr_html_(self) -> str:
        return self.html(styled=True)

    def __str__(self) -> str:
        """In lines of `TERMINAL` characters: cells are wrapped, or where words are too long, a row is a list."""
        grid = [self.columns, *(row.cells for row in self.rows)]
        columns = list(zip(*grid, strict=True))
        widths = [max(map(len, column)) for column in columns]
        least = [
            max(len(word) for cell in column for word in cell.split() or [""]) for column in columns
        ]
        most = TERMINAL - len(GAP) * (len(widths) - 1)
        while sum(widths) > most and (
            wide := [n for n, width in enumerate(widths) if width > least[n]]
        ):
            widths[max(wide, key=widths.__getitem__)] -= 1
        lines = []
        if sum(widths) <= most:
            grid.insert(1, tuple("-" * width for width in widths))
            for cells in grid:
                pairs = zip(cells, widths, strict=True)
                parts = zip_longest(
                    *(textwrap.wrap(*pair, break_long_words=False) for pair in pairs), fillvalue=""
                )
                lines += [GAP.join(map(str.ljust, line, widths)).rstrip() for line in parts] or [""]
        else:
            for row in self.rows:
                first, *rest = zip(self.columns, row.cells, strict=True)
                texts = (f"{GAP}{heading}: {cell}" for heading, cell in rest if cell)
                lines += [
                    first[1],
                    *(textwrap.fill(text, TERMINAL, subsequent_indent=2 * GAP) for text in texts),
                ]
        return "\n".join([self.title, *self.meaning, "", *lines, *self.notes])

    __repr__ = __str__


def save(table: Table, place: Path) -> None:
    """Write a table as HTML, and its numbers as CSV where it has any. place: without an ending."""
    style = (PAGE / "table.css").read_text(encoding="utf-8")
    page = f'<!DOCTYPE html><meta charset="utf-8"><style>{style}</style>\n{table.html()}\n'
    write_atomic(place.with_suffix(".html"), page)
    if table.data:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(dict.fromkeys(key for row in table.data for key in row)))
        writer.writeheader()
        writer.writerows(table.data)
        write_atomic(place.with_suffix(".csv"), text.getvalue())


def saved_html(place: Path) -> str:
    """Return the markup of a table that `save` has written."""
    return place.read_text(encoding="utf-8").partition("</style>\n")[2]


def grouped(items: Iterable[Any], key: Callable[[Any], Any]) -> list[list]:
    """Those of one key together, in the order in which they appear."""
    groups: dict[Any, list] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def ends(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    """The bounds of an interval as columns of a file, where there are any."""
    if estimate is None or estimate.low is None:
        return {}
    return {f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def notes_of_flags(flags: Iterable[str]) -> list[str]:
    """Return a note for each flag, with its meaning."""
    return [f"{flag}: {FLAGS.get(flag, flag)}." for flag in sorted(set(flags))]
