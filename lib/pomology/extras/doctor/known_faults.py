"""Faults that are known to give wrong numbers without a word: whether a device has them, here and now.

Each is looked for at the shape that shows it, with memory full of NaN behind the numbers, as some read what is there.
Which rows of a notebook meet one is shown by their own proof (`models.proof`)."""

import functools
import importlib
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from pomology.devices.base import Device
from pomology.errors import Unsupported

PRESENT, CURED, ELSEWHERE = "present here", "cured here", "does not concern this chip"
NOT_TRIED = "not tried"
ENDED = f"{NOT_TRIED}: its process ended, or took too long"
WRONG = 5e-3  # share of the largest number: fp32 rounds to 0.00001 of it here, TF32 to 0.001; the faults change more
LONG = 33_278  # numbers that a product sums up, as the gradient of WikiText-2's words does: 32,767 and more are wrong
SIDE = 16_500  # of a square matrix: (rows of the other one + 2 × 16,500) × 16,500 × 4 bytes are over 2^31
MATRICES = 65_537  # of 256 × 256 numbers: over 2^32 in all
BATCH = 65_600  # over 2^16


class Fault(NamedTuple):
    """what: in words. framework, backends: where it can be. spared: a regular expression of the names of chips that are
    known not to have it; empty is none. source: where it is described. cure: what helps. look: takes the
    framework and a device, and says what is wrong, empty if nothing is; raises Unsupported if it cannot be tried."""

    what: str
    framework: str
    backends: tuple[str, ...]
    spared: str
    source: str
    cure: str
    look: Callable[[Any, Any], str]


def of(device: Device) -> list[Fault]:
    """The faults of a device's framework and backend."""
    return [each for each in FAULTS if each.framework == device.framework and device.backend in each.backends]


def look(fault: Fault, device: Device) -> str:
    """Whether a device has a fault: present here, cured here, does not concern this chip, or not tried, the first and
    the last with a reason. Seeds PyTorch. Raises nothing, but a fault may end the process."""
    if fault.spared and re.search(fault.spared, device.name or ""):
        return ELSEWHERE
    framework = {"mlx": "mlx.core"}.get(device.framework, device.framework)
    try:
        with device.context():
            wrong = fault.look(importlib.import_module(framework), device)
    except Exception as error:  # a fault that ends in an error is not silent
        return f"{NOT_TRIED}: {str(error).split(chr(10))[0]}"
    return f"{PRESENT}: {wrong}" if wrong else CURED


def _wrong(made: dict[str, Any], expected: dict[str, Any]) -> str:
    """What is wrong with tensors of PyTorch, if anything."""
    texts = []
    for name, right in expected.items():
        right = right.detach().double()
        share = float((made[name].detach().cpu().double() - right).abs().max() / right.abs().max())
        if not share <= WRONG:
            texts.append(f"{name} has NaN" if math.isnan(share) else f"{name} differs by {100 * share:.2g} %")
    return "; ".join(texts)


def _against_cpu(compute: Callable[..., dict[str, Any]], torch: Any, device: Device) -> str:
    """compute: takes PyTorch and a function that brings tensors to a device, and gives tensors by name."""

    def before_nan(tensor: Any) -> Any:
        place = torch.full((tensor.numel() + 2**18,), math.nan, device=device.handle)
        place[: tensor.numel()] = tensor.flatten().to(device.handle)
        return place[: tensor.numel()].view(tensor.shape)

    torch.manual_seed(1)
    made = compute(torch, before_nan)
    torch.manual_seed(1)
    return _wrong(made, compute(torch, torch.Tensor.clone))


def _need(device: Device, size: int) -> None:
    """Nothing here takes more than half of the memory that is free."""
    if device.free_memory() < 2 * size:
        raise Unsupported(f"needs {2 * size / 1e9:.0f} GB of memory that is free")


