"""Every metric by its name: the heading of its column, its unit, and its axis in a figure."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pomology.format import quantity, quantity_per_s, significant

# Unit of a column -> how much it is in SI units, and the form of a number that is not rounded to
# three significant digits.
UNITS = {
    "J": (1, ""),
    "W": (1, ""),
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


@dataclass(frozen=True)
class Metric:
    """How tables and figures show a metric.

    unit: of the numbers in a table. axis: the words below a figure of it, whose numbers are divided
    by `scale`; empty where none draws it. sources: the names in a record, the first that is there;
    left out, the metric's own.
    """

    heading: str
    unit: str = ""
    axis: str = ""
    scale: float = 1.0
    sources: tuple[str, ...] = ()

    def show(self, value: float, digits: int = 4) -> str:
        """Write a value, which is in SI units, with its unit, in so many digits at most."""
        if self.unit in ("s", "B"):
            return quantity(value, self.unit, digits)
        if self.unit in ("FLOP", "FLOP/s", "B/s", "Hz"):
            return quantity_per_s(value, self.unit, min(digits, 3))
        number = _number(value, self.unit, digits)
        if self.unit == "×":
            return f"{number}×"
        return number if self.unit == "count" else f"{number} {self.unit}".rstrip()


def _number(value: float, unit: str, digits: int = 3) -> str:
    factor, form = UNITS.get(unit, (1, ""))
    return f"{value / factor:{form}}" if form else significant(value / factor, min(digits, 3))


METRICS: dict[str, Metric] = {}


def _add(unit: str, **headings: str) -> None:
    for name, heading in headings.items():
        METRICS[name] = Metric(heading, unit, *AXES.get(name, ()))


_add(
    "s",
    epoch_s="Time per epoch",
    compute_epoch_s="of it computing",
    fit_s="Training time",
    between_epochs_s="of it between epochs",
    pass_s="Pass",
    step_s="Step",
    first_step_s="First step",
    forward_s="Forward",
    backward_s="Backward",
    update_s="Update",
    proof_s="Proof before it was timed",
    kernel_s="One call",
    step_first_s="Step in the first minute",
    step_last_s="Step in the last minute",
)
_add(
    "ms",  # as table 6 of article 001 prints them
    launch_cold_s="Cold launch",
    launch_s="Follow-up launch",
    launch_stream_s="Without waiting",
    launch_paused_s="After a pause",
    compile_s="Compiling",
)
_add(
    "FLOP/s",
    flops_per_s="Achieved",
    forward_flops_per_s="Forward achieves",
    backward_flops_per_s="Backward achieves",
    peak_flops_per_s="Peak",
)
_add("B/s", bytes_per_s="Memory traffic, at least")
_add("per s", throughput="Throughput")
_add("×", speedup="Speed-up")
_add("%", share_of_peak="Share of the peak", rate_left="Rate kept", accuracy="Test accuracy")
_add(
    "B",
    footprint_peak_bytes="Memory",
    footprint_end_bytes="Footprint",
    footprint_slope_bytes="Footprint growth per step",
    resident_slope_bytes="Resident growth per step",
    reserved_peak_bytes="Reserved on the GPU",
    reserved_end_bytes="Reserved",
    allocated_peak_bytes="Most allocated",
    allocated_end_bytes="Allocated",
    allocated_slope_bytes="Allocated growth per step",
    host_bytes="On the host",
    theoretical_bytes="Theoretical memory",
    swap_bytes="Swap grew by",
    swapped_bytes="Swapped",
    compressed_bytes="Compressed",
)
_add(
    "GiB",
    needed_bytes="Needed here",
    free_bytes="Free here",
    saved_written_bytes="Kept for the backward pass, attention written out",
    saved_fused_bytes="Kept for the backward pass, attention fused",
)
_add("GB", memory_bytes="Memory")
_add(
    "count",
    parameters="Parameters",
    page_faults="Page faults",
    page_faults_slope="Page faults per step",
    page_ins="Page-ins",
)
_add("billion", forward_macs="Multiply-adds per picture")
_add("FLOP", step_flops="Operations per step")
_add(
    "W",
    power_w="Power",
    power_rest_w="Power at rest",
    power_gpu_w="Power of the GPU",
    power_cpu_w="Power of the CPU",
    power_dram_w="Power of memory",
    power_ane_w="Power of the Neural Engine",
)
_add(
    "J",
    energy_j_per_step="Energy per step",
    energy_j_per_tflop="Energy per TFLOP",
    energy_gpu_j_per_step="Energy of the GPU per step",
    energy_cpu_j_per_step="Energy of the CPU per step",
    energy_dram_j_per_step="Energy of memory per step",
    energy_ane_j_per_step="Energy of the Neural Engine per step",
)
_add("°C", temperature_c="Temperature")
_add("Hz", clock_hz="Clock")
_add("USD", launch_price_usd="Launch price")
_add(
    "",
    cpu_busy="CPU busy (percent)",
    gpu_busy="GPU busy (percent)",
    max_abs_error="Largest error",
    status="Works",
)
METRICS["peak_memory_bytes"] = Metric(
    "Memory", "B", sources=("reserved_peak_bytes", "footprint_peak_bytes")
)

# Whole pieces of work, which devices and frameworks are compared by; the largest first.
WHOLE = ("fit_s", "epoch_s", "kernel_s", "step_s", "pass_s", "launch_s")
# Of a smaller model than the article's they would be taken for the article's own.
PASSES = ("forward_s", "backward_s", "update_s", "pass_s")
SLOPES = ("_slope", "_slope_bytes")  # a slope may be 0, and then no share of it is an interval


def metric(name: str) -> Metric:
    """How a metric is shown; one without an entry under its own name."""
    return METRICS.get(name) or Metric(words(name))


def show(name: str, heading: str = "") -> Callable[..., str]:
    """How values of a metric are written below a heading.

    Of one that ends in a unit, as `Cold launch (ms)`, a cell has the number alone; below one that
    begins with `Minutes` are minutes.
    """
    unit = re.search(r"\((\w+)\)$", heading)
    if unit and unit[1] in UNITS:
        return partial(_number, unit=unit[1])
    return MINUTES if heading.startswith("Minutes") else metric(name).show


def words(name: str) -> str:
    """`batch_size` as the heading of a column: `Batch size`."""
    return name[:1].upper() + name[1:].replace("_", " ")


MINUTES = Metric("", "min").show  # where an article prints minutes
