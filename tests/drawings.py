"""Drawn figures and what is on them, with cases of an invented machine."""

import re

import declared
from matplotlib import _pylab_helpers
from records import metric, record

from pomology.report import figures
from pomology.report.figures import article_figure

COLOURS = {kind: look["colour"] for kind, look in figures.LOOKS.items()}
HERE_CPU, HERE_GPU = COLOURS["measured", "cpu"], COLOURS["measured", "gpu"]
NOTHING = "Nothing was measured that can be drawn"
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
    """Return the figure with its layout."""
    figure = draw(declared.of(experiment), list(records))
    figure.draw_without_rendering()
    # A notebook would display pyplot's figures twice, and a Mac would open a window for them.
    assert not _pylab_helpers.Gcf.figs
    assert markup(figure) == []
    return figure


def markup(figure):
    """Return the labels of ticks that are not plain text."""
    axes = [side for axis in figure.axes for side in (axis.xaxis, axis.yaxis)]
    labels = [label.get_text() for axis in axes for label in axis.get_ticklabels(which="both")]
    return [text for text in labels if re.search(r"mathdefault|\^\{|\$$", text)]


def words(axis):
    return [text.get_text() for text in axis.texts]


def lines(axis):
    return [label.get_text() for label in axis.get_yticklabels()]


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
