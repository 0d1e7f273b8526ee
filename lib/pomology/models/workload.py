"""A training step: the function that is timed is the function that is counted and verified.

A notebook defines the step once. `count` runs it on PyTorch's `meta` device, where tensors have
shapes but no data, `verify` runs it on a GPU and on the CPU, and the clock times it. A fault in
that one function would agree with itself. So a workload also declares what is expected of a step,
from other sources than its code: the article, the model's paper, or arithmetic. `differences`
compares the two before anything is timed. The loop that is timed is a notebook's own, or that of a
trainer, so its first block is watched, too, and compared after the timing.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any
from unittest import mock

from pomology.models import cost

FLOPS_TOLERANCE = 0.005  # relative; declared FLOPs are often printed with three digits
# Fields of `Counted` that a prediction needs.
PREDICTED = ("convolution_flops", "passed_bytes", "update_bytes", "launches", "resident_bytes")
AUTOCAST_KINDS = ("cpu", "cuda", "mps", "privateuseone")  # devices that have autocast


@dataclass(frozen=True, eq=False, kw_only=True)
class Workload:
    """A model, its optimizer, the inputs and the function of a training step.

    build: returns the model. batch: returns the random inputs of a step of so many samples, as a
    tuple. optimizer: returns the optimizer of a model, or a tuple of what `step` needs. step: makes
    one update with a model, its optimizer and the inputs, and returns the loss: a tensor or a
    number, which may be the first of several values. An inference has no optimizer (None), trains
    0 parameters and returns its outputs.

    Expected of a step, where None declares nothing:
    parameters: number of all parameters. flops_per_sample: FLOPs of forward and backward pass (2
    per MAC) for each sample. optimizer_class: name of the optimizer's class; of several, all.
    slots: the optimizer's tensors per trained weight: 0 for plain SGD, 1 with momentum, 2 for Adam
    and Adadelta. trained: number of trained parameters, by default all. unchanged: patterns of
    names of trained tensors that a step leaves as they are. evaluated: patterns of names of modules
    in evaluation mode. autocast: whether the forward pass runs in autocast.
    saved_bytes_per_sample: bytes that the backward pass keeps; MLX cannot count them.
    moved_bytes_per_sample: bytes that single operators read and write, without the weights and
    their gradients; for MLX, too, and 0 if they are not known.
    differs: what an MLX twin does other than PyTorch, for the note of its cases.
    passes: of an MLX twin, what its epoch has besides training steps: `workload_mlx.Pass`.

    For a count that does not run the whole step:
    layers: number of equal layers of the model, or of other equal parts of a step. with_layers:
    returns the workload with so many of them. Then the step is counted with two and with three, and
    each further layer costs the same. adjust: returns the cost of a step from the counted one, the
    samples and the backend, where the device does other than `meta`: autocast, offload, operations
    that are recomputed and count once. In MLX it adjusts the declared cost; its backend is `mlx`.
    """

    build: Callable[[], Any]
    batch: Callable[[int], tuple]
    optimizer: Callable[[Any], Any]
    step: Callable[..., Any]
    parameters: int | None = None
    flops_per_sample: float | None = None
    optimizer_class: str | None = None
    slots: int | None = None
    trained: int | None = None
    unchanged: Sequence[str] = ()
    evaluated: Sequence[str] = ()
    autocast: bool = False
    saved_bytes_per_sample: float = 0.0
    moved_bytes_per_sample: float = 0.0
    differs: str = ""
    passes: Sequence[Any] = ()
    layers: int = 0
    with_layers: Callable[[int], Workload] | None = None
    adjust: Callable[[cost.Cost, int, str], cost.Cost] | None = None

    def cost(self, batch_size: int, backend: str = "mps") -> cost.Cost:
        """Return the cost of a step of so many samples, without running it; see `count`."""
        return count(self, batch_size, backend).cost


@dataclass
class Seen:
    """What the modules of a model met in their first call: samples, training mode, autocast.

    shapes: module's name -> shape of its first tensor. training: module's name -> mode.
    """

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    training: dict[str, bool] = field(default_factory=dict)
    autocast: set[bool] = field(default_factory=set)


@dataclass
class Counted:
    """The cost of a step, and what the step does: compared with what its workload declares.

    trainable: names of tensors that require a gradient -> their elements and bytes. updated: names
    of weights that the optimizers write to. optimizers: names of their classes. slot_bytes: bytes
    of their states, of tensors in the size of a weight. seen: see `Seen`. These are of the step
    that ran, which may have three layers only. further_trained: trained parameters of the others.

    For a prediction, see PREDICTED. convolution_flops: its FLOPs of convolutions.
    passed_bytes: bytes moved by the operators of the passes. update_bytes: by the optimizers'
    updates. launches: kernels. resident_bytes: weights, buffers, gradients and optimizer states.
    """

    cost: cost.Cost
    batch_size: int
    trainable: dict[str, tuple[int, int]]
    updated: set[str]
    optimizers: list[str]
    slot_bytes: int
    seen: Seen
    further_trained: int = 0
    convolution_flops: int = 0
    passed_bytes: int = 0
    update_bytes: int = 0
    launches: int = 0
    resident_bytes: int = 0

    @property
    def trained(self) -> int:
        """Number of trained parameters."""
        return self.further_trained + sum(elements for elements, _ in self.trainable.values())

    def __str__(self) -> str:
        return str(self.cost)


def updates(optimizer: Any) -> list[Any]:
    """Return the optimizers among what `Workload.optimizer` returns: what has a `step` to patch.

    A gradient scaler, which is none, takes its optimizer in each step.
    """
    return [item for item in _items(optimizer) if hasattr(item, "step") and not _scales(item)]


def scalers(optimizer: Any) -> list[Any]:
    """Return the gradient scalers among what `Workload.optimizer` returns, which are enabled."""
    return [item for item in _items(optimizer) if _scales(item) and item.is_enabled()]


def _items(optimizer: Any) -> Sequence[Any]:
    return optimizer if isinstance(optimizer, (tuple, list)) else (optimizer,)


def _scales(item: Any) -> bool:
    return hasattr(item, "unscale_")


@contextlib.contextmanager
def before_update(optimizers: Sequence[Any], note: Callable[..., Any]) -> Iterator[None]:
    """Call `note(optimizer, step)` in place of each optimizer's `step`, which it may call."""
    with contextlib.ExitStack() as stack:
        for optimizer in optimizers:
            step = functools.partial(note, optimizer, optimizer.step)
            stack.enter_context(mock.patch.object(optimizer, "step", step))
        yield


