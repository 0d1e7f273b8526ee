"""What passes between the modules of a PyTorch model in a step: outputs forward, gradients back."""

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from pomology.models.verify import Key

Change = Callable[[Key, torch.Tensor], torch.Tensor]
NOISE = 2**16 + 1  # random numbers that are repeated; a prime, so that no shape meets them in step


class Boundary(torch.autograd.Function):
    """Replace a module's output in the forward pass, and its gradient in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, output: torch.Tensor, on_output: Callable, on_gradient: Callable
    ) -> torch.Tensor:
        """Return a new tensor, by which PyTorch knows that it is no view of the output."""
        ctx.on_gradient = on_gradient
        return on_output(output.detach())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:
        """Return the gradient to go on with."""
        return ctx.on_gradient(gradient), None, None


@contextlib.contextmanager
def boundaries(model: torch.nn.Module, on_output: Change, on_gradient: Change) -> Iterator[None]:
    """Replace the outputs of all modules with weights of their own, and the outputs' gradients.

    on_output: returns a new tensor in place of an output. on_gradient: returns the gradient to go
    on with. A module without weights, such as an activation, belongs to the block of the next one.
    """
    calls: Counter[str] = Counter()
    hooks = []

    def replace(name: str, _module: Any, _inputs: Any, output: Any) -> Any:
        number = calls[name]
        calls[name] += 1
        leaves, form = pytree.tree_flatten(output)
        for index, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
                key = (name, number, index)
                changes = (functools.partial(change, key) for change in (on_output, on_gradient))
                leaves[index] = Boundary.apply(leaf, *changes)
        return pytree.tree_unflatten(leaves, form)

    try:
        for name, module in model.named_modules():
            if any(True for _ in module.parameters(recurse=False)):
                hook = functools.partial(replace, name)
                hooks.append(module.register_forward_hook(hook))
        yield
    finally:
        for hook in hooks:
            hook.remove()


class Noise:
    """Relative errors of a standard deviation: the same ones again for the same draw."""

    def __init__(self, deviation: float, draw: int):
        generator = torch.Generator().manual_seed(draw)
        with torch.device("cpu"):
            self.factors = 1 + deviation * torch.randn(NOISE, generator=generator)
        self.calls = 0

    def on(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a new tensor on the CPU with errors; each call begins with other ones."""
        self.calls += 1
        factors = self.factors.roll(7919 * self.calls)
        count = tensor.numel()
        repeated = factors.repeat(count // NOISE + 1)[:count]
        return tensor * repeated.reshape(tensor.shape).to(tensor.dtype)
