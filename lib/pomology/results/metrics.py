"""How a metric is shown: the heading of its column, its unit, and its axis in a figure.

A metric is kept in SI units, and its name ends in the unit: `launch_s`, `footprint_peak_bytes`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pomology.format import quantity, significant

# Metric -> heading: of what an article prints, and of others whose name is not the heading.
METRICS = {
    "accuracy": "Test accuracy",
    "allocated_end_bytes": "Allocated",
    "allocated_peak_bytes": "Most allocated",
    "allocated_slope_bytes": "Allocated growth per step",
    "backward_flops_per_s": "Backward achieves",
    "backward_s": "Backward",
    "bytes_per_s": "Memory traffic, at least",
    "cpu_busy": "CPU busy (percent)",
    "energy_gpu_j_per_step": "Energy of the GPU per step",
    "energy_j_per_step": "Energy per step",
    "energy_j_per_tflop": "Energy per TFLOP",
    "epoch_s": "Time per epoch",
    "fit_s": "Training time",
    "flops_per_s": "Achieved",
    "footprint_end_bytes": "Footprint",
    "footprint_peak_bytes": "Memory",
    "footprint_slope_bytes": "Footprint growth per step",
    "forward_flops_per_s": "Forward achieves",
    "forward_macs": "Multiply-adds per picture",
    "forward_s": "Forward",
    "free_bytes": "Free here",
    "gpu_busy": "GPU busy (percent)",
    "host_bytes": "On the host",
    "kernel_s": "One call",
    "launch_cold_s": "Cold launch",
    "launch_paused_s": "After a pause",
    "launch_price_usd": "Launch price",
    "launch_s": "Follow-up launch",
    "launch_stream_s": "Without waiting",
    "max_abs_error": "Largest error",
    "memory_bytes": "Memory",
    "needed_bytes": "Needed here",
    "page_faults_slope": "Page faults per step",
    "parameters": "Parameters",
    "pass_s": "Pass",
    "peak_flops_per_s": "Peak",
    "peak_memory_bytes": "Memory",
    "power_rest_w": "Power at rest",
    "power_w": "Power",
    "rate_left": "Rate kept",
    "reserved_end_bytes": "Reserved",
    "reserved_peak_bytes": "Reserved on the GPU",
    "resident_slope_bytes": "Resident growth per step",
    "saved_fused_bytes": "Kept for the backward pass, attention fused",
    "saved_written_bytes": "Kept for the backward pass, attention written out",
    "share_of_peak": "Share of the peak",
    "speedup": "Speed-up",
    "status": "Works",
    "step_first_s": "Step in the first minute",
    "step_flops": "Operations per step",
    "step_last_s": "Step in the last minute",
    "swap_bytes": "Swap grew by",
    "temperature_c": "Temperature",
    "theoretical_bytes": "Theoretical memory",
}
# Metric -> the words on the axis of its figure, and what the numbers there are divided by.
AXES = {
    "epoch_s": ("seconds per epoch (less is faster; hollow: computing alone)", 1.0),
    "fit_s": ("seconds of the whole training (less is faster)", 1.0),
    "launch_s": ("milliseconds of a follow-up launch (less is faster)", 1e-3),
    "flops_per_s": ("achieved GFLOP/s (more is faster)", 1e9),
    "speedup": ("times as fast as plain fp32 on the same device (more is faster)", 1.0),
    "footprint_slope_bytes": ("memory, and page faults, after each step", 1.0),
    "theoretical_bytes": ("GB of weights, gradients and two moments", 1e9),
    "rate_left": ("the rate over time, and the heat of the machine", 1.0),
    "energy_gpu_j_per_step": ("joules of the GPU per step (less is better)", 1.0),
}
# The end of a name -> its unit, the longer ends first.
ENDS = {
    "flops_per_s": "FLOP/s",
    "bytes_per_s": "B/s",
    "_j_per_step": "J",
    "_j_per_tflop": "J",
    "_flops": "FLOP",
    "_bytes": "B",
    "_usd": "USD",
    "_hz": "Hz",
    "_s": "s",
    "_w": "W",
    "_c": "°C",
}
# Units of names without one, and other units than that of the name.
OTHER_UNITS = {
    "speedup": "×",
    "times_cpu": "×",
    "throughput": "per s",
    "forward_macs": "billion",
    "memory_bytes": "GB",
    "parameters": "count",
    "page_faults": "count",
    "page_ins": "count",
    "accuracy": "%",
    "rate_left": "%",
    "share_of_peak": "%",
}
# Unit of a column -> how much it is in SI units, and the form of a number that is not rounded to
# three significant digits.
UNITS = {
    "J": (1, ""),
    "ms": (1e-3, ""),
    "min": (60, ""),
    "%": (0.01, ""),
    "°C": (1, ".0f"),
    "count": (1, ",.0f"),
    "USD": (1, ",.0f"),
    "M": (1e6, ",.3f"),
    "billion": (1e9, ""),
    "TFLOPS": (1e12, ""),
    "GB": (2**30, ".0f"),  # memory comes in powers of two, whatever its makers call it
    "GiB": (2**30, ".2f"),
}
# The names in a record of a metric that has another one there; the first that is there counts.
SOURCES = {"peak_memory_bytes": ("reserved_peak_bytes", "footprint_peak_bytes")}

# Whole pieces of work, which devices and frameworks are compared by; the largest first.
WHOLE = ("fit_s", "epoch_s", "kernel_s", "step_s", "pass_s", "launch_s")
SLOPES = ("_slope", "_slope_bytes")  # a slope may be 0, and then no share of it is an interval


@dataclass(frozen=True)
class Metric:
    """How tables and figures show a metric.

    unit: of the numbers in a table. axis: the words below a figure of it, whose numbers are divided
    by `scale`; empty where none draws it. sources: its names in a record.
    """

    heading: str
    unit: str
    axis: str = ""
    scale: float = 1.0
    sources: tuple[str, ...] = ()

    def show(self, value: float, digits: int = 4) -> str:
        """Write a value, which is in SI units, with its unit, in so many digits at most."""
        if self.unit in ("s", "B", "FLOP", "FLOP/s", "B/s", "Hz"):
            return quantity(value, self.unit, digits)
        number = _number(value, self.unit, digits)
        if self.unit == "×":
            return f"{number}×"
        return number if self.unit == "count" else f"{number} {self.unit}".rstrip()


def metric(name: str) -> Metric:
    """How a metric is shown."""
    end = next((end for end in ENDS if name.endswith(end)), "")
    heading = METRICS.get(name) or words(name.removesuffix(end))
    unit = OTHER_UNITS.get(name) or ENDS.get(end, "")
    return Metric(heading, unit, *AXES.get(name, ("", 1.0)), SOURCES.get(name, ()))


def show(name: str, heading: str = "") -> Callable[..., str]:
    """How values of a metric are written below a heading.

    Of one that ends in a unit, as `Cold launch (ms)`, a cell has the number alone; below one that
    begins with `Minutes` are minutes.
    """
    unit = re.search(r"\((\w+)\)$", heading)
    if unit and unit[1] in UNITS:
        return partial(_number, unit=unit[1])
    return MINUTES if heading.startswith("Minutes") else metric(name).show


def _number(value: float, unit: str, digits: int = 3) -> str:
    factor, form = UNITS.get(unit, (1, ""))
    return f"{value / factor:{form}}" if form else significant(value / factor, min(digits, 3))


def words(name: str) -> str:
    """`batch_size` as the heading of a column: `Batch size`."""
    return name[:1].upper() + name[1:].replace("_", " ")


MINUTES = Metric("", "min").show  # where an article prints minutes
