"""How many times as fast one device or framework is as another."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from pomology.articles import published
from pomology.format import with_interval
from pomology.report.declaration import Declaration
from pomology.report.table import INTERVALS, Table, ends, value_text
from pomology.results import metrics
from pomology.results.pool import Case, pool

if TYPE_CHECKING:
    import pandas

# How a published ratio is shown.
RATIOS = {"speedup": "{:g}×", "slowdown": "{:g}× slower", "faster_percent": "{:g} % faster"}
MEANING = "Ratio: how many times as fast the first device is; here the CPU's time over the GPU's."


def ratio_table(frame: pandas.DataFrame, about: Declaration) -> Table:
    """Return how many times as fast a GPU is as the CPU: as the article prints it, and here."""
    lines = []
    for value in published.rows(experiment=about.name):
        if value["metric"] in RATIOS:
            ratio, config = value["value"], value["config"]
            text = value["note"] if ratio is None else RATIOS[value["metric"]].format(ratio)
            texts = {"Device": value["device"], "Against": str(config.get("versus", ""))}
            texts |= {"Ratio": text, "Remarks": value["printed"]} | about.texts(config)
            row = {"source": "published", "device": value["device"], **config, "ratio": ratio}
            lines.append((texts, row, "published"))
    measured = compared(frame, about, "kind", {"cpu": "CPU", "gpu": "GPU"})
    meaning = [MEANING, INTERVALS] if measured else [MEANING]
    order = ("Device", "Against", *about.headings.values(), "CPU", "GPU", "Ratio", "Remarks")
    return Table.of_texts("How many times faster", lines + measured, order, meaning=meaning)


def compared(
    frame: pandas.DataFrame,
    about: Declaration,
    side: str,
    sides: dict[str, str],
    verdict: Callable[[dict[str, Case]], tuple[str, bool]] | None = None,
) -> list[tuple]:
    """Return texts, numbers and kind of each setting: both times, and the first over the second.

    side: what the two differ in, `kind` (CPU or GPU) or `framework`. sides: its two values, and
    their headings. verdict: of a pair, a remark and whether it may have a ratio.
    """
    pairs: dict[str, dict[str, Case]] = {}
    for case in pool(frame[frame.profile.ne("smoke")]):
        place = {"kind": case.kind, "framework": case.first["framework"]}
        name = place.pop(side)
        pairs.setdefault(json.dumps([place, case.config], sort_keys=True), {})[name] = case
    lines = []
    for pair in pairs.values():
        remark, comparable = verdict(pair) if verdict else ("", True)
        case = next(iter(pair.values()))
        device = "" if side == "kind" else case.kind.upper()
        texts = {"Device": device or "this machine", "Remarks": remark} | about.texts(case.config)
        row = {"source": "measured", "device": device, **case.config, "remark": remark}
        times = []
        for name, heading in sides.items():
            time = pair[name].values.get(about.time) if name in pair else None
            times.append(time)
            status = pair[name].status if name in pair else "not timed"
            texts[heading] = value_text(about.time, time) if time else status
            row[f"{name}_{about.time}"] = time and time.value
        ratio = times[0] / times[1] if comparable and all(times) else None
        texts["Ratio"] = with_interval(ratio, metrics.show("speedup")) if ratio else ""
        row |= {"ratio": ratio and ratio.value} | ends("ratio", ratio)
        lines.append((texts, row, "measured"))
    return lines
