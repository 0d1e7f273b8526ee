"""A table: rows of texts for people, the same as numbers for a file; and the templates."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pomology.format import quantity, with_interval
from pomology.measure.estimate import Estimate
from pomology.paths import RESOURCES, write_atomic
from pomology.report import peaks
from pomology.results import metrics
from pomology.results.cases import FLAGS

PAGE = RESOURCES / "page"  # templates and the style sheet

# Notes under tables of times.
SOFTWARE = (
    "Between the published times and this machine's are years of software, which alone can make "
    "a slower chip the faster one."
)
YEARS = f"In brackets behind a device: the version of its framework, and the year. {SOFTWARE}"
INTERVALS = (
    "± is the 95 % interval: between repeats, each in a process of its own, where there are "
    "several; else within this run, and another may differ by more (REPEATS=5 tells how much). "
    "“About”: of fewer than 6 steps or calls."
)


@functools.cache
def _templates() -> Any:
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        autoescape=True, loader=jinja2.FileSystemLoader(PAGE), trim_blocks=True
    )
    environment.globals["style"] = Markup((PAGE / "style.css").read_text(encoding="utf-8"))
    return environment


def filled(template: str, **values: Any) -> str:
    """Return one of the kit's templates with what it shows; texts are escaped there."""
    return _templates().get_template(template).render(values)


@dataclass(frozen=True)
class Row:
    """One line of a table; its kind is its ground."""

    cells: tuple[str, ...]
    kind: Literal["published", "measured", "other", "plain"] = "plain"


@dataclass(frozen=True)
class Table:
    """A table for people. notes: stand behind the rows. data: the rows as numbers, for a file."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    data: tuple[dict, ...] = field(default=(), repr=False)

    @classmethod
    def of(
        cls, title: str, columns: Iterable[str], lines: Iterable[tuple], notes: Iterable[str] = ()
    ) -> Table:
        """Return the table of lines, each its cells, its numbers and perhaps its kind.

        Cells are texts in the order of the columns, or by heading; then no column is left empty.
        """
        lines = list(lines)
        columns = tuple(columns)
        if lines and isinstance(lines[0][0], dict):
            used = {name for texts, *_ in lines for name, text in texts.items() if text}
            columns = tuple(name for name in columns if name in used)
            lines = [([each[0].get(name, "") for name in columns], *each[1:]) for each in lines]
        rows = tuple(Row(tuple(cells), *kind) for cells, _, *kind in lines)
        data = tuple(numbers for _, numbers, *_ in lines)
        return cls(title, columns, rows, tuple(filter(None, notes)), data)

    def html(self, styled: bool = False) -> str:
        """Return the table as markup, which looks as its page does, or `styled` by itself."""
        return filled("table.html.j2", table=self, styled=styled)

    __html__ = html  # what a template asks for

    def _repr_html_(self) -> str:
        return self.html(styled=True)

    def __str__(self) -> str:
        """In a terminal: each column as wide as its longest cell."""
        grid = [self.columns, *(row.cells for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
        lines = ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in grid]
        return "\n".join([self.title, "", *lines, "", *self.notes])

    __repr__ = __str__


def save(table: Table, place: Path) -> None:
    """Write a table as HTML, and its numbers as CSV where it has any. place: without an ending."""
    style = (PAGE / "table.css").read_text(encoding="utf-8")
    page = f'<!DOCTYPE html><meta charset="utf-8"><style>{style}</style>\n{table.html()}\n'
    write_atomic(place.with_suffix(".html"), page)
    if any(table.data):
        import pandas

        frame = pandas.DataFrame(list(table.data), dtype=object)
        write_atomic(place.with_suffix(".csv"), frame.to_csv(index=False))


def saved_html(place: Path) -> str:
    """Return the markup of a table that `save` has written."""
    return place.read_text(encoding="utf-8").partition("</style>\n")[2]


def grouped(items: Iterable[Any], key: Callable[[Any], Any]) -> list[list]:
    """Return those of one key together, in the order in which they appear."""
    groups: dict[Any, list] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def value_text(metric: str, value: Estimate, heading: str = "") -> str:
    """Return a value with its interval and unit, as it stands below a heading."""
    if metric == peaks.SHARE:
        return peaks.percent(value)
    if metrics.metric(metric).unit:
        return with_interval(value, metrics.show(metric, heading))
    show = functools.partial(quantity, unit="" if value.unit == "count" else value.unit)
    # A slope may be 0, of which no share is an interval: as for ratios, its bounds are shown.
    return with_interval(value.replace(unit="") if metric.endswith(metrics.SLOPES) else value, show)


def ends(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    """Return the bounds of an interval as columns of a file, where there are any."""
    if estimate is None or estimate.low is None:
        return {}
    return {f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def notes_of_flags(flags: Iterable[str]) -> list[str]:
    """Return a note for each flag, with its meaning."""
    return [f"{flag}: {FLAGS.get(flag, flag)}." for flag in sorted(set(flags))]
