"""The style of figures: a device has one colour everywhere, on white, on black and in print.

Colours are those of Okabe and Ito (2008), which colour-blind readers can tell apart; the shape of a
mark repeats what its colour says.
"""

import io
from collections.abc import Sequence
from typing import Any

from pomology.paths import RESOURCES

GREY = "#767676"
WIDTH = 10  # inches, which a wide page shows on 1,200 pixels, and a phone on 700

# (`published`, `measured`, or `other` in somebody else's run; role) -> a name in the key, a colour
# and a mark.
LOOKS = {
    ("published", "cpu"): ("processors", "#56B4E9", "^"),
    ("published", "gpu"): ("Apple GPUs", "#0072B2", "o"),
    ("published", "rival"): ("other GPUs", "#009E73", "s"),
    ("published", ""): ("other devices", GREY, "v"),
    ("measured", "cpu"): ("this machine's processor", "#D55E00", "D"),
    ("measured", "gpu"): ("this machine's GPU", "#CC79A7", "d"),
    ("other", ""): ("other people's machines", "#E69F00", "P"),
}
# Frameworks on this machine's devices: shades of their colours, which differ in grey as well.
SHADES = {
    ("torch", "cpu"): "#D55E00",
    ("torch", "gpu"): "#CC79A7",
    ("mlx", "cpu"): "#8C3F00",
    ("mlx", "gpu"): "#8E3A70",
    ("tensorflow", "cpu"): "#F0A060",
    ("tensorflow", "gpu"): "#E6B3D0",
}


def figure_of(width: float, height: float) -> Any:
    """Return an empty figure, in inches; what is drawn from then on has this style."""
    import matplotlib.style

    # Not pyplot's: that keeps every figure, which a notebook would show a second time beside the
    # saved one, and opens a window on a Mac.
    from matplotlib.figure import Figure

    matplotlib.style.use(RESOURCES / "figures.mplstyle")
    return Figure(figsize=(width, height), layout="constrained")


def nothing() -> Any:
    """Return the figure of records that hold nothing to draw."""
    figure = figure_of(WIDTH, 0.5)
    figure.text(0.01, 0.5, "Nothing was measured that can be drawn", va="center")
    return figure


def plain_ticks(axis: Any, unit: float = 1.0) -> None:
    """Label a logarithmic axis in plain numbers. unit: of the labels, in that of the axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = sorted(axis.get_view_interval())
    subs = (1.0,) if high / low > 300 else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(base=10, subs=subs, numticks=8))
    axis.set_minor_locator(NullLocator())  # hundreds of strokes, of no use
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / unit:,.10g}"))


def key(figure: Any, looks: dict[str, dict]) -> None:
    """Draw a key below a figure. looks: name -> how its line or mark looks."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=name, **look) for name, look in looks.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)


def pictures(images: Sequence, titles: Sequence = ()) -> Any:
    """Return a row of pictures, for a look at the data.

    images: arrays of one size, height x width, or height x width x 3 between 0 and 1.
    """
    import numpy

    row = numpy.hstack(list(images))
    figure = figure_of(0.8 * len(images), 1.0)
    axis = figure.subplots()
    axis.imshow(row, cmap="gray", interpolation="nearest")
    middles = (numpy.arange(len(titles)) + 0.5) * row.shape[1] / len(images)
    axis.set_xticks(middles, titles)
    axis.set(yticks=[], frame_on=False)
    return drawing(figure)


def drawing(figure: Any) -> Any:
    """Return a figure as the SVG that Jupyter displays, whose words stay text."""
    from IPython.display import SVG

    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return SVG(data=text.getvalue()[text.getvalue().index("<svg") :])
