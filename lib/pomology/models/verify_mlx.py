"""Gradients and optimizer updates of an MLX model on its device and on the CPU."""

import copy
from collections.abc import Callable
from typing import Any, Self

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map

Arrays = dict[str, np.ndarray]


class BothDevices:
    """A model, whose arrays belong to no device, in a `with` block. Arguments: see `verify.step`.

    optimizers: one at most.
    """

    def __init__(self, case: Any, model: Any, one_step: Callable, optimizers: tuple):
        self.backend = case.backend
        self.model = model
        self.one_step = one_step
        self.optimizers = optimizers
        self.unverified: set[str] = set()

    def __enter__(self) -> Self:
        self.weights = self.model.parameters()
        return self

    def __exit__(self, *_: object) -> None:
        self.model.update(self.weights)

    def gradients(self, size: int, seed: int, on_cpu: bool = False, change: float = 0.0) -> Arrays:
        """Return the gradients of a step by name, and its loss. change: see `verify_torch`."""

        def in_fp32(weight: Any) -> Any:  # a CPU is slow in bf16
            weight = weight.astype(mx.float32)
            return weight * (1 + change * mx.random.normal(weight.shape)) if change else weight

        with self._device(on_cpu):
            self.model.update(tree_map(in_fp32, self.weights) if on_cpu else self.weights)
            mx.random.seed(seed)
            loss, gradients = self.one_step(self.model, size)
            mx.eval(loss, gradients)
        self._gradients = gradients
        arrays = {f"the gradient of {name}": array for name, array in tree_flatten(gradients)}
        arrays["the loss"] = loss
        return {name: np.array(array.astype(mx.float32)) for name, array in arrays.items()}

    def updated(self, count: int) -> tuple[Arrays, Arrays, Arrays, float]:
        """Return the weights before and after updates by equal gradients, see `verify_torch`."""
        self.model.update(self.weights)
        before = _flat(self.model.trainable_parameters())
        after = []
        for on_cpu in (False, True):
            optimizer = copy.deepcopy(self.optimizers[0])
            with self._device(on_cpu):
                self.model.update(self.weights)
                for _ in range(count):
                    optimizer.update(self.model, self._gradients)
                mx.eval(self.model.parameters())
            after.append(_flat(self.model.trainable_parameters()))
        return before, *after, float(np.finfo(np.float32).eps)

    def _device(self, on_cpu: bool) -> Any:
        return mx.stream(mx.cpu) if on_cpu else self.backend.context()


def _flat(weights: Any) -> Arrays:
    flat = tree_flatten(weights)
    return {f"the update of {name}": np.array(array.astype(mx.float32)) for name, array in flat}
