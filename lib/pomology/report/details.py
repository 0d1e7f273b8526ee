"""Tables of all measured and published values, and the software of a run."""

from collections.abc import Iterable, Sequence

from pomology.report.table import INTERVALS, Row, Table, value_text
from pomology.results import cases, metrics
from pomology.results.cases import pool
from pomology.results.frame import of_records
from pomology.results.record import Record


def software(machine: dict) -> str:
    """Return the commits, Python versions and frameworks of a run's cases in one line."""
    texts = []
    for state in (machine.get("software") or {"": machine}).values():
        git = state.get("git") or {}
        changed = ", with changes" if git.get("dirty") else ""
        packages = state.get("packages") or {}
        frameworks = [f"{name} {packages[name]}" for name in cases.FRAMEWORKS if name in packages]
        commit = f"commit {git.get('commit', 'unknown')[:10]}{changed}"
        texts.append(", ".join([commit, f"Python {state.get('python')}", *frameworks]))
    return "; ".join(dict.fromkeys(texts))


def published_table(values: Sequence[dict], title: str = "Values in the article") -> Table:
    """Return a table of published values as printed, one per row."""
    settings = dict.fromkeys(key for value in values for key in value["config"])
    rows = []
    for value in values:
        cells = {"Part of the article": value["item"], "Device": value["device"]}
        cells |= {metrics.words(key): str(value["config"].get(key, "")) for key in settings}
        cells["Quantity"] = metrics.words(metrics.Metric(value["metric"]).heading)
        rows.append(Row(cells | {"As printed": value["printed"], "Note": value["note"]}))
    return Table(title, rows)


def details_table(records: Iterable[Record], title: str = "All measured values") -> Table:
    """Return a table of all values of cases: a row per metric, a column per repeat.

    A row of statuses with reasons follows if a repeat failed.
    """
    pooled = pool(of_records(records))
    numbers = sorted({repeat for case in pooled for repeat in case.flags_of})
    repeats = {repeat: f"Repeat {repeat + 1}" for repeat in numbers}
    empty = dict.fromkeys(repeats.values(), "")
    rows = []
    for case in pooled:
        cells = {"Device": case.first["device"], "Framework": case.framework}
        cells["Case"] = cases.config_text(case.config)
        for name in case.each:
            quantity = {"Quantity": metrics.words(metrics.Metric(name).heading)}
            data = {"case": case.first["case"], "metric": name}
            texts = {}
            for repeat, values in case.good.items():
                if name in values:
                    texts[repeats[repeat]] = value_text(name, values[name])
                    data["unit"] = values[name].unit
                    data[f"repeat_{repeat + 1}"] = values[name].value
            rows.append(Row(cells | quantity | empty | texts, data))
        if case.endings:
            ends = {
                repeats[repeat]: ": ".join(filter(None, end))
                for repeat, end in case.endings.items()
            }
            rows.append(Row(cells | {"Quantity": "Status"} | empty | ends))
    return Table(title, rows, [INTERVALS] if rows else [])
