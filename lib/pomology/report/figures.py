"""Draw figures: values of devices in panels, bars of parts, curves, and their common style.

A device has the same colour in all figures. Colours are those of Okabe and Ito (2008), which
colour-blind readers can distinguish; the marker's shape has the same meaning as its colour.
"""

from __future__ import annotations

import io
import itertools
import math
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from pomology.articles import published
from pomology.format import LARGE, sentence_case, with_about
from pomology.measure.estimate import Estimate
from pomology.paths import RESOURCES, read_csv
from pomology.report import compact_svg
from pomology.report.article import Declaration, comparable, distinct
from pomology.report.table import counted
from pomology.results import cases, metrics
from pomology.results.record import Record
from pomology.results.repeats import Repeats

# For notebooks' processes: matplotlib reads a user's own settings on import, and with
# `axes.formatter.use_locale` it cannot be imported where LC_ALL names a locale that is missing.
VARIABLES = {"MATPLOTLIBRC": str(RESOURCES / "figures.mplstyle")}
GREY = "#767676"  # of lines, with contrast enough on white and on black
INK = "#333333"  # of text, see `svg` for a dark page
HALO = 3.0  # points of the background's colour around text, half of them on each side
MOST_LINES = 20  # of a panel
IN_ORDER = 6  # lines of a panel in the article's order; more are ordered by their values
JOINED = 3  # panels of one line, from which on they are one
NEAREST = 3  # devices on each side of this machine's that a crowded panel keeps
MOST_BEYOND = 3.0  # factor beyond the values at which intervals are cut
LEAST_POINTS = 3  # of a curve
VISIBLE = 0.06  # share of an axis that an interval needs, or its marker hides it
NARROW = 4.0  # ratio of values, or of the ends of a logarithmic axis: it would have few ticks
COLUMNS = 2  # of a grid of panels
KEY_COLUMNS = 2  # one more for short names
SHORT_NAME, LONG_NAME = 13, 26  # characters; longer ones have several lines
# Settings whose values, such as `gpt2` or `fp32`, need no name before them.
SELF_EVIDENT = {"feature", "mode", "model", "precision"}
NOT_COMPARED = "*No figure: nothing published has the settings that were timed here.*"
NO_VALUE = "not measured"  # though the case ended well
WITHOUT = "cases of this machine without a value: "
SIZE = 9  # points of all text; titles have one more
# Inches. On a phone of 375 pixels a figure is 336 pixels wide, and this text 9.1 pixels high.
WIDTH = 4.6
EDGE = 0.04  # left of titles
LINE = 0.15  # of text
LEAST_ROW, BETWEEN = 0.24, 0.06  # height of a row; distance of two labels
BELOW_LABEL, UNDER_MARK = 0.1, 0.16  # from the middle of a row to its label, and to the next one's
BAR = 0.16  # height
PANEL, LOW_PANEL = 1.6, 1.4  # heights of panels with curves
# Characters of a line.
LABEL, LABEL_LINES = 22, 3  # of a row; a figure with longer labels has them above its rows
MANY, LONG_LABEL = 8, 31  # rows of a panel, whose labels have longer lines
LONGEST_WORDS = 300  # of those that stand for a figure
FULL_WIDTH = 52  # of the figure's width
TITLE = 42  # of a title, which is bold
WORDS = 15  # beside a row of markers
TICKS = 22  # of all ticks of an axis, with one between them
# Colours and markers by kind (`published`, `measured`, or `other` for another run) and role, and by
# framework and kind of device. Their shades also differ in greyscale.
LOOKS = {(line["kind"], line["role"]): line for line in read_csv(RESOURCES / "colours.csv")}
OTHER = LOOKS["published", ""]  # the default colour and marker
DASHES = {"footprint": "-", "resident": "-.", "allocated": "--", "reserved": ":"}
# Share of the colour, and hatch, of the first, second, ... part of a bar.
SHADES = ((0.8, ""), (0.35, "////"), (0.12, ""), (0.12, "...."), (0.5, "xxxx"))
LEAST_SHARE = 0.15  # of the longest bar: a part that has room for its percentage
# What the bar of a marker is of, by `Estimate.covers`.
BARS = {
    "repeats": "95 % interval between processes",
    "run": "95 % interval within this process",
    "seen": "range seen",
}


# What an open marker means, by kind of line.
OPEN = {"measured": "compute only", "published": "a known problem"}


class Line(NamedTuple):
    """A device's line of a panel.

    kind: `published`, `measured` or `other`, and the device's role. words: text beside the markers.
    filled, unfilled: values with filled and open markers. problems: why a published one is open.
    """

    label: str
    kind: tuple[str, str]
    words: str
    filled: Sequence[Estimate] = ()
    unfilled: Sequence[Estimate] = ()
    problems: Sequence[str] = ()


class Limit(NamedTuple):
    """A horizontal line across a panel, dotted without words. words: at its left end."""

    value: float
    colour: str = GREY
    words: str = ""


