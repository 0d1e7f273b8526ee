"""How much of its peak each device reaches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pomology.report.figures.points import Line, Mark, points_figure
from pomology.report.figures.style import styled
from pomology.report.summary import Reach, percent

PANELS = {
    "measured": "This machine's devices, of their best plain matrix product in this run",
    "published": "The articles' GPUs, of their published peaks",
}
CAPTION = (
    "A row is a device, a mark a model that it has trained, the upright stroke its peak, which is 100 %: of this "
    "machine the best plain matrix product of this run; of the articles' GPUs the published one, which is cores times "
    "clock on paper and so harder to reach; of their processors none was found. Filled: operations counted on paper "
    "over the whole time at a setting of the article, the same for all where they share one, with the loading of data "
    "and whatever else is in it. Hollow: this machine's computing alone, which no article prints. Every rate and "
    "setting is in the notebook summary."
)


@styled
def peaks_figure(known: Sequence[Reach]) -> Any:
    """A row for each device with a mark for each model, and behind it the median. Returns a matplotlib Figure."""
    panels: dict[str, list[Line]] = {}
    for reach in known:
        marks = [Mark(share) for share in reach.whole.values()]
        marks += [Mark(share, "hollow") for share in reach.alone.values()]
        count = len(reach.whole or reach.alone)
        models = f"median of {count} models" if count > 1 else "one model"
        words = f"{percent(reach.median)}, {models}{'' if reach.whole else ', computing alone'}"
        line = Line(reach.device, (reach.source, reach.role), words, marks, 1.0)
        panels.setdefault(PANELS[reach.source], []).append(line)
    return points_figure(panels, "% of the peak (left is slow for its peak)", shares=True)
