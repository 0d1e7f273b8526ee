"""The house style of plots: every device in the same colour everywhere, readable on white, on black and in print.

Backgrounds are transparent and text is a grey with contrast enough on both white and black. Colours are those of Okabe
and Ito (2008), which colour-blind readers can tell apart; a second mark, the shape, repeats what the colour says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pomology.articles import published
from pomology.report import costs, declaration
from pomology.report.declaration import Declaration
from pomology.report.figures.style import COLOURS, GREY, STYLE, _key, _style
from pomology.results import cases as results_cases
from pomology.results import metrics

MOST_PANELS = 30  # of a figure: more take minutes to lay out, and nobody looks at them


def epoch_figure(experiment: str | Declaration, records: list[dict]) -> Any:
    """Seconds per epoch of every device, a panel for each row of the article's settings, on one logarithmic axis.

    A filled mark is the whole epoch with its 95 % interval, a hollow one the computing alone; what has no time shows
    its status. An experiment whose layout names another metric shows that. Returns a matplotlib Figure.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    about = declaration.of(experiment)
    drawn = metrics.metric(about.metric)
    panels = costs.panels(records) if about.metric == "flops_per_s_per_usd" else _panels(about, records)
    panels, more = panels[:MOST_PANELS], len(panels) - MOST_PANELS
    panels = panels or [("Nothing was measured that can be drawn", [])]
    heights = [len(points) + 1.1 for _, points in panels]
    values = [
        value
        for _, points in panels
        for point in points
        for value in (point["value"], point.get("low"), point.get("high"), point.get("compute"))
        if value
    ]
    low, high = min(values, default=1.0), max(values, default=1.0)
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 0.55 + 0.27 * sum(heights)), layout="constrained")
        axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for axis, (title, points) in zip(axes, panels, strict=True):
            axis.set_title(title, loc="left", fontsize=10, color=GREY)
            axis.set_xscale("log")
            axis.set_xlim(low / 1.6, high * 2 * (high / low) ** 0.3)  # room for the words behind the last mark
            axis.set_ylim(len(points) - 0.4, -0.6)
            axis.set_yticks(range(len(points)), [point["label"] for point in points])
            axis.grid(axis="x", which="major")
            axis.tick_params(axis="y", length=0)
            for place, point in enumerate(points):
                _draw(axis, place, point, low, drawn.show)
        axis.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=20))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / drawn.scale:,.10g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        if high / low > 200:
            axis.xaxis.set_major_locator(LogLocator(base=10, numticks=12))
        axis.set_xlabel(f"{drawn.axis}; {more:,} more settings are in the table only" if more > 0 else drawn.axis)
    return figure


OPERATIONS = {
    "matmul": "Matrix times matrix (figure 5)",
    "matvec": "Matrix times vector (figure 6)",
    "vjp": "Vector-Jacobian product (figure 7)",
}