@contextlib.contextmanager
def watched(model: Any) -> Iterator[Seen]:
    """Note what each module of a PyTorch model meets in its first call inside of the block."""
    import torch

    seen = Seen()
    hooks: list[Any] = []

    def note(name: str, module: Any, arguments: tuple, named: dict) -> None:
        seen.training[name] = module.training
        tensors = cost.tensors(arguments, named)
        if tensors:
            seen.shapes[name] = tuple(tensors[0].shape)
            kind = tensors[0].device.type
            # On `meta`, which has no autocast, a step enters that of the device where it will run.
            kinds = AUTOCAST_KINDS if kind == "meta" else (kind,)
            seen.autocast.add(any(torch.is_autocast_enabled(kind) for kind in kinds))

    try:
        for name, module in model.named_modules():
            hooks.append(_before_first_call(module, functools.partial(note, name)))
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _before_first_call(module: Any, note: Callable[..., None]) -> Any:
    """Have a function called with what a module gets, before its first call; return the hook."""

    def called(module: Any, arguments: tuple, named: dict) -> None:
        hook.remove()  # later calls are as quick as without a hook
        note(module, arguments, named)

    hook = module.register_forward_pre_hook(called, with_kwargs=True)
    return hook


@dataclass
class Trained:
    """What the steps of a PyTorch model's training did in their first timed block.

    watched: names of tensors that require a gradient and whose module was called. graded: of those
    that got one. updated: of those that an optimizer had with a gradient. optimizers: names of the
    optimizers' classes.
    """

    watched: set[str] = field(default_factory=set)
    graded: set[str] = field(default_factory=set)
    updated: set[str] = field(default_factory=set)
    optimizers: set[str] = field(default_factory=set)


