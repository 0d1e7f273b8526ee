"""The house style of plots: every device in the same colour everywhere, readable on white, on black and in print.

Backgrounds are transparent and text is a grey with contrast enough on both white and black. Colours are those of Okabe
and Ito (2008), which colour-blind readers can tell apart; a second mark, the shape, repeats what the colour says.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pomology import published, tables, write_whole

GREY = "#767676"
COLOURS = {
    "M1 Ultra CPU": "#56B4E9",
    "M1 Ultra GPU": "#0072B2",
    "2070 Super CUDA": "#009E73",
    "this machine, cpu": "#D55E00",
    "this machine, gpu": "#CC79A7",
}
STYLE = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "text.color": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "grid.color": GREY,
    "grid.alpha": 0.25,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 10,
    "text.parse_math": False,  # a chip's name is text, whatever is in it
    "svg.hashsalt": "pomology",  # the same data give the same file
}


def epoch_figure(experiment: str, records: list[dict]) -> Any:
    """Seconds per epoch of every device, a panel for each row of the article's settings, on one logarithmic axis.

    A filled mark is the whole epoch with its 95 % interval, a hollow one the computing alone; what has no time shows
    its status. An experiment whose layout names another metric shows that. Returns a matplotlib Figure.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    layout = tables.LAYOUTS[experiment]
    panels = _panels(experiment, records) or [("Nothing was measured that can be drawn", [])]
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
                _draw(axis, place, point, low, layout.show)
        axis.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=20))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / layout.unit:,.10g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        if high / low > 200:
            axis.xaxis.set_major_locator(LogLocator(base=10, numticks=12))
        axis.set_xlabel(layout.axis)
    return figure


PRODUCT_COLOURS = {
    ("torch", "cpu"): "#D55E00",
    ("torch", "gpu"): "#CC79A7",
    ("mlx", "cpu"): "#E69F00",
    ("mlx", "gpu"): "#009E73",
}
PRODUCT_MARKS = {"fp32": "o", "fp16": "s", "bf16": "^"}
OPERATIONS = {
    "matmul": "Matrix times matrix (figure 5)",
    "matvec": "Matrix times vector (figure 6)",
    "vjp": "Vector-Jacobian product (figure 7)",
}


def draw(experiment: str, records: list[dict]) -> Any:
    """The figure of an experiment, in the form that suits it. Returns a matplotlib Figure."""
    kind = products_figure if tables.experiment_of(experiment) == "blas" else epoch_figure
    return kind(experiment, records)