def article_figure(declaration: Declaration, records: Iterable[Record]) -> Any:
    """Return a figure of a metric on an article's devices and this machine's.

    A filled marker is the whole time with its interval, an open one compute only. What has no value
    is counted below the axis. Over a setting, if one is declared, devices are lines.
    """
    if declaration.over:
        return lines_figure(declaration, records)
    scale = scale_of(declaration)
    panels, remark = _with_marks(_panels(declaration, records), scale.label)
    relative = metrics.Metric(declaration.metric).unit == "×"
    return points_figure(_joined(panels), scale.label, scale.unit, remark=remark, equal=relative)


def compared_figure(declaration: Declaration, records: Iterable[Record]) -> Any:
    """Return the figure of an article if this machine's value stands next to another one's.

    Otherwise it is a sentence, since the figure would repeat the table.
    """
    panels = _panels(declaration, records).values()
    kinds = [[line.kind[0] for line in lines if _values(line)] for lines in panels]
    if any("measured" in of_panel and len(of_panel) > 1 for of_panel in kinds):
        return article_figure(declaration, records)
    return NOT_COMPARED


def rates_figure(declaration: Declaration, records: Iterable[Record]) -> Any:
    """Return the figure of an article's FLOP/s, by which smaller cases compare, too."""
    return article_figure(replace(declaration, figure="flops_per_s"), records)