def products_figure(experiment: str | Declaration, records: list[dict]) -> Any:
    """Achieved FLOP/s of every product, a panel for each operation: the colour is framework and device, the mark the
    precision. What has no number is a cross at the foot of its panel. Returns a matplotlib Figure.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    about = declaration.of(experiment)
    cases = results_cases.groups(results_cases.comparable(records, about.metric))
    series = list(dict.fromkeys((one[0]["framework"], one[0]["backend"], one[0]["precision"]) for one in cases))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 9), layout="constrained")
        for axis, (operation, title) in zip(figure.subplots(3, 1), OPERATIONS.items(), strict=True):
            mine = [one for one in cases if one[0]["config"]["operation"] == operation]
            names = list(dict.fromkeys(_product_name(one[0]) for one in mine))
            axis.set_title(title, loc="left", fontsize=10, color=GREY)
            axis.set_yscale("log")
            axis.set_ylabel("GFLOP/s", fontsize=9)
            axis.grid(axis="y", which="major")
            axis.set_xticks(range(len(names)), names, fontsize=8, rotation=45 if len(names) > 8 else 0)
            axis.tick_params(axis="x", length=0)
            axis.set_xlim(-0.6, max(len(names), 1) - 0.4)
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
            axis.yaxis.set_minor_formatter(NullFormatter())
            for repeats in mine:
                first, found = repeats[0], results_cases.combined(repeats, about.metric)
                number = series.index((first["framework"], first["backend"], first["precision"]))
                place = names.index(_product_name(first)) + (number + 0.5) / len(series) * 0.7 - 0.35
                _mark(axis, place, first, found, metrics.metric(about.metric).scale)
            low, high = axis.get_ylim()
            if high / low < 100:
                axis.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=20))
        handles = [_key(*one) for one in series]
        if handles:
            figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _product_name(record: dict) -> str:
    wrt = {"left": " ∂a", "right": " ∂b"}.get(record["config"].get("wrt", ""), "")
    return record["config"]["shape"].replace("x", "×") + wrt


def _mark(axis: Any, place: float, record: dict, found: dict | None, unit: float) -> None:
    style = _style(record["framework"], record["backend"], record["precision"])
    if found is None:
        style |= {"marker": "x", "transform": axis.get_xaxis_transform(), "clip_on": False}
        axis.plot([place], [0.03], **style)
        return
    axis.plot([place], [found["value"] / unit], **style)
    if found["low"] and found["high"]:
        axis.plot([place] * 2, [found["low"] / unit, found["high"] / unit], color=style["color"], linewidth=1)


def _draw(axis: Any, place: int, point: dict, low: float, show: Callable[[float], str]) -> None:
    colour = COLOURS.get(point["colour"], GREY)
    if point["value"] is None:
        axis.text(low / 1.4, place, point["status"], va="center", ha="left", color=GREY, style="italic", fontsize=9)
        return
    marker = "D" if point["ours"] else "o"
    if point.get("high"):
        # An interval down to zero has no end on a logarithmic axis: it is drawn to the edge.
        ends = [max(point["low"], axis.get_xlim()[0]), point["high"]]
        axis.plot(ends, [place, place], color=colour, linewidth=2, solid_capstyle="butt")
    if point.get("compute"):
        axis.plot([point["compute"]], [place], marker, markersize=7, markerfacecolor="none", markeredgecolor=colour)
    axis.plot([point["value"]], [place], marker, markersize=7, color=colour)
    right = max(filter(None, (point["value"], point.get("high"), point.get("compute"))))
    computing = f", computing {show(point['compute'])}" if point.get("compute") else ""
    axis.annotate(
        show(point["value"]) + computing,
        (right, place),
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
        color=GREY,
    )


def _panels(about: Declaration, records: list[dict]) -> list[tuple[str, list[dict]]]:
    """For each row of settings, in the article's order, the points to draw."""
    panels: dict[str, list[dict]] = {}

    def panel(config: dict) -> list[dict]:
        apart = {key: heading for key, heading in about.headings.items() if key not in about.shared_panel}
        words = [f"{heading.lower()} {config[key]}" for key, heading in apart.items() if key in config]
        title = ", ".join(words)
        return panels.setdefault(title[:1].upper() + title[1:] or "In the article", [])

    seen = set()
    for value in published.rows(experiment=about.experiment):
        label = value["device"] or "the article"
        point = {"label": label, "colour": value["device"], "ours": False, "value": value["si"]}
        if value["metric"] in (about.metric, "status"):  # what has no number is shown as the words that are printed
            point["status"] = value["printed"] or value["note"]
            key = (value["device"], str(value["config"]))
            if key not in seen:  # a row that is printed twice is one device
                panel(value["config"]).append(point)
            seen.add(key)
    for other, settings in (about.published_rates or {}).items():
        for value in published.rows(experiment=other):
            if value["flops"] and value["si"]:
                name, _, version = value["framework"].partition(" ")
                told = version[:4] or results_cases.FRAMEWORKS.get(name.replace("pytorch", "torch"), name)
                point = {"label": f"{value['device']}, {told}", "colour": value["device"], "ours": False}
                panel(value["config"] | settings).append(point | {"value": value["flops"] / value["si"]})
    several = len({record["framework"] for record in records}) > 1
    for repeats in results_cases.groups(results_cases.comparable(records, about.metric)):
        first, epoch = repeats[0], results_cases.combined(repeats, about.metric)
        compute = results_cases.combined(repeats, f"compute_{about.metric}")
        kind = "cpu" if first["backend"] == "cpu" else "gpu"
        shared = [key for key in about.shared_panel if key in first["config"]]
        shared = [f"{about.headings[key].lower()} {first['config'][key]}" for key in shared]
        name = results_cases.chip_name(first)
        if several:
            name += f", {results_cases.FRAMEWORKS.get(first['framework'], first['framework'])}"
        label = ", ".join([name, *(words for words in shared if not words.endswith(" none"))])
        point = {"label": label, "colour": f"this machine, {kind}", "ours": True}
        found = {name.split("_")[0]: results_cases.combined(repeats, name) for name in about.series}
        for part, rate in found.items():
            if rate:
                bounds = {key: rate[key] for key in ("value", "low", "high")}
                panel(first["config"]).append(point | bounds | {"label": f"{label}, {part}"})
        # The article's own case shows why it has no number; each smaller one that was too big as well need not.
        if any(found.values()) or (about.series and first["scaled"]):
            continue
        panel(first["config"]).append(
            point
            | {
                "value": epoch and epoch["value"],
                "low": epoch and epoch["low"],
                "high": epoch and epoch["high"],
                "compute": compute and compute["value"],
                "status": repeats[-1]["status"],
            }
        )
    return list(panels.items())
