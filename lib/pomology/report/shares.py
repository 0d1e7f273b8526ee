"""Shares of the measured peaks, which are filled in when a run is joined.

While a run goes on, later notebooks find higher peaks. So a notebook shows none, and all tables of
a report have theirs from the same peaks. A table that waits for them is kept in `about.json`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pomology.measure.estimate import Estimate
from pomology.report import peaks, table
from pomology.report.peaks import Peaks
from pomology.report.table import Row, Table, numbers, value_text
from pomology.results import metrics


def filled(shown: Table, best: Peaks) -> Table:
    """Return a table with the shares of peaks in its rows that have rates. best: the peaks."""
    rows = list(shown.rows)
    for number, (kind, precision, rate) in shown.rates.items():
        peak = best.get((kind, precision))
        if peak:
            share = rate / peak.rate
            row = rows[number]
            cells = row.cells | {peaks.BEST: value_text(peaks.SHARE, share, peaks.BEST)}
            data = row.data | numbers(peaks.SHARE, share)
            rows[number] = row._replace(cells=cells, data=data)
    notes = list(shown.notes)
    if any(row.cells[peaks.BEST] for row in rows if peaks.BEST in row.cells):
        notes.append(metrics.Metric(peaks.SHARE).meaning)
    return dataclasses.replace(shown, rows=rows, notes=notes)


def kept(shown: Table) -> dict[str, Any]:
    """Return what `about.json` keeps of a table that waits for peaks; {} of another one."""
    if not shown.rates:
        return {}
    rates = [
        [number, kind, precision, rate.value, rate.low, rate.high]
        for number, (kind, precision, rate) in shown.rates.items()
    ]
    return {"rows": [list(row) for row in shown.rows], "rates": rates}


def fill(folder: Path, item: Mapping[str, Any], best: Peaks) -> dict[str, Any]:
    """Write the files of a kept table with its shares; return the item with its notes.

    folder: of the notebook's shown files. item: of `about.json`, see `Report.save`.
    """
    item = dict(item)
    rows = [Row(*row) for row in item.pop("rows", ())]
    rates = {
        number: (kind, precision, Estimate(value, "FLOP/s", low, high))
        for number, kind, precision, value, low, high in item.pop("rates", ())
    }
    if rates:
        shown = filled(Table(item["heading"], rows, item["notes"], rates), best)
        table.save(shown, folder / item["file"])
        item["notes"] = list(shown.notes)
    return item
