"""Draw figures: values of devices in panels, curves over time, and their common style.

A device has the same colour in all figures. Colours are those of Okabe and Ito (2008), which
colour-blind readers can distinguish; the marker's shape has the same meaning as its colour.
"""

import io
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pomology.articles import published
from pomology.measure.estimate import Estimate
from pomology.paths import RESOURCES, read_csv
from pomology.report.article import Declaration, comparable
from pomology.results import cases, metrics
from pomology.results.record import Record
from pomology.results.repeats import Repeats

GREY = "#767676"
MOST_LINES = 20  # of a panel
NEAREST = 3  # devices on each side of this machine's that a crowded panel keeps
MOST_BEYOND = 3.0  # factor beyond the values at which intervals are cut
COLUMNS = 3  # of a grid of panels
WITHOUT = "cases of this machine without a value: "
WIDTH = 10  # inches; the report shows it on 1,200 pixels, or on 700 on a phone

# Colours and markers by kind (`published`, `measured`, or `other` for another run) and role, and by
# framework and kind of device. Their shades also differ in greyscale.
LOOKS = {(line["kind"], line["role"]): line for line in read_csv(RESOURCES / "colours.csv")}
OTHER = LOOKS["published", ""]  # the default colour and marker
DASHES = {"footprint": "-", "resident": "-.", "allocated": "--", "reserved": ":"}


# What a bar is of, by `Estimate.covers`.
BARS = {
    "repeats": "95 % interval between processes",
    "run": "95 % interval within this process",
    "seen": "range seen",
}


# What an open marker means, by kind of line.
OPEN = {"measured": "compute only", "published": "a known problem"}


class Line(NamedTuple):
    """A device's line of a panel.

    kind: `published`, `measured` or `other`, and the device's role. words: text after the markers,
    or in place of them. filled, unfilled: values with filled and open markers.
    """

    label: str
    kind: tuple[str, str]
    words: str
    filled: Sequence[Estimate] = ()
    unfilled: Sequence[Estimate] = ()


def article_figure(declaration: Declaration, records: Iterable[Record]) -> Any:
    """Return a figure of a metric on an article's devices and this machine's.

    A filled marker is the whole time with its interval, an open one compute only. What has no value
    is counted below the axis. Over a setting, if one is declared, devices are lines.
    """
    if declaration.over:
        return lines_figure(declaration, records)
    measured = comparable(records, declaration.metric)
    declaration = declaration.of_cases(case.config for case in measured)
    measured_titles = {_title(declaration, case.config) for case in measured}
    # Articles print some rows twice; other sources, in this machine's panels, have the best first.
    panels: dict[str, list[Line]] = defaultdict(list)
    for row in declaration.printed:
        title = _title(declaration, row["config"])
        line = _published(declaration, row)
        labels = [drawn.label for drawn in panels.get(title, ())]
        in_a_panel = title in measured_titles or not declaration.beside
        if line and line.label not in labels and in_a_panel:
            panels[title].append(line)
    for case in measured:
        for line in _measured(declaration, case):
            panels[_title(declaration, case.config)].append(line)
    panels, remark = _with_marks(panels)
    metric = metrics.Metric(declaration.metric)
    return points_figure(panels, f"{_axis(metric)}{remark}", metric.scale)


def _axis(metric: metrics.Metric) -> str:
    """Return the label of a metric's axis."""
    return metric.axis or f"{metric.heading.lower()} in {metric.unit}"


