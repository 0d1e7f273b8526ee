"""The answer of `pomology fit`: memory, speed, hours, and what would help."""

from __future__ import annotations

import argparse
import math
import re
from typing import NamedTuple

from pomology.articles import published
from pomology.devices import find
from pomology.errors import PomologyError
from pomology.extras.fit import memory, networks
from pomology.extras.fit.memory import Need
from pomology.extras.fit.networks import USUAL_TOKENS, Plan
from pomology.extras.prediction import devices, model
from pomology.extras.prediction.devices import Device
from pomology.format import clock_time, one_line, quantity, seconds, significant, span
from pomology.measure.estimate import Estimate

SIZES = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
# Share of a Mac's memory that Metal recommends for the GPU: reported values are about 2/3 up to
# 36 GB, and 3/4 above. The value of this machine is asked from Metal.
METAL_SHARES = ((36e9, 2 / 3), (math.inf, 3 / 4))
SPEED = re.compile(r"([\d.,]+) ?(s/it|s/step|it/s|step/s|min/it|h/it|tokens?/s|tok/s)")
SWAPS = "memory that swaps, or operators that run on the CPU (PYTORCH_ENABLE_MPS_FALLBACK)"
SLOW = "launches of small batches, data loading, other programs, a low-power mode, heat"


class Place(NamedTuple):
    """Where a step runs. limit: bytes that a program may use, if known; limited_by: in words."""

    backend: str
    device: Device | None
    limit: float | None
    limited_by: str


def answer(options: argparse.Namespace) -> list[str]:
    """Return the output of the command as lines. Raises PomologyError for wrong arguments."""
    found = networks.find(options.model)
    plan = planned(found, options)
    tokens = size(options.tokens, "--tokens", "10M") if options.tokens else 0.0
    speed = observed(options.observed)
    where = place(options)
    need = memory.count(options.model, plan, where.backend)
    lines = [title(found, need, plan), *fits(options.model, plan, where)]
    if where.device:
        step, bound = predicted(need, plan, where.device)
        lines += timed(step, bound, plan, tokens)
        if speed:
            lines.append(judged(step, speed, need, plan, where))
    return [*lines, *helps(options.model, plan, where)]


def planned(found: networks.Model, options: argparse.Namespace) -> Plan:
    """Return the plan of the command's options. Raises PomologyError."""
    longest = networks.longest(found)
    sequence = options.sequence or min(USUAL_TOKENS, longest or USUAL_TOKENS)
    if longest and sequence > longest:
        raise PomologyError(f"--sequence {sequence}: {found.name} takes {longest:,} at most")
    for name, value in (("rank", options.rank), ("batch", options.batch), ("sequence", sequence)):
        if value < 1:
            raise PomologyError(f"--{name} {value}: expected at least 1")
    values = {name: getattr(options, name) for name in Plan._fields}
    return Plan(**values | {"sequence": sequence})


