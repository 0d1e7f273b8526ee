"""How long a training step takes: the larger of computing and moving, operator by operator, and launches.

    time = F · Σ max(operations / (e · peak), bytes / (e_m · bandwidth)) + F · launches · l

Seven shares of a ceiling `e` and a launch time `l` are fitted to published times, by the least mean of the absolute
logarithms of what is left; F is what a device and a source differ by, medians of that, shrunk towards none where few
times are known. docs/prediction.md says how well that predicts.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pomology.articles import elsewhere, published
from pomology.measure.estimate import Estimate
from pomology.prediction import rates
from pomology.prediction.operators import Operator
from pomology.prediction.rates import Device

PARTS = ("operations", "memory traffic", "launches")
# Which share of its ceiling an operator has: convolutions and products, each with and without matrix units, and
# depthwise convolutions; all else waits for memory.
CLASSES = {"convolution": 0, "recurrent": 1, "product": 1, "attention": 1, "depthwise": 2}
START = (0.7, 0.7, 0.1, 0.45, 0.45, 0.7, 5e-6)  # conv, product, depthwise; conv, product (units); bandwidth; launch
SHRUNK_BY = 2  # times of a group that would halve its median


class Observed(NamedTuple):
    """A published time of a step, and the work in it: an array of operator groups, as `_lines` has them."""

    workload: str
    device: Device
    precision: str  # `fp32`, `tf32` or `half`
    batch: int
    source: str
    year: str
    step_s: float
    work: np.ndarray


@functools.cache
def work() -> dict[tuple[str, int, str], tuple[dict, ...]]:
    """Work on paper of published workloads, by id, pixels or tokens, and `fp32` or `half`: operators of like kind and
    operations a byte together, as `operators.count` has them of a step with SGD. flops and bytes are of one sample."""
    made: dict[tuple, list] = {}
    for line in published.read("work.csv"):
        made.setdefault((line["workload"], int(line["size"]), line["precision"]), []).append(line)
    return {key: tuple(lines) for key, lines in made.items()}


def operators_of(workload: str, size: int, precision: str, batch: int, optimizer: bool = True) -> list[Operator]:
    """A published workload's step, from `work`. Raises KeyError for one that nobody has counted."""
    lines = work()[workload, size, "half" if precision in (*rates.HALF, "half") else "fp32"]
    made = []
    for line in lines:
        moved = float(line["bytes"]) * batch + float(line["fixed_bytes"])
        if optimizer or line["kind"] != "optimizer":
            made.append(Operator(line["kind"], float(line["flops"]) * batch, moved, int(line["launches"]), 0))
    return made


def lines(operators: Iterable[Operator], device: Device, precision: str) -> np.ndarray:
    """Of each operator: its class with its ceiling, seconds at the peak, seconds at the bandwidth, launches."""
    peak, units = device.rate("half" if precision in rates.HALF else precision)
    made = []
    for kind, flops, moved, launches, _ in operators:
        place = CLASSES.get(kind, 1)
        made.append(((place + 3 if units and place < 2 else place), flops / peak, moved / device.bytes_per_s, launches))
    return np.array(made)


def observed() -> list[Observed]:
    """Every published time without a serious fault, of a workload that is counted and a device with a data sheet."""
    made = []
    for row in elsewhere.rows():
        step, config, tf32 = _step_s(row), row["config"], {"tf32"} & {*row["faults"], row["precision"]}
        device, serious = rates.published_devices().get(row["device"]), elsewhere.SERIOUS - {"tf32", "amp"}
        half = row["precision"] in rates.HALF
        key = (row["workload"], config.get("image_size") or config.get("sequence"), "half" if half else "fp32")
        if step and device and key in work() and not serious & {*row["faults"]}:
            precision = "half" if half else "tf32" if tf32 and device.flops_per_s["tf32"] else "fp32"
            ops = operators_of(*key, config["batch_size"], "no-optimizer" not in row["faults"])
            about = (row["workload"], device, precision, config["batch_size"], row["source"], row["year"], step)
            made.append(Observed(*about, lines(ops, device, precision)))
    return made


def _step_s(row: dict) -> float | None:
    """Seconds of a step, of a row of `elsewhere`; None where its batch size or the number of steps is not known."""
    config, metric, value = row["config"], row["metric"], row["si"]
    batch, tokens = config.get("batch_size"), config.get("sequence")
    if not isinstance(batch, int):
        return None
    images = re.search(r"([\d,]+) images", config.get("data", ""))
    known = {"samples_per_s": batch / value, "pass_s": value, "step_s": value, "steps_per_s": 1 / value}
    known |= {"tokens_per_s": batch * tokens / value} if isinstance(tokens, int) else {}
    known |= {"fit_s": value / config["steps"]} if config.get("steps") else {}
    known |= {"epoch_s": value * batch / int(images[1].replace(",", ""))} if images else {}
    return known.get(metric)