def _with_marks(panels: dict[str, list[Line]]) -> tuple[dict[str, list[Line]], str]:
    """Return the panels and lines that have a mark, and what was left out in words.

    Of a panel with many devices those are drawn that are next to this machine's, and others at
    equal distances by rank.
    """
    without = [line for lines in panels.values() for line in lines if not _values(line)]
    statuses = Counter(line.words for line in without if line.kind[0] == "measured")
    images = len(without) - statuses.total()
    hidden = 0
    drawn: dict[str, list[Line]] = {}
    for title, lines in panels.items():
        marked = [line for line in lines if _values(line)]
        kept = _neighbours(marked)
        hidden += len(marked) - len(kept)
        if kept:
            drawn[title] = kept
    texts = [f"{hidden} more devices in the table"] if hidden else []
    texts += [f"{WITHOUT}{_counts(statuses)}"] if statuses else []
    texts += [f"published without a number: {images}"] if images else []
    remark = "; ".join(texts)
    return drawn, f"\n{remark}" if remark else ""


def _counts(statuses: Counter[str]) -> str:
    """Return counted statuses as `2 too-slow, 1 too-big`."""
    return ", ".join(f"{count} {status}" for status, count in statuses.most_common())


def _neighbours(lines: Sequence[Line]) -> list[Line]:
    """Return at most MOST_LINES of a panel's lines, in their order: see `_with_marks`."""
    if len(lines) <= MOST_LINES:
        return list(lines)
    own = [line for line in lines if line.kind[0] == "measured"]
    others = sorted(
        (line for line in lines if line.kind[0] != "measured"),
        key=lambda line: _values(line)[0].value,
    )
    chosen: list[Line] = []
    for line in own:
        value = _values(line)[0].value
        above = sum(_values(other)[0].value < value for other in others)
        chosen += others[max(0, above - NEAREST) : above + NEAREST]
    room = max(2, MOST_LINES - len(own) - len({id(line) for line in chosen}))
    ranks = [round(number * (len(others) - 1) / (room - 1)) for number in range(room)]
    chosen += own + [others[rank] for rank in ranks]
    wanted = {id(line) for line in chosen}
    kept = [line for line in lines if id(line) in wanted]
    # This machine stands where its speed is.
    downwards = _values(others[0])[0].value < _values(lines[0])[0].value
    return sorted(kept, key=lambda line: _values(line)[0].value, reverse=downwards)


def lines_figure(declaration: Declaration, records: Iterable[Record]) -> Any:
    """Return a figure of a metric over the setting `declaration.over`, a line for each device.

    A panel has the cases whose other settings are equal. Values have their intervals.
    """
    over = declaration.over
    measured = comparable(records, declaration.metric)
    declaration = declaration.of_cases(case.config for case in measured)
    curves: dict[str, dict[tuple, list[tuple[float, Estimate]]]] = defaultdict(dict)

    def add(config: dict, device: str, kind: tuple[str, str], value: Estimate) -> None:
        rest = {key: setting for key, setting in config.items() if key != over}
        of_panel = curves[_title(declaration, rest)]
        of_panel.setdefault((device, kind), []).append((config[over], value))

    for row in declaration.printed:
        if row["metric"] == declaration.metric and row["si"] and over in row["config"]:
            add(row["config"], row["device"], ("published", row["role"]), Estimate(row["si"]))
    for case in measured:
        value = case.values.get(declaration.metric)
        if value and value.value > 0 and over in case.config:
            device = f"{case.device}, {case.framework}"
            add(case.config, device, ("measured", case.kind), value)
    statuses = Counter(case.status for case in measured if case.status != "ok")
    heading = declaration.headings.get(over, metrics.words(over)).lower()
    remark = f"{WITHOUT}{_counts(statuses)}" if statuses else ""
    return _draw_lines(curves, heading, metrics.Metric(declaration.metric), remark)


