"""Analytic cost of a training step: parameters, FLOPs and memory.

Steps are counted on PyTorch's `meta` device, whose tensors have shapes but no data. Nothing is
allocated, and no operator is missed: on the CPU fused attention and LSTM would count as zero.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FITS, TIGHT, TOO_LARGE = VERDICTS = "fits", "tight", "does not fit"
ROOM = 0.85  # of the memory that a program may use; above it, a step is tight


def fit_of(share: float) -> str:
    """Return whether a step fits that takes a share of the memory that a program may use."""
    return TOO_LARGE if share > 1 else TIGHT if share > ROOM else FITS


@dataclass(frozen=True)
class Cost:
    """Cost of one optimizer step.

    flops: FLOPs (2 per MAC) of matmuls, convolutions and attention, forward and backward.
    forward_flops: those before the first backward pass. state_bytes: weights, gradients and the
    optimizer's tensors. saved_bytes: peak of the tensors that autograd keeps. moved_bytes: bytes
    that the single operators and the optimizer's update read and write; None if not counted, as in
    Keras.
    """

    parameters: int
    flops: int
    state_bytes: int
    saved_bytes: int
    forward_flops: int | None = field(default=None, compare=False)
    moved_bytes: int | None = field(default=None, compare=False)
    host_bytes: int = 0  # part of the state that offload keeps in the host's memory instead

    @property
    def bytes(self) -> int:
        """Least memory of a step, without the work space of single operators."""
        return self.state_bytes + self.saved_bytes

    def __str__(self) -> str:
        tera = self.flops >= 1e12
        flops = f"{self.flops / (1e12 if tera else 1e9):,.4g} {'T' if tera else 'G'}FLOP"
        state = f"{self.state_bytes / 1e6:,.1f} MB of weights, gradients and optimizer"
        saved = f"{self.saved_bytes / 1e6:,.1f} MB kept for the backward pass"
        return f"{self.parameters:,} parameters; {flops} per step; {state}; {saved}"


def workload(
    build: Callable[[], Any],
    step: Callable[[Any], None],
    optimizer_slots: int = 0,
    backend: str = "mps",
) -> Cost:
    """Count a step without running it.

    build: makes the module, with `meta` as the default device. step: one forward and backward pass
    of the module, without reading a value (`.item()`). optimizer_slots: optimizer tensors per
    weight: 0 for plain SGD, 1 for SGD with momentum, 2 for Adam, AdamW and Adadelta. backend: where
    the step will run. Fused attention (`cuda`, and `cpu` without dropout) keeps its inputs, output
    and one value per row. On `mps` attention also keeps its matrices.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    counts = Counter()

    def count(flops: int, moved: int) -> None:
        counts.update(flops=flops, moved=moved)

    def flops() -> int:
        return counter.get_total_flops() + counts["flops"]

    def backward_begins() -> None:
        counts.setdefault("forward", flops())

    with torch.device("meta"):
        model = build()
        formulas = {torch.ops.aten.convolution_backward: convolution_backward_flops}
        counter = FlopCounterMode(display=False, custom_mapping=formulas)
        saving = saved_tensors(model, backward_begins)
        with counter, saving as saved, traffic(count), fused_attention(backend, count):
            step(model)
    weights = list(model.parameters())
    weight_bytes = sum(weight.nbytes for weight in weights)
    trained_bytes = sum(weight.nbytes for weight in weights if weight.requires_grad)
    return Cost(
        parameters=sum(weight.numel() for weight in weights),
        flops=flops(),
        state_bytes=weight_bytes + (1 + optimizer_slots) * trained_bytes,
        saved_bytes=saved["peak"],
        forward_flops=counts.get("forward", flops()),
        # A fused update reads the gradient, and reads and writes the weight and each slot.
        moved_bytes=counts["moved"] + (3 + 2 * optimizer_slots) * trained_bytes,
    )


def convolution_backward_flops(
    gradient: Sequence[int], data: Sequence[int], weight: Sequence[int], *settings: Any, **_: Any
) -> int:
    """Return the operations of a convolution's gradients from shapes and the operator's settings.

    The kernel is applied at each position of the output, or of the input if transposed. PyTorch's
    formula multiplies the kernel's gradient by the groups once too often (torch 2.13.0).
    """
    _bias, _stride, _padding, _dilation, transposed, _output_padding, _groups, needed = settings
    positions = data if transposed else gradient
    once = 2 * math.prod(weight) * positions[0] * math.prod(positions[2:])
    return once * sum(needed[:2])


def traffic(count: Callable[[int, int], None]) -> Any:
    """Return a context that counts the memory traffic of operators, unfused and without caches.

    count: receives 0 FLOPs and the moved bytes of each operator.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Traffic(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            count(0, moved_bytes(function, args, kwargs, result))
            return result

    return Traffic()


def writes(written: Callable[[Any], None]) -> Any:
    """Return a context that calls `written` with each tensor that an operator writes to."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Writes(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            for number, argument in enumerate(function._schema.arguments):
                if argument.alias_info and argument.alias_info.is_write:
                    value = args[number] if number < len(args) else kwargs.get(argument.name)
                    for tensor in tensors(value):
                        written(tensor)
            return function(*args, **kwargs)

    return Writes()


def storage(tensor: Any) -> int:
    """Return an identifier of a tensor's memory, which views and `data` of the tensor share."""
    return tensor.untyped_storage()._cdata


