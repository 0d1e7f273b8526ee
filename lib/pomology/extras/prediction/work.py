"""What a training step of a PyTorch module asks of a device.

The step runs once on PyTorch's `meta` device, where tensors have shapes but no contents. Nothing is
trained or measured.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.models import cost

PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
OPTIMIZERS = {
    "adam": ("Adam", {}),
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "adadelta": ("Adadelta", {}),
}


class Work(NamedTuple):
    """A step on paper. Two operations are one multiply-add."""

    convolutions: float  # operations
    products: float  # operations, those of attention too
    bytes: float  # that each operator reads and writes, as if nothing were fused
    launches: float  # kernels
    memory_bytes: int = 0  # weights, gradients, the optimizer's, and what autograd keeps


def step(inputs: Sequence[Any], loss: Callable[[Any], Any] | None = None) -> Callable[[Any], None]:
    """Return a function that runs a module forward and backward on these inputs.

    loss: of the module's output; without one it is the sum of the means of what the module gives.
    """

    def run(module: Any) -> None:
        output = module(*[tensor.to("meta") for tensor in inputs])
        tensors = [tensor for tensor in cost.tensors(output) if tensor.requires_grad]
        if not tensors:
            raise PomologyError("the model's output does not depend on its weights")
        value = loss(output) if loss else sum(tensor.float().mean() for tensor in tensors)
        value.backward()

    return run


def count(
    module: Any,
    step: Callable[[Any], None],
    precision: str = "fp32",
    optimizer: str = "adam",
    backend: str = "mps",
) -> Work:
    """Count a training step without running it.

    step: one forward and backward pass of the module on `meta`. precision: of that pass; the
    optimizer has fp32. backend: where it is to run. Raises PomologyError for an unknown precision.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    if precision not in PRECISIONS:
        raise PomologyError(f"{one_line(precision)}: must be one of {', '.join(PRECISIONS)}")
    module.to("meta").train()
    trained = [weight for weight in module.parameters() if weight.requires_grad]
    noted: Counter = Counter()

    def note_attention(flops: int, moved: int) -> None:
        noted.update(products=flops, bytes=moved, launches=1)

    formulas = {torch.ops.aten.convolution_backward: _convolution_backward}
    counter = FlopCounterMode(display=False, custom_mapping=formulas)
    with (
        torch.device("meta"),
        _cast(module, getattr(torch, PRECISIONS[precision])),
        cost.saved_tensors(module) as saved,
        counter,
        _traffic(noted),
        cost.fused_attention(backend, note_attention),
    ):
        step(module)
    for operator, flops in counter.get_flop_counts().get("Global", {}).items():
        noted["convolutions" if "convolution" in str(operator) else "products"] += flops
    gradients = sum(weight.grad.nbytes for weight in trained if weight.grad is not None)
    state = _count_update(trained, optimizer, backend, noted)
    weights = sum(tensor.nbytes for tensor in [*module.parameters(), *module.buffers()])
    names = ("convolutions", "products", "bytes", "launches")
    memory = weights + gradients + state + saved["peak"]
    return Work(*(noted[name] for name in names), memory_bytes=memory)


def _count_update(weights: list[Any], name: str, backend: str, noted: Counter) -> int:
    """Note the optimizer's traffic; return the bytes of its state."""
    import torch

    kind, settings = OPTIMIZERS[name]
    foreach = backend == "cuda"  # one kernel for many weights, which PyTorch does on CUDA only
    optimizer = getattr(torch.optim, kind)(weights, lr=0.01, foreach=foreach, **settings)
    optimizer.step()  # the first step makes its state
    with _traffic(noted):
        optimizer.step()
    return sum(tensor.nbytes for tensor in cost.tensors(*optimizer.state.values()))


def _traffic(noted: Counter) -> Any:
    """Return a context that notes the bytes and the launch of each operator."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Traffic(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            moved = cost.moved_bytes(function, args, kwargs, result)
            noted.update(bytes=moved, launches=int(moved > 0))
            return result

    return Traffic()


def _convolution_backward(
    gradient: Sequence[int],
    data: Sequence[int],
    weight: Sequence[int],
    _bias: Any,
    _stride: Any,
    _padding: Any,
    _dilation: Any,
    transposed: bool,
    _output_padding: Any,
    _groups: int,
    wanted: Sequence[bool],
    out_shape: Any = None,
) -> int:
    """Return the operations of a convolution's gradients, from shapes.

    The kernel is used at each place of the output, transposed of the input. PyTorch's own formula
    multiplies the kernel's gradient by the groups once more (torch 2.13.0).
    """
    places = data if transposed else gradient
    once = 2 * math.prod(weight) * places[0] * math.prod(places[2:])
    return once * sum(wanted[:2])


@contextlib.contextmanager
def _cast(module: Any, dtype: Any) -> Iterator[None]:
    """Let a module, and all that its parts receive, have this precision, and fp32 afterwards."""
    from torch.nn.modules.module import register_module_forward_pre_hook
    from torch.utils import _pytree

    def cast(item: Any) -> Any:
        return item.to(dtype) if hasattr(item, "dtype") and item.is_floating_point() else item

    module.to(dtype)
    with register_module_forward_pre_hook(lambda _, inputs: _pytree.tree_map(cast, inputs)):
        yield
    module.float()