def _draw_lines(
    curves: dict[str, dict[tuple, list[tuple[float, Estimate]]]],
    label: str,
    metric: metrics.Metric,
    remark: str,
) -> Any:
    """Return the figure of `lines_figure`.

    curves: panel -> (device, kind) -> its points. label: of the horizontal axes. remark: above the
    key.
    """
    if not curves:
        return nothing()
    figure, axes = grid_of(len(curves), 2.8, 1.1)
    handles = {}
    for axis, title in zip(axes.flat, curves, strict=False):  # the last row may have fewer
        dashes = itertools.cycle(("-", "--", "-.", ":"))
        for (device, kind), points in curves[title].items():
            points = sorted(points, key=lambda point: point[0])
            look = LOOKS.get(kind, OTHER)
            form = {"color": look["colour"], "marker": look["mark"], "linestyle": next(dashes)}
            places = [place for place, _ in points]
            axis.plot(places, [value.value for _, value in points], **form)
            for place, value in points:
                if value.low is not None:
                    axis.plot((place, place), value.bounds, color=look["colour"], linewidth=2)
            handles.setdefault(device, form)
        axis.set(title=title, xscale="log", yscale="log", xlabel=label)
        axis.set_xticks(sorted({place for points in curves[title].values() for place, _ in points}))
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        axis.minorticks_off()
        axis.grid(axis="y")
    for axis in axes[:, 0]:
        axis.set_ylabel(_axis(metric).replace("; open markers: compute only", ""), fontsize="small")
        plain_ticks(axis.yaxis, metric.scale)
    key(figure, handles, remark)
    return figure


def _title(declaration: Declaration, config: dict) -> str:
    """Return the title of the panel for a config."""
    parts = [
        f"{heading.lower()} {config[key]}"
        for key, heading in declaration.headings.items()
        if key in config and key not in declaration.shared_panel
    ]
    title = ", ".join(parts)
    if not title:
        return "In the article" if declaration.printed else declaration.title
    return title[:1].upper() + title[1:]


def _published(declaration: Declaration, row: dict) -> Line | None:
    """Return the line of a published value; a time becomes FLOP/s if the metric is FLOP/s."""
    if declaration.metric == "flops_per_s" and row["flops_per_s"]:
        label, value = cases.published_device(row), row["flops_per_s"]
    elif row["metric"] in (declaration.metric, "status"):
        label, value = row["device"] or "the article", row["si"]
    else:
        return None
    words = row["printed"] or row["note"]
    if value:
        words = metrics.Metric(declaration.metric).show(value)
    marks = [Estimate(value)] if value else []
    faulty = published.SERIOUS.intersection(row.get("faults", ()))
    look = {"unfilled" if faulty else "filled": marks}
    return Line(label, ("published", row["role"]), words, **look)


def _measured(declaration: Declaration, case: Repeats) -> Iterator[Line]:
    """Yield the lines of a case: one for each metric, or one with its status."""
    shared = [key for key in declaration.shared_panel if case.config.get(key, "none") != "none"]
    words = [f"{declaration.headings[key].lower()} {case.config[key]}" for key in shared]
    label = ", ".join([case.device, case.framework, *words])
    kind = ("measured", case.kind)
    series = declaration.series or (declaration.metric,)
    if not case.values.keys() & set(series):  # MLX has no times of passes
        series = (declaration.metric,)
    values = {metric: case.values[metric] for metric in series if metric in case.values}
    show = metrics.Metric(declaration.metric).show
    for metric, whole in values.items():
        if whole.value > 0:
            part_of_step = "step" if metric == declaration.metric else metric.split("_")[0]
            name = f"{label}, {part_of_step}" if declaration.series else label
            # Compute only has a marker of its own where it is below the whole time for sure.
            part = case.values.get(f"compute_{metric}")
            parts = [part] if part and part.high and part.high < whole.value else []
            yield Line(name, kind, show(whole.value), [whole], parts)
    computing = case.values.get(f"compute_{declaration.metric}")
    if not values and computing:  # of MLX, which has no loader
        yield Line(label, kind, f"{show(computing.value)}, compute only", [], [computing])
    elif not values and case.status != "ok":
        yield Line(label, kind, case.status)


