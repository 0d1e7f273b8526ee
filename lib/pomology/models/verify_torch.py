"""Gradients and optimizer updates of a PyTorch model on its device and on the CPU."""

import copy
from collections.abc import Callable
from typing import Any, Self
from unittest import mock

import numpy as np
import torch
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from pomology.errors import Mismatch

SAMPLED = 4096  # compared elements of each weight's update
DRAWN = 64  # least random numbers of an operator that are compared
# Standard errors by which the mean of random numbers may differ; 1 in 500 million exceeds them.
STANDARD_ERRORS = 6
ROUNDED = 0.01  # share of the mean magnitude; bf16 rounds the scale of a dropout by up to 0.004
Arrays = dict[str, np.ndarray]


class BothDevices:
    """A model on its device, and in a `with` block also on the CPU.

    Arguments: see `verify.step`. The block ends with the model as it was, without gradients and
    without optimizer states.
    """

    def __init__(
        self, case: Any, model: Any, one_step: Callable, optimizers: tuple, clip: float = 0.0
    ):
        self.device = case.device
        self.model = model
        self.one_step = one_step
        self.optimizers = optimizers
        self.clip = clip
        self.training = model.training
        self.unverified: set[str] = set()
        kind = case.device.type
        enabled = torch.is_autocast_enabled(kind)
        self.autocast = torch.autocast(kind, torch.get_autocast_dtype(kind), enabled)

    def __enter__(self) -> Self:
        for optimizer in self.optimizers:
            optimizer.state.clear()
        if self.model.training != self.training:
            self.model.train(self.training)
        self.random_checked: set[tuple] = set()
        self.buffers = [buffer.clone() for buffer in self.model.buffers()]
        self.seed = torch.initial_seed()
        self.random = torch.get_rng_state()
        # Copies on the CPU for `deepcopy`, which would make its own on the GPU.
        copies = {id(buffer): buffer.to("cpu", copy=True) for buffer in self.model.buffers()}
        for weight in self.model.parameters():
            kind = torch.promote_types(weight.dtype, torch.float32)  # a CPU is slow in bf16
            values = weight.detach().to("cpu", kind, copy=True)
            copies[id(weight)] = torch.nn.Parameter(values, weight.requires_grad)
        self.cpu_model, self.cpu_optimizers = copy.deepcopy((self.model, self.optimizers), copies)
        return self

    def __exit__(self, *_: object) -> None:
        self._align()
        self.model.zero_grad()
        for optimizer in self.optimizers:
            optimizer.state.clear()
        torch.manual_seed(self.seed)
        torch.set_rng_state(self.random)
        del self.cpu_model, self.cpu_optimizers, self.buffers

    def gradients(self, size: int, seed: int, on_cpu: bool = False, change: float = 0.0) -> Arrays:
        """Return a step's gradients by name, and its loss. change: relative, of CPU weights.

        Raises Mismatch for wrong random numbers of the device.
        """
        model = self.cpu_model if on_cpu else self.model
        self._align(change)
        model.zero_grad()
        torch.manual_seed(seed)
        place = torch.device("cpu" if on_cpu else self.device)
        attention = mock.patch.object(functional, "scaled_dot_product_attention", self._attention)
        with self.autocast, attention, place, RandomOnCPU(self.random_checked):
            loss = self.one_step(model, size)
        tensors = {}
        if loss is not None:
            tensors["the loss"] = loss.detach()
            if loss.numel() == 1:
                tensors["the loss by `item`"] = torch.tensor(loss.item())
        for name, weight in model.named_parameters():
            if weight.grad is not None:
                tensors[f"the gradient of {name}"] = weight.grad
        return {name: tensor.float().cpu().numpy() for name, tensor in tensors.items()}

    def updated(self, count: int) -> tuple[Arrays, Arrays, Arrays, float]:
        """Return sampled elements of each weight before and after updates by equal gradients.

        After `count` updates on the device, and on the CPU; then the rounding of the weights' type.
        """
        self._align()
        pairs = list(zip(self.model.parameters(), self.cpu_model.parameters(), strict=True))
        for weight, copied in pairs:
            grad = weight.grad
            copied.grad = None if grad is None else grad.to("cpu", copied.dtype, copy=True)
        before = _sample(self.cpu_model)
        self._update(self.model, self.optimizers * count)
        after_device = _sample(self.model)
        with torch.no_grad():  # the copy still has the old weights
            for weight, copied in pairs:
                weight.copy_(copied)
        self._update(self.cpu_model, self.cpu_optimizers * count)
        after_cpu = _sample(self.cpu_model)
        trained = [weight for weight, _ in pairs if weight.grad is not None]
        eps = max((torch.finfo(each.dtype).eps for each in trained), default=0.0)
        return before, after_device, after_cpu, eps

    def _update(self, model: Any, optimizers: tuple) -> None:
        for optimizer in optimizers:
            if self.clip:
                clip_grad_norm_(model.parameters(), self.clip)
            optimizer.step()

    def _attention(
        self, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **options
    ):
        """Attention without dropout, because its random numbers would differ between devices."""
        if dropout_p:
            self.unverified.add("the dropout of attention")
        return attention(query, key, value, attn_mask, 0.0, is_causal, **options)

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


