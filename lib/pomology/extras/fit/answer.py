"""The answer of `pomology fit`: whether it fits, what would fit, and how long it takes."""

from __future__ import annotations

import argparse
import math
import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from pomology.articles import devices as names
from pomology.devices import find
from pomology.errors import PomologyError
from pomology.extras.fit import counts, matrix, measured, networks, offers, paces, times
from pomology.extras.fit.counts import Need
from pomology.extras.fit.measured import Measured
from pomology.extras.fit.offers import TrainingDevice
from pomology.extras.fit.paces import Pace
from pomology.extras.fit.plan import IN_8_BITS, Plan
from pomology.extras.prediction import devices
from pomology.format import one_line, quantity, seconds, significant, span
from pomology.machine import snapshot
from pomology.measure.estimate import Estimate

MEMORY = {"gb": 2.0**30, "gib": 2.0**30, "tb": 2.0**40}  # memory is sold in powers of two
COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9}
# Units of a measured speed: those of seconds per step, of steps per second, of tokens per second.
PER_STEP = {"s/it": 1.0, "s/step": 1.0, "min/it": 60.0, "h/it": 3600.0}
STEPS = ("it/s", "steps/s", "it/sec")
TOKENS = ("tokens/s", "tok/s", "tokens/sec", "tok/sec", "t/s")
SWAPS = "memory that swaps, or operators that run on the CPU"
FALLBACK = " (PYTORCH_ENABLE_MPS_FALLBACK)"
SLOW = "launches of small batches, data loading, other programs, a low-power mode, heat"
# What Metal lets a program use of a Mac's memory: GB of the Mac, and 10^9 bytes that llama.cpp
# logged as recommendedMaxWorkingSetSize under macOS 15.7 and 26 (docs/fit.md).
METAL = {16: 12.713, 24: 19.070, 36: 28.991, 48: 40.201, 64: 55.663, 128: 115.449}
# What a program gets of a card's memory, as a share: PyTorch's "total capacity", in GiB, of a T4
# (14.56 of 16), an L40S (44.42 of 48) and an RTX 4090 (23.52 to 23.68 of 24); the driver has the
# rest, and with GDDR6 the error correction of a data center's card. nvidia-smi has 23,028 MiB of an
# A10. Of the memory that GB10 shares with its CPU, 102 GiB were free (docs/fit.md).
OF_CARD = {"T4": 0.91, "L40S": 0.925, "A40": 0.925, "A10": 0.92, "A10G": 0.92, "L4": 0.92}
OF_CARD |= {"GB10": 0.8}
OF_OTHER_CARDS = 0.98
MOST = 10**9  # of a batch or a sequence


class Answer(NamedTuple):
    """The output of the command, and whether neither the plan nor a change of it fits."""

    lines: list[str]
    nothing_fits: bool


