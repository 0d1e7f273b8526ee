"""Ratios of times: PyTorch over MLX, and a processor over a GPU.

Two frameworks have a ratio only where they computed the same: equal inputs (a checksum over them), and no
mismatch. That their models are the same is a test of the kit's.
"""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING

from pomology.articles import published
from pomology.format import seconds, with_interval
from pomology.measure.estimate import Estimate
from pomology.report.declaration import Declaration
from pomology.report.details import RATIOS
from pomology.report.table import Table, ends
from pomology.results import metrics
from pomology.results.pool import Case, pool

if TYPE_CHECKING:
    import pandas

PAIR = ("torch", "mlx")
PROOF = "The same: equal inputs, and no mismatch; that their models are the same is a test of the kit's"


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
    own = frame[frame.experiment.isin(about.sources) & frame.precision.ne("tf32")]
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
        shown += map(_times, [ratio, *inner])
        cells = (case.kind.upper(), *about.cells(case.config), *shown, remark)
        row = {"device": case.kind.upper(), **case.config, "same": same, "remark": remark}
        row |= {f"{name}_{about.time}": time and time.value for name, time in zip(PAIR, times, strict=True)}
        row |= {"ratio": ratio and ratio.value} | ends("ratio", ratio)
        row |= {f"ratio_{name}": of and of.value for name, of in zip(("forward", "rest"), inner, strict=True)}
        lines.append((cells, row))
    faster = sum((ratio.low or 0) > 1 for ratio in ratios)
    slower = sum((ratio.high or 1) < 1 for ratio in ratios)
    between = "between repeats" if own.repeat.gt(0).any() else "within this run; another may differ"
    meaning = (
        f"Ratios: PyTorch's time over MLX's, so above 1 MLX is faster. {about.parity_note or PROOF}.",
        f"Of {len(ratios)} cases that both computed alike MLX was faster in {faster}, PyTorch in {slower}.",
        f"In brackets, and behind ±: 95 % intervals {between}. The rest of a step: without its forward pass.",
    )
    missing = [name for name in about.sources if name not in set(own.experiment)]
    notes = [f"{name} has no numbers: run it into the same folder first." for name in missing]
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


def ratio_table(frame: pandas.DataFrame, about: Declaration) -> Table:
    """Return how many times as fast one device is: as the article prints it, and GPU against CPU here."""
    lines, ratios = [], []
    for value in published.rows(experiment=about.experiment):
        if value["metric"] in RATIOS:
            ratio, config = value["value"], value["config"]
            shown = RATIOS[value["metric"]].format(ratio) if ratio is not None else value["note"]
            against = str(config.get("versus", ""))
            cells = (value["device"], against, *about.cells(config), shown, value["printed"])
            row = {"source": "published", "device": value["device"], **config, "ratio": ratio}
            lines.append((cells, row, "published"))
    settings: dict[str, dict[str, Case]] = {}
    for case in pool(frame[frame.experiment.eq(about.name) & frame.profile.ne("smoke")]):
        settings.setdefault(json.dumps(case.config), {})[case.kind] = case
    for both in settings.values():
        config = next(iter(both.values())).config
        times = [both[kind].values.get(about.time) if kind in both else None for kind in ("cpu", "gpu")]
        ratio = times[0] / times[1] if all(times) else None
        ratios += [ratio.value] if ratio else []
        states = [both[kind].status if kind in both else "not timed" for kind in ("cpu", "gpu")]
        shown = _times(ratio) or "CPU: {}; GPU: {}".format(*states)
        row = {"source": "measured", "device": "gpu", "versus": "cpu", **config}
        row |= {"ratio": ratio and ratio.value} | ends("ratio", ratio)
        lines.append((("GPU here", "CPU here", *about.cells(config), shown, ""), row, "measured"))
    meaning = ["How many times as fast the first device is; here the CPU's time over the GPU's."]
    if ratios:
        mean, least, most = (f"{of(ratios):.3g}×" for of in (statistics.fmean, min, max))
        meaning.append(f"Here {mean} on average, {least} to {most}, in {len(ratios)} of {len(settings)} settings.")
    columns = ("Device", "Against", *about.headings.values(), "Times faster", "As printed")
    return Table.of("How many times faster", columns, lines, meaning=meaning if lines else ())


def _time(case: Case | None, time: Estimate | None) -> str:
    return with_interval(time, seconds) if time else case.status if case else ""


def _times(ratio: Estimate | None) -> str:
    """Return `1.58× (1.48 to 1.68)`."""
    return with_interval(ratio, metrics.show("speedup")) if ratio else ""
