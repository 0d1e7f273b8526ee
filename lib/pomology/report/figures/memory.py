"""Memory over time and by pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pomology.report.declaration import Declaration
from pomology.report.figures.style import COLOURS, DEVICES, GREY, SHADES, figure_of, nothing, styled
from pomology.results import cases
from pomology.results.record import Record

LOADS = {"easy": "A training that fits easily", "near": "One near the limit"}
MEMORY = ("footprint", "allocated", "reserved")
DASHES = dict(zip((*MEMORY, "page_faults", "t_s"), ("", (4, 1.5), (1, 1), "", ""), strict=True))

# Label of a row of panels -> what it makes of a trace: a column for each line.
QUANTITIES: dict[str, Callable[[Any], Any]] = {
    "Memory (GB)": lambda trace: trace.filter(MEMORY) / 1e9,
    "Page faults (thousands)": lambda trace: trace.filter(["page_faults"]).diff().fillna(0).cumsum() / 1e3,
    # Of a long trace not every step is kept.
    "Seconds of a step": lambda trace: trace.filter(["t_s"]).diff().div(trace["step"].diff(), axis=0),
}


@styled
def memory_figure(_: Declaration, records: list[Record]) -> Any:
    """Memory and page faults after each step, as `memory_trace` keeps them: a row of panels for each quantity, a column
    for each load. The colour is framework and device. Returns a matplotlib Figure.

    Page faults are those since the first step ended. The warm-up is shaded: no slope is taken there.
    """
    loads = [(title, [one for one in records if one.config.get("load") == load]) for load, title in LOADS.items()]
    colours = {_framework(one): SHADES.get((one.framework, cases.kind(one)), GREY) for one in records}
    return _traces_figure(loads, ("Memory (GB)", "Page faults (thousands)"), _framework, colours)


@styled
def passes_figure(records: list[Record]) -> Any:
    """Seconds of each step above and memory after it below, as `memory_trace` keeps them, a column for each case that
    has several. The warm-up is shaded. Returns a matplotlib Figure."""
    columns = [
        (f"{cases.chip_name(one)}\n{one.config['model']}, batch {one.config['batch_size']}", [one])
        for one in records
        if len(_rows(one)) > 1
    ]
    return _traces_figure(columns, ("Seconds of a step", "Memory (GB)"), _device, COLOURS)


def _device(record: Record) -> str:
    return DEVICES["measured", cases.kind(record)]


def _framework(record: Record) -> str:
    return f"{cases.FRAMEWORKS.get(record.framework, record.framework)}, {record.backend}"


def _rows(record: Record) -> list:
    return [] if record.profile == "smoke" else (record.memory_trace or {}).get("rows", [])


def _traces_figure(columns: list, quantities: tuple[str, ...], series: Callable, colours: dict) -> Any:
    """A panel for each quantity and column. columns: (title, records). series: what a record's colour stands for, one
    of `colours`."""
    import pandas
    import seaborn
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    columns = [(title, [record for record in shown if _rows(record)]) for title, shown in columns]
    columns = [(title, shown) for title, shown in columns if shown]
    if not columns:
        return nothing()
    figure = figure_of(8, 5.5)
    panels = figure.subplots(len(quantities), len(columns), sharex="col", squeeze=False)
    for (title, records), axes in zip(columns, panels.T, strict=True):
        axes[0].set_title(title)
        axes[-1].set_xlabel("step")
        for axis, quantity in zip(axes, quantities, strict=True):
            frames = []
            for number, record in enumerate(records):
                trace = pandas.DataFrame(_rows(record), columns=record.memory_trace["columns"])
                trace = trace.dropna(axis=1).rename(columns=lambda name: name.removesuffix("_bytes"))
                lines = QUANTITIES[quantity](trace).assign(step=trace["step"], series=series(record), record=number)
                frames.append(lines.melt(["step", "series", "record"], var_name="line"))
            for warmup in {record.memory_trace["warmup"] for record in records}:
                axis.axvspan(-0.5, warmup - 0.5, color=GREY, alpha=0.08, linewidth=0)
            frame = pandas.concat(frames, ignore_index=True)
            look = {"hue": "series", "palette": colours, "style": "line", "dashes": DASHES}
            look |= {"marker": "o", "markeredgewidth": 0} if frame["step"].nunique() < 30 else {}
            seaborn.lineplot(frame, x="step", y="value", units="record", estimator=None, linewidth=1.2, ax=axis, **look)
            axis.set(ylabel=None)
            axis.set_ylim(0, 1.08 * axis.get_ylim()[1])  # a flat line would be cut in half at the top
            axis.grid(axis="y")
            axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    for axis, quantity in zip(panels[:, 0], quantities, strict=True):
        axis.set_ylabel(quantity)
    key: dict[str, Any] = {}
    for axis in panels.flat:
        key |= dict(zip(*axis.get_legend_handles_labels()[::-1], strict=True))
        if axis.get_legend():
            axis.get_legend().remove()
    for name in key.keys() & {*MEMORY}:
        key[name].set_color(GREY)
    shown = [name for name in (*colours, *MEMORY) if name in key]
    figure.legend([key[name] for name in shown], shown, loc="outside lower center", ncols=4)
    return figure
