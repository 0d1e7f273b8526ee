"""Gradients and optimizer updates of a PyTorch model on its device and on the CPU."""

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

UPDATES = 2  # per optimizer: the second one reads the state that the first one wrote
SAMPLED = 4096  # compared elements of each weight's update
Arrays = dict[str, np.ndarray]


class BothDevices:
    """A model on its device and its copy on the CPU. Arguments: see `verify.step`."""

    def __init__(self, case: Any, model: Any, one_step: Callable, optimizers: tuple):
        self.device = case.device
        self.model = model
        self.one_step = one_step
        self.optimizers = optimizers
        self.buffers = [buffer.clone() for buffer in model.buffers()]
        self.seed = torch.initial_seed()
        self.random = torch.get_rng_state()
        # Copies on the CPU for `deepcopy`, which would make its own on the GPU.
        copies = {id(buffer): buffer.to("cpu", copy=True) for buffer in model.buffers()}
        for weight in model.parameters():
            values = weight.detach().to("cpu", copy=True)
            copies[id(weight)] = torch.nn.Parameter(values, weight.requires_grad)
        self.cpu_model, self.cpu_optimizers = copy.deepcopy((model, optimizers), copies)

    def gradients(self, size: int, seed: int, on_cpu: bool = False, change: float = 0.0) -> Arrays:
        """Return a step's gradients by name, and its loss. change: relative, of CPU weights."""
        model = self.cpu_model if on_cpu else self.model
        self._align(change)
        model.zero_grad()
        torch.manual_seed(seed)
        attention = mock.patch.object(functional, "scaled_dot_product_attention", _no_dropout)
        with attention, torch.device("cpu" if on_cpu else self.device), RandomOnCPU():
            loss = self.one_step(model, size)
        tensors = {} if loss is None else {"the loss": loss.detach()}
        for name, weight in model.named_parameters():
            if weight.grad is not None:
                tensors[f"the gradient of {name}"] = weight.grad
        return {name: tensor.float().cpu().numpy() for name, tensor in tensors.items()}

    def updates(self) -> tuple[Arrays, Arrays, Arrays]:
        """Return the optimizers' updates of sampled elements of each weight, for equal gradients.

        The dicts are those of the device, of the CPU, and of the CPU with rounded weights.
        """
        self._align()
        pairs = list(zip(self.model.parameters(), self.cpu_model.parameters(), strict=True))
        for weight, copied in pairs:
            copied.grad = None if weight.grad is None else weight.grad.to("cpu", copy=True)
        before = _sample(self.cpu_model)
        for optimizer in self.optimizers * UPDATES:
            optimizer.step()
        after_device = _sample(self.model)
        with torch.no_grad():  # the copy still has the old weights
            for weight, copied in pairs:
                weight.copy_(copied)
        for optimizer in self.cpu_optimizers * UPDATES:
            optimizer.step()
        after_cpu = _sample(self.cpu_model)
        rounding = 4 * torch.finfo(pairs[0][0].dtype).eps
        device = {name: after_device[name] - before[name] for name in before}
        cpu = {name: after_cpu[name] - before[name] for name in before}
        return device, cpu, {name: cpu[name] + rounding * before[name] for name in before}

    def restore(self) -> None:
        """Restore the model, its optimizers and the random state; remove gradients."""
        self._align()
        self.model.zero_grad()
        for optimizer in self.optimizers:
            optimizer.state.clear()
        torch.manual_seed(self.seed)
        torch.set_rng_state(self.random)

    @torch.no_grad()
    def _align(self, change: float = 0.0) -> None:
        """Restore buffers, and copy the model's weights to the CPU, with a relative change."""
        for model in (self.model, self.cpu_model):
            for buffer, kept in zip(model.buffers(), self.buffers, strict=True):
                buffer.copy_(kept)
        pairs = zip(self.cpu_model.parameters(), self.model.parameters(), strict=True)
        for copied, weight in pairs:
            copied.copy_(weight)
            if change:
                copied.mul_(1 + change * torch.randn(copied.shape))


def _sample(model: Any) -> Arrays:
    arrays = {}
    for name, weight in model.named_parameters():
        elements = weight.detach().flatten()
        sampled = elements[:: max(1, len(elements) // SAMPLED)]
        arrays[f"the update of {name}"] = sampled.cpu().double().numpy()
    return arrays


attention = functional.scaled_dot_product_attention


def _no_dropout(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **options):
    """Attention without dropout, because its random numbers would differ between devices."""
    return attention(query, key, value, attn_mask, 0.0, is_causal, **options)


class RandomOnCPU(TorchDispatchMode):
    """Context in which the CPU draws all random numbers, in fp32 and in logical order."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        draws = torch.Tag.nondeterministic_seeded in function.tags
        if not draws or "attention" in name or "rnn" in name:  # these compute more than that
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