def points_figure(
    panels: dict[str, list[Line]],
    label: str,
    unit: float = 1.0,
    open_means: Mapping[str, str] = OPEN,
) -> Any:
    """Return a figure of panels below each other.

    label: of the axis. unit: of its numbers. open_means: what an open marker is, by kind of line.
    """
    if not panels:
        return nothing()
    heights = [len(lines) + 1.1 for lines in panels.values()]
    figure = figure_of(WIDTH, 0.9 + 0.26 * sum(heights))
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    looks = {}
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        axis.set(title=title, ylim=(len(lines) - 0.4, -0.6), xscale="log")
        axis.set_yticks(range(len(lines)), [line.label for line in lines])
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="x")
        for line in lines:
            look = LOOKS.get(line.kind, OTHER)
            form = {"color": look["colour"], "marker": look["mark"], "linestyle": "none"}
            looks[look["name"]] = form
    drawn = [value for lines in panels.values() for line in lines for value in _values(line)]
    covers = dict.fromkeys(value.covers for value in drawn if value.low is not None)
    bars = [words for name, words in BARS.items() if name in covers]
    for kind, meaning in open_means.items():
        opened = [line for lines in panels.values() for line in lines if line.unfilled]
        if any(line.kind[0] == kind for line in opened):
            form = {"color": GREY, "marker": "o", "markerfacecolor": "none", "linestyle": "none"}
            looks[f"open: {meaning}"] = form
    if bars:
        looks[f"bars: {', or '.join(bars)}"] = {"color": GREY, "linewidth": 2}
    centres = [value.value for value in drawn]
    ends = (min(centres) / MOST_BEYOND, max(centres) * MOST_BEYOND)
    for axis, lines in zip(axes, panels.values(), strict=True):
        for row, line in enumerate(lines):
            look = LOOKS.get(line.kind, OTHER)
            _draw(axis, row, line, look["colour"], look["mark"], ends)
    left, right = axes[0].get_xlim()
    room = max(1.5, (right / left) ** 0.3)  # for words after the last marker
    axes[0].set_xlim(left, room * right)
    axes[-1].set_xlabel(label)
    plain_ticks(axes[-1].xaxis, unit)
    key(figure, looks)
    return figure


def _values(line: Line) -> list[Estimate]:
    return [*line.filled, *line.unfilled]


def ratios_figure(panels: dict[str, list[Line]], label: str) -> Any:
    """Return a figure of ratios in panels, with a line at 1; see `points_figure`."""
    figure = points_figure(panels, label)
    for axis in figure.axes:
        left, right = axis.get_xlim()
        axis.set_xlim(min(left, 0.9), max(right, 1.1))  # with the line of equal times
        axis.axvline(1, color=GREY, linewidth=0.8, linestyle="dashed")
    if panels:
        plain_ticks(figure.axes[-1].xaxis)
    return figure


def _draw(
    axis: Any, row: int, line: Line, colour: str, mark: str, ends: tuple[float, float]
) -> None:
    """Draw a line: its markers with their intervals, and its words after all of them.

    ends: where a wider interval is cut, with an arrow.
    """
    lower = row + 0.2 * bool(line.filled)  # so that no interval hides another
    marks = [(value, row, colour) for value in line.filled]
    marks += [(value, lower, "none") for value in line.unfilled]
    if not marks:  # words at the left edge
        edge = axis.get_yaxis_transform()
        axis.text(0.01, row, line.words, transform=edge, va="center", style="italic")
        return
    for value, height, fill in marks:
        if value.low is not None:
            low, high = max(value.low, ends[0]), min(value.high, ends[1])
            axis.plot((low, high), (height, height), color=colour, linewidth=2)
            for end, bound, arrow in ((low, value.low, "<"), (high, value.high, ">")):
                if end != bound:
                    axis.plot(end, height, arrow, color=colour, markersize=4)
        axis.plot(value.value, height, mark, color=colour, markerfacecolor=fill)
    right = max(min(value.high or value.value, ends[1]) for value, *_ in marks)
    axis.annotate(line.words, (right, row), (8, 0), textcoords="offset points", va="center")


