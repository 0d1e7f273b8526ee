"""All devices on one axis."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pomology.format import one_line
from pomology.report import summary
from pomology.report.figures.points import Line, Mark, points_figure
from pomology.report.figures.style import styled
from pomology.report.table import grouped
from pomology.results import cases
from pomology.results.record import Record


@styled
def summary_figure(records: list[Record]) -> Any:
    """What every device achieves on every workload, on one logarithmic axis, with its peak and its best share of it.

    A panel for each workload, a line for each device and framework, a mark for each of its settings, with its 95 %
    interval where it was measured. Returns a matplotlib Figure.
    """
    label = "achieved TFLOP/s (more is faster); upright: the peak; %: the best share of it"
    return points_figure(_panels(summary.rates(records)), label, 1e12)


def _panels(rates: list[summary.Rate]) -> dict[str, list[Line]]:
    """A line for each device; this machine's own workloads share the last panel. Hollow: computing alone."""
    frameworks = Counter(workload for workload, _ in {(rate.workload, rate.framework) for rate in rates})

    def line_of(rate: summary.Rate) -> tuple[str, str]:
        kind = "CPU" if rate.role == "cpu" else "GPU"
        words = [rate.device] if rate.workload in summary.WORKLOADS else [rate.workload.replace("_", " "), kind]
        if frameworks[rate.workload] > 1:
            words.append(cases.framework_name(rate))
        words += [rate.precision] if rate.precision != "fp32" else []
        return summary.WORKLOADS.get(rate.workload, summary.MEASURED_ONLY), ", ".join(words)

    panels: dict[str, list[Line]] = {}
    for settings in grouped(rates, line_of):
        whole = [rate for rate in settings if not rate.settings.endswith(summary.COMPUTING)]
        best = max(whole or settings, key=lambda rate: rate.rate.value)
        panel, label = line_of(best)
        share = summary.percent(best.share.value) if best.share else "no peak known"
        marks = [Mark(rate.rate, "filled" if rate in whole else "hollow") for rate in settings]
        line = Line(one_line(label, 48), (best.source, best.role), share, marks, best.peak_flops_per_s)
        panels.setdefault(panel, []).append(line)
    return panels
