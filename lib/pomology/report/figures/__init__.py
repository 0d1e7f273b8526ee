"""One figure per kind of result, and which an experiment has."""

from typing import Any

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


def draw(about: Declaration, records: list) -> Any:
    """The figure of an experiment, in the form that suits it, as a matplotlib Figure."""
    kind = products_figure if "operation" in about.headings else article_figure
    return KINDS.get(about.metric, kind)(about, records)
