"""All devices on one axis."""

from __future__ import annotations

from typing import Any

from pomology import format
from pomology.report import summary
from pomology.report.figures.style import COLOURS, GREY, STYLE, _framework

ROLE_COLOURS = {
    ("published", "cpu"): COLOURS["M1 Ultra CPU"],
    ("published", "gpu"): COLOURS["M1 Ultra GPU"],
    ("published", "rival"): COLOURS["2070 Super CUDA"],
    ("measured", "cpu"): COLOURS["this machine, cpu"],
    ("measured", "gpu"): COLOURS["this machine, gpu"],
}

ROLE_NAMES = {
    ("published", "cpu"): "the articles' processors",
    ("published", "gpu"): "the articles' Apple GPUs",
    ("published", "rival"): "the articles' NVIDIA GPUs",
    ("measured", "cpu"): "this machine's processor",
    ("measured", "gpu"): "this machine's GPU",
}

COMPACT_INCHES, COMPACT_POINTS = 5.2, 10  # where a phone shows it 340 pixels wide, text is still 9 pixels high

ROLE_MARKS = {("published", "cpu"): "^", ("published", "gpu"): "o", ("published", "rival"): "s"}  # else a diamond


def summary_figure(records: list[dict], compact: bool = False) -> Any:
    """What every device achieves on every workload, on one logarithmic axis, with its peak and its best share of it.

    A panel for each workload, a line for each device and framework, a mark for each of its settings. Circles are the
    articles' devices and diamonds this machine's, with their 95 % intervals. Returns a matplotlib Figure.

    compact: for the top of a page, also on a phone: a line for each workload that the articles have timed (of a run
    with none of these, for all that it has), a mark for each device at its fastest, and its share of the peak beside.
    """
    if compact:
        return _compact_figure(summary.rates(records))
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    panels = _summary_panels(summary.rates(records))
    heights = [len(lines) + 1.1 for lines in panels.values()]
    drawn = [one for lines in panels.values() for line in lines.values() for one in line]
    ends = [value / 1e12 for one in drawn for value in (one.flops_per_s, one.peak_flops_per_s) if value]
    low, high = min(ends), max(ends)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 0.9 + 0.23 * sum(heights)), layout="constrained")
        axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for axis, (title, lines) in zip(axes, panels.items(), strict=True):
            axis.set_title(title, loc="left", fontsize=10, color=GREY)
            axis.set_xscale("log")
            axis.set_xlim(low / 1.6, high * 2 * (high / low) ** 0.25)  # room for the words behind the last mark
            axis.set_ylim(len(lines) - 0.4, -0.6)
            axis.set_yticks(range(len(lines)), list(lines), fontsize=8)
            axis.grid(axis="x", which="major")
            axis.tick_params(axis="y", length=0)
            axis.xaxis.set_minor_locator(NullLocator())  # hundreds of strokes, of no use
            for place, line in enumerate(lines.values()):
                _draw_rates(axis, place, line)
        axis.xaxis.set_major_locator(LogLocator(base=10, numticks=12))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axis.set_xlabel("achieved TFLOP/s (more is faster); upright: the peak")
        keys = [key for key in ROLE_COLOURS if any((one.source, one.role) == key for one in drawn)]
        handles = [
            Line2D([], [], linestyle="none", marker=_rate_mark(key[0]), color=ROLE_COLOURS[key], label=ROLE_NAMES[key])
            for key in keys
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _compact_figure(rates: list[summary.Rate]) -> Any:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    theirs = {one.workload for one in rates if one.source == "published"}
    ours = {one.workload for one in rates if one.source == "measured"}
    fastest: dict[tuple, summary.Rate] = {}
    for one in sorted(rates, key=lambda one: one.flops_per_s):
        if one.workload in theirs or not ours & theirs:
            fastest[one.workload, one.source, one.role, one.device] = one
    shown = list(fastest.values())
    drawn = {one.workload for one in shown}
    lines = [name for name in dict.fromkeys(one.workload for one in rates) if name in drawn]
    keys = [key for key in ROLE_COLOURS if any((one.source, one.role) == key for one in shown)]
    # Within a line, from top to bottom: this machine's processor and GPU far apart, since each has its share behind it.
    order = [("measured", "cpu"), *(key for key in ROLE_COLOURS if key[0] == "published"), ("measured", "gpu")]
    places = {key: 0.45 + 0.11 * number for number, key in enumerate(order)}
    with matplotlib.rc_context(STYLE | {"font.size": COMPACT_POINTS}):
        figure = Figure(figsize=(COMPACT_INCHES, 1.4 + 0.5 * len(lines)), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        left.set_xscale("log")
        for axis, title in ((left, "trillion operations a second"), (right, "share of the peak")):
            axis.set_title(title, loc="left", fontsize=COMPACT_POINTS, color=GREY)
            axis.set_ylim(len(lines), 0)
            axis.yaxis.set_major_locator(FixedLocator(range(len(lines))))
            axis.tick_params(axis="y", length=0, labelleft=False)
            axis.grid(which="major")
            axis.spines["left"].set_visible(False)
        for number, name in enumerate(lines):
            words = summary.WORKLOADS.get(name, name.replace("_", " "))
            left.text(0, number + 0.06, words, transform=left.get_yaxis_transform(), va="top", fontsize=COMPACT_POINTS)
        for one in shown:
            _draw_compact(left, right, one, lines.index(one.workload) + places.get((one.source, one.role), 0.66))
        left.xaxis.set_major_locator(LogLocator(base=10, numticks=12))
        left.xaxis.set_minor_locator(NullLocator())
        left.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        right.set_xlim(-0.03, max([1.0, *(one.share_high or one.share for one in shown if one.share)]) * 1.04)
        right.xaxis.set_major_locator(FixedLocator([0, 0.5, 1]))
        right.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))
        looks = [{"marker": ROLE_MARKS.get(key, "D"), "color": ROLE_COLOURS[key]} for key in keys]
        handles = [
            Line2D([], [], linestyle="none", markersize=5, label=ROLE_NAMES[key], **look)
            for key, look in zip(keys, looks, strict=True)
        ]
        form = {"ncols": 2, "frameon": False, "fontsize": COMPACT_POINTS, "handletextpad": 0.2}
        figure.legend(handles=handles, loc="outside lower left", **form)
    return figure


