"""A step of a PyTorch model on its device, and of a copy of the model on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.nn import functional
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

UPDATES = 2  # of an optimizer: the second one reads what the first one wrote
SAMPLED = 4096  # numbers of each weight whose update is compared
Arrays = dict[str, np.ndarray]


class BothDevices:
    """A model on its device, and a copy of it on the CPU. Arguments: as of `verify.step`."""

    def __init__(self, case: Any, model: Any, one_step: Callable, optimizers: tuple):
        self.device = case.device
        self.model = model
        self.one_step = one_step
        self.optimizers = optimizers
        self.buffers = [buffer.clone() for buffer in model.buffers()]
        self.seed = torch.initial_seed()
        self.random = torch.get_rng_state()
        # What `deepcopy` takes for a copy: else it would make one on the GPU.
        copies = {id(buffer): buffer.to("cpu", copy=True) for buffer in model.buffers()}
        for weight in model.parameters():
            values = weight.detach().to("cpu", copy=True)
            copies[id(weight)] = torch.nn.Parameter(values, weight.requires_grad)
        self.twin, self.twin_optimizers = copy.deepcopy((model, optimizers), copies)

    def gradients(self, size: int, seed: int, on_cpu: bool = False, change: float = 0.0) -> Arrays:
        """Return the gradients of a step by name, and its loss.

        change: of the CPU's weights, as a share.
        """
        model = self.twin if on_cpu else self.model
        self._align(change)
        model.zero_grad()
        torch.manual_seed(seed)
        attention = mock.patch.object(functional, "scaled_dot_product_attention", _no_dropout)
        with attention, torch.device("cpu" if on_cpu else self.device), SameNumbers():
            loss = self.one_step(model, size)
        tensors = {} if loss is None else {"the loss": loss.detach()}
        for name, weight in model.named_parameters():
            if weight.grad is not None:
                tensors[f"the gradient of {name}"] = weight.grad
        return {name: tensor.float().cpu().numpy() for name, tensor in tensors.items()}

    def updates(self) -> tuple[Arrays, Arrays, Arrays]:
        """Return how the optimizers change some numbers of each weight, from equal gradients.

        On the device, on the CPU, and on the CPU with the rounding of the weights.
        """
        self._align()
        pairs = list(zip(self.model.parameters(), self.twin.parameters(), strict=True))
        for weight, twin in pairs:
            twin.grad = None if weight.grad is None else weight.grad.to("cpu", copy=True)
        before = _sample(self.twin)
        for optimizer in self.optimizers * UPDATES:
            optimizer.step()
        after_device = _sample(self.model)
        with torch.no_grad():  # the copy has not changed yet
            for weight, twin in pairs:
                weight.copy_(twin)
        for optimizer in self.twin_optimizers * UPDATES:
            optimizer.step()
        after_cpu = _sample(self.twin)
        rounding = 4 * torch.finfo(pairs[0][0].dtype).eps
        device = {name: after_device[name] - before[name] for name in before}
        cpu = {name: after_cpu[name] - before[name] for name in before}
        return device, cpu, {name: cpu[name] + rounding * before[name] for name in before}

    def restore(self) -> None:
        """Leave the model, its optimizers and the random numbers as they were; no gradients."""
        self._align()
        self.model.zero_grad()
        for optimizer in self.optimizers:
            optimizer.state.clear()
        torch.manual_seed(self.seed)
        torch.set_rng_state(self.random)

    @torch.no_grad()
    def _align(self, change: float = 0.0) -> None:
        """Set buffers as they were, and the copy as the model, but for a change of its weights."""
        for model in (self.model, self.twin):
            for buffer, kept in zip(model.buffers(), self.buffers, strict=True):
                buffer.copy_(kept)
        for twin, weight in zip(self.twin.parameters(), self.model.parameters(), strict=True):
            twin.copy_(weight)
            if change:
                twin.mul_(1 + change * torch.randn(twin.shape))


def _sample(model: Any) -> Arrays:
    arrays = {}
    for name, weight in model.named_parameters():
        numbers = weight.detach().flatten()
        some = numbers[:: max(1, len(numbers) // SAMPLED)]
        arrays[f"the update of {name}"] = some.cpu().double().numpy()
    return arrays


attention = functional.scaled_dot_product_attention


def _no_dropout(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **options):
    """Attention whose fused kernels draw no random numbers, which would differ between devices."""
    return attention(query, key, value, attn_mask, 0.0, is_causal, **options)


class SameNumbers(TorchDispatchMode):
    """While entered, the CPU draws all random numbers, in fp32 and in the order of their place."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        draws = torch.Tag.nondeterministic_seeded in function.tags
        if not draws or "attention" in name or "rnn" in name:  # they give more than that
            return function(*args, **kwargs)
        like = next((item for item in args if isinstance(item, torch.Tensor)), None)
        device = kwargs.get("device") if like is None else like.device
        cpu_args, cpu_kwargs = pytree.tree_map_only(torch.Tensor, _in_fp32_on_cpu, (args, kwargs))
        if cpu_kwargs.get("device"):
            cpu_kwargs["device"] = torch.device("cpu")
        drawn = function(*cpu_args, **cpu_kwargs)
        if function._schema.is_mutable:
            return args[0].copy_(drawn)

        def back(tensor: Any) -> Any:
            as_input = like is not None and tensor.is_floating_point()
            dtype = like.dtype if as_input else tensor.dtype
            return torch.empty_like(tensor, dtype=dtype, device=device).copy_(tensor)

        return pytree.tree_map_only(torch.Tensor, back, drawn)


def _in_fp32_on_cpu(tensor: Any) -> Any:
    dtype = torch.float32 if tensor.is_floating_point() else tensor.dtype
    return tensor.to("cpu", dtype).contiguous()
