"""How fast every device trains, against one of them: a row a device, a mark a model, and their mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pomology.format import significant
from pomology.report.figures.points import Mark, draw_marks
from pomology.report.figures.style import COLOURS, DEVICES, GREY, device_key, figure_of, nothing, plain_ticks, styled
from pomology.report.ranking import Place

ROW_INCHES, MOST_ROWS = 0.27, 28


@styled
def ranking_figure(places: Sequence[Place], reference: str) -> Any:
    """The fastest on top. A mark is a model that both have trained, hollow where its time is doubtful; a stroke is the
    geometric mean, written behind it.

    Of more devices than fit, this machine's and the reference stay, and of the others those with most models. Returns a
    matplotlib Figure.
    """
    shown = chosen(places, reference)
    if not shown:
        return nothing()
    figure = figure_of(8, 0.9 + ROW_INCHES * len(shown))
    axis = figure.subplots()
    reach = [ratio.value for place in shown for ratio, _ in place.ratios.values()]
    low, high = min(reach), max(reach)
    axis.set(xscale="log", xlim=(low / 1.4, high * 1.4 * (high / low) ** 0.28), ylim=(len(shown) - 0.4, -0.6))
    axis.axvline(1, color=GREY, linewidth=0.8, linestyle="dashed")
    axis.grid(axis="x")
    names = [DEVICES["measured" if place.measured else "published", place.role] for place in shown]
    for number, (place, name) in enumerate(zip(shown, names, strict=True)):
        marks = [Mark(ratio, "filled" if sound else "hollow") for ratio, sound in place.ratios.values()]
        for mark in marks:  # all on the line: each is a model of its own, and no dodge tells which
            draw_marks(axis, [(name, number, [mark])], size=26)
        if place.sound:
            axis.plot([place.mean], [number], "|", color=COLOURS[name], markersize=13, markeredgewidth=2.2, zorder=4)
        right = max(mark.number.high or mark.number.value for mark in marks)
        weight = "bold" if place.measured else "normal"
        form = {"textcoords": "offset points", "va": "center", "fontsize": 8.5, "weight": weight}
        axis.annotate(
            place.words() if place.device != reference else "1: the reference", (right, number), (8, 0), **form
        )
    axis.set_yticks(range(len(shown)), [place.device for place in shown])
    for label, place in zip(axis.get_yticklabels(), shown, strict=True):
        label.set_weight("bold" if place.measured else "normal")
    axis.tick_params(axis="y", length=0)
    plain_ticks(axis.xaxis)
    left = len(places) - len(shown)
    more = f"; {left} more devices are in the table" if left else ""
    axis.set_xlabel(f"speed of training, {reference} = {significant(1.0, 1)} (right is faster){more}")
    device_key(figure, names)
    return figure


def chosen(places: Sequence[Place], reference: str) -> list[Place]:
    """As many as fit, in their order."""
    kept = sorted(places, key=lambda place: (not (place.measured or place.device == reference), -place.sound))
    names = {place.device for place in kept[:MOST_ROWS]}
    return [place for place in places if place.device in names]
