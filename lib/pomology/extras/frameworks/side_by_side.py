"""Ratios of times: PyTorch over MLX.

Two frameworks have a ratio only if their inputs had the same checksum and neither had a mismatch.
The tests check that their models are equal.
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
    "Ratio: PyTorch's time over MLX's; above 1 MLX is faster. The same: the inputs have the same "
    "checksum and the results no mismatch."
)


def side_by_side(frame: pandas.DataFrame, about: Declaration) -> Table:
    """Return a table of PyTorch's time over MLX's for each case, or the reason for no ratio.

    Cases in TF32 are excluded, because only PyTorch has it. frame: of one run. about: declaration
    of the experiment.
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
        f"Cases with a ratio: {len(ratios)}. MLX is faster in {faster}, PyTorch in {slower}; "
        f"{len(bounded) - faster - slower} show no difference, {len(ratios) - len(bounded)} have "
        "no interval."
    )
    return Table("PyTorch and MLX", rows, [MEANING, counts, INTERVALS])


def _row(about: Declaration, pair: dict[str, Case]) -> Row:
    """Return the row of a case in both frameworks: their times, and PyTorch's over MLX's."""
    case = next(iter(pair.values()))
    note, comparable = sameness(pair)
    texts = {"Device": case.kind.upper()} | about.texts(case.config)
    row = {"device": case.kind, **case.config, "remark": note}
    times = {name: case.values.get(about.time) for name, case in pair.items()}
    for name, heading in FRAMEWORKS.items():
        time = times.get(name)
        status = pair[name].status if name in pair else "not timed"
        texts[heading] = value_text(about.time, time) if time else status
        row[f"{name}_{about.time}"] = time and time.value
    ratio = times["torch"] / times["mlx"] if comparable and all(times.values()) else None
    texts["Ratio"] = with_interval(ratio, metrics.Metric("speedup").show) if ratio else ""
    texts["Notes"] = note
    return Row(texts, row | numbers("ratio", ratio), "measured")


def sameness(pair: dict[str, Case]) -> tuple[str, bool]:
    """Return a note on whether two cases computed the same, and whether they did."""
    if len(pair) < 2:
        return "not run with the other framework", False
    if not all(case.good_repeats for case in pair.values()):
        return "one has no time", False
    inputs = set()
    for case in pair.values():
        checksums = case.each.get("inputs_checksum", [])
        if len(checksums) < case.good_repeats:
            return "unknown inputs", False
        inputs.update(checksum.value for checksum in checksums)
    if len(inputs) > 1:
        return "different inputs", False
    flags = {flag for case in pair.values() for flag in case.flags}
    return ", ".join(["the same", *sorted(flags)]), True
