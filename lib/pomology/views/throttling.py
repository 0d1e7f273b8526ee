"""Figure of a long training: throughput, temperature, clock and power over time."""

from pomology.machine.sampler import Sample
from pomology.report.figures import curves_figure

RATE = "% of the first minute's\nthroughput"
HEAT = {
    "Temperature (°C)": ("temperature_c", 1),
    "Clock (GHz)": ("clock_hz", 1e9),
    "GPU load (%)": ("gpu_load", 0.01),
    "Power (W)": ("power_w", 1),
    "Thermal level": ("thermal_level", 1),
}


def figure(_, records):
    """Return a figure of the throughput in % of the first minute's, and of the thermal traces."""
    import pandas  # late, so that its memory does not count in the footprint

    panels = {name: [] for name in (RATE, *HEAT)}
    for record in records:
        if "rate_left" not in record.metrics or record.profile == "smoke" or record.scaled:
            continue
        windows = pandas.DataFrame(record.steady("step_s"), columns=["steps", "seconds"])
        middles = (windows["seconds"].cumsum() - windows["seconds"] / 2) / 60
        rate = 100 * record.metrics["step_first_s"].value * windows["steps"] / windows["seconds"]
        panels[RATE].append((record, rate.set_axis(middles), ""))
        # Older runs have no load in their samples.
        samples = pandas.DataFrame(record.trace or []).reindex(columns=range(len(Sample._fields)))
        samples.columns = Sample._fields
        for quantity, (name, unit) in HEAT.items():
            values = samples.set_index(samples["t_s"] / 60)[name].dropna() / unit
            if len(values):
                panels[quantity].append((record, values, ""))
    return curves_figure(panels, "minutes")
