"""A fixture: a case of the variational autoencoder with all values of its table."""

from collections.abc import Callable
from typing import Any

import fakes
import pytest

from pomology.measure.estimate import Estimate
from pomology.results.record import Record


def estimated(value: float, low: float, high: float) -> Estimate:
    return Estimate(value, "s", low, high, 400, "estimated")


METRICS = {"epoch_s": estimated(4.5, 4.41, 4.59), "step_s": estimated(0.0095, 0.009, 0.01)}
METRICS |= {"compute_epoch_s": estimated(2.25, 2.223, 2.277)}
METRICS |= {"flops_per_s": Estimate(52_774_000_000, "FLOP/s")}
METRICS |= {"footprint_peak_bytes": Estimate(412_000_000, "B")}
METRICS |= {"power_w": Estimate(41.6, "W"), "temperature_c": Estimate(63.5, "°C")}
METRICS |= {"page_faults": Estimate(12_345, "count"), "loss_first": Estimate(545)}


@pytest.fixture
def vae() -> Callable[..., Record]:
    """Return a function that makes the record of the case, with changed fields."""

    def made(**changes: Any) -> Record:
        training = {"epoch_steps": 469, "steady": [[100, 0.95], [300, 2.85]], "warmup": []}
        fields = {
            "case": "torch-cpu batch_size=128",
            "device": "cpu",
            "chip": "Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz",
            "data": "stand-in",
            "data_origin": "digits drawn by hand",
            "parameters": 652_824,
            "flops_per_step": 501_350_400,
            "metrics": dict(METRICS),
            "blocks": {"training": training},
        }
        return fakes.record(**fields | changes)

    return made
