"""Memory and work of a training step as polynomials of its batch, sequence and rank."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from pomology.errors import PomologyError
from pomology.extras.fit import experts, networks, standins, timeline
from pomology.extras.fit.plan import IN_8_BITS, Plan
from pomology.extras.fit.timeline import DEQUANTIZED, MIDDLE, SHORT, UPDATE, Event, Timeline
from pomology.format import one_line
from pomology.models import cost

# The sizes of all tensors of a step are sums of these terms, of its batch b, sequence s and rank r.
TERMS = ("1", "b", "s", "b s", "s s", "b s s", "r", "b s r")
PAIRS = TERMS.index("b s s")  # of queries and keys
BATCHES = (2, 3)
SEQUENCES = 3  # multiples of the shortest counted one
SHORTEST = 64
RANKS = (8, 16)
TOLERANCE = 1e-3  # of the largest number, by which the terms may miss one
# What steps of the same counts may differ in.
ANY = {"batch": 1, "sequence": 1, "rank": 1, "accumulation": 1}
# Parts of names of architectures, or of their settings, of blocks with a loop over the words.
RECURRENT = ("mamba", "jamba", "ssm_", "rwkv", "xlstm", "linear_conv")
DEPENDS = "its operators depend on the length of the sequence"
LARGE = 2.5e9  # parameters, from which on a step does not fit some cards
TABLE = Path(__file__).with_name("counts.jsonl")


class Need(NamedTuple):
    """Bytes at the moment of a training step when most is allocated, and the step's work.

    parameters: without adapters. parts: bytes of weights, gradients, optimizer, activations (with
    temporary tensors) and logits (tensors over the vocabulary). bytes: their sum. work: of all
    passes, flops (those of attention among them, of all queries with all keys), bytes that
    operators read and write, elements of matrices that are dequantized, and launches; the update's
    launches, too.
    """

    parameters: int
    trained: int
    parts: dict[str, float]
    bytes: float
    work: dict[str, float]


class Counts(NamedTuple):
    """A model's steps, as coefficients of TERMS.

    matrices: last names of those that LoRA adapts. moments: coefficients by kind of tensor, for
    each moment at which most may be allocated.
    """

    matrices: list[str]
    parameters: int
    trained: list[float]
    moments: list[dict[str, list[float]]]
    work: dict[str, list[float]]

    def need(self, plan: Plan) -> Need:
        """Return what a step of a plan needs."""
        values = terms(plan)
        trained = round(np.dot(self.trained, values))
        moments = [
            {kind: float(np.dot(each, values)) for kind, each in moment.items()}
            for moment in self.moments
        ]
        if plan.accumulation > 1:  # the gradients of the passes before are there all the time
            whole = {"gradients": float(trained * plan.gradient_bytes)}
            moments = [moment | whole for moment in moments]
        most = max(moments, key=lambda moment: sum(moment.values()))
        work = {name: float(np.dot(each, values)) for name, each in self.work.items()}
        passes = {
            "flops": work["flops"],
            "attention": self.work["flops"][PAIRS] * values[PAIRS],
            "bytes": work["bytes"],
            "dequantized": work.get(DEQUANTIZED, 0.0),
            "launches": work["launches"],
        }
        every = {name: plan.accumulation * number for name, number in passes.items()}
        return Need(
            parameters=self.parameters,
            trained=trained,
            parts=most,
            bytes=sum(most.values()),
            work=every | {"launches": every["launches"] + work[UPDATE]},
        )


def terms(plan: Plan) -> np.ndarray:
    """Return the values of TERMS for a plan."""
    tokens = plan.batch * plan.sequence
    squares = plan.sequence**2, tokens * plan.sequence
    rank = 0 if plan.method == "full" else plan.rank
    return np.array([1, plan.batch, plan.sequence, tokens, *squares, rank, tokens * rank], float)


def of(name: str, plan: Plan, backend: str) -> Counts:
    """Return the counts of a model's steps, from the table or counted now, which takes seconds.

    name: see `networks.find`. backend: where the step will run. Raises PomologyError.
    """
    return _of_any_shape(name, alike(plan), backend)


def alike(plan: Plan) -> Plan:
    """Return the same plan for all that have the same counts.

    fp16 is counted as bf16: on `meta`, some operators are made for that alone.
    """
    half = "bf16" if plan.precision == "fp16" else plan.precision
    return plan._replace(precision=half, **ANY)


@functools.cache
def _of_any_shape(name: str, plan: Plan, backend: str) -> Counts:
    return stored(name, plan, backend) or count(networks.find(name), plan, backend)


def stored(name: str, plan: Plan, backend: str) -> Counts | None:
    """Return the counts of the table, or None."""
    kept = table().get(key(name, plan, backend))
    if kept is None and plan.targets:
        # The default matrices may be named, too.
        default = table().get(key(name, plan._replace(targets=""), backend))
        names = {matrix.rpartition(".")[2] for matrix in default.matrices} if default else set()
        kept = default if names == set(plan.targets.split(",")) else None
    return kept


def need(name: str, plan: Plan, backend: str) -> Need:
    """Return what a step needs, see `of`."""
    return of(name, plan, backend).need(plan)


@functools.cache
def bytes_of_step(name: str, plan: Plan, backend: str) -> float:
    """Return the most bytes of one pass and its update, 0 if they are not counted.

    That is `need(...).bytes`, or a little less, by an eighth of the work: the sequence is shortened
    to parts of a loss of equal size, and a batch of one has fewer copies.
    """
    try:
        with _without_warnings():
            model = ShortModel(networks.find(name), plan, backend)
            parts = networks.loss_parts(model.network, plan)
            step = model.step(plan.batch, plan.sequence // parts * parts)
    except Exception:  # of any type, see `count`, which says why
        return 0.0
    live = itertools.accumulate(event.size for event in step.events)
    return max(size for size, event in zip(live, step.events, strict=True) if not event.inside)


def key(name: str, plan: Plan, backend: str) -> str:
    """Return the key of a model's counts in the table, the same for all shapes and both halves."""
    values = alike(plan)
    # Only what differs from the default is written.
    default = Plan(**ANY)._asdict()
    changed = [
        f"{field}={value}" for field, value in values._asdict().items() if value != default[field]
    ]
    return " ".join([name, backend, *changed])


