"""How long a training step takes, from its operators and the ceilings of a device.

    time = F · (Σ max(operations / (e · peak), bytes / (e_m · bandwidth)) + launches · l)

Eight shares of a ceiling, `e`, and the time of a launch, `l`, are fitted to published times, by
the least absolute logarithms of measured over predicted. Where a device has measured times of
other workloads, these and F are fitted once more. docs/prediction.md says how well it predicts.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pomology.articles import published
from pomology.extras.prediction import devices
from pomology.extras.prediction.devices import Device
from pomology.extras.prediction.operators import Operator
from pomology.measure.estimate import Estimate

PARTS = ("operations", "memory traffic", "launches")  # of a step
# The place in START of an operator's share of the peak, without and with matrix units. What is not
# here only moves memory, at the share 6, in half precision 7.
CLASSES = {"convolution": 0, "recurrent": 1, "product": 1, "attention": 1, "depthwise": 2}
# Shares of convolution, product, depthwise; with matrix units of convolution, product,
# convolution in half precision; of the bandwidth, and in half. Seconds of a launch; F.
START = (0.7, 0.7, 0.1, 0.45, 0.45, 0.5, 0.7, 0.7, 5e-6, 1.0)
LAUNCH = 8
FACTOR = 9
HELD_BY = 2  # times that must agree before calibration moves a share
INTERVAL = (0.05, 0.95)


class Times(NamedTuple):
    """A measured time of a step, and the work in it."""

    workload: str
    device: Device
    step_s: float
    work: np.ndarray  # of `work_of`


def work_of(operators: Iterable[Operator], device: Device, precision: str) -> np.ndarray:
    """Return the work of a step: places of the shares, seconds at peak and bandwidth, launches.

    On a processor an operator that computes has two rows: it moves its data before and behind, not
    meanwhile.
    """
    peak, units = device.rate(precision)
    half = precision in devices.HALF
    traffic = 7 if half else 6
    rows = []
    for each in operators:
        place = CLASSES.get(each.kind, 1)
        if units and place < 2:
            place += 5 if half and place == 0 else 3
        rate = peak
        if each.kind in device.single:
            rate = device.single_rate(each.kind, each.largest)
        elif each.kind in ("convolution", "depthwise") and precision == "fp32":
            rate = device.convolution or peak
        computing_s = each.flops / rate
        moving_s = each.bytes / device.traffic(each)
        if each.flops and device.single:
            if each.kind == "convolution":
                moving_s *= devices.REORDERED
            rows.append((place, traffic, computing_s / each.filled, 0.0, each.launches))
            rows.append((place, traffic, 0.0, moving_s, 0))
        else:
            rows.append((place, traffic, computing_s, moving_s, each.launches))
    return np.array(rows)


class Stack(NamedTuple):
    """Measured times as arrays, so that all are predicted at once."""

    work: np.ndarray  # by time, operator, and column of `work_of`
    step_s: np.ndarray
    workloads: np.ndarray

    @classmethod
    def of(cls, times: Sequence[Times]) -> Stack:
        work = np.zeros((len(times), max(len(each.work) for each in times), 5))
        for place, each in enumerate(times):
            work[place, : len(each.work)] = each.work
        step_s = np.array([each.step_s for each in times])
        return cls(work, step_s, np.array([each.workload for each in times]))

    def part(self, chosen: np.ndarray) -> Stack:
        return Stack(*(array[chosen] for array in self))

    def parts(self, shares: np.ndarray) -> np.ndarray:
        """Return the seconds that PARTS take of each step."""
        place, traffic, computing, moving, launches = np.moveaxis(self.work, 2, 0)
        computing = computing / shares[place.astype(int)]
        moving = moving / shares[traffic.astype(int)]
        larger = computing > moving
        operations = (computing * larger).sum(1)
        memory = (moving * ~larger).sum(1)
        launching = launches.sum(1) * shares[LAUNCH]
        return np.stack([operations, memory, launching], 1) * shares[FACTOR]

    def errors(self, shares: np.ndarray) -> np.ndarray:
        """Return the logarithms of measured over predicted."""
        return np.log(self.step_s / self.parts(shares).sum(1))


def weights_of(names: Sequence[str] | np.ndarray) -> np.ndarray:
    """Return weights: times of one name are alike, and count as the root of their number."""
    _, place, counts = np.unique(names, return_inverse=True, return_counts=True)
    return (1 / np.sqrt(counts))[place]


def fit(stack: Stack, start: Sequence[float] = START, held: float = 0.0) -> np.ndarray:
    """Return the shares with the least absolute logarithms, found one by one in smaller steps.

    held: how many times must gain from a change. 0 leaves F, as the shares can say the same.
    """
    begun = np.log(start)
    weights = weights_of(stack.workloads)

    def loss(logs: np.ndarray) -> float:
        errors = weights @ np.abs(stack.errors(np.exp(logs)))
        return float((errors + held * np.abs(logs - begun).sum()) / weights.sum())

    logs = begun.copy()
    best = loss(logs)
    stride = 0.5
    places = [FACTOR, *range(FACTOR)] if held else list(range(FACTOR))
    for _ in range(5):
        for place in places:
            for way in (stride, -stride):
                while True:
                    new = logs.copy()
                    new[place] += way
                    # A boost clock may beat a data sheet, by a fifth at the most.
                    if place < LAUNCH and new[place] > math.log(1.2):
                        break
                    value = loss(new)
                    if value >= best - 1e-6:
                        break
                    logs = new
                    best = value
        stride /= 2
    return np.exp(logs)


def interval(errors: np.ndarray, names: np.ndarray, prior: Sequence[float]) -> np.ndarray:
    """Return the 90 % interval of errors; prior: one known before, which counts as one more."""
    values = np.array([*prior, *errors])
    weights = np.array([*[0.5] * len(prior), *weights_of(names)])
    order = np.argsort(values)
    weights = weights[order]
    return np.interp(INTERVAL, (np.cumsum(weights) - weights / 2) / weights.sum(), values[order])


def left_out(
    times: Sequence[Times],
    groups: Sequence[str],
    start: np.ndarray | None = None,
    prior: Sequence[float] = (),
) -> tuple[np.ndarray, np.ndarray]:
    """Predict each group of times without its own: the errors, and whether each is in the interval.

    groups: the name of each time's group. start: shares of the device that all of these times are
    of, which other groups calibrate; without them all shares are fitted to the other groups.
    prior: an interval known before.
    """
    stack = Stack.of(times)
    names = np.array(groups)
    errors = np.zeros(len(times))
    inside = np.zeros(len(times), bool)
    for name in np.unique(names):
        out = names == name
        if start is None:
            shares = fit(stack.part(~out))
        else:
            shares = start if out.all() else fit(stack.part(~out), start, HELD_BY)
        errors[out] = stack.part(out).errors(shares)
    for name in np.unique(names):
        out = names == name
        low, high = interval(errors[~out], names[~out], prior)
        inside[out] = (low <= errors[out]) & (errors[out] <= high)
    return errors, inside


class Model(NamedTuple):
    """Fitted shares, and how wrong predictions from them were."""

    shares: np.ndarray
    spread: tuple[float, float]  # the 90 % interval of errors
    evidence: str = ""  # how many times such intervals held, as a sentence

    def on(self, device: Device) -> Model:
        """Return the model with a device's time of a launch, and a processor's own shares."""
        shares = self.shares.copy()
        launches = 1.0
        if device.backend == "cpu":
            shares[:LAUNCH] = devices.CPU_SHARES
            launches = devices.CPU_LAUNCHES
        if device.launch_s:
            shares[LAUNCH] = device.launch_s * launches
        return self._replace(shares=shares)

    def calibrated(self, device: Device, times: Sequence[Times], workload: str = "") -> Model:
        """Return the model, calibrated on the times of other workloads on this device.

        workload: what is predicted; empty for a user's model. The kit's trainings are more alike
        than that is to them: its interval is at least the general one, or `devices.CPU_UNSEEN`.
        """
        model = self.on(device)
        own = [each for each in times if each.device.name == device.name]
        if workload:
            own = [each for each in own if not each.workload.startswith(workload)]
        if own:
            names = [each.workload for each in own]
            errors, inside = left_out(own, names, model.shares, self.spread)
            low, high = interval(errors, np.array(names), self.spread).tolist()
            shares = fit(Stack.of(own), model.shares, HELD_BY)
            evidence = (
                f"such 90 % intervals held {inside.mean():.0%} of {len(own)} times of "
                f"{len(set(names))} other workloads on it, which calibrate it"
            )
            model = Model(shares, (low, high), evidence)
        if workload or not device.measured:
            return model
        low, high = devices.CPU_UNSEEN if device.backend == "cpu" else self.spread
        spread = min(low, model.spread[0]), max(high, model.spread[1])
        return model._replace(spread=spread)

    def predict(
        self, step: Iterable[Operator], device: Device, precision: str = "fp32"
    ) -> tuple[Estimate, str]:
        """Return a step's time with its 90 % interval, and which of PARTS takes most of it."""
        stack = Stack(work_of(step, device, precision)[None], np.ones(1), np.array([""]))
        parts = stack.parts(self.shares)[0]
        total = float(parts.sum())
        low, high = (total * math.exp(end) for end in self.spread)
        return Estimate(total, "s", low, high, how="estimated"), PARTS[int(parts.argmax())]


@functools.cache
def fitted() -> Model:
    """Return the model fitted to all published times, which articles/data/prediction.json keeps."""
    place = Path(published.__file__).parent / "data" / "prediction.json"
    kept = json.loads(place.read_text(encoding="utf-8"))
    evidence = (
        f"such 90 % intervals held {kept['covered']:.0%} of {kept['times']:,} published times on "
        "GPUs, each made without its device"
    )
    return Model(np.array(kept["shares"]), tuple(kept["spread"]), evidence)
