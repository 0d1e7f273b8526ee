"""How a metric is shown: the heading of its column, its unit, and its axis in a figure.

A metric is kept in SI units, and its name ends in the unit: `launch_s`, `footprint_peak_bytes`.
resources/metrics.csv has what does not follow from the name. resources/units.csv has the ends of
names, the longer first, and for the units of columns how much they are in SI units, and the form of
a number that is not rounded to three significant digits. Memory comes in powers of two there.
"""

import re

from pomology.format import quantity, significant
from pomology.paths import RESOURCES, read_csv

TABLE = {line["metric"]: line for line in read_csv(RESOURCES / "metrics.csv")}
LINES = read_csv(RESOURCES / "units.csv")
# Of one case: name -> the metrics of which it is the ratio, taken in each process by itself.
RATIOS = {name: line["ratio"].split() for name, line in TABLE.items() if line["ratio"]}
ENDS = {end: line["unit"] for line in LINES for end in line["ends"].split()}
UNITS = {line["unit"]: (float(line["factor"]), line["form"]) for line in LINES if line["factor"]}

# Whole pieces of work, which devices and frameworks are compared by; the largest first.
WHOLE = ("fit_s", "epoch_s", "kernel_s", "step_s", "pass_s", "launch_s")
SLOPES = ("_slope", "_slope_bytes")  # a slope may be 0, and then no share of it is an interval


class Metric:
    """How tables and figures show a metric, by its name.

    unit: of the numbers in a table. axis: the words below a figure of it, whose numbers are divided
    by `scale`; empty where none draws it. sources: its names in a record, of which the first that
    is there counts. meaning: what a note behind a table says of it.
    """

    def __init__(self, name: str):
        end = next((end for end in ENDS if name.endswith(end)), "")
        line = TABLE.get(name, {})
        growth = " growth per step" if end in SLOPES else ""
        self.heading = line.get("heading") or words(name.removesuffix(end)) + growth
        self.unit = line.get("unit") or ENDS.get(end, "")
        self.axis = line.get("axis", "")
        self.scale = float(line.get("scale") or 1)
        self.sources = tuple((line.get("sources") or name).split())
        self.meaning = line.get("meaning", "")

    def show(self, value: float, heading: str = "") -> str:
        """Write a value, which is in SI units, with its unit.

        Below a heading that ends in a unit, as `Cold launch (ms)`, it is the number alone; below
        one that begins with `Minutes` are minutes.
        """
        told = re.search(r"\((\w+)\)$", heading)
        if told and told[1] in UNITS:
            return _number(value, told[1])
        unit = "min" if heading.startswith("Minutes") else self.unit
        if unit in ("s", "B", "FLOP", "FLOP/s", "B/s", "Hz"):
            return quantity(value, unit)
        number = _number(value, unit)
        if unit == "×":
            return f"{number}×"
        return number if unit == "count" else f"{number} {unit}".rstrip()


def _number(value: float, unit: str) -> str:
    factor, form = UNITS.get(unit, (1, ""))
    return f"{value / factor:{form}}" if form else significant(value / factor)


def words(name: str) -> str:
    """`batch_size` as the heading of a column: `Batch size`."""
    return name[:1].upper() + name[1:].replace("_", " ")
