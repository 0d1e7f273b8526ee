"""Steps that a device's data sheet predicts, next to which those of a shared run are looked at."""

from __future__ import annotations

import functools

from pomology.articles import devices as names
from pomology.errors import PomologyError
from pomology.extras.prediction import devices, model, times
from pomology.extras.prediction.devices import Hardware
from pomology.measure.estimate import Estimate
from pomology.results.record import Record

# Factor below the 90 % interval: models and software of a run are not those of the fitted times.
BEYOND = 2.0


def step(record: Record, device: str) -> Estimate | None:
    """Return the predicted seconds of a step in fp32 by PyTorch, with their 90 % interval.

    None for another step, one without counts, or a device without a data sheet. A device with TF32
    is predicted in it, since PyTorch computes its convolutions so.
    """
    work = times.recorded(record)
    hardware = with_data_sheet(device) if work else None
    if hardware is None:
        return None
    work = work._replace(launches=record.launches_per_step or 0)
    precision = "tf32" if hardware.flops_per_s.get("tf32") else "fp32"
    return model.fitted().predict(work, hardware, precision)[0]


@functools.cache
def with_data_sheet(device: str) -> Hardware | None:
    """Return a device with its peaks, None for one without a data sheet."""
    if names.is_cpu(device):
        return None
    try:
        return devices.with_data_sheet(device).device
    except PomologyError:
        return None
