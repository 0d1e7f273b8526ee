"""Ratios of times: another framework's over MLX's, of one experiment or of all of a run.

Two frameworks have a ratio only if neither had a mismatch, and if both computed on inputs that
were on the device already. The tests check that their models are equal.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from pomology.format import IN_PROCESS, comparison, with_interval
from pomology.measure.estimate import Estimate
from pomology.report import figures
from pomology.report.article import Declaration
from pomology.report.figures import Line
from pomology.report.table import Row, Table, intervals, numbers, value_text
from pomology.results import cases, metrics
from pomology.results.comparing import (
    FASTER,
    NO_DIFFERENCE,
    SINGLE,
    SLOWER,
    WITHIN,
    Compared,
    by_chance,
    judge,
    of_cases,
)
from pomology.results.record import Record
from pomology.results.repeats import Repeats, pool, run_to_run_by_kind

FRAMEWORKS = {"torch": "PyTorch", "mlx": "MLX"}
# Times of a whole training that exclude loading, the first one that both frameworks have.
COMPUTING = ("compute_epoch_s", "pass_s", "step_s")
JOINED = (
    "Ratio: the other framework's time over MLX's; above 1 MLX is faster. Both computed on inputs "
    "that were on the device already: epochs are without loading, and other times are of a pass or "
    "a step. Keras cuts its batches from an array in memory."
)
RULE = (
    "Which is faster is decided by the repeats of both. In single runs the ratio must exceed what "
    "two equal runs differ by, as instrument_check measures it."
)
UNKNOWN = "have no verdict, since instrument_check has not measured what two equal runs differ by"
SIZES_UNLIKE = 0.01  # relative difference of counts; adapters may be counted a little otherwise
NO_LOADER = "PyTorch's time includes loading; none without it was measured"
MEANING = (
    "Ratio: PyTorch's time over MLX's; above 1 MLX is faster. The same: the inputs have the same "
    "checksum and the results no mismatch."
)


def side_by_side(records: Iterable[Record], declaration: Declaration) -> Table:
    """Return a table of PyTorch's time over MLX's for each case, or the reason for no ratio.

    Cases in TF32 are excluded, because only PyTorch has it. records: of one run, with those of
    `instrument_check`. declaration: of the experiment.
    """
    records = list(records)
    variations = run_to_run_by_kind(records)
    pairs = _pairs(record for record in records if record.experiment == declaration.name)
    notes = [sameness(pair) for pair in pairs]
    compared = [
        _compared(pair.get("mlx"), pair.get("torch"), declaration.time, variations)
        if comparable
        else None
        for pair, (_, comparable) in zip(pairs, notes, strict=True)
    ]
    judge([each for each in compared if each])
    rows = [
        _row(declaration, pair, note, each)
        for pair, (note, _), each in zip(pairs, notes, compared, strict=True)
    ]
    return Table("PyTorch and MLX", rows, [MEANING, RULE, counts(compared), *intervals(rows)])


def counts(compared: Iterable[Compared | None]) -> str:
    """Return in how many cases which framework is faster, by the verdicts of `judge`."""
    compared = [each for each in compared if each]
    judged = Counter(each.verdict.partition(":")[0] for each in compared)
    undecided = sum(judged[verdict] for verdict in (NO_DIFFERENCE, WITHIN))
    have = "case has" if len(compared) == 1 else "cases have"
    text = (
        f"{len(compared)} {have} a ratio. MLX is faster in {judged[SLOWER]}, the other "
        f"framework in {judged[FASTER]}; {undecided} show no difference beyond run-to-run variation"
    )
    for verdict, words in (("in doubt", "are in doubt, by their flags"), (SINGLE, UNKNOWN)):
        text += f", {judged[verdict]} {words}" if judged[verdict] else ""
    return f"{text}. {by_chance(compared)}".strip()


def _compared(
    mlx: Repeats, other: Repeats, metric: str, variations: Mapping[str, float]
) -> Compared | None:
    """Return the times of a case in MLX and in another framework; None unless both have some."""
    if not all(metric in case.in_repeats for case in (mlx, other)):
        return None
    return of_cases(mlx, other, metric, (variations.get(mlx.kind), variations.get(other.kind)))


def _pairs(records: Iterable[Record]) -> list[dict[str, Repeats]]:
    """Return the cases of each framework that are otherwise equal, without smoke and TF32."""
    pairs: dict[tuple, dict[str, Repeats]] = {}
    for case in pool(record for record in records if record.profile != "smoke"):
        if case.precision != "tf32":
            config = json.dumps(case.config, sort_keys=True)
            alike = (case.first.experiment, case.kind, case.precision, config)
            pairs.setdefault(alike, {})[case.first.framework] = case
    return [*pairs.values()]


def joined(records: Iterable[Record]) -> Table:
    """Return the ratio for each training of a run that MLX and another framework have timed.

    records: of one run. Smoke tests, single operations and cases in TF32, which only PyTorch has,
    are left out. `data` of a row has `device`, `cpu` or `gpu`, the `experiment` and the `ratio`.
    """
    # Single operations have no parameters.
    records = list(records)
    variations = run_to_run_by_kind(records)
    pairs = [pair for pair in _pairs(records) if "mlx" in pair and len(pair) > 1]
    trainings = [_Training(pair, variations) for pair in pairs if pair["mlx"].first.parameters]
    compared = [training.compared for training in trainings]
    judge([each for each in compared if each])
    rows = [_joined_row(training) for training in trainings]
    notes = [JOINED, RULE, counts(compared), *intervals(rows)]
    return Table("MLX and the other framework of each experiment", rows, notes)


class _Training:
    """A training in MLX and in another framework.

    metric: the time that both have, "" if none. note: whether they computed the same. compared:
    their times, None if these must not be compared.
    """

    def __init__(self, pair: dict[str, Repeats], variations: Mapping[str, float]):
        self.mlx = pair["mlx"]
        others = [case for name, case in pair.items() if name != "mlx"]
        self.other = pair.get("torch") or others[0]
        both = self.mlx.values.keys() & self.other.values.keys()
        self.metric = next((name for name in COMPUTING if name in both), "")
        self.note, comparable = _computed_alike(self.mlx, self.other, self.metric)
        self.compared = None
        if comparable:
            self.compared = _compared(self.mlx, self.other, self.metric, variations)


def _joined_row(training: _Training) -> Row:
    """Return the row of a training: in MLX, and in PyTorch or TensorFlow."""
    mlx, other = training.mlx, training.other
    metric, note, compared = training.metric, training.note, training.compared
    other_time, mlx_time = other.values.get(metric), mlx.values.get(metric)
    ratio = compared.estimate if compared else None
    heading = metrics.Metric(metric).heading if metric else ""
    texts = {
        "Experiment": mlx.first.experiment,
        "Device": mlx.kind.upper(),
        "Case": cases.config_text(mlx.config),
        "Time of": heading.removeprefix("Time per ").lower(),
        "Other framework": f"{other.framework}: {_time_text(other, metric)}",
        "MLX": _time_text(mlx, metric),
        "Ratio": with_interval(ratio, metrics.Metric("speedup").show) if ratio else "",
        "Faster": _faster(compared, other),
        "Notes": note,
    }
    data = {
        "experiment": mlx.first.experiment,
        # Older runs have trainings of several models in one notebook.
        "model": mlx.config.get("workload", mlx.first.experiment),
        "device": mlx.kind,
        "case": mlx.first.case,
        "settings": texts["Case"],
        "framework": other.first.framework,
        "metric": metric,
        "remark": note,
        "other_s": other_time and other_time.value,
        "mlx_s": mlx_time and mlx_time.value,
        "verdict": compared and compared.verdict,
    }
    return Row(texts, data | numbers("ratio", ratio), "measured")


def _faster(compared: Compared | None, other: Repeats) -> str:
    """Return which framework is faster, or why neither. The base of the ratio is MLX."""
    if compared is None:
        return ""
    return {SLOWER: "MLX", FASTER: other.framework}.get(compared.verdict, compared.verdict)


def _time_text(case: Repeats, metric: str) -> str:
    """Return a case's time, or how it ended; its other times may include loading."""
    if metric:
        return value_text(metric, case.values[metric], in_process=IN_PROCESS)
    return "timed" if case.good_repeats else case.status