def tabled(row: Mapping[str, str]) -> Iterator[tuple[str, Plan]]:
    """Yield the backends and plans of which the table has a model's counts.

    row: of models.csv. Of large language models these are also the plans that are offered where
    QLoRA with checkpointing does not fit, and on a CPU those that are where LoRA does not fit.
    """
    config = networks.configurations()[row["name"]]
    is_text = networks.is_language_model(config)
    is_large = int(row["parameters"]) >= LARGE
    for checkpointing in (False, True):
        plan = Plan(checkpointing=checkpointing)
        for backend in ("cuda", "mps"):
            yield backend, plan
            yield backend, plan._replace(method="full")
        yield "cuda", plan._replace(method="full", optimizer="adamw8bit")
        yield "cuda", plan._replace(method="qlora", upcast=True)
        if not networks.not_in_mlx(config):
            yield "mps", plan._replace(framework="mlx")
            yield "mps", plan._replace(framework="mlx", method="qlora")
    if is_text:
        yield "cpu", Plan()
        yield "cpu", Plan(checkpointing=True)
    if is_text and is_large:
        yield "cpu", Plan("qlora")
        yield "cpu", Plan("qlora", checkpointing=True)
        other = Plan("qlora", checkpointing=True)
        yield "cuda", other
        yield "cuda", other._replace(loss="fused")
        yield "cuda", other._replace(loss="fused", upcast=True)


