"""Faults that are known to give wrong numbers without a word: whether a GPU has them, here and now.

Each is looked for at the shape that shows it, with NaN behind the numbers, as some faults read what is there. Those
that pinned versions have cured are not looked for.
"""

from __future__ import annotations

import functools
import importlib
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from pomology.devices.base import Device

PRESENT, CURED, ELSEWHERE = "present here", "cured here", "does not concern this chip"
NOT_TRIED = "not tried"
WRONG = 5e-3  # share of the largest number: fp32 rounds to 0.00001 of it here, TF32 to 0.001
LONG = (
    33_278  # numbers that a product sums up, as for WikiText-2's words; 32,767 and more are wrong
)
BATCH = 65_600  # over 2^16


class Fault(NamedTuple):
    """what: in words. framework, backends: where it can be. spared: a pattern of the names of chips
    that do not have it, or nothing. source: where it is described. cure: what helps. look: takes the
    framework and a device, and says what is wrong, empty if nothing is."""

    what: str
    framework: str
    backends: tuple[str, ...]
    spared: str
    source: str
    cure: str
    look: Callable[[Any, Any], str]


def of(device: Device) -> list[Fault]:
    """The faults of a device's framework and backend."""
    same = [fault for fault in FAULTS if fault.framework == device.framework]
    return [fault for fault in same if device.backend in fault.backends]


def look(fault: Fault, device: Device) -> str:
    """Whether a device has a fault, in one of the words above, and why. It may end the process."""
    if fault.spared and re.search(fault.spared, device.name or ""):
        return ELSEWHERE
    framework = {"mlx": "mlx.core"}.get(device.framework, device.framework)
    try:
        with device.context():
            wrong = fault.look(importlib.import_module(framework), device)
    except Exception as error:  # a fault that ends in an error is not silent
        return f"{NOT_TRIED}: {str(error).splitlines()[0]}"
    return f"{PRESENT}: {wrong}" if wrong else CURED


def _against_cpu(compute: Callable[..., dict], torch: Any, device: Device) -> str:
    """compute: takes PyTorch and a function that brings tensors to a device; gives tensors by name."""

    def before_nan(tensor: Any) -> Any:
        place = torch.full((tensor.numel() + 2**18,), math.nan, device=device.handle)
        place[: tensor.numel()] = tensor.flatten().to(device.handle)
        return place[: tensor.numel()].view(tensor.shape)

    torch.manual_seed(1)
    results = compute(torch, before_nan)
    torch.manual_seed(1)
    texts = []
    for name, right in compute(torch, torch.Tensor.clone).items():
        result, right = results[name].detach().cpu().double(), right.detach().double()
        share = float((result - right).abs().max() / right.abs().max())
        if math.isnan(share):
            texts.append(f"{name} has NaN")
        elif share > WRONG:
            texts.append(f"{name} differs by {100 * share:.2g} %")
    return "; ".join(texts)


def _product(torch: Any, bring: Callable, *batch: int) -> dict[str, Any]:
    a, b = bring(torch.randn(*batch, 20, LONG)), bring(torch.randn(*batch, LONG, 33))
    return {f"a product over {LONG:,} numbers": a @ b}


def _large_batch(torch: Any, bring: Callable) -> dict[str, Any]:
    images = torch.randn(BATCH, 1, 3, 3)
    images[: 2**16] /= 32  # so that neither these nor the last 64 are most of a sum
    weights = bring(torch.randn(2, 1, 3, 3)).requires_grad_()
    seen = torch.conv2d(bring(images), weights)
    (gradient,) = torch.autograd.grad(seen.square().sum(), weights)
    tensors = [bring(torch.randn(shape)) for shape in ((BATCH, 2, 9), (4, 9), (4,))]
    layer = torch.nn.functional.linear(*tensors)
    results = {
        "a convolution": seen,
        "the gradient of its weights": gradient,
        "a linear layer": layer,
    }
    return {f"{name} of a batch of {BATCH:,}": each for name, each in results.items()}


def _not_contiguous(torch: Any, bring: Callable) -> dict[str, Any]:
    images = bring(torch.randn(4, 8, 8, 6)).requires_grad_()
    scale = bring(torch.randn(6, 2)).requires_grad_()
    turned = images.permute(0, 3, 1, 2)
    seen = torch.nn.functional.batch_norm(turned, None, None, scale[:, 0], training=True)
    (seen**2 * bring(torch.linspace(-1, 1, 8))).sum().backward()
    named = {"BatchNorm's permuted input": images, "BatchNorm's weights": scale}
    return {f"the gradient of {name}": each.grad for name, each in named.items()}


PYTORCH, M4_ON = "pytorch/pytorch issue", r"\bM([4-9]|\d\d)\b"
FAULTS = (
    Fault(
        "products over 32,767 numbers or more", "torch", ("mps",), M4_ON,
        f"{PYTORCH}s 195163, 177116 and 193487", "PyTorch 2.14; in 2.13 PYTORCH_MPS_PREFER_METAL=1",
        functools.partial(_against_cpu, _product),
    ),
    Fault(
        "the same in a batch of products", "torch", ("mps",), M4_ON,
        f"{PYTORCH} 195163", "none yet: keep them shorter",
        functools.partial(_against_cpu, lambda *given: _product(*given, 2)),
    ),
    Fault(
        "batches of 65,536 or more", "torch", ("mps",), "",
        f"{PYTORCH}s 96225 and 189495", "a smaller batch", functools.partial(_against_cpu, _large_batch),
    ),
    Fault(
        "gradients of what is not contiguous", "torch", ("mps",), "",
        f"{PYTORCH} 175189", "call .contiguous() before BatchNorm",
        functools.partial(_against_cpu, _not_contiguous),
    ),
)  # fmt: skip
