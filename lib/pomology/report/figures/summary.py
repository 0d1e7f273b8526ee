"""All devices on one axis: what they achieve, and how much of its peak each reaches."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pomology.format import one_line
from pomology.report import summary
from pomology.report.declaration import Declaration
from pomology.report.figures.points import Line, Mark, points_figure
from pomology.report.figures.style import styled
from pomology.report.table import grouped
from pomology.results import cases
from pomology.results.record import Record

PANELS = {
    "measured": "This machine's devices, of their best measured rate in this run",
    "published": "The articles' GPUs, of their published peaks",
}


@styled
def summary_figure(_: Declaration, records: list[Record]) -> Any:
    """What every device achieves on every workload, on one logarithmic axis, with its peak and its best share of it.

    A panel for each workload, in which this machine's own share the last; a line for each device and framework, a mark
    for each of its settings, with its 95 % interval where it was measured, hollow of computing alone.
    """
    rates = summary.rates(records)
    frameworks = Counter(workload for workload, _ in {(rate.workload, rate.framework) for rate in rates})

    def line_of(rate: summary.Rate) -> tuple[str, str]:
        kind = "CPU" if rate.role == "cpu" else "GPU"
        words = [rate.device] if rate.workload in summary.WORKLOADS else [rate.workload.replace("_", " "), kind]
        if frameworks[rate.workload] > 1:
            words.append(cases.framework_name(rate))
        words += [rate.precision] if rate.precision != "fp32" else []
        return summary.WORKLOADS.get(rate.workload, "Timed on this machine only"), ", ".join(words)

    panels: dict[str, list[Line]] = {}
    for settings in grouped(rates, line_of):
        whole = [rate for rate in settings if not rate.settings.endswith(summary.COMPUTING)]
        best = max(whole or settings, key=lambda rate: rate.rate.value)
        panel, label = line_of(best)
        share = summary.percent(best.share.value) if best.share else "no peak known"
        marks = [Mark(rate.rate, "filled" if rate in whole else "hollow") for rate in settings]
        line = Line(one_line(label, 48), (best.source, best.role), share, marks, best.peak_flops_per_s)
        panels.setdefault(panel, []).append(line)
    label = "achieved TFLOP/s (more is faster); upright: the peak; %: the best share of it"
    return points_figure(panels, label, 1e12)


@styled
def peaks_figure(known: Sequence[summary.Reach]) -> Any:
    """A row for each device with a mark for each model, and behind it the median. Returns a matplotlib Figure."""
    panels: dict[str, list[Line]] = {}
    for reach in known:
        marks = [Mark(share) for share in reach.whole.values()]
        marks += [Mark(share, "hollow") for share in reach.alone.values()]
        count = len(reach.whole or reach.alone)
        models = f"median of {count} models" if count > 1 else "one model"
        words = f"{summary.percent(reach.median)}, {models}{'' if reach.whole else ', computing alone'}"
        line = Line(reach.device, (reach.source, reach.role), words, marks, 1.0)
        panels.setdefault(PANELS[reach.source], []).append(line)
    return points_figure(panels, "% of the peak (left is slow for its peak)", shares=True)
