"""Which figure an experiment has."""

from __future__ import annotations

from typing import Any

from pomology.articles import layout as articles_layout
from pomology.report.figures.article import epoch_figure, products_figure
from pomology.report.figures.memory import memory_figure
from pomology.report.figures.roofline import roofline_figure
from pomology.report.figures.summary import summary_figure


def draw(experiment: str, records: list[dict]) -> Any:
    """The figure of an experiment, in the form that suits it. Returns a matplotlib Figure."""
    if experiment == "summary":
        return summary_figure(records)
    if articles_layout.LAYOUTS[experiment].everything:
        return roofline_figure(records)
    if articles_layout.experiment_of(experiment) == "memory_over_time":
        return memory_figure(records)
    kind = products_figure if articles_layout.experiment_of(experiment) == "blas" else epoch_figure
    return kind(experiment, records)
