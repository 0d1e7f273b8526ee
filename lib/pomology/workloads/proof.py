"""A training step on a GPU against the CPU, operator by operator, before any is timed.

A GPU's kernel can be wrong at one shape, and right at those that anybody tests: products of PyTorch 2.13 over 32,767
numbers and more on M1 and M2, for instance (pytorch/pytorch issue 195163). So the step that a row times is taken once
at its own shapes, and each operator computes once more on the CPU from the very numbers that it had. Rounding cannot
add up over the depth of a model, as each operator's own is all that is compared. Of products and convolutions, which
take a CPU too long, some rows are computed, each over all of its sum.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from pomology.errors import Mismatch

if TYPE_CHECKING:
    from pomology.experiment.case import Case

aten = torch.ops.aten
# Of the largest number of a result: sums of a million numbers in fp32 differ by 0.00002, fp32 computed in TF32 by
# 0.0002. In half precision the result alone is rounded to 0.0005 and 0.004.
TOLERANCE = {torch.float32: 5e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
# Two ways of the same step on one device: sums in another order, which can take values across the bend of a ReLU.
SAME_STEP = {torch.float32: 1e-2, torch.float16: 0.1, torch.bfloat16: 0.1}
ROWS, PICTURES, CHANNELS, GRADIENT = 48, 3, 3, 3072  # of a result that are computed again, and of each gradient kept
LARGE = 2**21  # numbers of a result above which only rows of it are computed again
POISON_BYTES = 2**28
# Have no result that another call could give again.
UNREPEATED = ("rand", "normal", "bernoulli", "dropout", "uniform", "exponential", "multinomial", "empty")
# What cuDNN computes, by the operator that a CPU has for it.
ON_CPU = {
    aten.cudnn_batch_norm: lambda *given: aten.native_batch_norm(*given),
    aten.cudnn_batch_norm_backward: lambda x, grad, weight, mean, variance, kept, inverse, eps, _: (
        aten.native_batch_norm_backward(grad, x, weight, mean, variance, kept, inverse, True, eps, [True] * 3)
    ),
}


def prove(case: Case, model: Any, step: Callable[[Any, int], Any], batch_size: int | None = None) -> None:
    """Take one training step of a model on a GPU, and hold each operator in it against the CPU; nothing on a CPU.

    step: takes a model and a batch size forward and backward, with random inputs of its own, as it is counted on paper.
    batch_size: the row's, if its settings do not say it. A smaller batch goes before, and free memory is filled with
    NaN: the known faults show then. The step as it is timed must give the gradients of the step that was checked.
    Weights, running statistics and random numbers are as before; gradients are none, and the memory's peak begins anew.
    Raises Mismatch with the operator and its shapes, or the parameter, that is worst.
    """
    if case.backend.kind == "cpu":
        return
    batch_size = batch_size or case.batch_size
    random, seed = torch.get_rng_state(), torch.initial_seed()
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}

    def gradients(batch_size: int, mode: Any) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)
        model.zero_grad()
        with torch.device(case.device), mode:
            step(model, batch_size)
        made = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
        made = {name: _some(gradient.detach().flatten(), 0, GRADIENT) for name, gradient in made.items()}
        model.zero_grad()
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(kept[name])
        return made

    try:
        gradients(max(1, batch_size // 2), contextlib.nullcontext())
        free = min(POISON_BYTES, case.backend.free_memory() // 4) // 4
        poison = torch.full((free,), math.nan, device=case.device)
        del poison
        timed = gradients(batch_size, contextlib.nullcontext())
        proof = Proof(case.device, case.backend.tf32 and case.config.get("tf32") != "off")
        checked = gradients(batch_size, proof)
    finally:
        torch.manual_seed(seed)
        torch.set_rng_state(random)
        case.backend.reset_peak_memory()
    if proof.worst:
        raise Mismatch(f"a step on the {case.backend.backend} against the CPU: {proof.worst[1]}")
    if proof.unknown:
        case.note(f"not held against the CPU: {', '.join(sorted(proof.unknown))}")
    apart = {name: float((timed[name] - grad).norm() / (grad.norm() + 1e-30)) for name, grad in checked.items()}
    worst = max(apart, key=lambda name: math.inf if math.isnan(apart[name]) else apart[name])
    lowest = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(case.precision, torch.float32)
    if not apart[worst] <= SAME_STEP[lowest]:
        share = "is not finite" if math.isnan(apart[worst]) else f"differs by {100 * apart[worst]:.2g} %"
        raise Mismatch(f"the gradient of {worst} {share} from that of the same step, operator by operator")


class Proof(TorchDispatchMode):
    """While it is entered, each operator on a device computes once more on the CPU, the first time at its shapes.

    worst: how many times its tolerance the worst result differs, and which; None where all agree. unknown: operators
    that the CPU does not have.
    """

    def __init__(self, device: torch.device, tf32: bool = False):
        super().__init__()
        self.kind, self.tf32 = device.type, tf32
        self.worst: tuple[float, str] | None = None
        self.unknown: set[str] = set()
        self.checked = 0
        self._seen: set[tuple] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, name = kwargs or {}, function.overloadpacket.__name__
        key = (function, *(_trait(item) for item in pytree.tree_leaves((args, kwargs))))
        tensors = [item for item in pytree.tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)]
        here = any(tensor.device.type == self.kind for tensor in tensors)
        if not here or key in self._seen or function.is_view or any(word in name for word in UNREPEATED):
            return function(*args, **kwargs)
        self._seen.add(key)
        pairs = list(_parts(function, args, kwargs))  # before it may write into what it was given
        result = function(*args, **kwargs)
        results = _results(function, result, args)
        for again, pick in pairs:
            try:
                expected = again(torch.float32)
            except (NotImplementedError, RuntimeError, TypeError):
                self.unknown.add(name)
                continue
            picked = [each if each is None else pick(each) for each in results]
            self._compare(name, tensors, picked, expected, again)
        self.checked += 1
        return result

    def _compare(self, name: str, tensors: list, results: list, expected: list, again: Callable) -> None:
        for place, (device, wanted) in enumerate(zip(results, expected, strict=False)):
            if device is None or wanted is None or not device.dtype.is_floating_point or not wanted.numel():
                continue
            tolerance = TOLERANCE.get(device.dtype, TOLERANCE[torch.float32])
            if self.tf32 and "convolution" in name:
                tolerance = max(tolerance, TOLERANCE[torch.float16])
            value, wanted = _host(device), wanted.double()
            share = _excess(value, wanted, tolerance)
            if share > 1:  # a sum in which much cancels is as inexact on the CPU
                exact = again(torch.float64)[place].double()
                share = _excess(value, exact, tolerance, 64 * float((wanted - exact).abs().nan_to_num().max()))
            if share > max(1.0, self.worst[0] if self.worst else 0.0):
                shapes = " and ".join("×".join(map(str, tensor.shape)) or "a number" for tensor in tensors)
                far = "not finite" if math.isinf(share) else f"{share:.2g} times what rounding explains"
                self.worst = share, f"{name} of {shapes} is {far}"


def _excess(value: torch.Tensor, wanted: torch.Tensor, tolerance: float, more: float = 0.0) -> float:
    """How many times what is allowed the largest difference is; infinite where only one of both is finite."""
    value = value.double()
    apart = torch.where((value == wanted) | (value.isnan() & wanted.isnan()), 0.0, (value - wanted).abs())
    if not bool(apart.isfinite().all()):
        return math.inf
    finite = torch.where(wanted.isfinite(), wanted, 0.0).abs().max()
    return float(apart.max()) / (tolerance * float(finite) + more + 1e-30)


def _trait(item: Any) -> Any:
    """What makes an argument another one."""
    if isinstance(item, torch.Tensor):
        return item.shape, item.stride(), item.dtype, item.device.type
    return None if isinstance(item, float) else str(item)


def _host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU."""
    tensor = tensor.detach()
    return tensor.clone() if tensor.device.type == "cpu" else tensor.cpu()