def _product(torch: Any, bring: Callable, *batch: int) -> dict[str, Any]:
    a, b = bring(torch.randn(*batch, 20, LONG)), bring(torch.randn(*batch, LONG, 33))
    return {f"a product over {LONG:,} numbers": a @ b}


def _large_product(torch: Any, device: Device) -> str:
    _need(device, 4 * SIDE**2)
    large, few = torch.ones(SIDE, SIDE, device=device.handle), torch.ones(32, SIDE, device=device.handle)
    made = {f"a product with a matrix of {SIDE:,} squared": few @ large, "the same from the left": large @ few.t()}
    return _wrong(made, dict.fromkeys(made, torch.tensor([float(SIDE)])))


def _many_numbers(torch: Any, device: Device) -> str:
    """A gradient of 2^32 numbers and more: of the last matrices the product was that of the first ones. Takes 8.8 GB,
    as fp16 is the smallest type that is trained. On a CPU in place of a GPU: cured, and present where it is planted."""
    _need(device, 2 * 2**16 * MATRICES)
    above = torch.zeros(MATRICES, 256, 256, dtype=torch.float16, device=device.handle)
    above[-1:].fill_(1)
    other = torch.ones(MATRICES, 2, 256, dtype=torch.float16, device=device.handle)
    made = {"the gradient of 2^32 results": torch.bmm(above, other.transpose(1, 2))[-1]}
    return _wrong(made, dict.fromkeys(made, torch.tensor([256.0])))


def _large_batch(torch: Any, bring: Callable) -> dict[str, Any]:
    images = torch.randn(BATCH, 1, 3, 3)
    images[: 2**16] /= 32  # so that neither these nor the last 64 are most of a sum
    weights = bring(torch.randn(2, 1, 3, 3)).requires_grad_()
    seen = torch.conv2d(bring(images), weights)
    (gradient,) = torch.autograd.grad(seen.square().sum(), weights)
    layer = torch.nn.functional.linear(*(bring(torch.randn(shape)) for shape in ((BATCH, 2, 9), (4, 9), (4,))))
    made = {"a convolution": seen, "the gradient of its weights": gradient, "a linear layer": layer}
    return {f"{name} of a batch of {BATCH:,}": each for name, each in made.items()}


def _not_contiguous(torch: Any, bring: Callable) -> dict[str, Any]:
    images, scale = bring(torch.randn(4, 8, 8, 6)).requires_grad_(), bring(torch.randn(6, 2)).requires_grad_()
    words, *weights = (bring(torch.randn(shape)).requires_grad_() for shape in ((5, 6, 3), (5, 28), (7, 28)))
    seen = torch.nn.functional.batch_norm(images.permute(0, 3, 1, 2), None, None, scale[:, 0], training=True)
    start = [bring(torch.zeros(1, 3, 7)) for _ in range(2)]
    turned = [each.t() for each in weights]
    heard = torch.lstm(words.permute(1, 2, 0), start, turned, False, 1, 0.0, True, False, False)[0]
    ((seen**2 * bring(torch.linspace(-1, 1, 8))).sum() + heard.square().sum()).backward()
    named = {"BatchNorm's permuted input": images, "BatchNorm's weights": scale, "LSTM's permuted input": words}
    return {f"the gradient of {name}": each.grad for name, each in (named | {"LSTM's weights": weights[0]}).items()}


def _early_copies(torch: Any, device: Device) -> str:
    for size in (1, 2**16):
        # Each source is gone, and its memory taken by the next one, before anybody waits.
        made = [torch.full((size,), float(number)).to(device.handle, non_blocking=True) for number in range(20)]
        if any(bool((each != number).any()) for number, each in enumerate(made)):
            return "a copy with non_blocking=True has numbers that came later"
    return ""