def _unlike(one: Repeats, other: Repeats) -> str:
    """Return in what two cases of equal settings differ in size, "" if they are alike."""
    for name, words in (("parameters", "parameters"), ("flops_per_step", "FLOPs of a step")):
        counts = [getattr(case.first, name) or 0 for case in (one, other)]
        if all(counts) and abs(counts[0] / counts[1] - 1) > SIZES_UNLIKE:
            return f"other models: {counts[0]:,} and {counts[1]:,} {words}"
    return ""


def _computed_alike(mlx: Repeats, other: Repeats, metric: str) -> tuple[str, bool]:
    """Return a note on whether the two times are of the same computation, and whether they are."""
    if not metric:
        return "one or both have no time", False
    other_size = _unlike(mlx, other)
    if other_size:
        return other_size, False
    keras = other.first.framework == "tensorflow"
    if "epoch_s" in other.values and metric != "compute_epoch_s" and not keras:
        return NO_LOADER, False
    checksums = {
        checksum.value
        for case in (mlx, other)
        for checksum in case.in_repeats.get("inputs_checksum", ())
    }
    if len(checksums) > 1:
        return "different inputs", False
    flags = sorted({*mlx.flags, *other.flags})
    return ", ".join(["equal inputs" if checksums else "inputs of equal shape", *flags]), True


