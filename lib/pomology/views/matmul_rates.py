"""Figure of the rate of a matmul over its size, in each precision."""

from collections import Counter, defaultdict

from pomology.report import figures, peaks
from pomology.report.article import comparable

LABEL = "n of n × n matrices"


def figure(declaration, records, gpus=()):
    """Return a figure with a panel for each precision, and a line for each device and framework.

    Sizes that were not timed are counted below. gpus: this machine's, whose data sheets give a
    horizontal line where they state a peak. fp32 is true fp32 here: TF32 is a precision of its own.
    """
    curves = defaultdict(dict)
    sheets = defaultdict(dict)
    statuses = Counter()
    for case in comparable(records, declaration.metric):
        if case.config["operation"] != "matmul":
            continue
        rate = case.values.get(declaration.metric)
        if not rate:
            statuses[case.status] += 1
            continue
        size = int(case.config["shape"].split("x")[-1])
        line = f"{case.device}, {case.framework}", (case.first.framework, case.kind)
        curves[case.precision].setdefault(line, []).append((size, rate))
        peak = peaks.own_sheet(case, gpus, true_fp32=True)
        if peak:
            sheets[case.precision][f"data sheet, {case.device}"] = peak
    remark = f"{figures.WITHOUT}{figures.counts(statuses)}" if statuses else ""
    scale = figures.scale_of(declaration)
    return figures.draw_lines(curves, LABEL, scale, remark, sheets, alike=True)
