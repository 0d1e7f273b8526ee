"""How fast every device trains, against one of them: a row a device, a mark a model, and their mean."""

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from pomology.report.figures import style
from pomology.report.figures.points import Mark, draw_marks
from pomology.report.ranking import Place

MOST_ROWS = 28
# The house's marks as text, filled and hollow.
GLYPHS = dict(zip("^osvDdP", zip("▲●■▼◆♦✚", "△○□▽◇♢✛", strict=True), strict=True))


@style.styled
def ranking_figure(places: Sequence[Place], reference: str) -> Any:
    """The fastest on top. A mark is a model that both have trained, hollow where a time is doubtful; a stroke is the
    geometric mean, which is written beside the row."""
    shown = chosen(places, reference)
    if len(shown) < 2:
        return style.nothing()
    figure = style.figure_of(10, 1.2 + 0.25 * len(shown))
    axis = figure.subplots()
    reach = [ratio.value for place in shown for ratio, _ in place.ratios.values()]
    axis.set(xscale="log", xlim=(min(reach) / 1.4, max(reach) * 1.4), ylim=(len(shown) - 0.4, -0.6))
    axis.axvline(1, color=style.GREY, linewidth=0.8, linestyle="dashed")
    axis.grid(axis="x")
    looks = [style.DEVICES[place.source, place.role] for place in shown]
    weights = ["bold" if place.measured else "normal" for place in shown]
    marked = []
    for number, (place, look, weight) in enumerate(zip(shown, looks, weights, strict=True)):
        # All on the line, each alone: they are models, and which is in the table.
        marks = (Mark(ratio, "filled" if sound else "hollow") for ratio, sound in place.ratios.values())
        marked += [(look, number, [mark]) for mark in marks]
        if place.sound:
            form = {"color": style.COLOURS[look], "markersize": 13, "markeredgewidth": 2.4, "zorder": 4}
            axis.plot([place.mean], [number], "|", **form)
        form = {"transform": axis.get_yaxis_transform(), "va": "center", "weight": weight, "fontsize": 9}
        axis.text(1.01, number, f"{place.words()}  {place.software()}", **form)
    draw_marks(axis, marked, size=30)
    axis.set_yticks(range(len(shown)), [place.device for place in shown])
    for label, weight in zip(axis.get_yticklabels(), weights, strict=True):
        label.set_weight(weight)
    axis.tick_params(axis="y", length=0)
    style.plain_ticks(axis.xaxis)
    axis.set_xlabel(f"speed, {reference} = 1 (right is faster)")
    left = len(places) - len(shown)
    axis.set_title(f"{left} more devices are in the table" if left else "")
    style.device_key(figure, looks)
    return figure


def chosen(places: Sequence[Place], reference: str) -> list[Place]:
    """As many as fit, in their order: this machine's, the reference, and of the others those with most models."""
    kept = sorted(places, key=lambda place: (not (place.measured or place.device == reference), -place.sound))
    names = {place.device for place in kept[:MOST_ROWS]}
    return [place for place in places if place.device in names]


def on_an_axis(places: Sequence[Place]) -> SimpleNamespace:
    """The same for a page, which draws it with text alone: a phone shows it as well, and sixty cost no time. Places are
    in per cent of the axis. rows: each a place, its marks, and where its mean is; ticks: with their numbers; means:
    whether of more devices than fit a mark is the mean of the models, and not one of them."""
    rows, key, means = [], {}, len(places) > MOST_ROWS
    for place in places:
        look = style.DEVICES[place.source, place.role]
        filled, hollow = GLYPHS[style.MARKS[look]]
        key[look] = (place.source, place.role, filled)
        known = ((ratio.value, sound) for ratio, sound in place.ratios.values())
        known = [(place.mean, place.sound)] if means else known
        rows.append((place, [(value, filled if sound else hollow) for value, sound in known]))
    reach = [value for _, marks in rows for value, _ in marks]
    low, high = min(reach) / 1.2, max(reach) * 1.2

    def at(value: float) -> float:
        return round(100 * math.log(value / low) / math.log(high / low), 1)

    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [float(f"{step}e{decade}") for decade in decades for step in ((1, 2, 5) if high / low < 300 else (1,))]
    placed = [(place, [(at(value), glyph) for value, glyph in marks], at(place.mean)) for place, marks in rows]
    shown = [(at(tick), f"{tick:,.10g}") for tick in ticks if low < tick < high]
    return SimpleNamespace(rows=placed, ticks=shown, origin=at(1.0), key=key, means=means)