@functools.cache
def table() -> dict[str, Counts]:
    """Return the counts of counts.jsonl, which `setup/fit.py counts` writes, by `key`."""
    counts = {}
    if TABLE.exists():
        for line in TABLE.read_text(encoding="utf-8").splitlines():
            name, *values = json.loads(line)
            counts[name] = Counts(*values)
    return counts


def telling(counts: Counts) -> Counts:
    """Return counts with the moments alone that are the largest of some step, and whole bytes.

    They are those of all batches up to 64, sequences to 262,144 tokens and ranks to 256 in powers
    of two.
    """
    shapes = itertools.product(range(7), range(4, 19), range(0, 9, 2))
    plans = [Plan(batch=2**b, sequence=2**s, rank=2**r) for b, s, r in shapes]
    sums = np.array([np.sum(list(moment.values()), axis=0) for moment in counts.moments])
    most = (np.array([terms(plan) for plan in plans]) @ sums.T).argmax(axis=1)
    moments = [
        {kind: [round(number) for number in numbers] for kind, numbers in moment.items()}
        for index, moment in enumerate(counts.moments)
        if index in most
    ]
    work = {name: [round(number) for number in each] for name, each in counts.work.items()}
    trained = [round(number) for number in counts.trained]
    return Counts(counts.matrices, counts.parameters, trained, moments, work)


def count(config: Mapping[str, Any], plan: Plan, backend: str) -> Counts:
    """Count a model's steps of all batches, sequences and ranks by a few short ones.

    config: of transformers. backend: where the step will run. Raises PomologyError if the model is
    not counted.
    """
    name = config["architectures"][0]
    if any(word in key.lower() for key in (name, *config) for word in RECURRENT):
        raise PomologyError(f"{name}: this architecture is not counted: {DEPENDS}")
    try:
        with _without_warnings():
            return _count(config, plan, backend)
    except (PomologyError, ImportError):
        raise
    except Exception as error:  # what an architecture does on `meta` can raise any type
        reason = one_line(" ".join(str(error).split()), 120)
        if plan.precision == "fp32" and "BFloat16" in reason:
            raise PomologyError(
                f"{name}: not counted in fp32: on PyTorch's device `meta` its experts run in half "
                "precision alone; expected --precision bf16"
            ) from None
        reason = f"its step fails on PyTorch's device `meta` ({reason})"
        raise PomologyError(f"{name}: this architecture is not counted: {reason}") from None


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Say nothing of matrices that a whole model has, and a short one lacks, as peft does."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The following (rank|alpha)_pattern keys")
        yield


