"""A model of the time of a training step, from its work and the peaks of a device.

    time = F · (Σ operations / (e · peak) + Σ bytes / (e_m · bandwidth) + launches · l)

The shares of a peak, `e` and `e_m`, and the time of a launch, `l`, are fitted to published times.
The loss is the absolute logarithm of measured over predicted, which is robust against outliers.
With measured times of other workloads on a device, they are fitted again, with a factor F.
docs/prediction.md has the errors of its predictions.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pomology.articles import published
from pomology.extras.prediction.devices import HALF, MAKERS, Hardware, kind
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
DRAWS = 2000  # of the bootstrap
DEVICE_LEFT_OUT = "device left out"
ALL = "all"  # the key of evidence for all precisions
WORDS = {"half": "fp16/bf16", "tf32": "TF32"}
NOTHING: Mapping = MappingProxyType({})
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


def spreads(
    errors: pandas.DataFrame, by: str, prior: Mapping[str, Sequence[float]] = NOTHING
) -> dict[str, tuple[float, float]]:
    """Return the 90 % interval of errors of each precision: fp32, tf32 and half.

    errors: frame with `error`, `precision` and the column `by` of names, see `interval`. prior: by
    precision; a device has too few times for each, so all its errors count, in units of the width
    of the prior interval of their precision.
    """
    values = errors["error"].to_numpy()
    precisions = errors["precision"].to_numpy()
    result = {}
    if not prior:
        for precision in np.unique(precisions):
            part = precisions == precision
            ends = interval(values[part], errors[by].to_numpy()[part])
            result[precision] = tuple(ends.tolist())
        return result
    widths = {precision: high - low for precision, (low, high) in prior.items()}
    scaled = values / np.array([widths[precision] for precision in precisions])
    for precision, ends in prior.items():
        own = interval(scaled, errors[by].to_numpy(), np.array(ends) / widths[precision])
        result[precision] = tuple((own * widths[precision]).tolist())
    return result


def inside(errors: pandas.DataFrame, limits: Mapping[str, Sequence[float]]) -> np.ndarray:
    """Return whether the interval of its precision contains each error. limits: see `spreads`."""
    low, high = np.array([limits[precision] for precision in errors["precision"]]).T
    return (low <= errors["error"].to_numpy()) & (errors["error"].to_numpy() <= high)


def left_out(
    times: pandas.DataFrame,
    by: str,
    start: np.ndarray = START,
    held: float = 0.0,
    prior: Mapping[str, Sequence[float]] = NOTHING,
) -> pandas.DataFrame:
    """Predict each group of times from a fit to the others (cross-validation).

    by: the column of groups. The rest: see `fit` and `spreads`. Returns the times with `error`, and
    with `inside`, whether the interval of the other groups' errors contains it.
    """
    groups = times[by].to_numpy()
    result = times.assign(error=0.0, inside=False)
    for name in np.unique(groups):
        out = groups == name
        # A single group leaves no other one to fit to.
        numbers = start if out.all() else fit(times[~out], start, held)
        result.loc[out, "error"] = errors_of(times[out], numbers)
    for name in np.unique(groups):
        out = groups == name
        result.loc[out, "inside"] = inside(result[out], spreads(result[~out], by, prior))
    return result


def summary(times: pandas.DataFrame) -> dict[str, float]:
    """Return statistics of the relative errors of predicted times: 1 is 100 %.

    n, devices: numbers of times and devices. median_low, median_high: the 95 % interval of the
    median by a bootstrap over devices (Efron 1979); NaN for a single device. within_30: the share
    of errors of at most 30 %. covered: the share in the 90 % interval.
    """
    errors = np.abs(np.expm1(-times["error"].to_numpy()))
    low, high = bootstrap(errors, times["device"].to_numpy())
    return {
        "n": len(errors),
        "devices": times["device"].nunique(),
        "median": float(np.median(errors)),
        "median_low": low,
        "median_high": high,
        "mean": float(errors.mean()),
        "within_30": float((errors <= 0.3).mean()),
        "covered": float(times["inside"].mean()),
    }


def bootstrap(values: np.ndarray, names: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of the median of values, with resampled names; NaN for one name."""
    groups = [values[names == name] for name in np.unique(names)]
    if len(groups) < 2:
        return math.nan, math.nan
    random = np.random.default_rng(0)
    medians = []
    for _ in range(DRAWS):
        drawn = random.integers(len(groups), size=len(groups))
        medians.append(np.median(np.concatenate([groups[number] for number in drawn])))
    low, high = np.quantile(medians, [0.025, 0.975])
    return float(low), float(high)


