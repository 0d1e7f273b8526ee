"""Devices and their peaks, from data sheets or measured by a run."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pomology.articles import published
from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.report import peaks
from pomology.results import cases
from pomology.results.record import Record

HALF = ("fp16", "bf16", "half")
COPIES = ("copy", "scale", "add", "triad")  # operations of STREAM that read and write
PEAKS = "peaks"  # the notebook that measures peaks


class Device(NamedTuple):
    """A device and its peaks."""

    name: str
    flops_per_s: Mapping[str, float]  # by precision, 0 without; data sheets: fp32, tf32 and half
    bytes_per_s: float
    backend: str
    source: str
    measured: bool = False  # peaks are from a run

    def peak(self, precision: str) -> float:
        """Return the peak FLOP/s in a precision, or in fp32 if the hardware has no units for it."""
        if self.measured and not self.flops_per_s.get(precision):
            raise PomologyError(f"{precision}: {self.name} has no such peak in {self.source}")
        name = "half" if precision in HALF and not self.measured else precision
        return self.flops_per_s.get(name) or self.flops_per_s["fp32"]


def chosen(name: str, devices: Mapping[str, Device]) -> Device:
    """Return the device of a name. Raises PomologyError with similar names."""
    if name not in devices:
        names = ", ".join(difflib.get_close_matches(name, devices, 3, 0) or devices)
        raise PomologyError(f"--on {one_line(name)}: unknown device; similar names: {names}")
    return devices[name]


@functools.cache
def published_devices() -> dict[str, Device]:
    """Return the devices with a data sheet, by name."""
    devices = {}
    for line in published.read("datasheets.csv"):
        tflops = {name: line[f"{name}_tflops"] for name in ("fp32", "tf32", "half")}
        checked = line["checked"] or "from memory, not checked against a source"
        devices[line["device"]] = Device(
            name=line["device"],
            flops_per_s={name: float(text or 0) * 1e12 for name, text in tflops.items()},
            bytes_per_s=float(line["bandwidth_gb_s"]) * 1e9,
            backend="mps" if line["maker"] == "apple" else "cuda",
            source=f"published peaks ({checked})",
        )
    return devices


def of_gpu(name: str | None) -> Device | None:
    """Return the device with a data sheet that has a GPU's name in a record, or None."""
    known = published_devices()
    return known.get(name) or known.get(f"{name} GPU")


def measured_devices(records: Sequence[Record], run: str) -> dict[str, Device]:
    """Return the devices of a run with measured peaks, by `cpu` and `gpu`."""
    # On a CPU another library computes convolutions, so their rate is not the peak of matmuls.
    rates = peaks.best(r for r in records if r.config.get("operation") != "convolution")
    copying = [r for r in records if r.config.get("operation") in COPIES]
    bandwidths = peaks.best(copying, "bytes_per_s", lambda _: "copying")
    devices = {}
    for kind in ("cpu", "gpu"):
        fp32, bandwidth = rates.get((kind, "fp32")), bandwidths.get((kind, "copying"))
        if not (fp32 and bandwidth):
            continue
        devices[kind] = Device(
            name=cases.chip_name(fp32.record),
            flops_per_s={name: each.rate.value for (of, name), each in rates.items() if of == kind},
            bytes_per_s=bandwidth.rate.value,
            backend="cpu" if kind == "cpu" else fp32.record.backend.rpartition("-")[2],
            source=f"the peaks measured in the run {run}",
            measured=True,
        )
    return devices
