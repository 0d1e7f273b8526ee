"""One figure per kind of result, and which an experiment has."""

from typing import Any

from pomology.report.declaration import Declaration
from pomology.report.figures.heatmap import products_figure
from pomology.report.figures.memory import memory_figure, sustained_figure
from pomology.report.figures.points import article_figure
from pomology.results.frame import of_records
from pomology.results.record import Record

# Figures of what only records hold, as raw times and traces, by the metric that is drawn.
OF_RECORDS = {"footprint_slope_bytes": memory_figure, "rate_left": sustained_figure}


def draw(about: Declaration, records: list[Record]) -> Any:
    """Return the figure of an experiment, in the form that suits it, as a matplotlib Figure."""
    if about.metric in OF_RECORDS:
        return OF_RECORDS[about.metric](about, records)
    kind = products_figure if "operation" in about.headings else article_figure
    return kind(about, of_records(records))
