"""Figures of the rates of matmuls and related operations over their size, in each precision."""

from collections import Counter, defaultdict
from types import MappingProxyType

from pomology.report import figures, peaks
from pomology.report.article import comparable
from pomology.report.table import counted

LABEL = "n of n × n matrices"
LABEL_OF_SHAPES = "n"


def figure(declaration, records, gpus=(), rates=MappingProxyType({})):
    """Return a figure with a panel for each precision, and a line for each device and framework.

    Sizes that were not timed are counted below. gpus: this machine's, whose data sheets give a
    horizontal line where they state a peak. fp32 is true fp32 here: TF32 is a precision of its own.
    rates: the run's measured peaks by kind of device and precision, each with a horizontal line.
    """
    curves = defaultdict(dict)
    limits = defaultdict(dict)
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
            limits[case.precision][f"data sheet, {case.device}"] = figures.Limit(peak)
    remark = f"{figures.WITHOUT}{counted(statuses)}" if statuses else ""
    scale = figures.scale_of(declaration)
    for (kind, precision), peak in rates.items():
        operation = peak.record.config["operation"]
        words = scale.show(peak.rate.value) + (f" ({operation})" if operation != "matmul" else "")
        colour = figures.LOOKS["measured", kind]["colour"]
        name = f"peak of the {kind.upper()}: fastest timing block"
        limits[precision][name] = figures.Limit(peak.rate.value, colour, words)
    return figures.draw_lines(curves, LABEL, scale, remark, limits, alike=True)


def shapes_figure(declaration, records):
    """Return a figure of matrix-vector products of n × n matrices and of gradients over n.

    A panel is an operation in a precision, and a line is a device and framework. An operation that
    was timed at one size only has no panel.
    """
    curves = defaultdict(dict)
    for case in comparable(records, declaration.metric):
        rate = case.values.get(declaration.metric)
        operation, *sides = case.config["operation"], *case.config["shape"].split("x")
        if not rate or operation not in ("matvec", "vjp"):
            continue
        if operation == "matvec" and sides[0] != sides[-1]:
            continue
        of_n = "n × n" if operation == "matvec" else " × ".join([*sides[:-1], "n"])
        words = " ".join(filter(None, (operation, case.config.get("wrt"))))
        panel = f"{words}, {case.precision}\n{of_n}"
        line = f"{case.device}, {case.framework}", (case.first.framework, case.kind)
        curves[panel].setdefault(line, []).append((int(sides[-1]), rate))
    several = {
        panel: lines
        for panel, lines in sorted(curves.items(), key=lambda panel: panel[0].partition(",")[0])
        if len({size for points in lines.values() for size, _ in points}) > 1
    }
    return figures.draw_lines(several, LABEL_OF_SHAPES, figures.scale_of(declaration))
