"""What others have timed beside this machine, in the tables and figures of the notebooks in `today/`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import itemgetter

from pomology.articles import elsewhere
from pomology.format import quantity_per_s, span
from pomology.report.declaration import Declaration
from pomology.report.table import Row, grouped
from pomology.results.cases import FRAMEWORKS, TIMES, config_text, with_software
from pomology.results.record import Record

NOTES = (
    "A published row is a device with a framework in a precision: of several measurements the least and the most.",
    "Published operations a second are counted: the printed speed times the work on paper.",
)


def published(about: Declaration, metrics: Sequence[str]) -> tuple[list[Row], list[dict], list[str]]:
    """The published rows of a table with columns of these metrics: as text, as numbers, and what is said of them.

    A time of another piece of work, as an epoch, stands in the first column with its name. The remarks of a row are how
    many measurements it is of, their sources, the settings that have no column, and what is wrong with them.
    """
    times = {*metrics} - {"throughput", "flops_per_s"}

    def apart(row: dict) -> tuple:  # of times that have a column those with the same settings alone are one row
        if row["metric"] in times:
            return row["workload"], row["metric"], str(row["config"])
        return row["workload"], *(row["config"].get(name) for name in about.headings if name != "batch_size")

    rows, data = [], []
    for alike in _alike(about, apart):
        first, names = alike[0], dict.fromkeys(row["source"] for row in alike)
        keys = dict.fromkeys(key for row in alike for key in row["config"])
        config = {key: _between(row["config"][key] for row in alike if key in row["config"]) for key in keys}
        held = {"flops_per_s": _span(alike, "flops_per_s", partial(quantity_per_s, unit="FLOP/s"))}
        for of in grouped(alike, itemgetter("metric")):
            bound, unit = of[0]["bound"], of[0]["unit"]
            held[of[0]["metric"]] = bound + _span(of, "value", lambda value, unit=unit: f"{value:,.6g} {unit}")
        texts = [held.get(metric, "") for metric in metrics]
        if not held.keys() & {*metrics} - {"flops_per_s"}:
            what = TIMES.get(first["metric"], first["metric"])
            texts[0] = f"by the {what}" if len(alike) > 1 else f"{held[first['metric']]} ({what})"
        faults = {fault: None for row in alike for fault in row["faults"] if fault != "one-run" or len(alike) == 1}
        remarks = [f"{len(alike)} measurements"] * (len(alike) > 1) + [", ".join(names)]
        remarks += [config_text({key: value for key, value in config.items() if key not in about.headings})]
        remarks = "; ".join(filter(None, (*remarks, *map(elsewhere.FAULTS.get, faults))))
        rows.append(Row((_with_software(alike), *about.cells(config), *texts, remarks), "published"))
        numbers = {"source": " ".join(names), "device": first["device"], "measurements": len(alike)} | config
        for metric in metrics:
            key = "flops_per_s" if metric == "flops_per_s" else "si"
            if each := [row[key] for row in alike if row[key] and metric in (key, row["metric"])]:
                numbers |= {metric: statistics.median_low(each), f"{metric}_least": min(each)}
                numbers[f"{metric}_most"] = max(each)
        data.append(numbers | {"status": "ok"})
    known = [elsewhere.sources()[name] for name in dict.fromkeys(row["source"] for row in about.beside)]
    sources = ["{id}: {title}, {author}, {date}, {url}.".format_map(source) for source in known]
    return rows, data, [*NOTES, *sources] if rows else []


def drawn(about: Declaration, records: Iterable[Record]) -> list[dict]:
    """The same rows for the figure, each the fastest of its measurements and all of them; where this machine has
    panels, of those alone."""
    apart = [key for key in about.headings if key not in about.shared_panel]

    def panel(config: dict) -> tuple:
        return tuple(config.get(key) for key in apart)

    here, rows = {panel(record.config) for record in records}, []
    for alike in _alike(about, lambda row: panel(row["config"])):
        each = [row["flops_per_s"] for row in alike if row["flops_per_s"]]
        if each and (not here or panel(alike[0]["config"]) in here):
            shown = {"device": _with_software(alike), "metric": about.metric, "si": max(each)}
            rows.append(alike[0] | shown | {"each": each})
    return rows


def _alike(about: Declaration, apart: Callable[[dict], tuple]) -> list[list[dict]]:
    """The published rows that are shown as one, by precision and speed: what a device with a framework does in a
    precision, with the same serious faults. apart: what else tells two rows apart."""

    def same(row: dict) -> tuple:
        serious = frozenset(elsewhere.SERIOUS.intersection(row["faults"]))
        return row["device"], row["framework"].partition(" ")[0], row["precision"], serious, *apart(row)

    def order(alike: list[dict]) -> tuple[int, float]:
        fastest = max(row["flops_per_s"] or 0 for row in alike)
        return elsewhere.PRECISIONS.index(alike[0]["precision"]), -fastest

    return sorted(grouped(about.beside, same), key=order)


def _with_software(alike: Sequence[dict]) -> str:
    """`V100 16 GB (PyTorch, 2020 to 2022)`: the version where all have one."""
    texts, years = {row["framework"] for row in alike}, _between(int(row["year"]) for row in alike)
    name, _, version = min(texts).partition(" ")
    if name.replace("pytorch", "torch") not in FRAMEWORKS:
        version = f"{name} {version}".strip()
    return with_software(alike[0]["device"], name, version if len(texts) == 1 else "", years)


def _between(values: Iterable) -> str:
    """`64 to 512`; of words `random or ImageNet`; of more than three how many there are."""
    kinds = list(dict.fromkeys(values))
    if all(isinstance(kind, int) for kind in kinds):
        return span(min(kinds), max(kinds), str)
    return " or ".join(map(str, kinds)) if len(kinds) <= 3 else f"{len(kinds)} kinds"


def _span(alike: Sequence[dict], key: str, show: partial) -> str:
    each = [row[key] for row in alike if row[key]]
    return span(min(each), max(each), show) if each else ""