def metrics_figure(
    declaration: Declaration,
    records: Iterable[Record],
    titles: Mapping[str, str],
    label: str,
    apart: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """Return a figure of several metrics of one unit, published and measured, a panel for each.

    titles: of the panels, by metric. label: of the axis. apart: kind of this machine's devices that
    have panels of their own -> what these show. A case without any value is counted once.
    """
    panels: dict[str, list[Line]] = {}
    records = list(records)
    for number, (metric, title) in enumerate(titles.items()):
        for line in itertools.chain(
            *_panels(replace(declaration, figure=metric), records).values()
        ):
            kind, role = line.kind
            own = f": {apart[role]}" if kind == "measured" and role in apart else ""
            if _values(line) or number == 0:
                panels.setdefault(f"{title}{own}", []).append(line)
    panels, remark = _with_marks(panels)
    return points_figure(panels, label, scale_of(declaration).unit, remark=remark)


def _panels(declaration: Declaration, records: Iterable[Record]) -> dict[str, list[Line]]:
    """Return the lines of published rows and of measured cases, by the title of their panel."""
    measured = comparable(records, declaration.metric)
    declaration = declaration.of_cases(case.config for case in measured)
    measured_titles = {title_of(declaration, case.config) for case in measured}
    # Articles print some rows twice; other sources, in this machine's panels, have the best first.
    panels: dict[str, list[Line]] = defaultdict(list)
    named = [] if declaration.beside else distinct([row["config"] for row in declaration.printed])
    for row in declaration.printed:
        title = title_of(declaration, row["config"])
        line = _published(declaration, row)
        shared = _shared(declaration, row["config"], named)
        line = line and line._replace(label=", ".join([line.label, *shared]))
        labels = [drawn.label for drawn in panels.get(title, ())]
        in_a_panel = title in measured_titles or not declaration.beside
        if line and line.label not in labels and in_a_panel:
            panels[title].append(line)
    for case in measured:
        for line in _measured(declaration, case):
            panels[title_of(declaration, case.config)].append(line)
    return panels


class Scale(NamedTuple):
    """How values of a metric in SI units are shown: like the column of the declaration's table.

    label: of an axis. unit: divisor of its numbers. show: value -> text with its unit.
    """

    label: str
    unit: float
    show: Callable[[float], str]


def scale_of(declaration: Declaration) -> Scale:
    """Return the scale of the metric that a declaration draws."""
    metric = metrics.Metric(declaration.metric)
    label = metric.axis or f"{metric.heading.lower()} in {metric.unit}"
    columns = declaration.metric_columns.items()
    heading = next((heading for heading, name in columns if name == declaration.metric), "")
    if heading.startswith("Minutes"):
        label = label.replace("seconds", "minutes")
        return Scale(label, 60, lambda value: metric.show(value, heading))
    condition = declaration.condition(declaration.metric)
    if condition:  # such as `compute only`
        name, bracket, better = label.partition(" (")
        label = f"{name}, {condition}{bracket}{better}"
    if declaration.metric == "throughput":
        samples = heading.lower()
        unit = f"{samples}/s"
        label = f"{samples} per second (higher is better)"
        return Scale(label, 1, lambda value: metric.show(value, unit=unit))
    if heading.endswith("(ms)"):
        return Scale(label, metric.scale, lambda value: f"{metric.show(value, heading)} ms")
    return Scale(label, metric.scale, metric.show)


def _joined(panels: dict[str, list[Line]]) -> dict[str, list[Line]]:
    """Return the panels, those of one line each joined if they are many and of one device.

    Their titles become the labels of the lines.
    """
    single = {title: lines[0] for title, lines in panels.items() if len(lines) == 1}
    labels = [line.label.split(", ") for line in single.values()]
    common = [parts[0] for parts in zip(*labels, strict=False) if len({*parts}) == 1]
    if len(single) < JOINED or not common:
        return panels
    together: dict[str, list[Line]] = {}
    for title, lines in panels.items():
        if title not in single:
            together[title] = lines
            continue
        rest = lines[0].label.split(", ")[len(common) :]
        line = lines[0]._replace(label=", ".join([title, *rest]))
        together.setdefault(", ".join(common), []).append(line)
    return together


def _with_marks(
    panels: dict[str, list[Line]], label: str = ""
) -> tuple[dict[str, list[Line]], str]:
    """Return the panels and lines that have a mark, and what was left out in words.

    Of a panel with many devices those are drawn that are next to this machine's, and others at
    equal distances by rank. More than a few have the best on top, fewer the article's order. label:
    of the axis, which says what is better; "" keeps the order, which is then that of all panels.
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
        if label and len(kept) > IN_ORDER and any(line.kind[0] != "measured" for line in kept):
            upwards = "lower is better" in label
            kept.sort(key=lambda line: _values(line)[0].value, reverse=not upwards)
        if kept:
            drawn[title] = kept
    texts = [f"{hidden} more devices in the table"] if hidden else []
    texts += [f"{WITHOUT}{counted(statuses)}"] if statuses else []
    texts += [f"published rows without a number: {images}"] if images else []
    return drawn, "; ".join(texts)


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
    return [line for line in lines if id(line) in wanted]


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
        of_panel = curves[title_of(declaration, rest)]
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
    remark = f"{WITHOUT}{counted(statuses)}" if statuses else ""
    return draw_lines(curves, heading, scale_of(declaration), remark)


def draw_lines(
    curves: Mapping[str, Mapping[tuple, Sequence[tuple[float, Estimate]]]],
    label: str,
    scale: Scale,
    remark: str = "",
    limits: Mapping[str, Mapping[str, Limit]] = MappingProxyType({}),
    alike: bool = False,
) -> Any:
    """Return a figure of values over a setting, both axes logarithmic; None without any.

    curves: panel -> (device, kind) -> its points. label: of the horizontal axes. remark: above the
    key. limits: panel -> name -> a horizontal line. alike: whether the horizontal axes
    have the same ends.
    """
    if not curves:
        return None
    figure, axes, left = grid_of(len(curves), PANEL)
    devices = dict.fromkeys(device for lines in curves.values() for device in lines)
    dashes = dict(zip(devices, itertools.cycle(("-", "--", "-.", ":")), strict=False))
    # This machine's second framework on a kind of device has open markers: a point alone has no
    # line whose dashes tell it.
    of_kind: dict[tuple, list[tuple]] = defaultdict(list)
    for device, kind in devices:
        of_kind[kind].append((device, kind))
    opened = {each for kind, own in of_kind.items() if kind[0] == "measured" for each in own[1::2]}
    handles = {}
    places_of = {
        title: {place for points in lines.values() for place, _ in points}
        for title, lines in curves.items()
    }
    all_places = set().union(*places_of.values())
    for axis, title in zip(axes, curves, strict=True):
        for (device, kind), points in curves[title].items():
            points = sorted(points, key=lambda point: point[0])
            look = LOOKS.get(kind, OTHER)
            # The looks of frameworks have no marker of their own.
            mark = look["mark"] or LOOKS["measured", kind[1]]["mark"]
            form = {"color": look["colour"], "marker": mark, "linestyle": dashes[device, kind]}
            if (device, kind) in opened:
                form["markerfacecolor"] = "none"
            places = [place for place, _ in points]
            axis.plot(places, [value.value for _, value in points], **form)
            for place, value in points:
                if value.low is not None:
                    axis.plot((place, place), value.bounds, color=look["colour"], linewidth=2)
            handles.setdefault(device, form)
        for name, limit in limits.get(title, {}).items():
            form = {"color": limit.colour, "linestyle": "solid" if limit.words else "dotted"}
            axis.axhline(limit.value, linewidth=0.8, **form)
            handles.setdefault(name, form)
        axis.set(title=title, xscale="log", yscale="log", xlabel=label)
        axis.set_xticks(_apart(sorted(all_places if alike else places_of[title])))
        if alike:
            axis.set_xlim(min(all_places) / 1.2, max(all_places) * 1.2)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        axis.minorticks_off()
        axis.grid(axis="y")
    low, high = axes[0].get_ylim()
    of_line = (high / low) ** (LINE / PANEL)  # the ratio of values a line of text apart
    if any(limit.words for of_panel in limits.values() for limit in of_panel.values()):
        axes[0].set_ylim(low, high * of_line)  # room for the highest words
    for axis, title in zip(axes, curves, strict=True):
        _write_limits(axis, limits.get(title, {}).values(), 1.2 * of_line)
    for axis in left:
        plain_ticks(axis.yaxis, scale.unit)
    # Above all panels, since a row is too low for it.
    figure.suptitle(scale.label, x=0.01, ha="left", fontsize="medium")
    points = [point for lines in curves.values() for line in lines.values() for point in line]
    bars = _key_of_bars([value for _, value in points], axes[0].yaxis)
    key(figure, handles | bars, remark)
    fit_height(figure, left, PANEL * len(left))
    return figure


def _write_limits(axis: Any, limits: Iterable[Limit], apart: float) -> None:
    """Write the words of horizontal lines above their left ends, or below if another is near.

    apart: ratio of values whose words do not meet.
    """
    form = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "size": SIZE}
    above = math.inf
    with_words = [limit for limit in limits if limit.words]
    for limit in sorted(with_words, key=lambda limit: limit.value, reverse=True):
        near = above / limit.value < apart
        place = {"xytext": (3, -2 if near else 2), "va": "top" if near else "bottom"}
        axis.annotate(limit.words, (0, limit.value), **place, **form)
        above = limit.value


def _has_bar(value: Estimate, axis: Any) -> bool:
    """Return whether an interval is wider than its marker. axis: of values, with final limits."""
    if value.low is None:
        return False
    scale = axis.get_transform()  # the logarithm, or none
    start, end = axis.get_view_interval()
    # A logarithmic axis has no place for an end below 0.
    low, high = scale.transform([max(value.low, min(start, value.value)), value.high])
    return high - low > VISIBLE * abs(scale.transform(end) - scale.transform(start))


def _key_of_bars(values: Sequence[Estimate], axis: Any) -> dict[str, dict]:
    """Return the entry of a key for intervals, also where the markers hide all of them.

    values: those of a figure. axis: see `_has_bar`.
    """
    seen = {value.covers for value in values if _has_bar(value, axis)}
    hidden = {value.covers for value in values if value.low is not None} - seen
    bars = [words for name, words in BARS.items() if name in seen]
    if bars:
        return {f"bar: {', or '.join(bars)}": {"color": GREY, "linewidth": 2}}
    behind = [words for name, words in BARS.items() if name in hidden]
    if behind:
        return {f"{', or '.join(behind)}: hidden by its marker": {"linestyle": "none"}}
    return {}


def _problem(opened: Sequence[Line]) -> str:
    """Return the known problem of published values in words; "" if there are several, or none."""
    names = {name for line in opened for name in line.problems}
    return published.FAULTS[names.pop()] if len(names) == 1 else ""


def _apart(places: Sequence[float]) -> list[float]:
    """Return the ascending places that may have a tick: not nearer than a quarter of the axis."""
    least = (places[-1] / places[0]) ** (1 / 4)
    kept = [places[-1]]
    for place in reversed(places[:-1]):
        if kept[-1] / place > least:
            kept.append(place)
    return kept[::-1]


def title_of(declaration: Declaration, config: dict) -> str:
    """Return the title of the panel for a config."""
    shown = [
        (heading, config[key])
        for key, heading in declaration.headings.items()
        if key in config and key not in declaration.shared_panel
    ]
    if not shown:
        return "In the article" if declaration.printed else declaration.title
    title = ", ".join(_setting(heading, value) for heading, value in shown)
    # A model's name, such as `gpt2-large`, has no capital letter.
    return title if shown[0][0].lower() in SELF_EVIDENT else sentence_case(title)


def _setting(heading: str, value: Any) -> str:
    """Return a setting in words: `batch size 32`, `without LoRA`, `gpt2-large`."""
    if heading.lower() in SELF_EVIDENT:
        return str(value)
    name = heading if heading[1:] != heading[1:].lower() else heading.lower()
    words = {True: f"with {name}", False: f"without {name}"}
    return words[value] if isinstance(value, bool) else f"{name} {value}"


def _published(declaration: Declaration, row: dict) -> Line | None:
    """Return the line of a published value; a time becomes a rate if the metric is one."""
    rates = {"flops_per_s": row["flops_per_s"], "throughput": row.get("throughput")}
    if rates.get(declaration.metric):
        # The version, which the table has, would make the label too long.
        label = cases.with_software(row["device"], row["framework"], "", row["year"])
        value = rates[declaration.metric]
    elif row["metric"] in (declaration.metric, "status"):
        label, value = row["device"] or "the article", row["si"]
    else:
        return None
    words = row["printed"] or row["note"]
    if value:
        words = scale_of(declaration).show(value)
    marks = [Estimate(value)] if value else []
    problems = sorted(published.SERIOUS.intersection(row.get("faults", ())))
    look = {"unfilled" if problems else "filled": marks, "problems": problems}
    return Line(label, ("published", row["role"]), words, **look)


def _shared(declaration: Declaration, config: Mapping, named: Sequence[str]) -> list[str]:
    """Return the settings whose values share a panel in words. named: those that are told."""
    return [
        _setting(declaration.headings[key], config[key])
        for key in declaration.shared_panel
        if key in named and config.get(key, "none") != "none"
    ]


def _measured(declaration: Declaration, case: Repeats) -> Iterator[Line]:
    """Yield the lines of a case: one for each metric, or one with its status."""
    shared = _shared(declaration, case.config, declaration.shared_panel)
    label = ", ".join([case.device, case.framework, *shared])
    kind = ("measured", case.kind)
    series = declaration.series or (declaration.metric,)
    if not case.values.keys() & set(series):  # MLX has no times of passes
        series = (declaration.metric,)
    values = {metric: case.values[metric] for metric in series if metric in case.values}
    show = scale_of(declaration).show

    def shown(value: Estimate) -> str:
        return with_about(value, show(value.value))

    for metric, whole in values.items():
        if whole.value > 0:
            which = "step" if metric == "flops_per_s" else metric.split("_")[0]
            name = f"{label}, {which}" if declaration.series else label
            # Compute only has a marker of its own where it is below the whole time for sure.
            part = case.values.get(f"compute_{metric}")
            parts = [part] if part and part.high and part.high < whole.value else []
            words = "".join(f"; open: {show(part.value)}" for part in parts)
            yield Line(name, kind, f"{shown(whole)}{words}", [whole], parts)
    computing = case.values.get(f"compute_{declaration.metric}")
    if not values and computing:  # of MLX, which has no loader
        yield Line(label, kind, f"{shown(computing)}, compute only", [], [computing])
    elif not values:
        yield Line(label, kind, case.status if case.status != "ok" else NO_VALUE)


def points_figure(
    panels: dict[str, list[Line]],
    label: str,
    unit: float = 1.0,
    open_means: Mapping[str, str] = OPEN,
    remark: str = "",
    equal: bool = False,
) -> Any:
    """Return a figure of panels below each other, None without values.

    The axis is logarithmic, or begins at 0 where values differ little and are no ratios.
    label: of the axis. unit: of its numbers. open_means: what an open marker is, by kind of line; a
    known problem is named if it is the only one. remark: above the key. equal: of ratios, which get
    a dashed line at 1.
    """
    if not panels:
        return None
    rows = _Rows(panels)
    figure = figure_of(WIDTH, _enough(rows.heights))
    ratios = {"height_ratios": rows.heights}
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, **ratios)[:, 0]
    looks = {}
    drawn = [value for lines in panels.values() for line in lines for value in _values(line)]
    centres = [value.value for value in drawn]
    from_zero = not equal and max(centres) < NARROW * min(centres)
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        axis.set_xscale("linear" if from_zero else "log")
        rows.draw(axis, title)
        for line in lines:
            look = LOOKS.get(line.kind, OTHER)
            form = {"color": look["colour"], "marker": look["mark"], "linestyle": "none"}
            looks[look["name"]] = form
    for kind, meaning in open_means.items():
        opened = [
            line
            for lines in panels.values()
            for line in lines
            if line.unfilled and line.kind[0] == kind
        ]
        if opened:
            mark = LOOKS.get(opened[0].kind, OTHER)["mark"]
            form = {"color": GREY, "marker": mark, "markerfacecolor": "none", "linestyle": "none"}
            looks[f"open: {_problem(opened) or meaning}"] = form
    ends = (min(centres) / MOST_BEYOND, max(centres) * MOST_BEYOND)
    for axis, lines in zip(axes, panels.values(), strict=True):
        for row, line in enumerate(lines):
            look = LOOKS.get(line.kind, OTHER)
            _draw(axis, row, line, look["colour"], look["mark"], ends)
    left, right = axes[0].get_xlim()
    if equal:
        left, right = min(left, 0.9), max(right, 1.1)
        for axis in axes:
            axis.axvline(1, color=GREY, linewidth=0.8, linestyle="dashed", zorder=1)
    axes[0].set_xlim(0 if from_zero else left, right)
    looks |= _key_of_bars(drawn, axes[0].xaxis)
    # On the right it may be as wide as the figure.
    axes[-1].set_xlabel(wrapped(label, FULL_WIDTH), loc="right")
    plain_ticks(axes[-1].xaxis, unit)
    key(figure, looks, remark)
    fit_height(figure, axes, sum(rows.heights))
    return figure


class _Rows:
    """The rows of a figure's panels.

    Labels are left of their rows, or above them if one has more than LABEL_LINES lines. The words
    of lines are a column right of the axis, whose ends are those of its values. heights: of the
    panels in inches, without titles and ticks.
    """

    def __init__(self, panels: Mapping[str, Sequence[Line | Bar]]):
        self._labels = {
            title: [wrapped(row.label, LONG_LABEL if len(rows) > MANY else LABEL) for row in rows]
            for title, rows in panels.items()
        }
        self._above = any(
            label.count("\n") >= LABEL_LINES for labels in self._labels.values() for label in labels
        )
        if self._above:
            self._labels = {
                title: [wrapped(row.label, FULL_WIDTH) for row in rows]
                for title, rows in panels.items()
            }
        self._words = {
            title: [wrapped(row.words, WORDS) if isinstance(row, Line) else "" for row in rows]
            for title, rows in panels.items()
        }
        self.heights = [len(labels) * self._height(title) for title, labels in self._labels.items()]

    def bar(self, title: str) -> float:
        """Return the height of a bar, of which a row's is 1."""
        return BAR / self._height(title)

    def _height(self, title: str) -> float:
        """Return the inches of a row. All rows of a panel have the same."""
        texts = zip(self._labels[title], self._words[title], strict=True)
        of_labels, of_words = zip(*[map(_inches, both) for both in texts], strict=True)
        if self._above:
            return BELOW_LABEL + max(UNDER_MARK + max(of_labels), BETWEEN + max(of_words))
        inches = [*map(max, of_labels, of_words)]
        # No two neighbouring labels meet.
        distances = [(one + other) / 2 for one, other in itertools.pairwise(inches)]
        return max(LEAST_ROW, BETWEEN + max(distances or inches))

    def draw(self, axis: Any, title: str) -> None:
        """Set a panel's title, labels, words and limits. Its first row is at 0, the next at 1."""
        from matplotlib.transforms import blended_transform_factory

        labels = self._labels[title]
        height = self._height(title)
        raised = BELOW_LABEL / height if self._above else 0
        bottom = len(labels) - 1 + (UNDER_MARK / height if self._above else 0.5)
        axis.set_ylim(bottom, bottom - len(labels))
        axis.set_yticks([row - raised for row in range(len(labels))], labels)
        axis.tick_params(axis="y", length=0, pad=0 if self._above else 6)
        if self._above:
            for label in axis.get_yticklabels():
                label.set(horizontalalignment="left", verticalalignment="bottom")
            axis.spines["left"].set_visible(False)  # it would touch them
        # The title begins at the figure's edge, above the labels of rows.
        heading = axis.set_title(wrapped(title, TITLE), x=EDGE / WIDTH)
        upwards = axis.transAxes + axis.titleOffsetTrans
        heading.set_transform(blended_transform_factory(axis.figure.transFigure, upwards))
        axis.grid(axis="x")
        beside = {"xycoords": axis.get_yaxis_transform(), "textcoords": "offset points"}
        with_words = [row for row, words in enumerate(self._words[title]) if words]
        for row in with_words:
            words = self._words[title][row]
            axis.annotate(words, (1, row), (6, 0), va="center", size=SIZE, **beside)


def _inches(text: str) -> float:
    """Return the height of a text in inches."""
    return LINE * (1 + text.count("\n"))


def wrapped(text: str, most: int) -> str:
    """Return a text in as few lines of so many characters as it needs, of about equal length."""
    form = {"break_long_words": False, "break_on_hyphens": False}
    lines = textwrap.wrap(text, most, **form)
    for width in range(most - 1, 0, -1):
        narrower = textwrap.wrap(text, width, **form)
        if len(narrower) > len(lines):
            break
        lines = narrower
    return "\n".join(lines)


def _enough(heights: Sequence[float]) -> float:
    """Return inches with room for panels, their titles and ticks, and a key: see `fit_height`."""
    return 3 + sum(heights) + len(heights)


def fit_height(figure: Any, axes: Sequence[Any], inches: float) -> None:
    """Change a figure's height until its axes, one below the other, have so many inches together.

    Titles, ticks and the key take the rest.
    """
    figure.draw_without_rendering()  # the sizes of texts and axes are known only then
    drawn = sum(axis.get_window_extent().height for axis in axes) / figure.dpi
    figure.set_figheight(figure.get_figheight() + inches - drawn)


def _fit_words(axis: Any) -> None:
    """Widen a horizontal axis until the words after its bars end within it.

    The figure has been drawn, so that the sizes of texts are known.
    """
    _, longest = axis.get_xlim()
    span = axis.get_window_extent().width
    wanted = longest
    for text in [text for text in axis.texts if not text.get_in_layout()]:
        end = text.xy[0]  # of the bar
        offset = text.get_window_extent().x1 - axis.transData.transform((end, 0))[0]
        # The offset stays the same while the scale is compressed.
        room = max(span - offset, span / 4)
        wanted = max(wanted, end * span / room)
    axis.set_xlim(right=wanted)


def _values(line: Line) -> list[Estimate]:
    return [*line.filled, *line.unfilled]


def ratios_figure(panels: dict[str, list[Line]], label: str) -> Any:
    """Return a figure of ratios in panels, with a line at 1; see `points_figure`."""
    return points_figure(panels, label, equal=True)


def _draw(
    axis: Any, row: int, line: Line, colour: str, mark: str, ends: tuple[float, float]
) -> None:
    """Draw a line's markers with their intervals.

    ends: where a wider interval is cut, with an arrow.
    """
    lower = row + 0.2 * bool(line.filled)  # so that no interval hides another
    marks = [(value, row, colour) for value in line.filled]
    marks += [(value, lower, "none") for value in line.unfilled]
    for value, height, fill in marks:
        if value.low is not None:
            low, high = max(value.low, ends[0]), min(value.high, ends[1])
            axis.plot((low, high), (height, height), color=colour, linewidth=2)
            for end, bound, arrow in ((low, value.low, "<"), (high, value.high, ">")):
                if end != bound:
                    axis.plot(end, height, arrow, color=colour, markersize=4)
        axis.plot(value.value, height, mark, color=colour, markerfacecolor=fill)


class Bar(NamedTuple):
    """A device's bar of a panel.

    kind: `measured` and the device's role. parts: name -> length in SI units, above 0. words: its
    total with the unit, at the end. whole: the total with its interval, which is drawn.
    """

    label: str
    kind: tuple[str, str]
    parts: Mapping[str, float]
    words: str
    whole: Estimate | None = None


def parts_figure(
    panels: dict[str, list[Bar]], label: str, unit: float = 1.0, remark: str = ""
) -> Any:
    """Return a figure of stacked bars in panels, each with an axis of its own; None without any.

    A part has the same shade and hatch in all bars, which also differ in greyscale, and its share
    of the bar in percent where there is room. label: of the axes. unit: of their numbers. remark:
    above the key, for what has no bar.
    """
    if not panels:
        return None
    rows = _Rows(panels)
    figure = figure_of(WIDTH, _enough(rows.heights))
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=rows.heights)[:, 0]
    names = dict.fromkeys(name for bars in panels.values() for bar in bars for name in bar.parts)
    shades = dict(zip(names, itertools.cycle(SHADES), strict=False))
    for axis, (title, bars) in zip(axes, panels.items(), strict=True):
        rows.draw(axis, title)
        longest = max(_end(bar) for bar in bars) / unit
        for row, bar in enumerate(bars):
            _draw_bar(axis, (row, rows.bar(title)), bar, shades, unit, longest)
        axis.set_xlim(0, longest)
        axis.locator_params(axis="x", nbins=5)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes[-1].set_xlabel(label, loc="right")
    wholes = [bar.whole for bars in panels.values() for bar in bars if bar.whole]
    covers = {whole.covers for whole in wholes if whole.low is not None}
    lines = [words for name, words in BARS.items() if name in covers]
    looks = {name: _shaded(GREY, *shades[name]) for name in names}
    if lines:
        looks[f"line: {', or '.join(lines)}"] = {"color": GREY, "linewidth": 1.5}
    key(figure, looks, remark)
    fit_height(figure, axes, sum(rows.heights))
    for axis in axes:
        _fit_words(axis)
    return figure


