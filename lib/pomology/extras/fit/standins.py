"""Stand-ins on `meta` for what needs a GPU: layers in 4 bits, autocast, optimizers in 8 bits."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any
from unittest import mock

# Functions that autocast computes in half precision, and those that it computes in fp32 on a GPU
# and on a CPU. Others take what comes.
# https://github.com/pytorch/pytorch/blob/v2.14.1/aten/src/ATen/autocast_mode.h
IN_HALF = {
    *("linear", "matmul", "__matmul__", "mm", "bmm", "addmm", "baddbmm", "einsum"),
    *("conv1d", "conv2d", "scaled_dot_product_attention"),
}
ON_CPU = {"cross_entropy", "cross_entropy_loss", "nll_loss", "mse_loss", "prod"}
ON_GPU = ON_CPU | {
    *("softmax", "log_softmax", "layer_norm", "pow", "__pow__", "rsqrt", "exp", "log", "cumsum"),
    *("sum", "norm", "softplus"),
}
# Bytes per weight of an optimizer's state in 8 bits: two of a byte each, and for each of them a
# scale of 4 bytes per block of 256 (bitsandbytes). Smaller tensors have a state in fp32.
STATE_8BIT = 2 * (1 + 4 / 256)
SMALLEST_8BIT = 4096
CHUNKS = 8  # of a loss in chunks, as in torchtune
# Bits per element of a matrix in 4 bits. bitsandbytes adds a scale per 64 elements, quantized
# itself. MLX adds a scale and an offset of 16 bits per GROUP, or to MXFP4 a scale of 8 bits per 32.
BITSANDBYTES, MLX, MLX_IN_8_BITS, MXFP4 = 4.127, 4.5, 8.5, 4.25
GROUP = 64
# Matrices that mlx-lm quantizes to 8 bits, by class: `quant_predicate` in
# https://github.com/ml-explore/mlx-lm/tree/v0.32.2/mlx_lm/models.
KEPT_IN_8_BITS = {
    "GptOssForCausalLM": ("router",),
    "GraniteForCausalLM": ("o_proj", "down_proj", "lm_head"),
    "Lfm2MoeForCausalLM": ("gate",),
    "MiniMaxForCausalLM": ("gate",),
    "Qwen3MoeForCausalLM": ("gate",),
    "Qwen3NextForCausalLM": ("gate", "shared_expert_gate"),
}


def quantize(network: Any, experts: bool) -> None:
    """Let the matrices of a network's layers work as in 4 bits, and note their `bits`.

    Their tensors keep their type. The output layer stays as it is, as in bitsandbytes. experts:
    whether those of a mixture are in 4 bits, too.
    """
    # OpenAI publishes these with experts in 4 bits, and all else in 16.
    if not (experts and type(network).__name__.startswith("GptOss")):
        for _, module in _layers(network):
            if module is not network.get_output_embeddings():
                module.__class__ = _quantized_kinds()[type(module)]
                module.weight.bits = BITSANDBYTES
    for weight in experts_of(network) if experts else ():
        weight.bits = BITSANDBYTES


def quantize_in_mlx(network: Any) -> None:
    """Do the same as mlx-lm's `quantize_model`: also of embeddings, routers and the output.

    Matrices whose rows are no multiple of GROUP stay as they are. Experts of gpt-oss are in MXFP4,
    in which OpenAI publishes them.
    """
    from torch.nn import Embedding
    from transformers.pytorch_utils import Conv1D

    in_8_bits = KEPT_IN_8_BITS.get(type(network).__name__, ())
    embeddings = [
        (name, module) for name, module in network.named_modules() if isinstance(module, Embedding)
    ]
    layers = _layers(network)
    for name, module in [*embeddings, *layers, *routers_of(network)]:
        width = module.weight.shape[0 if isinstance(module, Conv1D) else -1]
        if width % GROUP == 0:
            is_8 = name.rpartition(".")[2] in in_8_bits
            module.weight.bits = MLX_IN_8_BITS if is_8 else MLX
    for _, module in layers:
        # The output's product has no copy of its matrix in 16 bits.
        if module is not network.get_output_embeddings() and hasattr(module.weight, "bits"):
            module.__class__ = _quantized_kinds()[type(module)]
    for weight in experts_of(network):
        weight.bits = MXFP4 if type(network).__name__.startswith("GptOss") else MLX


def _layers(network: Any) -> list[tuple[str, Any]]:
    """Return the names and layers of a network that are a product with a matrix."""
    from torch.nn import Linear
    from transformers.pytorch_utils import Conv1D

    return [
        (name, module)
        for name, module in network.named_modules()
        if type(module) in (Linear, Conv1D)
    ]


def routers_of(network: Any) -> list[tuple[str, Any]]:
    """Return the names and routers of a network's mixtures, which have a matrix of their own."""
    return [
        (name, module)
        for name, module in network.named_modules()
        if type(module).__name__.endswith("Router")
        and getattr(getattr(module, "weight", None), "ndim", 0) == 2
    ]


def experts_of(network: Any) -> list[Any]:
    """Return the matrices of a network's experts: those of a block are one parameter."""
    return [
        weight
        for module in network.modules()
        if type(module).__name__.endswith("Experts")
        for weight in module.parameters(recurse=False)
        if weight.dim() == 3
    ]


