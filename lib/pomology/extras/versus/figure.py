"""A figure of how many times as fast one device is as another, workload by workload."""

from __future__ import annotations

from typing import Any

from pomology.extras.versus import pairs
from pomology.extras.versus.answer import Answer
from pomology.format import significant
from pomology.measure.estimate import Estimate
from pomology.report import figures
from pomology.report.figures import Line

REMARK = "line: the range of several configurations, or the 90 % interval of a prediction"


def figure(found: Answer) -> Any:
    """Return a figure with a panel of published ratios, and one of predicted ones."""
    panels = {
        "Published times of the same work": [
            _line(title, summary.mean, summary.low, summary.high)
            for title, summary in pairs.by_workload(found.counted)
        ],
        "Predicted, not measured": [
            _line(ratio.title, ratio.value, *ratio.bounds, kind=("ratio", "predicted"))
            for ratio in found.ratios
        ],
    }
    drawn = {title: lines for title, lines in panels.items() if lines}
    return figures.points_figure(drawn, found.direction, remark=REMARK, equal=True)


def _line(
    title: str,
    value: float,
    low: float,
    high: float,
    kind: tuple[str, str] = ("ratio", "published"),
) -> Line:
    ranged = (low, high) if low < high else (None, None)
    # A range or an interval of 90 %, which the remark explains.
    estimate = Estimate(value, "×", *ranged, how="estimated", covers="none")
    return Line(title, kind, f"{significant(value)}×", [estimate])
