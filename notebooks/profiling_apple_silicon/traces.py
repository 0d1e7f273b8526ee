"""For the notebook `memory`: memory, and page faults, after each step."""

from collections import defaultdict

from pomology.report.figures import DASHES, curves_figure


def figure(_, records):
    """Return a figure of memory, and of page faults since the first step, after each step.

    What was not read in every step is left out, and so are smoke tests.
    """
    import pandas  # not before the memory is measured

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
    return curves_figure(panels, "step")
