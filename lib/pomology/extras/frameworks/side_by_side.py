"""Ratios of times: PyTorch over MLX.

Two frameworks have a ratio only where they computed the same: equal inputs (a checksum over them), and no
mismatch. That their models are the same is a test of the kit's.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pomology.format import seconds, with_interval
from pomology.measure.estimate import Estimate
from pomology.report.declaration import Declaration
from pomology.report.ratios import ratio_text
from pomology.report.table import Table, ends
from pomology.results import cases
from pomology.results.pool import Case, pool

if TYPE_CHECKING:
    import pandas

PAIR = ("torch", "mlx")
PROOF = (
    "The same: equal inputs, and no mismatch; that their models are the same is a test of the kit's"
)


def sameness(torch: Case | None, mlx: Case | None) -> tuple[str, bool]:
    """Return what is known of whether two cases computed the same, and whether they did."""
    if not torch or not mlx:
        return f"not run with {'MLX' if torch else 'PyTorch'}", False
    if not (torch.good_repeats and mlx.good_repeats):
        return "no pair of times", False
    inputs = set()
    for case in (torch, mlx):
        checksums = case.each.get("inputs_checksum", [])
        if len(checksums) < case.good_repeats:
            return "inputs are not known", False
        inputs.update(checksum.value for checksum in checksums)
    if len(inputs) > 1:
        return "other inputs: not the same", False
    return ", ".join(["the same", *sorted({*torch.flags, *mlx.flags})]), True


def side_by_side(frame: pandas.DataFrame, about: Declaration) -> Table:
    """Return PyTorch's time over MLX's of each case, or why there is none.

    TF32, which only one of the two has, is left out. frame: of one run. about: of the notebook that
    combines those of the two frameworks.
    """
    own = frame[frame.experiment.eq(about.name) & frame.precision.ne("tf32")]
    pairs: dict[str, dict[str, Case]] = {}
    for case in pool(own):
        key = json.dumps([case.kind, case.config], sort_keys=True)
        pairs.setdefault(key, {})[case.first["framework"]] = case
    lines, ratios = [], []
    for both in pairs.values():
        remark, same = sameness(both.get("torch"), both.get("mlx"))
        case = next(iter(both.values()))
        numbers = [both[name].values if name in both else {} for name in PAIR]
        times = [values.get(about.time) for values in numbers]
        ratio = times[0] / times[1] if same and all(times) else None
        ratios += [ratio] if ratio else []
        inner = _parts(*numbers) if same else [None, None]
        shown = [_time(both.get(name), time) for name, time in zip(PAIR, times, strict=True)]
        shown += map(ratio_text, [ratio, *inner])
        cells = (case.kind.upper(), *about.cells(case.config), *shown, remark)
        row = {"device": case.kind.upper(), **case.config, "same": same, "remark": remark}
        row |= {
            f"{name}_{about.time}": time and time.value
            for name, time in zip(PAIR, times, strict=True)
        }
        row |= {"ratio": ratio and ratio.value} | ends("ratio", ratio)
        row |= {
            f"ratio_{name}": of and of.value
            for name, of in zip(("forward", "rest"), inner, strict=True)
        }
        lines.append((cells, row))
    faster = sum((ratio.low or 0) > 1 for ratio in ratios)
    slower = sum((ratio.high or 1) < 1 for ratio in ratios)
    between = "between repeats" if own.repeat.gt(0).any() else "within this run; another may differ"
    meaning = (
        f"Ratios: PyTorch's time over MLX's, so above 1 MLX is faster. {about.parity_note or PROOF}.",
        f"Of {len(ratios)} cases that both computed alike MLX was faster in {faster}, PyTorch in {slower}.",
        f"In brackets, and behind ±: 95 % intervals {between}. The rest of a step: without its forward pass.",
    )
    missing = [name for name in PAIR if name not in set(own.framework)]
    notes = [
        f"{cases.FRAMEWORKS[name]} has no numbers: run it into the same folder first."
        for name in missing
    ]
    columns = (
        "Device",
        *about.headings.values(),
        "PyTorch",
        "MLX",
        "Ratio",
        "Forward",
        "Rest of a step",
    )
    return Table.of("PyTorch and MLX, side by side", (*columns, "Remarks"), lines, notes, meaning)


def _parts(torch: dict[str, Estimate], mlx: dict[str, Estimate]) -> list[Estimate | None]:
    """Return the ratios of the forward pass, and of the rest of a step where it is above its interval."""
    if any(name not in values for values in (torch, mlx) for name in ("forward_s", "step_s")):
        return [None, None]
    rest = [values["step_s"] - values["forward_s"] for values in (torch, mlx)]
    resolved = all((part.low or 0) > 0 for part in rest)
    return [torch["forward_s"] / mlx["forward_s"], rest[0] / rest[1] if resolved else None]


def _time(case: Case | None, time: Estimate | None) -> str:
    return with_interval(time, seconds) if time else case.status if case else ""
