"""The figure of the memory bandwidths of passes over large arrays, by device and framework."""

from collections import Counter, defaultdict

from pomology.format import significant
from pomology.report import figures, peaks
from pomology.report.article import comparable
from pomology.report.table import counted
from pomology.views.roofline.roofs import READERS, STREAMS

METRIC = "bytes_per_s"
GB = 1e9
LABEL = "GB/s (higher is better)"
OPEN = {"measured": "fastest block, in brackets"}


def figure(records):
    """Return a figure with a panel for each device and framework, and a line for each pass.

    A filled marker is the median call, an open one the fastest block, of which the peaks are.
    """
    panels = defaultdict(list)
    statuses = Counter()
    for case in comparable(records, METRIC):
        operation = case.config.get("operation")
        if operation not in STREAMS:
            continue
        median = case.values.get(METRIC)
        if not median:
            statuses[case.status] += 1
            continue
        words = f"{significant(median.value / GB)} GB/s"
        blocks = peaks.best(case.records, METRIC, lambda record: record.config["operation"])
        fastest = [peak.rate for peak in blocks.values()]
        words += "".join(f" ({significant(rate.value / GB)})" for rate in fastest)
        label = f"{operation}, reads" if operation in READERS else operation
        line = figures.Line(label, ("measured", case.kind), words, [median], fastest)
        panels[f"{case.device}, {case.framework}"].append(line)
    remark = f"{figures.WITHOUT}{counted(statuses)}" if statuses else ""
    return figures.points_figure(panels, LABEL, GB, OPEN, remark)
