"""The answer of `pomology fit`: memory, speed, hours, and what would help."""

from __future__ import annotations

import argparse
import re
from typing import NamedTuple

from pomology.articles import published
from pomology.devices import find
from pomology.errors import PomologyError
from pomology.extras.fit import memory, networks
from pomology.extras.fit.networks import Plan
from pomology.extras.prediction import devices, model
from pomology.extras.prediction.devices import Device
from pomology.format import clock_time, one_line, quantity, seconds, significant, span

USUAL_TOKENS = 2048
MEMORY = {"GB": 2.0**30, "GiB": 2.0**30, "TB": 2.0**40}  # memory is sold in powers of two
COUNTS = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9}
# Metal recommends about 2/3 of a Mac's memory for its GPU up to 36 GB, and 3/4 above (as reported
# by users). On the Mac itself Metal is asked.
METAL_LEAST, METAL_MOST = 2 / 3, 3 / 4
SPEEDS = {"s/it": 1.0, "s/step": 1.0, "min/it": 60.0, "h/it": 3600.0}  # seconds per step
RATES = ("it/s", "steps/s", "tokens/s", "tok/s")
SWAPS = "memory that swaps, or operators that run on the CPU (PYTORCH_ENABLE_MPS_FALLBACK)"
SLOW = "launches of small batches, data loading, other programs, a low-power mode, heat"


class Place(NamedTuple):
    """Where a step runs. limit: bytes that a program may use, or None; limited_by: in words."""

    backend: str
    device: Device | None
    limit: float | None
    limited_by: str


def answer(options: argparse.Namespace) -> list[str]:
    """Return the output of the command as lines. Raises PomologyError for wrong arguments."""
    longest = networks.longest(networks.find(options.model))
    values = {name: getattr(options, name) for name in Plan._fields}
    plan = Plan(**values)._replace(
        sequence=options.sequence or min(USUAL_TOKENS, longest or USUAL_TOKENS)
    )
    for name in ("rank", "batch", "sequence"):
        if getattr(plan, name) < 1:
            raise PomologyError(f"--{name} {getattr(plan, name)}: expected at least 1")
    if longest and plan.sequence > longest:
        raise PomologyError(f"--sequence {plan.sequence}: the model takes {longest:,} at most")
    tokens = parse(options.tokens, COUNTS, "--tokens", "10M") if options.tokens else 0.0
    example = "93 s/it, 0.4 it/s or 475 tokens/s"
    units = SPEEDS | dict.fromkeys(RATES, 1.0)
    speed = parse(options.observed, units, "--observed", example) if options.observed else 0.0
    where = place(options)
    lines = fits(options.model, plan, where)
    if where.device:
        lines += timed(options.model, plan, where, tokens)
        if speed:
            unit = options.observed.lstrip("0123456789. ")
            lines.append(judged(options.model, plan, where, speed, unit))
    return [*lines, *helps(options.model, plan, where)]


def parse(text: str, units: dict[str, float], name: str, example: str) -> float:
    """Return the value of a number and a unit, such as `36GB`. Raises PomologyError."""
    number, unit = re.fullmatch(r"(\d+\.?\d*|) *(.*)", text.strip()).groups()
    if unit not in units or not number or not float(number):
        raise PomologyError(f"{name} {one_line(text)}: expected a value such as {example}")
    return float(number) * units[unit]


def place(options: argparse.Namespace) -> Place:
    """Return the device of the command's options, by default this machine's."""
    given = parse(options.memory, MEMORY, "--memory", "36GB") if options.memory else None
    metal = None
    if given:
        metal = given * (METAL_LEAST if given <= 36 * MEMORY["GB"] else METAL_MOST)
    known = devices.published_devices()
    if options.on:
        device = devices.chosen(options.on, known)
        if device.backend == "mps":
            return Place("mps", device, metal, "Metal's recommendation")
        sheets = {row["device"]: row["memory_gb"] for row in published.read("datasheets.csv")}
        of_sheet = float(sheets[device.name] or 0) * MEMORY["GB"] or None
        return Place(device.backend, device, given or of_sheet, "the device's memory")
    own = find.find("auto", options.framework)[-1]
    gpu = known.get(own.name) or known.get(f"{own.name} GPU")
    limit = (metal if own.kind == "gpu" and own.unified_memory else given) or own.free_memory()
    limited_by = f"free for {own.title} on {own.name or 'this machine'}"
    return Place(own.backend, gpu if own.kind == "gpu" else None, limit, limited_by)