def answer(options: argparse.Namespace) -> Answer:
    """Return the answer to the command's options. Raises PomologyError for wrong arguments."""
    name, note = networks.resolve(options.model)
    config = networks.find(name)
    fixed = networks.fixed_sequence(config)
    if fixed and options.sequence not in (None, fixed):
        raise PomologyError(f"--sequence {options.sequence}: an image is {fixed} patches here")
    longest = fixed or networks.longest(config)
    plan = plan_of(options, longest, networks.width(config) or MOST)
    plan, note = _quantized(name, plan, note, options)
    depth = networks.depth(config)
    if depth and plan.layers > depth:
        raise PomologyError(f"--layers {plan.layers}: the model has {depth} blocks")
    tokens = parse(options.tokens, COUNTS, "--tokens", "10M")
    observed_s = step_time(options.observed, plan) if options.observed else 0.0
    where = training_device(options)
    if options.measure:
        measured.check(plan, options.on)
    if offers.obstacle(plan, where):
        return _otherwise(name, plan, where, options, tokens, note)
    need = counts.need(name, plan, where.backend)
    here, more = [], []
    if options.measure and offers.verdict(need, plan, where) == offers.TOO_LARGE:
        needed = _needed(name, plan, need, where, measured=False)
        raise PomologyError(
            f"--measure: does not fit: {needed}; without --measure it says what does"
        )
    if options.measure:
        result = _measured(name, plan, where, need)
        more = _parts(result, need)
        need = need._replace(bytes=result.bytes)
        here = [result]
    elif not options.on:
        here = measured.earlier(plan.framework, where.backend, where.chip)
    verdict = offers.verdict(need, plan, where)
    lines = [f"{verdict}: {_needed(name, plan, need, where, options.measure)}"]
    pace = paces.of(networks.title(name), plan, need, where, here)
    if verdict != offers.TOO_LARGE or not where.device:
        lines += _time(pace, plan, where, tokens)
    if pace and observed_s:
        lines.append(judged(pace, observed_s, where.backend))
    lines += more
    offer = None
    if verdict == offers.TOO_LARGE:
        offer = offers.cheapest(name, plan, where, need)
        lines += _offered(offer, name, plan, where, options, tokens)
    lines += details(name, plan, need, where)
    lines += [where.note] if where.note and where.device else []
    # Where nothing fits, QLoRA was tried, of which there may be something to know.
    others = [offer.plan if offer else plan._replace(method="qlora")]
    others = others if verdict == offers.TOO_LARGE else []
    lines += _notes(name, [plan, *others], where, note)
    return Answer(lines, verdict == offers.TOO_LARGE and offer is None)


def _otherwise(
    name: str,
    plan: Plan,
    where: TrainingDevice,
    options: argparse.Namespace,
    tokens: float,
    note: str,
) -> Answer:
    """Return the answer for a plan that cannot run on a device: the nearest one that can."""
    why = offers.obstacle(plan, where)
    what = plan.of(networks.title(name))
    what += f" with {plan.optimizer}" * (plan.method != "qlora")
    lines = [f"does not run: {what} in PyTorch on a Mac: {why}"]
    offer = offers.cheapest(name, plan, where)
    lines += _offered(offer, name, plan, where, options, tokens)
    plans = [offer.plan] if offer else []
    for each in plans:
        lines += details(name, each, offer.need, where)
    lines += [where.note] if where.note and where.device else []
    lines += _notes(name, plans, where, note)
    return Answer(lines, offer is None)


def _notes(name: str, plans: Sequence[Plan], where: TrainingDevice, note: str) -> list[str]:
    """Return the last lines of an answer about some plans. note: on the model's name, or ""."""
    of_model = dict.fromkeys(each for plan in plans for each in networks.notes(name, plan))
    slow = times.slow_precision(plans[0], where.device) if plans else []
    return [*slow, *of_model, *filter(None, [note])]


def _quantized(name: str, plan: Plan, note: str, options: argparse.Namespace) -> tuple[Plan, str]:
    """Return a plan, and a model's note, where the name says that weights are quantized.

    mlx-lm trains weights in 4 bits as they are. Raises PomologyError for what mlx-lm cannot train,
    or is not counted.
    """
    if plan.framework == "mlx":
        reason = networks.not_in_mlx(networks.find(name))
        if reason:
            raise PomologyError(f"--framework mlx: {reason}")
        if plan.method == "lora" and networks.in_4_bits(options.model):
            plan = plan._replace(method="qlora")
            of_mlx = "in 4 bits, as mlx-lm trains it"
            note = note.replace(networks.NOT_QUANTIZED, of_mlx) if note else f"{name}: {of_mlx}"
    if plan.method == "qlora":
        note = note.replace(networks.NOT_QUANTIZED, "in 4 bits")
    return plan, note


def table(options: argparse.Namespace) -> list[str]:
    """Return the lines of `--table`. Raises PomologyError for wrong arguments."""
    if options.observed or options.tokens or options.measure:
        raise PomologyError("--table: expected no --observed, no --tokens and no --measure")
    plan = plan_of(options, longest=networks.UNLIMITED)
    matrix.check(plan)
    where = training_device(options)
    lines = str(matrix.table(plan, where, options.model)).splitlines()
    return lines + ([where.note] if where.note and where.device else [])


