"""Whether a plan fits a device, and the least change of it that does."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pomology.extras.fit import counts, networks, times
from pomology.extras.fit.counts import Need
from pomology.extras.fit.plan import IN_8_BITS, Plan
from pomology.extras.prediction.devices import Hardware
from pomology.models.cost import VERDICTS, fit_of

FITS, TIGHT, TOO_LARGE = VERDICTS
UNKNOWN = "unknown"  # whether a plan fits a device whose memory is
# nvidia-smi over the peak of PyTorch's allocator, medians of 20, 19 and 62 runs on A100 80 GB:
# https://github.com/foundation-model-stack/fms-acceleration, scripts/benchmarks/refs @876e2ed
RESERVES = {"full": 1.11, "lora": 1.23, "qlora": 1.19}
NO_KERNELS = "bitsandbytes has no kernels for Metal"
SHORTEST = 128  # tokens of an offered sequence
SURE = 0.995  # of the bytes of one step, which are at most 0.1 % more than those that are counted
# How much a change costs the user: results that stay the same, then fewer trained weights, then
# other software, then shorter texts.
CHECKPOINTING, BATCH, STATES, LORA, QLORA, SOFTWARE, HALF = 1, 1, 2, 4, 6, 12, 40


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


def obstacle(plan: Plan, where: TrainingDevice) -> str:
    """Return why a plan cannot run on a device, whatever its memory; "" if it can."""
    needs_bitsandbytes = plan.method == "qlora" or plan.optimizer in IN_8_BITS
    on_metal = where.backend == "mps" and plan.framework == "torch"
    return NO_KERNELS if on_metal and needs_bitsandbytes else ""


def with_reserve(need: Need, plan: Plan, where: TrainingDevice) -> float:
    """Return the bytes of a process: those that are counted, and what CUDA takes besides.

    No measured ratio is known for other devices.
    """
    return _reserved(need.bytes, plan, where)


def _reserved(bytes_: float, plan: Plan, where: TrainingDevice) -> float:
    return bytes_ * (RESERVES[plan.method] if where.backend == "cuda" else 1.0)


def verdict(need: Need, plan: Plan, where: TrainingDevice) -> str:
    """Return whether a need fits."""
    if not where.limit:
        return UNKNOWN
    return fit_of(share_of(need, plan, where))


def share_of(need: Need, plan: Plan, where: TrainingDevice) -> float:
    """Return what a process takes of what it may use."""
    return with_reserve(need, plan, where) / where.limit


def cheapest(
    name: str, plan: Plan, where: TrainingDevice, need: Need | None = None
) -> Offer | None:
    """Return the plan with the least changes that fits, else the one that is tight, or None.

    Of a device with unknown memory it is the one with the least changes that runs. Of plans with
    equally large changes it is the fastest, else the one with the largest batch. need: of the plan
    itself, None if it cannot run.
    """
    counted = {counts.alike(plan)}
    config = networks.find(name)
    changes = list(_changed(plan, where, config))
    if networks.fixed_sequence(config):
        changes = [pair for pair in changes if pair[1].sequence == plan.sequence]
    for wanted in (FITS, TIGHT):
        worse = VERDICTS[VERDICTS.index(wanted) + 1 :]
        for _, same_cost in itertools.groupby(changes, key=lambda pair: pair[0]):
            found = []
            for _, changed in same_cost:
                bounds = _bounds(name, changed, where, need, plan.sequence, counted)
                shares = (_reserved(each, changed, where) / where.limit for each in bounds)
                if any(fit_of(share) in worse for share in shares):
                    continue
                try:
                    its_need = counts.need(name, changed, where.backend)
                except ImportError:  # without PyTorch there are the steps of counts.jsonl alone
                    continue
                counted.add(counts.alike(changed))
                found.append(Offer(changed, its_need, verdict(its_need, changed, where)))
            found = [offer for offer in found if offer.verdict in (wanted, UNKNOWN)]
            if found:
                return _fastest(found, where)
    return None


def _bounds(
    name: str,
    plan: Plan,
    where: TrainingDevice,
    need: Need | None,
    sequence: int,
    counted: Collection[Plan],
) -> Iterator[float]:
    """Yield bytes that a plan needs at least, which take less time than its counts.

    need, sequence: of the plan that it is a change of; a need of None is not known. counted: plans
    whose counts are known, see `counts.alike`.
    """
    if not where.limit:
        return
    yield least(name, plan, need)
    if not need or counts.alike(plan) in counted or counts.stored(name, plan, where.backend):
        return
    # What the shortest sequence needs tells of all others.
    shorter = [SHORTEST] if plan.sequence < sequence else []
    for tokens in (*shorter, plan.sequence):
        one = plan._replace(batch=1, accumulation=1, sequence=tokens)
        yield SURE * counts.bytes_of_step(name, one, where.backend)


def least(name: str, plan: Plan, need: Need | None) -> float:
    """Return bytes that every step of a plan needs at once, whatever its batch and sequence.

    They are those of the weights and, if all of them are trained, of gradients and states. need: of
    the plan that this one is a change of. Without one, 0 for a model that is none of the table's.
    """
    parameters = need.parameters if need else networks.parameters(name)
    width = 4 if plan.precision == "fp32" or plan.amp else 2
    if plan.method == "full":
        # No other method is changed to this one, so that its own need has all trained weights.
        trained = need.trained if need else parameters
        states = {"adamw": 2 * width, "sgd": width, "adamw8bit": 2, "paged-adamw8bit": 0}
        return parameters * width + trained * (plan.gradient_bytes + states[plan.optimizer])
    if plan.method == "qlora":
        # In PyTorch experts stay in 16 bits; they are over 0.8 of such a model of the table.
        is_mixture = name in networks.configurations() and networks.has_experts(name)
        in_16_bits = is_mixture and plan.framework == "torch" and not plan.small_experts
        width = 1.6 if in_16_bits else 0.5
    return parameters * width


def _fastest(offers: Sequence[Offer], where: TrainingDevice) -> Offer:
    """Return the offer with the least time, without a data sheet with the largest batch."""
    if not where.device:
        return max(offers, key=lambda offer: offer.plan.batch)
    step_s = [times.predict(each.need, each.plan, where.device)[0].value for each in offers]
    return offers[step_s.index(min(step_s))]


def _changed(
    plan: Plan, where: TrainingDevice, config: Mapping[str, Any]
) -> Iterator[tuple[int, Plan]]:
    """Yield plans with more and more changes that can run, and how much they cost.

    config: of the model. Losses of language models have kernels of their own.
    """
    is_text = networks.is_language_model(config)
    methods = ["full", "lora", "qlora"]
    methods = methods[methods.index(plan.method) :]
    cost_of = {"lora": LORA, "qlora": QLORA} | {plan.method: 0}
    has_8_bits = where.backend == "cuda" and plan.framework == "torch"
    optimizers = [plan.optimizer if has_8_bits else in_mlx(plan.optimizer)]
    optimizers += ["adamw8bit"] * (has_8_bits and plan.optimizer == "adamw")
    halves = range(plan.sequence.bit_length())
    sequences = [plan.sequence >> half for half in halves if plan.sequence >> half >= SHORTEST]
    # bitsandbytes has no kernels for Metal; mlx-lm has QLoRA of its own, of language models.
    framework = "mlx" if where.backend == "mps" else plan.framework
    if framework == "mlx" and networks.not_in_mlx(config):
        methods = [method for method in methods if method != "qlora"] or ["lora"]
        cost_of.setdefault("lora", LORA)
    choices = itertools.product(
        methods,
        sorted({plan.checkpointing, True}),
        divisors(plan.batch),
        optimizers,
        enumerate(sequences or [plan.sequence]),
    )
    upcast = where.backend == "cuda" and (plan.upcast or plan.method != "qlora")
    priced = []
    for method, checkpointing, batch, optimizer, (halvings, sequence) in choices:
        if optimizer != optimizers[0] and method != "full":
            continue  # LoRA's states are small
        changed = plan._replace(
            method=method,
            framework=framework if method == "qlora" else plan.framework,
            checkpointing=checkpointing,
            batch=batch,
            # As many sequences as before in an update.
            accumulation=plan.accumulation * (plan.batch // batch),
            optimizer=optimizer,
            sequence=sequence,
            upcast=upcast if method == "qlora" else False,
            amp=plan.amp and method != "qlora",
        )
        if changed.framework != plan.framework:
            changed = changed._replace(optimizer=in_mlx(plan.optimizer), loss="default")
        cost = cost_of[method] + CHECKPOINTING * (checkpointing != plan.checkpointing)
        cost += BATCH * (batch != plan.batch) + STATES * (optimizer != optimizers[0])
        cost += HALF * halvings
        if changed != plan and not obstacle(changed, where):
            priced.append((cost, changed))
        # The last plan before a shorter sequence also has other software.
        if (method, checkpointing, batch) == ("qlora", True, 1):
            for other in _other_software(changed, where, is_text):
                parts = (other.loss != changed.loss) + (other.upcast != changed.upcast)
                priced.append((cost + SOFTWARE * parts, other))
    yield from sorted(priced, key=lambda pair: pair[0])


def _other_software(plan: Plan, where: TrainingDevice, is_text: bool) -> list[Plan]:
    """Return plans that take less memory by another loss, or without peft's casts to fp32."""
    if plan.framework != "torch":
        return []
    loss = "fused" if where.backend == "cuda" else "chunked"  # Liger's kernels are CUDA's
    losses = [plan.loss, loss] if plan.loss == "default" and is_text else [plan.loss]
    casts = [True, False] if plan.upcast else [False]
    plans = [plan._replace(loss=loss, upcast=cast) for loss in losses for cast in casts]
    return [each for each in plans if each != plan]


