"""What others have timed beside this machine, in the tables and figures of the notebooks in `today/`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter

from pomology.articles import elsewhere
from pomology.report.declaration import Declaration
from pomology.report.table import Row, grouped
from pomology.results.cases import TIMES, config_text, with_software
from pomology.results.record import Record


def published(about: Declaration, metrics: Sequence[str]) -> tuple[list[Row], list[dict], list[str]]:
    """The published rows of a table with columns of these metrics: as text, as numbers, and where they are from.

    A time of another piece of work, as an epoch, stands in the first column with its name. The remarks of a row are its
    source, the settings that have no column, and what is wrong with it.
    """
    rows, data = [], []
    for line in grouped(about.beside, itemgetter("item", "row")):
        first, config = line[0], line[0]["config"]
        held = {value["metric"]: value["printed"] for value in line}
        texts = [held.get(metric, "") for metric in metrics]
        if first["metric"] not in metrics:
            texts[0] = f"{first['printed']} ({TIMES.get(first['metric'], first['metric'])})"
        name, _, version = first["framework"].partition(" ")
        more = config_text({key: value for key, value in config.items() if key not in about.headings})
        remarks = "; ".join(filter(None, (first["source"], more, *map(elsewhere.FAULTS.get, first["faults"]))))
        cells = (with_software(first["device"], name, version, first["year"]), *about.cells(config), *texts, remarks)
        rows.append(Row(cells, "published"))
        numbers = {value["metric"]: value["si"] for value in line}
        data.append({"source": first["source"], "device": first["device"]} | config | numbers | {"status": "ok"})
    known = [elsewhere.sources()[name] for name in dict.fromkeys(row["source"] for row in about.beside)]
    notes = [f"{source.id}: {source.title}, {source.author}, {source.date}, {source.url}." for source in known]
    counted = "Published operations a second are counted: the printed speed times the work on paper."
    return rows, data, [counted, *notes] if rows else []


def drawn(about: Declaration, records: Iterable[Record]) -> list[dict]:
    """The rows of the figure: of each device and panel the fastest, the fastest device first; where this machine has
    panels, no others."""
    apart = [key for key in about.headings if key not in about.shared_panel]

    def panel(config: dict) -> tuple:
        return tuple(config.get(key) for key in apart)

    here, fastest = {panel(record.config) for record in records}, {}
    for row in sorted(about.beside, key=lambda row: -row["si"]):
        if row["metric"] == about.metric and (not here or panel(row["config"]) in here):
            fastest.setdefault((row["device"], panel(row["config"])), row)
    return list(fastest.values())
