"""What a training step of any PyTorch module asks of a device, operator by operator.

The step runs once on PyTorch's `meta` device, where tensors have shapes but no contents, and each operator that reaches
the device's kernels is written down. Nothing is trained, and nothing is measured.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from pomology.errors import PomologyError
from pomology.extras.prediction import substitutes
from pomology.format import one_line
from pomology.models import cost

PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
# Name here -> class in torch.optim, and how it is made.
OPTIMIZERS = {
    "adam": ("Adam", {}),
    "adamw": ("AdamW", {}),
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "adadelta": ("Adadelta", {}),
    "rmsprop": ("RMSprop", {}),
}


class Operator(NamedTuple):
    """One call of an operator, or those of the optimizer for all weights of one size.

    kind: `product` (of matrices), `convolution`, `depthwise` (a group for each channel), `attention` (a fused one),
    `recurrent` (all layers of an LSTM), `elementwise` (arithmetic number by number, copies, gathers), `reduction`
    (sums, norms, softmax, pooling), `embedding`, or `optimizer`.
    flops: in products, convolutions, attention and LSTMs, two a multiply-add; 0 elsewhere, where bytes decide.
    bytes: read and written, each operand once, as if no operator were fused with another.
    launches: kernels.
    largest: bytes of the largest tensor among operands and results; 0 where several operators are one here.
    fresh: whether it makes a tensor, and does not write to one of its operands.
    like: which of `rates.SINGLE` it is like, where it is like one in particular.
    filled: which share of its LANES a processor uses, by the channels that each group of a convolution makes.
    """

    kind: str
    flops: float
    bytes: float
    launches: int
    largest: int = 0
    fresh: bool = True
    like: str = ""
    filled: float = 1.0


class Memory(NamedTuple):
    """Bytes that training holds. Work space inside of single operators comes on top."""

    weights: int  # and buffers
    gradients: int
    optimizer: int
    activations: int  # the most that autograd keeps for the backward pass at one time
    # The most at any one time: weights, the optimizer's state, and what there is then of the rest, among that results
    # which the next operators use up. Not the sum: gradients come while activations go.
    peak: int


class Counted(NamedTuple):
    operators: list[Operator]
    memory: Memory


def step(inputs: Sequence[Any] | Mapping[str, Any], loss: Callable[[Any], Any] | None = None) -> Callable[[Any], None]:
    """A forward and a backward pass of a module, as `count` takes it."""
    from torch.utils import _pytree

    given = _pytree.tree_map(lambda tensor: tensor.to("meta"), inputs)

    def run(module: Any) -> None:
        output = module(**given) if isinstance(given, Mapping) else module(*given)
        (loss or default_loss)(output).backward()

    return run


def default_loss(output: Any) -> Any:
    """A model's own loss (`.loss`, or `["loss"]`) where it gives one; else the mean in fp32 of each tensor of numbers
    in the output that depends on the weights, added up."""
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if own is not None:
        return own
    if dataclasses.is_dataclass(output) and not isinstance(output, Mapping):
        output = vars(output)
    tensors = [tensor for tensor in cost.tensors(output) if tensor.requires_grad]
    if not tensors:
        raise PomologyError("no tensor in the model's output depends on its weights; define loss(output)")
    return sum(tensor.float().mean() for tensor in tensors)


def check(precision: str, optimizer: str) -> None:
    """Raises PomologyError for a precision or an optimizer that is none of those here."""
    for what, value, known in (("precision", precision, PRECISIONS), ("optimizer", optimizer, OPTIMIZERS)):
        if value not in known:
            raise PomologyError(f"--{what} {one_line(value)}: must be one of {', '.join(known)}")


def count(
    module: Any, step: Callable[[Any], None], precision: str = "fp32", optimizer: str = "adam", backend: str = "mps"
) -> Counted:
    """Count a step without running it.

    step: one forward and backward pass of the module, as `cost.workload` takes it; tensors it creates are on `meta`.
    precision: `bf16` and `fp16` are what PyTorch's autocast makes of the step on CUDA and MPS: products, convolutions
    and attention in half, norms, softmax and losses in fp32, weights kept in fp32; fp16's scaling of the loss is left
    out. optimizer: see OPTIMIZERS; PyTorch's own default implementation of it on that device. backend: where it is to
    run; see `cost.workload`. LSTMs count as one fused kernel a time step and a product; GRUs as they are written out
    on `cpu` and `mps`.

    Raises PomologyError, which names the operator, for one that has no formula; for a wrong precision or optimizer; for
    a module without weights to train; and what the step itself raises.
    """
    import torch

    check(precision, optimizer)
    module.to("meta").train()
    trained = [weight for weight in module.parameters() if weight.requires_grad]
    if not trained:
        raise PomologyError("the model has no weights to train")
    operators: list[Operator] = []

    def note(kind: str, flops: int, moved: int, launches: int = 1) -> None:
        operators.append(Operator(kind, flops, moved, launches))

    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.device("meta"))
        saved = stack.enter_context(cost.saved_tensors(module))
        stack.enter_context(cost.fused_attention(backend, partial(note, "attention")))
        stack.enter_context(substitutes.fused_lstm(PRECISIONS[precision], partial(note, "recurrent")))
        stack.enter_context(substitutes.autocast(PRECISIONS[precision]))
        recorder = stack.enter_context(_recorder(operators))
        step(module)
    update, state, work = _update(trained, optimizer, backend)
    weights = sum(tensor.nbytes for tensor in [*module.parameters(), *module.buffers()])
    gradients = sum(weight.grad.nbytes for weight in trained if weight.grad is not None)
    peak = weights + state + max(recorder.peak, gradients + work)
    return Counted([*operators, *update], Memory(weights, gradients, state, saved["peak"], peak))


def _update(weights: list[Any], name: str, backend: str) -> tuple[list[Operator], int, int]:
    """The operators of the optimizer's update, the bytes of its state, and the most of what it makes in between.

    PyTorch updates weight by weight on the CPU and on MPS, and many weights by one kernel on CUDA.
    """
    import torch

    kind, options = OPTIMIZERS[name]
    optimizer = getattr(torch.optim, kind)(weights, lr=0.01, foreach=backend == "cuda", **options)
    optimizer.step()  # makes its state, once in a training
    parts: list[Operator] = []
    with _recorder(parts) as recorder:
        optimizer.step()
    alike: dict[tuple[int, bool], list[Operator]] = {}
    for part in parts:
        alike.setdefault((part.largest, part.fresh), []).append(part)
    update = [
        Operator("optimizer", 0, sum(part.bytes for part in some), sum(part.launches for part in some), *key)
        for key, some in alike.items()
    ]
    state = sum(tensor.nbytes for tensor in cost.tensors(*optimizer.state.values()))
    return update, state, recorder.peak


# Which operators are of which kind ------------------------------------------------------------------------------------

# Where the two matrices, or vectors, of a product are among its arguments.
_PRODUCTS = dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot"), 0) | dict.fromkeys(("addmm", "baddbmm", "addmv"), 1)
_EMBEDDING = r"embedding(_dense_backward)?|_embedding_bag(_forward_only|_backward|_dense_backward)?"
_REDUCTION = (
    r"_(log_)?softmax(_backward_data)?|.*(batch|layer|group|rms)_norm(_\w+)?|_weight_norm_interface(_backward)?"
    r"|_?(adaptive_)?(avg|max)_pool[23]d(_with_indices)?(_backward)?|nll_loss2?d?_(forward|backward)"
    r"|(log)?cum(sum|prod|sumexp)|linalg_vector_norm|topk|_batch_norm_with_update"
)
# What PyTorch does not mark as pointwise itself. In-place forms have a `_` at the end.
_ELEMENTWISE = (
    r"copy|_to_copy|clone|cat|stack|fill|(new_)?(zeros|ones|full)|\w+_like|zero|arange|linspace|eye|scalar_tensor"
    r"|constant_pad_nd|(reflection|replication)_pad\dd(_backward)?|roll|flip|repeat|tri[lu]|complex|polar"
    r"|(_unsafe_|_)?index(_put(_impl)?)?|index_(select|add|copy|fill)|gather|(masked_)?(scatter|fill)(_add|_reduce)?"
    r"|(slice|select|diagonal|unfold)_(backward|scatter)|as_strided_scatter|(native_)?dropout|(native_)?channel_shuffle"
    r"|bernoulli|uniform|normal|random|randint|randperm|(un)?pixel_(un)?shuffle|im2col|col2im|bucketize"
    r"|_?upsample_\w+|grid_sampler_[23]d(_backward)?|affine_grid_generator"
    r"|(glu|elu|hardtanh|hardswish|hardsigmoid|leaky_relu|softplus|softshrink|hardshrink|mish|celu|silu)(_backward)?"
    r"|log_sigmoid_(forward|backward)|_prelu_kernel(_backward)?|rrelu_with_noise(_backward)?"
    r"|(mse|smooth_l1|huber|soft_margin)_loss(_backward)?|binary_cross_entropy(_backward)?|max_unpool[23]d|_foreach_\w+"
)


def _kind(function: Any, tensors: Sequence[Any]) -> str | None:
    """The kind of an operator of PyTorch with these operands; None for a view. Raises PomologyError."""
    import torch

    space, _, name = function._schema.name.partition("::")
    if cost.moves_nothing(function):
        return None
    tags, plain = set(function.tags), name.rstrip("_")
    by_place = name == "index" and not any(tensor.dtype == torch.bool for tensor in tensors[1:])
    if tags & {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} and not by_place:
        raise PomologyError(
            f"operator {space}.{name} is not counted: what it does depends on the values of its operands"
        )
    if space == "aten":
        if plain in _PRODUCTS:
            return "product"
        if name in ("convolution", "convolution_backward"):
            return "convolution"
        if re.fullmatch(_EMBEDDING, plain):
            return "embedding"
        if not tags & {torch.Tag.pointwise, torch.Tag.reduction}:  # not every form of an operator is marked
            packet = getattr(torch.ops.aten, plain)
            tags = {tag for overload in packet.overloads() for tag in getattr(packet, overload).tags}
        if torch.Tag.reduction in tags or re.fullmatch(_REDUCTION, plain):
            return "reduction"
        if torch.Tag.pointwise in tags or re.fullmatch(_ELEMENTWISE, plain):
            return "elementwise"
    raise PomologyError(f"operator {space}.{name} is not counted: there is no formula for its work")


# Of which of `rates.SINGLE` an operator has the speed, by parts of its name; of others see `_operator`.
_LIKE = {"batch_norm": "batch_norm", "_pool": "max_pool", "index_put": "index_put"}
_LIKE |= dict.fromkeys(("bernoulli", "dropout", "normal_", "uniform"), "bernoulli")
LANES = 16  # numbers that a processor with AVX-512 computes at once, to which oneDNN fills up channels


def _operator(kind: str, function: Any, args: Any, result: Any, moved: int) -> Operator:
    """What a call of an operator that is no view is."""
    name = function._schema.name.removeprefix("aten::")
    largest = max(tensor.nbytes for tensor in cost.tensors(args, result))
    like = next((like for part, like in _LIKE.items() if part in name), "")
    like = like or "batch_norm" * (kind in ("reduction", "embedding"))
    flops, launches, filled = 0, 1, 1.0
    if kind == "product":
        first, second = args[_PRODUCTS[name.rstrip("_")] :][:2]
        flops = 2 * first.numel() * (second.shape[-1] if second.ndim > 1 else 1)
    elif kind == "convolution":
        kind, flops, launches, filled = _convolution(name, args, result)
    return Operator(kind, flops, moved, launches, largest, not name.endswith("_"), like, filled)


def _convolution(name: str, args: Any, result: Any) -> tuple[str, int, int, float]:
    """The kind, operations, launches and `filled` of a convolution, or of its gradients.

    Each number of the kernel is used once at each place of `spread`: the output, of a transposed one the input. Each
    gradient, of the input or of the kernel, takes as much. (PyTorch's own counter multiplies the kernel's by the groups
    once more.)
    """
    if name == "convolution":
        data, weight, transposed, groups, times, launches = *args[:2], args[6], args[8], 1, 1
    else:  # of the result there is the gradient
        result, data, weight, transposed, groups, wanted = *args[:3], args[7], args[9], args[10]
        times, launches = sum(wanted[:2]), sum(wanted)
    spread = data if transposed else result
    flops = 2 * times * weight.numel() * spread.shape[0] * math.prod(spread.shape[2:])
    if groups > 1 and weight.shape[1] == 1:
        return "depthwise", flops, launches, 1.0
    channels = weight.shape[0] // groups
    return "convolution", flops, launches, channels / (LANES * -(-channels // LANES))


# What watches a step --------------------------------------------------------------------------------------------------


def _recorder(operators: list[Operator]) -> Any:
    """Appends each operator on `meta` inside; what is computed on the host beside it is none of the device's.

    `live` and `peak`: bytes of what was made inside and is still there, now and at the most.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    meta = torch.device("meta")

    class Recorder(TorchDispatchMode):
        live = peak = 0

        def gone(self, size: int) -> None:
            self.live -= size

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            tensors = cost.tensors(args, kwargs)
            if meta not in ([t.device for t in tensors] or [kwargs.get("device")]):
                return function(*args, **kwargs)
            with self:  # one that is made of others, where autograd has not taken it apart
                if function._schema.name == "aten::_safe_softmax":
                    return function._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
                if (result := function.decompose(*args, **kwargs)) is not NotImplemented:
                    return result
            kind = _kind(function, tensors)
            before = {t.untyped_storage()._cdata for t in tensors}
            result = function(*args, **kwargs)
            for tensor in cost.tensors(result):
                if (storage := tensor.untyped_storage())._cdata not in before:
                    self.live += storage.nbytes()
                    self.peak = max(self.peak, self.live)
                    weakref.finalize(storage, self.gone, storage.nbytes())
            if kind and (moved := cost.moved_bytes(function, args, kwargs, result)):
                operators.append(_operator(kind, function, args, result, moved))
            return result

    return Recorder()