@functools.cache
def _quantized_kinds() -> dict[type, type]:
    """Return subclasses of layers whose weight is a temporary copy in half precision."""
    import torch
    from torch.nn import functional
    from transformers.pytorch_utils import Conv1D

    class Dequantized(torch.autograd.Function):
        """A product with a matrix that is dequantized for it, and again for its gradient."""

        @staticmethod
        def forward(context: Any, inputs: Any, weight: Any) -> Any:
            context.weight = weight
            return functional.linear(inputs, torch.empty_like(weight))

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            return gradient @ torch.empty_like(context.weight), None

    def forward(layer: Any, inputs: Any) -> Any:
        weight = layer.weight.t() if isinstance(layer, Conv1D) else layer.weight
        product = Dequantized.apply(inputs.to(weight.dtype), weight)
        if layer.bias is not None:
            product = product + layer.bias.to(product.dtype)
        return product.to(inputs.dtype)

    kinds = (torch.nn.Linear, Conv1D)
    return {kind: type(kind.__name__, (kind,), {"forward": forward}) for kind in kinds}


@contextlib.contextmanager
def autocast(half: Any, backend: str) -> Iterator[None]:
    """Cast the arguments of functions as a device's autocast does. half: a type of PyTorch's."""
    import torch
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode

    in_fp32 = ON_CPU if backend == "cpu" else ON_GPU
    casts: dict[int, Any] = {}  # of weights, which autocast keeps until its end

    def cast(value: Any, kind: Any) -> Any:
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
        if not is_float or value.dtype is kind:
            return value
        if kind is half and value.is_leaf and value.requires_grad:
            if id(value) not in casts:
                casts[id(value)] = value.to(kind)
            return casts[id(value)]
        return value.to(kind)

    class Autocast(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            name = getattr(function, "__name__", "")
            kind = half if name in IN_HALF else torch.float32 if name in in_fp32 else None
            if kind:
                args = [cast(value, kind) for value in args]
            return function(*args, **(kwargs or {}))

    attention = functional.scaled_dot_product_attention

    def in_half(query: Any, key: Any, value: Any, *arguments: Any, **named: Any) -> Any:
        return attention(*(cast(each, half) for each in (query, key, value)), *arguments, **named)

    patched = mock.patch.object(functional, "scaled_dot_product_attention", in_half)
    try:
        with patched, Autocast():
            yield
    finally:
        casts.clear()


class In8Bits:
    """An AdamW whose state has 8 bits per number. paged: it is in the computer's memory."""

    def __init__(self, weights: list[Any], paged: bool):
        import torch

        self.state = {}
        for weight in weights:
            small = weight.numel() < SMALLEST_8BIT
            size = round(weight.numel() * (8 if small else STATE_8BIT))
            state = torch.empty(0 if paged else size, dtype=torch.uint8, device="meta")
            self.state[weight] = {"state": state}

    def step(self) -> None:
        """Update nothing: a kernel per weight needs no other memory."""


def in_place_loss(hidden: Any, head: Any, labels: Any) -> Any:
    """Return a loss whose gradient overwrites the logits, which are there in fp32, twice.

    As in Unsloth's kernel where transformers 4 upcasts and shifts the logits before it:
    https://github.com/foundation-model-stack/fms-acceleration, plugins/accelerated-peft.
    """
    from torch.nn import functional

    logits = functional.linear(hidden, head).float()
    shifted = logits[:, :-1].contiguous()
    del logits
    return _in_place_loss().apply(shifted.flatten(0, 1))


@functools.cache
def _in_place_loss() -> Any:
    import torch

    class InPlaceLoss(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, logits: Any) -> Any:
            context.save_for_backward(logits)
            return logits.new_empty(())

        @staticmethod
        def backward(context: Any, _gradient: Any) -> Any:
            return context.saved_tensors[0]

    return InPlaceLoss


def chunked_loss(hidden: Any, head: Any, labels: Any) -> Any:
    """Return the loss of logits that are upcast in chunks."""
    from torch.nn import functional

    losses = []
    for states, words in zip(
        hidden.flatten(0, 1).chunk(CHUNKS), labels.flatten().chunk(CHUNKS), strict=True
    ):
        logits = functional.linear(states, head)
        losses.append(functional.cross_entropy(logits.float(), words, reduction="sum"))
    return sum(losses)


def fused_loss(hidden: Any, head: Any, labels: Any) -> Any:
    """Return a loss whose forward pass has the logits of some tokens at a time, and all gradients.

    It has as many chunks as the vocabulary is larger than the width, as Liger kernels have:
    https://github.com/linkedin/Liger-Kernel, ops/fused_linear_cross_entropy.py.
    """
    return _fused_loss().apply(hidden.flatten(0, 1), head, labels.flatten())


def fused_parts(head: Any) -> int:
    """Return in how many parts the fused loss divides the tokens."""
    return -(-head.shape[0] // head.shape[1])


@functools.cache
def _fused_loss() -> Any:
    import torch

    class FusedLoss(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, hidden: Any, head: Any, _labels: Any) -> Any:
            gradient = torch.empty_like(hidden)
            of_head = torch.empty_like(head) if context.needs_input_grad[1] else None
            chunks = fused_parts(head)
            for states in hidden.chunk(chunks):
                logits = states @ head.t()
                by_logits = logits.float().to(logits.dtype)
                torch.mm(by_logits, head)
                if of_head is not None:
                    torch.mm(by_logits.t(), states)
            context.save_for_backward(gradient, of_head)
            return hidden.new_empty(())

        @staticmethod
        def backward(context: Any, _gradient: Any) -> Any:
            return *context.saved_tensors, None

    return FusedLoss


LOSSES = {"in-place": in_place_loss, "chunked": chunked_loss, "fused": fused_loss}