def joined_figure(table: Table) -> Any:
    """Return a figure of the ratios of `joined`: a panel for each device, a line for each case."""
    panels: dict[str, list[Line]] = {}
    for row in table.rows:
        if row.data["ratio"]:
            low, high = row.data.get("ratio_low"), row.data.get("ratio_high")
            # The bounds of single runs are those of run-to-run variation, too.
            covers = "none" if low is None else "repeats"
            ratio = Estimate(row.data["ratio"], "", low, high, covers=covers)
            # A model's name says more than that of its notebook.
            name, case = row.cells["Experiment"], row.cells["Case"]
            label = case.removeprefix("model ") if case.startswith("model ") else f"{name}, {case}"
            kind = ("measured", row.data["device"])
            other = cases.framework_name(row.data["framework"])
            panel = f"{row.cells['Device']}: MLX against {other}"
            panels.setdefault(panel, []).append(Line(label, kind, _in_words(row), [ratio]))
    label = "time in the other framework / time in MLX (above 1: MLX is faster)"
    return figures.ratios_figure(panels, label)


def _in_words(row: Row) -> str:
    """Return the ratio of a row of `joined` for its figure: `MLX 11× slower`."""
    disturbed = ", disturbed" if row.data["verdict"].startswith("in doubt") else ""
    return f"MLX {comparison(row.data['ratio'])}{disturbed}"


def _row(
    declaration: Declaration, pair: dict[str, Repeats], note: str, compared: Compared | None
) -> Row:
    """Return the row of a case in both frameworks: their times, and PyTorch's over MLX's."""
    case = next(iter(pair.values()))
    texts = {"Device": case.kind.upper()} | declaration.texts(case.config)
    data = {"device": case.kind, **case.config, "remark": note}
    times = {name: case.values.get(declaration.time) for name, case in pair.items()}
    for name, heading in FRAMEWORKS.items():
        time = times.get(name)
        status = pair[name].status if name in pair else "not timed"
        texts[heading] = (
            value_text(declaration.time, time, in_process=IN_PROCESS) if time else status
        )
        data[f"{name}_{declaration.time}"] = time and time.value
    ratio = compared.estimate if compared else None
    texts["Ratio"] = with_interval(ratio, metrics.Metric("speedup").show) if ratio else ""
    texts["Faster"] = _faster(compared, pair["torch"]) if compared else ""
    texts["Notes"] = note
    data["verdict"] = compared and compared.verdict
    return Row(texts, data | numbers("ratio", ratio), "measured")


def sameness(pair: dict[str, Repeats]) -> tuple[str, bool]:
    """Return a note on whether two cases computed the same, and whether they did."""
    if len(pair) < 2:
        return "not run with the other framework", False
    if not all(case.good_repeats for case in pair.values()):
        return "one or both have no time", False
    inputs = set()
    for case in pair.values():
        good = case.good.values()
        checksums = [values["inputs_checksum"] for values in good if "inputs_checksum" in values]
        if len(checksums) < case.good_repeats:
            return "unknown inputs", False
        inputs.update(checksum.value for checksum in checksums)
    if len(inputs) > 1:
        return "different inputs", False
    other_size = _unlike(*pair.values())
    if other_size:
        return other_size, False
    flags = {flag for case in pair.values() for flag in case.flags}
    return ", ".join(["the same", *sorted(flags)]), True
