"""Which figure an experiment has."""

from __future__ import annotations

from typing import Any

from pomology.report import declaration
from pomology.report.declaration import Declaration
from pomology.report.figures.article import epoch_figure, products_figure
from pomology.report.figures.memory import memory_figure
from pomology.report.figures.roofline import roofline_figure
from pomology.report.figures.summary import summary_figure

# By the metric that is drawn.
KINDS = {
    "share_of_peak": summary_figure,
    "share_of_roof": roofline_figure,
    "footprint_slope_bytes": memory_figure,
}


def draw(experiment: str | Declaration, records: list[dict]) -> Any:
    """The figure of an experiment, in the form that suits it. Returns a matplotlib Figure."""
    about = declaration.of(experiment)
    if about.metric in KINDS:
        return KINDS[about.metric](records)
    return (products_figure if "operation" in about.headings else epoch_figure)(about, records)
