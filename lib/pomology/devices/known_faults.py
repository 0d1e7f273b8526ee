"""Faults that are known to give wrong numbers without a word: whether a device has them, here and now.

A fault may hide behind memory that happens to be zero, so free memory is filled with NaN first. What a row of a
notebook meets is found by its own proof (`workloads.proof`); this says which rows those will be, and what cures them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from pomology.devices.base import Device

PRESENT, CURED, ELSEWHERE = "present here", "cured here", "does not concern this chip"
NOT_TRIED = "not tried"
WRONG = 1e-3  # share of the largest number; fp32 rounds to 0.00001 in these
LONG = 33_000  # numbers that a product sums up: over 32,767
PYTORCH = "pytorch/pytorch issue"


class Fault(NamedTuple):
    """what: in words. framework, backends: where it can be. chips: a regular expression of the names of those that have
    it; empty is all. source: where it is described. cure: what helps. look: says what is wrong; empty if nothing is."""

    what: str
    framework: str
    backends: tuple[str, ...]
    chips: str
    source: str
    cure: str
    look: Callable[[Device], str]


class NotTried(Exception):
    """Why a fault cannot be looked for here."""


def look(device: Device) -> list[tuple[Fault, str]]:
    """Each known fault, and whether this device has it: present here, cured here, does not concern this chip, or not
    tried, the first and the last with a reason. Never raises."""
    answers = []
    for fault in FAULTS:
        answer = ELSEWHERE
        here = fault.framework == device.framework and device.backend in fault.backends
        if here and re.search(fault.chips, device.name or ""):
            try:
                with device.context():
                    wrong = fault.look(device)
                answer = f"{PRESENT}: {wrong}" if wrong else CURED
            except Exception as error:  # a fault that ends in an error is not silent
                answer = f"{NOT_TRIED}: {str(error).split(chr(10))[0]}"
        answers.append((fault, answer))
    return answers


def _apart(values: Any, expected: Any, what: str) -> str:
    """What is wrong with tensors of PyTorch, if anything."""
    values, expected = values.detach().cpu().double(), expected.detach().double()
    share = float(((values - expected).abs() / expected.abs().max()).max())
    if math.isnan(share):
        return f"{what} has NaN"
    return f"{what} differs from the CPU's by {100 * share:.2g} %" if share > WRONG else ""


def _poison(device: Device, torch: Any) -> None:
    torch.full((min(2**26, device.free_memory() // 16),), math.nan, device=device.handle)


def _long_sum(device: Device, batch: tuple[int, ...] = ()) -> str:
    import torch

    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(*batch, *shape, generator=generator) for shape in ((48, LONG), (LONG, 48)))
    _poison(device, torch)
    return _apart(a.to(device.handle) @ b.to(device.handle), a @ b, f"a product over {LONG:,} numbers")


def _large_product(device: Device) -> str:
    import torch

    size = 16_500
    if device.free_memory() < 8 * size**2 + 2**30:
        raise NotTried(f"needs {8 * size**2 / 1e9:.1f} GB")
    made = torch.ones(32, size, device=device.handle) @ torch.ones(size, size, device=device.handle)
    return _apart(made, torch.full((32, size), float(size)), f"a product with a matrix of {size:,} squared")


def _many_results(device: Device) -> str:
    import torch

    size = 46_400  # 2 × 46,400² is over 2^32
    if device.free_memory() < 10 * size**2 + 2**30:
        raise NotTried(f"needs {10 * size**2 / 1e9:.0f} GB")
    a = torch.ones(2, size, 1, dtype=torch.float16, device=device.handle, requires_grad=True)
    torch.bmm(a, torch.full((2, 1, size), 2**-14, dtype=torch.float16, device=device.handle)).backward(
        torch.ones((), dtype=torch.float16, device=device.handle).expand(2, size, size)
    )
    return _apart(a.grad, torch.full((2, size, 1), size * 2**-14), "the gradient of 2^32 results")


def _many_pictures(device: Device) -> str:
    import torch

    generator = torch.Generator().manual_seed(1)
    images, weight = torch.randn(65_600, 1, 3, 3, generator=generator), torch.randn(2, 1, 3, 3, generator=generator)
    made = torch.conv2d(images.to(device.handle), weight.to(device.handle))
    return _apart(made, torch.conv2d(images, weight), "a convolution of 65,600 pictures")


def _permuted(device: Device) -> str:
    import torch

    def gradients(where: Any) -> tuple[Any, Any]:
        torch.manual_seed(1)
        norm, lstm = torch.nn.BatchNorm2d(6).to(where), torch.nn.LSTM(6, 6).to(where)
        images, words = torch.randn(4, 8, 8, 6).to(where), torch.randn(5, 6, 7).to(where)
        images, words = images.requires_grad_(), words.requires_grad_()
        weights = torch.linspace(-1, 1, 8).to(where)
        (norm(images.permute(0, 3, 1, 2)) ** 2 * weights).sum().backward()
        lstm(words.permute(2, 0, 1))[0].square().sum().backward()
        return images.grad, words.grad

    pairs = zip(gradients(device.handle), gradients("cpu"), ("BatchNorm", "LSTM"), strict=True)
    wrong = [_apart(made, expected, f"the gradient of a permuted input of {name}") for made, expected, name in pairs]
    return "; ".join(filter(None, wrong))


def _early_copies(device: Device) -> str:
    import torch

    for number in range(40):
        there = torch.full((2**20,), float(number)).to(device.handle, non_blocking=True)
        torch.full((2**20,), -1.0)  # takes the memory of the one that is gone
        device.synchronize()
        if not bool((there == number).all()):
            return "a copy with non_blocking=True has numbers that came later"
    return ""


def _reduced(device: Device) -> str:
    """fp32 that is not: 1 + 2^-20 is 1 in TF32, which keeps 10 bits behind the point."""
    import torch

    number = 1 + 2.0**-20
    numbers, identity = torch.full((64, 64), number, device=device.handle), torch.eye(64, device=device.handle)
    made = {"products": numbers @ identity}
    made["convolutions"] = torch.conv2d(numbers.view(1, 64, 8, 8), identity.view(64, 64, 1, 1))
    few = [name for name, values in made.items() if not bool((values == number).all())]
    return f"{' and '.join(few)} in fp32 are computed in TF32" if few else ""


def _compiled(device: Device) -> str:
    import torch

    def gradients(compiled: bool) -> list[Any]:
        torch.manual_seed(1)
        layers = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten()
        model = torch.nn.Sequential(*layers, torch.nn.Linear(8 * 36, 10))
        images, labels = torch.randn(16, 3, 8, 8).to(device.handle), torch.randint(10, (16,)).to(device.handle)
        model.to(device.handle)
        called = torch.compile(model) if compiled else model
        torch.nn.functional.cross_entropy(called(images), labels).backward()
        return [weight.grad.cpu() for weight in model.parameters()]

    pairs = zip(gradients(True), gradients(False), strict=True)
    return next(filter(None, (_apart(*pair, "a gradient behind torch.compile") for pair in pairs)), "")


def _mlx_reduced(device: Device) -> str:
    import mlx.core as mx

    number = 1 + 2.0**-20
    kept = mx.all((mx.full((64, 64), number) @ mx.eye(64)) == number).item()
    return "" if kept else "products in fp32 are computed in TF32"


def _metal_relu(device: Device) -> str:
    import numpy as np

    from pomology.devices import tensorflow as devices_tensorflow

    tensorflow = devices_tensorflow.load()
    generator = np.random.default_rng(1)
    x, weights, bias = (tensorflow.constant(generator.normal(size=s).astype("float32")) for s in ((32, 64), (64, 48), 48))

    @tensorflow.function(jit_compile=False)
    def dense(x):
        return tensorflow.nn.relu(tensorflow.nn.bias_add(tensorflow.matmul(x, weights), bias))

    exact = np.maximum(x.numpy() @ weights.numpy() + bias.numpy(), 0)
    share = float(np.abs(dense(x).numpy() - exact).max() / exact.max())
    return f"a dense layer with ReLU differs by {100 * share:.2g} %" if not share <= WRONG else ""


M1_M2 = r"\bM[12]\b"
FAULTS = (
    Fault(
        "products over 32,767 numbers or more", "torch", ("mps",), M1_M2,
        f"{PYTORCH}s 195163, 177116 and 193487", "PyTorch 2.14; in 2.13 PYTORCH_MPS_PREFER_METAL=1", _long_sum,
    ),
    Fault(
        "the same in a batch of products", "torch", ("mps",), M1_M2,
        f"{PYTORCH} 195012", "none yet: keep them shorter", lambda device: _long_sum(device, (2,)),
    ),
    Fault(
        "gradients of 2^32 results or more", "torch", ("mps",), "",
        f"{PYTORCH} 197636", "none yet: a smaller batch", _many_results,
    ),
    Fault(
        "convolutions of 65,536 pictures or more", "torch", ("mps",), "",
        "the limit of a Metal grid", "a smaller batch", _many_pictures,
    ),
    Fault(
        "products with matrices of 2 GB", "torch", ("mps",), M1_M2,
        "JuliaGPU/Metal.jl issue 381", "keep matrices below 13,000 squared", _large_product,
    ),
    Fault(
        "gradients of permuted inputs", "torch", ("mps",), "",
        f"{PYTORCH} 175189", "call .contiguous() before BatchNorm and LSTM", _permuted,
    ),
    Fault(
        "copies that are read too early", "torch", ("mps",), "",
        f"{PYTORCH}s 189690 and 139550", "no non_blocking=True", _early_copies,
    ),
    Fault(
        "TF32 in place of fp32", "torch", ("cuda", "mps"), "",
        "docs.pytorch.org, CUDA semantics", "rows with tf32: off", _reduced,
    ),
    Fault(
        "gradients behind torch.compile", "torch", ("mps", "cuda"), "",
        f"{PYTORCH} 150121", "do not compile", _compiled,
    ),
    Fault(
        "TF32 in place of fp32 in MLX", "mlx", ("mlx-gpu",), "",
        "ml-explore/mlx issue 3534", "MLX_ENABLE_TF32=0 before MLX is imported, as the kit sets it", _mlx_reduced,
    ),
    Fault(
        "a dense layer with ReLU on Metal", "tensorflow", ("metal",), "",
        "tensorflow/tensorflow issues 62137 and 92686", "TURN_OFF_REMAPPER=1, as the kit sets it", _metal_relu,
    ),
)  # fmt: skip
