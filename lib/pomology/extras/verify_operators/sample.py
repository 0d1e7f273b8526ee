"""What of an operator the proof of a step computes again on the CPU: all of it, or some where it is large.

Of rows, pictures and channels those that are computed are spread over all, each over all of its sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from pomology.machine import snapshot
from pomology.models import cost

aten = torch.ops.aten
ROWS, PICTURES, CHANNELS = 48, 3, 3  # of a result that are computed again
PIECES = 12  # that the rows come in, spread over all; channels on each side of a convolution's weights
LARGE = 2**21  # numbers of a result above which only some of it is computed again
SUMMED = 2**25  # the same for products and convolutions: of multiply-adds, some milliseconds of a CPU
# Of large results: whose every number depends on its own place alone, though PyTorch does not say so, and whose every
# channel does.
PLACEWISE = {aten.clone, aten.copy_, aten._to_copy, aten.zeros_like, aten.ones_like, aten.fill_, aten.zero_}
PLACEWISE |= {aten.leaky_relu_backward, aten.masked_fill_}
NORMALISE = {aten.native_batch_norm, aten.cudnn_batch_norm, aten._native_batch_norm_legit}
BY_CHANNEL = {aten.native_batch_norm_backward, aten.cudnn_batch_norm_backward} | NORMALISE
POOL = {aten.max_pool2d, aten.max_pool2d_with_indices, aten.max_pool2d_with_indices_backward, aten.avg_pool2d}
POOL |= {aten.avg_pool2d_backward, aten._adaptive_avg_pool2d, aten.upsample_nearest2d, aten.upsample_bilinear2d}
# And the place of the dimension among their arguments.
SOFTMAX = {aten._softmax: 1, aten._safe_softmax: 1, aten._log_softmax: 1}
SOFTMAX |= {aten._softmax_backward_data: 2, aten._log_softmax_backward_data: 2}
# What MPS and cuDNN compute, by the operator that a CPU has for it.
ON_CPU = {
    aten.cudnn_batch_norm: lambda *given: aten.native_batch_norm(*given),
    aten.cudnn_batch_norm_backward: lambda x, grad, weight, mean, variance, kept, inverse, eps, _: (
        aten.native_batch_norm_backward(grad, x, weight, mean, variance, kept, inverse, True, eps, [True] * 3)
    ),
    aten._softmax: lambda x, dim, _: aten._softmax(x, dim, False),
    aten._log_softmax: lambda x, dim, _: aten._log_softmax(x, dim, False),
    aten._softmax_backward_data: lambda grad, y, dim, _: aten._softmax_backward_data(grad, y, dim, y.dtype),
    aten._log_softmax_backward_data: lambda grad, y, dim, _: aten._log_softmax_backward_data(grad, y, dim, y.dtype),
}


def host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU."""
    return tensor.detach().to("cpu", copy=True)