def _some(tensor: torch.Tensor, dim: int, count: int) -> torch.Tensor:
    """On the CPU, of a dimension as many as `count`: the first, the last, and some between."""
    size, each = tensor.shape[dim], count // 3
    if size <= count:
        return _host(tensor)
    return torch.cat([_host(tensor.narrow(dim, begin, each)) for begin in (0, size * 5 // 8, size - each)], dim)


# A part of what an operator gives: computes it on the CPU with numbers of a type, and picks it from the device's result.
Part = tuple[Callable[[torch.dtype], list], Callable[[torch.Tensor], Any]]


def _parts(function: Any, args: tuple, kwargs: dict) -> Iterator[Part]:
    """What of an operator is computed again."""
    base = function.overloadpacket
    if base in (aten.mm, aten.bmm, aten.addmm, aten.baddbmm):
        yield _product(base, args, kwargs)
    elif base is aten.linear:
        x, weight, *bias = args
        rows, columns = _some(x.flatten(0, -2), 0, ROWS), _some(weight, 0, ROWS)
        bias = [_some(each, 0, ROWS) for each in bias if each is not None]
        yield (
            lambda kind: [torch.nn.functional.linear(*(each.to(kind) for each in (rows, columns, *bias)))],
            lambda out: _some(_some(out.flatten(0, -2), 0, ROWS), 1, ROWS),
        )
    elif base is aten.linear_backward:
        yield from _linear_backward(*args)
    elif base is aten.convolution:
        yield _again(function, (_some(args[0], 0, PICTURES), *args[1:]), kwargs, lambda out: _some(out, 0, PICTURES))
    elif base is aten.convolution_backward:
        yield from _convolution_backward(function, *args)
    elif dim := _dimension(function, args):
        shape, place = dim
        whole = (args, kwargs)

        def part(item: Any) -> Any:
            own = place - len(shape) + item.dim() if isinstance(item, torch.Tensor) else -1
            return _some(item, own, ROWS) if own >= 0 and item.shape[own] == shape[place] else item

        yield _again(function, *pytree.tree_map(part, whole), lambda out: _some(out, place, ROWS))
    else:
        yield _again(function, args, kwargs, lambda out: out)


def _again(function: Any, args: tuple, kwargs: dict, pick: Callable) -> Part:
    """An operator on the CPU with these arguments, as they are now."""
    held = pytree.tree_map_only(torch.Tensor, _host, (args, kwargs))

    def compute(kind: torch.dtype) -> list:
        def given(item: Any) -> Any:
            if isinstance(item, torch.Tensor):
                return item.to(kind, copy=True) if item.dtype.is_floating_point else item.clone()
            return torch.device("cpu") if isinstance(item, torch.device) else item

        own, named = pytree.tree_map(given, held)
        return _results(function, ON_CPU.get(function.overloadpacket, function)(*own, **named), own)

    return compute, pick


def _results(function: Any, result: Any, args: tuple) -> list:
    """The tensors that an operator gives, or else those that it writes into; None for what is no tensor."""
    if result is None:
        result = [arg for arg, about in zip(args, function._schema.arguments, strict=False) if about.is_write]
    return [item if isinstance(item, torch.Tensor) else None for item in pytree.tree_leaves(result)]


def _dimension(function: Any, args: tuple) -> tuple[torch.Size, int] | None:
    """Of a large result, each number of which depends on its own place alone: its shape, and the largest dimension."""
    tensors = [item for item in pytree.tree_leaves(args) if isinstance(item, torch.Tensor)]
    if torch.Tag.pointwise not in function.tags:
        return None
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
    return (shape, max(range(len(shape)), key=shape.__getitem__)) if shape.numel() > LARGE else None


def _product(base: Any, args: tuple, kwargs: dict) -> Part:
    *start, a, b = args
    batched = a.dim() == 3

    def rows(item: torch.Tensor) -> torch.Tensor:
        return _some(_some(item, 0, PICTURES) if batched else item, -2, ROWS)

    left, right = rows(a), _some(_some(b, 0, PICTURES) if batched else b, -1, ROWS)
    shape = (*a.shape[:-1], b.shape[-1])
    start = [_some(rows(item.expand(shape)), -1, ROWS) for item in start]

    def compute(kind: torch.dtype) -> list:
        return [base(*(item.to(kind) for item in (*start, left, right)), **kwargs)]

    return compute, lambda out: _some(rows(out), -1, ROWS)


def _linear_backward(x: Any, grad: Any, weight: Any, mask: Any) -> Iterator[Part]:
    x, grad = x.flatten(0, -2), grad.flatten(0, -2)
    rows, whole, columns, inputs = _some(grad, 0, ROWS), _some(weight, 1, ROWS), _some(grad, 1, ROWS), _some(x, 1, ROWS)
    yield (
        lambda kind: [rows.to(kind) @ whole.to(kind), None, None],
        lambda out: _some(_some(out.flatten(0, -2), 0, ROWS), 1, ROWS) if out.dim() > 1 else None,
    )
    yield (
        lambda kind: [None, columns.to(kind).t() @ inputs.to(kind), columns.to(kind).sum(0)],
        lambda out: _some(_some(out, 0, ROWS), 1, ROWS) if out.dim() > 1 else _some(out, 0, ROWS),
    )


def _convolution_backward(function: Any, grad: Any, x: Any, weight: Any, sizes: Any, *rest: Any) -> Iterator[Part]:
    """The gradient of some pictures, and that of some channels of the weights over all pictures."""
    *how, groups, mask = rest
    transposed = how[3]
    few = (_some(grad, 0, PICTURES), _some(x, 0, PICTURES), weight, None)
    yield _again(function, (*few, *how, groups, [mask[0], False, False]), {}, lambda out: _some(out, 0, PICTURES))
    if groups == 1:
        own = 1 if transposed else 0  # the dimension of the weights that is the result's channels
        channels = (_some(grad, 1, CHANNELS), x, _some(weight, own, CHANNELS), sizes and [min(sizes[0], CHANNELS)])
        pick = lambda out: _some(out, own if out.dim() > 1 else 0, CHANNELS)  # noqa: E731
        yield _again(function, (*channels, *how, groups, [False, *mask[1:]]), {}, pick)
