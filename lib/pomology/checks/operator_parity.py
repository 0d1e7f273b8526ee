"""Verify a training step on a GPU by recomputing each operator on the CPU.

`models.verify` checks a whole step; this module names the wrong operator. A kernel can be wrong at
one shape and right at others (pytorch/pytorch issue 195163), so each operator is compared at each
of its shapes, with the inputs that the device had. Rounding errors then do not accumulate over the
depth of a model.
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
# Allowed difference over the largest element of a result. Sums of a million elements in fp32 differ
# by 0.00002, fp32 in TF32 by 0.0002. Half precision rounds a result by 0.0005 (fp16) or 0.004
# (bf16), and observed sums in fp16 differed by 0.008.
TOLERANCE = {torch.float32: 5e-5, torch.float16: 8e-3, torch.bfloat16: 6e-2}


def verify(case: Any, model: Any, step: Callable[[Any, int], Any], batch_size: int) -> None:
    """Take one training step of a model on a GPU and compare each operator with the CPU.

    step: takes a model and a batch size, draws inputs, and runs forward and backward. Discard the
    model afterwards: it has gradients, and changed running statistics. A note with the flag
    `unproved` names operators that were not compared. Raises Mismatch with the worst operator and
    its shapes, and any exception of the step. Does nothing on a CPU.
    """
    if case.backend.kind == "cpu":
        return
    compared = Compared(case.device, case.backend.tf32)
    with torch.device(case.device), compared:
        step(model, batch_size)
    case.backend.reset_peak_memory()
    _, worst = compared.worst
    if worst:
        raise Mismatch(f"a step on {case.backend.backend} and on the CPU: {worst}")
    if compared.left:
        left = "; ".join(f"{name} ({why})" for name, why in sorted(compared.left.items()))
        case.note(f"not compared with the CPU: {left}", "unproved")


class Compared(TorchDispatchMode):
    """A context in which each operator of a device is recomputed on the CPU at each new shape.

    tf32: convolutions may be in TF32. worst: the largest difference over its tolerance, and its
    description, "" if all agree. left: operators that were not compared -> reason.
    """

    def __init__(self, device: torch.device, tf32: bool = False):
        super().__init__()
        self.kind = device.type
        self.tf32 = tf32
        self.worst = (1.0, "")
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
        again = _on_cpu(function, args, kwargs)  # copies them, as the operator may change them
        result = function(*args, **kwargs)
        try:
            tensors = [item for item in leaves if isinstance(item, torch.Tensor)]
            self._compare(name, tensors, results(function, result, args), again)
        except Exception as error:  # the comparison failed, for example without a CPU kernel
            self.left[name] = str(error).split("\n")[0][:100]
        return result

    def _comparable(self, function: Any, name: str, leaves: list) -> bool:
        """Return whether an operator runs on the device and is deterministic."""
        devices = [item.device if isinstance(item, torch.Tensor) else item for item in leaves]
        kinds = [device.type for device in devices if isinstance(device, torch.device)]
        memory_only = name.startswith(("empty", "new_empty", "_unsafe_view"))
        if self.kind not in kinds or function.is_view or memory_only:
            return False
        if torch.Tag.nondeterministic_seeded in function.tags:
            if any(word in name for word in ("attention", "dropout", "rnn")):
                self.left[name] = "it draws random numbers"
            return False  # other such operators only return random numbers
        return True

    def _compare(self, name: str, tensors: list, device: list, again: Callable) -> None:
        pairs = zip(device, again(torch.float32), strict=False)
        for number, (result, expected) in enumerate(pairs):
            if result is None or expected is None or not expected.numel():
                continue
            kind = result.dtype
            tolerance = least = 0.0
            if kind.is_floating_point:
                tolerance = TOLERANCE.get(kind, TOLERANCE[torch.float32])
                least = torch.finfo(kind).tiny  # a GPU may flush smaller values to 0
                if self.tf32 and "convolution" in name:
                    tolerance = max(tolerance, TOLERANCE[torch.float16])
            elif number or name.startswith("arg"):
                continue  # indices of a maximum, which may occur several times
            value = result.detach().cpu()
            share = _excess(value, expected.to(kind), tolerance, least)
            if share > 1 and tolerance:  # with cancellation the CPU's sum is inexact, too
                exact = again(torch.float64)[number].double()
                least += 64 * float((expected.double() - exact).abs().nan_to_num().max())
                share = _excess(value, exact.to(kind), tolerance, least)
            if share > self.worst[0]:
                shapes = ["×".join(map(str, item.shape)) or "a number" for item in tensors]
                far = f"differs by {share:.2g} times what rounding explains"
                words = far if math.isfinite(share) else "is not finite"
                self.worst = share, f"{name} of {' and '.join(shapes)} {words}"


def results(function: Any, result: Any, args: tuple) -> list:
    """Return the tensors that an operator returns, or else changes; None for other objects."""
    if result is None:
        pairs = zip(args, function._schema.arguments, strict=False)
        result = [arg for arg, declared in pairs if declared.is_write]
    leaves = pytree.tree_leaves(result)
    return [item if isinstance(item, torch.Tensor) else None for item in leaves]


def _on_cpu(function: Any, args: tuple, kwargs: dict) -> Callable[[torch.dtype], list]:
    """Return a function that runs an operator on the CPU in a precision, on copied arguments."""

    def held(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            return item.detach().to("cpu", copy=True)
        return torch.device("cpu") if isinstance(item, torch.device) else item

    copies = pytree.tree_map(held, (args, kwargs))

    def compute(kind: torch.dtype) -> list:
        def converted(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(kind if tensor.is_floating_point() else tensor.dtype, copy=True)

        arguments, named = pytree.tree_map_only(torch.Tensor, converted, copies)
        only_mps = function.overloadpacket is aten.linear_backward
        operator = _linear_backward if only_mps else function
        return results(function, operator(*arguments, **named), arguments)

    return compute


def _linear_backward(inputs, grad, weight, _):
    """Compute on a CPU the gradients that MPS computes by its own operator."""
    rows = grad.reshape(-1, grad.shape[-1])
    return [grad @ weight, rows.t() @ inputs.reshape(-1, inputs.shape[-1]), rows.sum(0)]


def _excess(value: torch.Tensor, expected: torch.Tensor, tolerance: float, least: float) -> float:
    """Return the largest difference over the allowed one; infinity if only one value is finite."""
    value, expected = value.double(), expected.double()
    same = (value == expected) | (value.isnan() & expected.isnan())
    largest = float(torch.where(same, 0.0, (value - expected).abs()).max())
    most = float(torch.where(expected.isfinite(), expected.abs(), 0.0).max())
    share = largest / (tolerance * most + least + 1e-30)
    return share if math.isfinite(share) else math.inf


def _trait(item: Any) -> Any:
    """Return a hashable key that is equal for equivalent arguments."""
    if isinstance(item, torch.Tensor):
        return item.shape, item.stride(), item.dtype, item.device.type
    return None if isinstance(item, float) else str(item)
