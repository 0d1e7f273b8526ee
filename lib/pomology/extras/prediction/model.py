"""How long a training step takes: the larger of computing and moving, operator by operator, and launches.

    time = F · (Σ max(operations / (e · peak), bytes / (e_m · bandwidth)) + launches · l)

Eight shares of a ceiling, `e`, and a launch time `l` are fitted to published times, by the least absolute logarithms of
what is left. Where a device has measured times of other workloads, these and F are fitted to them once more, each held
back where it was by as much as SHRUNK_BY times. docs/prediction.md says how well that predicts.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pomology.articles import published
from pomology.extras.prediction import rates
from pomology.extras.prediction.operators import Operator
from pomology.extras.prediction.rates import Device
from pomology.measure.estimate import Estimate

PARTS = ("operations", "memory traffic", "launches")
# Which share of its ceiling an operator has: convolutions and products, each with and without matrix units, and
# depthwise convolutions; all else waits for memory. In half precision frameworks fuse more of what moves.
CLASSES = {"convolution": 0, "recurrent": 1, "product": 1, "attention": 1, "depthwise": 2}
# Convolution, product, depthwise; convolution, product (units), convolution (units, half); bandwidth, in half; seconds
# of a launch; F.
START = (0.7, 0.7, 0.1, 0.45, 0.45, 0.5, 0.7, 0.7, 5e-6, 1.0)
LAUNCH, ALL = 8, 9
SHRUNK_BY = 2  # times that must pull a share before it moves
INTERVAL = (0.05, 0.95)


class Observed(NamedTuple):
    """A measured time of a step, and the work in it: an array of operator groups, as `lines` has them."""

    workload: str
    device: Device
    precision: str  # of a published one `fp32`, `tf32` or `half`
    batch: int
    source: str
    year: str
    step_s: float
    work: np.ndarray


def lines(operators: Iterable[Operator], device: Device, precision: str) -> np.ndarray:
    """Of each operator: the shares of its class, of operations and of traffic, seconds at the peak and the bandwidth,
    launches. Of a processor whose single operators were timed, one that computes is two of these: it moves before and
    behind, and not meanwhile."""
    (peak, units), half, made = device.rate(precision), precision in rates.HALF, []
    for each in operators:
        place, traffic = CLASSES.get(each.kind, 1), 6 + half
        if units and place < 2:
            place += 5 if half and place == 0 else 3
        own = device.convolution if each.kind in ("convolution", "depthwise") and precision == "fp32" else None
        if each.kind in device.single:
            own = device.single_rate(each.kind, each.largest)
        computing_s, moving_s = each.flops / (own or peak), each.bytes / device.traffic(each)
        if each.flops and device.single:
            made.append((place, traffic, computing_s / each.filled, 0.0, each.launches))
            made.append((place, traffic, 0.0, moving_s * (rates.REORDERED if each.kind == "convolution" else 1), 0))
        else:
            made.append((place, traffic, computing_s, moving_s, each.launches))
    return np.array(made)


class Stack:
    """The work of many steps as arrays, so that all are predicted at once."""

    def __init__(self, seen: Sequence[Observed]):
        width = max(len(each.work) for each in seen)
        self.all = np.array([np.vstack([each.work, np.zeros((width - len(each.work), 5))]) for each in seen])
        self.step_s = np.array([each.step_s for each in seen])
        self.names = np.array([each.workload for each in seen])

    def part(self, chosen: np.ndarray) -> Stack:
        made = Stack.__new__(Stack)
        made.all, made.step_s, made.names = self.all[chosen], self.step_s[chosen], self.names[chosen]
        return made

    def parts(self, shares: np.ndarray) -> np.ndarray:
        """Seconds of each step bound by operations, by memory traffic, and of launches."""
        place, traffic, computing, moving, launches = np.moveaxis(self.all, 2, 0)
        computing, moving = computing / shares[place.astype(int)], moving / shares[traffic.astype(int)]
        larger = computing > moving
        made = [(computing * larger).sum(1), (moving * ~larger).sum(1), launches.sum(1) * shares[LAUNCH]]
        return np.stack(made, 1) * shares[ALL]

    def left(self, shares: np.ndarray) -> np.ndarray:
        """Logarithms of measured over predicted."""
        return np.log(self.step_s / self.parts(shares).sum(1))


def alike(names: Sequence[str]) -> np.ndarray:
    """Weights: many times of one name are alike, and count as their root."""
    _, place, counts = np.unique(names, return_inverse=True, return_counts=True)
    return (1 / np.sqrt(counts))[place]


def fit(stack: Stack, start: Sequence[float] = START, held: float = 0.0) -> np.ndarray:
    """The shares and the launch time, by the least absolute logarithms, one after the other in smaller steps. held: how
    much a change must gain, in weights of times; without it F stays, since the shares can say the same."""
    begun, weights = np.log(start), alike(stack.names)

    def missed(logs: np.ndarray) -> float:
        off = weights @ np.abs(stack.left(np.exp(logs))) + held * np.abs(logs - begun).sum()
        return float(off / weights.sum())

    logs = begun.copy()
    best, stride = missed(logs), 0.5
    for _ in range(5):
        for place in [*[ALL] * (held > 0), *range(ALL)]:
            for way in (stride, -stride):
                while True:
                    new = logs.copy()
                    new[place] += way
                    # no share over its ceiling: data sheets may be beaten by their boost clock, by a fifth at the most
                    if (place < LAUNCH and new[place] > math.log(1.2)) or (value := missed(new)) >= best - 1e-6:
                        break
                    logs, best = new, value
        stride /= 2
    return np.exp(logs)


def span(logs: np.ndarray, weights: np.ndarray, ends: Sequence[float] = ()) -> np.ndarray:
    """The interval of errors. ends: of one that was known before, which count as one more time."""
    logs, weights = np.array([*ends, *logs]), np.array([*[0.5] * len(ends), *weights])
    order = np.argsort(logs)
    logs, weights = logs[order], weights[order]
    return np.interp(INTERVAL, (np.cumsum(weights) - weights / 2) / weights.sum(), logs)


def left_out(
    seen: Sequence[Observed], group: str, known: str = "", start: np.ndarray | None = None, ends: Sequence[float] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Each group predicted without its times: logarithms of measured over predicted, and whether each is in the
    interval that the others' errors make.

    group: by what the times of one are alike, of the fields of `Observed`. known: what other groups' times may have in
    common with a prediction, which is calibrated on them. start: shares that need no fit without the group. ends: of an
    interval known before; else that of all errors outside of the group.
    """
    names, stack, logs = np.array([attrgetter(group)(each) for each in seen]), Stack(seen), np.zeros(len(seen))
    keys, inside = np.array([known and attrgetter(known)(each) for each in seen]), np.zeros(len(seen), bool)
    groups = []
    for name in np.unique(names):
        out = names == name
        shares = fit(stack.part(~out)) if start is None else start
        for key in np.unique(keys[out]):
            here, others = out & (keys == key), ~out & (keys == key)
            own = fit(stack.part(others), shares, SHRUNK_BY) if known and others.any() else shares
            logs[here] = stack.part(here).left(own)
            groups.append((out, here, others))
    for out, here, others in groups:
        outer = ends if len(ends) else span(logs[~out], alike(names[~out]))
        low, high = span(logs[others], alike(names[others]), outer) if known else outer
        inside[here] = (low <= logs[here]) & (logs[here] <= high)
    return logs, inside


