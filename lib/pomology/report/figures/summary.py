"""All devices on one axis."""

from __future__ import annotations

from typing import Any

from pomology import format
from pomology.report import summary
from pomology.report.figures.points import Line, Mark, draw_marks, points_figure
from pomology.report.figures.style import COLOURS, DEVICES, device_key, figure_of, plain_ticks, styled
from pomology.results import cases
from pomology.results.record import Record

COMPACT_INCHES, COMPACT_POINTS = 5.2, 10  # where a phone shows it 340 pixels wide, text is still 9 pixels high


@styled
def summary_figure(records: list[Record], compact: bool = False) -> Any:
    """What every device achieves on every workload, on one logarithmic axis, with its peak and its best share of it.

    A panel for each workload, a line for each device and framework, a mark for each of its settings, with its 95 %
    interval where it was measured. Returns a matplotlib Figure.

    compact: for the top of a page, also on a phone: a line for each workload that the articles have timed (of a run
    with none of these, for all that it has), a mark for each device at its fastest, and its share of the peak beside.
    """
    rates = summary.rates(records)
    if compact:
        return _compact_figure(rates)
    label = "achieved TFLOP/s (more is faster); upright: the peak; %: the best share of it"
    return points_figure(_panels(rates), label, 1e12, key=True)


def _panels(rates: list[summary.Rate]) -> dict[str, list[Line]]:
    """A line for each device; this machine's own workloads share the last panel."""
    frameworks: dict[str, set[str]] = {}
    for rate in rates:
        frameworks.setdefault(rate.workload, set()).add(rate.framework)
    lines: dict[tuple[str, str], list[summary.Rate]] = {}
    for rate in rates:
        known = rate.workload in summary.WORKLOADS
        kind = "CPU" if rate.role == "cpu" else "GPU"
        words = [rate.device] if known else [rate.workload.replace("_", " "), kind]
        if len(frameworks[rate.workload]) > 1:
            words.append(cases.FRAMEWORKS.get(rate.framework, rate.framework))
        words += [rate.precision] if rate.precision != "fp32" else []
        panel = summary.WORKLOADS.get(rate.workload, summary.MEASURED_ONLY)
        lines.setdefault((panel, ", ".join(words)), []).append(rate)
    panels: dict[str, list[Line]] = {}
    for (panel, label), settings in lines.items():
        best = max(settings, key=lambda rate: rate.rate.value)
        share = f"{format.significant(100 * best.share.value, 2)} %" if best.share else "no peak known"
        marks = [Mark(rate.rate) for rate in settings]
        line = Line(label, best.source, best.role, share, marks, best.peak_flops_per_s)
        panels.setdefault(panel, []).append(line)
    return panels


def _compact_figure(rates: list[summary.Rate]) -> Any:
    from matplotlib.ticker import FixedLocator, PercentFormatter

    published = {rate.workload for rate in rates if rate.source == "published"}
    measured = {rate.workload for rate in rates if rate.source == "measured"}
    fastest: dict[tuple, summary.Rate] = {}
    for rate in sorted(rates, key=lambda rate: rate.rate.value):
        if rate.workload in published or not measured & published:
            fastest[rate.workload, rate.source, rate.role, rate.device] = rate
    shown = list(fastest.values())
    names = [name for name in dict.fromkeys(rate.workload for rate in rates) if name in {one.workload for one in shown}]
    # Within a line, from top to bottom: this machine's processor and GPU far apart, since each has its share behind it.
    order = [DEVICES["measured", "cpu"], *(name for name in COLOURS if "this" not in name), DEVICES["measured", "gpu"]]
    figure = figure_of(COMPACT_INCHES, 1.4 + 0.5 * len(names))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    reach = [value for rate in shown for value in (rate.rate.value, rate.rate.low, rate.rate.high) if value]
    left.set(xscale="log", xlim=(min(reach, default=1e12) / 2, max(reach, default=1e12) * 2))
    right.set_xlim(-0.03, max([1.0, *(rate.share.high or rate.share.value for rate in shown if rate.share)]) * 1.04)
    marks: dict[Any, list] = {left: [], right: []}
    for rate in shown:
        device = DEVICES[rate.source, rate.role]
        place = names.index(rate.workload) + 0.45 + 0.09 * order.index(device)
        marks[left].append((device, place, [Mark(rate.rate)]))
        if rate.share:
            marks[right].append((device, place, [Mark(rate.share)]))
        if rate.source == "measured" and rate.share:
            words = f"{format.significant(100 * rate.share.value, 2)} %"
            form = {"va": "center", "color": COLOURS[device]}
            right.text(1.03, place, words, transform=right.get_yaxis_transform(), **form)
    for axis, title in ((left, "trillion operations a second"), (right, "share of the peak")):
        draw_marks(axis, marks[axis], size=30)
        axis.set(title=title, ylim=(len(names), 0))
        axis.yaxis.set_major_locator(FixedLocator(range(len(names))))
        axis.tick_params(axis="y", length=0, labelleft=False)
        axis.tick_params(axis="x", labelsize=COMPACT_POINTS)
        axis.grid()
        axis.spines["left"].set_visible(False)
    for number, name in enumerate(names):
        words = summary.WORKLOADS.get(name, name.replace("_", " "))
        left.text(0, number + 0.06, words, transform=left.get_yaxis_transform(), va="top")
    plain_ticks(left.xaxis, 1e12)
    right.xaxis.set_major_locator(FixedLocator([0, 0.5, 1]))
    right.xaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    form = {"loc": "outside lower left", "ncols": 2, "fontsize": COMPACT_POINTS, "handletextpad": 0.2}
    device_key(figure, (DEVICES[rate.source, rate.role] for rate in shown), **form)
    return figure
