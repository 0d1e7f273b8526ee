"""What a workload's step does in MLX, which has no `meta` device: one small step is observed.

The step of a twin is compared with what its workload declares, as `workload.differences` does for
PyTorch. FLOPs and kept activations cannot be counted in MLX, so a twin declares them, and a test
compares these with PyTorch's count of the same model.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from pomology.models import cost, verify_compiled
from pomology.models.workload import Counted, Seen, Workload

SMALL = 2  # samples of the observed step at most; batch normalization needs two


@dataclass(frozen=True)
class Pass:
    """What an epoch has besides training steps, such as its evaluation: steps without an update.

    name: of the timed part. call: called with the model, which is in evaluation mode, and a batch;
    returns what is to be computed. batch: returns the random inputs of so many samples, as a tuple.
    steps: of an epoch.
    """

    name: str
    call: Callable[..., Any]
    batch: Callable[[int], tuple]
    batch_size: int
    steps: int


def initialized(optimizer: Any, model: Any) -> Any:
    """Return an optimizer with its state for a model's trained weights, as `mx.compile` needs."""
    optimizer.init(model.trainable_parameters())
    mx.eval(optimizer.state)  # else the first timed step would fill it
    return optimizer


def one_update(loss_function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the step of a training with one loss: its gradients, and one update by them.

    loss_function: of a model and the inputs. A training with several losses, or that clips its
    gradients, has a step of its own.
    """

    def step(model: Any, optimizer: Any, *inputs: Any) -> Any:
        loss, gradients = nn.value_and_grad(model, loss_function)(model, *inputs)
        optimizer.update(model, gradients)
        return loss

    return step


def optimizers_of(optimizer: Any) -> list[Any]:
    """Return the optimizers that `Workload.optimizer` returns, one or several."""
    return list(optimizer) if isinstance(optimizer, (tuple, list)) else [optimizer]


def compiled(
    case: Any, workload: Workload, model: Any, optimizer: Any, always: bool = False
) -> Callable[..., float]:
    """Return the step as it is timed: evaluated, and on a GPU compiled into one graph.

    It returns its loss. On a GPU it is compared with the plain step at the end of the case. On a
    CPU `mx.compile` calls a C++ compiler for each kernel, which takes longer than all steps.
    always: compile on a CPU, too.
    """
    state = [model.state, *(single.state for single in optimizers_of(optimizer)), mx.random.state]

    def plain(*batch: Any) -> Any:
        return workload.step(model, optimizer, *batch)

    on_gpu = case.backend.kind == "gpu"
    update = mx.compile(plain, inputs=state, outputs=state) if on_gpu or always else plain
    if on_gpu:
        batch = functools.partial(workload.batch, case["batch_size"])
        verify_compiled.at_end(case, model, (plain, update), batch, state)
    elif not always:
        case.note("not compiled as a whole")

    def step(*batch: Any) -> float:
        loss = update(*batch)
        mx.eval(loss, state)
        return loss.item()

    mx.eval(state)
    return step


def compiled_pass(case: Any, model: Any, call: Callable[..., Any]) -> Callable[..., None]:
    """Return the call of a `Pass` as it is timed: evaluated, and on a GPU compiled."""

    def run(*batch: Any) -> Any:
        return call(model, *batch)

    if case.backend.kind == "gpu":
        run = mx.compile(run, inputs=model.state)
    return lambda *batch: mx.eval(run(*batch))


def declared_cost(workload: Workload, batch_size: int) -> cost.Cost:
    """Return the cost of a step as its workload declares it, in fp32, and adjusts it.

    Both passes read the weights, and the backward pass writes their gradients. A fused update reads
    the gradient, and reads and writes the weight and each slot.
    """
    trained = workload.parameters if workload.trained is None else workload.trained
    moved_bytes = None
    if workload.moved_bytes_per_sample:
        fixed = 4 * (2 * workload.parameters + (1 + 3 + 2 * workload.slots) * trained)
        moved_bytes = fixed + round(workload.moved_bytes_per_sample * batch_size)
    declared = cost.Cost(
        parameters=workload.parameters,
        flops=round(workload.flops_per_sample * batch_size),
        state_bytes=4 * (workload.parameters + (1 + workload.slots) * trained),
        saved_bytes=round(workload.saved_bytes_per_sample * batch_size),
        moved_bytes=moved_bytes,
    )
    return workload.adjust(declared, batch_size, "mlx") if workload.adjust else declared


def also_moves(more: int) -> Callable[[cost.Cost, int, str], cost.Cost]:
    """Return an `adjust` of a workload: a step of any batch size moves so many bytes more.

    Negative where a pass does not read all weights.
    """

    def adjust(declared: cost.Cost, _batch_size: int, _backend: str) -> cost.Cost:
        return replace(declared, moved_bytes=declared.moved_bytes + more)

    return adjust


@contextlib.contextmanager
def watched(model: Any) -> Iterator[Seen]:
    """Note what each module of a model meets in its first call inside of the block."""
    names = {id(module): name for name, module in model.named_modules()}
    seen = Seen(autocast={False})  # MLX has none

    def noted(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(module: Any, *arguments: Any, **named: Any) -> Any:
            name = names.get(id(module))
            if name is not None and name not in seen.training:
                seen.training[name] = module.training
                arrays = [leaf for _, leaf in tree_flatten([arguments, named])]
                shapes = [leaf.shape for leaf in arrays if isinstance(leaf, mx.array)]
                seen.shapes |= {name: tuple(shapes[0])} if shapes else {}
            return call(module, *arguments, **named)

        return called

    with contextlib.ExitStack() as stack:
        for kind in {type(module) for module in model.modules()}:
            call = getattr(kind, "__call__", None)  # noqa: B004 (a container has none)
            if call:
                stack.enter_context(mock.patch.object(kind, "__call__", noted(call)))
        yield seen


@contextlib.contextmanager
def before_update(optimizers: Sequence[Any], note: Callable[..., Any]) -> Iterator[None]:
    """Call `note(optimizer, update, model, gradients)` in place of each optimizer's `update`."""
    with contextlib.ExitStack() as stack:
        for optimizer in optimizers:
            update = functools.partial(note, optimizer, optimizer.update)
            stack.enter_context(mock.patch.object(optimizer, "update", update))
        yield


def observe(workload: Workload, model: Any, batch_size: int = SMALL) -> Counted:
    """Run a step of few samples with an optimizer of its own; the model stays as it was.

    A tensor counts as updated if its gradient has an element that is not 0.
    """
    samples = min(SMALL, batch_size)
    weights = model.parameters()
    names = {}
    for name, array in tree_flatten(model.trainable_parameters()):
        names[name] = (array.size, array.nbytes)
    updated: set[str] = set()
    paths = {id(module): name for name, module in model.named_modules()}

    def note(_optimizer: Any, update: Callable[..., Any], part: Any, gradients: Any) -> None:
        prefix = paths[id(part)]
        for name, gradient in tree_flatten(gradients):
            if mx.any(gradient != 0).item():
                updated.add(f"{prefix}.{name}" if prefix else name)
        update(part, gradients)

    optimizer = workload.optimizer(model)
    optimizers = optimizers_of(optimizer)
    with before_update(optimizers, note), watched(model) as seen:
        loss = workload.step(model, optimizer, *workload.batch(samples))
        mx.eval(loss, model.parameters())
    model.update(weights)
    sizes = {array.shape for _, array in tree_flatten(weights)}
    slot_bytes = 0
    for single in optimizers:
        for _, array in tree_flatten(single.state):
            if isinstance(array, mx.array) and array.shape in sizes:
                slot_bytes += array.nbytes
    counted = declared_cost(workload, samples)
    kinds = [type(single).__name__ for single in optimizers]
    return Counted(counted, samples, names, updated, kinds, slot_bytes, seen)


def samples_difference(seen: Seen, observed: Counted, batch_size: int) -> Iterator[str]:
    """Yield whether the first module got another number of samples than a step declares."""
    small = observed.seen
    first = next(iter(small.shapes), None)
    if first is None or first not in seen.shapes:
        return
    factor = batch_size / observed.batch_size
    # The dimension of the samples may be any, so the numbers of elements are compared.
    if math.prod(seen.shapes[first]) != factor * math.prod(small.shapes[first]):
        expected = f"{factor:g} times {small.shapes[first]}"
        yield f"the module {first or 'itself'} gets {seen.shapes[first]}, not {expected}"
