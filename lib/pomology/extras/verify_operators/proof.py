"""A training step on a GPU against the CPU, operator by operator, before any is timed.

A GPU's kernel can be wrong at one shape, and right at those that anybody tests: products of PyTorch 2.13 over 32,767
numbers and more on M1 and M2, for instance (pytorch/pytorch issue 195163). So the step that a row times is taken once
at its own shapes, and each operator computes once more on the CPU from the very numbers that it had. Rounding cannot
add up over the depth of a model, as each operator's own is all that is compared. Of what would take a CPU too long,
some is computed, each number over all of its sum: a fault in fewer than one row in 11 may be missed there, and one in
pictures, matrices or channels that are neither the first, the middle nor the last; but for NaN.
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
from pomology.extras.verify_operators import sample

aten = torch.ops.aten
# Of the largest number of a result: sums of a million numbers in fp32 differ by 0.00002, fp32 computed in TF32 by
# 0.0002. In half precision the result alone is rounded to 0.0005 and 0.004, and sums in fp16 were seen 0.008 off.
TOLERANCE = {torch.float32: 5e-5, torch.float16: 8e-3, torch.bfloat16: 6e-2}
# Two ways of the same step on one device, as a share of a gradient's norm: sums in another order can take values across
# the bend of a ReLU. And the share of the largest gradient below which one is rounding alone, as of a bias before a
# batch normalisation.
SAME_STEP = {False: (0.1, 1e-3), True: (0.6, 0.1)}  # whether there is half precision in it
HALF = (torch.float16, torch.bfloat16)
LIMIT_S = 1.0  # of the CPU, for all shapes of an operator
POISON_BYTES = 2**28
GRADIENT = 3072  # numbers that are kept of each
# Whose results are sums, so never NaN where the numbers are finite, but in fp16, in which sums may overflow.
SUMS = {aten.mm, aten.bmm, aten.addmm, aten.baddbmm, aten.linear, aten.linear_backward}
SUMS |= {aten.convolution, aten.convolution_backward}


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
    batch_size, began_s = batch_size or case["batch_size"], time.perf_counter()
    random, seed = torch.get_rng_state(), torch.initial_seed()
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}

    def gradients(batch_size: int, mode: Any) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)
        model.zero_grad()
        with torch.device(case.device), mode:
            step(model, batch_size)
        made = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
        made = {name: sample.some(gradient.detach().flatten(), 0, GRADIENT) for name, gradient in made.items()}
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
        pairs: list[sample.Part] = []
        if self.seconds.get(name, 0.0) > LIMIT_S:
            self.left.setdefault(name, f"at more shapes than the CPU computes in {LIMIT_S:g} s")
            return function(*args, **kwargs)
        with self._said(name):
            if name != "native_dropout":
                pairs += sample.parts(function, args, kwargs)
        result = function(*args, **kwargs)  # behind the copies, as it may write into what it was given
        with self._said(name):
            if function.overloadpacket in SUMS:
                self._look_for_nan(name, tensors, sample.results(function, result, args))
            if name == "native_dropout":
                pairs += sample.parts(aten.native_dropout_backward.default, (args[0], result[1], 1 / (1 - args[1])), {})
        for again, pick in pairs:
            with self._said(name):
                began = time.thread_time()
                self._compare(name, tensors, sample.results(function, result, args), pick, again)
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
            value, kind, tolerance, least = sample.host(pick(device)), device.dtype, 0.0, 0.0
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
    value, wanted = (item.float() if item.is_floating_point() else item.double() for item in (value, wanted))
    largest, most = float((value - wanted).abs().max()), float(wanted.abs().max())
    if not (math.isfinite(largest) and math.isfinite(most)):  # the same infinity or NaN on both sides is no difference
        same = (value == wanted) | (value.isnan() & wanted.isnan())
        largest = float(torch.where(same, 0.0, (value - wanted).abs()).max())
        most = float(torch.where(wanted.isfinite(), wanted, 0.0).abs().max())
    return largest / (tolerance * most + more + 1e-30) if math.isfinite(largest) else math.inf


def _far(share: float) -> str:
    return "is not finite" if math.isinf(share) else f"differs by {share:.2g} times what rounding explains"


def _trait(item: Any) -> Any:
    """What makes an argument another one."""
    if isinstance(item, torch.Tensor):
        return item.shape, item.stride(), bool(item.storage_offset()), item.dtype, item.device.type
    return None if isinstance(item, float) else str(item)
