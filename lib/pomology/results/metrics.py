"""Display of metrics: column heading, unit, and axis in a figure.

Metrics are in SI units, and their names end in the unit: `launch_s`, `footprint_peak_bytes`.
resources/metrics.csv has the properties that do not follow from a name. resources/units.csv has the
endings of names, longer ones first. For units of columns it has the factor to SI units, and the
format of numbers without rounding to three digits. GB and GiB are powers of two there.
"""

import re

from pomology.format import PREFIXES, quantity, sentence_case, significant
from pomology.paths import RESOURCES, read_csv

TABLE = {line["metric"]: line for line in read_csv(RESOURCES / "metrics.csv")}
UNIT_ROWS = read_csv(RESOURCES / "units.csv")
# Ending of a metric's name -> its unit, and unit of a column -> its factor and format.
UNIT_OF_ENDING = {ending: row["unit"] for row in UNIT_ROWS for ending in row["ends"].split()}
UNITS = {row["unit"]: (float(row["factor"]), row["form"]) for row in UNIT_ROWS if row["factor"]}
HIDDEN = {name for name, line in TABLE.items() if line["shown"] == "no"}  # only in the data
# Name -> two metrics of a case, whose ratio is computed in each process separately.
RATIOS = {name: line["ratio"].split() for name, line in TABLE.items() if line["ratio"]}

# Metric -> its word in a case's line. A case's main metric is the first of these that it has, and
# above 0 in every case that ended well.
TIMES = {
    "fit_s": "training",
    "pass_s": "pass",
    "epoch_s": "epoch",
    "step_s": "step",
    "forward_s": "forward",
    "kernel_s": "call",
    "launch_s": "launch",
    "backward_s": "backward",
}
# Times of complete work, by which devices and frameworks are compared, the largest first.
WHOLE = ("fit_s", "epoch_s", "kernel_s", "step_s", "pass_s", "launch_s")


class Metric:
    """Display of a metric in tables and figures, by its name.

    unit: unit in tables. axis: label of its axis in a figure, "" if none shows it. scale: divisor
    of numbers in a figure. sources: names in a record, the first present. meaning: note of a table.
    """

    def __init__(self, name: str):
        heading, unit = heading_and_unit(name)
        line = TABLE.get(name, {})  # for what the name does not say, or not well
        self.heading = line.get("heading") or heading
        self.unit = line.get("unit") or unit
        self.axis = line.get("axis", "")
        self.scale = float(line.get("scale") or 1)
        self.sources = tuple((line.get("sources") or name).split())
        self.meaning = line.get("meaning", "")

    def show(self, value: float, heading: str = "", unit: str = "") -> str:
        """Format a value in SI units with its unit, `unit` if the metric itself has none.

        A heading as `Cold launch (ms)` selects the number alone, `Minutes…` selects minutes.
        """
        parentheses = re.search(r"\((\w+)\)$", heading)
        unit_of_column = parentheses[1] if parentheses and parentheses[1] in UNITS else ""
        unit = "min" if heading.startswith("Minutes") else self.unit or unit
        if unit in ("s", *PREFIXES) and not unit_of_column:
            return quantity(value, unit)
        factor, form = UNITS.get(unit_of_column or unit, (1, ""))
        number = f"{value / factor:{form}}" if form else significant(value / factor)
        if unit_of_column or unit == "count":
            return number
        return f"{number}×" if unit == "×" else f"{number} {unit}".rstrip()


def heading_and_unit(name: str) -> tuple[str, str]:
    """Return the heading and the unit that a metric's name says: `Launch` and `s` of `launch_s`.

    The unit is "" for a name without an ending of units.csv. `_slope_bytes` is a growth per step.
    """
    ending = next((ending for ending in UNIT_OF_ENDING if name.endswith(ending)), "")
    heading = words(name.removesuffix(ending))
    if ending == "_slope_bytes":
        heading += " growth per step"
    return heading, UNIT_OF_ENDING.get(ending, "")


def words(name: str) -> str:
    """Return a name as a column heading: `Batch size` for `batch_size`."""
    return sentence_case(name.replace("_", " "))