def fits(name: str, plan: Plan, where: Place) -> list[str]:
    """Return the lines about the model and its memory."""
    need = memory.count(name, plan, where.backend)
    kinds = {"full": "all weights", "lora": f"LoRA, rank {plan.rank}"}
    kind = kinds.get(plan.method, f"QLoRA, rank {plan.rank}")
    checkpointing = ", checkpointing" if plan.checkpointing else ""
    shares = [f"{kind} {quantity(getattr(need, kind), 'B')}" for kind in memory.KINDS]
    lines = [
        f"{name}: {need.parameters:,} parameters; {kind} ({need.trained:,} trained), batch "
        f"{plan.batch}, {plan.sequence:,} tokens, {plan.precision}, {plan.optimizer}{checkpointing}"
    ]
    needed = quantity(need.bytes, "B")
    if where.limit:
        verdict = "fits" if need.bytes <= where.limit else "does not fit"
        limit = f"{quantity(where.limit, 'B')} ({where.limited_by})"
        lines.append(f"{verdict}: needs {needed} of {limit}")
    else:
        lines.append(f"needs {needed}; --memory tells whether that fits")
    lines.append(f"  when most is allocated: {', '.join(shares)}")
    if where.limit:
        batch = largest(name, plan, where, "batch")
        longest = largest(name, plan, where, "sequence")
        words = f"  largest batch of {plan.sequence:,} tokens: {batch:,}"
        lines.append(f"{words}; longest sequence at batch {plan.batch}: {longest:,} tokens")
    return lines


def largest(name: str, plan: Plan, where: Place, field: str) -> int:
    """Return the largest batch or sequence that fits, or 0; at most 1,000 times the plan's.

    Memory is a polynomial of degree 2 at most, here through the counts of three sizes.
    """
    import numpy as np

    own = max(2, getattr(plan, field))
    sizes = [own // 2, own, 2 * own]
    counts = [memory.count(name, plan._replace(**{field: n}), where.backend) for n in sizes]
    curve = np.poly1d(np.polyfit(sizes, [need.bytes for need in counts], 2))
    tried = np.unique(np.geomspace(1, 1000 * own, 5000).astype(int))
    fitting = tried[curve(tried) <= where.limit]
    return int(fitting.max()) if len(fitting) else 0


def timed(name: str, plan: Plan, where: Place, tokens: float) -> list[str]:
    """Return the lines about time."""
    step, bound = predicted(name, plan, where)
    per_step = plan.batch * plan.sequence
    rate, *rates = [significant(per_step / s, 2) for s in (step.value, step.high, step.low)]
    lines = [
        f"takes {seconds(step.value)} per step (90 % interval: {span(*step.bounds, seconds)}), "
        f"mostly {bound}: {rate} tokens/s ({rates[0]} to {rates[1]})"
    ]
    if tokens:
        steps = tokens / per_step
        low, high = (clock_time(steps * end) for end in step.bounds)
        lines.append(f"  {tokens:,.0f} tokens: {clock_time(steps * step.value)} ({low} to {high})")
    return lines


def predicted(name: str, plan: Plan, where: Place) -> tuple:
    """Return a step's time with its 90 % interval, and what takes most of it."""
    work = memory.count(name, plan, where.backend).work
    return model.fitted().predict(work, where.device, plan.precision)


def judged(name: str, plan: Plan, where: Place, speed: float, unit: str) -> str:
    """Return how an observed speed compares with the predicted one, and what is usual then.

    speed: seconds per step, or a rate in `unit`.
    """
    step, _ = predicted(name, plan, where)
    step_s = speed
    if unit in RATES:
        step_s = (plan.batch * plan.sequence if unit.startswith("tok") else 1) / speed
    ratio = step_s / step.value
    line = f"observed {seconds(step_s)} per step: {significant(ratio, 2)} times the prediction"
    if step_s < step.low:
        return f"{line}; are its sequences shorter than --sequence?"
    if step_s <= step.high:
        return f"{line}, within the interval"
    if where.limit and memory.count(name, plan, where.backend).bytes > where.limit:
        return f"{line}; the memory does not suffice, so the machine swaps"
    return f"{line}; usual causes: {SWAPS if ratio > 10 else SLOW}"


def helps(name: str, plan: Plan, where: Place) -> list[str]:
    """Return what would save memory, each with its numbers, the largest saving first."""
    changes = {
        "LoRA": {"method": "lora"} if plan.method == "full" else {},
        "QLoRA": {"method": "qlora"} if plan.method == "lora" else {},
        "checkpointing": {} if plan.checkpointing else {"checkpointing": True},
        "bf16": {"precision": "bf16"} if plan.precision == "fp32" else {},
        f"{plan.sequence // 2:,} tokens": {"sequence": max(1, plan.sequence // 2)},
    }
    lines = []
    for words, change in changes.items():
        if change:
            changed = plan._replace(**change)
            needed = memory.count(name, changed, where.backend).bytes
            line = f"  {words}: {quantity(needed, 'B')}"
            if where.device:
                line += f", {seconds(predicted(name, changed, where)[0].value)} per step"
            lines.append((needed, line))
    return ["what would help:", *(line for _, line in sorted(lines))]
