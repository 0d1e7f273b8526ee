"""Figure of memory and page faults per step of a training."""

from collections import defaultdict

from pomology.report.figures import DASHES, curves_figure
from pomology.results import cases
from pomology.results.repeats import pool

SMOOTHED = 60  # windows of a running median of all steps
SAME = 0.01  # relative difference below which footprint and resident memory are one curve


def _of_load(config):
    return f"load {config['load']}"


def growth_figure(declaration, records):
    """Return the figure of memory as its change since the first step, which shows small growth.

    Memory is the running median of a sixtieth of the steps.
    """
    return figure(declaration, records, change=True)


def figure(_, records, panel=_of_load, timed=False, change=False):
    """Return a figure of memory after each step, and of page faults since the first step.

    panel: returns the name of a case's panels from its settings. timed: whether to add a panel with
    the time of each step. change: whether memory is that since the first step. Quantities that were
    not read in every step are omitted, and so are smoke tests, cases of one step and repeats that
    are left out of means.
    """
    import pandas  # imported late, because it would count as memory of the training

    panels = defaultdict(list)
    # A repeat that was disturbed is in no mean, and in no figure.
    left_out = {(case.first.case, repeat) for case in pool(records) for repeat in case.left_out}
    traced = [
        record
        for record in records
        if record.profile != "smoke"
        and len(record.memory_trace.get("rows", ())) > 1
        and (record.case, record.repeat) not in left_out
    ]
    # A framework that makes few steps would be a stub beside one that makes many.
    several = len({record.framework for record in traced}) > 1
    for record in sorted(traced, key=lambda record: record.framework == "mlx"):
        names = record.memory_trace["columns"]
        trace = pandas.DataFrame(record.memory_trace["rows"], columns=names)
        trace = trace.dropna(axis=1).set_index("step")
        words = panel(record.config)
        words += f", {cases.framework_name(record.framework)}" if several else ""
        drawn = [name for name in DASHES if f"{name}_bytes" in trace]
        if {"footprint", "resident"} <= set(drawn):
            apart = (trace["resident_bytes"] / trace["footprint_bytes"] - 1).abs().max()
            if apart < SAME:
                drawn.remove("resident")
        for name in drawn:
            quantity, values = "GB", trace[f"{name}_bytes"] / 1e9
            if change:
                quantity = f"MB since step {trace.index[0]}, smoothed"
                values = 1000 * (values - values.iloc[0])
                # What one step allocates and the next one returns would hide the growth.
                window = max(1, len(values) // SMOOTHED)
                values = values.rolling(window, center=True, min_periods=1).median()
            panels[f"{quantity}, {words}"].append((record, values, name))
        if "page_faults" in trace:
            faults = trace["page_faults"] - trace["page_faults"].iloc[0]
            panels[f"page faults, {words}"].append((record, faults, ""))
        if timed:
            steps_s = trace["t_s"].diff() / trace.index.to_series().diff()
            panels[f"s per step, {words}"].append((record, steps_s, ""))
    return curves_figure(panels, "step", one_axis=not several)
