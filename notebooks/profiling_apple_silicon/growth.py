"""For the notebooks `memory` and `whisper_pretraining`: by how much memory grows with each step."""

import contextlib
import math
import mmap

import numpy as np

from pomology.experiment import outcome
from pomology.machine import memory
from pomology.measure import intervals
from pomology.measure.estimate import Estimate

BLOCKS = 9  # a few long ones: each must hold what one part of a trace has to do with the next


@contextlib.contextmanager
def noted(case):
    """Around a loop with `case.trace()`: add its `metrics` to the case, however the loop ends."""
    try:
        yield
    finally:
        if case.traced:
            warmup = outcome.traced_warmup(len(case.traced), case.clock.parts["training"])
            for name, value in metrics(case.traced[warmup:]).items():
                case.metric(name, value)


def metrics(rows):
    """Return growth a step (NAME_slope) and both ends of a trace. rows: of `memory.TRACED`.

    What was not read in every step has none; no slope with fewer than 3 steps.
    """
    if not rows:
        return {}
    found = {}
    columns = dict(zip(memory.TRACED, zip(*rows, strict=True), strict=True))
    for name in memory.TRACED[2:]:
        values = columns[name]
        if None in values:
            continue
        short, of_bytes, _ = name.partition("_bytes")
        if len(values) >= 3:
            # The system gives a process pages; frameworks count what they were asked for.
            resolution = mmap.PAGESIZE if short in ("footprint", "resident") else 1
            grows = slope(values, columns["step"], resolution)
            found[f"{short}_slope{of_bytes}"] = grows.replace(unit="B" if of_bytes else "count")
        if of_bytes:
            found[f"{short}_start_bytes"] = Estimate(values[0], "B")
            found[f"{short}_end_bytes"] = Estimate(values[-1], "B")
    return found


def slope(values, steps, resolution=0.0):
    """Return by how much a quantity grows a step, with an interval that holds for memory.

    The slope from the first of 9 blocks to the last, with a t interval of the slopes in between
    (Ibragimov and Mueller 2010), as wide as a random walk needs it (Working 1960), and never less
    than the largest jump. values: 3 or more, one at each of `steps`, which rise. resolution: the
    smallest change that they show.
    """
    y = np.asarray(values, dtype=float)
    x = np.asarray(steps, dtype=float)
    blocks = np.array_split(np.arange(y.size), min(BLOCKS, y.size))
    means = np.array([y[block].mean() for block in blocks])
    places = np.array([x[block].mean() for block in blocks])
    span = places[-1] - places[0]
    per_step = float((means[-1] - means[0]) / span)
    lengths = np.diff(places)
    deviations = np.diff(means) / lengths - per_step
    dof = len(blocks) - 2
    size = y.size / len(blocks)
    correlation = (size**2 - 1) / (2 * (2 * size**2 + 1))
    error = math.sqrt((1 + 2 * correlation) * (lengths @ deviations**2) / dof / span)
    least = max(float(np.abs(np.diff(y)).max()), resolution) / span
    half_width = float(max(intervals.t_quantile(intervals.CONFIDENCE, dof) * error, least))
    return Estimate(per_step, "", per_step - half_width, per_step + half_width, y.size)
