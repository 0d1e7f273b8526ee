"""Tables with texts for people and numbers for files, and the report's templates."""

import functools
import itertools
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pomology.format import with_interval
from pomology.measure.estimate import Estimate
from pomology.paths import RESOURCES, write_atomic
from pomology.results import cases, metrics

NARROWEST = 12  # characters of a column that wraps
MOST_ROWS = 40  # of a table that is shown as a whole
PAGE = RESOURCES / "page"  # templates and the style sheet

# Notes under tables of times.
SOFTWARE = (
    "Published and measured times have software of different years, which alone can make a slower "
    "chip the faster one."
)
YEARS = f"In brackets after a device: the version of its framework, and the year. {SOFTWARE}"
# Mark in a cell -> what it means.
INTERVALS = {
    "±": (
        "± is half of a 95 % confidence interval. With several repeats, each in its own process, "
        "it is the interval of the typical process, made from the differences between processes "
        "(Student's t); a rare slow process may lie outside it. A disturbed repeat is left out "
        "where two others are clean. With one repeat ± is the variation within that process; "
        "another process differs by more (`make reproduce REPEATS=3` measures that), and ratios "
        "have the bounds of run-to-run variation, or none. Wide or one-sided intervals have their "
        "ends in brackets."
    ),
    " seen)": (
        "“seen”: the lower and higher of two repeats, or, in one run, the lowest and highest of "
        "fewer than 20 single steps or calls."
    ),
    "about ": "“about”: an estimate without an interval.",
}
ENDS = re.compile(r"\(\S.* to \S.*\)")  # in brackets, another form of ±


@functools.cache
def template(name: str) -> Any:
    """Return a Jinja template of the report, with autoescape."""
    import jinja2

    loader = jinja2.FileSystemLoader(PAGE)
    return jinja2.Environment(autoescape=True, loader=loader, trim_blocks=True).get_template(name)


class Row(NamedTuple):
    """A row of a table: texts by heading, numbers for a file, and its kind, which has a colour.

    folded: it stands apart, behind a click, with the number of such rows by their status.
    excerpt: its number from 1 on in the excerpt of a long table, which is above all rows; or 0.
    """

    cells: dict[str, str]
    data: dict[str, Any] | None = None
    kind: Literal["published", "measured", "other", "plain"] = "plain"
    folded: bool = False
    excerpt: int = 0


@dataclass(eq=False)
class Table:
    """A table for people, without its empty columns.

    rows: all with the same headings in the same order. notes: sentences under the table. rates:
    number of a row -> device kind, precision and FLOP/s of its case, of which `shares.filled` makes
    shares of the measured peaks. folded: whether a notebook shows its title only, until a click.
    """

    title: str
    rows: Sequence[Row]
    notes: Sequence[str] = ()
    rates: Mapping[int, tuple[str, str, Estimate]] = field(default_factory=dict)
    folded: bool = False

    def __post_init__(self):
        self.data = [row.data for row in self.rows if row.data]  # numbers for a file
        self.columns = columns_of(self.rows)
        excerpt = [row for row in self.rows if row.excerpt]
        self.excerpt = sorted(excerpt, key=lambda row: row.excerpt)

    @property
    def is_long(self) -> bool:
        """Whether the table has too many rows to be read, and no excerpt."""
        return len(self.rows) > MOST_ROWS and not self.excerpt

    def html(self, styled: bool = False) -> str:
        """Return the table as HTML, which needs the report's style sheet unless `styled`."""
        return template("table.html.j2").render(table=self, styled=styled)

    def grid(self) -> str:
        """Return the cells of the table as HTML, without its title and its notes."""
        apart = [row for row in self.rows if row.folded]
        statuses = Counter(row.data["status"] for row in apart if row.data)
        texts = {
            "table": self,
            "shown": [row for row in self.rows if not row.folded],
            "excerpt_columns": columns_of(self.excerpt),
            "apart": apart,
            "apart_columns": columns_of(apart),
            "statuses": counted(statuses),
        }
        return template("grid.html.j2").render(texts).strip()

    __html__ = html  # for Jinja templates

    def _repr_html_(self) -> str:
        return self.html(styled=True)

    def __str__(self) -> str:
        """Return the table as plain text with aligned columns."""
        grid, widths = self._grid_and_widths()
        lines = ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in grid]
        return "\n".join([self.title, "", *lines, "", *self.notes])

    __repr__ = __str__

    def _grid_and_widths(self) -> tuple[list[list[str]], list[int]]:
        """Return the cells of each line, headings first, and the width of each column."""
        cells = ([in_one_line(row.cells[name]) for name in self.columns] for row in self.rows)
        grid = [self.columns, *cells]
        return grid, [max(map(len, column)) for column in zip(*grid, strict=True)]

    def text(self, width: int) -> str:
        """Return the table as plain text in a width: the widest columns and the notes wrap."""
        grid, widths = self._grid_and_widths()
        between = 2 * (len(widths) - 1)
        while sum(widths) + between > width and max(widths) > NARROWEST:
            widths[widths.index(max(widths))] -= 1
        lines = [line for cells in grid for line in _wrapped(cells, widths)]
        notes = [line for note in self.notes for line in textwrap.wrap(note, width)]
        return "\n".join([self.title, "", *lines, "", *notes])


