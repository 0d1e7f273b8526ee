"""Count the work of a training step of a PyTorch module: operations, bytes, launches and memory.

The step runs once on PyTorch's `meta` device, where tensors have shapes but no contents. Nothing is
trained or measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.models import cost, workload

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
        """All operations."""
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

    def both(model: Any, made: list[Any]) -> None:
        for optimizer in made:
            optimizer.zero_grad()
        step(model)
        for optimizer in made:
            optimizer.step()

    declared = workload.Workload(
        build=lambda: module.to("meta").train(),
        batch=lambda _: (),
        optimizer=optimizers,
        step=both,
    )
    return in_precision(precision, **quantities(workload.count_warm(declared, 0, backend)))


def quantities(counted: workload.Counted) -> dict[str, float]:
    """Return the counts of a step in fp32, as `in_precision` takes them."""
    return {
        "convolution_flops": counted.convolution_flops,
        "other_flops": counted.cost.flops - counted.convolution_flops,
        "passed_bytes": counted.passed_bytes,
        "update_bytes": counted.update_bytes,
        "launches": counted.launches,
        "saved_bytes": counted.cost.saved_bytes,
        "resident_bytes": counted.resident_bytes,
    }


def in_precision(
    precision: str,
    *,
    convolution_flops: float,
    other_flops: float,
    passed_bytes: float,
    update_bytes: float,
    launches: float,
    saved_bytes: float,
    resident_bytes: float,
) -> Work:
    """Return the work of a counted step with its passes in a precision, and its update in fp32.

    passed_bytes: moved in the passes, in fp32. update_bytes: moved by the optimizer. saved_bytes:
    kept by autograd. resident_bytes: weights, gradients and states. Raises PomologyError for an
    unknown precision.
    """
    if precision not in PRECISIONS:
        raise PomologyError(f"{one_line(precision)}: expected one of {', '.join(PRECISIONS)}")
    size = PRECISIONS[precision]
    return Work(
        convolutions=convolution_flops,
        products=other_flops,
        bytes=size * passed_bytes + update_bytes,
        launches=launches,
        memory_bytes=size * saved_bytes + resident_bytes,
    )


def watched(note: Callable[..., None]) -> Any:
    """Return a context that calls `note(function, args, kwargs, result)` after each operator."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watched(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            note(function, args, kwargs, result)
            return result

    return Watched()
