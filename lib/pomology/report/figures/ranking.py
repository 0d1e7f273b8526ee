"""How fast every device trains, against one of them: a row a device, a mark a model, and their mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pomology.report.figures.points import Mark, draw_marks
from pomology.report.figures.style import COLOURS, DEVICES, GREY, device_key, figure_of, nothing, plain_ticks, styled
from pomology.report.ranking import Place

WIDE, NOTEBOOK, NARROW = 12.4, 10.0, 5.2  # inches: of a page, a notebook, and a phone with text of 9 pixels
MOST_ROWS = 24


@styled
def ranking_figure(places: Sequence[Place], reference: str, width: float = WIDE) -> Any:
    """The fastest on top. A mark is a model that both have trained, hollow where a time is doubtful; a stroke is the
    geometric mean, which is written beside the row, or below the device's name where the figure is narrow.

    Of more devices than fit, this machine's and the reference stay, and of the others those with most models. Returns a
    matplotlib Figure.
    """
    shown = _chosen(places, reference)
    if len(shown) < 2:
        return nothing()
    wide = width > NARROW
    figure = figure_of(width, 1.2 + (0.25 if wide else 0.42) * len(shown))
    axis = figure.subplots()
    reach = [ratio.value for place in shown for ratio, _ in place.ratios.values()]
    axis.set(xscale="log", xlim=(min(reach) / 1.4, max(reach) * 1.4), ylim=(len(shown) - 0.4, -0.6))
    axis.axvline(1, color=GREY, linewidth=0.8, linestyle="dashed")
    axis.grid(axis="x")
    looks = [DEVICES[place.source, place.role] for place in shown]
    # All on the line, each alone: they are models, and which is in the table.
    marked = [(place.ratios.values(), look) for place, look in zip(shown, looks, strict=True)]
    drawn = [
        (look, number, [Mark(ratio, "filled" if sound else "hollow")])
        for number, (ratios, look) in enumerate(marked)
        for ratio, sound in ratios
    ]
    draw_marks(axis, drawn, size=30)
    for number, (place, look) in enumerate(zip(shown, looks, strict=True)):
        if place.sound:
            axis.plot([place.mean], [number], "|", color=COLOURS[look], markersize=13, markeredgewidth=2.4, zorder=4)
        if wide:
            words = f"{place.words()}  {place.software()}"
            form = {"transform": axis.get_yaxis_transform(), "va": "center", "weight": _weight(place)}
            axis.text(1.01, number, words, fontsize=9, **form)
    names = [place.device if wide else f"{place.device}\n{place.words()}" for place in shown]
    axis.set_yticks(range(len(shown)), names, fontsize=9.5)
    for label, place in zip(axis.get_yticklabels(), shown, strict=True):
        label.set_weight(_weight(place))
    axis.tick_params(axis="y", length=0)
    plain_ticks(axis.xaxis)
    axis.set_xlabel(f"speed, {reference} = 1 (right is faster)", fontsize=9.5)
    left = len(places) - len(shown)
    axis.set_title(f"{left} more devices are in the table" if left else "", fontsize=9.5)
    device_key(figure, looks, ncols=3 if wide else 2, fontsize=9.5)
    return figure


def _weight(place: Place) -> str:
    return "bold" if place.measured else "normal"


def _chosen(places: Sequence[Place], reference: str) -> list[Place]:
    """As many as fit, in their order."""
    kept = sorted(places, key=lambda place: (not (place.measured or place.device == reference), -place.sound))
    names = {place.device for place in kept[:MOST_ROWS]}
    return [place for place in places if place.device in names]
