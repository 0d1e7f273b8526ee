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


@styled
def products_figure(about: Declaration, frame: pandas.DataFrame) -> Any:
    """Return a figure with the rate of every product and its interval, or the status of the case.

    A row is an operation and shape, a column a framework, device and precision.
    """
    import numpy
    import pandas
    import seaborn
    from matplotlib.colors import LogNorm

    cells = []
    for case in pool(comparable(frame, about.metric)):
        rate = case.values.get(about.metric)
        config = case.config
        operation = " ".join(filter(None, (config["operation"], config.get("wrt"))))
        row = f"{operation} {config['shape'].replace('x', '×')}"
        column = f"{case.framework}\n{case.first['backend']}\n{case.first['precision']}"
        value = rate.value / about.drawn.scale if rate else None
        words = f"{significant(value)}{plus_minus(rate)}" if rate else case.last["status"]
        cells.append((config["operation"], row, column, value, words))
    if not cells:
        return nothing()
    cells = pandas.DataFrame(cells, columns=["operation", "row", "column", "value", "words"])
    operations = [group for _, group in cells.groupby("operation", sort=False)]
    cells = pandas.concat(operations).drop_duplicates(["row", "column"])
    grid = cells.pivot(index="row", columns="column").reindex(cells["row"].unique())
    columns = cells["column"].unique()
    values = grid["value"].reindex(columns=columns).astype(float)
    words = grid["words"].reindex(columns=columns)

    figure = figure_of(WIDTH, 1.6 + 0.25 * len(values))
    axis = figure.subplots()
    # The light half: black can be read on it, also where a dark page brightens its figures.
    colours = seaborn.blend_palette(seaborn.color_palette("viridis", 12)[5:], as_cmap=True)
    ends = (
        (values.min(axis=None), values.max(axis=None)) if values.notna().any(axis=None) else (1, 10)
    )
    form = {"ha": "center", "va": "center", "fontsize": 8}
    annotated = {"annot": words, "fmt": "", "annot_kws": form | {"color": "black"}}
    seaborn.heatmap(values, norm=LogNorm(*ends), cmap=colours, cbar=False, ax=axis, **annotated)
    for y, x in zip(*(values.isna() & words.notna()).to_numpy().nonzero(), strict=True):
        axis.text(x + 0.5, y + 0.5, words.iloc[y, x], style="italic", color=GREY, **form)
    for border in numpy.cumsum([group["row"].nunique() for group in operations])[:-1]:
        axis.axhline(border, color=GREY)
    axis.set(xlabel=None, ylabel=None)
    axis.tick_params(length=0, labelsize=8, rotation=0)
    place = {"location": "bottom", "aspect": 60, "pad": 0.02, "label": about.drawn.axis}
    bar = figure.colorbar(axis.collections[0], ax=axis, **place)
    bar.outline.set_visible(False)
    plain_ticks(bar.ax.xaxis)
    return figure