def _draw_compact(left: Any, right: Any, one: summary.Rate, height: float) -> None:
    """One device at its fastest on one workload. Rates are in TFLOP/s."""
    key = (one.source, one.role)
    colour, mark = ROLE_COLOURS.get(key, GREY), ROLE_MARKS.get(key, "D")
    for axis, value, low, high in (
        (left, one.flops_per_s / 1e12, one.low and one.low / 1e12, one.high and one.high / 1e12),
        (right, one.share, one.share_low, one.share_high),
    ):
        if value is None:
            continue
        if low and high:
            axis.plot([low, high], [height] * 2, color=colour, linewidth=2)
        axis.plot([value], [height], mark, color=colour, markersize=5)
    if one.source == "measured" and one.share is not None:
        words = f"{format.significant(100 * one.share, 2)} %"
        place = {"transform": right.get_yaxis_transform(), "ha": "left", "va": "center"}
        right.text(1.03, height, words, fontsize=COMPACT_POINTS, color=colour, **place)


def _summary_panels(rates: list[summary.Rate]) -> dict[str, dict[str, list[summary.Rate]]]:
    """Title of a panel -> name of a line -> its rates; this machine's own workloads share the last panel."""
    several = {(one.workload, one.framework) for one in rates}
    panels: dict[str, dict[str, list[summary.Rate]]] = {}
    for one in rates:
        known = one.workload in summary.WORKLOADS
        kind = "CPU" if one.role == "cpu" else "GPU"
        words = [one.device] if known else [one.workload.replace("_", " "), kind]
        if sum(workload == one.workload for workload, _ in several) > 1:
            words.append(_framework(one.framework))
        words += [one.precision] if one.precision != "fp32" else []
        panel = panels.setdefault(summary.WORKLOADS.get(one.workload, summary.MEASURED_ONLY), {})
        panel.setdefault(", ".join(words), []).append(one)
    return panels


def _rate_mark(source: str) -> str:
    return "D" if source == "measured" else "o"


def _draw_rates(axis: Any, place: int, line: list[summary.Rate]) -> None:
    """One device on one workload. Rates are in TFLOP/s."""
    best = max(line, key=lambda one: one.flops_per_s)
    colour, mark = ROLE_COLOURS.get((best.source, best.role), GREY), _rate_mark(best.source)
    # The share stands behind all that is drawn, a wide interval too.
    right, peak = max(one.high or one.flops_per_s for one in line) / 1e12, best.peak_flops_per_s
    if peak:
        ends = [min(one.flops_per_s for one in line) / 1e12, peak / 1e12]
        axis.plot(ends, [place] * 2, color=GREY, linewidth=0.6)
        axis.plot([peak / 1e12], [place], "|", color=GREY, markersize=9, markeredgewidth=1.6)
        right = max(right, peak / 1e12)
    for one in line:
        if one.low and one.high:
            axis.plot([one.low / 1e12, one.high / 1e12], [place] * 2, color=colour, linewidth=2.5)
        axis.plot([one.flops_per_s / 1e12], [place], mark, color=colour, markersize=5.5, alpha=0.85)
    share = f"{format.significant(100 * best.share, 2)} %" if best.share is not None else "no peak known"
    form = {"xytext": (8, 0), "textcoords": "offset points", "va": "center", "fontsize": 8, "color": GREY}
    axis.annotate(share, (right, place), **form)
