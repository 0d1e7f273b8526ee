"""What a training step of a PyTorch module asks of a device, operator by operator.

The step runs once on PyTorch's `meta` device, where tensors have shapes but no contents. Each
operator that would reach the device is written down. Nothing is trained or measured.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

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
LANES = 16  # numbers that AVX-512 computes at once; oneDNN fills channels up to a multiple


class Operator(NamedTuple):
    """One call of an operator in a training step."""

    kind: str  # product, convolution, depthwise, attention, recurrent, elementwise, reduction, …
    flops: float  # two a multiply-add; 0 where bytes alone decide
    bytes: float  # read and written, each operand once, as if nothing were fused
    launches: int  # kernels
    largest: int = 0  # bytes of the largest operand or result; 0 of several operators
    fresh: bool = True  # makes a tensor, and does not write to an operand
    like: str = ""  # the name in `devices.SINGLE` of an operator that is as fast
    filled: float = 1.0  # the share of LANES that a convolution uses on a processor


class Counted(NamedTuple):
    operators: list[Operator]
    memory_bytes: int  # weights, gradients, the optimizer's, and what autograd keeps


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
) -> Counted:
    """Count a training step without running it.

    step: one forward and backward pass of the module on `meta`. precision: of that pass; the
    optimizer has fp32. backend: where it is to run. Raises PomologyError for an operator that has
    no formula, and for an unknown precision.
    """
    import torch

    if precision not in PRECISIONS:
        raise PomologyError(f"{one_line(precision)}: must be one of {', '.join(PRECISIONS)}")
    module.to("meta").train()
    trained = [weight for weight in module.parameters() if weight.requires_grad]
    operators: list[Operator] = []

    def note(kind: str, flops: int, moved: int, launches: int = 1) -> None:
        operators.append(Operator(kind, flops, moved, launches))

    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.device("meta"))
        stack.enter_context(_cast(module, getattr(torch, PRECISIONS[precision])))
        saved = stack.enter_context(cost.saved_tensors(module))
        stack.enter_context(cost.fused_attention(backend, partial(note, "attention")))
        stack.enter_context(_fused_lstm(partial(note, "recurrent")))
        stack.enter_context(_recorder(operators))
        step(module)
    gradients = sum(weight.grad.nbytes for weight in trained if weight.grad is not None)
    update, state = _update(trained, optimizer, backend)
    weights = sum(tensor.nbytes for tensor in [*module.parameters(), *module.buffers()])
    return Counted([*operators, *update], weights + gradients + state + saved["peak"])


def _update(weights: list[Any], name: str, backend: str) -> tuple[list[Operator], int]:
    """Return the optimizer's operators, and the bytes of its state."""
    import torch

    kind, settings = OPTIMIZERS[name]
    foreach = backend == "cuda"  # one kernel for many weights, which PyTorch does on CUDA only
    optimizer = getattr(torch.optim, kind)(weights, lr=0.01, foreach=foreach, **settings)
    optimizer.step()  # the first step makes its state
    parts: list[Operator] = []
    with _recorder(parts):
        optimizer.step()
    update = [each._replace(kind="optimizer", flops=0, like="", filled=1.0) for each in parts]
    state = sum(tensor.nbytes for tensor in cost.tensors(*optimizer.state.values()))
    return update, state


