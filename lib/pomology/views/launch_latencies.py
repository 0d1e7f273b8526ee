"""The figure of the latencies of kernel launches, cold, repeated and after a pause."""

from pomology.report import figures

TITLES = {
    "launch_cold_s": "Cold launch",
    "launch_s": "Follow-up launch",
    "launch_paused_s": "After a pause (not in the article)",
}
APART = {"cpu": "function calls of a CPU"}  # which launches nothing
LABEL = "milliseconds of a launch (lower is better)"


def figure(declaration, records):
    """Return a figure with a panel for each latency, and a line for each device and framework.

    The function calls of a CPU have panels of their own.
    """
    return figures.metrics_figure(declaration, records, TITLES, LABEL, APART)