def plan_of(options: argparse.Namespace, longest: int, widest: int = MOST) -> Plan:
    """Return what the command's options train.

    longest: the most tokens that the model takes. widest: the largest rank of a block's matrices.

    Raises PomologyError for numbers that are too small or too large.
    """
    values = {field: value for field, value in vars(options).items() if field in Plan._fields}
    values["sequence"] = min(2048, longest) if options.sequence is None else options.sequence
    mlx = options.framework == "mlx"
    values["batch"] = (4 if mlx else 1) if options.batch is None else options.batch
    targets = (part.strip() for part in (options.targets or "").split(","))
    values["targets"] = ",".join(filter(None, targets))
    values["upcast"] = options.method == "qlora" and not mlx and not options.no_upcast
    plan = Plan(**values)
    for field in ("rank", "batch", "sequence", "accumulation"):
        if values[field] < 1:
            raise PomologyError(f"--{field} {values[field]}: expected at least 1")
        if values[field] > MOST:
            raise PomologyError(f"--{field} {values[field]}: expected at most {MOST:,}")
    if options.method != "full" and plan.rank > widest:
        raise PomologyError(f"--rank {plan.rank}: expected at most {widest:,}, the model's width")
    if plan.sequence > longest:
        raise PomologyError(f"--sequence {plan.sequence}: the model takes {longest:,} at most")
    if plan.layers < 0:
        raise PomologyError(f"--layers {plan.layers}: expected 0, for all blocks, or more")
    if not 0 <= plan.dropout < 1:
        raise PomologyError(f"--dropout {plan.dropout:g}: expected a share from 0 to below 1")
    if plan.amp and plan.precision == "fp32":
        raise PomologyError("--amp: expected --precision bf16 or fp16, that of the passes")
    if plan.amp and plan.method == "qlora":
        raise PomologyError("--amp: QLoRA keeps its weights in 4 bits; expected full or lora")
    _refuse_ignored(options)
    if mlx and (plan.amp or plan.loss != "default"):
        raise PomologyError("--framework mlx: mlx-lm has no --amp and no other --loss")
    if mlx and plan.optimizer in IN_8_BITS:
        raise PomologyError(f"--optimizer {plan.optimizer}: mlx-lm has none in 8 bits")
    return plan


def _refuse_ignored(options: argparse.Namespace) -> None:
    """Raise PomologyError for an option that another one makes useless."""
    if options.no_upcast and (options.method != "qlora" or options.framework == "mlx"):
        raise PomologyError("--no-upcast: expected --method qlora in PyTorch, which casts to fp32")
    default = Plan()
    for field in ("rank", "targets", "layers", "dropout"):
        value = getattr(options, field)
        if options.method == "full" and value and value != getattr(default, field):
            raise PomologyError(f"--{field} {value}: expected --method lora or qlora, not full")


def parse(text: str | None, units: dict[str, float], option: str, example: str) -> float:
    """Return the value of a number with a unit, such as `36GB`, or 0. Raises PomologyError."""
    if not text:
        return 0.0
    number, unit = re.fullmatch(
        r"(\d[\d,_]*\.?\d*(?:[eE][+]?\d{1,2})?|) *(.*)", text.strip(), re.DOTALL
    ).groups()
    value = float(number.replace(",", "").replace("_", "")) if number else 0.0
    unit = unit.casefold()
    if unit not in units or not value or not math.isfinite(value):
        raise PomologyError(f"{option} {one_line(text)}: expected a value such as {example}")
    return value * units[unit]


