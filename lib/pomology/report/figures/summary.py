"""All devices on one axis."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pomology.format import significant
from pomology.report import summary
from pomology.report.figures.points import Line, Mark, draw_marks, points_figure
from pomology.report.figures.style import COLOURS, DEVICES, device_key, figure_of, plain_ticks, styled
from pomology.report.table import grouped
from pomology.results import cases
from pomology.results.record import Record

COMPACT_INCHES, COMPACT_POINTS = 5.2, 10  # where a phone shows it 340 pixels wide, text is still 9 pixels high


@styled
def summary_figure(records: list[Record], compact: bool = False) -> Any:
    """What every device achieves on every workload, on one logarithmic axis, with its peak and its best share of it.

    A panel for each workload, a line for each device and framework, a mark for each of its settings, with its 95 %
    interval where it was measured. Returns a matplotlib Figure.

    compact: for the top of a page, also on a phone: a line for each workload that the articles have timed (of a run
    with none of these, for all that it has), a mark for each device at the same setting (`summary.alike`), a hollow one
    for what this machine computes alone, and its share of the peak beside.
    """
    rates = summary.rates(records)
    if compact:
        return _compact_figure(rates)
    label = "achieved TFLOP/s (more is faster); upright: the peak; %: the best share of it"
    return points_figure(_panels(rates), label, 1e12)


def _panels(rates: list[summary.Rate]) -> dict[str, list[Line]]:
    """A line for each device; this machine's own workloads share the last panel."""
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
        share = f"{significant(100 * best.share.value, 2)} %" if best.share else "no peak known"
        marks = [Mark(rate.rate, "filled" if rate in whole else "hollow") for rate in settings]
        line = Line(label, (best.source, best.role), share, marks, best.peak_flops_per_s)
        panels.setdefault(panel, []).append(line)
    return panels


def _compact_figure(rates: list[summary.Rate]) -> Any:
    from matplotlib.ticker import FixedLocator, PercentFormatter

    whole, measured = summary.alike(rates), {rate.workload for rate in rates if rate.source == "measured"}
    published = {rate.workload for rate in whole if rate.source == "published"}
    chosen = published if measured & published else published | measured
    alone = summary.computing(rates, chosen)
    names = [name for name in dict.fromkeys(rate.workload for rate in rates) if name in chosen]
    # Within a line, from top to bottom: this machine's processor and GPU far apart, since each has its share behind it.
    order = [
        DEVICES["measured", "cpu"],
        *(name for about, name in DEVICES.items() if about[0] == "published"),
        DEVICES["measured", "gpu"],
    ]
    figure = figure_of(COMPACT_INCHES, 1.4 + 0.5 * len(names))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    rows = []
    for rate in (*whole, *alone):
        device = DEVICES[rate.source, rate.role]
        place = names.index(rate.workload) + 0.45 + 0.09 * order.index(device)
        rows.append((device, place, rate, "hollow" if rate in alone else "filled"))
    last: dict[float, tuple] = {place: row for row in reversed(rows) for place in row[1:2]}
    for device, place, rate, look in last.values():  # the whole time, where there is one
        if rate.share and rate.source == "measured":
            share = f"{significant(100 * rate.share.value, 2)} %"
            form = {"transform": right.get_yaxis_transform(), "va": "center", "color": COLOURS[device]}
            right.text(1.03, place, share if look == "filled" else f"({share})", **form)
    reach = [value for *_, rate, _ in rows for value in (rate.rate.value, rate.rate.low, rate.rate.high) if value]
    shares = [rate.share for *_, rate, _ in rows if rate.share]
    left.set(xscale="log", xlim=(min(reach, default=1e12) / 2, max(reach, default=1e12) * 2))
    right.set_xlim(-0.03, max([1.0, *(share.high or share.value for share in shares)]) * 1.04)
    draw_marks(left, [(device, place, [Mark(rate.rate, look)]) for device, place, rate, look in rows], size=30)
    shared = [(device, place, [Mark(rate.share, look)]) for device, place, rate, look in rows if rate.share]
    draw_marks(right, shared, size=30)
    for axis, title in ((left, "trillion operations a second"), (right, "share of the peak")):
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
    device_key(figure, (device for device, *_ in rows), **form)
    return figure
