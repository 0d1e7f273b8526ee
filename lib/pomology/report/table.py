"""A table: rows of texts for people, the same as numbers for a file; and the templates."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pomology.format import quantity, with_interval
from pomology.measure.estimate import Estimate
from pomology.paths import RESOURCES, write_atomic
from pomology.report import peaks
from pomology.results import metrics

PAGE = RESOURCES / "page"  # templates and the style sheet

# Notes under tables of times.
SOFTWARE = (
    "Between the published times and this machine's are years of software, which alone can make "
    "a slower chip the faster one."
)
YEARS = f"In brackets behind a device: the version of its framework, and the year. {SOFTWARE}"
INTERVALS = (
    "± is a 95 % interval. Of several repeats, each in a process of its own, it is Student's t of "
    "their mean, and too narrow where a slow process is so rare that no repeat met it. Else it is "
    "within this run, and another may differ by more (REPEATS=5 tells how much). “Seen”: the least "
    "and the greatest of fewer than 20 steps or calls. “About”: of a single one."
)


@functools.cache
def template(name: str) -> Any:
    """Return one of the kit's Jinja templates, which escape the texts that they show."""
    import jinja2

    loader = jinja2.FileSystemLoader(PAGE)
    return jinja2.Environment(autoescape=True, loader=loader, trim_blocks=True).get_template(name)


class Row(NamedTuple):
    """A line of a table: its texts by heading, the same as numbers for a file, and its ground."""

    cells: dict[str, str]
    data: dict[str, Any] | None = None
    kind: Literal["published", "measured", "other", "plain"] = "plain"


@dataclass(eq=False)
class Table:
    """A table for people, without the columns in which no row has a text.

    rows: all with the same headings, in the same order. notes: sentences behind the rows.
    """

    title: str
    rows: Sequence[Row]
    notes: Sequence[str] = ()

    def __post_init__(self):
        self.data = [row.data for row in self.rows if row.data]  # the numbers for a file
        headings = self.rows[0].cells if self.rows else ()
        self.columns = [name for name in headings if any(row.cells[name] for row in self.rows)]

    def html(self, styled: bool = False) -> str:
        """Return the table as markup, which looks as its page does, or `styled` by itself."""
        return template("table.html.j2").render(table=self, styled=styled)

    __html__ = html  # what a template asks for

    def _repr_html_(self) -> str:
        return self.html(styled=True)

    def __str__(self) -> str:
        """In a terminal: each column as wide as its longest cell."""
        grid = [self.columns, *([row.cells[name] for name in self.columns] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
        lines = ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in grid]
        return "\n".join([self.title, "", *lines, "", *self.notes])

    __repr__ = __str__


def save(table: Table, place: Path) -> None:
    """Write a table as HTML, and its numbers as CSV where it has any. place: without an ending."""
    page = f'<!DOCTYPE html><meta charset="utf-8">{table.html(styled=True)}'
    write_atomic(place.with_suffix(".html"), page)
    if table.data:
        import pandas

        frame = pandas.DataFrame(table.data, dtype=object)
        write_atomic(place.with_suffix(".csv"), frame.to_csv(index=False))


def value_text(metric: str, value: Estimate, heading: str = "") -> str:
    """Return a value with its interval and unit, as it stands below a heading."""
    if metric == peaks.SHARE:
        return peaks.percent(value)
    kind = metrics.Metric(metric)
    if kind.unit:
        return with_interval(value, functools.partial(kind.show, heading=heading))
    show = functools.partial(quantity, unit="" if value.unit == "count" else value.unit)
    # A slope may be 0, of which no share is an interval: as for ratios, its bounds are shown.
    return with_interval(value.replace(unit="") if metric.endswith(metrics.SLOPES) else value, show)


def numbers(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    """Return a value as columns of a file, with the bounds of its interval where it has one."""
    row = {name: estimate and estimate.value}
    if estimate and estimate.low is not None:
        row |= {f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    return row
