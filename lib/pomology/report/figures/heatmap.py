"""A grid of settings by device and precision, where a mark for each would be a cloud."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pomology.format import plus_minus, significant
from pomology.report.article import comparable
from pomology.report.declaration import Declaration
from pomology.report.figures.style import GREY, WIDTH, figure_of, nothing, plain_ticks, styled
from pomology.results.pool import pool

if TYPE_CHECKING:
    import pandas

OPERATIONS = {
    "matmul": "Matrix times matrix (figure 5)",
    "matvec": "Matrix times vector (figure 6)",
    "vjp": "Vector-Jacobian product (figure 7)",
}


@styled
def products_figure(about: Declaration, frame: pandas.DataFrame) -> Any:
    """The rate of every product with its interval, a panel for each operation: a row for each shape, a column for each
    framework, device and precision. What has no number shows its status. Returns a matplotlib Figure."""
    import seaborn
    from matplotlib.colors import LogNorm

    rows = []
    for case in pool(comparable(frame, about.metric)):
        rate = case.values.get(about.metric)
        config = case.config
        shape = config["shape"].replace("x", "×") + {"left": " ∂a", "right": " ∂b"}.get(
            config.get("wrt"), ""
        )
        value = rate and rate.value / about.drawn.scale
        words = case.last["status"]
        if value:
            words = f"{significant(value)}\n{plus_minus(rate).strip()}".strip()
        column = f"{case.framework}\n{case.first['backend']}\n{case.first['precision']}"
        rows.append((config["operation"], shape, column, value, words))
    import pandas

    frame = pandas.DataFrame(rows, columns=["operation", "shape", "column", "value", "words"])
    grids = {title: frame[frame["operation"] == name] for name, title in OPERATIONS.items()}
    heights = {title: grid["shape"].nunique() for title, grid in grids.items() if len(grid)}
    if not heights:
        return nothing()
    figure = figure_of(WIDTH, 1.5 + 0.33 * sum(heights.values()) + 0.3 * len(heights))
    axes = figure.subplots(
        len(heights), 1, sharex=True, squeeze=False, height_ratios=list(heights.values())
    )[:, 0]
    low, high = (
        (frame["value"].min(), frame["value"].max()) if frame["value"].notna().any() else (1, 10)
    )
    # The light half: black can be read on all of it, also where a page with a dark ground brightens its figures.
    colours = seaborn.blend_palette(seaborn.color_palette("viridis", 12)[5:], as_cmap=True)
    look = {"cmap": colours, "norm": LogNorm(low, high), "vmin": low, "vmax": high, "cbar": False}
    form = {"ha": "center", "va": "center", "fontsize": 7.5}
    for axis, title in zip(axes, heights, strict=True):
        grid = grids[title].drop_duplicates(["shape", "column"]).set_index(["shape", "column"])
        order = {"index": grid.index.unique("shape"), "columns": frame["column"].unique()}
        values, words = (grid[name].unstack().reindex(**order) for name in ("value", "words"))
        seaborn.heatmap(
            values.astype(float),
            annot=words,
            fmt="",
            annot_kws=form | {"color": "black"},
            **look,
            ax=axis,
        )
        for y, x in zip(*(values.isna() & words.notna()).to_numpy().nonzero(), strict=True):
            axis.text(x + 0.5, y + 0.5, words.iloc[y, x], style="italic", color=GREY, **form)
        axis.set(title=title, xlabel=None, ylabel=None)
        axis.tick_params(length=0, labelsize=8)
        axis.tick_params(axis="y", rotation=0)
    bar = figure.colorbar(
        axes[-1].collections[0], ax=list(axes), location="bottom", aspect=60, pad=0.01
    )
    bar.set_label(about.drawn.axis)
    bar.outline.set_visible(False)
    plain_ticks(bar.ax.xaxis)
    return figure