@contextlib.contextmanager
def watched_training(model: Any) -> Iterator[Trained]:
    """Note which weights of a PyTorch model get a gradient, and an update, inside of the block."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    trained = Trained()
    names: dict[int, str] = {}  # of weights that were watched; a shared one has its first name
    hooks: list[Any] = []
    stepped: set[int] = set()

    def note_call(prefix: str, module: Any, _arguments: tuple, _named: dict) -> None:
        # Here, since a trainer may move the model to its device first, as other tensors.
        for name, weight in module.named_parameters(prefix, recurse=False):
            if weight.requires_grad and id(weight) not in names:
                names[id(weight)] = name
                trained.watched.add(name)
                note = functools.partial(note_gradient, name)
                hooks.append(weight.register_post_accumulate_grad_hook(note))

    def note_gradient(name: str, _weight: Any) -> None:
        trained.graded.add(name)

    def note_update(optimizer: Any, _arguments: tuple, _named: dict) -> None:
        if id(optimizer) in stepped:
            return
        stepped.add(id(optimizer))
        graded = [id(each) for each in weights_of(optimizer, model) if each.grad is not None]
        updated = {names[weight] for weight in graded if weight in names}
        trained.updated |= updated
        if updated:
            trained.optimizers.add(type(optimizer).__name__)

    hooks.append(register_optimizer_step_post_hook(note_update))
    for name, module in model.named_modules():
        if any(weight.requires_grad for weight in module.parameters(recurse=False)):
            hooks.append(_before_first_call(module, functools.partial(note_call, name)))
    try:
        yield trained
    finally:
        for hook in hooks:
            hook.remove()


def trained_differences(workload: Workload, trained: Trained) -> Iterator[str]:
    """Yield how the timed steps trained other than their workload declares, as sentences."""
    if workload.trained == 0:
        return
    to_update = {name for name in trained.watched if not _matches(name, workload.unchanged)}
    for name in sorted(to_update - trained.graded):
        yield f"the timed steps compute no gradient of {name}"
    # A scaler may leave out the first updates, and a notebook's own optimizer has no hook.
    if not trained.optimizers:
        return
    for name in sorted(to_update - trained.updated):
        yield f"the timed steps do not update {name}"
    for name in sorted(trained.optimizers):
        if workload.optimizer_class not in (None, name):
            yield f"the timed optimizer is {name}, not {workload.optimizer_class}"


@functools.cache  # a notebook shows the cost of its cases, and then runs them
def count(workload: Workload, batch_size: int, backend: str = "mps") -> Counted:
    """Count a step by running it on `meta`.

    backend: where the step will run; see `cost.workload`, which has what is counted.
    """
    counted = _count_layers(workload, batch_size, backend)
    if workload.adjust is None:
        return counted
    return replace(counted, cost=workload.adjust(counted.cost, batch_size, backend))


def _count_layers(workload: Workload, batch_size: int, backend: str, warm: bool = False) -> Counted:
    """Count a step, that of many layers from those of two and of three layers."""
    if workload.with_layers is None or workload.layers <= 3:
        return _count_step(workload, batch_size, backend, warm)
    two, three = (
        _count_step(workload.with_layers(few), batch_size, backend, warm) for few in (2, 3)
    )
    further = workload.layers - 3
    fewer, costs = asdict(two.cost), asdict(three.cost)
    for name, number in costs.items():
        costs[name] += further * (number - fewer[name])
    numbers = {"further_trained": further * (three.trained - two.trained)}
    for name in PREDICTED:
        numbers[name] = getattr(three, name) + further * (getattr(three, name) - getattr(two, name))
    return replace(three, cost=cost.Cost(**costs), **numbers)


@functools.cache
def _count_step(workload: Workload, batch_size: int, backend: str, warm: bool = False) -> Counted:
    """Count a step by running it on `meta`, without `adjust`.

    warm: whether an uncounted step runs before it. The first step of an optimizer creates its
    state, which launches kernels that no later step does.
    """
    import torch

    def clip(*_: Any, **__: Any) -> Any:  # part of the update, too
        return torch.zeros(())

    with (
        torch.device("meta"),
        _without_values(),
        mock.patch("torch.nn.utils.clip_grad_norm_", clip),
    ):
        model = workload.build()
        optimizer = workload.optimizer(model)
        optimizers = updates(optimizer)
        _use_single_operators(optimizers, backend)
        batch = workload.batch(batch_size)
        if warm:
            workload.step(model, optimizer, *batch)
        counter = StepCounter(model, optimizers, backend)
        with counter.running():
            workload.step(model, optimizer, *batch)
    return counter.counted(batch_size)


def _use_single_operators(optimizers: Sequence[Any], backend: str) -> None:
    """Let optimizers update weights by single operators, since `meta` has no fused kernels."""
    for single in optimizers:
        for group in getattr(single, "param_groups", ()):
            if group.get("fused"):
                group["fused"] = False
            if "foreach" in group:  # updates many weights in one kernel, on CUDA alone
                group["foreach"] = backend == "cuda"


class StepCounter:
    """Counts a step of a model on `meta` while it runs.

    counts: FLOPs that PyTorch's counter misses, moved bytes, launches, and the FLOPs before the
    first backward pass. updated: names of weights that the optimizers write to.
    """

    def __init__(self, model: Any, optimizers: Sequence[Any], backend: str):
        self.model = model
        self.optimizers = optimizers
        self.backend = backend
        self.counts: Counter = Counter()
        self.updated: set[str] = set()
        self._passing = True  # in the passes, not in an update

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count the step that runs inside of the block."""
        import torch
        from torch.utils.flop_counter import FlopCounterMode

        formulas = {torch.ops.aten.convolution_backward: cost.convolution_backward_flops}
        self._flop_counter = FlopCounterMode(display=False, custom_mapping=formulas)
        with (
            before_update(self.optimizers, self._on_update),
            watched(self.model) as self._seen,
            self._flop_counter,
            cost.saved_tensors(self.model, self._on_backward) as self._saved,
            cost.traffic(self._on_operator),
            cost.fused_attention(self.backend, self._on_operator),
        ):
            yield

    @property
    def flops(self) -> int:
        """FLOPs so far."""
        return self._flop_counter.get_total_flops() + self.counts["flops"]

    def _on_operator(self, flops: int, moved: int) -> None:
        """Count an operator. flops: those that PyTorch's counter misses."""
        self.counts.update(
            flops=flops, moved=moved if self._passing else 0, launches=int(moved > 0)
        )

    def _on_backward(self) -> None:
        """Note the FLOPs of the forward pass, where a backward pass begins."""
        self.counts.setdefault("forward", self.flops)

    def _on_update(self, _optimizer: Any, step: Callable[..., Any], *arguments: Any) -> Any:
        """Run an optimizer's step, and note which weights it writes to."""
        names = {cost.storage(weight): name for name, weight in self.model.named_parameters()}

        def written(tensor: Any) -> None:
            if cost.storage(tensor) in names:
                self.updated.add(names[cost.storage(tensor)])

        # A fused update moves less than its single operators, see `counted`.
        self._passing = False
        try:
            with cost.writes(written):
                return step(*arguments)
        finally:
            self._passing = True

    def counted(self, batch_size: int) -> Counted:
        """Return what was counted. batch_size: of the step that ran."""
        weights = dict(self.model.named_parameters())
        weight_bytes = sum(weight.nbytes for weight in weights.values())
        trained = {name: weight for name, weight in weights.items() if weight.requires_grad}
        trained_bytes = sum(weight.nbytes for weight in trained.values())
        slot_bytes = sum(map(_slot_bytes, self.optimizers))
        # A fused update reads the gradient, and reads and writes the weight and each slot.
        update_bytes = 3 * trained_bytes + 2 * slot_bytes
        step_cost = cost.Cost(
            parameters=sum(weight.numel() for weight in weights.values()),
            flops=self.flops,
            state_bytes=weight_bytes + trained_bytes + slot_bytes,
            saved_bytes=self._saved["peak"],
            forward_flops=self.counts.get("forward", self.flops),
            moved_bytes=self.counts["moved"] + update_bytes,
        )
        by_operator = self._flop_counter.get_flop_counts().get("Global", {})
        convolutions = [name for name in by_operator if "convolution" in str(name)]
        return Counted(
            cost=step_cost,
            batch_size=batch_size,
            trainable={name: (weight.numel(), weight.nbytes) for name, weight in trained.items()},
            updated=self.updated,
            optimizers=[type(single).__name__ for single in self.optimizers],
            slot_bytes=slot_bytes,
            seen=self._seen,
            convolution_flops=sum(by_operator[name] for name in convolutions),
            passed_bytes=self.counts["moved"],
            update_bytes=update_bytes,
            launches=self.counts["launches"],
            resident_bytes=self._resident_bytes(),
        )

    def _resident_bytes(self) -> int:
        """Return the bytes of weights, buffers, gradients and the optimizers' states."""
        weights = list(self.model.parameters())
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        states = [list(getattr(single, "state", {}).values()) for single in self.optimizers]
        resident = [*weights, *self.model.buffers(), *gradients, *cost.tensors(*states)]
        return sum(tensor.nbytes for tensor in resident)


