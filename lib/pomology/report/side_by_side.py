"""Devices and frameworks beside each other, as ratios."""

from __future__ import annotations

import json

from pomology.articles import published
from pomology.format import plus_minus, seconds, significant
from pomology.measure.estimate import Estimate
from pomology.report import declaration
from pomology.report.declaration import Declaration
from pomology.report.table import Row, Table
from pomology.results.cases import FRAMEWORKS, _good, combined, groups


def ratio_table(experiment: str | Declaration, records: list[dict]) -> Table:
    """How many times faster one device is than another, and the average, least and most of it.

    First what the article prints, then this machine's GPU against its CPU in the time that the article takes: for each
    setting that ran here the ratio CPU time / GPU time with its interval, or the reason why there is none.
    """
    about = declaration.of(experiment)
    values = published.rows(experiment=about.experiment)
    rows, data = [], []
    for value in values:
        if value["metric"] in RATIOS:
            number = value["note"] if value["value"] is None else RATIOS[value["metric"]](value["value"])
            versus = str(value["config"].get("versus", ""))
            settings = [str(value["config"].get(key, "")) for key in about.headings]
            rows.append(Row((value["device"], versus, *settings, number, value["printed"]), "published"))
            data.append({"source": "published", "device": value["device"], **value["config"], "ratio": value["value"]})
    found = []
    ours = [record for record in records if record.profile != "smoke"]  # scaled alike on both devices
    for config in {json.dumps(record.config): record.config for record in ours}.values():
        ratio, reason = _ratio([record for record in ours if record.config == config], about.time)
        settings = [str(config.get(key, "")) for key in about.headings]
        shown = f"{significant(ratio.value)}×{plus_minus(ratio)}" if ratio else ""
        rows.append(Row(("GPU here", "CPU here", *settings, shown or reason, ""), "measured"))
        numbers = {"value": ratio.value, "low": ratio.low, "high": ratio.high} if ratio else {"reason": reason}
        data.append({"source": "measured", "device": "gpu", "versus": "cpu", **config, **numbers})
        if ratio:
            found.append(ratio.value)
    count = len(ours) and len({json.dumps(record.config) for record in ours})
    for word, reduce in (("average", lambda x: sum(x) / len(x)), ("minimum", min), ("maximum", max)):
        if count:
            note = f"of {len(found)} of {count}" if 0 < len(found) < count else ""
            shown = f"{significant(reduce(found))}×" if found else "no pair of times to compare"
            first = [word, *[""] * (len(about.headings) - 1)]
            rows.append(Row(("GPU here", "CPU here", *first, shown, note), "measured"))
            data.append({"source": "measured", "device": word, "ratio": reduce(found) if found else None})
    notes = []
    if found:
        notes.append("± is the 95 % interval of both times within their runs, put together; see the table of times.")
    if any(record.profile == "smoke" for record in records):
        notes.append("This was a smoke test: its times are compared with nothing.")
    columns = ("Device", "Against", *about.headings.values(), "Times faster", "As printed")
    return Table("How many times faster", columns, tuple(rows), tuple(notes), tuple(data))


# How a published ratio is shown.
RATIOS = {
    "speedup": lambda value: f"{value:g}×",
    "slowdown": lambda value: f"{value:g}× slower",
    "faster_percent": lambda value: f"{value:g} % faster",
}


def _ratio(records: list[dict], metric: str) -> tuple[Estimate | None, str]:
    """CPU time over GPU time of one setting, or the reason why it cannot be told."""
    times = {}
    for kind in ("cpu", "gpu"):
        there = [record for record in records if ("cpu" if record.backend == "cpu" else "gpu") == kind]
        if not there:
            return None, f"no {kind.upper()} was timed here"
        if len(groups(there)) > 1:
            return None, f"{len(groups(there))} cases on the {kind.upper()} match"
        times[kind] = combined(there, metric)
        if times[kind] is None:
            return None, f"{kind.upper()}: {there[-1].status}"
    return times["cpu"] / times["gpu"], ""


