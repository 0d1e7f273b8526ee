"""Figures of the parts of an epoch and of a training step, by device and setting.

A part that was not measured has no bar; the line above the key says why.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pomology.format import seconds
from pomology.measure import clock, epochs
from pomology.measure.estimate import Estimate
from pomology.report.article import Declaration, comparable
from pomology.report.figures import (
    WITHOUT,
    Bar,
    Scale,
    parts_figure,
    scale_of,
    title_of,
)
from pomology.report.table import counted
from pomology.results.record import STATUSES, Record
from pomology.results.repeats import Repeats, mean_of_repeats
from pomology.views.epoch_breakdown import LEAST_STEPS

COMPUTING, LOADING = "computing", "data-loading stall"
TRAINING = "computing and loading together"
EVALUATION, OCCASIONAL = "evaluation", "occasional work"
FEW_EVALUATED = "evaluation, from few steps"
REST_OF_EPOCH = "evaluation and occasional work"
REST_OF_STEP = "rest of the step"
LEAST_REST = 0.02  # share of a step from which on its rest is a part
NAMED = 2  # cases without a part; more are counted
NO_READY = "no time of computing alone"
NO_DIFFERENCE = "loading not distinguishable"
NO_EPOCH = "computing alone, the inputs are on the device"
NO_PARTS = "*Loading and computing were not told apart.*"
SEEN = 0.01  # share of a bar from which on a part is seen
NO_PASSES = "no times of the passes"
FAILED = frozenset(STATUSES) - {"ok"}


class Parts(NamedTuple):
    """An epoch's parts of one repeat, in seconds.

    loop: training with its loading. stall: share of the loop that it waits for its loading, and
    computing: what is left of the loop without it, None if computing alone was not measured. rest:
    name -> what the epoch has beside the loop.
    """

    loop: float
    stall: Estimate | None
    computing: float | None
    rest: dict[str, float]


def epoch_figure(declaration: Declaration, records: Iterable[Record]) -> Any:
    """Return a figure of the parts of the epochs: computing, loading, evaluation, occasional work.

    A panel has the cases of a device. Loading is what the training loop takes longer than on
    batches that are on the device already. Occasional work, such as checkpoints, is timed apart.
    Where no epoch has two parts that one would see, it is a sentence that says why.
    """
    scale = scale_of(declaration)
    panels: dict[str, list[Bar]] = defaultdict(list)
    absent: dict[str, list[str]] = defaultdict(list)
    for case in comparable(records, "epoch_s"):
        parts, reason = _epoch(case)
        _add(case, declaration, scale, "epoch_s", (parts, reason), panels, absent)
    if panels and not any(_is_divided(bar) for bars in panels.values() for bar in bars):
        reasons = {reason: of for reason, of in absent.items() if reason not in FAILED}
        return f"{NO_PARTS[:-2]}: {_remark(reasons)}.*" if reasons else NO_PARTS
    remark = _remark(absent)
    return parts_figure(panels, _axis(scale, "epoch", panels), scale.unit, remark)


def step_figure(declaration: Declaration, records: Iterable[Record]) -> Any:
    """Return a figure of the parts of the steps: forward, backward and update."""
    scale = Scale("seconds per step", 1.0, seconds)
    panels: dict[str, list[Bar]] = defaultdict(list)
    absent: dict[str, list[str]] = defaultdict(list)
    for case in comparable(records):
        parts, reason = _step(case)
        _add(case, declaration, scale, "step_s", (parts, reason), panels, absent)
    return parts_figure(panels, _axis(scale, "step", panels), scale.unit, _remark(absent))


def _is_divided(bar: Bar) -> bool:
    """Return whether one sees more than one part of a bar, and knows how long they are."""
    whole = sum(bar.parts.values())
    seen = [name for name, part in bar.parts.items() if part > SEEN * whole]
    return len(seen) > 1 and FEW_EVALUATED not in seen


def _add(
    case: Repeats,
    declaration: Declaration,
    scale: Scale,
    whole: str,
    found: tuple[dict[str, float], str],
    panels: dict[str, list[Bar]],
    absent: dict[str, list[str]],
) -> None:
    """Add the bar of a case to its panel, and the reason for what it lacks to `absent`."""
    parts, reason = found
    device = f"{case.device}, {case.framework}"
    label = title_of(declaration.of_cases([case.config]), case.config)
    if parts:
        # An article's pass is a step without its rest.
        name = "step " * (REST_OF_STEP in parts)
        if whole == "step_s" and not name and "pass_s" in case.values:
            whole = "pass_s"
        words = name + scale.show(case.values[whole].value)
        value = case.values[whole]
        panels[device].append(Bar(label, ("measured", case.kind), parts, words, value))
    if reason:
        absent[reason].append(f"{device}, {label[:1].lower()}{label[1:]}")


def _axis(scale: Scale, what: str, panels: Mapping[str, Sequence[Bar]]) -> str:
    """Return the label of the axis; the percentages in bars of several parts are shares."""
    unit = "minutes" if scale.unit == 60 else "seconds"
    several = any(len(bar.parts) > 1 for bars in panels.values() for bar in bars)
    return f"{unit} per {what}" + (f"; %: share of the {what}" if several else "")


def _remark(absent: dict[str, list[str]]) -> str:
    """Return what has no bar or a part less, by reason: one or two cases, or their number."""
    failed = Counter({name: len(found) for name, found in absent.items() if name in FAILED})
    texts = [f"{WITHOUT}{counted(failed)}"] if failed else []
    for reason, found in absent.items():
        if reason in FAILED:
            continue
        named = " and ".join(found) if len(found) <= NAMED else f"{len(found)} cases"
        texts.append(f"{reason}: {named}")
    return "; ".join(texts)


def _epoch(case: Repeats) -> tuple[dict[str, float], str]:
    """Return the seconds of an epoch's parts, the mean of all repeats, and why one is absent."""
    if case.status != "ok":
        return {}, case.status
    if "epoch_s" not in case.values:
        return {}, NO_EPOCH if "compute_epoch_s" in case.values else "no time of an epoch"
    of_repeats = [_of_repeat(record) for record in case.records if record.repeat in case.used]
    loop = _mean([parts.loop for parts in of_repeats])
    names = dict.fromkeys(name for parts in of_repeats for name in parts.rest)
    rest = {name: _mean([parts.rest.get(name, 0.0) for parts in of_repeats]) for name in names}
    stalls = [parts.stall for parts in of_repeats if parts.stall]
    if len(stalls) < len(of_repeats):
        return {TRAINING: loop} | rest, NO_READY
    if mean_of_repeats(stalls).bounds[0] <= 0:
        return {TRAINING: loop} | rest, NO_DIFFERENCE
    computing = _mean([parts.computing for parts in of_repeats])
    if computing >= loop:
        return {TRAINING: loop} | rest, NO_DIFFERENCE
    return {COMPUTING: computing, LOADING: loop - computing} | rest, ""