def _draw_bar(
    axis: Any,
    place: tuple[float, float],
    bar: Bar,
    shades: Mapping[str, tuple],
    unit: float,
    longest: float,
) -> None:
    """Draw a bar with the shares of its parts.

    place: its middle and its height. longest: bar of the panel, in units of the axis.
    """
    row, height = place
    colour = LOOKS.get(bar.kind, OTHER)["colour"]
    whole = sum(bar.parts.values())
    left = 0.0
    for name, length in bar.parts.items():
        width = length / unit
        axis.barh(row, width, height, left, **_shaded(colour, *shades[name]))
        if width > LEAST_SHARE * longest and len(bar.parts) > 1:
            percent = 100 * length / whole
            share = f"{percent:.0f} %" if percent < 99.5 else "> 99 %"
            axis.text(left + width / 2, row, share, ha="center", va="center", size=SIZE)
        left += width
    if bar.whole and bar.whole.low is not None:
        low, high = (end / unit for end in bar.whole.bounds)
        below = row + 0.3 * height  # of the percentages
        axis.plot((low, high), (below, below), color=GREY, linewidth=1.5, marker="|", markersize=5)
    form = {"textcoords": "offset points", "va": "center", "size": SIZE}
    # `_fit_words` gives the words their room.
    axis.annotate(bar.words, (_end(bar) / unit, row), (6, 0), **form).set_in_layout(False)