def step_time(text: str, plan: Plan) -> float:
    """Return an observed speed as seconds per step. Raises PomologyError."""
    rates = dict.fromkeys(STEPS, 1.0) | dict.fromkeys(TOKENS, 1 / plan.tokens)
    example = "93 s/it, 0.4 it/s or 475 tokens/s"
    # mlx-lm prints `Tokens/sec 250`.
    first = re.fullmatch(r" *([a-zA-Z]+/[a-zA-Z]+)[:=]? +([\d.]+) *", text)
    turned = f"{first[2]} {first[1]}" if first else text
    value = parse(turned, PER_STEP | rates, "--observed", example)
    return 1 / value if turned.strip().casefold().endswith(tuple(rates)) else value


def metal_limit(memory_bytes: float) -> float:
    """Return the bytes that Metal lets a program use on a Mac with so much memory.

    Between the sizes of METAL the share is interpolated.
    """
    import numpy as np

    gigabytes = memory_bytes / 2**30
    shares = [1e9 * limit / 2**30 / size for size, limit in METAL.items()]
    return memory_bytes * float(np.interp(gigabytes, list(METAL), shares))


def training_device(options: argparse.Namespace) -> TrainingDevice:
    """Return the device of the command's options, by default this machine's."""
    stated = parse(options.memory, MEMORY, "--memory", "36GB") or None
    in_name = names.mac_memory_gb(options.on or "")
    if in_name:
        in_name *= MEMORY["gb"]
        if stated not in (None, in_name):
            raise PomologyError(f"--on {options.on} --memory {options.memory}: expected one memory")
        stated = in_name
    metal = metal_limit(stated) if stated else None
    gpus = snapshot.gpus()
    if options.on:
        typed = options.on
        if stated and not in_name and names.is_apple(typed):  # the memory may tell its size
            typed = f"{typed} {stated / MEMORY['gb']:g} GB"
        device, name, note = devices.with_data_sheet(typed, gpus, "--on")
        if device.backend == "mps":
            size = f" with {stated / MEMORY['gb']:g} GB" if stated else ""
            return TrainingDevice("mps", device, metal, f"Metal's limit of a Mac{size}", note)
        if options.framework == "mlx":
            raise PomologyError(f"--framework mlx: expected an Apple chip, not --on {options.on}")
        whole = stated or float(names.sheets()[name]["memory_gb"]) * MEMORY["gb"]
        limit = OF_CARD.get(name, OF_OTHER_CARDS) * whole
        words = f"what a program gets of {whole / MEMORY['gb']:g} GiB"
        return TrainingDevice(device.backend, device, limit, words, note)
    device_here = find.find("auto", options.framework)[-1]
    unified = device_here.kind == "gpu" and device_here.unified_memory
    # On the Mac itself Metal is asked.
    limit = (metal if unified else stated) or device_here.free_memory()
    chip = device_here.name
    words = f"for {device_here.title} on {chip or 'this machine'}"
    if device_here.kind == "cpu":
        note = "a CPU has no data sheet"
        return TrainingDevice(device_here.backend, None, limit, words, note, chip)
    try:
        device, _, note = devices.with_data_sheet(device_here.name or "this GPU", gpus)
    except PomologyError as error:
        device, note = None, str(error)
    return TrainingDevice(device_here.backend, device, limit, words, note, chip)


def _needed(name: str, plan: Plan, need: Need, where: TrainingDevice, measured: bool) -> str:
    """Return what a plan needs of what there is. measured: whether that is measured."""
    words = f"{plan.of(networks.title(name))} needs {quantity(need.bytes, 'B')}"
    words += " (measured)" if measured else ""
    if not where.limit:
        return f"{words}; --memory tells whether that fits"
    reserved = offers.with_reserve(need, plan, where)
    if reserved > need.bytes:
        words += f", about {quantity(reserved, 'B')} with CUDA's context and fragmentation"
    share = 100 * offers.share_of(need, plan, where)
    return f"{words}, {share:.0f} % of {quantity(where.limit, 'B')} ({where.limited_by})"