def _mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean, so that means of parts add up to the mean of the whole."""
    return sum(values) / len(values)


def _of_repeat(record: Record) -> Parts:
    """Return the parts of an epoch of one process."""
    epoch_s = record.metrics["epoch_s"].value
    training = record.blocks.get("training")
    if not training:  # a loop without the clock of steps
        return Parts(epoch_s, None, None, {})
    others = [
        raw
        for name, raw in record.blocks.items()
        if name != "training" and "epoch_steps" in raw and raw["steady"]
    ]
    asides_s = sum(sum(times) for times in record.asides.values())
    evaluation = record.metrics.get("evaluation_epoch_s")
    if training["stopped"] == "whole epoch":
        # Such an epoch has its occasional work as often as that was timed.
        evaluated_s = evaluation.value if evaluation else sum(map(_loop_s, others))
        rest = {EVALUATION: evaluated_s, OCCASIONAL: asides_s}
        loop_s = epoch_s - sum(rest.values())
    else:
        loop_s = _loop_s(training)
        rest_s = epoch_s - loop_s
        if others and record.asides and evaluation:
            # As in the table of parts, a few steps do not tell how long an evaluation takes.
            name = EVALUATION if (evaluation.n or 0) >= LEAST_STEPS else FEW_EVALUATED
            rest = {name: evaluation.value, OCCASIONAL: rest_s - evaluation.value}
        elif others and record.asides:
            rest = {REST_OF_EPOCH: rest_s}
        elif others or record.asides:
            rest = {EVALUATION if others else OCCASIONAL: rest_s}
        else:
            rest, loop_s = {}, epoch_s
    stall = computing = None
    if "compute_epoch_s" in record.metrics:
        with_loading, alone = (_interval(training[kind]) for kind in ("steady", "ready"))
        stall = 1 + -1 * (alone / with_loading)
        computing = loop_s * (1 - stall.value)
        if not others:  # then it is what the table has
            computing = record.metrics["compute_epoch_s"].value
    # Differences of estimates can be below 0, and a bar cannot.
    return Parts(
        loop_s, stall, computing, {name: part_s for name, part_s in rest.items() if part_s > 0}
    )


def _interval(blocks: Sequence[tuple[int, float]]) -> Estimate:
    """Return the seconds of a step from raw blocks."""
    return clock.interval([clock.Block(steps, block_s) for steps, block_s in blocks])


def _loop_s(raw: dict[str, Any]) -> float:
    """Return the seconds of a whole loop, as an epoch has them."""
    steady = _interval(raw["steady"])
    return epochs.epoch_estimate(raw["first_step_s"], steady, raw["epoch_steps"]).value


def _step(case: Repeats) -> tuple[dict[str, float], str]:
    """Return the seconds of a step's parts, the mean of all repeats, and why they are absent."""
    if case.status != "ok":
        return {}, case.status
    names = [f"{phase}_s" for phase in clock.PHASES]
    if not {"step_s", *names} <= case.values.keys():
        return {}, NO_PASSES
    parts = {
        phase: case.values[name].value for phase, name in zip(clock.PHASES, names, strict=True)
    }
    step_s = case.values["step_s"].value
    rest_s = step_s - sum(parts.values())
    return parts | ({REST_OF_STEP: rest_s} if rest_s > LEAST_REST * step_s else {}), ""
