"""Growth of memory per step: whether a training loop leaks."""

import contextlib
import math
import mmap

import numpy as np

from pomology.experiment import outcome
from pomology.machine import memory
from pomology.measure import intervals
from pomology.measure.estimate import Estimate

BLOCKS = 9  # few and long, so that the correlation of neighbouring steps stays within a block


@contextlib.contextmanager
def noted(case):
    """Add the `metrics` of a loop with `case.trace()` to the case, even if the loop fails."""
    try:
        yield
    finally:
        if case.traced:
            warmup = outcome.traced_warmup(len(case.traced), case.clock.parts["training"])
            for name, value in metrics(case.traced[warmup:]).items():
                case.metric(name, value)


def metrics(rows):
    """Return the growth per step (NAME_slope) and the first and last value of each quantity.

    rows: of `memory.TRACED`. Quantities that were not read in every step are omitted; a slope needs
    at least 3 steps.
    """
    if not rows:
        return {}
    by_name = {}
    columns = dict(zip(memory.TRACED, zip(*rows, strict=True), strict=True))
    for name in memory.TRACED[2:]:
        values = columns[name]
        if None in values:
            continue
        short, of_bytes, _ = name.partition("_bytes")
        if len(values) >= 3:
            # The system allocates whole pages; frameworks count requested bytes.
            resolution = mmap.PAGESIZE if short in ("footprint", "resident") else 1
            grows = slope(values, columns["step"], resolution)
            by_name[f"{short}_slope{of_bytes}"] = grows.replace(unit="B" if of_bytes else "count")
        if of_bytes:
            by_name[f"{short}_start_bytes"] = Estimate(values[0], "B")
            by_name[f"{short}_end_bytes"] = Estimate(values[-1], "B")
    return by_name


def slope(values, steps, resolution=0.0):
    """Return the growth of a quantity per step, with an interval suited to memory.

    The slope runs from the first of 9 blocks to the last. Its t interval uses the slopes between
    neighbouring blocks (Ibragimov and Mueller 2010), is widened to cover a random walk (Working
    1960), and is never narrower than the largest jump. values: 3 or more, one for each of the
    ascending `steps`. resolution: the smallest change that the values can show.
    """
    values = np.asarray(values, dtype=float)
    steps = np.asarray(steps, dtype=float)
    blocks = np.array_split(np.arange(values.size), min(BLOCKS, values.size))
    means = np.array([values[block].mean() for block in blocks])
    middles = np.array([steps[block].mean() for block in blocks])
    span = middles[-1] - middles[0]
    per_step = float((means[-1] - means[0]) / span)
    lengths = np.diff(middles)
    deviations = np.diff(means) / lengths - per_step
    dof = len(blocks) - 2
    # Of a random walk, neighbouring differences of block means are correlated (Working 1960).
    size = values.size / len(blocks)
    correlation = (size**2 - 1) / (2 * (2 * size**2 + 1))
    error = math.sqrt((1 + 2 * correlation) * (lengths @ deviations**2) / dof / span)
    least = max(float(np.abs(np.diff(values)).max()), resolution) / span
    half_width = float(max(intervals.t_quantile(intervals.CONFIDENCE, dof) * error, least))
    return Estimate(per_step, "", per_step - half_width, per_step + half_width, values.size)