def _count(config: Mapping[str, Any], plan: Plan, backend: str) -> Counts:
    shortest = max(1, min(SHORTEST, networks.longest(config) // SEQUENCES))
    steps = []
    for rank in RANKS[: 1 if plan.method == "full" else None]:
        model = ShortModel(config, plan._replace(rank=rank), backend)
        # The parts of a loss are of equal size if they divide the tokens.
        multiple = networks.loss_parts(model.network, plan)
        least = multiple * -(-shortest // multiple)
        sequences = [least * number for number in range(1, 1 + SEQUENCES)]
        shapes = list(itertools.product(BATCHES, sequences))
        # What has the rank as a factor follows from two shapes.
        some = shapes if rank == RANKS[0] else [shapes[0], shapes[-1]]
        steps += [model.step(batch, sequence) for batch, sequence in some]
    if len({tuple((kind, inside) for kind, _, inside in step.events) for step in steps}) > 1:
        name = config["architectures"][0]
        raise PomologyError(f"{name}: this architecture is not counted: {DEPENDS}")
    moments = _moments(steps)
    names = steps[0].work
    work = {name: _solved(steps, [step.work[name] for step in steps]) for name in names}
    trained = _solved(steps, [step.trained for step in steps])
    return Counts(
        matrices=model.matrices,
        parameters=steps[0].parameters,
        trained=trained.tolist(),
        moments=moments,
        work={name: each.tolist() for name, each in work.items()},
    )


class Step(NamedTuple):
    """What a step of a short model did, in numbers of the whole model."""

    plan: Plan
    events: list[Event]
    work: Mapping[str, float]
    parameters: int
    trained: int


class ShortModel:
    """A model with at most SHORT blocks, whose middle one stands for others.

    Blocks before the first one with adapters keep nothing for a backward pass: they have weights,
    and run forward as the first one does.
    """

    def __init__(self, config: Mapping[str, Any], plan: Plan, backend: str):
        self.plan = plan
        self.backend = backend
        key = networks.depth_key(config)
        depth = networks.depth(config)
        adapted = networks.adapted_layers(plan, depth)
        built = min(adapted, SHORT)
        self.network = networks.build(shortened(config, key, built), plan, backend)
        self.blocks = timeline.list_of_blocks(self.network, built) if key else ""
        if key and not self.blocks:  # every block is needed
            self.network = networks.build(config, plan, backend)
        self.times = adapted - SHORT + 1 if self.blocks and built == SHORT else 1
        self.frozen = depth - adapted if self.blocks else 0
        if self.frozen:
            self._refuse_other_first_blocks(config)
        self.trained = {
            name: weight for name, weight in self.network.named_parameters() if weight.requires_grad
        }
        adapters = [name for name in self.trained if "lora_A" in name]
        self.matrices = list(
            dict.fromkeys(experts.matrix(name.split(".lora_A")[0]) for name in adapters)
        )
        self.optimizer = _optimizer(plan, list(self.trained.values()), backend)

    def _refuse_other_first_blocks(self, config: Mapping[str, Any]) -> None:
        """Raise PomologyError where the first block, which stands for others, has other sizes."""
        blocks = list(self.network.get_submodule(self.blocks))
        sizes = [
            sum(weight.numel() for name, weight in block.named_parameters() if "lora_" not in name)
            for block in (blocks[0], blocks[-1])
        ]
        if sizes[0] != sizes[1] or config.get("first_k_dense_replace"):
            name = config["architectures"][0]
            why = "its first blocks are of another kind; expected adapters on all (no --layers)"
            raise PomologyError(f"{name}: {why}")

    def step(self, batch: int, sequence: int) -> Step:
        """Return what a step of so many sequences of so many tokens does."""
        plan = self.plan._replace(batch=batch, sequence=sequence)
        network = self.network
        text = network.config.get_text_config()
        notes = Timeline(getattr(text, "vocab_size", 0), self.times, self.frozen)
        self._note_resident(notes)
        hooks = [
            weight.register_post_accumulate_grad_hook(notes.is_gradient)
            for weight in self.trained.values()
        ]
        if self.blocks:
            hooks += timeline.watch(network.get_submodule(self.blocks), notes)
        inputs = networks.inputs_of(network, plan)
        with (
            without_garbage(),
            cost.fused_attention(self.backend, notes.computed),
            mock.patch("torch.Tensor.item", lambda _: 1.0),
            notes.watching(),
        ):
            loss = networks.loss_of(network, plan, inputs, self.backend)
            notes.phase = "backward"
            loss.backward()
            del loss
            notes.phase, notes.in_block = "update", None
            self.optimizer.step()
        events = list(notes.events)
        for hook in hooks:
            hook.remove()
        for weight in self.trained.values():
            weight.grad = None
        return Step(plan, events, notes.work, *self._parameters())

    def _note_resident(self, notes: Timeline) -> None:
        """Note what is allocated before a step."""
        buffers = self.network.named_buffers()
        for name, tensor in itertools.chain(self.network.named_parameters(), buffers):
            middle = self._is_middle(name)
            bits = getattr(tensor, "bits", None)
            size = tensor.numel() * bits / 8 if bits else None
            notes.allocated(tensor, "weights", middle, size)
            if self.frozen and name.startswith(f"{self.blocks}.0.") and "lora_" not in name:
                size = tensor.nbytes if size is None else size
                notes.events.append(Event("weights", self.frozen * size, False))
            for state in cost.tensors(self.optimizer.state.get(tensor, {})):
                notes.allocated(state, "optimizer", middle)

    def _parameters(self) -> tuple[int, int]:
        """Return the whole model's numbers of parameters without adapters, and of trained ones."""
        parameters = trained = 0
        for name, weight in self.network.named_parameters():
            times = self.times if self._is_middle(name) else 1
            if name in self.trained:
                trained += times * weight.numel()
            if self.frozen and name.startswith(f"{self.blocks}.0."):
                times += self.frozen
            if "lora_" not in name:
                parameters += times * weight.numel()
        return parameters, trained

    def _is_middle(self, name: str) -> bool:
        return self.times != 1 and name.startswith(f"{self.blocks}.{MIDDLE}.")


@contextlib.contextmanager
def without_garbage() -> Iterator[None]:
    """Collect no garbage meanwhile, which would free tensors at any moment."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def shortened(config: Mapping[str, Any], key: str, depth: int) -> dict[str, Any]:
    """Return the configuration of a model with fewer blocks. key: of their number."""
    short = dict(config)
    if key:
        short[key] = depth
    for name in ("layer_types", "mlp_layer_types"):  # an entry for each block
        if key and short.get(name):
            short[name] = short[name][:depth]
    return short


def _optimizer(plan: Plan, weights: list[Any], backend: str) -> Any:
    """Return a plan's optimizer, with its state."""
    import torch

    if plan.optimizer in IN_8_BITS:
        return standins.In8Bits(weights, paged=plan.optimizer != "adamw8bit")
    sgd = plan.optimizer == "sgd"
    kind = torch.optim.SGD if sgd else torch.optim.AdamW
    optimizer = kind(weights, fused=False, **({"momentum": 0.9} if sgd else {}))
    for group in optimizer.param_groups:
        group["foreach"] = backend == "cuda"
    # The first update creates the state.
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    with mock.patch("torch.Tensor.item", lambda _: 1.0):
        optimizer.step()
    for weight in weights:
        weight.grad = None
    return optimizer


def _moments(steps: Sequence[Step]) -> list[dict[str, list[float]]]:
    """Return the moments at which most may be allocated, see `Counts`."""
    sizes = np.array([[event.size for event in step.events] for step in steps])
    coefficients = _solved(steps, sizes)
    events = steps[0].events
    kinds = sorted({event.kind for event in events})
    of_kind = np.array([[event.kind == kind for event in events] for kind in kinds])
    live = np.cumsum(of_kind[:, :, None] * coefficients.T[None], axis=1)
    live = np.where(np.abs(live) < 1e-4, 0.0, live)
    ends = [number for number, event in enumerate(events) if not event.inside]
    moments = []
    for number in _undominated(live.sum(axis=0), ends):
        moment = {kind: live[index, number] for index, kind in enumerate(kinds)}
        moments.append(
            {kind: each.round(4).tolist() for kind, each in moment.items() if each.any()}
        )
    return moments


def _undominated(sums: np.ndarray, numbers: Sequence[int]) -> list[int]:
    """Return the rows of which no other one has all coefficients as large."""
    kept: list[int] = []
    order = sorted(numbers, key=lambda number: -sums[number].sum())
    for number in order:
        row = sums[number] - 1.0  # a byte is no difference
        if not any((sums[other] >= row).all() for other in kept):
            kept.append(number)
    return kept


def _solved(steps: Sequence[Step], numbers: Any) -> np.ndarray:
    """Return the coefficients of TERMS for numbers of each step. Raises PomologyError."""
    left = np.array([terms(step.plan) for step in steps])
    right = np.asarray(numbers, float)
    scale = np.maximum(left.max(axis=0), 1)
    solution = np.linalg.lstsq(left / scale, right, rcond=None)[0]
    missed = np.abs(left / scale @ solution - right).max(initial=0)
    if missed > TOLERANCE * np.abs(right).max(initial=1):
        raise PomologyError("its sizes are no polynomials of batch, sequence and rank")
    return (solution.T / scale).T
