"""A training step on a GPU against the CPU, operator by operator, before any is timed.

A GPU's kernel can be wrong at one shape, and right at those that anybody tests: products of PyTorch 2.13 over 32,767
numbers and more on M1 and M2, for instance (pytorch/pytorch issue 195163). So the step that a row times is taken once
at its own shapes, and each operator computes once more on the CPU from the very numbers that it had. Rounding cannot
add up over the depth of a model, as each operator's own is all that is compared. Of what would take a CPU too long,
some rows are computed, each over all of its sum; a fault in fewer than one row in 11 may be missed there, but for NaN.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from pomology.errors import Mismatch
from pomology.machine import snapshot

aten = torch.ops.aten
# Of the largest number of a result: sums of a million numbers in fp32 differ by 0.00002, fp32 computed in TF32 by
# 0.0002. In half precision the result alone is rounded to 0.0005 and 0.004, and sums in fp16 were seen 0.008 off.
TOLERANCE = {torch.float32: 5e-5, torch.float16: 8e-3, torch.bfloat16: 6e-2}
# Two ways of the same step on one device, as a share of a gradient's norm: sums in another order can take values across
# the bend of a ReLU. And the share of the largest gradient below which one is rounding alone, as of a bias before a
# batch normalisation.
SAME_STEP = {False: (0.1, 1e-3), True: (0.6, 0.1)}  # whether there is half precision in it
HALF = (torch.float16, torch.bfloat16)
ROWS, PICTURES, CHANNELS, GRADIENT = 48, 3, 3, 3072  # of a result that are computed again, and of each gradient kept
PIECES = 12  # that the rows come in, spread over all
LARGE = 2**21  # numbers of a result above which only some of it is computed again
SUMMED = 2**25  # the same for products and convolutions: of multiply-adds, some milliseconds of a CPU
LIMIT_S = 1.0  # of the CPU, for all shapes of an operator
POISON_BYTES = 2**28
# Of large results: whose every number depends on its own place alone, though PyTorch does not say so, and whose every
# channel does.
PLACEWISE = {aten.clone, aten.copy_, aten._to_copy, aten.zeros_like, aten.ones_like, aten.fill_, aten.zero_}
NORMALISE = {aten.native_batch_norm, aten.cudnn_batch_norm, aten._native_batch_norm_legit}
BY_CHANNEL = {aten.native_batch_norm_backward, aten.cudnn_batch_norm_backward} | NORMALISE
POOL = {aten.max_pool2d, aten.max_pool2d_with_indices, aten.max_pool2d_with_indices_backward, aten.avg_pool2d}
POOL |= {aten.avg_pool2d_backward, aten._adaptive_avg_pool2d, aten.upsample_nearest2d, aten.upsample_bilinear2d}
# And the place of the dimension among their arguments.
SOFTMAX = {aten._softmax: 1, aten._safe_softmax: 1, aten._log_softmax: 1}
SOFTMAX |= {aten._softmax_backward_data: 2, aten._log_softmax_backward_data: 2}
# Whose results are sums, so never NaN where the numbers are finite, but in fp16, in which sums may overflow.
SUMS = {aten.mm, aten.bmm, aten.addmm, aten.baddbmm, aten.linear, aten.linear_backward}
SUMS |= {aten.convolution, aten.convolution_backward}
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


def prove(case: Any, model: Any, step: Callable[[Any, int], Any], batch_size: int | None = None) -> None:
    """Take one training step of a model on a GPU, and hold each operator in it against the CPU; nothing on a CPU.

    step: takes a model and a batch size forward and backward, with random inputs of its own, as it is counted on paper.
    batch_size: the row's, if its settings do not say it. A smaller batch goes before, and free memory is filled with
    NaN: the known faults show then. The step as it is timed must give the gradients of the step that was checked.
    Weights, running statistics and the CPU's random numbers are as before, the device's begin anew; gradients are none,
    its memory is free and its peak begins anew. The case's remark says so, and what was not held against the CPU, with
    the flag `unproved`. `proof_s` is the time of a proof that passed. Raises Mismatch with the operator and its shapes,
    or the parameter, that is worst; and what the step itself raises, such as out of memory.
    """
    if case.backend.kind == "cpu":
        return
    batch_size, began_s = batch_size or case.batch_size, time.perf_counter()
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
        if batch_size > 3:  # a batch normalisation needs two
            gradients(batch_size // 2, contextlib.nullcontext())
        free = max(0, min(POISON_BYTES, case.backend.free_memory() // 4))
        torch.full((free // 4,), math.nan, device=case.device)
        timed = gradients(batch_size, contextlib.nullcontext())
        proof = Proof(case.device, case.backend.tf32 and case.config.get("tf32") != "off")
        checked = gradients(batch_size, proof)
    finally:
        torch.manual_seed(seed)
        torch.set_rng_state(random)
        kept.clear()
        case.backend.reset_peak_memory()
    if proof.worst:
        raise Mismatch(f"a step on the {case.backend.backend} against the CPU: {proof.worst[1]}")
    case.note("held against the CPU before it was timed: the kernels of its first step were compiled by then")
    if proof.left:
        left = "; ".join(f"{name} ({why})" for name, why in sorted(proof.left.items()))
        case.note(f"not held against the CPU: {left}", "unproved")
    _same_step(timed, checked, *SAME_STEP[proof.half])
    case.metric("proof_s", time.perf_counter() - began_s, "s")


def _same_step(timed: dict, checked: dict, tolerance: float, floor: float) -> None:
    """Hold the gradients of two passes of a device against each other. Raises Mismatch with the worst parameter."""
    pairs = {name: (timed[name].double(), gradient.double()) for name, gradient in checked.items()}
    size = {name: float(wanted.nan_to_num(0.0, 0.0, 0.0).square().mean()) ** 0.5 for name, (_, wanted) in pairs.items()}
    least, shares = floor * max(size.values(), default=0.0), {}
    for name, (value, wanted) in pairs.items():
        same = (value == wanted) | (value.isnan() & wanted.isnan())
        apart = float(torch.where(same, 0.0, value - wanted).square().mean()) ** 0.5
        share = apart / (tolerance * max(size[name], least) + 1e-30)
        shares[name] = math.inf if math.isnan(share) else share
    worst = max(shares, key=shares.__getitem__, default="")
    if worst and shares[worst] > 1:
        raise Mismatch(
            f"the gradient of {worst}, once operator by operator, once as it is timed, {_far(shares[worst])}"
        )


class Proof(TorchDispatchMode):
    """While it is entered, each operator on a device computes once more on the CPU, the first time at its shapes.

    tf32: convolutions may be in TF32. worst: how many times its tolerance the worst result differs, and which; None
    where all agree. left: operators that were not, or not at all of their shapes, held against the CPU, and why.
    seconds: of the CPU, by operator. half: whether some gave half precision.
    """

    def __init__(self, device: torch.device, tf32: bool = False):
        super().__init__()
        self.kind, self.tf32 = device.type, tf32
        self.worst: tuple[float, str] | None = None
        self.left: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self.half = False
        self._seen: set[tuple] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, name = kwargs or {}, function.overloadpacket.__name__
        leaves = pytree.tree_leaves((args, kwargs))
        key = (function, *map(_trait, leaves))
        tensors = [item for item in leaves if isinstance(item, torch.Tensor)]
        devices = [item.device if isinstance(item, torch.Tensor) else item for item in leaves]
        here = any(isinstance(device, torch.device) and device.type == self.kind for device in devices)
        if not here or key in self._seen or not self._repeats(function, name):
            return function(*args, **kwargs)
        self._seen.add(key)
        pairs: list[Part] = []
        if self.seconds.get(name, 0.0) > LIMIT_S:
            self.left.setdefault(name, f"at more shapes than the CPU computes in {LIMIT_S:g} s")
            return function(*args, **kwargs)
        with self._said(name):
            if name != "native_dropout":
                pairs += _parts(function, args, kwargs)
        result = function(*args, **kwargs)  # behind the copies, as it may write into what it was given
        if function.overloadpacket in SUMS:
            with self._said(name):
                self._look_for_nan(name, tensors, _results(function, result, args))
        with self._said(name):
            if name == "native_dropout":
                pairs += _parts(aten.native_dropout_backward.default, (args[0], result[1], 1 / (1 - args[1])), {})
        for again, pick in pairs:
            with self._said(name):
                began = time.thread_time()
                self._compare(name, tensors, _results(function, result, args), pick, again)
                self.seconds[name] = self.seconds.get(name, 0.0) + time.thread_time() - began
        return result

    def _repeats(self, function: Any, name: str) -> bool:
        """Whether another call has to give the same, or something else says what it has to give."""
        if function.is_view or name.startswith(("empty", "new_empty", "_unsafe_view")):
            return False
        if torch.Tag.nondeterministic_seeded not in function.tags:
            return True
        if "attention" in name or "rnn" in name:  # gives more than random numbers
            self.left.setdefault(name, "it draws random numbers")
        return name == "native_dropout"  # which says what numbers are left

    @contextlib.contextmanager
    def _said(self, name: str) -> Iterator[None]:
        """Inside, an error is of what checks, not of what is checked: a reason why this operator was not."""
        try:
            yield
        except Exception as error:
            lacks = isinstance(error, NotImplementedError)
            self.left.setdefault(name, "the CPU lacks it" if lacks else str(error).split("\n")[0][:100])

    def _look_for_nan(self, name: str, tensors: list, results: list) -> None:
        """In all of what an operator gives, on the device."""
        made = [item for item in results if item is not None and item.dtype != torch.float16]
        if any(bool(item.isnan().any()) for item in made) and all(bool(item.isfinite().all()) for item in tensors):
            self._note(name, tensors, math.inf)

    def _note(self, name: str, tensors: list, share: float) -> None:
        if share > max(1.0, self.worst[0] if self.worst else 0.0):
            shapes = " and ".join("×".join(map(str, tensor.shape)) or "a number" for tensor in tensors)
            self.worst = share, f"{name} of {shapes} {_far(share)}"

    def _compare(self, name: str, tensors: list, results: list, pick: Callable, again: Callable) -> None:
        for place, (device, wanted) in enumerate(zip(results, again(torch.float32), strict=False)):
            if device is None or wanted is None or not wanted.numel():
                continue
            value, kind, tolerance, least = _host(pick(device)), device.dtype, 0.0, 0.0
            if kind.is_floating_point:
                tolerance = TOLERANCE.get(kind, TOLERANCE[torch.float32])
                least = torch.finfo(kind).tiny  # which may be 0 on a GPU
                if self.tf32 and "convolution" in name:
                    tolerance = max(tolerance, TOLERANCE[torch.float16])
                self.half |= kind in HALF
            elif place or name.startswith("arg"):  # places of the largest, of which there may be several
                continue
            share = _excess(value, wanted.to(kind), tolerance, least)
            if share > 1 and tolerance:  # a sum in which much cancels is as inexact on the CPU
                exact = again(torch.float64)[place].double()
                least += 64 * float((wanted.double() - exact).abs().nan_to_num().max())
                share = _excess(value, exact.to(kind), tolerance, least)
            self._note(name, tensors, share)


def _excess(value: torch.Tensor, wanted: torch.Tensor, tolerance: float, more: float = 0.0) -> float:
    """How many times what is allowed the largest difference is; infinite where only one of both is finite."""
    same = (value == wanted) | (value.isnan() & wanted.isnan())
    value, wanted = (item.float() if item.is_floating_point() else item.double() for item in (value, wanted))
    apart = torch.where(same, 0.0, (value - wanted).abs())
    if not bool(apart.isfinite().all()):
        return math.inf
    finite = torch.where(wanted.isfinite(), wanted, 0.0).abs().max()
    return float(apart.max()) / (tolerance * float(finite) + more + 1e-30)


def _far(share: float) -> str:
    return "is not finite" if math.isinf(share) else f"differs by {share:.2g} times what rounding explains"


def _trait(item: Any) -> Any:
    """What makes an argument another one."""
    if isinstance(item, torch.Tensor):
        return item.shape, item.stride(), bool(item.storage_offset()), item.dtype, item.device.type
    return None if isinstance(item, float) else str(item)


def _host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU."""
    return tensor.detach().to("cpu", copy=True)


