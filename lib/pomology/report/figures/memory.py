"""What was traced over time: memory after each step, and a rate with the machine's heat."""

from collections import defaultdict
from typing import Any

from pomology.machine.sampler import Sample
from pomology.report.declaration import Declaration
from pomology.report.figures import style
from pomology.results import cases
from pomology.results.record import Record

DASHES = {"footprint": "solid", "allocated": "dashed", "reserved": "dotted"}
RATE = "% of the first rate"
HEAT = {
    "Temperature (°C)": ("temperature_c", 1),
    "Clock (GHz)": ("clock_hz", 1e9),
    "Power (W)": ("power_w", 1),
    "Thermal level": ("thermal_level", 1),
}


def memory_figure(_: Declaration, records: list[Record]) -> Any:
    """Return a figure of memory, and of page faults since the first step, after each step.

    What was not read in every step is left out, and so are smoke tests.
    """
    import pandas

    panels = defaultdict(list)
    for record in records:
        if record.profile == "smoke" or not record.memory_trace:
            continue
        names = record.memory_trace["columns"]
        trace = pandas.DataFrame(record.memory_trace["rows"], columns=names)
        trace = trace.dropna(axis=1).set_index("step")
        load = record.config["load"]
        for name in DASHES:
            if f"{name}_bytes" in trace:
                panels[f"GB, load {load}"].append((record, trace[f"{name}_bytes"] / 1e9, name))
        if "page_faults" in trace:
            faults = (trace["page_faults"] - trace["page_faults"].iloc[0]) / 1e3
            panels[f"1,000 faults, load {load}"].append((record, faults, ""))
    return _panels_figure(panels, "step")


def sustained_figure(_: Declaration, records: list[Record]) -> Any:
    """Return a figure of the rate in % of the first minute's, and of what was traced of heat."""
    import pandas

    panels = {name: [] for name in (RATE, *HEAT)}
    for record in records:
        if "rate_left" not in record.metrics or record.profile == "smoke" or record.scaled:
            continue
        windows = pandas.DataFrame(record.steady("step_s"), columns=["steps", "seconds"])
        middles = (windows["seconds"].cumsum() - windows["seconds"] / 2) / 60
        rate = 100 * record.metrics["step_first_s"].value * windows["steps"] / windows["seconds"]
        panels[RATE].append((record, rate.set_axis(middles), ""))
        samples = pandas.DataFrame(record.trace or [], columns=Sample._fields)
        for quantity, (name, unit) in HEAT.items():
            values = samples.set_index(samples["t_s"] / 60)[name].dropna() / unit
            if len(values):
                panels[quantity].append((record, values, ""))
    return _panels_figure(panels, "minutes")


def _panels_figure(panels: dict[str, list[tuple]], x: str) -> Any:
    """Return panels below each other. panels: quantity -> record, pandas Series, name of dashes."""
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