def curves_figure(panels: dict[str, list[tuple]], label: str) -> Any:
    """Return a figure of panels below each other, one for each quantity.

    panels: quantity -> curves; a curve is a record, a pandas Series, and a key of DASHES or "".
    label: of the common horizontal axis. Curves of one point, and panels without any, are left out.
    """
    panels = {
        quantity: [curve for curve in curves if len(curve[1]) > 1]
        for quantity, curves in panels.items()
    }
    panels = {quantity: curves for quantity, curves in panels.items() if curves}
    if not panels:
        return nothing()
    figure = figure_of(WIDTH, 1 + 1.8 * len(panels))
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    looks = {}
    for axis, (quantity, curves) in zip(axes, panels.items(), strict=True):
        for record, values, name in curves:
            colour = LOOKS.get((record.framework, cases.kind(record.backend)), OTHER)["colour"]
            mark = "." if len(values) < 30 else ""
            axis.plot(values, color=colour, linestyle=DASHES.get(name), marker=mark)
            looks[f"{cases.framework_name(record.framework)}, {record.backend}"] = {"color": colour}
            if name:
                looks[name] = {"color": GREY, "linestyle": DASHES[name]}
        axis.set(ylabel=quantity, ylim=(0, 1.08 * axis.get_ylim()[1]))
        axis.grid(axis="y")
    axes[-1].set_xlabel(label)
    key(figure, looks)
    return figure


def grid_of(count: int, height: float, margin: float) -> tuple[Any, Any]:
    """Return a figure of so many panels in rows, with one vertical axis, and the array of axes.

    height: of a row, in inches. margin: above and below all rows.
    """
    columns = min(COLUMNS, count)
    rows = -(-count // columns)
    figure = figure_of(WIDTH, margin + height * rows)
    axes = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for axis in axes.flat[count:]:
        axis.remove()
    return figure, axes


def figure_of(width: float, height: float) -> Any:
    """Return an empty figure of a size in inches, and activate the style of all figures.

    It begins with matplotlib's defaults: a user's own settings, such as `text.usetex`, would change
    each figure, or end every notebook.
    """
    import matplotlib.style

    # pyplot keeps each figure, so a notebook would display it twice, and opens a window on a Mac.
    from matplotlib.figure import Figure

    matplotlib.style.use(["default", RESOURCES / "figures.mplstyle"])
    return Figure(figsize=(width, height), layout="constrained")


def nothing() -> Any:
    """Return a figure that says that there are no values to draw."""
    figure = figure_of(WIDTH, 0.5)
    figure.text(0.01, 0.5, "Nothing was measured that can be drawn", va="center")
    return figure


def plain_ticks(axis: Any, unit: float = 1.0) -> None:
    """Label a logarithmic axis with plain numbers. unit: of the labels, in units of the axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = sorted(axis.get_view_interval())
    subs = (1.0,) if high / low > 300 else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(base=10, subs=subs, numticks=8))
    axis.set_minor_locator(NullLocator())  # hundreds of ticks would be unreadable
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / unit:,.10g}"))


def key(figure: Any, looks: dict[str, dict], remark: str = "") -> None:
    """Draw a key below a figure.

    looks: name -> properties of its line or marker. remark: above the key.
    """
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=name, **look) for name, look in looks.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, title=remark)


def svg(figure: Any) -> str:
    """Return a figure as an SVG element for the report, with its words as text."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def png(figure: Any) -> Any:
    """Return a figure as PNG with 256 colours, which Jupyter and code hosts display."""
    import PIL.Image
    from IPython.display import Image

    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=1.5 * figure.dpi)  # for high-resolution screens
    small = io.BytesIO()
    PIL.Image.open(data).quantize(256).save(small, format="png", optimize=True)
    return Image(small.getvalue(), width=int(figure.dpi * figure.get_figwidth()))
