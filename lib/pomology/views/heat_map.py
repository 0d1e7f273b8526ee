"""Heat map of matrix products: their rates by shape, device and precision."""

from collections import Counter, defaultdict

from pomology.format import significant
from pomology.report import figures
from pomology.report.article import comparable
from pomology.report.table import counted

SCALE = 1e9  # of the numbers in the cells
LABEL = "achieved GFLOP/s (higher is better)"
ROW_INCHES = 0.22
LEAST = 0.01  # a smaller number would be wider than its cell
LINE_POINTS = 15  # from one line of labels to the next
WITHOUT = "–"  # in a cell without a value


def figure(declaration, records):
    """Return a figure with the FLOP/s of every case, a panel for each kind of device.

    Rows are operations and shapes; columns are frameworks and precisions. The table has the
    intervals. What has no value is counted by status above the scale.
    """
    import pandas
    from matplotlib.colors import LogNorm

    cells = []
    statuses = Counter()
    for case in comparable(records, declaration.metric):
        rate = case.values.get(declaration.metric)
        config = case.config
        operation = " ".join(filter(None, (config["operation"], config.get("wrt"))))
        row = f"{operation} {config['shape'].replace('x', '×')}"
        column = f"{case.framework} {case.precision}"
        value = rate.value / SCALE if rate else None
        words = WITHOUT
        if rate:
            words = significant(value) if value >= LEAST else f"< {LEAST}"
        statuses.update([] if rate else [case.status])
        cells.append((config["operation"], case.kind.upper(), row, column, value, words))
    names = ["operation", "kind", "row", "column", "value", "words"]
    cells = pandas.DataFrame(cells, columns=names)
    if not cells["value"].notna().any():
        return None
    # Group the rows of an operation, in order of first appearance.
    cells = pandas.concat(rows for _, rows in cells.groupby("operation", sort=False))
    # A kind of device without any value has no panel.
    timed = cells[cells["kind"].isin(cells["kind"][cells["value"].notna()])]
    grids = {
        kind: rows.pivot_table(
            ["value", "words"], "row", "column", "first", sort=False, dropna=False
        )
        for kind, rows in timed.groupby("kind", sort=False)
    }
    heights = [0.6 + ROW_INCHES * len(grid) for grid in grids.values()]
    drawn = figures.figure_of(figures.WIDTH, 0.9 + sum(heights))
    axes = drawn.subplots(len(grids), 1, squeeze=False, height_ratios=heights)[:, 0]
    norm = LogNorm(cells["value"].min(), cells["value"].max())
    for axis, (kind, grid) in zip(axes, grids.items(), strict=True):
        _draw(axis, kind, grid, norm)
    bar_form = {"location": "bottom", "aspect": 50, "pad": 0.02, "label": LABEL}
    bar = drawn.colorbar(axes[-1].collections[0], ax=list(axes), **bar_form)
    bar.outline.set_visible(False)
    figures.plain_ticks(bar.ax.xaxis)
    if statuses:
        bar.ax.set_title(f"{WITHOUT}: {counted(statuses)}", fontweight="normal")
    return drawn


def _draw(axis, kind, grid, norm):
    """Draw the panel of a kind of device."""
    import seaborn

    # PyTorch's columns are next to each other, and so are those of MLX.
    order = sorted(grid["value"].columns, key=lambda column: column.split()[0], reverse=True)
    values = grid["value"][order].astype(float)
    words = grid["words"][order]
    form = {"ha": "center", "va": "center", "fontsize": figures.SIZE}
    annotated = {"annot": words, "fmt": "", "annot_kws": form}
    seaborn.heatmap(values, norm=norm, cmap="viridis", cbar=False, ax=axis, **annotated)
    # seaborn leaves cells without a value empty.
    without_value = values.isna() & words.notna()
    for row, column in zip(*without_value.to_numpy().nonzero(), strict=True):
        axis.text(column + 0.5, row + 0.5, words.iloc[row, column], **form)
    axis.set(xlabel=None, ylabel=None, title=kind)
    # The precision of each column, and the framework below the middle of its columns.
    places = [column + 0.5 for column in range(len(order))]
    of_framework = defaultdict(list)
    for place, column in zip(places, order, strict=True):
        of_framework[column.split()[0]].append(place)
    axis.set_xticks(places, [column.split()[1] for column in order])
    middles = [sum(each) / len(each) for each in of_framework.values()]
    axis.xaxis.remove_overlapping_locs = False  # a middle may be that of a column
    axis.set_xticks(middles, of_framework, minor=True)
    axis.tick_params(length=0, rotation=0)
    axis.tick_params(axis="x", which="minor", length=0, pad=LINE_POINTS)
