"""How many times as fast a GPU is as the CPU, as an article prints it and on this machine."""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING

from pomology.articles import published
from pomology.format import with_interval
from pomology.measure.estimate import Estimate
from pomology.report.declaration import Declaration
from pomology.report.details import RATIOS
from pomology.report.table import Table, ends
from pomology.results import metrics
from pomology.results.pool import Case, pool

if TYPE_CHECKING:
    import pandas


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
        times = [
            both[kind].values.get(about.time) if kind in both else None for kind in ("cpu", "gpu")
        ]
        ratio = times[0] / times[1] if all(times) else None
        ratios += [ratio.value] if ratio else []
        states = [both[kind].status if kind in both else "not timed" for kind in ("cpu", "gpu")]
        shown = ratio_text(ratio) or "CPU: {}; GPU: {}".format(*states)
        row = {"source": "measured", "device": "gpu", "versus": "cpu", **config}
        row |= {"ratio": ratio and ratio.value} | ends("ratio", ratio)
        lines.append((("GPU here", "CPU here", *about.cells(config), shown, ""), row, "measured"))
    meaning = ["How many times as fast the first device is; here the CPU's time over the GPU's."]
    if ratios:
        mean, least, most = (f"{of(ratios):.3g}×" for of in (statistics.fmean, min, max))
        meaning.append(
            f"Here {mean} on average, {least} to {most}, in {len(ratios)} of {len(settings)} settings."
        )
    columns = ("Device", "Against", *about.headings.values(), "Times faster", "As printed")
    return Table.of("How many times faster", columns, lines, meaning=meaning if lines else ())


def ratio_text(ratio: Estimate | None) -> str:
    """Return `1.58× (1.48 to 1.68)`."""
    return with_interval(ratio, metrics.show("speedup")) if ratio else ""
