"""Every metric by its name: the heading of its column, its unit, how a value is written, and its
axis in a figure.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pomology.format import milliseconds, quantity, quantity_per_s, seconds, signed, significant

Show = Callable[..., str]  # of a value, and in how many digits at most


@dataclass(frozen=True)
class Metric:
    """How tables and figures show a metric.

    axis: the words below a figure of it, whose numbers are divided by `scale`; empty where none
    draws it. sources: the names in a record, the first that is there; left out, the metric's own.
    """

    heading: str
    unit: str
    show: Show
    axis: str = ""
    scale: float = 1.0
    sources: tuple[str, ...] = ()


def _rounded(unit: str, per: float = 1.0, digits: int = 3) -> Show:
    """In multiples of `per`, to so many significant digits."""
    return lambda value, digits=digits: f"{significant(value / per, digits)}{unit}"


def _fixed(form: str, unit: str = "", per: float = 1.0) -> Show:
    """In multiples of `per`, in a fixed format, whatever digits are asked for."""
    return lambda value, digits=0: f"{value / per:{form}}{unit}"


_count = _fixed(",.0f")
_bytes = partial(quantity, unit="B")
gigabytes = _rounded(" GB", 1e9)
MINUTES = _rounded(" min", 60)  # beside an article's

AXES = {
    "epoch_s": ("seconds per epoch (less is faster; hollow: computing alone)",),
    "fit_s": ("seconds of the whole training (less is faster)",),
    "launch_s": ("milliseconds of a follow-up launch (less is faster)", 1e-3),
    "flops_per_s": ("achieved GFLOP/s (more is faster)", 1e9),
    "speedup": ("times as fast as plain fp32 on the same device (more is faster)",),
    "footprint_slope_bytes": ("memory, and page faults, after each step",),
    "theoretical_bytes": ("GB of weights, gradients and two moments", 1e9),
    "rate_left": ("the rate over time, and the heat of the machine",),
    "energy_gpu_j_per_step": ("joules of the GPU per step (less is better)",),
}
METRICS: dict[str, Metric] = {}


def _add(unit: str, show: Show, **headings: str) -> None:
    for name, heading in headings.items():
        METRICS[name] = Metric(heading, unit, show, *AXES.get(name, ()))


_add(
    "s",
    seconds,
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
    "s",
    milliseconds,
    launch_cold_s="Cold launch",
    launch_s="Follow-up launch",
    launch_stream_s="Without waiting",
    launch_paused_s="After a pause",
    compile_s="Compiling",
)
_add(
    "FLOP/s",
    _rounded(" GFLOP/s", 1e9),
    flops_per_s="Achieved",
    forward_flops_per_s="Forward achieves",
    backward_flops_per_s="Backward achieves",
    peak_flops_per_s="Peak",
)
_add("B/s", _rounded(" GB/s", 1e9), bytes_per_s="Memory traffic, at least")
_add("/s", _rounded(" per s"), throughput="Throughput")
_add("x", _rounded("×"), speedup="Speed-up")
_add(
    "",
    _rounded(" %", 0.01),
    share_of_peak="Share of the peak",
    rate_left="Rate kept",
)
_add(
    "B",
    gigabytes,
    footprint_peak_bytes="Memory",
    reserved_peak_bytes="Reserved on the GPU",
    host_bytes="On the host",
    theoretical_bytes="Theoretical memory",
)
_add(
    "B",
    _bytes,
    footprint_end_bytes="Footprint",
    allocated_end_bytes="Allocated",
    allocated_peak_bytes="Most allocated",
    reserved_end_bytes="Reserved",
)
_add(
    "B",
    partial(signed, unit="B"),
    footprint_slope_bytes="Footprint growth per step",
    resident_slope_bytes="Resident growth per step",
    allocated_slope_bytes="Allocated growth per step",
    swap_bytes="Swap grew by",
)
_add(
    "count",
    _count,
    page_faults="Page faults",
    page_ins="Page-ins",
)
_add("count", partial(signed, unit=""), page_faults_slope="Page faults per step")
_add(
    "B",
    _fixed(",.0f", " MB", 1e6),
    swapped_bytes="Swapped",
    compressed_bytes="Compressed",
)
_add(
    "B",
    _fixed(".1f", " GiB", 2**30),
    needed_bytes="Needed here",
    free_bytes="Free here",
)
_add("B", _fixed(".0f", " GB", 2**30), memory_bytes="Memory")
_add(
    "B",
    _fixed(".2f", " GiB", 2**30),
    saved_written_bytes="Kept for the backward pass, attention written out",
    saved_fused_bytes="Kept for the backward pass, attention fused",
)
_add("", _count, parameters="Parameters")
_add("", _rounded(" billion", 1e9, 4), forward_macs="Multiply-adds per picture")
_add("FLOP", _rounded(" TFLOP", 1e12), step_flops="Operations per step")
_add(
    "W",
    _rounded(" W", digits=2),
    power_w="Power",
    power_rest_w="Power at rest",
    power_gpu_w="Power of the GPU",
    power_cpu_w="Power of the CPU",
    power_dram_w="Power of memory",
    power_ane_w="Power of the Neural Engine",
)
_add(
    "J",
    _rounded(" J"),
    energy_j_per_step="Energy per step",
    energy_j_per_tflop="Energy per TFLOP",
    energy_gpu_j_per_step="Energy of the GPU per step",
    energy_cpu_j_per_step="Energy of the CPU per step",
    energy_dram_j_per_step="Energy of memory per step",
    energy_ane_j_per_step="Energy of the Neural Engine per step",
)
_add("°C", _fixed(".0f", " °C"), temperature_c="Temperature")
_add("Hz", _rounded(" GHz", 1e9), clock_hz="Clock")
_add(
    "%",
    _fixed(".0f", " %"),
    cpu_busy="CPU busy",
    gpu_busy="GPU busy",
)
_add("", _fixed(".1f", " %", 0.01), accuracy="Test accuracy")
_add("", _fixed(".1e"), max_abs_error="Largest error")
_add("", str, status="Works")
_add("USD", _fixed(",.0f", " USD"), launch_price_usd="Launch price")
_peak = ("reserved_peak_bytes", "footprint_peak_bytes")
METRICS["peak_memory_bytes"] = Metric("Memory", "B", gigabytes, sources=_peak)

# How an article that prints a unit in the heading writes the numbers below it.
IN_HEADINGS: dict[str, Show] = {
    "ms": _rounded("", 1e-3),
    "J": significant,
    "M": _fixed(",.3f", per=1e6),
    "GiB": _fixed(".3f", per=2**30),
    "GB": _fixed(".0f", per=2**30),  # memory comes in powers of two, whatever its makers call it
    "TFLOPS": _rounded("", 1e12),
    "USD": _count,
}

# Below these headings a value is shown in another unit than elsewhere.
BY_HEADING: dict[tuple[str, str], Show] = {
    ("epoch_s", "Minutes per epoch"): MINUTES,
    ("compute_epoch_s", "Minutes of it computing"): MINUTES,
    ("flops_per_s", "Operations"): partial(quantity_per_s, unit="FLOP/s"),
    ("bytes_per_s", "Memory"): partial(quantity_per_s, unit="B/s"),
    ("footprint_peak_bytes", "At most"): _bytes,
    ("needed_bytes", "On the device"): gigabytes,
}

# Whole pieces of work, which devices and frameworks are compared by; the largest first.
WHOLE = ("fit_s", "epoch_s", "kernel_s", "step_s", "pass_s", "launch_s")
# Of a smaller model than the article's they would be taken for the article's own.
PASSES = ("forward_s", "backward_s", "update_s", "pass_s")
SLOPES = ("_slope", "_slope_bytes")  # a slope may be 0, and then no share of it is an interval


def metric(name: str) -> Metric:
    """How a metric is shown; one without an entry under its own name."""
    return METRICS.get(name) or Metric(words(name), "", significant)


def show(name: str, heading: str = "") -> Show:
    """How values of a metric are written below a heading, which may hold their unit: `Cold launch
    (ms)`.
    """
    unit = re.search(r"\((\w+)\)$", heading)
    other = IN_HEADINGS.get(unit[1]) if unit else BY_HEADING.get((name, heading))
    return other or metric(name).show


def words(name: str) -> str:
    """`batch_size` as the heading of a column: `Batch size`."""
    return name[:1].upper() + name[1:].replace("_", " ")