def _time(pace: Pace | None, plan: Plan, where: TrainingDevice, tokens: float) -> list[str]:
    """Return the lines about time. tokens: of the whole training, or 0."""
    if pace is None:
        return [
            f"no time is predicted: {where.note}; --measure times a few blocks here, and --on "
            "names a device with a data sheet"
        ]
    step = pace.step
    with_interval = step.low is not None
    rate = significant(plan.tokens / step.value, 2)
    line = f"takes {seconds(step.value)} per step ("
    line += f"{span(*step.bounds, seconds)}; " if with_interval else "no interval; "
    line += f"{pace.source}): {rate} tokens/s"
    if with_interval:
        line += f" ({' to '.join(_rate(plan, each) for each in (step.high, step.low))})"
    return [line, *_whole(step, plan, tokens)]


def _whole(step: Estimate, plan: Plan, tokens: float) -> list[str]:
    """Return the line about a whole training of so many tokens, none for 0."""
    if not tokens:
        return []
    steps = math.ceil(tokens / plan.tokens)
    ends = step.bounds if step.low is not None else ()
    duration, *others = (times.duration(steps * each) for each in (step.value, *ends))
    between = f" ({' to '.join(others)})" if others else ""
    return [f"  {tokens:,.0f} tokens: {duration}{between}"]


def _rate(plan: Plan, step_s: float) -> str:
    return significant(plan.tokens / step_s, 2) if step_s else "unbounded"


def _measured(name: str, plan: Plan, where: TrainingDevice, counted: Need) -> Measured:
    """Return what is measured now. counted: of the plan. Raises PomologyError if nothing was."""
    records = measured.measure(name, plan, where.backend)
    result = measured.result(records)
    if result is None:
        raise PomologyError(f"--measure: {measured.why_none(records)}")
    if plan.framework == "torch":
        peak = measured.counted_bytes(name, result, counted.bytes, where.backend)
        result = result._replace(bytes=peak)
    return result


def _parts(result: Measured, counted: Need) -> list[str]:
    """Return the lines about what was measured of a block and of the rest."""
    lines = []
    if result.models != [result.every]:
        rest = f"{seconds(result.seconds.rest)} and {quantity(result.memory.rest, 'B')}"
        block = f"{seconds(result.seconds.trained)} and {quantity(result.memory.trained, 'B')}"
        lines.append(f"  a block takes {block}, the rest {rest}")
    folder = measured.folder().name
    lines.append(f"  {quantity(counted.bytes, 'B')} are counted; the cases are in outputs/{folder}")
    if result.flags:
        lines.append(f"  disturbed: {', '.join(result.flags)}")
    return lines


def judged(pace: Pace, observed_s: float, backend: str) -> str:
    """Return how an observed time of a step compares with the expected one, and usual causes."""
    swaps = SWAPS + FALLBACK * (backend == "mps")
    step = pace.step
    ratio = significant(observed_s / step.value, 2)
    line = f"observed {seconds(observed_s)} per step: {ratio} times the {pace.what}"
    if step.low is None:
        return line
    if observed_s < step.low:
        return f"{line}; are its sequences shorter than --sequence?"
    if observed_s <= step.high:
        return f"{line}, within the interval"
    return f"{line}; usual causes: {swaps if observed_s > 10 * step.value else SLOW}"


def _offered(
    offer: offers.Offer | None,
    name: str,
    plan: Plan,
    where: TrainingDevice,
    options: argparse.Namespace,
    tokens: float,
) -> list[str]:
    """Return the lines about what fits instead, with the command to type.

    tokens: of the whole training, or 0.
    """
    if offer is None:
        return ["nothing fits: not even QLoRA with checkpointing, one sequence and 128 tokens"]
    words = quantity(offer.need.bytes, "B")
    if where.limit:
        share = 100 * offers.share_of(offer.need, offer.plan, where)
        reserved = offers.with_reserve(offer.need, offer.plan, where)
        with_cuda = f"about {quantity(reserved, 'B')} with CUDA's, " * (reserved > offer.need.bytes)
        words += f" ({with_cuda}{share:.0f} %)"
    whole: list[str] = []
    if where.device:
        step, _ = times.predict(offer.need, offer.plan, where.device)
        words += f", {seconds(step.value)} per step ({span(*step.bounds, seconds)})"
        whole = _whole(step, offer.plan, tokens)
    tight = ", tight" if offer.verdict == offers.TIGHT else ""
    return [
        f"what {'fits' if where.limit else 'runs'}{tight}: "
        f"{offers.words(plan, offer.plan, where.backend)}: {words}",
        *whole,
        f"  {command(name, offer.plan, options)}",
    ]


