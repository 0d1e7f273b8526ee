"""Colours, marks and fonts of all figures, and how they become SVG."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pomology.paths import write_atomic
from pomology.results import cases as results_cases

GREY = "#767676"

COLOURS = {
    "M1 Ultra CPU": "#56B4E9",
    "M1 Ultra GPU": "#0072B2",
    "2070 Super CUDA": "#009E73",
    "this machine, cpu": "#D55E00",
    "this machine, gpu": "#CC79A7",
}

STYLE = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "text.color": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "grid.color": GREY,
    "grid.alpha": 0.25,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 10,
    "text.parse_math": False,  # a chip's name is text, whatever is in it
    "svg.hashsalt": "pomology",  # the same data give the same file
    "svg.fonttype": "none",  # text stays text: it can be read aloud and searched, and takes a tenth of the bytes
}

FONTS = "DejaVu Sans, Verdana, sans-serif"  # the first is as wide as the second, which Macs and phones have

PRODUCT_COLOURS = {
    ("torch", "cpu"): "#D55E00",
    ("torch", "gpu"): "#CC79A7",
    ("mlx", "cpu"): "#E69F00",
    ("mlx", "gpu"): "#009E73",
    ("tensorflow", "cpu"): "#56B4E9",
    ("tensorflow", "gpu"): "#0072B2",
}

PRODUCT_MARKS = {"fp32": "o", "fp16": "s", "bf16": "^"}


def _framework(name: str) -> str:
    return results_cases.FRAMEWORKS.get(name, name)


def _style(framework: str, backend: str, precision: str) -> dict[str, Any]:
    colour = PRODUCT_COLOURS.get((framework, "cpu" if backend == "cpu" else "gpu"), GREY)
    return {"color": colour, "marker": PRODUCT_MARKS.get(precision, "D"), "linestyle": "none", "markersize": 5}


def _key(framework: str, backend: str, precision: str) -> Any:
    from matplotlib.lines import Line2D

    label = f"{results_cases.FRAMEWORKS.get(framework, framework)}, {backend}, {precision}"
    return Line2D([], [], label=label, **_style(framework, backend, precision))


def pictures(images: Any, titles: Any = ()) -> Any:
    """A row of pictures (arrays of height x width, or height x width x 3 between 0 and 1), for a look at the data."""
    import matplotlib
    from IPython.display import SVG
    from matplotlib.figure import Figure

    images = list(images)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(0.8 * len(images), 1.0), layout="constrained")
        for number, axis in enumerate(figure.subplots(1, len(images), squeeze=False)[0]):
            axis.imshow(images[number], cmap="gray", interpolation="nearest")
            axis.set_axis_off()
            if number < len(titles):
                axis.set_title(titles[number], fontsize=8)
    return SVG(data=svg(figure))


def svg(figure: Any) -> str:
    """A figure as an SVG element."""
    import io

    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context(STYLE):
        # The last digits of what the layout solver finds vary; they would end up in the names of clip paths.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for axis in figure.axes:
            axis.set_position([round(bound, 4) for bound in axis.get_position().bounds])
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return _small(buffer.getvalue())


def _small(text: str) -> str:
    """The same drawing in a fifth of the bytes: no metadata, no names that nothing refers to, hundredths of a point."""
    from xml.etree import ElementTree

    # A text may hold what no XML may, as somebody's journal can.
    text = re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\N{REPLACEMENT CHARACTER}", text)
    root = ElementTree.fromstring(text[text.index("<svg") :])
    _slim(root, set(re.findall(r"#([\w-]+)", text)))
    about = {"xmlns": "http://www.w3.org/2000/svg", "font-family": FONTS, "stroke-linejoin": "round"}
    root.attrib = about | {name: root.get(name) for name in ("width", "height", "viewBox")}
    return ElementTree.tostring(root, encoding="unicode")


def _slim(element: Any, used: set[str]) -> None:
    """used: the identifiers that something refers to."""
    element.tag = element.tag.rpartition("}")[2]
    about = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
    if about.get("id") not in used:
        about.pop("id", None)
    style = [part.split(":", 1) for part in about.pop("style", "").split(";") if ":" in part]
    style = {name.strip(): value.strip() for name, value in style if name.strip() != "font-family"}
    for name in {"d", "x", "y", "transform", "points"} & about.keys():
        about[name] = re.sub(r"-?\d+\.\d+", lambda one: f"{round(float(one[0]), 2):g}", about[name])
        about[name] = " ".join(re.sub(r"\s*([A-Za-z,()])\s*", r"\1", about[name]).split())
    if about.get("transform", "").startswith("rotate(-0 "):
        del about["transform"]
    if style:
        about["style"] = ";".join(f"{name}:{value}" for name, value in style.items())
    element.attrib = about
    if element.tag != "text":
        element.text = None
    kept: list[Any] = []
    for child in element:
        _slim(child, used)
        child.tail = None
        unseen = child.tag == "path" and child.get("style") == "fill:none" and "id" not in child.attrib
        if child.tag in ("metadata", "style") or unseen:
            continue
        bare = child.tag in ("g", "defs") and not child.attrib
        kept += list(child) if bare and child.tag == "g" else [child] if len(child) or not bare else []
    element[:] = kept


def show(figure: Any, path: Path) -> Any:
    """Save a figure as SVG, whole or not at all, and give what a notebook displays."""
    from IPython.display import SVG

    text = svg(figure)
    write_atomic(path, text)
    return SVG(data=text)
