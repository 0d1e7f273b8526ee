"""Count the work of a training step of a PyTorch module: operations, bytes, launches and memory.

The step runs once on PyTorch's `meta` device, where tensors have shapes but no contents. Nothing is
trained or measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.models import cost

# The size of an element in the forward and backward pass, relative to fp32.
PRECISIONS = {"fp32": 1.0, "bf16": 0.5, "fp16": 0.5}


class Work(NamedTuple):
    """The analytic work of a step; 1 MAC is 2 operations."""

    convolutions: float  # operations
    products: float  # operations of matmuls and attention
    bytes: float  # read and written by each operator, without fusion
    launches: float  # kernels
    memory_bytes: float = 0  # weights, gradients, optimizer state, and tensors kept by autograd

    @property
    def flops(self) -> float:
        return self.convolutions + self.products


def adam(module: Any) -> list[Any]:
    """Return a list with the default optimizer of a user's model, Adam."""
    import torch

    return [torch.optim.Adam(weight for weight in module.parameters() if weight.requires_grad)]


def step(inputs: Sequence[Any], loss: Callable[[Any], Any] | None = None) -> Callable[[Any], None]:
    """Return a function that runs a module forward and backward on inputs.

    loss: a function of the module's output; the default is the sum of the means of all outputs.
    """

    def run(module: Any) -> None:
        output = module(*inputs)
        tensors = [tensor for tensor in cost.tensors(output) if tensor.requires_grad]
        if not tensors:
            raise PomologyError("the model's output does not depend on its weights")
        value = loss(output) if loss else sum(tensor.mean() for tensor in tensors)
        value.backward()

    return run


def count(
    module: Any,
    step: Callable[[Any], None],
    optimizers: Callable[[Any], list[Any]] = adam,
    precision: str = "fp32",
    backend: str = "mps",
) -> Work:
    """Count a training step without running it.

    step: runs the module forward and backward on `meta`. optimizers: returns the optimizers of the
    module, with state in fp32. precision: of the pass. backend: of the predicted device. Raises
    PomologyError for an unknown precision.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    if precision not in PRECISIONS:
        raise PomologyError(f"{one_line(precision)}: expected one of {', '.join(PRECISIONS)}")
    size = PRECISIONS[precision]
    module.to("meta").train()
    passed: Counter = Counter()
    updated: Counter = Counter()

    def note_attention(flops: int, moved: int) -> None:
        passed.update(products=flops, bytes=moved, launches=1)

    formulas = {torch.ops.aten.convolution_backward: _convolution_backward}
    counter = FlopCounterMode(display=False, custom_mapping=formulas)
    saving = cost.saved_tensors(module)
    fused = cost.fused_attention(backend, note_attention)
    with torch.device("meta"), saving as saved, counter, _traffic(passed), fused:
        step(module)
    for operator, flops in counter.get_flop_counts().get("Global", {}).items():
        passed["convolutions" if "convolution" in str(operator) else "products"] += flops
    tensors = [*module.parameters(), *module.buffers()]
    tensors += [weight.grad for weight in module.parameters() if weight.grad is not None]
    update = 0.0
    for optimizer in optimizers(module):
        trained = []
        for group in optimizer.param_groups:
            trained += group["params"]
            group["foreach"] = backend == "cuda"  # which alone updates many weights in one kernel
        optimizer.step()  # the first step creates the state
        with _traffic(updated):
            optimizer.step()
        state = cost.tensors(*optimizer.state.values())
        tensors += state
        # A fused update reads the gradient, and reads and writes the weight and its state.
        update += 3 * _size(trained) + 2 * _size(state)
    return Work(
        convolutions=passed["convolutions"],
        products=passed["products"],
        bytes=size * passed["bytes"] + update,
        launches=passed["launches"] + updated["launches"],
        memory_bytes=size * saved["peak"] + _size(tensors),
    )


def _size(tensors: Sequence[Any]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def watched(note: Callable[..., None]) -> Any:
    """Return a context that calls `note(function, args, kwargs, result)` after each operator."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watched(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            note(function, args, kwargs, result)
            return result

    return Watched()


def _traffic(noted: Counter) -> Any:
    """Return a context that adds the bytes and the launch of each operator to a counter."""

    def note(*operator: Any) -> None:
        moved = cost.moved_bytes(*operator)
        noted.update(bytes=moved, launches=int(moved > 0))

    return watched(note)


def _convolution_backward(
    gradient: Sequence[int], data: Sequence[int], weight: Sequence[int], *settings: Any, **_: Any
) -> int:
    """Return the operations of a convolution's gradients from shapes and the operator's settings.

    The kernel is applied at each position of the output, or of the input if transposed. PyTorch's
    formula multiplies the kernel's gradient by the groups once too often (torch 2.13.0).
    """
    _bias, _stride, _padding, _dilation, transposed, _output_padding, _groups, wanted = settings
    places = data if transposed else gradient
    once = 2 * math.prod(weight) * places[0] * math.prod(places[2:])
    return once * sum(wanted[:2])