def columns_of(rows: Sequence[Row]) -> list[str]:
    """Return the headings under which one of the rows has a text."""
    headings = rows[0].cells if rows else ()
    return [name for name in headings if any(row.cells[name] for row in rows)]


def in_lines(*lines: str) -> str:
    """Return the text of a cell with lines, those that are "" left out.

    In HTML the first one is bold. Plain text has `first: second; third` in one line.
    """
    return "\n".join(line for line in lines if line)


def in_one_line(cell: str) -> str:
    """Return the text of a cell without its lines, see `in_lines`."""
    return cell.replace("\n", ": ", 1).replace("\n", "; ")


def counted(statuses: Counter[str]) -> str:
    """Return counted statuses as `2 too slow, 1 too big`."""
    counts = statuses.most_common()
    return ", ".join(f"{count} {cases.in_words(status)}" for status, count in counts)


def intervals(rows: Sequence[Row]) -> list[str]:
    """Return what the marks of intervals mean that the cells of rows have."""
    texts = [text for row in rows for text in row.cells.values()]
    marks = {mark for mark in INTERVALS if any(mark in text for text in texts)}
    if any(ENDS.search(text) and " seen)" not in text for text in texts):
        marks.add("±")
    return [words for mark, words in INTERVALS.items() if mark in marks]


def _wrapped(cells: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    """Yield the lines of a row whose cells wrap at the widths of their columns."""
    columns = [textwrap.wrap(cell, width) for cell, width in zip(cells, widths, strict=True)]
    for parts in itertools.zip_longest(*columns, fillvalue=""):
        yield "  ".join(map(str.ljust, parts, widths)).rstrip()


def save(table: Table, path: Path) -> None:
    """Write a table's cells as HTML, and its numbers, if any, as CSV.

    The page of a run adds the title and the notes. path: without a suffix.
    """
    write_atomic(path.with_suffix(".html"), table.grid())
    _write_numbers(table, path)


def save_page(table: Table, path: Path) -> None:
    """Write a table as a page of its own, and its numbers as CSV. path: without a suffix."""
    page = f'<!DOCTYPE html><meta charset="utf-8">{table.html(styled=True)}'
    write_atomic(path.with_suffix(".html"), page)
    _write_numbers(table, path)


def _write_numbers(table: Table, path: Path) -> None:
    if table.data:
        import pandas

        frame = pandas.DataFrame(table.data, dtype=object)
        write_atomic(path.with_suffix(".csv"), frame.to_csv(index=False))


def value_text(metric: str, value: Estimate, heading: str = "", in_process: str = "") -> str:
    """Return a value with its interval and unit for a cell under a heading.

    in_process: see `with_interval`.
    """
    unit = "" if value.unit == "count" else value.unit
    show = functools.partial(metrics.Metric(metric).show, heading=heading, unit=unit)
    return with_interval(value, show, in_process)


def published_table(values: Sequence[dict], title: str = "Values in the article") -> Table:
    """Return a table of published values as printed, one per row."""
    settings = dict.fromkeys(key for value in values for key in value["config"])
    rows = []
    for value in values:
        cells = {
            "Part of the article": value["item"],
            "Device": value["device"],
            **{metrics.words(key): str(value["config"].get(key, "")) for key in settings},
            "Quantity": metrics.words(metrics.Metric(value["metric"]).heading),
            "As printed": value["printed"],
            "Note": value["note"],
        }
        rows.append(Row(cells))
    return Table(title, rows)


def numbers(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    """Return a value as columns of a file, with the bounds of its interval if it has one."""
    row = {name: estimate and estimate.value}
    if estimate and estimate.low is not None:
        row |= {f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    return row
