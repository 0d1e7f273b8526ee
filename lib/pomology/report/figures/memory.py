"""What was traced over time: memory after each step, and a rate with the machine's heat."""

from collections.abc import Callable, Sequence
from typing import Any

from pomology.machine.sampler import Sample
from pomology.report.declaration import Declaration
from pomology.report.figures.style import GREY, WIDTH, figure_of, key, nothing, shade, styled
from pomology.results import cases
from pomology.results.record import Record

LOADS = {"easy": "A training that fits easily", "near": "One near the limit"}
DASHES = {"footprint": "solid", "allocated": "dashed", "reserved": "dotted"}
MEMORY = "Memory (GB)"
FAULTS = "Page faults (thousands)"
STEP = "Seconds per step"
RATE = "% of the first rate"
HEAT = {
    "Temperature (°C)": ("temperature_c", 1),
    "Clock (GHz)": ("clock_hz", 1e9),
    "Power (W)": ("power_w", 1),
    "Thermal level": ("thermal_level", 1),
}


@styled
def memory_figure(_: Declaration, records: list[Record]) -> Any:
    """Return a figure of memory and page faults after each step, a column of panels for each load.

    The warm-up is shaded, since no slope is taken there. Page faults are those since the first
    step.
    """
    columns = {title: [] for title in LOADS.values()}
    warmup = 0
    for record in records:
        if _has_trace(record) and record.config.get("load") in LOADS:
            columns[LOADS[record.config["load"]]].append(record)
            warmup = record.memory_trace["warmup"]
    figure = _lines_figure(columns, _memory_lines, (MEMORY, FAULTS), "step")
    for axis in figure.axes:
        axis.axvspan(-0.5, warmup - 0.5, color=GREY, alpha=0.08, linewidth=0)
    return figure


@styled
def passes_figure(records: list[Record]) -> Any:
    """Return a figure of each step's seconds and the memory after it, a column for each case."""
    columns = {}
    for record in records:
        if _has_trace(record) and len(record.memory_trace["rows"]) > 1:
            model = f"{record.config['model']}, batch {record.config['batch_size']}"
            columns[f"{cases.chip_name(record)}\n{model}"] = [record]
    return _lines_figure(columns, _memory_lines, (STEP, MEMORY), "step")


@styled
def sustained_figure(_: Declaration, records: list[Record]) -> Any:
    """Return a figure of the rate in % of the first minute's, and of what was traced of heat."""
    measured = [record for record in records if "rate_left" in record.metrics]
    measured = [record for record in measured if record.profile != "smoke" and not record.scaled]
    return _lines_figure({"": measured}, _heat_lines, (RATE, *HEAT), "minutes")


def _has_trace(record: Record) -> bool:
    return record.profile != "smoke" and bool((record.memory_trace or {}).get("rows"))


def _memory_lines(record: Record) -> dict[tuple[str, str], Any]:
    """Return the memory trace: (quantity, name of the line) -> a pandas Series over the steps.

    What was not read in every step is left out.
    """
    import pandas

    names = record.memory_trace["columns"]
    trace = pandas.DataFrame(record.memory_trace["rows"], columns=names)
    trace = trace.dropna(axis=1).set_index("step")
    lines = {}
    for name in DASHES:
        if f"{name}_bytes" in trace:
            lines[MEMORY, name] = trace[f"{name}_bytes"] / 1e9
    if "page_faults" in trace:
        lines[FAULTS, ""] = (trace["page_faults"] - trace["page_faults"].iloc[0]) / 1e3
    if "t_s" in trace:  # of a long trace not every step is kept
        lines[STEP, ""] = (trace["t_s"].diff() / trace.index.to_series().diff()).dropna()
    return lines


def _heat_lines(record: Record) -> dict[tuple[str, str], Any]:
    """Return the rate of each window, at its middle, and the samples of heat, over the minutes."""
    import pandas

    windows = pandas.DataFrame(record.steady("step_s"), columns=["steps", "seconds"])
    minutes = (windows["seconds"].cumsum() - windows["seconds"] / 2) / 60
    rate = 100 * record.metrics["step_first_s"].value * windows["steps"] / windows["seconds"]
    lines = {(RATE, ""): rate.set_axis(minutes)}
    samples = pandas.DataFrame(record.trace or []).rename(columns=dict(enumerate(Sample._fields)))
    for quantity, (name, unit) in HEAT.items():
        if name in samples and samples[name].notna().any():
            lines[quantity, ""] = (samples[name] / unit).set_axis(samples["t_s"] / 60).dropna()
    return lines


def _lines_figure(
    columns: dict[str, list[Record]], lines_of: Callable, wanted: Sequence[str], x: str
) -> Any:
    """Return panels: a row for each wanted quantity, a column for each title."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    traces = {
        title: [(record, lines_of(record)) for record in records]
        for title, records in columns.items()
        if records
    }
    drawn = {each for column in traces.values() for _, lines in column for each in lines}
    quantities = [name for name in wanted if name in dict(drawn)]
    if not quantities:
        return nothing()
    figure = figure_of(WIDTH, 1 + 2.1 * len(quantities))
    panels = figure.subplots(len(quantities), len(traces), sharex="col", squeeze=False)
    looks = {}
    for axes, (title, column) in zip(panels.T, traces.items(), strict=True):
        axes[0].set_title(title)
        axes[-1].set_xlabel(x)
        for record, lines in column:
            colour = shade(record)
            looks[f"{cases.framework_name(record)}, {record.backend}"] = {"color": colour}
            for (quantity, name), values in lines.items():
                if quantity in quantities:
                    look = {
                        "linestyle": DASHES.get(name),
                        "marker": "o" if len(values) < 30 else "",
                    }
                    axis = axes[quantities.index(quantity)]
                    axis.plot(values, color=colour, linewidth=1.2, markersize=3, **look)
    for axes, quantity in zip(panels, quantities, strict=True):
        axes[0].set_ylabel(quantity)
    for axis in panels.flat:
        axis.set_ylim(0, 1.08 * axis.get_ylim()[1])  # a flat line would be cut in half at the top
        axis.grid(axis="y")
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
        axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    dashes = {name: dash for name, dash in DASHES.items() if (MEMORY, name) in drawn}
    key(figure, looks | {name: {"color": GREY, "ls": dash} for name, dash in dashes.items()})
    return figure