class Prediction(NamedTuple):
    """step_s: with its 90 % interval. bound: what most of it is spent on. parts: shares of it, by PARTS."""

    step_s: Estimate
    bound: str
    parts: dict[str, float]


class Model(NamedTuple):
    """shares: as START. spread: the interval of measured over predicted, logarithms, of so many times that were left
    out; covered: the share of these in an interval made without them. workloads: of the device's own times that it is
    calibrated on. at: the device that it is for; empty for all. widened: for a model that is unlike those."""

    shares: np.ndarray
    spread: tuple[float, float]
    times: int = 0
    covered: float = 0.0
    workloads: int = 0
    at: str = ""
    widened: bool = False

    @property
    def held(self) -> str:
        of = "published times on GPUs with published peaks, made without their device"
        if self.workloads:
            of = f"times of {self.workloads} other workloads on it, which calibrate it, made without their own"
        more = "; this one is wider, as a model of your own may be unlike those" * self.widened
        return f"such 90 % intervals held {100 * self.covered:.0f} % of {self.times:,} {of}{more}"

    def on(self, device: Device) -> Model:
        """The model with what a device brings of its own: how a processor computes, and its time of a launch."""
        if self.at == device.name:
            return self
        shares, cpu = self.shares.copy(), device.backend == "cpu"
        if cpu:
            shares[:LAUNCH] = rates.CPU_TIMED if device.single else rates.CPU_SHARES
        if device.launch_s:
            shares[LAUNCH] = device.launch_s * (rates.CPU_LAUNCHES if cpu else 1)
        return self._replace(shares=shares, at=device.name)

    def calibrated(self, device: Device, seen: Sequence[Observed], workload: str = "") -> Model:
        """With the times of other workloads on this device. A class of operators that few of these have stays as it
        was; the interval is of their errors with each workload left out, and this one's as one more. workload: the
        kit's name of what is asked for; empty for a model of the user's, to which a run's times of the kit's own
        trainings are less alike than to each other: its interval is as wide as the general one at the least, on a
        processor as `Device.unseen`."""
        here, own = self.on(device), [each for each in seen if each.device.name == device.name]
        own = [each for each in own if not (workload and each.workload.startswith(workload))]
        if own:
            names = [each.workload for each in own]
            logs, inside = left_out(own, "workload", "device.name", here.shares, self.spread)
            low, high = span(logs, alike(names), self.spread).tolist()
            shares = fit(Stack(own), here.shares, SHRUNK_BY)
            here = Model(shares, (low, high), len(own), float(inside.mean()), len({*names}), device.name)
        if workload or not device.measured:
            return here
        low, high = device.unseen if device.backend == "cpu" else self.spread
        spread = min(low, here.spread[0]), max(high, here.spread[1])
        return here._replace(spread=spread, widened=spread != here.spread)

    def predict(self, operators: Sequence[Operator], device: Device, precision: str = "fp32") -> Prediction:
        """A training step on a device. Raises PomologyError for an absurd ceiling."""
        rates.check(device)
        step = Observed("", device, precision, 0, "", "", 1.0, lines(operators, device, precision))
        parts = Stack([step]).parts(self.on(device).shares)[0]
        total = float(parts.sum())
        low, high = (total * math.exp(end) for end in self.spread)
        step_s = Estimate(total, "s", low, high, how="estimated")
        return Prediction(step_s, PARTS[int(parts.argmax())], dict(zip(PARTS, (parts / total).tolist(), strict=True)))


@functools.cache
def model() -> Model:
    """What articles/data/prediction.json keeps of `validate.fitted`: fitting takes seconds, and reading does not."""
    text = (Path(published.__file__).parent / "data" / "prediction.json").read_text(encoding="utf-8")
    known = json.loads(text)
    return Model(np.array(known["shares"]), tuple(known["spread"]), known["times"], known["covered"])
