"""How a metric is shown: the heading of its column, its unit, and its axis in a figure.

A metric is kept in SI units, and its name ends in the unit: `launch_s`, `footprint_peak_bytes`.
Headings, units and axes that do not follow from the name are in resources/metrics.csv.
"""

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pomology.format import quantity, significant
from pomology.paths import RESOURCES

# axis: the words on the axis of its figure; scale: what the numbers there are divided by.
with (RESOURCES / "metrics.csv").open(encoding="utf-8") as file:
    TABLE = {line["metric"]: line for line in csv.DictReader(file)}
# Metric -> heading: of what an article prints, and of others whose name is not the heading.
METRICS = {name: line["heading"] for name, line in TABLE.items() if line["heading"]}
# The end of a name -> its unit, the longer ends first.
ENDS = {
    "_slope_bytes": "B",
    "_end_bytes": "B",
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
# What an article prints -> its own name, and those in a record; the first that is there counts.
MEMORY = ("peak_memory_bytes", "reserved_peak_bytes", "footprint_peak_bytes")
SOURCES = {"peak_memory_bytes": MEMORY}

# Whole pieces of work, which devices and frameworks are compared by; the largest first.
WHOLE = ("fit_s", "epoch_s", "kernel_s", "step_s", "pass_s", "launch_s")
SLOPES = ("_slope", "_slope_bytes")  # a slope may be 0, and then no share of it is an interval


@dataclass(frozen=True)
class Metric:
    """How tables and figures show a metric.

    unit: of the numbers in a table. axis: the words below a figure of it, whose numbers are divided
    by `scale`; empty where none draws it. sources: its names in a record. meaning: what a note
    behind a table says of it.
    """

    heading: str
    unit: str
    axis: str = ""
    scale: float = 1.0
    sources: tuple[str, ...] = ()
    meaning: str = ""

    def show(self, value: float) -> str:
        """Write a value, which is in SI units, with its unit."""
        if self.unit in ("s", "B", "FLOP", "FLOP/s", "B/s", "Hz"):
            return quantity(value, self.unit)
        number = _number(value, self.unit)
        if self.unit == "×":
            return f"{number}×"
        return number if self.unit == "count" else f"{number} {self.unit}".rstrip()


def metric(name: str) -> Metric:
    """How a metric is shown."""
    end = next((end for end in ENDS if name.endswith(end)), "")
    line = TABLE.get(name, {})
    growth = " growth per step" if end in SLOPES else ""
    heading = METRICS.get(name) or words(name.removesuffix(end)) + growth
    unit = line.get("unit") or ENDS.get(end, "")
    scale = float(line.get("scale") or 1)
    sources = SOURCES.get(name, (name,))
    return Metric(heading, unit, line.get("axis", ""), scale, sources, line.get("meaning", ""))


def show(name: str, heading: str = "") -> Callable[..., str]:
    """How values of a metric are written below a heading.

    Of one that ends in a unit, as `Cold launch (ms)`, a cell has the number alone; below one that
    begins with `Minutes` are minutes.
    """
    unit = re.search(r"\((\w+)\)$", heading)
    if unit and unit[1] in UNITS:
        return partial(_number, unit=unit[1])
    return Metric("", "min").show if heading.startswith("Minutes") else metric(name).show


def _number(value: float, unit: str) -> str:
    factor, form = UNITS.get(unit, (1, ""))
    return f"{value / factor:{form}}" if form else significant(value / factor)


def words(name: str) -> str:
    """`batch_size` as the heading of a column: `Batch size`."""
    return name[:1].upper() + name[1:].replace("_", " ")