def in_mlx(optimizer: str) -> str:
    """Return the optimizer of mlx-lm, which has none in 8 bits."""
    return "adamw" if optimizer in IN_8_BITS else optimizer


def divisors(number: int) -> list[int]:
    """Return the numbers that divide a number, the largest first."""
    small = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)}, reverse=True)


def words(plan: Plan, changed: Plan, backend: str = "cuda") -> str:
    """Return what a changed plan has instead of a plan. Only CUDA's QLoRA casts to fp32."""
    methods = {"full": "all weights", "lora": "LoRA", "qlora": "QLoRA"}
    framework = " in MLX" * (changed.framework != plan.framework)
    is_other = changed.method != plan.method or framework
    parts = [methods[changed.method] + framework] if is_other else []
    parts += ["checkpointing"] if changed.checkpointing != plan.checkpointing else []
    if changed.batch != plan.batch:
        parts.append(f"batch {changed.batch} with {changed.accumulation} passes an update")
    if changed.optimizer != plan.optimizer:
        parts.append("AdamW in 8 bits" if changed.optimizer in IN_8_BITS else "plain AdamW")
    parts += [f"{changed.loss} loss"] if changed.loss != plan.loss else []
    qlora = changed.method == "qlora" and changed.framework == "torch" and backend == "cuda"
    if qlora and _casts(plan) > changed.upcast:
        parts.append("no casts to fp32")
    parts += [f"{changed.sequence:,} tokens"] if changed.sequence != plan.sequence else []
    return " + ".join(parts)


def _casts(plan: Plan) -> bool:
    """Return whether a plan has peft's casts to fp32, or would have them with QLoRA."""
    return plan.upcast or plan.method != "qlora"