def _reduced(torch: Any, device: Device) -> str:
    """fp32 that is not: 1 + 2^-20 is 1 in TF32, which keeps 10 bits behind the point."""
    number = 1 + 2.0**-20
    numbers, identity = torch.full((64, 64), number, device=device.handle), torch.eye(64, device=device.handle)
    made = {"products": numbers @ identity}
    made["convolutions"] = torch.conv2d(numbers.view(1, 64, 8, 8), identity.view(64, 64, 1, 1))
    few = [name for name, values in made.items() if not bool((values == number).all())]
    return f"{' and '.join(few)} in fp32 are computed in TF32" if few else ""


def _compiled(torch: Any, device: Device) -> str:
    def gradients(way: Callable) -> dict[str, Any]:
        torch.manual_seed(1)
        # Without a bias before the norm: its gradient is nothing but rounding.
        layers = torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten()
        model = torch.nn.Sequential(*layers, torch.nn.Linear(8 * 36, 10)).to(device.handle)
        images, labels = torch.randn(16, 3, 8, 8).to(device.handle), torch.randint(10, (16,)).to(device.handle)
        torch.nn.functional.cross_entropy(way(model)(images), labels).backward()
        return {f"the gradient of {name}": weight.grad.cpu() for name, weight in model.named_parameters()}

    return _wrong(gradients(torch.compile), gradients(lambda model: model))


def _metal_relu(tensorflow: Any, _: Device) -> str:
    import numpy as np

    generator = np.random.default_rng(1)
    numbers = (generator.normal(size=size).astype("float32") for size in ((32, 64), (64, 48), 48))
    x, weights, bias = map(tensorflow.constant, numbers)

    @tensorflow.function(jit_compile=False)
    def dense(x):
        return tensorflow.nn.relu(tensorflow.nn.bias_add(tensorflow.matmul(x, weights), bias))

    exact = np.maximum(x.numpy() @ weights.numpy() + bias.numpy(), 0)
    share = float(np.abs(dense(x).numpy() - exact).max() / exact.max())
    return f"a dense layer with ReLU differs by {100 * share:.2g} %" if not share <= WRONG else ""


PYTORCH, M3_ON, M4_ON = "pytorch/pytorch issue", r"\bM([3-9]|\d\d)\b", r"\bM([4-9]|\d\d)\b"
# Last those that have ended a process, or take long.
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
        "copies that are read too early", "torch", ("mps",), "",
        f"{PYTORCH}s 189690 and 139550", "no non_blocking=True", _early_copies,
    ),
    Fault(
        "TF32 in place of fp32", "torch", ("cuda", "mps"), "",
        "docs.pytorch.org, CUDA semantics", "torch.backends.cudnn.allow_tf32 = False; the kit's rows with tf32: off",
        _reduced,
    ),
    Fault(
        "products with matrices of 1 GB", "torch", ("mps",), M3_ON,
        "JuliaGPU/Metal.jl issue 381", "keep matrices below 13,000 squared", _large_product,
    ),
    Fault(
        "gradients of over 2^32 results", "torch", ("mps",), "",
        f"{PYTORCH} 197636", "none yet: a smaller batch", _many_numbers,
    ),
    Fault(
        "gradients of what is not contiguous", "torch", ("mps",), "",
        f"{PYTORCH} 175189", "call .contiguous() before BatchNorm and LSTM",
        functools.partial(_against_cpu, _not_contiguous),
    ),
    Fault(
        "gradients behind torch.compile", "torch", ("mps", "cuda"), "",
        f"{PYTORCH} 150121", "do not compile", _compiled,
    ),
    Fault(
        "TF32 in place of fp32 in MLX", "mlx", ("mlx-gpu",), "",
        "ml-explore/mlx issue 3534", "MLX_ENABLE_TF32=0 before MLX is imported, as the kit sets it",
        lambda _, device: "products in fp32 are computed in TF32" if device.tf32 else "",
    ),
    Fault(
        "a dense layer with ReLU on Metal", "tensorflow", ("metal",), "",
        "tensorflow/tensorflow issues 62137 and 92686", "TURN_OFF_REMAPPER=1, as the kit sets it", _metal_relu,
    ),
)  # fmt: skip
