"""Gradients of an MLX model on its device and on the CPU."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map


class BothDevices:
    """A model, whose arrays belong to no device. Arguments: see `verify.step`."""

    def __init__(self, case: Any, model: Any, one_step: Callable):
        self.backend = case.backend
        self.model = model
        self.one_step = one_step
        self.weights = model.parameters()

    def gradients(
        self, size: int, seed: int, on_cpu: bool = False, change: float = 0.0
    ) -> dict[str, np.ndarray]:
        """Return the gradients of a step by name, and its loss. change: see `verify_torch`."""

        def changed(weight: Any) -> Any:
            return weight * (1 + change * mx.random.normal(weight.shape))

        with mx.stream(mx.cpu) if on_cpu else self.backend.context():
            self.model.update(tree_map(changed, self.weights) if change else self.weights)
            mx.random.seed(seed)
            loss, gradients = self.one_step(self.model, size)
            mx.eval(loss, gradients)
        arrays = {f"the gradient of {name}": array for name, array in tree_flatten(gradients)}
        arrays["the loss"] = loss
        return {name: np.array(array.astype(mx.float32)) for name, array in arrays.items()}

    def restore(self) -> None:
        """Restore the model's weights."""
        self.model.update(self.weights)
