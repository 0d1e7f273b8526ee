"""The house style of plots: every device in the same colour everywhere, readable on white, on black and in print.

Backgrounds are transparent and text is a grey with contrast enough on both white and black. Colours are those of Okabe
and Ito (2008), which colour-blind readers can tell apart; a second mark, the shape, repeats what the colour says.
"""

from __future__ import annotations

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
    its status. Returns a matplotlib Figure.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    panels = _panels(experiment, records)
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
                _draw(axis, place, point, low)
        axis.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=20))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        if high / low > 200:
            axis.xaxis.set_major_locator(LogLocator(base=10, numticks=12))
        axis.set_xlabel("seconds per epoch (less is faster; hollow: computing alone)")
    return figure


def _draw(axis: Any, place: int, point: dict, low: float) -> None:
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
    computing = f", computing {tables.seconds(point['compute'])}" if point.get("compute") else ""
    axis.annotate(
        tables.seconds(point["value"]) + computing,
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
        words = [f"{heading.lower()} {config[key]}" for key, heading in layout.settings.items() if key in config]
        title = ", ".join(words)
        return panels.setdefault(title[:1].upper() + title[1:], [])

    seen = set()
    for value in published.values(experiment=experiment).to_dict("records"):
        point = {"label": value["device"], "colour": value["device"], "ours": False, "value": value["si"]}
        if value["metric"] == "epoch_s":
            point["status"] = value["printed"]
            key = (value["device"], str(value["config"]))
            if key not in seen:  # a row that is printed twice is one device
                panel(value["config"]).append(point)
            seen.add(key)
    for repeats in tables.groups(tables.comparable(records)):
        first, epoch = repeats[0], tables.combined(repeats, "epoch_s")
        compute = tables.combined(repeats, "compute_epoch_s")
        kind = "cpu" if first["backend"] == "cpu" else "gpu"
        panel(first["config"]).append(
            {
                "label": tables.chip_name(first),
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
