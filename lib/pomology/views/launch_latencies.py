"""The figure of the latencies of kernel launches, cold, repeated and after a pause."""

from pomology.report import figures

TITLES = {
    "launch_cold_s": "Cold launch",
    "launch_s": "Follow-up launch",
    "launch_paused_s": "After a pause (not in the article)",
}
LABEL = "milliseconds of a launch (lower is better)"


def figure(declaration, records):
    """Return a figure with a panel for each latency, and a line for each device and framework."""
    return figures.metrics_figure(declaration, records, TITLES, LABEL)
