"""A training step on a GPU, with each operator computed once more on the CPU.

`models.verify` says whether a step is right; this names the operator that is wrong. A kernel can be
wrong at one shape and right at others (pytorch/pytorch issue 195163), so each operator is compared
at each of its shapes, from the very numbers that the device had. So rounding does not add up over
the depth of a model.
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
from pomology.models import cost

aten = torch.ops.aten
# Share of the largest number of a result. Sums of a million numbers in fp32 differ by 0.00002, fp32
# in TF32 by 0.0002. Half precision rounds a result by 0.0005 (fp16) or 0.004 (bf16), and sums in
# fp16 were seen 0.008 off.
TOLERANCE = {torch.float32: 5e-5, torch.float16: 8e-3, torch.bfloat16: 6e-2}
LIMIT_S = 1.0  # of the CPU, for all shapes of an operator
NORMALISE = {aten.native_batch_norm, aten.cudnn_batch_norm, aten._native_batch_norm_legit}


def prove(case: Any, model: Any, step: Callable[[Any, int], Any], batch_size: int) -> None:
    """Take one training step of a model on a GPU and compare each operator with the CPU.

    step: takes a model and a batch size, draws inputs, and goes forward and backward. The model is
    not to be used afterwards: it has gradients, and its running statistics have changed. A note
    with the flag `unproved` says what was not compared. Raises Mismatch with the worst operator and
    its shapes, and what the step itself raises. Does nothing on a CPU.
    """
    if case.backend.kind == "cpu":
        return
    proof = Proof(case.device, case.backend.tf32)
    with torch.device(case.device), proof:
        step(model, batch_size)
    case.backend.reset_peak_memory()
    if proof.worst:
        raise Mismatch(f"a step on the {case.backend.backend} against the CPU: {proof.worst[1]}")
    if proof.left:
        left = "; ".join(f"{name} ({why})" for name, why in sorted(proof.left.items()))
        case.note(f"not compared with the CPU: {left}", "unproved")


class Proof(TorchDispatchMode):
    """While entered, each operator of a device computes once more on the CPU at each new shape.

    tf32: convolutions may be in TF32. worst: how many times its tolerance the worst result differs,
    and that in words; None where all agree. left: operators that were not compared, and why.
    """

    def __init__(self, device: torch.device, tf32: bool = False):
        super().__init__()
        self.kind = device.type
        self.tf32 = tf32
        self.worst: tuple[float, str] | None = None
        self.left: dict[str, str] = {}
        self._seconds: dict[str, float] = {}
        self._seen: set[tuple] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        leaves = pytree.tree_leaves((args, kwargs))
        key = (function, *map(_trait, leaves))
        if key in self._seen or not self._comparable(function, name, leaves):
            return function(*args, **kwargs)
        self._seen.add(key)
        again = None
        with self._left_out(name):
            again = _on_cpu(function, args, kwargs)  # a copy, as the operator may write into these
        result = function(*args, **kwargs)
        if again:
            with self._left_out(name):
                began_s = time.thread_time()
                tensors = [item for item in leaves if isinstance(item, torch.Tensor)]
                self._compare(name, tensors, results(function, result, args), again)
                seconds = time.thread_time() - began_s
                self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        return result

    def _comparable(self, function: Any, name: str, leaves: list) -> bool:
        """Whether an operator runs on the device and gives the same when it is repeated."""
        devices = [item.device if isinstance(item, torch.Tensor) else item for item in leaves]
        kinds = [device.type for device in devices if isinstance(device, torch.device)]
        memory_only = name.startswith(("empty", "new_empty", "_unsafe_view"))
        if self.kind not in kinds or function.is_view or memory_only:
            return False
        if torch.Tag.nondeterministic_seeded in function.tags:
            if any(word in name for word in ("attention", "dropout", "rnn")):
                self.left[name] = "it draws random numbers"
            return False  # others give random numbers alone
        if self._seconds.get(name, 0.0) > LIMIT_S:
            self.left[name] = f"at more shapes than the CPU computes in {LIMIT_S:g} s"
            return False
        return True

    @contextlib.contextmanager
    def _left_out(self, name: str) -> Iterator[None]:
        """Note an error of the comparison, which is none of the operator, as the reason."""
        try:
            yield
        except NotImplementedError:
            self.left[name] = "the CPU lacks it"
        except Exception as error:
            self.left[name] = str(error).split("\n")[0][:100]

    def _compare(self, name: str, tensors: list, device: list, again: Callable) -> None:
        for place, (result, wanted) in enumerate(zip(device, again(torch.float32), strict=False)):
            if result is None or wanted is None or not wanted.numel():
                continue
            kind = result.dtype
            tolerance = 0.0
            least = 0.0
            if kind.is_floating_point:
                tolerance = TOLERANCE.get(kind, TOLERANCE[torch.float32])
                least = torch.finfo(kind).tiny  # which may be 0 on a GPU
                if self.tf32 and "convolution" in name:
                    tolerance = max(tolerance, TOLERANCE[torch.float16])
            elif place or name.startswith("arg"):
                continue  # places of the largest, of which there may be several
            value = result.detach().cpu()
            share = _excess(value, wanted.to(kind), tolerance, least)
            if share > 1 and tolerance:  # a sum in which much cancels is as inexact on the CPU
                exact = again(torch.float64)[place].double()
                least += 64 * float((wanted.double() - exact).abs().nan_to_num().max())
                share = _excess(value, exact.to(kind), tolerance, least)
            if share > max(1.0, self.worst[0] if self.worst else 0.0):
                shapes = ["×".join(map(str, item.shape)) or "a number" for item in tensors]
                far = f"differs by {share:.2g} times what rounding explains"
                words = far if math.isfinite(share) else "is not finite"
                self.worst = share, f"{name} of {' and '.join(shapes)} {words}"


def results(function: Any, result: Any, args: tuple) -> list:
    """The tensors that an operator gives or else writes into; None for what is no tensor."""
    if result is None:
        pairs = zip(args, function._schema.arguments, strict=False)
        result = [arg for arg, declared in pairs if declared.is_write]
    # No schema says that running statistics are written.
    statistics = args[3:5] if function.overloadpacket in NORMALISE else ()
    leaves = pytree.tree_leaves([result, statistics])
    return [item if isinstance(item, torch.Tensor) else None for item in leaves]


def _on_cpu(function: Any, args: tuple, kwargs: dict) -> Callable[[torch.dtype], list]:
    """A function that computes an operator on the CPU in a precision, with the arguments of now."""
    size = sum(tensor.nbytes for tensor in cost.tensors(args, kwargs))
    # Beside them there are copies, results, and both in double precision.
    if size > snapshot.available_memory_bytes() // 16:
        raise MemoryError(f"{size / 1e9:.2g} GB are too large for the CPU beside it")

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to("cpu", copy=True)

    held = pytree.tree_map_only(torch.Tensor, copied, (args, kwargs))

    def compute(kind: torch.dtype) -> list:
        def argument(item: Any) -> Any:
            if isinstance(item, torch.Tensor):
                return item.to(kind if item.is_floating_point() else item.dtype, copy=True)
            return torch.device("cpu") if isinstance(item, torch.device) else item

        own, named = pytree.tree_map(argument, held)
        operator = CPU_OPERATORS.get(function.overloadpacket, function)
        return results(function, operator(*own, **named), own)

    return compute


def _batch_norm_backward(x, grad, weight, mean, variance, kept_mean, inverse, eps, _):
    rest = (weight, mean, variance, kept_mean, inverse, True, eps, [True] * 3)
    return aten.native_batch_norm_backward(grad, x, *rest)


def _linear_backward(x, grad, weight, _):
    rows = grad.reshape(-1, grad.shape[-1])
    return [grad @ weight, rows.t() @ x.reshape(-1, x.shape[-1]), rows.sum(0)]


# What computes on a CPU what only cuDNN, MPS or autocast have.
CPU_OPERATORS = {
    aten.cudnn_batch_norm: aten.native_batch_norm,
    aten.cudnn_batch_norm_backward: _batch_norm_backward,
    aten.linear_backward: _linear_backward,
    aten._softmax: lambda x, dim, _: aten._softmax(x, dim, False),
    aten._log_softmax: lambda x, dim, _: aten._log_softmax(x, dim, False),
    aten._softmax_backward_data: lambda grad, y, dim, _: aten._softmax_backward_data(
        grad, y, dim, y.dtype
    ),
    aten._log_softmax_backward_data: lambda grad, y, dim, _: aten._log_softmax_backward_data(
        grad, y, dim, y.dtype
    ),
}


def _excess(value: torch.Tensor, wanted: torch.Tensor, tolerance: float, least: float) -> float:
    """How many times what is allowed the largest difference is; infinite if only one is finite."""
    value, wanted = value.double(), wanted.double()
    same = (value == wanted) | (value.isnan() & wanted.isnan())
    largest = float(torch.where(same, 0.0, (value - wanted).abs()).max())
    most = float(torch.where(wanted.isfinite(), wanted.abs(), 0.0).max())
    share = largest / (tolerance * most + least + 1e-30)
    return share if math.isfinite(share) else math.inf


def _trait(item: Any) -> Any:
    """What tells two arguments apart."""
    if isinstance(item, torch.Tensor):
        offset = bool(item.storage_offset())
        return item.shape, item.stride(), offset, item.dtype, item.device.type
    return None if isinstance(item, float) else str(item)
