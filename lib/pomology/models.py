"""What a training step costs on paper: parameters, floating-point operations, memory.

Counted on PyTorch's `meta` device, where tensors have shapes but no contents: nothing is allocated, and no operator is
missed, as some are on the CPU (fused attention and LSTM count as zero there).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Workload:
    """One optimiser step.

    `flops` counts two operations a multiply-add, in matrix products, convolutions and attention, forward and backward.
    `state_bytes` is weights, gradients and the optimiser's own tensors; `saved_bytes` is the most that autograd keeps
    at one time between forward and backward.
    """

    parameters: int
    flops: int
    state_bytes: int
    saved_bytes: int

    @property
    def bytes(self) -> int:
        """What must fit at the least. Work space of single operators comes on top."""
        return self.state_bytes + self.saved_bytes

    def __str__(self) -> str:
        return (
            f"{self.parameters:,} parameters; {self.flops / 1e9:,.4g} GFLOP a step; "
            f"{self.state_bytes / 1e6:,.1f} MB of weights, gradients and optimiser; "
            f"{self.saved_bytes / 1e6:,.1f} MB kept for the backward pass"
        )


def workload(build: Callable[[], Any], step: Callable[[Any], None], optimizer_slots: int = 0) -> Workload:
    """Count a step without running it.

    build: makes the module; it is called with `meta` as the default device.
    step: one forward and backward pass of that module; tensors it creates are on `meta` too. It must not read a value
        (`.item()`), since there is none.
    optimizer_slots: tensors of a weight's size that the optimiser keeps: 0 for plain SGD, 1 for SGD with momentum,
        2 for Adam, AdamW and Adadelta.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    live: dict[int, int] = {}  # how many graph nodes hold each storage
    sizes = {"now": 0, "peak": 0}

    class Held:
        """Keeps a saved tensor as autograd would, and tells when the graph lets go of it."""

        def __init__(self, tensor: torch.Tensor):
            self.tensor, self.storage = tensor, tensor.untyped_storage()
            self.key = self.storage._cdata
            live[self.key] = live.get(self.key, 0) + 1
            if live[self.key] == 1:
                sizes["now"] += self.storage.nbytes()
                sizes["peak"] = max(sizes["peak"], sizes["now"])

        def __del__(self):
            live[self.key] -= 1
            if not live[self.key]:
                sizes["now"] -= self.storage.nbytes()

    with torch.device("meta"):
        model = build()
        weights = list(model.parameters())
        storages = {parameter.untyped_storage()._cdata for parameter in weights}

        def hold(tensor: torch.Tensor):
            return tensor if tensor.untyped_storage()._cdata in storages else Held(tensor)

        def give(item):
            return item.tensor if isinstance(item, Held) else item

        with FlopCounterMode(display=False) as counter, torch.autograd.graph.saved_tensors_hooks(hold, give):
            step(model)
    weight_bytes = sum(parameter.nbytes for parameter in weights)
    trained_bytes = sum(parameter.nbytes for parameter in weights if parameter.requires_grad)
    return Workload(
        parameters=sum(parameter.numel() for parameter in weights),
        flops=counter.get_total_flops(),
        state_bytes=weight_bytes + (1 + optimizer_slots) * trained_bytes,
        saved_bytes=sizes["peak"],
    )
