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
_error = _fixed(".1e")
_busy = _fixed(".0f", " %")
_times = _rounded("×")
_share = _rounded(" %", 0.01)
_joules = _rounded(" J")
_watts = _rounded(" W", digits=2)  # a meter is not better than that
_gigaflops = _rounded(" GFLOP/s", 1e9)
_bytes = partial(quantity, unit="B")
_growth = partial(signed, unit="B")
_megabytes = _fixed(",.0f", " MB", 1e6)
_gibibytes = _fixed(".2f", " GiB", 2**30)
_free = _fixed(".1f", " GiB", 2**30)
gigabytes = _rounded(" GB", 1e9)
MINUTES = _rounded(" min", 60)  # beside an article's

METRICS: dict[str, Metric] = {
    "epoch_s": Metric(
        "Time per epoch",
        "s",
        seconds,
        "seconds per epoch (less is faster; hollow: computing alone)",
    ),
    "compute_epoch_s": Metric("of it computing", "s", seconds),
    "fit_s": Metric("Training time", "s", seconds, "seconds of the whole training (less is faster)"),
    "between_epochs_s": Metric("of it between epochs", "s", seconds),
    "pass_s": Metric("Pass", "s", seconds),
    "step_s": Metric("Step", "s", seconds),
    "first_step_s": Metric("First step", "s", seconds),
    "forward_s": Metric("Forward", "s", seconds),
    "backward_s": Metric("Backward", "s", seconds),
    "update_s": Metric("Update", "s", seconds),
    "proof_s": Metric("Proof before it was timed", "s", seconds),
    "kernel_s": Metric("One call", "s", seconds),
    "launch_cold_s": Metric("Cold launch", "s", milliseconds),
    "launch_s": Metric(
        "Follow-up launch",
        "s",
        milliseconds,
        "milliseconds of a follow-up launch (less is faster)",
        1e-3,
    ),
    "launch_stream_s": Metric("Without waiting", "s", milliseconds),
    "launch_paused_s": Metric("After a pause", "s", milliseconds),
    "compile_s": Metric("Compiling", "s", milliseconds),
    "flops_per_s": Metric("Achieved", "FLOP/s", _gigaflops, "achieved GFLOP/s (more is faster)", 1e9),
    "forward_flops_per_s": Metric("Forward achieves", "FLOP/s", _gigaflops),
    "backward_flops_per_s": Metric("Backward achieves", "FLOP/s", _gigaflops),
    "bytes_per_s": Metric("Memory traffic, at least", "B/s", _rounded(" GB/s", 1e9)),
    "throughput": Metric("Throughput", "/s", _rounded(" per s")),
    "speedup": Metric("Speed-up", "x", _times, "times as fast as plain fp32 on the same device (more is faster)"),
    "share_of_peak": Metric("Share of the peak", "", _share),
    "peak_flops_per_s": Metric("Peak", "FLOP/s", _gigaflops),
    "peak_memory_bytes": Metric("Memory", "B", gigabytes, sources=("reserved_peak_bytes", "footprint_peak_bytes")),
    "footprint_peak_bytes": Metric("Memory", "B", gigabytes),
    "footprint_end_bytes": Metric("Footprint", "B", _bytes),
    "footprint_slope_bytes": Metric(
        "Footprint growth per step", "B", _growth, "memory, and page faults, after each step"
    ),
    "resident_slope_bytes": Metric("Resident growth per step", "B", _growth),
    "allocated_end_bytes": Metric("Allocated", "B", _bytes),
    "allocated_peak_bytes": Metric("Most allocated", "B", _bytes),
    "allocated_slope_bytes": Metric("Allocated growth per step", "B", _growth),
    "reserved_end_bytes": Metric("Reserved", "B", _bytes),
    "reserved_peak_bytes": Metric("Reserved on the GPU", "B", gigabytes),
    "page_faults": Metric("Page faults", "count", _count),
    "page_faults_slope": Metric("Page faults per step", "count", partial(signed, unit="")),
    "page_ins": Metric("Page-ins", "count", _count),
    "swap_bytes": Metric("Swap grew by", "B", _growth),
    "swapped_bytes": Metric("Swapped", "B", _megabytes),
    "compressed_bytes": Metric("Compressed", "B", _megabytes),
    "needed_bytes": Metric("Needed here", "B", _free),
    "free_bytes": Metric("Free here", "B", _free),
    "host_bytes": Metric("On the host", "B", gigabytes),
    "memory_bytes": Metric("Memory", "B", _fixed(".0f", " GB", 2**30)),
    "theoretical_bytes": Metric("Theoretical memory", "B", gigabytes, "GB of weights, gradients and two moments", 1e9),
    "saved_written_bytes": Metric("Kept for the backward pass, attention written out", "B", _gibibytes),
    "saved_fused_bytes": Metric("Kept for the backward pass, attention fused", "B", _gibibytes),
    "parameters": Metric("Parameters", "", _count),
    "forward_macs": Metric("Multiply-adds per picture", "", _rounded(" billion", 1e9, 4)),
    "step_flops": Metric("Operations per step", "FLOP", _rounded(" TFLOP", 1e12)),
    "power_w": Metric("Power", "W", _watts),
    "power_rest_w": Metric("Power at rest", "W", _watts),
    "energy_j_per_step": Metric("Energy per step", "J", _joules),
    "energy_j_per_tflop": Metric("Energy per TFLOP", "J", _joules),
    "temperature_c": Metric("Temperature", "°C", _fixed(".0f", " °C")),
    "clock_hz": Metric("Clock", "Hz", _rounded(" GHz", 1e9)),
    "step_first_s": Metric("Step in the first minute", "s", seconds),
    "step_last_s": Metric("Step in the last minute", "s", seconds),
    "rate_left": Metric("Rate kept", "", _share, "the rate over time, and the heat of the machine"),
    "cpu_busy": Metric("CPU busy", "%", _busy),
    "gpu_busy": Metric("GPU busy", "%", _busy),
    "accuracy": Metric("Test accuracy", "", _fixed(".1f", " %", 0.01)),
    "max_abs_error": Metric("Largest error", "", _error),
    "status": Metric("Works", "", str),
    "launch_price_usd": Metric("Launch price", "USD", _fixed(",.0f", " USD")),
}

for _rail, _name in {
    "gpu": "the GPU",
    "cpu": "the CPU",
    "dram": "memory",
    "ane": "the Neural Engine",
}.items():
    _axis = "joules of the GPU per step (less is better)" if _rail == "gpu" else ""
    METRICS[f"power_{_rail}_w"] = Metric(f"Power of {_name}", "W", _watts)
    METRICS[f"energy_{_rail}_j_per_step"] = Metric(f"Energy of {_name} per step", "J", _joules, _axis)

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
