"""Figure of each training's step time over time: its warm-up, its noise and its drift."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from pomology.format import seconds
from pomology.measure.intervals import VALUES_LEAST
from pomology.report.figures import (
    GREY,
    LOOKS,
    OTHER,
    SIZE,
    fit_height,
    grid_of,
    key,
    plain_ticks,
    wrapped,
)
from pomology.results import cases
from pomology.results.record import Record
from pomology.results.repeats import Repeats, pool

MOST = 12  # panels; the journal has the blocks of all cases
HEIGHT = 1.2  # inches of a panel
TITLE = 27  # characters of a line of a panel's title
LEAST_RANGE = (0.45, 2.2)  # of the axis, so that a few percent of noise look like it
CAPTION = (
    "Each point is a block of steps: its mean time per step relative to the median of its process, "
    "at the time of its middle. Open points are the warm-up, and each line is a process."
)
OMITTED = " The other {} cases have their blocks in the journal."


def figure(records: Iterable[Record]) -> tuple[Any, str] | None:
    """Return the figure of an experiment's records, and its caption; None without trainings.

    Cases with fewer than 6 steady blocks are left out.
    """
    drawn = [case for case in pool(records) if _timed(case)]
    if not drawn:
        return None
    panels, omitted = drawn[:MOST], len(drawn[MOST:])
    form, axes, left = grid_of(len(panels), HEIGHT)
    looks = {}
    for axis, case in zip(axes, panels, strict=True):
        look = LOOKS.get(("measured", case.kind), OTHER)
        looks[look["name"]] = {"color": look["colour"], "marker": ".", "linestyle": "-"}
        _draw(axis, case, look["colour"])
    low, high = axes[0].get_ylim()
    axes[0].set_ylim(min(low, LEAST_RANGE[0]), max(high, LEAST_RANGE[1]))
    for axis in left:
        axis.set_ylabel("step / median")
        plain_ticks(axis.yaxis)
    for axis in {left[-1], axes[-1]}:
        axis.set_xlabel("seconds of the training")
    key(form, looks)
    fit_height(form, left, HEIGHT * len(left))
    return form, CAPTION + (OMITTED.format(omitted) if omitted else "")


def _timed(case: Repeats) -> list[Record]:
    """Return the records of a case whose training was timed in enough blocks for a curve."""
    records = [record for record in case.records if record.status == "ok"]
    return [record for record in records if len(record.steady()) >= VALUES_LEAST]


def _draw(axis: Any, case: Repeats, colour: str) -> None:
    """Draw the curves of a case, one for each repeat."""
    medians_s = []
    for record in _timed(case):
        warmup = record.blocks["training"].get("warmup", [])
        first_s = record.blocks["training"].get("first_step_s") or 0.0
        times_s, steps_s = _curve([(1, first_s), *warmup, *record.steady()])
        start = 1 + len(warmup)
        median_s = statistics.median(steps_s[start:])
        medians_s.append(median_s)
        relative = [step_s / median_s for step_s in steps_s]
        # The first step is not drawn: it may have compiled, which takes hundreds of times as long.
        axis.plot(times_s[start:], relative[start:], color=colour, marker=".", linewidth=0.8)
        open_points = {"color": colour, "markerfacecolor": "none", "linestyle": "none"}
        axis.plot(times_s[1:start], relative[1:start], marker=".", **open_points)
    axis.set_yscale("log")
    axis.axhline(1, color=GREY, linewidth=0.8, linestyle="dashed")
    software = cases.framework_name(case.first.framework)
    name = ", ".join(filter(None, [case.device, software, cases.config_text(case.config)]))
    title = [wrapped(name, TITLE), f"median {seconds(statistics.median(medians_s))}"]
    axis.set_title("\n".join(title), fontsize=SIZE, fontweight="normal")
    axis.grid(axis="y")
    axis.set_xlim(left=0)


def _curve(blocks: Sequence[tuple[int, float]]) -> tuple[list[float], list[float]]:
    """Return the middles of blocks in seconds of the training, and their seconds per step."""
    ends_s = list(itertools.accumulate(block_s for _, block_s in blocks))
    middles_s = [end_s - block_s / 2 for end_s, (_, block_s) in zip(ends_s, blocks, strict=True)]
    return middles_s, [block_s / steps for steps, block_s in blocks]
