"""The answer of `pomology fit`: memory, speed, hours, and what would help."""

from __future__ import annotations

import argparse
import bisect
import re
from typing import NamedTuple

from pomology.articles import devices as names
from pomology.devices import find
from pomology.errors import PomologyError
from pomology.extras.fit import memory, networks
from pomology.extras.fit.networks import Plan
from pomology.extras.prediction import devices, model
from pomology.extras.prediction.devices import Hardware
from pomology.format import clock_time, one_line, quantity, seconds, significant, span
from pomology.machine import snapshot
from pomology.measure.estimate import Estimate

MEMORY = {"GB": 2.0**30, "GiB": 2.0**30, "TB": 2.0**40}  # memory is sold in powers of two
COVERED = "of 101 published speeds 41 % are within 30 %, 75 % in such intervals"  # docs/fit.md
SECONDS = {"s/it": 1.0, "s/step": 1.0, "min/it": 60.0, "h/it": 3600.0}
SWAPS = "memory that swaps, or operators that run on the CPU (PYTORCH_ENABLE_MPS_FALLBACK)"
SLOW = "launches of small batches, data loading, other programs, a low-power mode, heat"


class TrainingDevice(NamedTuple):
    """The device of a step, and its memory.

    device: with its data sheet, or None. limit: bytes that a program may use, or None. limited_by:
    in words. note: how the device was chosen, or why it has no data sheet.
    """

    backend: str
    device: Hardware | None
    limit: float | None
    limited_by: str
    note: str = ""


def answer(options: argparse.Namespace) -> list[str]:
    """Return the output of the command as lines. Raises PomologyError for wrong arguments."""
    name, note = networks.resolve(options.model)
    plan = plan_of(options, longest=networks.longest(networks.find(name)))
    tokens = parse(options.tokens, {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9}, "--tokens", "10M")
    observed_s = step_time(options.observed, plan) if options.observed else 0.0
    where = training_device(options)
    need = memory.count(name, plan, where.backend)
    lines = fits(name, plan, where)
    if where.device:
        step, bound = model.fitted().predict(need.work, where.device, plan.precision)
        lines += timed(step, bound, plan.batch * plan.sequence, tokens)
        lines += [judged(step, observed_s)] if observed_s else []
        lines += [where.note] if where.note else []
    else:
        lines.append(f"no time is predicted: {where.note}; --on names a device with a data sheet")
    return [*lines, *helps(name, plan, where), *filter(None, [note])]


def plan_of(options: argparse.Namespace, longest: int) -> Plan:
    """Return what the command's options train. longest: the most tokens that the model takes.

    Raises PomologyError for numbers that are too small or too large.
    """
    values = {field: value for field, value in vars(options).items() if field in Plan._fields}
    values["sequence"] = min(2048, longest) if options.sequence is None else options.sequence
    plan = Plan(**values)
    for field in ("rank", "batch", "sequence"):
        if values[field] < 1:
            raise PomologyError(f"--{field} {values[field]}: expected at least 1")
    if plan.sequence > longest:
        raise PomologyError(f"--sequence {plan.sequence}: the model takes {longest:,} at most")
    return plan


def parse(text: str | None, units: dict[str, float], option: str, example: str) -> float:
    """Return the value of a number with a unit, such as `36GB`, or 0. Raises PomologyError."""
    if not text:
        return 0.0
    number, unit = re.fullmatch(r"(\d+\.?\d*|) *(.*)", text.strip(), re.DOTALL).groups()
    if unit not in units or not number or not float(number):
        raise PomologyError(f"{option} {one_line(text)}: expected a value such as {example}")
    return float(number) * units[unit]


def step_time(text: str, plan: Plan) -> float:
    """Return an observed speed as seconds per step. Raises PomologyError."""
    rates = {"it/s": 1.0, "steps/s": 1.0, "tokens/s": 1 / (plan.batch * plan.sequence)}
    value = parse(text, SECONDS | rates, "--observed", "93 s/it, 0.4 it/s or 475 tokens/s")
    return 1 / value if text.strip().endswith(tuple(rates)) else value


def training_device(options: argparse.Namespace) -> TrainingDevice:
    """Return the device of the command's options, by default this machine's."""
    stated = parse(options.memory, MEMORY, "--memory", "36GB") or None
    # What Metal recommends for the GPU, as reported by users. On the Mac itself Metal is asked.
    metal = stated and stated * (2 / 3 if stated <= 36 * MEMORY["GB"] else 3 / 4)
    gpus = snapshot.gpus()
    if options.on:
        device, name, note = devices.with_data_sheet(options.on, gpus, "--on")
        if device.backend == "mps":
            return TrainingDevice("mps", device, metal, "Metal's recommendation", note)
        limit = stated or float(names.sheets()[name]["memory_gb"]) * MEMORY["GB"]
        return TrainingDevice(device.backend, device, limit, "the device's memory", note)
    device_here = find.find("auto", options.framework)[-1]
    unified = device_here.kind == "gpu" and device_here.unified_memory
    limit = (metal if unified else stated) or device_here.free_memory()
    words = f"for {device_here.title} on {device_here.name or 'this machine'}"
    if device_here.kind == "cpu":
        return TrainingDevice(device_here.backend, None, limit, words, "a CPU has no data sheet")
    try:
        device, _, note = devices.with_data_sheet(device_here.name or "this GPU", gpus)
    except PomologyError as error:
        device, note = None, str(error)
    return TrainingDevice(device_here.backend, device, limit, words, note)


