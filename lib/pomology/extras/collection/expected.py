"""Steps that a device's data sheet predicts, next to which those of a shared run are looked at."""

from __future__ import annotations

import functools
import math

from pomology.articles import devices as names
from pomology.errors import PomologyError
from pomology.extras.prediction import devices, model, times, workloads
from pomology.extras.prediction.devices import Hardware
from pomology.extras.prediction.work import Work
from pomology.measure.estimate import Estimate
from pomology.results.record import Record

# Factor below the 90 % interval: models and software of a run are not those of the fitted times.
BEYOND = 2.0
# Relative, between the operations of a case and those of a workload of the table.
ALIKE = 0.01
# Share of the fitted time of a launch, 35 µs. Published launches take 3.6 µs and more on NVIDIA's
# GPUs; with this share, the least time that is not marked has 3.1 µs. Apple's take over 100 µs.
LAUNCH_SHARES = {"cuda": 0.3}
# CUDA has the fewest launches and bytes; another backend may have as few in a later version.
COUNTED_ON = "cuda"
# Libraries of GPUs do an LSTM in far fewer kernels than are counted.
FUSED = {"lstm"}


def step(record: Record, device: str) -> Estimate | None:
    """Return the predicted seconds of a step in fp32 by PyTorch, with their 90 % interval.

    None for another step, one of no known workload, or a device without a data sheet. A device with
    TF32 is predicted in it, since PyTorch computes its convolutions so.
    """
    hardware = with_data_sheet(device) if times.recorded(record) else None
    work = counted(record) if hardware else None
    if work is None:
        return None
    share = LAUNCH_SHARES.get(hardware.backend, 1.0)
    work = work._replace(launches=share * work.launches)
    precision = "tf32" if hardware.flops_per_s.get("tf32") else "fp32"
    return model.fitted().predict(work, hardware, precision)[0]


def counted(record: Record) -> Work | None:
    """Return the work of a case's step as the table of workloads has it, None for another step.

    A run may lack its launches, or state what it likes, so nothing is taken from it but the
    operations, which tell the size of a workload.
    """
    batch_size = record.config.get("batch_size")
    if not isinstance(batch_size, int):
        return None
    model_name = str(record.config.get("model", "")).partition("-")[0]
    names_of_case = {record.experiment, model_name, record.config.get("workload")}
    for row in workloads.rows():
        if row["workload"] not in names_of_case - FUSED:
            continue
        for size in workloads.sizes(row["workload"]):
            target = workloads.Target(row["workload"], batch_size, size)
            work = workloads.count(target, backend=COUNTED_ON)
            if math.isclose(work.flops, record.flops_per_step, rel_tol=ALIKE):
                return work
    return None


@functools.cache
def with_data_sheet(device: str) -> Hardware | None:
    """Return a device with its peaks, None for one without a data sheet."""
    if names.is_cpu(device):
        return None
    try:
        return devices.with_data_sheet(device).device
    except PomologyError:
        return None
