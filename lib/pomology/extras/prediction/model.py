"""A model of the time of a training step, from its work and the peaks of a device.

    time = F · (Σ operations / (e · peak) + Σ bytes / (e_m · bandwidth) + launches · l)

The shares of a peak, `e` and `e_m`, and the time of a launch, `l`, are fitted to published times.
The loss is the absolute logarithm of measured over predicted, which is robust against outliers.
With measured times of other workloads on a device, they are fitted again, with a factor F.
docs/prediction.md has the errors of its predictions.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pomology.articles import published
from pomology.extras.prediction.devices import HALF, Hardware
from pomology.extras.prediction.work import Work
from pomology.measure.estimate import Estimate

if TYPE_CHECKING:
    import pandas

# The work of a step: seconds at the peak or at the full bandwidth, and a count of launches.
PARTS = {
    "operations": ["half_convolutions", "fp32_products", "computing"],
    "memory traffic": ["memory", "half_memory"],
    "launches": ["launches"],
}
COLUMNS = [name for names in PARTS.values() for name in names]
# Initial parameters of a fit, the factors of the columns: 1 / share, and the seconds of a launch.
START = np.array([1.5, 1.5, 1.5, 1.5, 1.5, 1e-5])
# Lower bounds of parameters: a boost clock may exceed a data sheet's peak by up to 20 %.
LEAST = np.array([1 / 1.2] * 5 + [1e-8])
HELD_BY = 2.0  # number of times that must agree before calibration changes a parameter
INTERVAL = (0.05, 0.95)
# The minimum interval of a user's model on a CPU: ten unseen models took 0.56 to 2.34 times the
# prediction, and so did 17 of 20 on another CPU (docs/log/2026-11.md).
CPU_UNSEEN = (math.log(0.56), math.log(2.34))


def columns(work: Work, device: Hardware, precision: str) -> dict[str, float]:
    """Return the COLUMNS of a step in a precision on a device."""
    peak = device.peak(precision)
    half = precision in HALF
    values = dict.fromkeys(COLUMNS, 0.0)
    values["half_convolutions" if half else "computing"] += work.convolutions / peak
    values["fp32_products" if precision == "fp32" else "computing"] += work.products / peak
    values["half_memory" if half else "memory"] = work.bytes / device.bytes_per_s
    return values | {"launches": work.launches}


def errors_of(times: pandas.DataFrame, numbers: np.ndarray) -> np.ndarray:
    """Return the logarithms of measured over predicted."""
    return np.log(times["step_s"].to_numpy() / (times[COLUMNS].to_numpy() @ numbers))


def weights_of(names: Sequence[str]) -> np.ndarray:
    """Return weights: n correlated times with the same name together weigh the root of n."""
    _, index, counts = np.unique(names, return_inverse=True, return_counts=True)
    return (1 / np.sqrt(counts))[index]


def fit(times: pandas.DataFrame, start: np.ndarray = START, held: float = 0.0) -> np.ndarray:
    """Return the fitted factor of each of COLUMNS.

    times: frame with `workload`, `step_s` and COLUMNS. held: penalty on changes of a factor, and of
    the factor common to all, as a number of times that must gain from them.
    """
    from scipy import optimize

    weights = weights_of(times["workload"])
    work = times[COLUMNS].to_numpy()
    seconds = times["step_s"].to_numpy()

    # logs[0] is of the factor common to all, the rest are of each factor's own.
    def changed(logs: np.ndarray) -> np.ndarray:
        return np.maximum(LEAST, start * np.exp(logs[0] + logs[1:]))

    def loss(logs: np.ndarray) -> float:
        errors = weights @ np.abs(np.log(seconds / (work @ changed(logs))))
        return errors + held * np.abs(logs).sum()

    options = {"xtol": 1e-2, "ftol": 1e-5}
    best = optimize.minimize(loss, np.zeros(1 + len(start)), method="Powell", options=options)
    return changed(best.x)


def interval(errors: np.ndarray, names: Sequence[str], prior: Sequence[float] = ()) -> np.ndarray:
    """Return the 90 % interval of errors. prior: a prior interval that weighs as one time."""
    values = np.array([*prior, *errors])
    weights = np.array([*[0.5] * len(prior), *weights_of(names)])
    order = np.argsort(values)
    weights = weights[order]
    # Weighted quantiles: each error stands in the middle of its weight.
    return np.interp(INTERVAL, (np.cumsum(weights) - weights / 2) / weights.sum(), values[order])


def left_out(
    times: pandas.DataFrame,
    by: str,
    start: np.ndarray = START,
    held: float = 0.0,
    prior: Sequence[float] = (),
) -> pandas.DataFrame:
    """Predict each group of times from a fit to the others (cross-validation).

    by: the column of groups. The rest: see `fit` and `interval`. Returns the times with `error`
    and with `inside`, whether the interval contains the error.
    """
    groups = times[by].to_numpy()
    result = times.assign(error=0.0, inside=False)
    for name in np.unique(groups):
        out = groups == name
        # A single group leaves no other one to fit to.
        numbers = start if out.all() else fit(times[~out], start, held)
        result.loc[out, "error"] = errors_of(times[out], numbers)
    errors = result["error"].to_numpy()
    for name in np.unique(groups):
        out = groups == name
        low, high = interval(errors[~out], groups[~out], prior)
        result.loc[out, "inside"] = (low <= errors[out]) & (errors[out] <= high)
    return result


class Model(NamedTuple):
    """Fitted factors, and the errors of predictions with them."""

    numbers: np.ndarray  # the factor of each of COLUMNS
    spread: tuple[float, float]  # the 90 % interval of errors
    evidence: str = ""  # the share of times inside such intervals, as a sentence

    def calibrated(self, device: Hardware, times: pandas.DataFrame, workload: str = "") -> Model:
        """Return the model, calibrated on the times of other workloads on this device.

        workload: the predicted one; "" for a user's model, which differs more from the workloads
        of a run than these from each other, so its interval is at least the general one.
        """
        model = self
        others = times[times["device"].eq(device.name)]
        if workload:
            others = others[~others["workload"].str.startswith(workload)]
        if len(others):
            errors = left_out(others, "workload", self.numbers, HELD_BY, self.spread)
            spread = interval(errors["error"], errors["workload"], self.spread)
            inside, workloads = errors["inside"].mean(), others["workload"].nunique()
            evidence = (
                f"such 90 % intervals contain {100 * inside:.0f} % of {len(others)} "
                f"times of {workloads} other workloads, which calibrate the device"
            )
            model = Model(fit(others, self.numbers, HELD_BY), tuple(spread.tolist()), evidence)
        if workload or not device.measured:
            return model
        least = CPU_UNSEEN if device.backend == "cpu" else self.spread
        spread = min(least[0], model.spread[0]), max(least[1], model.spread[1])
        return model._replace(spread=spread)

    def predict(
        self, work: Work, device: Hardware, precision: str = "fp32"
    ) -> tuple[Estimate, str]:
        """Return a step's time with its 90 % interval, and the key of PARTS that takes most."""
        values = columns(work, device, precision)
        times = np.array(list(values.values())) * self.numbers
        seconds = dict(zip(COLUMNS, times.tolist(), strict=True))
        total = sum(seconds.values())
        low, high = (total * math.exp(end) for end in self.spread)
        bound = max(PARTS, key=lambda part: sum(seconds[name] for name in PARTS[part]))
        return Estimate(total, "s", low, high, how="estimated"), bound


@functools.cache
def fitted() -> Model:
    """Return the model fitted to all published times, from articles/data/prediction.json."""
    path = Path(published.__file__).parent / "data" / "prediction.json"
    kept = json.loads(path.read_text(encoding="utf-8"))
    evidence = (
        f"such 90 % intervals contain {100 * kept['covered']:.0f} % of {kept['times']:,} published "
        "times on GPUs, each predicted without its device"
    )
    shares = [1 / kept["shares"][name] for name in COLUMNS[:-1]]
    return Model(np.array([*shares, kept["launch_s"]]), tuple(kept["spread"]), evidence)