def _end(bar: Bar) -> float:
    """Return where a bar or its interval ends, in SI units."""
    length = sum(bar.parts.values())
    return max(length, bar.whole.high) if bar.whole and bar.whole.high is not None else length


def _shaded(colour: str, share: float, hatch: str) -> dict[str, Any]:
    """Return the properties of a bar's part. The edge has the full colour, and so has the hatch."""
    from matplotlib.colors import to_rgb

    # Mixed with white, since in SVG the opacity of a bar would be that of its hatch, too.
    mixed = tuple(1 - share * (1 - part) for part in to_rgb(colour))
    return {"facecolor": mixed, "edgecolor": colour, "hatch": hatch, "linewidth": 0.8}


def curves_figure(panels: dict[str, list[tuple]], label: str, one_axis: bool = True) -> Any:
    """Return a figure of a panel for each quantity, None without any.

    panels: quantity -> curves; a curve is a record, a pandas Series, and a key of DASHES or "".
    label: of the horizontal axes. one_axis: whether these are the same. Curves of fewer than 3
    points are left out, and panels without any are named above the key.
    """
    curves_of = {
        quantity: [curve for curve in curves if len(curve[1]) >= LEAST_POINTS]
        for quantity, curves in panels.items()
    }
    short = [quantity for quantity, curves in curves_of.items() if panels[quantity] and not curves]
    panels = {quantity: curves for quantity, curves in curves_of.items() if curves}
    if not panels:
        return None
    figure = figure_of(WIDTH, _enough([LOW_PANEL] * len(panels)))
    axes = figure.subplots(len(panels), 1, sharex=one_axis, squeeze=False)[:, 0]
    looks = {}
    for axis, (quantity, curves) in zip(axes, panels.items(), strict=True):
        for record, values, name in curves:
            colour = LOOKS.get((record.framework, cases.kind(record.backend)), OTHER)["colour"]
            mark = "." if len(values) < 30 else ""
            axis.plot(values, color=colour, linestyle=DASHES.get(name), marker=mark)
            looks[f"{cases.framework_name(record.framework)}, {record.backend}"] = {"color": colour}
            if name:
                looks[name] = {"color": GREY, "linestyle": DASHES[name]}
        bottom, top = axis.get_ylim()
        axis.set(ylabel=wrapped(quantity, LABEL), ylim=(min(0, bottom), 1.08 * top))
        axis.grid(axis="y")
        plain_ticks(axis.yaxis)
    axes[-1].set_xlabel(label)
    for axis in axes:
        axis.locator_params(axis="x", integer=label == "step")
    remark = f"fewer than {LEAST_POINTS} points: {'; '.join(short)}" if short else ""
    key(figure, looks, remark)
    fit_height(figure, axes, LOW_PANEL * len(panels))
    return figure