def command(name: str, plan: Plan, options: argparse.Namespace) -> str:
    """Return the command of a plan on the device of the options."""
    words = ["pomology", "fit", name, "--method", plan.method]
    words += ["--batch", str(plan.batch), "--sequence", str(plan.sequence)]
    default = Plan()
    for field in ("rank", "targets", "layers", "dropout", "accumulation", "precision"):
        value = getattr(plan, field)
        if value != getattr(default, field) and (plan.method != "full" or field == "accumulation"):
            words += [f"--{field}", str(value)]
    for field in ("optimizer", "loss", "framework"):
        if getattr(plan, field) != getattr(default, field):
            words += [f"--{field}", getattr(plan, field)]
    words += ["--checkpointing"] * plan.checkpointing + ["--amp"] * plan.amp
    if plan.method == "qlora" and plan.framework == "torch" and not plan.upcast:
        words.append("--no-upcast")
    for field in ("on", "memory", "tokens"):
        if getattr(options, field, None):
            words += [f"--{field}", getattr(options, field)]
    return shlex.join(words)


def details(name: str, plan: Plan, need: Need, where: TrainingDevice) -> list[str]:
    """Return the lines about what was counted, and about larger batches and sequences."""
    trained = f"{need.trained:,} of {need.parameters:,} parameters trained"
    if plan.method != "full":
        matrices = ", ".join(counts.of(name, plan, where.backend).matrices)
        depth = networks.depth(networks.find(name))
        adapted = networks.adapted_layers(plan, depth)
        blocks = f" of the last {adapted} blocks" if adapted < depth else ""
        trained = f"rank {plan.rank} on {matrices}{blocks}: {trained}"
    settings = [f"{plan.batch} × {plan.sequence:,} tokens", plan.precision]
    settings += ["autocast of fp32 weights"] * plan.amp + ["upcast"] * plan.upcast
    settings += [plan.optimizer] + [f"{plan.loss} loss"] * (plan.loss != "default")
    settings += [f"{plan.accumulation} passes an update"] * (plan.accumulation > 1)
    settings += ["checkpointing"] * plan.checkpointing
    parts = sorted(need.parts.items(), key=lambda item: -item[1])
    shares = [f"{part} {quantity(size, 'B')}" for part, size in parts if size >= 1]
    lines = [
        f"  {trained}; {', '.join(settings)}",
        f"  when most is allocated: {', '.join(shares)}",
    ]
    if where.limit:
        batch = largest(name, plan, where, "batch")
        line = f"  largest batch of {plan.sequence:,} tokens: {batch:,}"
        if not networks.fixed_sequence(networks.find(name)):
            sequence = largest(name, plan, where, "sequence")
            line += f"; longest sequence at batch {plan.batch}: {sequence:,} tokens"
        lines.append(line)
    return lines


def largest(name: str, plan: Plan, where: TrainingDevice, field: str) -> int:
    """Return the largest batch or sequence that fits, or is tight, or 0. field: which of both."""

    def fits(size: int) -> bool:
        changed = plan._replace(**{field: size})
        need = counts.need(name, changed, where.backend)
        return offers.verdict(need, changed, where) != offers.TOO_LARGE

    most = MOST
    if field == "sequence":  # a model with learned positions runs no longer one
        most = min(MOST, networks.longest(networks.find(name)))
    if fits(most):
        return most
    low, high = 0, 1
    while high < most and fits(high):
        low, high = high, 2 * high
    high = min(high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
