"""Memory over time and by pass."""

from __future__ import annotations

import itertools
from typing import Any

from pomology.report.figures.style import COLOURS, GREY, PRODUCT_COLOURS, STYLE, _framework
from pomology.results import cases as results_cases

LOADS = {"easy": "A training that fits easily", "near": "One near the limit"}

# Quantity -> (its columns of a trace and their lines, its unit, what it is counted from).
MEMORY_PANELS = {
    "Memory (GB)": ({"footprint_bytes": "solid", "allocated_bytes": "dashed", "reserved_bytes": "dotted"}, 1e9, False),
    "Page faults (thousands)": ({"page_faults": "solid"}, 1e3, True),
}


def memory_figure(records: list[dict]) -> Any:
    """Memory and page faults after each step, as `memory_trace` keeps them: a row of panels for each quantity, a column
    for each load. The colour is framework and device. Returns a matplotlib Figure.

    Page faults are those since the first step ended. The warm-up is shaded: no slope is taken there.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    traced = [record for record in records if record["profile"] != "smoke" and record.get("memory_trace")]
    loads = [load for load in LOADS if any(record["config"].get("load") == load for record in traced)] or ["easy"]
    shown: dict[str, str] = {}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 5.5), layout="constrained")
        panels = figure.subplots(len(MEMORY_PANELS), len(loads), sharex="col", squeeze=False)
        for row, (label, (lines, unit, from_first)) in zip(panels, MEMORY_PANELS.items(), strict=True):
            row[0].set_ylabel(label, fontsize=9)
            for axis, load in zip(row, loads, strict=True):
                axis.grid(axis="y")
                axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
                axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
                for record in (one for one in traced if one["config"].get("load") == load):
                    kind = "cpu" if record["backend"] == "cpu" else "gpu"
                    colour = PRODUCT_COLOURS.get((record["framework"], kind), GREY)
                    shown[f"{_framework(record['framework'])}, {record['backend']}"] = colour
                    for column, line in lines.items():
                        steps, values = _trace(record, column)
                        lowest = values[0] if from_first and values else 0
                        values = [(value - lowest) / unit for value in values]
                        axis.plot(steps, values, color=colour, linestyle=line, linewidth=1.2)
                    if lines:
                        axis.axvspan(-0.5, record["memory_trace"]["warmup"] - 0.5, color=GREY, alpha=0.08, linewidth=0)
                axis.set_ylim(0, 1.08 * axis.get_ylim()[1])  # a flat line would be cut in half at the top
        for axis, load in zip(panels[0], loads, strict=True):
            axis.set_title(LOADS[load] if traced else "Nothing was measured that can be drawn", loc="left", fontsize=10)
        for axis in panels[-1]:
            axis.set_xlabel("step")
        handles = [Line2D([], [], color=colour, label=name) for name, colour in shown.items()]
        drawn = MEMORY_PANELS["Memory (GB)"][0].items()
        handles += [
            Line2D([], [], color=GREY, linestyle=line, label=column.removesuffix("_bytes"))
            for column, line in drawn
            if any(_trace(record, column)[1] for record in traced)
        ]
        if handles:
            figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


def passes_figure(records: list[dict]) -> Any:
    """Seconds of each step above and memory after it below, as `memory_trace` keeps them, a column for each case that
    has one. Returns a matplotlib Figure."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    traced = [one for one in records if one["profile"] != "smoke" and len(_trace_of(one)) > 1]
    lines = MEMORY_PANELS["Memory (GB)"][0]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        panels = figure.subplots(2, max(1, len(traced)), sharex="col", sharey="row", squeeze=False)
        for axis in panels.flat:
            axis.grid(axis="y")
            axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        panels[0][0].set_ylabel("Seconds of a step", fontsize=9)
        panels[1][0].set_ylabel("Memory (GB)", fontsize=9)
        if not traced:
            panels[0][0].set_title("Nothing was measured that can be drawn", loc="left", fontsize=10)
        for (above, below), record in zip(panels.T, traced, strict=False):
            kind = "cpu" if record["backend"] == "cpu" else "gpu"
            colour = COLOURS[f"this machine, {kind}"]
            config = record["config"]
            above.set_title(
                f"{results_cases.chip_name(record)}\n{config['model']}, batch {config['batch_size']}", fontsize=9
            )
            steps, ends = _trace(record, "t_s")
            pairs = itertools.pairwise(zip(steps, ends, strict=True))
            each = [(end - begin) / (last - first) for (first, begin), (last, end) in pairs]
            above.plot(steps[1:], each, "o-", color=colour)
            for column, line in lines.items():
                steps, values = _trace(record, column)
                label = column.removesuffix("_bytes") if steps else None
                below.plot(steps, [value / 1e9 for value in values], color=colour, linestyle=line, label=label)
            below.set_xlabel("step")
            below.legend(frameon=False, fontsize=8)
        for axis in panels[:, 0]:
            axis.set_ylim(0, 1.1 * axis.get_ylim()[1])
    return figure


def _trace_of(record: dict) -> list:
    return record.get("memory_trace", {}).get("rows", [])


def _trace(record: dict, column: str) -> tuple[list[int], list[float]]:
    """The steps and values of a column of a trace of memory; nothing where it was not read in every step."""
    trace = record["memory_trace"]
    names = trace["columns"]
    values = [row[names.index(column)] for row in trace["rows"]] if column in names else [None]
    return ([], []) if None in values else ([row[names.index("step")] for row in trace["rows"]], values)