def products_figure(experiment: str, records: list[dict]) -> Any:
    """Achieved FLOP/s of every product, a panel for each operation: the colour is framework and device, the mark the
    precision. What has no number is a cross at the foot of its panel. Returns a matplotlib Figure.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    layout = tables.LAYOUTS[experiment]
    cases = tables.groups(tables.comparable(records, layout.metric))
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
                first, found = repeats[0], tables.combined(repeats, layout.metric)
                number = series.index((first["framework"], first["backend"], first["precision"]))
                place = names.index(_product_name(first)) + (number + 0.5) / len(series) * 0.7 - 0.35
                _mark(axis, place, first, found, layout.unit)
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


def _style(framework: str, backend: str, precision: str) -> dict[str, Any]:
    colour = PRODUCT_COLOURS.get((framework, "cpu" if backend == "cpu" else "gpu"), GREY)
    return {"color": colour, "marker": PRODUCT_MARKS.get(precision, "D"), "linestyle": "none", "markersize": 5}


def _mark(axis: Any, place: float, record: dict, found: dict | None, unit: float) -> None:
    style = _style(record["framework"], record["backend"], record["precision"])
    if found is None:
        style |= {"marker": "x", "transform": axis.get_xaxis_transform(), "clip_on": False}
        axis.plot([place], [0.03], **style)
        return
    axis.plot([place], [found["value"] / unit], **style)
    if found["low"] and found["high"]:
        axis.plot([place] * 2, [found["low"] / unit, found["high"] / unit], color=style["color"], linewidth=1)


def _key(framework: str, backend: str, precision: str) -> Any:
    from matplotlib.lines import Line2D

    label = f"{tables.FRAMEWORKS.get(framework, framework)}, {backend}, {precision}"
    return Line2D([], [], label=label, **_style(framework, backend, precision))


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


def _panels(experiment: str, records: list[dict]) -> list[tuple[str, list[dict]]]:
    """For each row of settings, in the article's order, the points to draw."""
    layout = tables.LAYOUTS[experiment]
    panels: dict[str, list[dict]] = {}

    def panel(config: dict) -> list[dict]:
        apart = {key: heading for key, heading in layout.settings.items() if key not in layout.together}
        words = [f"{heading.lower()} {config[key]}" for key, heading in apart.items() if key in config]
        title = ", ".join(words)
        return panels.setdefault(title[:1].upper() + title[1:] or "In the article", [])

    seen = set()
    for value in published.values(experiment=tables.experiment_of(experiment)).to_dict("records"):
        point = {"label": value["device"], "colour": value["device"], "ours": False, "value": value["si"]}
        if value["metric"] in (layout.metric, "status"):  # what has no number is shown as the words that are printed
            point["status"] = value["printed"] or value["note"]
            key = (value["device"], str(value["config"]))
            if key not in seen:  # a row that is printed twice is one device
                panel(value["config"]).append(point)
            seen.add(key)
    for other in layout.derived:
        for value in published.values(experiment=other.experiment).to_dict("records"):
            if value["metric"] == other.metric and value["si"]:
                version = value["framework"].partition(" ")[2][:4]
                point = {"label": f"{value['device']}, {version}", "colour": value["device"], "ours": False}
                panel(other.config).append(point | {"value": other.flops / value["si"]})
    for repeats in tables.groups(tables.comparable(records, layout.metric)):
        first, epoch = repeats[0], tables.combined(repeats, layout.metric)
        compute = tables.combined(repeats, f"compute_{layout.metric}")
        kind = "cpu" if first["backend"] == "cpu" else "gpu"
        shared = [key for key in layout.together if key in first["config"]]
        shared = [f"{layout.settings[key].lower()} {first['config'][key]}" for key in shared]
        panel(first["config"]).append(
            {
                "label": ", ".join([tables.chip_name(first), *shared]),
                "colour": f"this machine, {kind}",
                "ours": True,
                "value": epoch and epoch["value"],
                "low": epoch and epoch["low"],
                "high": epoch and epoch["high"],
                "compute": compute and compute["value"],
                "status": repeats[-1]["status"],
            }
        )
    return list(panels.items())


def pictures(images: Any, titles: Any = ()) -> Any:
    """A row of pictures (arrays of height x width, or height x width x 3 between 0 and 1), for a look at the data."""
    import matplotlib
    from IPython.display import SVG
    from matplotlib.figure import Figure

    images = list(images)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(0.8 * len(images), 1.0), layout="constrained")
        for number, axis in enumerate(figure.subplots(1, len(images), squeeze=False)[0]):
            axis.imshow(images[number], cmap="gray", interpolation="nearest")
            axis.set_axis_off()
            if number < len(titles):
                axis.set_title(titles[number], fontsize=8)
    return SVG(data=svg(figure))


def svg(figure: Any) -> str:
    """A figure as an SVG element."""
    import io

    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context(STYLE):
        # The last digits of what the layout solver finds vary; they would end up in the names of clip paths.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for axis in figure.axes:
            axis.set_position([round(bound, 4) for bound in axis.get_position().bounds])
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def show(figure: Any, path: Path) -> Any:
    """Save a figure as SVG, whole or not at all, and give what a notebook displays."""
    from IPython.display import SVG

    text = svg(figure)
    write_whole(path, text)
    return SVG(data=text)
