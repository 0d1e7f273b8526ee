"""Which figure an experiment has."""

from __future__ import annotations

from typing import Any

from pomology.articles.layout import LAYOUTS, experiment_of
from pomology.report.figures.article import article_figure
from pomology.report.figures.costs import costs_figure
from pomology.report.figures.heatmap import products_figure
from pomology.report.figures.memory import memory_figure
from pomology.report.figures.roofline import roofline_figure
from pomology.report.figures.summary import summary_figure

KINDS = {
    "points": article_figure,
    "products": products_figure,
    "costs": costs_figure,
    "memory": lambda layout, experiment, records: memory_figure(records),
    "roofline": lambda layout, experiment, records: roofline_figure(records),
    "summary": lambda layout, experiment, records: summary_figure(records),
}


def draw(experiment: str, records: list[dict]) -> Any:
    """The figure of an experiment, in the form that it declares. Returns a matplotlib Figure."""
    layout = LAYOUTS[experiment]
    return KINDS[layout.figure](layout, experiment_of(experiment), records)