def some(tensor: torch.Tensor, dim: int, count: int) -> torch.Tensor:
    """On the CPU, of a dimension as many as `count`: the first, the last, and some between."""
    size, pieces = tensor.shape[dim], min(count, PIECES)
    if size <= count:
        return host(tensor)
    begins = [(size - count // pieces) * number // (pieces - 1) for number in range(pieces)]
    return torch.cat([host(tensor.narrow(dim, begin, count // pieces)) for begin in begins], dim)


# A part of what an operator gives: computes it on the CPU with numbers of a type, and picks it from what it gave.
Part = tuple[Callable[[torch.dtype], list], Callable[[torch.Tensor], Any]]


def parts(function: Any, args: tuple, kwargs: dict) -> Iterator[Part]:
    """What of an operator is computed again."""
    base = function.overloadpacket
    if base in (aten.mm, aten.bmm, aten.addmm, aten.baddbmm):
        yield _product(base, args, kwargs)
    elif base is aten.linear:
        x, weight, *bias = [item for item in args if item is not None]
        given = (*bias, x.reshape(-1, x.shape[-1]), weight.t())
        compute, pick = _product(aten.addmm if bias else aten.mm, given, {})
        yield compute, lambda out: pick(out.reshape(-1, out.shape[-1]))
    elif base is aten.linear_backward:
        yield from _linear_backward(*args)
    elif base is aten.max_pool2d_backward:  # of equal numbers, each device takes another: the sum is the same
        few = some(args[0], 1, CHANNELS)
        yield lambda kind: [few.to(kind).sum((-2, -1))], lambda out: some(out, 1, CHANNELS).float().sum((-2, -1))
    elif base is aten.convolution:
        pictures = len(args[0]) if _quick(*args[:2]) else PICTURES
        few = (some(args[0], 0, pictures), *args[1:])
        yield _again(function, few, kwargs, lambda out: some(out, 0, pictures))
    elif base is aten.convolution_backward:
        yield from _convolution_backward(function, *args)
    elif base is aten.embedding_dense_backward and args[2] * args[0].shape[-1] > LARGE:
        yield _again(function, (some(args[0], -1, ROWS), *args[1:]), kwargs, lambda out: some(out, -1, ROWS))
    elif base in SOFTMAX and args[0].numel() > LARGE and args[0].dim() > 1:
        place = SOFTMAX[base]

        def rows(item: torch.Tensor) -> torch.Tensor:
            return some(item.movedim(args[place], -1).flatten(0, -2), 0, ROWS)

        yield _again(function, (*map(rows, args[:place]), 1, *args[place + 1 :]), kwargs, rows)
    else:
        part = _sample(function, args)
        yield _again(function, *pytree.tree_map(part, (args, kwargs)), part)


def _again(function: Any, args: tuple, kwargs: dict, pick: Callable) -> Part:
    """An operator on the CPU with these arguments, as they are now. Raises MemoryError if they are too large for it."""
    size = sum(tensor.nbytes for tensor in cost.tensors(args, kwargs))
    if size > snapshot.available_memory_bytes() // 16:  # what it takes with its copies, its results and their doubles
        raise MemoryError(f"{size / 1e9:.2g} GB are too large for the CPU beside it")
    held = pytree.tree_map_only(torch.Tensor, host, (args, kwargs))
    writes = function._schema.is_mutable or function.overloadpacket in NORMALISE

    def compute(kind: torch.dtype) -> list:
        def given(item: Any) -> Any:
            if isinstance(item, torch.Tensor):
                return item.to(kind if item.dtype.is_floating_point else item.dtype, copy=writes)
            return torch.device("cpu") if isinstance(item, torch.device) else item

        own, named = pytree.tree_map(given, held)
        return results(function, ON_CPU.get(function.overloadpacket, function)(*own, **named), own)

    return compute, pick


def results(function: Any, result: Any, args: tuple) -> list:
    """The tensors that an operator gives, or else those that it writes into; None for what is no tensor."""
    if result is None:
        result = [arg for arg, about in zip(args, function._schema.arguments, strict=False) if about.is_write]
    statistics = args[3:5] if function.overloadpacket in NORMALISE else ()  # no schema says that they are written
    return [item if isinstance(item, torch.Tensor) else None for item in pytree.tree_leaves([result, statistics])]


def _sample(function: Any, args: tuple) -> Callable[[Any], Any]:
    """What picks some of an argument or a result; all of it where they are small, or depend on each other."""
    base, tensors = function.overloadpacket, cost.tensors(args)
    if max((item.numel() for item in tensors), default=0) <= LARGE:
        return lambda item: item
    shape, count, vectors = max(tensors, key=torch.Tensor.numel).shape, CHANNELS, base in BY_CHANNEL
    summed = [*((*args, None)[1] or ())] if base is aten.sum else []  # none: all of its dimensions
    if torch.Tag.pointwise in function.tags or base in PLACEWISE:
        shape, count = torch.broadcast_shapes(*(item.shape for item in tensors)), PIECES
        dim = max(range(len(shape)), key=shape.__getitem__)
    elif vectors or (base in POOL and len(shape) == 4):
        dim = 1
    elif base is aten.sum and 0 < len(summed) < len(shape) and summed == [*range(len(summed))]:
        dim, count = max(range(len(summed), len(shape)), key=shape.__getitem__), ROWS
    elif base is aten.nll_loss_backward:
        dim, count, vectors = 0, ROWS, True
    else:
        return lambda item: item

    def part(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        own = 0 if vectors and item.dim() == 1 else dim - len(shape) + item.dim()
        return some(item, own, count) if 0 <= own < item.dim() and item.shape[own] == shape[dim] else item

    return part


def _product(base: Any, args: tuple, kwargs: dict) -> Part:
    *start, a, b = args
    batched, shape = a.dim() == 3, (*a.shape[:-1], b.shape[-1])
    count, matrices = (max(shape), len(a)) if a.numel() * shape[-1] <= SUMMED else (ROWS, PICTURES)

    def rows(item: torch.Tensor) -> torch.Tensor:
        return some(some(item, 0, matrices) if batched else item, -2, count)

    left, right = rows(a), some(some(b, 0, matrices) if batched else b, -1, count)
    start = [some(rows(item.expand(shape)), -1, count) for item in start]

    def compute(kind: torch.dtype) -> list:
        return [base(*(item.to(kind) for item in (*start, left, right)), **kwargs)]

    return compute, lambda out: some(rows(out), -1, count)


def _quick(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether a CPU convolves all pictures in no time: each number goes into so many sums at the most."""
    return x.numel() * weight.numel() // min(weight.shape[:2]) <= SUMMED


def _linear_backward(x: Any, grad: Any, weight: Any, mask: Any) -> Iterator[Part]:
    x, grad = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
    through, pick = _product(aten.mm, (grad, weight), {})
    yield through, lambda out: pick(out.reshape(-1, out.shape[-1]))
    product, pick = _product(aten.mm, (grad.t(), x), {})
    yield lambda kind: [None, *product(kind)], pick
    columns = some(grad, 1, ROWS)
    yield lambda kind: [None, None, columns.to(kind).sum(0)], lambda out: some(out, 0, ROWS)


def _convolution_backward(function: Any, grad: Any, x: Any, weight: Any, *rest: Any) -> Iterator[Part]:
    """The gradient of some pictures, and over all pictures that of weights between some channels of both sides."""
    sizes, *how, groups, mask = rest
    pictures = len(x) if (quick := _quick(x, weight)) else PICTURES
    few = (some(grad, 0, pictures), some(x, 0, pictures), weight, None, *how, groups, [mask[0], False, False])
    yield _again(function, few, {}, lambda out: some(out, 0, pictures))
    own = 1 if how[3] else 0  # the dimension of the weights that is the result's channels: another one if transposed
    count, inner = (PIECES, PIECES) if groups == 1 and not quick else (grad.shape[1], x.shape[1])

    def pick(out: torch.Tensor) -> torch.Tensor:
        return some(some(out, own, count), 1 - own, inner) if out.dim() > 1 else some(out, 0, count)

    channels = (some(grad, 1, count), some(x, 1, inner), pick(weight), sizes and [min(sizes[0], count)])
    yield _again(function, (*channels, *how, groups, [False, *mask[1:]]), {}, pick)
