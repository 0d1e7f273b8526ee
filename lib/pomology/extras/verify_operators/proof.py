"""A training step on a GPU, with each operator computed once more on the CPU.

`models.verify` says whether a step is right; this names the operator that is wrong. A kernel can be
wrong at one shape and right at others (pytorch/pytorch issue 195163), so each operator is compared
at each of its shapes, from the very numbers that the device had. So rounding does not add up over
the depth of a model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from pomology.errors import Mismatch

aten = torch.ops.aten
# Share of the largest number of a result. Sums of a million numbers in fp32 differ by 0.00002, fp32
# in TF32 by 0.0002. Half precision rounds a result by 0.0005 (fp16) or 0.004 (bf16), and sums in
# fp16 were seen 0.008 off.
TOLERANCE = {torch.float32: 5e-5, torch.float16: 8e-3, torch.bfloat16: 6e-2}


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
        self._seen: set[tuple] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        leaves = pytree.tree_leaves((args, kwargs))
        key = (function, *map(_trait, leaves))
        if key in self._seen or not self._comparable(function, name, leaves):
            return function(*args, **kwargs)
        self._seen.add(key)
        again = _on_cpu(function, args, kwargs)  # a copy, as the operator may write into these
        result = function(*args, **kwargs)
        try:
            tensors = [item for item in leaves if isinstance(item, torch.Tensor)]
            self._compare(name, tensors, results(function, result, args), again)
        except Exception as error:  # the CPU lacks it: an error of the comparison alone
            self.left[name] = str(error).split("\n")[0][:100]
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
        return True

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
    leaves = pytree.tree_leaves(result)
    return [item if isinstance(item, torch.Tensor) else None for item in leaves]


def _on_cpu(function: Any, args: tuple, kwargs: dict) -> Callable[[torch.dtype], list]:
    """A function that computes an operator on the CPU in a precision, with the arguments of now."""

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to("cpu", copy=True)

    held = pytree.tree_map_only(torch.Tensor, copied, (args, kwargs))

    def compute(kind: torch.dtype) -> list:
        def argument(item: Any) -> Any:
            if isinstance(item, torch.Tensor):
                return item.to(kind if item.is_floating_point() else item.dtype, copy=True)
            return torch.device("cpu") if isinstance(item, torch.device) else item

        own, named = pytree.tree_map(argument, held)
        only_mps = function.overloadpacket is aten.linear_backward
        operator = _linear_backward if only_mps else function
        return results(function, operator(*own, **named), own)

    return compute


def _linear_backward(x, grad, weight, _):
    """Compute on a CPU what MPS has an operator of its own for."""
    rows = grad.reshape(-1, grad.shape[-1])
    return [grad @ weight, rows.t() @ x.reshape(-1, x.shape[-1]), rows.sum(0)]


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
        return item.shape, item.stride(), item.dtype, item.device.type
    return None if isinstance(item, float) else str(item)
