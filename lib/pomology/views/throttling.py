"""Sustained load: its first and last part, how long it lasted, and its throughput over time."""

from itertools import accumulate

from pomology.format import clock_time, significant, span
from pomology.machine.sampler import Sample
from pomology.report.figures import curves_figure
from pomology.results import repeats

MINUTE_S = 60.0
HOT_S = 590.0  # of a load that may heat a laptop: about the ten minutes of the profile `article`
HEAT = {
    "Temperature (°C)": ("temperature_c", 1),
    "Clock (GHz)": ("clock_hz", 1e9),
    "GPU load (%)": ("gpu_load", 0.01),
    "Power (W)": ("power_w", 1),
    "Thermal level": ("thermal_level", 1),
}


def ends(windows):
    """Return the windows of the first and of the last minute, of a load below two its halves.

    windows: blocks of steps without a pause between them. The middle of a window decides.
    """
    ended_s = list(accumulate(window.seconds for window in windows))
    total_s = ended_s[-1]
    # A window longer than a minute is a part of its own.
    part_s = min(max(MINUTE_S, *(window.seconds for window in windows)), total_s / 2)
    first, last = [], []
    for window, end_s in zip(windows, ended_s, strict=True):
        middle_s = end_s - window.seconds / 2
        if middle_s <= part_s:
            first.append(window)
        if middle_s >= total_s - part_s:
            last.append(window)
    return first, last


def duration_s(record):
    """Return the seconds that the windows of a load lasted."""
    return sum(seconds for _, seconds in record.steady("step_s"))


def duration_text(records):
    """Return how long each load lasted, and which of its parts are compared; "" for smoke runs."""
    texts = []
    for case in repeats.pool(record for record in records if record.profile != "smoke"):
        used = [record for record in case.records if record.repeat in case.used]
        lasted = sorted(map(duration_s, used))
        if not lasted or not lasted[0]:
            continue
        part = _part(lasted)
        texts.append(
            f"That is the throughput of the last {part} as a share of the first {part} of a load "
            f"whose timed steps lasted {span(lasted[0], lasted[-1], clock_time)}, on the "
            f"{case.device} in {case.framework}."
        )
        kept = case.values.get("rate_left")
        if kept and kept.low is not None and kept.low <= 1 <= kept.high:
            loss = significant(100 * (1 - kept.low), 2)
            texts.append(f"No loss is established; a loss of up to {loss} % is possible.")
        elif kept and kept.value > 1:
            texts.append("Above 100 % it was no slower at the end.")
        if lasted[0] < HOT_S:
            texts.append("A machine may take longer than this load to become hot.")
        if not any(_temperatures(record) for record in used):
            texts.append("No temperature could be read.")
    return " ".join(texts)


def _temperatures(record):
    """Return the temperatures that were read during a load, in degrees Celsius."""
    samples = [dict(zip(Sample._fields, values, strict=False)) for values in record.trace or []]
    read = [sample.get("temperature_c") for sample in samples]
    return [temperature for temperature in read if temperature is not None]


def _part(lasted):
    """Return which parts of loads are compared. lasted: their seconds."""
    long = [seconds >= 2 * MINUTE_S for seconds in lasted]
    if all(long):
        return "minute"
    return "minute or half" if any(long) else "half"


def figure(_, records):
    """Return a figure of the throughput in % of the first part's, and of the thermal traces."""
    import pandas  # late, so that its memory does not count in the footprint

    shown = [
        record
        for record in records
        if "rate_left" in record.metrics and record.profile != "smoke" and not record.scaled
    ]
    lasted = sorted(map(duration_s, shown)) or [0.0]
    rate_axis = f"% of the first {_part(lasted)}'s\nthroughput"
    panels = {name: [] for name in (rate_axis, *HEAT)}
    for record in shown:
        windows = pandas.DataFrame(record.steady("step_s"), columns=["steps", "seconds"])
        middles = (windows["seconds"].cumsum() - windows["seconds"] / 2) / 60
        rate = 100 * record.metrics["step_first_s"].value * windows["steps"] / windows["seconds"]
        panels[rate_axis].append((record, rate.set_axis(middles), ""))
        # Older runs have no load in their samples.
        samples = pandas.DataFrame(record.trace or []).reindex(columns=range(len(Sample._fields)))
        samples.columns = Sample._fields
        for quantity, (name, unit) in HEAT.items():
            values = samples.set_index(samples["t_s"] / 60)[name].dropna() / unit
            if len(values):
                panels[quantity].append((record, values, ""))
    together = span(lasted[0], lasted[-1], clock_time)
    return curves_figure(panels, f"minutes; the load lasted {together}")