class RandomOnCPU(TorchDispatchMode):
    """Context in which the CPU draws all random numbers, in fp32 and in logical order.

    Each operator also draws on the device, once per shape, and its numbers are compared by their
    mean and mean magnitude. Raises Mismatch if these differ, or if the device draws the same
    numbers twice. checked: the operators and shapes that are done.
    """

    def __init__(self, checked: set[tuple] | None = None):
        super().__init__()
        self.checked = set() if checked is None else checked

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
        key = name, _leaf(drawn).shape
        if torch.device(device or "cpu").type != "cpu" and key not in self.checked:
            self.checked.add(key)
            state = torch.get_rng_state()  # a device without its own generator uses the CPU's
            twice = [_on_cpu(function(*args, **kwargs)) for _ in range(2)]
            torch.set_rng_state(state)
            _compare_random(name, twice, _on_cpu(drawn))
        if function._schema.is_mutable:
            return args[0].copy_(drawn)

        def back(tensor: Any) -> Any:
            as_input = like is not None and tensor.is_floating_point()
            dtype = like.dtype if as_input else tensor.dtype
            return torch.empty_like(tensor, dtype=dtype, device=device).copy_(tensor)

        return pytree.tree_map_only(torch.Tensor, back, drawn)


def _leaf(result: Any) -> torch.Tensor:
    """Return an operator's first result."""
    return pytree.tree_leaves(result)[0]


def _on_cpu(result: Any) -> torch.Tensor:
    """Return a copy of an operator's first result."""
    return _leaf(result).detach().to("cpu", copy=True).double()


def _compare_random(name: str, twice: list[torch.Tensor], drawn: torch.Tensor) -> None:
    """Compare random numbers of a device, drawn twice, with those of the CPU. Raises Mismatch."""
    count = drawn.numel()
    if count < DRAWN or drawn.std() == 0:
        return
    if torch.equal(*twice):
        raise Mismatch(f"{name} draws the same random numbers again")
    values = twice[0]
    error = STANDARD_ERRORS * float(drawn.std()) * (2 / count) ** 0.5
    error += ROUNDED * float(drawn.abs().mean())
    for what, seen, wanted in (
        ("mean", values.mean(), drawn.mean()),
        ("mean magnitude", values.abs().mean(), drawn.abs().mean()),
    ):
        if not abs(float(seen - wanted)) <= error:
            numbers = f"{float(seen):.3g}; {float(wanted):.3g} on the CPU"
            raise Mismatch(f"{name} draws {count:,} random numbers with a {what} of {numbers}")


def _in_fp32_on_cpu(tensor: Any) -> Any:
    dtype = torch.float32 if tensor.is_floating_point() else tensor.dtype
    return tensor.to("cpu", dtype).contiguous()
