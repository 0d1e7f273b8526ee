"""Gradients and optimizer updates of a Keras classifier on its device and on the CPU."""

from collections.abc import Callable
from typing import Any, Self

import keras
import numpy as np

from pomology.devices import tensorflow as devices_tensorflow

Arrays = dict[str, np.ndarray]


class BothDevices:
    """A model on a GPU and, in a `with` block, its copy on the CPU. Arguments: see `verify.step`.

    optimizers: the name of one, as in `compile`.
    """

    def __init__(self, case: Any, model: Any, optimizers: tuple, twin: Callable):
        self.case = case
        self.model = model
        self.optimizers = optimizers
        self.twin = twin
        dropout = any(isinstance(layer, keras.layers.Dropout) for layer in model.layers)
        self.unverified = {"dropout"} if dropout else set()

    def __enter__(self) -> Self:
        self.weights = self.model.get_weights()
        with devices_tensorflow.load().device("/CPU:0"):
            self.cpu_model = self.twin()
        return self

    def __exit__(self, *_: object) -> None:
        self.model.set_weights(self.weights)
        del self.cpu_model

    def gradients(self, size: int, seed: int, on_cpu: bool = False, change: float = 0.0) -> Arrays:
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

        with self._device(on_cpu):
            loss, outputs, gradients = step(*map(tensorflow.constant, (images, labels)))
        if not on_cpu:
            self.case.ran_on(outputs)
        self._gradients = [np.asarray(gradient) for gradient in gradients]
        names = [f"the gradient of {weight.path}" for weight in self.model.trainable_variables]
        arrays = dict(zip(names, self._gradients, strict=True))
        return arrays | {"the loss": np.asarray(loss), "the output": np.asarray(outputs)}

    def updated(self, count: int) -> tuple[Arrays, Arrays, Arrays, float]:
        """Return the weights before and after updates by equal gradients, see `verify_torch`."""
        tensorflow = devices_tensorflow.load()
        names = [f"the update of {weight.path}" for weight in self.model.trainable_variables]
        after = []
        for on_cpu in (False, True):
            model = self.cpu_model if on_cpu else self.model
            model.set_weights(self.weights)
            variables = model.trainable_variables
            before = dict(zip(names, map(np.array, variables), strict=True))
            with self._device(on_cpu):
                optimizer = keras.optimizers.get(self.optimizers[0])
                optimizer.build(variables)
                update = tensorflow.function(optimizer.apply, jit_compile=False)
                for _ in range(count):
                    update([tensorflow.constant(gradient) for gradient in self._gradients])
            after.append(dict(zip(names, map(np.array, variables), strict=True)))
        return before, *after, float(np.finfo(np.float32).eps)

    def _device(self, on_cpu: bool) -> Any:
        if on_cpu:
            return devices_tensorflow.load().device("/CPU:0")
        return self.case.backend.context()
