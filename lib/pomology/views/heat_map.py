"""Heat map of matrix products: their rates by shape, device and precision."""

from pomology.format import with_interval
from pomology.report import figures
from pomology.report.article import comparable
from pomology.results import metrics


def figure(declaration, records):
    """Return a figure with the FLOP/s of every case and its interval, or its status.

    Rows are operations and shapes; columns are frameworks, devices and precisions.
    """
    import pandas
    import seaborn
    from matplotlib.colors import LogNorm

    metric = metrics.Metric(declaration.metric)
    cells = []
    for case in comparable(records, declaration.metric):
        rate = case.values.get(declaration.metric)
        config = case.config
        operation = " ".join(filter(None, (config["operation"], config.get("wrt"))))
        row = f"{operation} {config['shape'].replace('x', '×')}"
        column = f"{case.framework}\n{case.first.backend}\n{case.precision}"
        rate = rate and rate * (1 / metric.scale)
        value = rate.value if rate else None
        words = with_interval(rate) if rate else case.status
        cells.append((config["operation"], row, column, value, words))
    cells = pandas.DataFrame(cells, columns=["operation", "row", "column", "value", "words"])
    if not cells["value"].notna().any():
        return figures.nothing()
    # Group the rows of an operation, in order of first appearance.
    cells = pandas.concat(rows for _, rows in cells.groupby("operation", sort=False))
    grid = cells.pivot_table(["value", "words"], "row", "column", "first", sort=False, dropna=False)
    values = grid["value"].astype(float)
    words = grid["words"]
    drawn = figures.figure_of(figures.WIDTH, 1.6 + 0.25 * len(values))
    axis = drawn.subplots()
    form = {"ha": "center", "va": "center", "fontsize": 8}
    annotated = {"annot": words, "fmt": "", "annot_kws": form}
    seaborn.heatmap(values, norm=LogNorm(), cmap="viridis", cbar=False, ax=axis, **annotated)
    # seaborn leaves cells without a value empty; a failed case has its status there.
    without_value = values.isna() & words.notna()
    for row, column in zip(*without_value.to_numpy().nonzero(), strict=True):
        text = words.iloc[row, column]
        axis.text(column + 0.5, row + 0.5, text, style="italic", color=figures.GREY, **form)
    axis.set(xlabel=None, ylabel=None)
    axis.tick_params(length=0, labelsize=8, rotation=0)
    bar_form = {"location": "bottom", "aspect": 60, "pad": 0.02, "label": metric.axis}
    bar = drawn.colorbar(axis.collections[0], ax=axis, **bar_form)
    bar.outline.set_visible(False)
    figures.plain_ticks(bar.ax.xaxis)
    return drawn
