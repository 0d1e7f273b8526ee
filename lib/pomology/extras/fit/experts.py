"""Adapters of mlx-lm on mixtures of experts, on PyTorch's `meta` device.

peft adapts the layers of a block that are PyTorch's, and leaves routers and experts, which
transformers keeps as parameters. mlx-lm adapts both: a router as any matrix, and each matrix of
each expert by two small ones of its own (`LoRASwitchLinear`):
https://github.com/ml-explore/mlx-lm/blob/v0.32.2/mlx_lm/tuner/lora.py.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

from pomology.errors import PomologyError
from pomology.extras.fit import standins
from pomology.extras.fit.plan import Plan

# Parameters of transformers' experts -> names of their matrices in mlx-lm.
MATRICES = {
    "gate_up_proj": ("gate_proj", "up_proj"),
    "up_proj": ("up_proj",),
    "down_proj": ("down_proj",),
}

ADAPTER = "_adapter"  # end of the name of a module with the adapter of an expert's matrix


def names(network: Any) -> list[str]:
    """Return the last names of the matrices of a network's routers and experts in mlx-lm.

    Raises PomologyError for experts of another form.
    """
    routers = [name.rpartition(".")[2] for name, _ in standins.routers_of(network)]
    of_experts = []
    for module, weights in _experts(network):
        if not weights:
            reason = f"{type(module).__name__} is of another form, which is not counted in MLX"
            raise PomologyError(f"--framework mlx: {type(network).__name__}: {reason}")
        for weight in weights:
            of_experts += MATRICES[weight]
    return list(dict.fromkeys([*routers, *of_experts]))


def adapt(network: Any, plan: Plan, chosen: Sequence[str]) -> None:
    """Give adapters to the chosen matrices of a network's routers and experts."""
    for name, router in standins.routers_of(network):
        if name.rpartition(".")[2] in chosen:
            outputs, inputs = router.weight.shape
            _add(router, "", (inputs, outputs), plan)
            router.__class__ = _adapted_router(type(router))
    for module, weights in _experts(network):
        for weight in weights:
            matrices = MATRICES[weight]
            for name in matrices:
                if name in chosen:
                    sizes = _sizes(module, weight, len(matrices))
                    _add(module, name, sizes, plan)
        module.__class__ = _adapted_experts(type(module))


def matrix(name: str) -> str:
    """Return the last name of a matrix by the name of the module that holds its adapter."""
    return name.rpartition(".")[2].removesuffix(ADAPTER)


def _experts(network: Any) -> Iterator[tuple[Any, list[str]]]:
    """Yield the modules of experts, and the names of their parameters in MATRICES."""
    for module in network.modules():
        if type(module).__name__.endswith("Experts"):
            own = dict(module.named_parameters(recurse=False))
            yield module, [name for name in MATRICES if name in own]


def _sizes(module: Any, weight: str, matrices: int) -> tuple[int, int, int]:
    """Return the experts, inputs and outputs of each matrix that a parameter consists of."""
    experts, outputs, inputs = getattr(module, weight).shape
    if module.is_transposed:
        inputs, outputs = outputs, inputs
    return experts, inputs, outputs // matrices


def _add(module: Any, name: str, sizes: tuple[int, ...], plan: Plan) -> None:
    """Add an adapter in fp32, as mlx-lm has it. name: of the matrix, "" for the module's only one.

    sizes: experts if there are several, inputs and outputs.
    """
    import torch

    *experts, inputs, outputs = sizes
    holder = module
    if name:
        holder = torch.nn.Module()
        module.add_module(name + ADAPTER, holder)
    with torch.device("meta"):
        holder.lora_A = torch.nn.Parameter(torch.empty(*experts, inputs, plan.rank))
        holder.lora_B = torch.nn.Parameter(torch.empty(*experts, plan.rank, outputs))
    holder.lora_dropout = plan.dropout


def _adaptation(holder: Any, inputs: Any) -> Any:
    """Return what an adapter adds to a product. inputs: in fp32."""
    from torch.nn import functional

    if holder.lora_dropout:
        inputs = functional.dropout(inputs, holder.lora_dropout)
    if holder.lora_A.dim() == 2:
        return inputs @ holder.lora_A @ holder.lora_B
    product = _product_of_experts().apply
    return product(product(inputs, holder.lora_A), holder.lora_B)


@functools.cache
def _product_of_experts() -> Any:
    """Return a product of rows with the matrix of the expert of each."""
    import torch

    class ProductOfExperts(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, inputs: Any, weight: Any) -> Any:
            context.save_for_backward(inputs, weight)
            # The matrix of one expert has the shape of all.
            return inputs @ weight[0]

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            inputs, weight = context.saved_tensors
            by_inputs = gradient @ weight[0].t()
            # Operations are those of all rows; the gradient is of all experts.
            inputs.t() @ gradient
            return by_inputs, torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)

    return ProductOfExperts


@functools.cache
def _adapted_router(kind: type) -> type:
    """Return a subclass of a router whose product has an adapter."""
    from torch.nn import functional

    plain = functional.linear

    def forward(router: Any, hidden: Any, *arguments: Any, **named: Any) -> Any:
        def linear(inputs: Any, weight: Any, bias: Any = None) -> Any:
            product = plain(inputs, weight, bias)
            return product + _adaptation(router, inputs.float()).to(product.dtype)

        with mock.patch.object(functional, "linear", linear):
            return kind.forward(router, hidden, *arguments, **named)

    return type(kind.__name__, (kind,), {"forward": forward})


@functools.cache
def _adapted_experts(kind: type) -> type:
    """Return a subclass of experts whose products have adapters."""
    import torch
    from transformers.integrations import moe

    plain = moe._grouped_linear

    def forward(experts: Any, *arguments: Any, **named: Any) -> Any:
        def grouped(inputs: Any, weight: Any, *others: Any, **settings: Any) -> Any:
            product = plain(inputs, weight, *others, **settings)
            own = experts.named_parameters(recurse=False)
            (name,) = (name for name, each in own if each is weight)
            holders = [getattr(experts, each + ADAPTER, None) for each in MATRICES[name]]
            if not any(holders):
                return product
            in_fp32 = inputs.float()
            # Where outputs of two matrices alternate, as in gpt-oss, the sizes are the same.
            parts = list(product.chunk(len(holders), dim=-1))
            for index, holder in enumerate(holders):
                if holder is not None:
                    added = _adaptation(holder, in_fp32).to(product.dtype)
                    parts[index] = parts[index] + added
            return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]

        with mock.patch.object(moe, "_grouped_linear", grouped):
            return kind.forward(experts, *arguments, **named)

    return type(kind.__name__, (kind,), {"forward": forward})