# Operators that create or reshape a tensor without writing to it. `unsafe_split` makes views
# without autograd. `rand` makes inputs, which a real training step does not.
MOVE_NOTHING = {
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view"),
    *("unsafe_split", "unsafe_split_with_sizes", "rand", "randn"),
}
# Operators that do not read one of their tensors (its index): they overwrite it or use its shape.
NOT_READ = {
    "nll_loss_backward": 1,
    **dict.fromkeys(("copy_", "fill_", "zero_", "uniform_", "normal_", "bernoulli_", "random_"), 0),
    **dict.fromkeys(("ones_like", "zeros_like", "full_like", "rand_like", "randn_like"), 0),
}
# Operators that read no more of their first tensor than they return.
READ_PARTLY = {"embedding", "index_select", "index", "gather", "nll_loss_forward"}


def tensors(*items: Any) -> list[Any]:
    """Return the tensors in nested arguments or results."""
    import torch
    from torch.utils import _pytree

    return [item for item in _pytree.tree_leaves(items) if isinstance(item, torch.Tensor)]


def moved_bytes(function: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Return the bytes that a call of an operator reads and writes; 0 if it launches no kernel."""
    import torch

    name = function._schema.name.split("::")[-1]
    if function.is_view or torch.Tag.inplace_view in function.tags or name in MOVE_NOTHING:
        return 0
    written = [_distinct_bytes(tensor) for tensor in tensors(result)]
    read = [_distinct_bytes(tensor) for tensor in tensors(args, kwargs)]
    if name in NOT_READ:
        read[NOT_READ[name]] = 0
    elif name in READ_PARTLY:
        read[0] = min(read[0], sum(written))
    return sum(read) + sum(written)


def _distinct_bytes(tensor: Any) -> int:
    """Return the bytes of a tensor's distinct elements: a dimension of stride 0 counts once."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.itemsize * math.prod(size if stride or not size else 1 for size, stride in pairs)


@contextlib.contextmanager
def saved_tensors(
    model: Any, backward: Callable[[], Any] = lambda: None
) -> Iterator[Mapping[str, int]]:
    """Count the bytes that autograd keeps besides weights: `now`, and the `peak` so far.

    backward: called when a backward pass requests a saved tensor.
    """
    import torch

    holders = Counter()  # storage -> number of graph nodes that keep it
    bytes_ = Counter()
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}

    class Saved:
        """A saved tensor that counts its storage until the graph releases it."""

        def __init__(self, tensor: torch.Tensor):
            self.tensor = tensor
            self.storage = tensor.untyped_storage()
            holders[self.storage._cdata] += 1
            if holders[self.storage._cdata] == 1:
                bytes_["now"] += self.storage.nbytes()
                bytes_["peak"] = max(bytes_["peak"], bytes_["now"])

        def __del__(self):
            holders[self.storage._cdata] -= 1
            if not holders[self.storage._cdata]:
                bytes_["now"] -= self.storage.nbytes()

    def pack(tensor: torch.Tensor) -> Any:
        return tensor if tensor.untyped_storage()._cdata in weights else Saved(tensor)

    def unpack(item: Any) -> torch.Tensor:
        backward()
        return item.tensor if isinstance(item, Saved) else item

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield bytes_


@contextlib.contextmanager
def fused_attention(backend: str, count: Callable[[int, int], None]) -> Iterator[None]:
    """Replace attention on the meta device, so that it keeps what a backend's fused kernel keeps.

    These tensors are its inputs, its output and the logarithm of each row's sum, in fp32. count:
    receives the FLOPs and the moved bytes of each pass, which other counters miss.
    """
    from unittest import mock

    import torch
    from torch.nn import functional

    if backend == "mps":
        yield
        return
    unfused = functional.scaled_dot_product_attention
    dropout = functional.dropout

    def bytes_of(*tensors: Any) -> int:
        return sum(map(_distinct_bytes, tensors))

    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(context, query, key, value):
            output = query.new_empty(*query.shape[:-1], value.shape[-1])
            sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
            context.save_for_backward(query, key, value, output, sums)
            pairs = math.prod(query.shape[:-1]) * key.shape[-2]  # queries times keys
            context.flops = 2 * pairs * query.shape[-1], 2 * pairs * value.shape[-1]
            count(sum(context.flops), bytes_of(query, key, value, output, sums))
            return output

        @staticmethod
        def backward(context, gradient):
            saved = context.saved_tensors  # checkpointing lets it be read once only
            gradients = tuple(torch.empty_like(tensor) for tensor in saved[:3])
            for_query, for_key, for_value = context.needs_input_grad
            scores, values = context.flops
            flops = (for_query + for_key) * scores + (for_value + (for_query or for_key)) * values
            count(flops, bytes_of(*saved, gradient, *gradients))
            return gradients

    def attention(query, key, value, attn_mask=None, dropout_p=0.0, *arguments, **named):
        if backend == "cpu" and dropout_p:  # the CPU's fused kernel has no dropout
            return unfused(query, key, value, attn_mask, dropout_p, *arguments, **named)
        return Fused.apply(query, key, value)

    def dropped(input, p=0.5, training=True, inplace=False):
        # CUDA's kernel keeps a mask of one byte per element; the others keep a float.
        if backend != "cuda" or inplace or not (training and p):
            return dropout(input, p, training, inplace)
        return torch.native_dropout(input, p, training)[0]

    with mock.patch.multiple(functional, scaled_dot_product_attention=attention, dropout=dropped):
        yield
