"""What a training step costs on paper: parameters, floating-point operations, memory.

Counted on PyTorch's `meta` device, where tensors have shapes but no contents: nothing is allocated,
and no operator is missed, as some are on the CPU (fused attention and LSTM count as zero there).
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Workload:
    """One optimizer step.

    `flops` counts two operations a multiply-add, in matrix products, convolutions and attention,
    forward and backward; `forward_flops` those before the first backward pass. `state_bytes` is
    weights, gradients and the optimizer's own tensors; `saved_bytes` the most that autograd keeps
    at one time. `moved_bytes` is what the operators of the step read and write, each by itself, and
    the optimizer's update. None where it is not counted, as in Keras.
    """

    parameters: int
    flops: int
    state_bytes: int
    saved_bytes: int
    forward_flops: int | None = field(default=None, compare=False)
    moved_bytes: int | None = field(default=None, compare=False)
    host_bytes: int = 0  # of the state, what offload keeps in the host's memory instead

    @property
    def bytes(self) -> int:
        """What must fit at the least. Work space of single operators comes on top."""
        return self.state_bytes + self.saved_bytes

    def __str__(self) -> str:
        tera = self.flops >= 1e12
        flops = f"{self.flops / (1e12 if tera else 1e9):,.4g} {'T' if tera else 'G'}FLOP"
        state = f"{self.state_bytes / 1e6:,.1f} MB of weights, gradients and optimizer"
        saved = f"{self.saved_bytes / 1e6:,.1f} MB kept for the backward pass"
        return f"{self.parameters:,} parameters; {flops} a step; {state}; {saved}"


def workload(
    build: Callable[[], Any],
    step: Callable[[Any], None],
    optimizer_slots: int = 0,
    backend: str = "mps",
) -> Workload:
    """Count a step without running it.

    build: makes the module, with `meta` as the default device. step: one forward and backward pass
    of that module, which reads no value (`.item()`). optimizer_slots: tensors of a weight's size
    that the optimizer keeps: 0 for plain SGD, 1 for SGD with momentum, 2 for Adam, AdamW and
    Adadelta. backend: where it is to run. On `cuda`, and on `cpu` where attention has no dropout,
    attention keeps its inputs, its output and a number a row; on `mps` it keeps its matrices too.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import FlopCounterMode

    counts = Counter()

    def note(flops: int, moved: int) -> None:
        counts.update(flops=flops, moved=moved)

    class Traffic(TorchDispatchMode):
        """Counts each operator by itself, as if none were fused and no cache helped."""

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            note(0, moved_bytes(function, args, kwargs, result))
            return result

    def flops() -> int:
        return counter.get_total_flops() + counts["flops"]

    def backward_begins() -> None:
        counts.setdefault("forward", flops())

    with torch.device("meta"):
        model = build()
        counter = FlopCounterMode(display=False)
        saving = saved_tensors(model, backward_begins)
        with counter, saving as saved, Traffic(), fused_attention(backend, note):
            step(model)
    weights = list(model.parameters())
    weight_bytes = sum(weight.nbytes for weight in weights)
    trained_bytes = sum(weight.nbytes for weight in weights if weight.requires_grad)
    return Workload(
        parameters=sum(weight.numel() for weight in weights),
        flops=flops(),
        state_bytes=weight_bytes + (1 + optimizer_slots) * trained_bytes,
        saved_bytes=saved["peak"],
        forward_flops=counts.get("forward", flops()),
        # A fused update reads the gradient, and reads and writes the weight and each slot.
        moved_bytes=counts["moved"] + (3 + 2 * optimizer_slots) * trained_bytes,
    )


# Make a tensor without writing to it, or give the same one another shape; `unsafe_split` makes
# views of which autograd knows nothing, and `rand` makes inputs, which a training has already.
MOVE_NOTHING = {
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view"),
    *("unsafe_split", "unsafe_split_with_sizes", "rand", "randn"),
}
# Do not read one of their tensors, by its place among these: they overwrite it, or only ask for its
# shape.
NOT_READ = {
    "nll_loss_backward": 1,
    **dict.fromkeys(("copy_", "fill_", "zero_", "uniform_", "normal_", "bernoulli_"), 0),
    **dict.fromkeys(("ones_like", "zeros_like", "full_like", "rand_like", "randn_like"), 0),
    "random_": 0,
}
# Read of their first tensor no more than they give.
READ_A_PART = {"embedding", "index_select", "index", "gather", "nll_loss_forward"}


