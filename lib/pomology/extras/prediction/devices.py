"""Devices and their peaks, from data sheets or measured by a run."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pomology.articles import devices as names
from pomology.articles import published as articles_published
from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.report import peaks
from pomology.results import cases
from pomology.results.record import Record

HALF = ("fp16", "bf16", "half")
COPIES = ("copy", "scale", "add", "triad")  # operations of STREAM that read and write
PEAKS = "peaks"  # the notebook that measures peaks
MAKERS = {"nvidia": "NVIDIA", "amd": "AMD", "apple": "Apple"}  # id in datasheets.csv -> name


def kind(precision: str) -> str:
    """Return the kind of a precision, which has an interval of its own: fp32, tf32 or half."""
    return "half" if precision in HALF else precision


class Hardware(NamedTuple):
    """A device that times are predicted for, and its peaks."""

    name: str
    flops_per_s: Mapping[str, float]  # by precision, 0 without; data sheets: fp32, tf32 and half
    bytes_per_s: float
    backend: str
    source: str
    measured: bool = False  # peaks are from a run
    maker: str = ""  # of a device with a data sheet: nvidia, amd or apple

    def peak(self, precision: str) -> float:
        """Return the peak FLOP/s in a precision, or in fp32 if the hardware has no units for it."""
        if self.measured and not self.flops_per_s.get(precision):
            raise PomologyError(f"{precision}: {self.name} has no such peak in {self.source}")
        name = "half" if precision in HALF and not self.measured else precision
        return self.flops_per_s.get(name) or self.flops_per_s["fp32"]


class Choice(NamedTuple):
    """A device for a prediction. note: how it was chosen where its name fits several."""

    device: Hardware
    name: str
    note: str = ""


def of_run(kind: str, run: str, records: Sequence[Record]) -> Choice:
    """Return a run's device with measured peaks, `cpu` or `gpu`; "" takes a GPU before a CPU.

    Raises PomologyError if the run has no measured peaks, or no such device.
    """
    measured = measured_devices(records, run)
    if not measured:
        reason = f"the run has no measured peaks; the notebook {PEAKS} measures them"
        raise PomologyError(f"--from {run}: {reason}")
    kind = kind.lower() or max(measured)
    if kind not in measured:
        raise PomologyError(f"--on {one_line(kind)}: {run} has peaks of {', '.join(measured)}")
    return Choice(measured[kind], kind)


def with_data_sheet(name: str, gpus: Sequence[Mapping[str, Any]] = (), option: str = "") -> Choice:
    """Return the device with a data sheet that a name means.

    name, gpus: see `articles.devices.resolve`. option: stands before the name in an error. Raises
    PomologyError for a name without a data sheet, with similar ones.
    """
    try:
        resolved = names.resolve(name, names.with_data_sheet(), gpus)
    except PomologyError as error:
        raise PomologyError(f"{option} {error}".strip()) from None
    line = names.sheets()[resolved.name]
    device = published_devices()[line["device"]]
    return Choice(device._replace(name=resolved.name), *resolved)


@functools.cache
def published_devices() -> dict[str, Hardware]:
    """Return the devices with a data sheet, by name."""
    devices = {}
    for line in articles_published.read("datasheets.csv"):
        tflops = {name: line[f"{name}_tflops"] for name in ("fp32", "tf32", "half")}
        checked = line["checked"] or "from memory, not checked against a source"
        devices[line["device"]] = Hardware(
            name=line["device"],
            flops_per_s={name: float(text or 0) * 1e12 for name, text in tflops.items()},
            bytes_per_s=float(line["bandwidth_gb_s"]) * 1e9,
            backend="mps" if line["maker"] == "apple" else "cuda",
            source=f"peaks of a data sheet ({checked})",
            maker=line["maker"],
        )
    return devices


def measured_devices(records: Sequence[Record], run: str) -> dict[str, Hardware]:
    """Return the devices of a run with measured peaks, by `cpu` and `gpu`."""
    # On a CPU another library computes convolutions, so their rate is not the peak of matmuls.
    others = [record for record in records if record.config.get("operation") != "convolution"]
    rates = peaks.best(others)
    copying = [record for record in records if record.config.get("operation") in COPIES]
    bandwidths = peaks.best(copying, "bytes_per_s", lambda _: "copying")
    devices = {}
    for kind in ("cpu", "gpu"):
        fp32, bandwidth = rates.get((kind, "fp32")), bandwidths.get((kind, "copying"))
        if not (fp32 and bandwidth):
            continue
        devices[kind] = Hardware(
            name=cases.chip_name(fp32.record),
            flops_per_s={name: peak.rate.value for (of, name), peak in rates.items() if of == kind},
            bytes_per_s=bandwidth.rate.value,
            backend="cpu" if kind == "cpu" else fp32.record.backend.rpartition("-")[2],
            source=f"the peaks measured in the run {run}",
            measured=True,
        )
    return devices