class Stack:
    """The work of many steps as arrays, so that all are predicted at once."""

    def __init__(self, work: Sequence[np.ndarray]):
        width = max(map(len, work))
        self.all = np.array([np.vstack([each, np.zeros((width - len(each), 4))]) for each in work])

    def parts(self, shares: np.ndarray) -> np.ndarray:
        """Seconds of each step bound by operations, by memory traffic, and of launches."""
        place, computing, moving, launches = np.moveaxis(self.all, 2, 0)
        computing, moving = computing / shares[place.astype(int)], moving / shares[5]
        larger = computing > moving
        return np.stack([(computing * larger).sum(1), (moving * ~larger).sum(1), launches.sum(1) * shares[6]], 1)


class Effects(NamedTuple):
    """Logarithms that times differ by: of all, and by group of each kind."""

    overall: float
    groups: tuple[dict, ...]

    def of(self, keys: Sequence[tuple]) -> np.ndarray:
        return np.array([self.overall + sum(map(dict.get, self.groups, key, [0.0] * len(key))) for key in keys])


def effects(left: np.ndarray, keys: Sequence[tuple], rounds: int = 3) -> Effects:
    """Medians of what is left over, each kind of group in turn, shrunk by n / (n + SHRUNK_BY)."""
    known = Effects(float(np.median(left)), ({},) * len(keys[0]))
    for _ in range(rounds):
        for place in range(len(keys[0])):
            without = known._replace(groups=(*known.groups[:place], {}, *known.groups[place + 1 :]))
            rest, made = left - without.of(keys), {}
            members: dict = {}
            for number, key in enumerate(keys):
                members.setdefault(key[place], []).append(number)
            for group, numbers in members.items():
                here = rest[numbers]
                made[group] = float(np.median(here)) * len(here) / (len(here) + SHRUNK_BY)
            known = without._replace(groups=(*known.groups[:place], made, *known.groups[place + 1 :]))
    return known


def fit(stack: Stack, step_s: np.ndarray) -> np.ndarray:
    """The shares and the launch time, by the least mean absolute logarithm, one after the other in smaller steps."""

    def missed(logs: np.ndarray) -> float:
        return float(np.abs(np.log(stack.parts(np.exp(logs)).sum(1) / step_s)).mean())

    logs = np.log(START)
    best, stride = missed(logs), 0.5
    for _ in range(5):
        for place in range(len(logs)):
            for way in (stride, -stride):
                while True:
                    new = logs.copy()
                    new[place] += way
                    # no share over its ceiling: data sheets may be beaten by their boost clock, by a fifth at the most
                    if (place < 6 and new[place] > math.log(1.2)) or (value := missed(new)) >= best - 1e-6:
                        break
                    logs, best = new, value
        stride /= 2
    return np.exp(logs)


class Prediction(NamedTuple):
    """step_s: with its 90 % interval. bound: what most of it is spent on. parts: shares of it, by PARTS."""

    step_s: Estimate
    bound: str
    parts: dict[str, float]


class Model(NamedTuple):
    """shares: as START. spread: 5 and 95 % of measured over predicted, logarithms, of devices that were left out, of so
    many published times; covered: the share of these in an interval made without their device."""

    shares: np.ndarray
    shift: float
    spread: tuple[float, float]
    times: int = 0
    covered: float = 0.0

    def predict(self, operators: Sequence[Operator], device: Device, precision: str = "fp32") -> Prediction:
        """A training step on a device that has no measured times. Raises PomologyError for an absurd ceiling."""
        rates.check(device)
        shares = self.shares.copy()
        if device.launch_s:
            shares[6] = device.launch_s
        parts = Stack([lines(operators, device, precision)]).parts(shares)[0] * math.exp(self.shift)
        total = float(parts.sum())
        low, high = (total * math.exp(end) for end in self.spread)
        step = Estimate(total, "s", low, high, how="estimated")
        return Prediction(step, PARTS[int(parts.argmax())], dict(zip(PARTS, (parts / total).tolist(), strict=True)))


@functools.cache
def model() -> Model:
    """What articles/data/prediction.json keeps of `validate.fitted`: fitting takes seconds, and reading does not."""
    text = (Path(published.__file__).parent / "data" / "prediction.json").read_text(encoding="utf-8")
    known = json.loads(text)
    return Model(np.array(known["shares"]), known["shift"], tuple(known["spread"]), known["times"], known["covered"])
