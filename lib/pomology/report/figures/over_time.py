"""The rate of one training step over time, and the heat of the machine beside it."""

from __future__ import annotations

from typing import Any

from pomology.machine.sampler import Sample
from pomology.report.declaration import Declaration
from pomology.report.figures.style import GREY, SHADES, figure_of, key, nothing, styled
from pomology.results import cases
from pomology.results.record import Record

RATE = "% of the first rate"
TRACED = {"Temperature (°C)": ("temperature_c", 1), "Clock (GHz)": ("clock_hz", 1e9), "Power (W)": ("power_w", 1)}
TRACED |= {"Thermal level": ("thermal_level", 1)}


@styled
def sustained_figure(_: Declaration, records: list[Record]) -> Any:
    """The rate of each window in % of that of the first minute, and what was traced of heat: a panel for each. Returns
    a matplotlib Figure."""
    import pandas
    import seaborn

    rows, colours = [], {}
    for number, record in enumerate(record for record in cases.comparable(records) if "rate_left" in record.metrics):
        series, minutes = f"{cases.framework_name(record)}, {record.backend}", 0.0
        colours[series] = SHADES.get((record.framework, cases.kind(record)), GREY)
        for steps, seconds in record.blocks["step_s"]["steady"]:
            rate = 100 * steps / seconds * record.metrics["step_first_s"].value
            rows.append((RATE, minutes + seconds / 120, rate, series, number))
            minutes += seconds / 60
        for sample in record.trace or []:
            known = dict(zip(Sample._fields, sample, strict=False))
            heat = ((panel, known.get(name), scale) for panel, (name, scale) in TRACED.items())
            rows += [(panel, known["t_s"] / 60, x / scale, series, number) for panel, x, scale in heat if x is not None]
    if not rows:
        return nothing()
    frame = pandas.DataFrame(rows, columns=["panel", "minutes", "value", "series", "record"])
    panels = [panel for panel in (RATE, *TRACED) if panel in set(frame["panel"])]
    figure = figure_of(8, 1 + 1.8 * len(panels))
    for panel, axis in zip(panels, figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0], strict=True):
        shown = {"x": "minutes", "y": "value", "hue": "series", "palette": colours, "units": "record", "legend": False}
        seaborn.lineplot(frame[frame["panel"] == panel], estimator=None, linewidth=1.2, ax=axis, **shown)
        axis.set(ylabel=panel)
        axis.set_ylim(0, 1.08 * max(1, axis.get_ylim()[1]))
        axis.grid(axis="y")
    key(figure, {series: {"color": colour, "linestyle": "-"} for series, colour in colours.items()}, ncols=4)
    return figure
