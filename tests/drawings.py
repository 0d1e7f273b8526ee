"""Drawn figures and what is on them, with cases of an invented machine."""

import itertools
import re

import declared
from matplotlib import _pylab_helpers
from matplotlib.text import Text
from records import metric, record

from pomology.report import figures
from pomology.report.figures import article_figure

COLOURS = {kind: look["colour"] for kind, look in figures.LOOKS.items()}
HERE_CPU, HERE_GPU = COLOURS["measured", "cpu"], COLOURS["measured", "gpu"]
TIMES = {"epoch_s": metric(4.5, 3.6, 5.4), "compute_epoch_s": metric(0.9, 0.8, 1.0)}
MACHINE = [
    record(metrics=TIMES, chip="AMD $\\frac{$"),
    record(metrics={"epoch_s": metric(3e4, 1.5e4, 4.5e4)}, backend="mps"),
    record(status="out-of-memory", config={"batch_size": 5120}),
    *(
        record(metrics={"epoch_s": metric(value)}, config={"batch_size": 64}, repeat=repeat)
        for repeat, value in enumerate((0.002, 0.0022, 0.00242))
    ),
    record(metrics={"epoch_s": metric(1.0)}, config={"batch_size": 32}, profile="smoke"),
]
BOTH = ({}, {"backend": "mps"}, {"backend": "mlx-gpu", "framework": "mlx"})


def drawn(experiment, records=(), draw=article_figure):
    """Return the figure with its layout; None without values, or the reason in words."""
    figure = draw(declared.of(experiment), list(records))
    if figure is None or isinstance(figure, str):
        return figure
    figure.draw_without_rendering()
    # A notebook would display pyplot's figures twice, and a Mac would open a window for them.
    assert not _pylab_helpers.Gcf.figs
    assert markup(figure) == [] and crossings(figure) == []
    return figure


def texts(figure):
    """Return the texts that are drawn: a label of a tick only if its place is in view."""
    hidden = set()
    for side in (side for axis in figure.axes for side in (axis.xaxis, axis.yaxis)):
        low, high = sorted(side.get_view_interval())
        for tick in [*side.get_major_ticks(), *side.get_minor_ticks()]:
            if not low <= tick.get_loc() <= high:
                hidden |= {tick.label1, tick.label2}
    found = figure.findobj(Text)
    return [one for one in found if one.get_visible() and one.get_text() and one not in hidden]


def crossings(figure, least=1.5):
    """Return the pairs of texts whose boxes cross by so many pixels, and texts that are cut."""
    boxes = {one: one.get_window_extent() for one in texts(figure)}
    whole = figure.bbox
    cut = [
        one.get_text()
        for one, box in boxes.items()
        if box.x0 < whole.x0 - least or box.x1 > whole.x1 + least
    ]
    crossed = [
        (one.get_text(), other.get_text())
        for (one, box), (other, near) in itertools.combinations(boxes.items(), 2)
        if min(box.x1, near.x1) - max(box.x0, near.x0) > least
        and min(box.y1, near.y1) - max(box.y0, near.y0) > least
    ]
    return cut + crossed


def markup(figure):
    """Return the labels of ticks that are not plain text."""
    axes = [side for axis in figure.axes for side in (axis.xaxis, axis.yaxis)]
    labels = [label.get_text() for axis in axes for label in axis.get_ticklabels(which="both")]
    return [text for text in labels if re.search(r"mathdefault|\^\{|\$$", text)]


def remark(figure):
    """Return the sentence above the key of a figure."""
    return figure.legends[0].get_title().get_text().replace("\n", " ")


def words(axis):
    """Return the words beside rows or in bars, which may be in several lines."""
    return [text.get_text().replace("\n", " ") for text in axis.texts]


def lines(axis):
    """Return the labels of rows, which may be in several lines."""
    return [label.get_text().replace("\n", " ") for label in axis.get_yticklabels()]


def marks(axis):
    """Return each marker's x, y, colour, and fill colour."""
    shown = [line for line in axis.lines if line.get_linestyle() == "None"]
    return [
        (*line.get_xdata(), *line.get_ydata(), line.get_color(), line.get_markerfacecolor())
        for line in shown
    ]


def intervals(axis):
    return sorted(tuple(line.get_xdata()) for line in axis.lines if line.get_marker() == "None")


def curves(axis):
    return [tuple(map(list, line.get_data())) for line in axis.lines]
