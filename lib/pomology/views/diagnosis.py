"""What bounds each training of a run, and what would help: a table of the whole run.

The least time of a step's arithmetic is its counted FLOPs over the measured peak; that of its
memory traffic is its counted bytes over the measured bandwidth; that of its launches is their count
times the measured time of one. A step takes at least as long as each. The largest one bounds the
step if it is a large part of the time; bounds of small parts explain nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pomology.format import seconds, significant
from pomology.report.table import Row, Table
from pomology.results import cases
from pomology.results.record import Record
from pomology.results.repeats import Repeats, pool
from pomology.views.roofline.roofs import BOTH, UNKNOWN_CACHE, Roofs

ARITHMETIC, TRAFFIC, LAUNCHES = "arithmetic", "memory traffic", "launches"
LOADING, SWAPPING, NONE = "loading", "swapping", "none of these"
# Shares of a step from which on its largest part bounds it, and does so at a lower rate than was
# measured for large operators.
BOUND, IN_PART = 0.4, 0.15
BELOW = " below its peak"
# Flags of a case whose time says more of the moment than of the training.
DISTURBED = ("contended", "throttled", "slowed", "paused", "slept")
LOADED = 0.7  # compute-only share of an epoch below which loading bounds it
MEASURED_BY = {ARITHMETIC: "peaks", TRAFFIC: "peaks", LAUNCHES: "kernel_launch"}  # notebooks
NOTES = (
    "A step takes at least as long as its arithmetic at the measured peak of this device, as its "
    "memory traffic at the measured bandwidth, and as its launches. The percentages are shares of "
    f"the step without loading. From {BOUND:.0%} on the largest one bounds the step; from "
    f"{IN_PART:.0%} on it does so below its peak, since small operators do not reach that. Traffic "
    "that fits a cache is left out.",
    f"Loading bounds an epoch of which computing alone takes less than {LOADED:.0%}.",
)


class Diagnosis(NamedTuple):
    """What bounds a training.

    parts: least seconds of a step by what takes them. step_s: of a step without loading. unknown:
    parts that cannot be told here. help: the action that would help most.
    """

    bound_by: str
    parts: Mapping[str, float]
    step_s: float
    unknown: Sequence[str]
    help: str


def table(records: Iterable[Record], best: Roofs) -> Table:
    """Return a row for each training of a run. records: of all its notebooks. best: its `roofs`."""
    pooled = pool(record for record in records if record.profile != "smoke")
    launch_s = {
        (case.first.framework, case.first.backend): case.values["launch_stream_s"].value
        for case in pooled
        if "launch_stream_s" in case.values
    }
    rows = []
    for case in pooled:
        diagnosed = diagnosis(case, best, launch_s)
        if diagnosed is None:
            continue
        shares = {
            name: f"{significant(100 * part_s / diagnosed.step_s, 2)} %"
            for name, part_s in diagnosed.parts.items()
        }
        cells = {
            "Experiment": case.first.experiment,
            "Device": f"{case.device}, {case.framework}",
            "Case": cases.config_text(case.config),
            "Step": seconds(diagnosed.step_s),
            "Bound by": diagnosed.bound_by,
            "What would help": diagnosed.help,
            "Arithmetic": shares.get(ARITHMETIC, ""),
            "Memory traffic": shares.get(TRAFFIC, ""),
            "Launches": shares.get(LAUNCHES, ""),
            "Not known": ", ".join(diagnosed.unknown),
        }
        data = {
            "experiment": case.first.experiment,
            "device": case.device,
            "kind": case.kind,
            "framework": case.first.framework,
            **case.config,
            "step_s": diagnosed.step_s,
            "bound_by": diagnosed.bound_by,
            **{f"{name.replace(' ', '_')}_s": part_s for name, part_s in diagnosed.parts.items()},
        }
        rows.append(Row(cells, data, "measured"))
    return Table("What bounds each training", rows, NOTES if rows else ())


def diagnosis(
    case: Repeats, best: Roofs, launch_s: Mapping[tuple[str, str], float]
) -> Diagnosis | None:
    """Return what bounds a training; None for a case that is none, or whose FLOPs are not known.

    launch_s: seconds of a launch by framework and backend.
    """
    first, rate = case.first, case.values.get("flops_per_s")
    if not (rate and first.flops_per_step and "step_s" in case.values):
        return None
    step_s = first.flops_per_step / rate.value  # the rate is that of steps without loading
    parts = {}
    peak = best.rates.get((case.kind, case.precision))
    if peak:
        parts[ARITHMETIC] = first.flops_per_step / peak.rate.value
    bandwidth = best.bandwidths.get((case.kind, BOTH))
    in_cache = (first.bytes_per_step or 0) <= best.caches.get(case.kind, UNKNOWN_CACHE)
    if bandwidth and first.bytes_per_step and not in_cache:
        traffic_s = first.bytes_per_step / bandwidth.rate.value
        # Traffic that takes longer than the step did not reach the memory.
        parts |= {TRAFFIC: traffic_s} if traffic_s <= step_s else {}
    one_s = launch_s.get((first.framework, first.backend))
    if one_s and first.launches_per_step:
        parts[LAUNCHES] = first.launches_per_step * one_s
    counted = {
        ARITHMETIC: True,
        TRAFFIC: bool(first.bytes_per_step) and not in_cache,
        LAUNCHES: bool(first.launches_per_step),
    }
    unknown = [
        f"{name} ({MEASURED_BY[name]} measures it)"
        for name, is_counted in counted.items()
        if is_counted and name not in parts and not (name == TRAFFIC and bandwidth)
    ]
    bound_by = _bound_by(case, parts, step_s)
    return Diagnosis(bound_by, parts, step_s, unknown, _help(bound_by, case))


def _bound_by(case: Repeats, parts: Mapping[str, float], step_s: float) -> str:
    """Return what takes most of the time of a training."""
    disturbances = [flag for flag in DISTURBED if flag in case.flags]
    if disturbances:
        return f"not judged: {', '.join(disturbances)}"
    if "swapping" in case.flags:
        return SWAPPING
    alone = case.values.get("compute_share")
    if alone and alone.value < LOADED:
        return LOADING
    largest = max(parts, key=parts.get, default=NONE)
    share = parts.get(largest, 0.0) / step_s
    if share >= BOUND:
        return largest
    return largest + BELOW if share >= IN_PART else NONE


def _help(bound_by: str, case: Repeats) -> str:
    """Return the one action that helps most against what bounds a training."""
    if bound_by == ARITHMETIC:
        # A CPU without matmul units of its own is no faster in half precision.
        halved = case.kind == "gpu" and case.precision == "fp32"
        return "half precision by autocast" if halved else "nothing here: the device is used well"
    actions = {
        ARITHMETIC + BELOW: "a larger batch, whose operators come closer to the peak",
        TRAFFIC + BELOW: "fused operators by compilation",
        LAUNCHES + BELOW: "a larger batch, a fused optimizer, or compilation",
        SWAPPING: "a smaller batch, or gradient checkpointing",
        LOADING: "more workers, or data that stay on the device",
        TRAFFIC: "fused operators by compilation, or half precision",
        LAUNCHES: "a larger batch, a fused optimizer, or compilation",
        NONE: "a profile of its operators: many may be small or slow",
    }
    return actions.get(bound_by, "a run while nothing disturbs the machine")
