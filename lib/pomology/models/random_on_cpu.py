"""Random numbers of a step on a device, which the CPU draws; and what convolutions contribute to.

A device with TF32 may compute convolutions in it, but no matmul.
"""

from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from pomology.errors import Mismatch

DRAWN = 64  # least random numbers of an operator that are compared
# Standard errors by which the mean of random numbers may differ; 1 in 500 million exceeds them.
STANDARD_ERRORS = 6
ROUNDED = 0.01  # share of the mean magnitude; bf16 rounds the scale of a dropout by up to 0.004


class RandomOnCPU(TorchDispatchMode):
    """Context in which the CPU draws all random numbers, in fp32 and in logical order.

    Each operator also draws on the device, once per shape, and its numbers are compared by their
    mean and mean magnitude. Raises Mismatch if these differ, or if the device draws the same
    numbers twice. checked: the operators and shapes that are done. traces: whether to note which
    tensors of the CPU follow from a convolution, see `is_convolved`.
    """

    def __init__(self, checked: set[tuple] | None = None, traces: bool = False):
        super().__init__()
        self.checked = set() if checked is None else checked
        self.traces = traces
        self._convolved = False  # whether a convolution ran

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        result = self._run(function, name, args, kwargs)
        if self.traces:
            self._trace(function, name, args, kwargs, result)
        return result

    def _trace(self, function: Any, name: str, args: tuple, kwargs: dict, result: Any) -> None:
        """Mark the results of a convolution, and what is computed from marked tensors."""
        convolves = "convolution" in name
        self._convolved |= convolves
        if not self._convolved:
            return
        if convolves or any(map(is_convolved, pytree.tree_leaves((args, kwargs)))):
            written: list[Any] = [result]
            if function._schema.is_mutable:  # such an operator may return nothing
                arguments = zip(function._schema.arguments, args, strict=False)
                written += [value for argument, value in arguments if argument.is_write]
            for leaf in pytree.tree_leaves(written):
                mark_convolved(leaf)

    def _run(self, function: Any, name: str, args: tuple, kwargs: dict) -> Any:
        """Return what an operator returns; the CPU draws its random numbers."""
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


def is_convolved(item: Any) -> bool:
    """Return whether a tensor was marked, or one with which it shares its memory."""
    strided = isinstance(item, torch.Tensor) and item.layout is torch.strided
    return strided and getattr(item.untyped_storage(), "convolved", False)


def mark_convolved(item: Any, mark: bool = True) -> None:
    """Mark a tensor as one that follows from a convolution, or remove the mark."""
    if isinstance(item, torch.Tensor) and item.layout is torch.strided:
        item.untyped_storage().convolved = mark


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
