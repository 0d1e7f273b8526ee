"""What was traced over time: memory after each step and by pass; a rate, and the heat of the machine beside it."""

from collections.abc import Callable
from typing import Any

from pomology.machine.sampler import Sample
from pomology.report.declaration import Declaration
from pomology.report.figures.style import GREY, WIDTH, figure_of, key, nothing, shade, styled
from pomology.results import cases
from pomology.results.record import Record

LOADS = {"easy": "A training that fits easily", "near": "One near the limit"}
DASHES = {"footprint": (), "allocated": (4, 1.5), "reserved": (1, 1)}

# Of the figure of a sustained load.
RATE = "% of the first rate"
TRACED = {
    "Temperature (°C)": ("temperature_c", 1),
    "Clock (GHz)": ("clock_hz", 1e9),
    "Power (W)": ("power_w", 1),
}
TRACED |= {"Thermal level": ("thermal_level", 1)}

# Label of a row of panels -> what it makes of a trace: a column for each line.
QUANTITIES: dict[str, Callable[[Any], Any]] = {
    "Memory (GB)": lambda trace: trace.filter([*DASHES]) / 1e9,
    "Page faults (thousands)": lambda trace: (
        trace.filter(["page_faults"]).diff().fillna(0).cumsum() / 1e3
    ),
    # Of a long trace not every step is kept.
    "Seconds per step": lambda trace: (
        trace.filter(["t_s"]).diff().div(trace["step"].diff(), axis=0)
    ),
}


@styled
def memory_figure(_: Declaration, records: list[Record]) -> Any:
    """Memory and page faults after each step, as `memory_trace` keeps them: a row of panels for each quantity, a column
    for each load. The colour is framework and device; the warm-up is shaded, since no slope is taken there. Page faults
    are those since the first step ended."""
    columns = {
        title: [case for case in records if case.config.get("load") == load]
        for load, title in LOADS.items()
    }
    return _traces_figure(columns, ("Memory (GB)", "Page faults (thousands)"))


@styled
def passes_figure(records: list[Record]) -> Any:
    """Seconds of each step above and memory after it below, as `memory_trace` keeps them, a column for each case that
    has several. The warm-up is shaded. Returns a matplotlib Figure."""
    several = [record for record in records if len(_rows(record)) > 1]
    titles = [
        f"{cases.chip_name(case)}\n{case.config['model']}, batch {case.config['batch_size']}"
        for case in several
    ]
    columns = {title: [record] for title, record in zip(titles, several, strict=True)}
    return _traces_figure(columns, ("Seconds per step", "Memory (GB)"))


@styled
def sustained_figure(_: Declaration, records: list[Record]) -> Any:
    """The rate of each window in % of that of the first minute, and what was traced of heat: a panel for each."""
    import pandas

    rows, colours = [], {}
    for number, record in enumerate(
        record for record in cases.comparable(records) if "rate_left" in record.metrics
    ):
        series, minutes = _series(record), 0.0
        colours[series] = shade(record)
        for steps, seconds in record.steady("step_s"):
            rate = 100 * steps / seconds * record.metrics["step_first_s"].value
            rows.append((RATE, minutes + seconds / 120, rate, series, number))
            minutes += seconds / 60
        for sample in record.trace or []:
            known = dict(zip(Sample._fields, sample, strict=False))
            heat = ((panel, known.get(name), scale) for panel, (name, scale) in TRACED.items())
            rows += [
                (panel, known["t_s"] / 60, x / scale, series, number)
                for panel, x, scale in heat
                if x is not None
            ]
    if not rows:
        return nothing()
    frame = pandas.DataFrame(rows, columns=["panel", "minutes", "value", "series", "record"])
    panels = [panel for panel in (RATE, *TRACED) if panel in set(frame["panel"])]
    figure = figure_of(WIDTH, 1 + 1.8 * len(panels))
    for panel, axis in zip(
        panels, figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0], strict=True
    ):
        _draw(axis, frame[frame["panel"] == panel], "minutes", panel, colours, least=1.0)
    key(
        figure,
        {series: {"color": colour, "linestyle": "-"} for series, colour in colours.items()},
        ncols=4,
    )
    return figure


def _draw(
    axis: Any,
    frame: Any,
    x: str,
    label: str | None,
    colours: dict[str, str],
    least: float = 0,
    **look,
) -> None:
    """A line for each record. least: the least that the axis reaches up to."""
    import seaborn

    form = {
        "units": "record",
        "estimator": None,
        "hue": "series",
        "palette": colours,
        "legend": False,
    }
    seaborn.lineplot(frame, x=x, y="value", linewidth=1.2, ax=axis, **form, **look)
    axis.set(ylabel=label)
    axis.set_ylim(
        0, 1.08 * max(least, axis.get_ylim()[1])
    )  # a flat line would be cut in half at the top
    axis.grid(axis="y")


def _rows(record: Record) -> list:
    return [] if record.profile == "smoke" else (record.memory_trace or {}).get("rows", [])


def _series(record: Record) -> str:
    return f"{cases.framework_name(record)}, {record.backend}"


def _traces_figure(columns: dict[str, list[Record]], quantities: tuple[str, ...]) -> Any:
    import pandas
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    columns = {
        title: [record for record in records if _rows(record)] for title, records in columns.items()
    }
    columns = {title: records for title, records in columns.items() if records}
    if not columns:
        return nothing()
    colours = {_series(record): shade(record) for records in columns.values() for record in records}
    figure = figure_of(WIDTH, 5.5)
    drawn = set()
    panels = figure.subplots(len(quantities), len(columns), sharex="col", squeeze=False)
    for (title, records), axes in zip(columns.items(), panels.T, strict=True):
        axes[0].set_title(title)
        axes[-1].set_xlabel("step")
        for axis, quantity in zip(axes, quantities, strict=True):
            frames = []
            for number, record in enumerate(records):
                trace = pandas.DataFrame(_rows(record), columns=record.memory_trace["columns"])
                trace = trace.dropna(axis=1).rename(
                    columns=lambda name: name.removesuffix("_bytes")
                )
                lines = QUANTITIES[quantity](trace).assign(
                    step=trace["step"], series=_series(record), record=number
                )
                frames.append(lines.melt(["step", "series", "record"], var_name="line"))
            for warmup in {record.memory_trace["warmup"] for record in records}:
                axis.axvspan(-0.5, warmup - 0.5, color=GREY, alpha=0.08, linewidth=0)
            frame = pandas.concat(frames, ignore_index=True)
            drawn |= {*frame["line"]}
            look = {"style": "line", "dashes": {line: DASHES.get(line, ()) for line in drawn}}
            look |= {"marker": "o", "markeredgewidth": 0} if frame["step"].nunique() < 30 else {}
            _draw(axis, frame, "step", quantity if axis in panels[:, 0] else None, colours, **look)
            axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    looks = {series: {"color": colour, "linestyle": "-"} for series, colour in colours.items()}
    looks |= {
        line: {"color": GREY, "linestyle": (0, dash)}
        for line, dash in DASHES.items()
        if line in drawn
    }
    key(figure, looks, ncols=4)
    return figure