def _some(tensor: torch.Tensor, dim: int, count: int) -> torch.Tensor:
    """On the CPU, of a dimension as many as `count`: the first, the last, and some between."""
    size, pieces = tensor.shape[dim], min(count, PIECES)
    if size <= count:
        return _host(tensor)
    begins = [(size - count // pieces) * number // (pieces - 1) for number in range(pieces)]
    return torch.cat([_host(tensor.narrow(dim, begin, count // pieces)) for begin in begins], dim)


# A part of what an operator gives: computes it on the CPU with numbers of a type, and picks it from what it gave.
Part = tuple[Callable[[torch.dtype], list], Callable[[torch.Tensor], Any]]


def _parts(function: Any, args: tuple, kwargs: dict) -> Iterator[Part]:
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
        few = _some(args[0], 1, CHANNELS)
        yield lambda kind: [few.to(kind).sum((-2, -1))], lambda out: _some(out, 1, CHANNELS).float().sum((-2, -1))
    elif base is aten.convolution:
        pictures = len(args[0]) if _quick(*args[:2]) else PICTURES
        few = (_some(args[0], 0, pictures), *args[1:])
        yield _again(function, few, kwargs, lambda out: _some(out, 0, pictures))
    elif base is aten.convolution_backward:
        yield from _convolution_backward(function, *args)
    else:
        part = _sample(function, args)
        yield _again(function, *pytree.tree_map(part, (args, kwargs)), part)


def _again(function: Any, args: tuple, kwargs: dict, pick: Callable) -> Part:
    """An operator on the CPU with these arguments, as they are now. Raises MemoryError if they are too large for it."""
    tensors = [item for item in pytree.tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)]
    size = sum(item.numel() * item.element_size() for item in tensors)
    if size > snapshot.available_memory_bytes() // 16:  # what it takes with its copies, its results and their doubles
        raise MemoryError(f"{size / 1e9:.2g} GB are too large for the CPU beside it")
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
    statistics = args[3:5] if function.overloadpacket in NORMALISE else ()  # no schema says that they are written
    return [item if isinstance(item, torch.Tensor) else None for item in pytree.tree_leaves([result, statistics])]


def _sample(function: Any, args: tuple) -> Callable[[Any], Any]:
    """What picks some of an argument or a result; all of it where they are small, or depend on each other."""
    base, tensors = function.overloadpacket, [x for x in pytree.tree_leaves(args) if isinstance(x, torch.Tensor)]
    if max((item.numel() for item in tensors), default=0) <= LARGE:
        return lambda item: item
    shape, count, vectors = max(tensors, key=torch.Tensor.numel).shape, CHANNELS, base in BY_CHANNEL
    if torch.Tag.pointwise in function.tags or base in PLACEWISE:
        shape, count = torch.broadcast_shapes(*(item.shape for item in tensors)), PIECES
        dim = max(range(len(shape)), key=shape.__getitem__)
    elif base in SOFTMAX and len(shape) > 1:
        others, count = [*range(len(shape))], ROWS
        del others[args[SOFTMAX[base]]]
        dim = max(others, key=shape.__getitem__)
    elif vectors or (base in POOL and len(shape) == 4):
        dim = 1
    elif base is aten.nll_loss_backward:
        dim, count, vectors = 0, ROWS, True
    else:
        return lambda item: item

    def part(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        own = 0 if vectors and item.dim() == 1 else dim - len(shape) + item.dim()
        return _some(item, own, count) if 0 <= own < item.dim() and item.shape[own] == shape[dim] else item

    return part


def _product(base: Any, args: tuple, kwargs: dict) -> Part:
    *start, a, b = args
    batched, shape = a.dim() == 3, (*a.shape[:-1], b.shape[-1])
    count, matrices = (max(shape), len(a)) if a.numel() * shape[-1] <= SUMMED else (ROWS, PICTURES)

    def rows(item: torch.Tensor) -> torch.Tensor:
        return _some(_some(item, 0, matrices) if batched else item, -2, count)

    left, right = rows(a), _some(_some(b, 0, matrices) if batched else b, -1, count)
    start = [_some(rows(item.expand(shape)), -1, count) for item in start]

    def compute(kind: torch.dtype) -> list:
        return [base(*(item.to(kind) for item in (*start, left, right)), **kwargs)]

    return compute, lambda out: _some(rows(out), -1, count)


def _quick(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether a CPU convolves all pictures in no time: each number goes into so many sums at the most."""
    return x.numel() * weight.numel() // min(weight.shape[:2]) <= SUMMED


def _linear_backward(x: Any, grad: Any, weight: Any, mask: Any) -> Iterator[Part]:
    x, grad = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
    through, pick = _product(aten.mm, (grad, weight), {})
    yield through, lambda out: pick(out.reshape(-1, out.shape[-1]))
    product, pick = _product(aten.mm, (grad.t(), x), {})
    yield lambda kind: [None, *product(kind)], pick
    columns = _some(grad, 1, ROWS)
    yield lambda kind: [None, None, columns.to(kind).sum(0)], lambda out: _some(out, 0, ROWS)


def _convolution_backward(function: Any, grad: Any, x: Any, weight: Any, *rest: Any) -> Iterator[Part]:
    """The gradient of some pictures, and that of some channels of the weights over all pictures."""
    sizes, *how, groups, mask = rest
    pictures = len(x) if (quick := _quick(x, weight)) else PICTURES
    few = (_some(grad, 0, pictures), _some(x, 0, pictures), weight, None, *how, groups, [mask[0], False, False])
    yield _again(function, few, {}, lambda out: _some(out, 0, pictures))
    own = 1 if how[3] else 0  # the dimension of the weights that is the result's channels: another one if transposed
    count = CHANNELS if groups == 1 and not quick else grad.shape[1]
    channels = (_some(grad, 1, count), x, _some(weight, own, count), sizes and [min(sizes[0], count)])
    pick = lambda out: _some(out, own if out.dim() > 1 else 0, count)  # noqa: E731
    yield _again(function, (*channels, *how, groups, [False, *mask[1:]]), {}, pick)