def size(text: str, name: str, example: str) -> float:
    """Return the number of `36GB` or `10M`. Raises PomologyError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kKMGT]?B?)", text)
    if not match or match[2] not in SIZES or not float(match[1]):
        raise PomologyError(f"{name} {one_line(text)}: expected a size such as {example}")
    return float(match[1]) * SIZES[match[2]]


def observed(text: str) -> tuple[float, str] | None:
    """Return an observed speed as number and unit. Raises PomologyError."""
    if not text:
        return None
    match = SPEED.fullmatch(text.strip())
    if not match or not float(match[1].replace(",", "")):
        expected = "expected a speed such as '93 s/it', '0.4 it/s' or '475 tokens/s'"
        raise PomologyError(f"--observed {one_line(text)}: {expected}")
    return float(match[1].replace(",", "")), match[2]


def place(options: argparse.Namespace) -> Place:
    """Return the device of the command's options, by default this machine's."""
    given = size(options.memory, "--memory", "36GB") if options.memory else None
    if options.on:
        device = devices.chosen(options.on, devices.published_devices())
        if device.backend == "mps":
            return Place("mps", device, given and metal(given), "Metal's recommendation")
        sheet = {row["device"]: row["memory_gb"] for row in published.read("datasheets.csv")}
        of_sheet = float(sheet[device.name]) * 2**30 if sheet[device.name] else None
        return Place(device.backend, device, given or of_sheet, "the device's memory")
    own = find.find("auto", options.framework)[-1]
    known = devices.published_devices()
    names = (own.name, f"{own.name} GPU")
    device = next((known[name] for name in names if own.kind == "gpu" and name in known), None)
    backend = {"gpu": own.backend, "cpu": "cpu"}[own.kind]
    if given and own.unified_memory and own.kind == "gpu":
        given = metal(given)
    limit = given or own.free_memory()
    return Place(backend, device, limit, f"free for {own.title} on {own.name or 'this machine'}")


def metal(installed: float) -> float:
    """Return the bytes that Metal recommends for the GPU of a Mac with this memory."""
    return installed * next(share for most, share in METAL_SHARES if installed <= most)


def title(found: networks.Model, need: Need, plan: Plan) -> str:
    """Return what is trained, in one line."""
    names = {"full": "all weights", "lora": "LoRA", "qlora": "QLoRA"}
    rank = "" if plan.method == "full" else f" of rank {plan.rank}"
    parts = [
        f"{found.name}: {need.parameters:,} parameters",
        f"{names[plan.method]}{rank} ({need.trained:,} trained)",
        f"batch {plan.batch}",
        f"{plan.sequence:,} tokens",
        plan.precision,
        plan.optimizer,
    ]
    return ", ".join(parts + ["checkpointing"] * plan.checkpointing)


def fits(name: str, plan: Plan, where: Place) -> list[str]:
    """Return the lines about memory."""
    need = memory.count(name, plan, where.backend)
    parts = [f"{kind} {quantity(getattr(need, kind), 'B')}" for kind in memory.KINDS]
    needed = quantity(need.bytes, "B")
    at_peak = f"  when most is allocated: {', '.join(parts)}"
    if not where.limit:
        return [f"needs {needed}; whether that fits depends on --memory", at_peak]
    limit = f"{quantity(where.limit, 'B')} ({where.limited_by})"
    verdict = "fits" if need.bytes <= where.limit else "does not fit"
    batch = largest(name, plan, where, "batch", [plan.batch, 2 * plan.batch, 4 * plan.batch])
    half = max(1, plan.sequence // 2)
    sequence = largest(name, plan, where, "sequence", [half, 2 * half, 4 * half])
    return [
        f"{verdict}: needs {needed} of {limit}",
        at_peak,
        f"  largest batch of {plan.sequence:,} tokens: {batch:,}, longest sequence: {sequence:,}",
    ]


def largest(name: str, plan: Plan, where: Place, field: str, values: list[int]) -> int:
    """Return the largest batch or sequence that fits, or 0; at most 1,000 times the plan's.

    The memory is a polynomial of degree 2 at most, through three counts.
    """
    import numpy as np

    counts = [memory.count(name, plan._replace(**{field: n}), where.backend) for n in values]
    curve = np.poly1d(np.polyfit(values, [need.bytes for need in counts], 2))
    tried = np.unique(np.geomspace(1, 1000 * values[0], 3000).astype(int))
    fitting = tried[curve(tried) <= where.limit]
    return int(fitting.max()) if len(fitting) else 0


def predicted(need: Need, plan: Plan, device: Device) -> tuple[Estimate, str]:
    """Return a step's time with its 90 % interval, and what takes most of it."""
    return model.fitted().predict(need.work, device, plan.precision)


def timed(estimate: Estimate, bound: str, plan: Plan, tokens: float) -> list[str]:
    """Return the lines about time. bound: what takes most of it."""
    per_step = plan.batch * plan.sequence
    rates = [significant(per_step / end, 2) for end in (estimate.value, *estimate.bounds[::-1])]
    interval = span(*estimate.bounds, seconds)
    lines = [
        f"takes {seconds(estimate.value)} per step (90 % interval: {interval}), mostly {bound}: "
        f"{rates[0]} tokens/s ({rates[1]} to {rates[2]})"
    ]
    if tokens:
        steps = tokens / per_step
        ends = span(*(steps * end for end in estimate.bounds), clock_time)
        lines.append(f"  {tokens:,.0f} tokens: {clock_time(steps * estimate.value)} ({ends})")
    return lines


def judged(
    estimate: Estimate,
    speed: tuple[float, str],
    need: Need,
    plan: Plan,
    where: Place,
) -> str:
    """Return how an observed speed compares with the predicted one, and what is usual then."""
    number, unit = speed
    factors = {"s": 1.0, "min": 60.0, "h": 3600.0}
    if unit.startswith("tok"):
        step_s = plan.batch * plan.sequence / number
    elif unit.endswith("/s"):
        step_s = 1 / number
    else:
        step_s = number * factors[unit.partition("/")[0]]
    ratio = step_s / estimate.value
    line = f"observed {significant(number)} {unit}: {significant(ratio, 2)} times the prediction"
    low, high = estimate.bounds
    if step_s <= high:
        usual = "faster than usual: fewer tokens than --sequence?" if step_s < low else "usual"
        return f"{line}; {usual}"
    if where.limit and need.bytes > where.limit:
        return f"{line}; memory does not suffice, so the machine swaps"
    return f"{line}; usual causes: {SWAPS if ratio > 10 else SLOW}"


def helps(name: str, plan: Plan, where: Place) -> list[str]:
    """Return what would save memory, each with its numbers, the largest saving first."""
    half = plan.sequence // 2
    changes = [
        ("LoRA", {"method": "lora"}, plan.method == "full"),
        ("QLoRA", {"method": "qlora"}, plan.method == "lora"),
        ("checkpointing", {"checkpointing": True}, not plan.checkpointing),
        ("bf16", {"precision": "bf16"}, plan.precision == "fp32"),
        (f"{half:,} tokens", {"sequence": half}, half > 0),
    ]
    lines = []
    for words, change, applies in changes:
        if applies:
            changed = plan._replace(**change)
            need = memory.count(name, changed, where.backend)
            line = f"  {words}: {quantity(need.bytes, 'B')}"
            if where.device:
                step, _ = predicted(need, changed, where.device)
                line += f", {seconds(step.value)} per step"
            lines.append((need.bytes, line))
    return ["what would help:", *(line for _, line in sorted(lines))]
