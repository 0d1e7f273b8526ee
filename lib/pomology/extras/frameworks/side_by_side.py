"""Ratios of times: PyTorch over MLX.

Two frameworks have a ratio only where they computed the same: equal inputs (a checksum over them),
and no mismatch. That their models are the same is a test of the kit's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pomology.report.declaration import Declaration
from pomology.report.ratios import compared
from pomology.report.table import INTERVALS, Table
from pomology.results.pool import Case

if TYPE_CHECKING:
    import pandas

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
    lines = compared(own, about, "framework", {"torch": "PyTorch", "mlx": "MLX"}, sameness)
    ratios = [row for _, row, _ in lines if row["ratio"]]
    faster = sum(row.get("ratio_low", 0) > 1 for row in ratios)
    slower = sum(row.get("ratio_high", 1) < 1 for row in ratios)
    counts = (
        f"Of {len(ratios)} cases that both computed alike MLX was faster in {faster}, PyTorch in "
        f"{slower}."
    )
    order = ("Device", *about.headings.values(), "PyTorch", "MLX", "Ratio", "Remarks")
    meaning = [MEANING, counts, INTERVALS]
    return Table.of_texts("PyTorch and MLX, side by side", lines, order, meaning=meaning)


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
