"""Whether a plan fits a device, and the least change of it that does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from pomology.extras.fit import counts
from pomology.extras.fit.counts import Need
from pomology.extras.fit.plan import Plan
from pomology.extras.prediction.devices import Hardware

FITS, TIGHT, TOO_LARGE, UNKNOWN = "fits", "tight", "does not fit", "unknown"
ROOM = 0.85  # of what a program may use; above it, a plan is tight
# nvidia-smi over the peak of PyTorch's allocator, medians of 20, 19 and 62 runs on A100 80 GB:
# https://github.com/foundation-model-stack/fms-acceleration, scripts/benchmarks/refs @876e2ed
RESERVES = {"full": 1.11, "lora": 1.23, "qlora": 1.19}
SHORTEST = 128  # tokens of an offered sequence
# How much a change costs the user: results that stay the same, then fewer trained weights, then
# shorter texts.
CHECKPOINTING, BATCH, STATES, LORA, QLORA, HALF = 1, 1, 2, 4, 6, 10


class TrainingDevice(NamedTuple):
    """The device of a step, and its memory.

    device: with its data sheet, or None. limit: bytes that a program may use, or None. limited_by:
    in words. note: how the device was chosen, or why it has no data sheet. chip: its name in
    records, of a device of this machine.
    """

    backend: str
    device: Hardware | None
    limit: float | None
    limited_by: str
    note: str = ""
    chip: str | None = None


class Offer(NamedTuple):
    """A plan that fits, or is tight."""

    plan: Plan
    need: Need
    verdict: str


def with_reserve(need: Need, plan: Plan, where: TrainingDevice) -> float:
    """Return the bytes of a process: those that are counted, and what CUDA takes besides.

    No measured ratio is known for other devices.
    """
    return need.bytes * (RESERVES[plan.method] if where.backend == "cuda" else 1.0)


def verdict(need: Need, plan: Plan, where: TrainingDevice) -> str:
    """Return whether a need fits."""
    if not where.limit:
        return UNKNOWN
    share = share_of(need, plan, where)
    return TOO_LARGE if share > 1 else TIGHT if share > ROOM else FITS


def share_of(need: Need, plan: Plan, where: TrainingDevice) -> float:
    """Return what a process takes of what it may use."""
    return with_reserve(need, plan, where) / where.limit


def cheapest(name: str, plan: Plan, where: TrainingDevice) -> Offer | None:
    """Return the plan with the least changes that fits, else the one that is tight, or None."""
    tight = None
    for changed in _changed(plan, where):
        need = counts.need(name, changed, where.backend)
        found = verdict(need, changed, where)
        if found == FITS:
            return Offer(changed, need, FITS)
        if found == TIGHT and tight is None:
            tight = Offer(changed, need, TIGHT)
    return tight


def _changed(plan: Plan, where: TrainingDevice) -> Iterator[Plan]:
    """Yield plans with more and more changes."""
    methods = ["full", "lora", "qlora"]
    methods = methods[methods.index(plan.method) :]
    cost_of = {"lora": LORA, "qlora": QLORA} | {plan.method: 0}
    has_8_bits = where.backend == "cuda" and plan.framework == "torch"
    optimizers = [plan.optimizer]
    optimizers += ["adamw8bit"] * (has_8_bits and plan.optimizer == "adamw")
    halves = range(plan.sequence.bit_length())
    sequences = [plan.sequence >> half for half in halves if plan.sequence >> half >= SHORTEST]
    choices = itertools.product(
        methods,
        sorted({plan.checkpointing, True}),
        sorted({plan.batch, 1}, reverse=True),
        optimizers,
        enumerate(sequences or [plan.sequence]),
    )
    upcast = plan.upcast if plan.method == "qlora" else where.backend == "cuda"
    priced = []
    for method, checkpointing, batch, optimizer, (halvings, sequence) in choices:
        if optimizer != plan.optimizer and method != "full":
            continue  # LoRA's states are small
        changed = plan._replace(
            method=method,
            checkpointing=checkpointing,
            batch=batch,
            # As many sequences as before in an update.
            accumulation=plan.accumulation * (plan.batch // batch),
            optimizer=optimizer,
            sequence=sequence,
            upcast=upcast if method == "qlora" else plan.upcast,
            amp=plan.amp and method != "qlora",
        )
        cost = cost_of[method] + CHECKPOINTING * (checkpointing != plan.checkpointing)
        cost += BATCH * (batch != plan.batch) + STATES * (optimizer != plan.optimizer)
        cost += HALF * halvings
        if changed != plan:
            priced.append((cost, changed))
    yield from (changed for _, changed in sorted(priced, key=lambda pair: pair[0]))


def words(plan: Plan, changed: Plan) -> str:
    """Return what a changed plan has instead of a plan."""
    methods = {"full": "all weights", "lora": "LoRA", "qlora": "QLoRA"}
    parts = [methods[changed.method]] if changed.method != plan.method else []
    parts += ["checkpointing"] if changed.checkpointing != plan.checkpointing else []
    if changed.batch != plan.batch:
        parts.append(f"batch {changed.batch} with {changed.accumulation} passes an update")
    parts += ["AdamW in 8 bits"] if changed.optimizer != plan.optimizer else []
    parts += [f"{changed.sequence:,} tokens"] if changed.sequence != plan.sequence else []
    return " + ".join(parts)
