"""What every device achieves of its peak: operations on paper over published and measured times."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pomology.articles import published
from pomology.extras.ranking.ranking import WORKLOADS, title
from pomology.extras.ranking.speeds import MEASURED, OTHER, PUBLISHED, WORKLOAD_OF, every
from pomology.format import quantity_per_s, significant, with_interval
from pomology.measure.estimate import Estimate
from pomology.report.article import achieved
from pomology.report.figures.points import Line, Mark, points_figure
from pomology.report.figures.style import styled
from pomology.report.peaks import Peaks, percent
from pomology.report.table import YEARS, Table, ends
from pomology.results import cases
from pomology.results.pool import Case, pool

if TYPE_CHECKING:
    import pandas

COMPUTING, SMALLER = ", computing alone", ", a smaller model"  # ends of the settings
# The source of these times does not tell how many GPU cores its Macs had.
CORES_UNKNOWN = ("rasbt_vgg16", "rasbt_lenet", "rasbt_mlp")
ELSE = "Timed on this machine only"
NOTES = (
    "Achieved: operations on paper over the whole time, with what else is in it, as loading data. "
    "“Computing alone” are steps on data that is on the device already.",
    YEARS,
    "Peak: of a published device cores times clock on paper; of this machine the best rate that its "
    "run has measured, which is less. So shares of the two are not the same measure.",
)


class Achieved(NamedTuple):
    """What a device achieves on a workload, in FLOP/s, and its peak. kind: `published` or `measured`."""

    workload: str
    device: str
    settings: str
    kind: str
    role: str
    framework: str
    version: str
    year: str
    precision: str
    rate: Estimate
    peak: Estimate | None

    @property
    def share(self) -> Estimate | None:
        return self.peak and self.rate / self.peak


def shares(frame: pandas.DataFrame, best: Peaks) -> list[Achieved]:
    """Return every published time whose operations are counted, and the cases of a run.

    A case at a published setting is there with its whole time, and with its steps alone. Smoke tests
    are left out, and cases of a single operator. frame: of one run; best: that run's peaks.
    """
    known = every(frame)
    whole = known[known.flops.notna() & known.kind.ne(OTHER)]
    found = dict.fromkeys(_whole(row, best) for row in whole.itertuples())  # some are printed twice
    for case in pool(frame[frame.profile.ne("smoke")]):
        rate = achieved(case)
        if rate and not case.config.get("operation"):
            found[_steps(case, rate, best)] = None
    order = list(WORKLOADS)
    order += sorted({each.workload for each in found} - WORKLOADS.keys())
    return sorted(found, key=lambda each: order.index(each.workload))


def _whole(row: Any, best: Peaks) -> Achieved:
    rate = (Estimate.count(row.flops, "FLOP") * row.rate).replace(unit="FLOP/s")
    about = (row.workload, row.printed, row.settings, row.kind, row.role, row.framework)
    about += (row.version, row.year, row.precision, rate)
    if row.kind == MEASURED:
        peak = best.rates.get((row.role, row.precision))
        return Achieved(*about, peak and peak.rate)
    lines = [line for line in published.read("peaks.csv") if line["device"] == row.printed]
    # PyTorch computed in TF32, by default, on the devices that have such a peak.
    known = {line["precision"]: float(line["peak_flops_per_s"]) for line in lines}
    peak = known.get("tf32", known.get(row.precision))
    unknown = peak is None or (row.experiment in CORES_UNKNOWN and row.role == "gpu")
    return Achieved(*about, None if unknown else Estimate.count(peak, "FLOP/s"))


def _steps(case: Case, rate: Estimate, best: Peaks) -> Achieved:
    first = case.first
    name = first["experiment"]
    name = WORKLOAD_OF.get(name, name)
    name = name if name in WORKLOADS else f"{name} {case.config.get('model', '')}".strip()
    settings = cases.config_text(case.config) + (SMALLER if first["scaled"] else COMPUTING)
    about = (WORKLOAD_OF.get(name, name), first["device"], settings, MEASURED, case.kind)
    about += (
        first["framework"],
        first["framework_version"],
        str(first["year"]),
        first["precision"],
    )
    peak = best.rates.get((case.kind, first["precision"]))
    return Achieved(*about, rate, peak and peak.rate)


def shares_table(frame: pandas.DataFrame, best: Peaks) -> Table:
    """Return all rates with their shares, the published ones first in each workload."""
    show = partial(quantity_per_s, unit="FLOP/s")
    lines = []
    for each in shares(frame, best):
        device = cases.with_software(each.device, each.framework, each.version, each.year)
        device += "" if each.precision == "fp32" else f", {each.precision}"
        cells = (title(each.workload), device, each.settings, with_interval(each.rate, show))
        cells += (show(each.peak.value) if each.peak else "", percent(each.share))
        row = each._asdict() | {"rate": each.rate.value, "peak": each.peak and each.peak.value}
        row |= ends("rate", each.rate) | {"share": each.share and each.share.value}
        lines.append((cells, row | ends("share", each.share), each.kind))
    columns = ("Workload", "Device", "Settings", "Achieved", "Peak", "Share of it")
    lines_of = published.read("peaks.csv")
    sources = "; ".join(dict.fromkeys(f"{line['source']} ({line['url']})" for line in lines_of))
    heading = "What every device achieves of its peak"
    return Table.of(heading, columns, lines, [*NOTES, f"Sources of the peaks: {sources}."])


@styled
def shares_figure(frame: pandas.DataFrame, best: Peaks) -> Any:
    """Return a matplotlib Figure: a panel per workload, a line per device, a mark per setting.

    An upright stroke is the peak. Marks of computing alone are hollow. What nobody has published is
    in the last panel.
    """
    found = shares(frame, best)
    printed = {each.workload for each in found if each.kind == PUBLISHED}
    frameworks = {(each.workload, each.framework) for each in found}
    lines: dict[tuple[str, str], list[Achieved]] = {}
    for each in found:
        kind = "CPU" if each.role == "cpu" else "GPU"
        words = [
            each.device if each.workload in printed else f"{each.workload.replace('_', ' ')} {kind}"
        ]
        several = sum(workload == each.workload for workload, _ in frameworks) > 1
        words += [cases.framework_name(each)] if several else []
        words += [each.precision] if each.precision != "fp32" else []
        panel = title(each.workload) if each.workload in printed else ELSE
        lines.setdefault((panel, ", ".join(words)), []).append(each)
    panels: dict[str, list[Line]] = {}
    for (panel, name), of in lines.items():
        whole = [each for each in of if not each.settings.endswith(COMPUTING)] or of
        fastest = max(whole, key=lambda each: each.rate.value)
        share = fastest.share
        words = f"{significant(100 * min(share.value, 1), 2)} %" if share else "no peak known"
        marks = [Mark(each.rate, "filled" if each in whole else "hollow") for each in of]
        peak = fastest.peak and fastest.peak.value
        line = Line(name, (fastest.kind, fastest.role), words, marks, peak)
        panels.setdefault(panel, []).append(line)
    label = "achieved TFLOP/s (more is faster); upright: the peak; %: the best share of it"
    return points_figure(panels, label, 1e12)
