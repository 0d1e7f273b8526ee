"""The house style of figures: every device in the same colour everywhere, readable on white, on black and in print.

Backgrounds are transparent and text is a grey with contrast enough on both white and black. Colours are those of Okabe
and Ito (2008), which colour-blind readers can tell apart; a second mark, the shape, repeats what the colour says.
"""

import contextlib
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pomology.paths import write_atomic
from pomology.results.cases import kind
from pomology.results.record import Record

GREY = "#767676"
WIDTH = 10  # inches, which a wide page shows on 1,200 pixels, and a phone on 700

# (`published`, `measured`, or `other` in somebody else's run; role) -> the name of this kind of device in a key; its
# colour and mark.
DEVICES = {
    ("published", "cpu"): "processors",
    ("published", "gpu"): "Apple GPUs",
    ("published", "rival"): "other GPUs",
    ("published", ""): "other devices",
    ("measured", "cpu"): "this machine's processor",
    ("measured", "gpu"): "this machine's GPU",
    ("other", ""): "other people's machines",
}
COLOURS = ("#56B4E9", "#0072B2", "#009E73", GREY, "#D55E00", "#CC79A7", "#E69F00")
COLOURS = dict(zip(DEVICES.values(), COLOURS, strict=True))
MARKS = dict(zip(DEVICES.values(), "^osvDdP", strict=True))

# Frameworks on one device: shades of its colour, which differ in grey as well.
SHADES = {
    ("torch", "cpu"): COLOURS["this machine's processor"],
    ("torch", "gpu"): COLOURS["this machine's GPU"],
}
SHADES |= {("mlx", "cpu"): "#8C3F00", ("tensorflow", "cpu"): "#F0A060"}
SHADES |= {("mlx", "gpu"): "#8E3A70", ("tensorflow", "gpu"): "#E6B3D0"}

STYLE = dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none")
STYLE |= dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "text.color"), GREY)
STYLE |= dict.fromkeys(("xtick.color", "ytick.color", "grid.color"), GREY)
STYLE |= {
    "axes.labelsize": 9,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 8,
    "font.size": 10,
}
STYLE |= {
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "grid.alpha": 0.25,
    "legend.frameon": False,
}
STYLE |= {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,  # a chip's name is text, whatever is in it
    "svg.hashsalt": "pomology",  # the same data give the same file
    "svg.fonttype": "none",  # text stays text: it can be read aloud and searched, and takes a tenth of the bytes
}

NOT_XML = "[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"  # a text from somebody's journal may hold it


@contextlib.contextmanager
def _house_style() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(STYLE):
        yield


styled = _house_style()  # a decorator: draws in the house style, whatever the notebook has set


def shade(record: Record) -> str:
    """The colour of a framework on a device."""
    return SHADES.get((record.framework, kind(record)), GREY)


def figure_of(width: float, height: float) -> Any:
    """An empty figure, in inches."""
    # Not pyplot's, and so no FacetGrid of seaborn's either: pyplot keeps every figure, which a notebook would show a
    # second time beside the saved one, and opens a window on a Mac.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


@styled
def nothing() -> Any:
    """The figure of records that hold nothing to draw."""
    figure = figure_of(WIDTH, 0.5)
    figure.text(0.01, 0.5, "Nothing was measured that can be drawn", va="center")
    return figure


def plain_ticks(axis: Any, unit: float = 1.0) -> None:
    """Ticks of a logarithmic axis, with numbers as people write them; unit: of the numbers, in that of the axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = sorted(axis.get_view_interval())
    subs = (1.0,) if high / low > 300 else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(base=10, subs=subs, numticks=8))
    axis.set_minor_locator(NullLocator())  # hundreds of strokes, of no use
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / unit:,.10g}"))


def key(figure: Any, looks: dict[str, dict], **options: Any) -> None:
    """A key below a figure: name -> how its line or mark looks."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], label=name, **{"linestyle": "none"} | look) for name, look in looks.items()
    ]
    figure.legend(handles=handles, **{"loc": "outside lower center", "ncols": 3} | options)


def device_key(figure: Any, devices: Iterable[str]) -> None:
    shown = set(devices)
    key(
        figure,
        {
            name: {"marker": MARKS[name], "color": COLOURS[name]}
            for name in COLOURS
            if name in shown
        },
    )


@styled
def pictures(images: Any, titles: Any = ()) -> Any:
    """A row of pictures (arrays of height x width, or height x width x 3 between 0 and 1), for a look at the data."""
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
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = re.sub(NOT_XML, "\N{REPLACEMENT CHARACTER}", buffer.getvalue())
    return text[text.index("<svg") :]


def save(figure: Any, path: Path) -> Any:
    """Save a figure as SVG, and return what a notebook displays of it."""
    from IPython.display import SVG

    text = svg(figure)
    write_atomic(path, text)
    return SVG(data=text)