def shares(numbers: Mapping[str, float]) -> str:
    """Return the shares of a `summary` in words."""
    within, covered = 100 * numbers["within_30"], 100 * numbers["covered"]
    return f"{within:.0f} % within 30 %, {covered:.0f} % in their 90 % interval"


def _in_words(precisions: Iterable[str]) -> str:
    return " or ".join(WORDS.get(precision, precision) for precision in precisions)


class Model(NamedTuple):
    """Fitted factors, and the errors of predictions with them."""

    numbers: np.ndarray  # the factor of each of COLUMNS
    spreads: Mapping[str, Sequence[float]]  # the 90 % interval of errors, by precision
    evidence: Mapping[str, str] = NOTHING  # sentences on errors, see `errors`

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
            errors = left_out(others, "workload", self.numbers, HELD_BY, self.spreads)
            evidence = dict(self.evidence)
            for precision in self.spreads:
                part = errors[errors["precision"].eq(precision)]
                # Times in another precision calibrate this one, too.
                part = errors if part.empty else part
                workloads = part["workload"].nunique()
                evidence[f"calibrated {precision}"] = (
                    f"{len(part)} times in {_in_words(part['precision'].unique())} of {workloads} "
                    f"other workloads calibrate the device, each predicted without its workload: "
                    f"{shares(summary(part))}"
                )
            limits = spreads(errors, "workload", self.spreads)
            model = Model(fit(others, self.numbers, HELD_BY), limits, evidence)
        if workload or not device.measured:
            return model
        wider = {}
        for precision, (low, high) in model.spreads.items():
            least = CPU_UNSEEN if device.backend == "cpu" else self.spreads[precision]
            wider[precision] = min(least[0], low), max(least[1], high)
        return model._replace(spreads=wider)

    def predict(
        self, work: Work, device: Hardware, precision: str = "fp32"
    ) -> tuple[Estimate, str]:
        """Return a step's time with its 90 % interval, and the key of PARTS that takes most."""
        values = columns(work, device, precision)
        times = np.array(list(values.values())) * self.numbers
        seconds = dict(zip(COLUMNS, times.tolist(), strict=True))
        total = sum(seconds.values())
        low, high = (total * math.exp(end) for end in self.spreads[kind(precision)])
        bound = max(PARTS, key=lambda part: sum(seconds[name] for name in PARTS[part]))
        return Estimate(total, "s", low, high, how="estimated"), bound

    def errors(self, precision: str, maker: str) -> list[str]:
        """Return sentences on the errors of predictions in a precision, for devices of a maker."""
        name = kind(precision)
        keys = (f"calibrated {name}", name, ALL, f"{maker} {name}")
        return [self.evidence[key] for key in keys if key in self.evidence]


@functools.cache
def kept() -> dict[str, Any]:
    """Return articles/data/prediction.json, which setup/prediction.py writes."""
    path = Path(published.__file__).parent / "data" / "prediction.json"
    return json.loads(path.read_text(encoding="utf-8"))


@functools.cache
def fitted() -> Model:
    """Return the model fitted to all published times."""
    errors = kept()["errors"]
    total = errors[DEVICE_LEFT_OUT]
    evidence = {}
    for precision in kept()["spreads"]:
        numbers = errors[f"{DEVICE_LEFT_OUT}: {precision}"]
        evidence[precision] = (
            f"{numbers['n']} published times in {_in_words([precision])} on {numbers['devices']} "
            f"GPUs, each predicted without its device: {shares(numbers)}"
        )
    low, high = 100 * total["median_low"], 100 * total["median_high"]
    evidence[ALL] = (
        f"{total['n']:,} published times on {total['devices']} GPUs, each predicted without its "
        f"device: median error {100 * total['median']:.0f} % ({low:.0f} to {high:.0f} % by a "
        "bootstrap over the GPUs)"
    )
    # NVIDIA has most of them.
    for maker, precision in itertools.product(("amd", "apple"), kept()["spreads"]):
        name, words = MAKERS[maker], _in_words([precision])
        numbers = errors.get(f"{DEVICE_LEFT_OUT}: {name}, {precision}")
        evidence[f"{maker} {precision}"] = (
            f"{numbers['n']} of them are in {words} on {numbers['devices']} GPUs of {name}: "
            f"{shares(numbers)}"
            if numbers
            else f"none of them is in {words} on a GPU of {name}"
        )
    factors = [1 / kept()["shares"][name] for name in COLUMNS[:-1]]
    spreads = {precision: tuple(ends) for precision, ends in kept()["spreads"].items()}
    return Model(np.array([*factors, kept()["launch_s"]]), spreads, evidence)