def fits(name: str, plan: Plan, where: TrainingDevice) -> list[str]:
    """Return the lines about the model and its memory."""
    need = memory.count(name, plan, where.backend)
    lora = f"LoRA, rank {plan.rank}"
    kind = {"full": "all weights", "lora": lora, "qlora": f"Q{lora}"}[plan.method]
    checkpointing = ", checkpointing" if plan.checkpointing else ""
    shares = [f"{part} {quantity(size, 'B')}" for part, size in need.parts.items()]
    head = (
        f"{name}: {need.parameters:,} parameters; {kind} ({need.trained:,} trained), batch "
        f"{plan.batch}, {plan.sequence:,} tokens, {plan.precision}, {plan.optimizer}{checkpointing}"
    )
    detail = f"  when most is allocated: {', '.join(shares)}"
    needed = f"needs {quantity(need.bytes, 'B')}"
    if not where.limit:
        return [head, f"{needed}; --memory tells whether that fits", detail]
    verdict = "fits" if need.bytes <= where.limit else "does not fit"
    batch = largest(name, plan, where, "batch")
    longest = min(largest(name, plan, where, "sequence"), networks.longest(networks.find(name)))
    return [
        head,
        f"{verdict}: {needed} of {quantity(where.limit, 'B')} ({where.limited_by})",
        detail,
        f"  largest batch of {plan.sequence:,} tokens: {batch:,}; longest sequence at batch "
        f"{plan.batch}: about {longest:,} tokens",
    ]


def largest(name: str, plan: Plan, where: TrainingDevice, field: str) -> int:
    """Return the largest batch or sequence that fits, or 0; at most 1,000 times the plan's.

    Memory is taken as a polynomial through the counts of three sizes; sequences are up to 5 % off.
    """
    import numpy as np

    # The smallest size, a quarter of the largest, must be at least 1.
    planned = max(2, getattr(plan, field))
    top = 2 * planned
    if field == "sequence":  # a model with learned positions runs no longer one
        top = min(top, networks.longest(networks.find(name)))
    sizes = [top // 4, top // 2, top]
    counts = [memory.count(name, plan._replace(**{field: size}), where.backend) for size in sizes]
    curve = np.poly1d(np.polyfit(sizes, [need.bytes for need in counts], 2))
    return bisect.bisect_right(range(1, 1000 * planned + 1), where.limit, key=curve)


def timed(step: Estimate, bound: str, per_step: int, tokens: float) -> list[str]:
    """Return the lines about time. per_step: tokens. tokens: of the whole training, or 0."""
    rate, least, most = (
        significant(per_step / step_s, 2) for step_s in (step.value, step.high, step.low)
    )
    lines = [
        f"takes {seconds(step.value)} per step ({span(*step.bounds, seconds)}; {COVERED}), "
        f"mostly {bound}: {rate} tokens/s ({least} to {most})"
    ]
    if tokens:
        steps = tokens / per_step
        whole, low, high = (clock_time(steps * step_s) for step_s in (step.value, *step.bounds))
        lines.append(f"  {tokens:,.0f} tokens: {whole} ({low} to {high})")
    return lines


def judged(step: Estimate, observed_s: float) -> str:
    """Return how an observed time of a step compares with the prediction, and usual causes."""
    ratio = observed_s / step.value
    line = f"observed {seconds(observed_s)} per step: {significant(ratio, 2)} times the prediction"
    if observed_s < step.low:
        return f"{line}; are its sequences shorter than --sequence?"
    if observed_s <= step.high:
        return f"{line}, within the interval"
    return f"{line}; usual causes: {SWAPS if ratio > 10 else SLOW}"


def helps(name: str, plan: Plan, where: TrainingDevice) -> list[str]:
    """Return what alone would save memory, each with its numbers, the largest saving first."""
    changes = {
        "LoRA": {"method": "lora"},
        "QLoRA": {"method": "qlora"},
        "checkpointing": {"checkpointing": True},
        "bf16": {"precision": "bf16"},
        f"{plan.sequence // 2:,} tokens": {"sequence": max(1, plan.sequence // 2)},
    }
    lines = []
    for words, change in changes.items():
        changed = plan._replace(**change)
        need = memory.count(name, changed, where.backend)
        line = f"  {words}: {quantity(need.bytes, 'B')}"
        if where.device:
            step, _ = model.fitted().predict(need.work, where.device, changed.precision)
            line += f", {seconds(step.value)} per step"
        if need.bytes < memory.count(name, plan, where.backend).bytes:
            lines.append((need.bytes, line))
    return ["what would help:", *(line for _, line in sorted(lines))]
