"""A model of the time of a step of a language model, from its work and a device's data sheet.

    time = (device^p + launching^p)^(1/p)
    device = (products + a · attention) / (e · peak)
             + (t · traffic + d · dequantized + updated) / bandwidth
    launching = l · launches

A step takes the longer of what the device computes and what the processor launches, with a smooth
corner. products: operations but those of attention, whose causal half and fused kernel are in `a`.
traffic: bytes of all operators, each on its own. dequantized: bytes of matrices in 4 bits that are
read, and written in 16 bits. updated: bytes of the optimizer's one kernel. The numbers are fitted
to published times, by `setup/fit.py times`; docs/fit.md has the errors of each source when it is
left out.
"""

from __future__ import annotations

import functools
import json
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

from pomology.extras.fit.counts import Need
from pomology.extras.fit.plan import Plan
from pomology.extras.prediction.devices import Hardware
from pomology.format import clock_time, seconds, significant
from pomology.measure.estimate import Estimate

KEPT = Path(__file__).with_name("times.json")
# NVIDIA's chips before Ampere, and Apple's before M3, compute bf16 by conversions.
WITHOUT_BF16 = re.compile(r"(T4|V100|P100|K80|M60|GTX|Titan|Quadro|RTX 20\d\d|M1|M2)\b")
DEQUANTIZED_BYTES = 0.5 + 2  # of an element, read and written
# Losses of kernels that fuse norms, rotations and activations, too: Unsloth's and Liger's.
WITH_FUSED_KERNELS = ("in-place", "fused")


class Parts(NamedTuple):
    """Seconds of a step at the full speed of a device, and launches."""

    products: float
    attention: float
    traffic: float
    dequantized: float
    updated: float
    launches: float


def parts(need: Need, plan: Plan, device: Hardware) -> Parts:
    """Return the parts of a step's time before the fitted numbers."""
    peak, bandwidth = device.peak(plan.precision), device.bytes_per_s
    # An update reads the gradient, and reads and writes the weight and each state, in one kernel.
    updated_bytes = 3 * need.trained * plan.gradient_bytes + 2 * need.parts.get("optimizer", 0.0)
    work = need.work
    return Parts(
        products=(work["flops"] - work["attention"]) / peak,
        attention=work["attention"] / peak,
        traffic=work["bytes"] / bandwidth,
        dequantized=DEQUANTIZED_BYTES * work["dequantized"] / bandwidth,
        updated=updated_bytes / bandwidth,
        launches=work["launches"],
    )


def names(plan: Plan, backend: str, fused: bool) -> Parts:
    """Return the names of the fitted numbers of each part; "" for a number of 1."""
    apple = backend == "mps"
    fp32 = plan.precision == "fp32"
    mlx = plan.framework == "mlx"
    return Parts(
        products="products Apple" if apple else "products fp32" if fp32 else "products half",
        attention="" if apple else "attention",
        traffic="traffic MLX" if mlx else "traffic fused" if fused else "traffic",
        dequantized="dequantized Apple" if apple else "dequantized",
        updated="",
        launches="launch Apple" if apple else "launch",
    )


def on_device(seconds: Parts, factors: Parts) -> dict[str, Any]:
    """Return how long each kind of work keeps a device busy. Both have numbers, or arrays."""
    products = seconds.products + factors.attention * seconds.attention
    return {
        "operations": factors.products * products,
        "memory traffic": factors.traffic * seconds.traffic + seconds.updated,
        "dequantization": factors.dequantized * seconds.dequantized,
    }


def total(seconds: Parts, factors: Parts, power: float) -> Any:
    """Return a step's time."""
    busy = sum(on_device(seconds, factors).values())
    launching = factors.launches * seconds.launches
    return (busy**power + launching**power) ** (1 / power)


@functools.cache
def kept() -> dict[str, Any]:
    """Return times.json: the fitted numbers, the spread of the errors, and what it contained."""
    return json.loads(KEPT.read_text(encoding="utf-8"))


def predict(need: Need, plan: Plan, device: Hardware) -> tuple[Estimate, str]:
    """Return the time of a step with its 90 % interval, and what takes most of it."""
    numbers = kept()["numbers"]
    which = names(plan, device.backend, plan.loss in WITH_FUSED_KERNELS)
    factors = Parts(*(numbers[name] if name else 1.0 for name in which))
    ideal = parts(need, plan, device)
    value = total(ideal, factors, numbers["power"])
    low, high = (value * math.exp(end) for end in kept()["spread"])
    busy = on_device(ideal, factors)
    launching = factors.launches * ideal.launches
    bound = "launches" if launching > sum(busy.values()) else max(busy, key=busy.__getitem__)
    return Estimate(value, "s", low, high, how="estimated"), bound


def slow_precision(plan: Plan, device: Hardware | None) -> list[str]:
    """Return the line that a device has no arithmetic in a plan's precision, if so."""
    if device is None or plan.precision != "bf16" or not WITHOUT_BF16.match(device.name):
        return []
    words = "so that it is slower than predicted; --precision fp16 is not"
    return [f"{device.name} has no arithmetic in bf16, {words}"]


def duration(whole_s: float) -> str:
    """Return the time of a training with no more digits than a prediction has."""
    if whole_s < 1:
        return seconds(whole_s)
    return f"{significant(whole_s / 3600, 2)} h" if whole_s >= 3600 else clock_time(whole_s)
