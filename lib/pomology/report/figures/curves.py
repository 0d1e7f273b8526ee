"""What was traced over time, in panels below each other."""

from typing import TYPE_CHECKING, Any

from pomology.report.figures import style
from pomology.results import cases

if TYPE_CHECKING:
    import pandas

    from pomology.results.record import Record

Curve = tuple["Record", "pandas.Series", str]  # of whom, the values, and a name of DASHES or ""
DASHES = {"footprint": "solid", "allocated": "dashed", "reserved": "dotted"}


def curves_figure(panels: dict[str, list[Curve]], x: str) -> Any:
    """Return a matplotlib Figure of curves by quantity, without those that have none.

    x: the words below the axis that all panels share.
    """
    panels = {quantity: curves for quantity, curves in panels.items() if curves}
    if not panels:
        return style.nothing()
    figure = style.figure_of(style.WIDTH, 1 + 1.8 * len(panels))
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    looks = {}
    for axis, (quantity, curves) in zip(axes, panels.items(), strict=True):
        for record, values, name in curves:
            colour = style.SHADES.get((record.framework, cases.kind(record)), style.GREY)
            mark = "." if len(values) < 30 else ""
            axis.plot(values, color=colour, linestyle=DASHES.get(name), marker=mark)
            looks[f"{cases.framework_name(record)}, {record.backend}"] = {"color": colour}
            if name:
                looks[name] = {"color": style.GREY, "linestyle": DASHES[name]}
        axis.set(ylabel=quantity, ylim=(0, 1.08 * axis.get_ylim()[1]))
        axis.grid(axis="y")
    axes[-1].set_xlabel(x)
    style.key(figure, looks)
    return figure
