"""Ratios of times: PyTorch over MLX.

Two frameworks have a ratio only where they computed the same: equal inputs (a checksum over them),
and no mismatch. That their models are the same is a test of the kit's.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pomology.format import with_interval
from pomology.report.article import Declaration
from pomology.report.table import INTERVALS, Row, Table, numbers, value_text
from pomology.results import metrics
from pomology.results.cases import Case, pool

if TYPE_CHECKING:
    import pandas

FRAMEWORKS = {"torch": "PyTorch", "mlx": "MLX"}
MEANING = (
    "Ratios: PyTorch's time over MLX's, so above 1 MLX is faster. The same: equal inputs (by their "
    "checksum), and no mismatch; that their models are the same is a test of the kit's."
)


def side_by_side(frame: pandas.DataFrame, about: Declaration) -> Table:
    """Return PyTorch's time over MLX's of each case, or why there is none.

    TF32, which only one of the two has, is left out. frame: of one run. about: of the notebook
    whose experiment it is.
    """
    own = frame[frame.experiment.eq(about.name) & frame.precision.ne("tf32")]
    pairs: dict[tuple, dict[str, Case]] = {}
    for case in pool(own[own.profile.ne("smoke")]):
        place = (case.kind, json.dumps(case.config, sort_keys=True))
        pairs.setdefault(place, {})[case.first["framework"]] = case
    rows = [_row(about, pair) for pair in pairs.values()]
    ratios = [row.data for row in rows if row.data["ratio"]]
    bounded = [row for row in ratios if "ratio_low" in row]
    faster = sum(row["ratio_low"] > 1 for row in bounded)
    slower = sum(row["ratio_high"] < 1 for row in bounded)
    counts = (
        f"{len(ratios)} cases were computed alike: MLX is faster in {faster}, PyTorch in {slower}; "
        f"{len(bounded) - faster - slower} show no difference, {len(ratios) - len(bounded)} have "
        "no interval."
    )
    return Table("PyTorch and MLX, side by side", rows, [MEANING, counts, INTERVALS])


def _row(about: Declaration, pair: dict[str, Case]) -> Row:
    """Return the row of a setting: both times, and the first over the second."""
    case = next(iter(pair.values()))
    remark, comparable = sameness(pair)
    texts = {"Device": case.kind.upper()} | about.texts(case.config)
    row = {"device": case.kind, **case.config, "remark": remark}
    times = {name: case.values.get(about.time) for name, case in pair.items()}
    for name, heading in FRAMEWORKS.items():
        time = times.get(name)
        status = pair[name].status if name in pair else "not timed"
        texts[heading] = value_text(about.time, time) if time else status
        row[f"{name}_{about.time}"] = time and time.value
    ratio = times["torch"] / times["mlx"] if comparable and all(times.values()) else None
    texts["Ratio"] = with_interval(ratio, metrics.Metric("speedup").show) if ratio else ""
    texts["Remarks"] = remark
    return Row(texts, row | numbers("ratio", ratio), "measured")


def sameness(pair: dict[str, Case]) -> tuple[str, bool]:
    """Return what is known of whether two cases computed the same, and whether they did."""
    if len(pair) < 2:
        return "not run with the other", False
    if not all(case.good_repeats for case in pair.values()):
        return "no pair of times", False
    inputs = set()
    for case in pair.values():
        checksums = case.each.get("inputs_checksum", [])
        if len(checksums) < case.good_repeats:
            return "inputs are not known", False
        inputs.update(checksum.value for checksum in checksums)
    if len(inputs) > 1:
        return "other inputs: not the same", False
    flags = {flag for case in pair.values() for flag in case.flags}
    return ", ".join(["the same", *sorted(flags)]), True
