"""Gradients of a Keras classifier on its device and on the CPU."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from pomology.devices import tensorflow as devices_tensorflow


class BothDevices:
    """A model on a GPU and its copy on the CPU. Arguments: see `verify.step`."""

    def __init__(self, case: Any, model: Any, twin: Callable):
        self.case = case
        self.model = model
        self.weights = model.get_weights()
        with devices_tensorflow.load().device("/CPU:0"):
            self.cpu_model = twin()

    def gradients(
        self, size: int, seed: int, on_cpu: bool = False, change: float = 0.0
    ) -> dict[str, np.ndarray]:
        """Return the loss, the output and the gradients by name. change: see `verify_torch`.

        The loss is the cross-entropy of random images, in a graph as in training, without dropout.
        """
        tensorflow = devices_tensorflow.load()
        model = self.cpu_model if on_cpu else self.model
        draw = np.random.default_rng(seed)
        images = draw.random((size, *model.input_shape[1:]), dtype=np.float32)
        labels = draw.integers(0, model.output_shape[-1], size)
        noise = [draw.standard_normal(weight.shape, "f") for weight in self.weights]
        pairs = zip(self.weights, noise, strict=True)
        model.set_weights([weight * (1 + change * numbers) for weight, numbers in pairs])
        variables = [variable.value for variable in model.trainable_variables]

        @tensorflow.function(jit_compile=False)
        def step(images: Any, labels: Any) -> tuple:
            with tensorflow.GradientTape() as tape:
                outputs = model(images, training=False)
                losses = keras.losses.sparse_categorical_crossentropy(labels, outputs)
                loss = tensorflow.reduce_mean(losses)
            return loss, outputs, tape.gradient(loss, variables)

        with tensorflow.device("/CPU:0") if on_cpu else self.case.backend.context():
            loss, outputs, gradients = step(*map(tensorflow.constant, (images, labels)))
        if not on_cpu:
            self.case.ran_on(outputs)
        names = [f"the gradient of {weight.path}" for weight in self.model.trainable_variables]
        tensors = dict(zip(names, gradients, strict=True))
        tensors |= {"the loss": loss, "the output": outputs}
        return {name: np.asarray(tensor) for name, tensor in tensors.items()}

    def restore(self) -> None:
        """Restore the model's weights."""
        self.model.set_weights(self.weights)