def _recorder(operators: list[Operator]) -> Any:
    """Return a context that appends each operator on `meta`."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    meta = torch.device("meta")

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            tensors = cost.tensors(args, kwargs)
            devices = [tensor.device for tensor in tensors] or [kwargs.get("device")]
            if meta not in devices:  # computed on the host
                return function(*args, **kwargs)
            with self:  # what autograd has not taken apart
                if function._schema.name == "aten::_safe_softmax":
                    key = torch._C.DispatchKey.CompositeExplicitAutograd
                    return function._op_dk(key, *args, **kwargs)
                result = function.decompose(*args, **kwargs)
                if result is not NotImplemented:
                    return result
            kind = _kind(function, tensors)
            result = function(*args, **kwargs)
            moved = cost.moved_bytes(function, args, kwargs, result)
            if kind and moved:
                operators.append(_operator(kind, function, args, result, moved))
            return result

    return Recorder()


# The place of the first factor among the arguments of a product.
_PRODUCTS = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "vdot": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}
_REDUCTION = (
    r"_(log_)?softmax(_backward_data)?|.*(batch|layer|group|rms)_norm(_\w+)?"
    r"|_weight_norm_interface(_backward)?|nll_loss2?d?_(forward|backward)"
    r"|_?(adaptive_)?(avg|max)_pool[23]d(_with_indices)?(_backward)?"
    r"|(log)?cum(sum|prod|sumexp)|linalg_vector_norm|topk|_batch_norm_with_update"
)
# Their work is more than what they move.
_UNKNOWN = r".*(fft|linalg(?!_vector_norm)|cholesky|cdist|sparse|triangular|ctc_loss|trilinear).*"
# The operator in `devices.SINGLE` that others are as fast as, by a part of their names.
_LIKE = {"batch_norm": "batch_norm", "_pool": "max_pool", "index_put": "index_put"}
_LIKE |= dict.fromkeys(("bernoulli", "dropout", "normal_", "uniform"), "bernoulli")


def _kind(function: Any, tensors: Sequence[Any]) -> str | None:
    """Return the kind of an operator, None for a view."""
    import torch

    if cost.moves_nothing(function):
        return None
    space, _, name = function._schema.name.partition("::")
    plain = name.rstrip("_")
    tags = set(function.tags)
    depends = tags & {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    by_mask = any(tensor.dtype == torch.bool for tensor in tensors[1:])
    unknown = space != "aten" or re.fullmatch(_UNKNOWN, plain)
    if unknown or (depends and (name != "index" or by_mask)):
        reason = "its work has no formula, or depends on the values of its operands"
        raise PomologyError(f"operator {space}.{name} is not counted: {reason}")
    if plain in _PRODUCTS:
        return "product"
    if name in ("convolution", "convolution_backward"):
        return "convolution"
    if "embedding" in plain:
        return "embedding"
    # Not every form of an operator has its tags.
    packet = getattr(torch.ops.aten, plain)
    tags = {tag for form in packet.overloads() for tag in getattr(packet, form).tags}
    if torch.Tag.reduction in tags or re.fullmatch(_REDUCTION, plain):
        return "reduction"
    return "elementwise"


def _operator(kind: str, function: Any, args: Any, result: Any, moved: int) -> Operator:
    """Return what a call of an operator is."""
    name = function._schema.name.removeprefix("aten::")
    largest = max(tensor.nbytes for tensor in cost.tensors(args, result))
    fallback = "batch_norm" if kind in ("reduction", "embedding") else ""
    like = next((like for part, like in _LIKE.items() if part in name), fallback)
    flops = 0
    launches = 1
    filled = 1.0
    if kind == "product":
        place = _PRODUCTS[name.rstrip("_")]
        first, second = args[place : place + 2]
        flops = 2 * first.numel() * (second.shape[-1] if second.ndim > 1 else 1)
    elif kind == "convolution":
        kind, flops, launches, filled = _convolution(name, args, result)
    fresh = not name.endswith("_")
    return Operator(kind, flops, moved, launches, largest, fresh, like, filled)


def _convolution(name: str, args: Any, result: Any) -> tuple[str, int, int, float]:
    """Return kind, operations, launches and `filled` of a convolution or of its gradients.

    The kernel is used at each place of the output, transposed of the input. (PyTorch's counter
    multiplies the kernel's gradient by the groups once more.)
    """
    if name == "convolution":
        data, weight = args[:2]
        transposed, groups = args[6], args[8]
        times = launches = 1
    else:
        result, data, weight = args[:3]  # of the result there is the gradient
        transposed, groups, wanted = args[7], args[9], args[10]
        times = sum(wanted[:2])
        launches = sum(wanted)
    places = data if transposed else result
    flops = 2 * times * weight.numel() * places.shape[0] * math.prod(places.shape[2:])
    if groups > 1 and weight.shape[1] == 1:
        return "depthwise", flops, launches, 1.0
    channels = weight.shape[0] // groups
    return "convolution", flops, launches, channels / (LANES * -(-channels // LANES))


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


@contextlib.contextmanager
def _fused_lstm(note: Callable[[int, int, int], None]) -> Iterator[None]:
    """Let an LSTM be one operator forward and one backward: a product and a kernel a time step.

    Its matrices are used once for each place in each sequence; backward twice, without gradients
    that nobody needs. It keeps its input for that, and seven vectors a place: four gates, both
    states, and tanh of one. note: gets operations, bytes moved and launches.
    """
    import torch

    def size(*tensors: Any) -> int:
        return sum(tensor.nbytes for tensor in tensors)

    def numbers(tensors: Sequence[Any]) -> int:
        return sum(tensor.numel() for tensor in tensors if tensor.ndim == 2)

    class LSTM(torch.autograd.Function):
        @staticmethod
        def forward(context, output, kept, *tensors):
            context.save_for_backward(kept, *tensors)
            return torch.empty_like(output), *map(torch.empty_like, tensors[1:3])

        @staticmethod
        def backward(context, *received):
            return None, None, *map(torch.empty_like, context.saved_tensors[1:])

    def lstm(data, states, weights, *options):
        *_, both, batch_first = options
        batch, times = data.shape[:2] if batch_first else data.shape[1::-1]
        stack, _, hidden = states[1].shape  # a layer for each direction
        output = data.new_empty(*data.shape[:2], states[0].shape[-1] * (1 + both))
        kept = data.new_empty(7 * stack, times, batch, hidden)
        each = len(weights) // stack
        # What multiplies the input of a layer does so at all times at once.
        weights_moved = times * size(*weights) - (times - 1) * size(*weights[::each])
        moved = weights_moved + size(data, *states, output, kept)
        flops = 2 * times * batch * numbers(weights)
        note(flops, moved, stack * (2 * times + 1))
        flops *= 1 + any(item.requires_grad for item in weights)
        if not data.requires_grad:
            flops -= 2 * times * batch * numbers(weights[: (1 + both) * each : each])
        if not states[0].requires_grad:
            flops -= 2 * batch * numbers(weights[1::each])
        moved += size(data, *states, *weights)  # their gradients
        note(flops, moved, stack * (2 * times + 3))
        return LSTM.apply(output, kept, data, *states, *weights)

    with mock.patch.object(torch._VF, "lstm", lstm):
        yield
