"""The memory of this process and its workers, sampled while a case runs."""

import ctypes
import math
import mmap
import multiprocessing.process
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence

import psutil

from pomology.measure.estimate import Estimate

SLOPE_BLOCKS = 9  # a few long ones: each must hold what one part of a trace has to do with the next


class MemoryTrace:
    """Memory and page faults of a training, a row a step, which takes 0.1 ms.

    device: gives `allocated_bytes` and `reserved_bytes` of the device now, or what of them it
    counts. since: when the case began, by `clock`. `footprint_bytes` is as `Sampler` counts it;
    `resident_bytes` (on macOS without what only the GPU touched) and page faults are of this
    process alone. rows: in the order of COLUMNS; None is what cannot be read.
    """

    COLUMNS = (
        "step",
        "t_s",
        "allocated_bytes",
        "reserved_bytes",
        "footprint_bytes",
        "resident_bytes",
        "page_faults",
        "page_ins",
    )

    def __init__(
        self,
        device: Callable[[], dict],
        since: float,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._device = device
        self._since = since
        self._clock = clock
        self.rows: list[tuple] = []

    def note(self) -> None:
        """Note that a step has ended, on the device too."""
        now = {"step": len(self.rows), "t_s": round(self._clock() - self._since, 6)}
        now["footprint_bytes"] = footprint()
        now["resident_bytes"] = psutil.Process().memory_info().rss
        now |= page_faults() | self._device()
        self.rows.append(tuple(now.get(name) for name in self.COLUMNS))

    def metrics(self, warmup: int) -> dict[str, Estimate]:
        """Return growth a step (NAME_slope) and both ends from step `warmup` on.

        What was not read in every step has none; no slope with fewer than 3 steps.
        """
        steps, _, *columns = zip(*self.rows[warmup:], strict=True)
        metrics: dict[str, Estimate] = {}
        for name, values in zip(self.COLUMNS[2:], columns, strict=True):
            if None in values:
                continue
            short, memory, _ = name.partition("_bytes")
            if len(values) >= 3:
                # The system gives a process pages; frameworks count what they were asked for.
                resolution = mmap.PAGESIZE if short in ("footprint", "resident") else 1
                grows = slope(values, steps, resolution)
                metrics[f"{short}_slope{memory}"] = grows.replace(unit="B" if memory else "count")
            if memory:
                metrics[f"{short}_start_bytes"] = Estimate(values[0], "B")
                metrics[f"{short}_end_bytes"] = Estimate(values[-1], "B")
        return metrics


def slope(values: Sequence[float], steps: Sequence[float], resolution: float = 0.0) -> Estimate:
    """Return by how much a quantity grows a step, with an interval that holds for memory.

    The slope from the first of 9 blocks to the last, with a t interval of the slopes in between
    (Ibragimov and Mueller 2010), as wide as a random walk needs it (Working 1960), and never less
    than the largest jump.

    Args:
        values: 3 or more, one at each of `steps`, which rise.
        resolution: the smallest change that they show.
    """
    import numpy as np  # which the sampler does not need

    from pomology.measure import intervals

    y = np.asarray(values, dtype=float)
    x = np.asarray(steps, dtype=float)
    blocks = np.array_split(np.arange(y.size), min(SLOPE_BLOCKS, y.size))
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


def page_faults() -> dict[str, int]:
    """Return the page faults of this process so far, and those that needed the disk."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {"page_faults": usage.ru_minflt + usage.ru_majflt, "page_ins": usage.ru_majflt}


def live_children() -> list[int]:
    """Return the process ids of the multiprocessing children that have not ended."""
    # multiprocessing.active_children() would also collect the ended ones, behind the back of the
    # thread that waits for them: PyTorch would then learn only late that a worker was killed.
    pids = []
    for child in list(multiprocessing.process._children):
        process = child._popen
        if process is not None and process.returncode is None:
            pids.append(process.pid)
    return pids


def footprint() -> int:
    """Return the resident memory of this process; on macOS its physical footprint.

    There its living children count too, of which each imports PyTorch; on Linux they are forks, and
    share its pages.
    """
    if sys.platform != "darwin":
        return psutil.Process().memory_info().rss
    proc_pid_rusage = ctypes.CDLL(None).proc_pid_rusage
    total = 0
    for pid in [os.getpid(), *live_children()]:
        # `struct rusage_info_v0` of <sys/resource.h>: 16 bytes of UUID, then ten numbers, the
        # eighth the footprint
        info = (ctypes.c_uint64 * 12)()
        if proc_pid_rusage(pid, 0, ctypes.byref(info)) == 0:
            total += info[9]
        elif pid == os.getpid():  # a child may have ended since it was listed
            raise OSError("proc_pid_rusage failed")
    return total