def side_by_side(
    experiment: str | Declaration, records: list[dict], frameworks: tuple[str, str] = ("torch", "mlx")
) -> Table:
    """The same cases in two frameworks, on the same kind of device, with proof that they are the same.

    Proof are equal inputs (`inputs_checksum`) and results that both passed their check against one reference. The ratio
    is the first framework's time over the second's, with both intervals put together. A case that only one framework
    has, or that did not end well, is there with the reason.
    """
    about, first, second = declaration.of(experiment), *frameworks
    metric = about.time
    cases: dict[tuple, dict[str, list[dict]]] = {}
    for record in records:
        key = ("CPU" if record.backend == "cpu" else "GPU", json.dumps(record.config, sort_keys=True))
        cases.setdefault(key, {}).setdefault(record.framework, []).append(record)
    rows, data = [], []
    for (kind, _), found in cases.items():
        config = next(iter(found.values()))[0].config
        times = {name: combined(found.get(name, []), metric) for name in frameworks}
        errors = {name: combined(found.get(name, []), "max_abs_error") for name in frameworks}
        remark, same = _sameness(found, frameworks)
        a, b = times[first], times[second]
        ratio = a / b if a and b and same else None
        bounded = ratio is not None and ratio.low is not None
        shown = f"{significant(ratio.value)}×" if ratio else ""
        shown += f" ({significant(ratio.low)} to {significant(ratio.high)})" if bounded else ""
        cells = [kind, *(str(config.get(key, "")) for key in about.headings)]
        for name in frameworks:
            ended = found[name][-1].status if name in found else ""
            cells.append(f"{seconds(times[name].value)}{plus_minus(times[name])}" if times[name] else ended)
        cells += [shown, remark, *(f"{errors[name].value:.1e}" if errors[name] else "" for name in frameworks)]
        rows.append(Row(tuple(cells)))
        row = {"device": kind, **config, "same": same, "ratio": ratio and ratio.value, "remark": remark}
        row |= {f"{name}_{metric}": times[name] and times[name].value for name in frameworks}
        row |= {f"{name}_max_abs_error": errors[name] and errors[name].value for name in frameworks}
        data.append(row | ({"ratio_low": ratio.low, "ratio_high": ratio.high} if bounded else {}))
    notes = []
    for name in frameworks:
        if not any(record.framework == name for record in records):
            wanted = next((one for one in declaration.notebooks_of(about.experiment) if one.endswith(f"_{name}")), name)
            notes.append(f"{FRAMEWORKS[name]} has no numbers in this run: run {wanted} into the same folder first.")
    if any(record.profile == "smoke" for record in records):
        notes.append("This was a smoke test, with tiny shapes.")
    if rows:
        proof = about.parity_note or (
            "The same: equal inputs, and both results within the tolerance of the same reference, which neither "
            "framework computed"
        )
        notes.append(
            f"{proof}. One time over the other: above 1 the other is faster. In brackets, and behind ±: 95 % "
            "intervals within this run; another may differ by more."
        )
    names = [FRAMEWORKS[name] for name in frameworks]
    columns = ("Device", *about.headings.values(), *names, " over ".join(names))
    columns += ("Remarks", *(f"Error, {name}" for name in names))
    return Table(f"{' and '.join(names)}, side by side", columns, tuple(rows), tuple(notes), tuple(data))


def _sameness(found: dict[str, list[dict]], frameworks: tuple[str, str]) -> tuple[str, bool]:
    """Whether two frameworks computed the same, and how that is known, or what speaks against it."""
    for name in frameworks:
        if name not in found:
            return f"not run with {FRAMEWORKS[name]}", False
    if not all(_good(found[name]) for name in frameworks):
        return "no pair of times", False
    good = [record for name in frameworks for record in _good(found[name])]
    if not all({"inputs_checksum", "max_abs_error"} <= record.metrics.keys() for record in good):
        return "not checked against a reference", False
    if len({record.metrics["inputs_checksum"].value for record in good}) > 1:
        return "other inputs: not the same", False
    flags = sorted({flag for record in good for flag in record.flags})
    return ", ".join(["the same", *flags]), True
