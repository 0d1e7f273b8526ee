"""The style of figures: a device has one colour everywhere, on white, on black and in print.

Backgrounds are transparent, and text is a grey with contrast enough on both white and black.
Colours are those of Okabe and Ito (2008), which colour-blind readers can tell apart; the shape of a
mark repeats what its colour says.
"""

import contextlib
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pomology.paths import write_atomic
from pomology.results.cases import kind
from pomology.results.record import Record

GREY = "#767676"
WIDTH = 10  # inches, which a wide page shows on 1,200 pixels, and a phone on 700

# (`published`, `measured`, or `other` in somebody else's run; role) -> the kind's name in a key.
DEVICES = {
    ("published", "cpu"): "processors",
    ("published", "gpu"): "Apple GPUs",
    ("published", "rival"): "other GPUs",
    ("published", ""): "other devices",
    ("measured", "cpu"): "this machine's processor",
    ("measured", "gpu"): "this machine's GPU",
    ("other", ""): "other people's machines",
}
COLOURS = {
    "processors": "#56B4E9",
    "Apple GPUs": "#0072B2",
    "other GPUs": "#009E73",
    "other devices": GREY,
    "this machine's processor": "#D55E00",
    "this machine's GPU": "#CC79A7",
    "other people's machines": "#E69F00",
}
MARKS = dict(zip(COLOURS, "^osvDdP", strict=True))

# Frameworks on one device: shades of its colour, which differ in grey as well.
SHADES = {
    ("torch", "cpu"): COLOURS["this machine's processor"],
    ("torch", "gpu"): COLOURS["this machine's GPU"],
    ("mlx", "cpu"): "#8C3F00",
    ("mlx", "gpu"): "#8E3A70",
    ("tensorflow", "cpu"): "#F0A060",
    ("tensorflow", "gpu"): "#E6B3D0",
}

GROUNDS = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
TEXTS = ("axes.labelcolor", "axes.titlecolor", "text.color", "xtick.color", "ytick.color")
STYLE = dict.fromkeys(GROUNDS, "none") | dict.fromkeys(TEXTS, GREY)
STYLE |= {
    "axes.edgecolor": GREY,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "font.size": 10,
    "grid.alpha": 0.25,
    "grid.color": GREY,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text can be read aloud and searched, and takes a tenth of the bytes
    "svg.hashsalt": "pomology",  # the same data give the same file
    "text.parse_math": False,  # a chip's name is text, whatever is in it
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
}


@contextlib.contextmanager
def _house_style() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(STYLE):
        yield


styled = _house_style()  # a decorator: draws in the house style, whatever the notebook has set


def shade(record: Record) -> str:
    """Return the colour of a framework on a device."""
    return SHADES.get((record.framework, kind(record)), GREY)


def figure_of(width: float, height: float) -> Any:
    """Return an empty figure, in inches."""
    # Not pyplot's: that keeps every figure, which a notebook would show a second time beside the
    # saved one, and opens a window on a Mac.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


@styled
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


def device_key(figure: Any, devices: Iterable[str]) -> None:
    """Draw a key of kinds of devices below a figure."""
    shown = set(devices)
    looks = {
        name: {"marker": MARKS[name], "color": colour, "linestyle": "none"}
        for name, colour in COLOURS.items()
        if name in shown
    }
    key(figure, looks)


@styled
def pictures(images: Any, titles: Any = ()) -> Any:
    """Return a row of pictures, for a look at the data.

    images: arrays of height x width, or height x width x 3 between 0 and 1.
    """
    from IPython.display import SVG

    images = list(images)
    figure = figure_of(0.8 * len(images), 1.0)
    for number, axis in enumerate(figure.subplots(1, len(images), squeeze=False)[0]):
        axis.imshow(images[number], cmap="gray", interpolation="nearest")
        axis.set_axis_off()
        if number < len(titles):
            axis.set_title(titles[number], fontsize=8, loc="center")
    return SVG(data=svg(figure))


@styled
def svg(figure: Any) -> str:
    """Return a figure as SVG, whose words stay text."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def save(figure: Any, path: Path) -> Any:
    """Save a figure as SVG, and return what a notebook displays of it."""
    from IPython.display import SVG

    text = svg(figure)
    write_atomic(path, text)
    return SVG(data=text)