def tensors(*items: Any) -> list[Any]:
    """Return the tensors in arguments or results, however deep in them."""
    import torch
    from torch.utils import _pytree

    return [item for item in _pytree.tree_leaves(items) if isinstance(item, torch.Tensor)]


def moves_nothing(function: Any) -> bool:
    """Whether an operator launches no kernel: a view, or a tensor that it does not write to."""
    import torch

    if function.is_view or torch.Tag.inplace_view in function.tags:
        return True
    return function._schema.name.split("::")[-1] in MOVE_NOTHING


def moved_bytes(function: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Return what an operator that was called so reads and writes."""
    if moves_nothing(function):
        return 0
    name = function._schema.name.split("::")[-1]
    written = [_distinct_bytes(tensor) for tensor in tensors(result)]
    read = [_distinct_bytes(tensor) for tensor in tensors(args, kwargs)]
    if name in NOT_READ:
        read[NOT_READ[name]] = 0
    elif name in READ_A_PART:
        read[0] = min(read[0], sum(written))
    return sum(read) + sum(written)


def _distinct_bytes(tensor: Any) -> int:
    """Return the bytes of a tensor's numbers; what a stride of 0 repeats counts once."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.itemsize * math.prod(size if stride or not size else 1 for size, stride in pairs)


@contextlib.contextmanager
def saved_tensors(
    model: Any, backward: Callable[[], Any] = lambda: None
) -> Iterator[Mapping[str, int]]:
    """Count the bytes that autograd keeps, weights apart: `now`, and the `peak` so far.

    backward: called when a saved tensor is asked for: a backward pass has begun.
    """
    import torch

    holders = Counter()  # of each storage: how many nodes of the graph
    bytes_ = Counter()
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}

    class Held:
        """Keeps a saved tensor as autograd would, and notices when the graph lets go of it."""

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

    def hold(tensor: torch.Tensor) -> Any:
        return tensor if tensor.untyped_storage()._cdata in weights else Held(tensor)

    def give(item: Any) -> torch.Tensor:
        backward()
        return item.tensor if isinstance(item, Held) else item

    with torch.autograd.graph.saved_tensors_hooks(hold, give):
        yield bytes_


@contextlib.contextmanager
def fused_attention(backend: str, note: Callable[[int, int], None]) -> Iterator[None]:
    """On the meta device, let attention keep what a fused kernel of this backend keeps.

    That is its inputs, its output and the logarithm of each row's sum, in fp32. note: gets the
    operations and the moved bytes of each pass, which no counter sees.
    """
    from unittest import mock

    import torch
    from torch.nn import functional

    if backend == "mps":
        yield
        return
    written_out = functional.scaled_dot_product_attention
    dropout = functional.dropout

    def bytes_of(*tensors: Any) -> int:
        return sum(map(_distinct_bytes, tensors))

    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(context, query, key, value):
            output = query.new_empty(*query.shape[:-1], value.shape[-1])
            sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
            context.save_for_backward(query, key, value, output, sums)
            pairs = math.prod(query.shape[:-1]) * key.shape[-2]  # of a query and a key
            context.flops = 2 * pairs * query.shape[-1], 2 * pairs * value.shape[-1]
            note(sum(context.flops), bytes_of(query, key, value, output, sums))
            return output

        @staticmethod
        def backward(context, gradient):
            gradients = tuple(torch.empty_like(tensor) for tensor in context.saved_tensors[:3])
            for_query, for_key, for_value = context.needs_input_grad
            scores, values = context.flops
            flops = (for_query + for_key) * scores + (for_value + (for_query or for_key)) * values
            note(flops, bytes_of(*context.saved_tensors, gradient, *gradients))
            return gradients

    def attention(query, key, value, attn_mask=None, dropout_p=0.0, *arguments, **named):
        if backend == "cpu" and dropout_p:  # which the CPU's fused kernel does not have
            return written_out(query, key, value, attn_mask, dropout_p, *arguments, **named)
        return Fused.apply(query, key, value)

    def dropped(input, p=0.5, training=True, inplace=False):
        # CUDA's kernel keeps which numbers are left, a byte each; the others keep a float.
        if backend != "cuda" or inplace or not (training and p):
            return dropout(input, p, training, inplace)
        return torch.native_dropout(input, p, training)[0]

    with mock.patch.multiple(functional, scaled_dot_product_attention=attention, dropout=dropped):
        yield