def grid_of(count: int, height: float) -> tuple[Any, list[Any], list[Any]]:
    """Return a figure of so many panels in rows, with one vertical axis; all axes; the left ones.

    A single panel is as wide as a row. height: of a panel in inches, about; see `fit_height`.
    """
    rows = -(-count // COLUMNS)
    figure = figure_of(WIDTH, _enough([height] * rows))
    grid = figure.add_gridspec(rows, COLUMNS)
    axes: list[Any] = []
    for number in range(count):
        row, column = divmod(number, COLUMNS)
        place = grid[row, :] if count == 1 else grid[row, column]
        axes.append(figure.add_subplot(place, sharey=axes[0] if axes else None))
        axes[-1].tick_params(axis="y", labelleft=column == 0)
    return figure, axes, axes[::COLUMNS]


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


def plain_ticks(axis: Any, unit: float = 1.0) -> None:
    """Label an axis with plain numbers, large ones as `10 G`.

    unit: of the labels, in units of the axis.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

    low, high = sorted(end / unit for end in axis.get_view_interval())
    if axis.get_scale() == "linear" or high / low < NARROW:
        locator = MaxNLocator(5)
    else:
        subs = (1.0,) if high / low > 300 else (1.0, 3.0) if high / low > 30 else (1.0, 2.0, 5.0)
        locator = LogLocator(base=10, subs=subs, numticks=6)
    places = [place for place in locator.tick_values(low, high) if low <= place <= high]
    while len(places) > 2 and sum(len(_plain(place)) + 1 for place in places) > TICKS:
        places = places[::2]
    axis.set_major_locator(FixedLocator([unit * place for place in places]))
    axis.set_minor_locator(NullLocator())  # hundreds of ticks would be unreadable
    axis.set_major_formatter(FuncFormatter(lambda value, _: _plain(value / unit)))


def _plain(value: float) -> str:
    """Return a tick's number, from 10 million on with a decimal prefix."""
    for prefix, factor in {"P": 1e15, **LARGE}.items():
        if value >= max(factor, 1e7):
            return f"{value / factor:,.10g} {prefix}"
    return f"{value:,.10g}"


def key(figure: Any, looks: Mapping[str, dict], remark: str = "") -> None:
    """Draw a key below a figure, row by row.

    looks: name -> properties of its line or marker, or of its bar if it has a `facecolor`. remark:
    above the key.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = []
    for name, look in looks.items():
        label = wrapped(name, LONG_NAME if len(looks) > 1 else FULL_WIDTH)
        bar = "facecolor" in look
        handles.append(Patch(label=label, **look) if bar else Line2D([], [], label=label, **look))
    short = max(map(len, looks)) <= SHORT_NAME
    columns = min(KEY_COLUMNS + short, len(handles))
    # matplotlib fills a key column by column, of which the first ones have a handle more.
    by_row = [handle for column in range(columns) for handle in handles[column::columns]]
    title = wrapped(remark, FULL_WIDTH)
    place = {"loc": "outside lower center", "ncols": columns}
    figure.legend(handles=by_row, title=title, **place)


def svg(figure: Any) -> str:
    """Return a figure as an SVG element for the report, with its words as text.

    Text has a halo in the background's colour, which follows the reader's light or dark mode.
    """
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    drawing = text.getvalue()[text.getvalue().index("<svg") :]
    return compact_svg.compact(drawing, INK, HALO)


def png(figure: Any) -> Any:
    """Return a figure as PNG with 256 colours and words for who cannot see it.

    Jupyter and code hosts display it. It has a white background in dark mode, too, and text has a
    white halo.
    """
    import PIL.Image
    from IPython.display import Image

    data = io.BytesIO()
    with _white_halos(figure):
        # 1.5: for high-resolution screens.
        figure.savefig(data, format="png", dpi=1.5 * figure.dpi, facecolor="white")
    small = io.BytesIO()
    PIL.Image.open(data).convert("RGB").quantize(256).save(small, format="png", optimize=True)
    width = int(figure.dpi * figure.get_figwidth())
    return Image(small.getvalue(), width=width, alt=words_of(figure))


def words_of(figure: Any) -> str:
    """Return what a figure shows: the labels of its axes, and the titles of its panels."""
    labels = [figure.get_suptitle()]
    titles = []
    for axis in figure.axes:
        # What follows the first line of a label are remarks.
        labels += [axis.get_xlabel().partition("\n")[0], axis.get_ylabel().replace("\n", " ")]
        titles += [axis.get_title(side).replace("\n", " ") for side in ("left", "center")]
    drawn = ["; ".join(filter(None, dict.fromkeys(texts))) for texts in (labels, titles)]
    return textwrap.shorten(f"Figure: {'. Panels: '.join(filter(None, drawn))}", LONGEST_WORDS)


@contextmanager
def _white_halos(figure: Any) -> Iterator[None]:
    """Give each text in the colour INK a white halo. In SVG it would turn text into shapes."""
    from matplotlib.patheffects import withStroke
    from matplotlib.text import Text

    texts = figure.findobj(lambda artist: isinstance(artist, Text) and artist.get_color() == INK)
    for text in texts:
        text.set_path_effects([withStroke(linewidth=HALO, foreground="white")])
    try:
        yield
    finally:
        for text in texts:
            text.set_path_effects(None)