def count_warm(workload: Workload, batch_size: int, backend: str = "mps") -> Counted:
    """Count a step that is not the first one, for a prediction of its time."""
    return _count_layers(workload, batch_size, backend, warm=True)


def _slot_bytes(optimizer: Any) -> int:
    """Return the bytes of an optimizer's state in the size of its weights, without its counters."""
    sizes = (
        tensor.nbytes
        for weight, state in getattr(optimizer, "state", {}).items()
        for tensor in cost.tensors(state)
        if tensor.shape == weight.shape
    )
    return sum(sizes)


def weights_of(optimizer: Any, model: Any) -> list[Any]:
    """Return the weights that an optimizer updates; a notebook's own may not list them."""
    if not hasattr(optimizer, "param_groups"):
        return list(model.parameters())
    return [weight for group in optimizer.param_groups for weight in group["params"]]


@contextlib.contextmanager
def _without_values() -> Iterator[None]:
    """Let `item` of a tensor on `meta`, which has no values, return 0."""
    import torch

    item = torch.Tensor.item

    def value(tensor: Any) -> Any:
        return 0.0 if tensor.is_meta else item(tensor)

    with mock.patch.object(torch.Tensor, "item", value):
        yield


def differences(workload: Workload, counted: Counted) -> Iterator[str]:
    """Yield what a counted step does other than its workload declares, as sentences."""
    parameters, flops = counted.cost.parameters, counted.cost.flops
    if workload.parameters not in (None, parameters):
        yield f"the model has {parameters:,} parameters, not {workload.parameters:,}"
    expected = workload.parameters if workload.trained is None else workload.trained
    if expected not in (None, counted.trained):
        yield f"{counted.trained:,} parameters are trained, not {expected:,}"
    if workload.flops_per_sample is not None:
        expected = workload.flops_per_sample * counted.batch_size
        if abs(flops - expected) > FLOPS_TOLERANCE * expected:
            counts = f"{flops / 1e9:,.4g} GFLOP, not {expected / 1e9:,.4g}"
            yield f"a step has {counts} as declared ({100 * FLOPS_TOLERANCE:g} % may differ)"
    for name in counted.optimizers:
        if workload.optimizer_class not in (None, name):
            yield f"the optimizer is {name}, not {workload.optimizer_class}"
    if not counted.optimizers and workload.trained != 0:
        yield "the step has no optimizer"
    if workload.slots is not None:
        updated = [counted.trainable[name] for name in counted.updated & counted.trainable.keys()]
        expected = workload.slots * sum(size for _, size in updated)
        if counted.slot_bytes != expected:
            yield f"the optimizer's state has {counted.slot_bytes:,} bytes, not {expected:,}"
    to_update = {name for name in counted.trainable if not _matches(name, workload.unchanged)}
    for name in sorted(to_update - counted.updated):
        yield f"a step does not update {name}"
    for name in sorted(counted.updated - to_update):
        yield f"a step updates {name}, which it should leave"
    yield from seen_differences(workload, counted.seen)


def seen_differences(
    workload: Workload, seen: Seen, reference: Seen | None = None
) -> Iterator[str]:
    """Yield how modules were called other than declared, or than in a reference step."""
    for name, training in seen.training.items():
        if training == _matches(name, workload.evaluated):
            mode = "training" if training else "evaluation"
            yield f"the module {name or 'itself'} is in {mode} mode"
    if workload.autocast and True not in seen.autocast:
        yield "the forward pass does not run in autocast"
    if not workload.autocast and True in seen.autocast:
        yield "the forward pass runs in autocast"
    for name, shape in reference.shapes.items() if reference else ():
        if seen.shapes.get(name, shape) != shape:
            yield f"the module {name or 'itself'} gets {seen.shapes[name]}, not {shape}"


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
