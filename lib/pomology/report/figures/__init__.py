"""One figure per kind of result, and which an experiment has."""

from collections.abc import Callable, Sequence
from typing import Any

from pomology.report import declaration
from pomology.report.declaration import Declaration
from pomology.report.figures.article import article_figure, costs_figure
from pomology.report.figures.heatmap import products_figure
from pomology.report.figures.memory import memory_figure, sustained_figure
from pomology.report.figures.roofline import roofline_figure
from pomology.report.figures.summary import summary_figure

# By the metric that is drawn.
KINDS = {
    "flops_per_s_per_usd": costs_figure,
    "footprint_slope_bytes": memory_figure,
    "rate_left": sustained_figure,
    "share_of_roof": roofline_figure,
    "share_of_peak": summary_figure,
}


def of_this_machine(about: Declaration) -> Callable | None:
    """What draws this machine alone, with no mark for other people's runs; None where there is a line a device."""
    return KINDS.get(about.metric, products_figure if "operation" in about.headings else None)


def draw(experiment: str | Declaration, records: list, others: Sequence[list] = ()) -> Any:
    """The figure of an experiment, in the form that suits it. others: the records of other people's runs, which those
    figures show that have a line for each device. Returns a matplotlib Figure."""
    about = declaration.of(experiment)
    drawn = of_this_machine(about)
    return drawn(about, records) if drawn else article_figure(about, records, others)
