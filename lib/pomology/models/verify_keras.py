"""Gradients and optimizer updates of a Keras model on its device and on the CPU."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any, Self

import keras
import numpy as np

from pomology.devices import tensorflow as devices_tensorflow
from pomology.models import verify
from pomology.models.verify import FP32_EPS, SMALLEST, Deviations, Reference
from pomology.models.workload import Workload
from pomology.models.workload_keras import observed_step

Arrays = dict[str, np.ndarray]


class StepOnBothDevices:
    """A workload's step on a GPU and, in a `with` block, on the CPU; see `verify.Step`.

    source: builds the same model for the CPU. Dropout is off, since its random numbers would
    differ between devices.
    """

    in_blocks = None
    traces = True

    def __init__(self, case: Any, model: Any, workload: Workload, source: Workload):
        self.case = case
        self.model = model
        self.workload = workload
        self.source = source
        self.optimizers = [model.optimizer]
        self.parameters = model.count_params()
        dropout = any(isinstance(layer, keras.layers.Dropout) for layer in model.layers)
        self.unverified = {"dropout"} if dropout else set()

    def __enter__(self) -> Self:
        self.weights = self.model.get_weights()
        self.model.optimizer.build(self.model.trainable_variables)
        self.state = [np.array(each) for each in self.model.optimizer.variables]
        with devices_tensorflow.load().device("/CPU:0"):
            self.cpu_model = self.source.build()
            self.cpu_model.optimizer.build(self.cpu_model.trainable_variables)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore(self.model)
        del self.cpu_model

    def reference(self, size: int, seed: int) -> Reference:
        """See `verify.Step`."""
        began_s = time.perf_counter()
        arrays = self._gradients(self.cpu_model, size, seed)
        return Reference(size, seed, arrays, time.perf_counter() - began_s)

    def deviations(self, reference: Reference, noise: float = 0.0, draw: int = 0) -> Deviations:
        """See `verify.Step`; the relative error is one of the weights."""
        model = self.cpu_model if noise else self.model
        arrays = self._gradients(model, reference.size, reference.seed, noise, draw)
        return verify.compared(arrays, reference.arrays)

    def repeated(self, size: int) -> Deviations:
        """See `verify.Step`."""
        first = self._gradients(self.model, size, 0)
        return verify.compared(self._gradients(self.model, size, 0), first)

    def _gradients(
        self, model: Any, size: int, seed: int, noise: float = 0.0, draw: int = 0
    ) -> Arrays:
        """Return the gradients that the optimizer gets, and the loss."""
        self._restore(model, self._factors(noise, draw) if noise else None)
        loss, gradients = self._step(model, size, seed)
        names = [f"the gradient of {weight.path}" for weight in self.model.trainable_variables]
        return dict(zip(names, gradients, strict=True)) | {"the loss": np.asarray(loss)}

    def products(self, left: np.ndarray, right: np.ndarray) -> dict[str, np.ndarray]:
        """See `verify.Step`."""
        multiply = devices_tensorflow.load().linalg.matmul
        batches = (np.stack([each, each]) for each in (left, right))
        with self._device(on_cpu=False):
            made = {"matmul": multiply(left, right), "batched": multiply(*batches)[0]}
        return {operator: np.array(product) for operator, product in made.items()}

    def losses(self, size: int, count: int, cpu: bool, noise: float = 0.0) -> list[float]:
        """See `verify.Step`."""
        tensorflow = devices_tensorflow.load()
        model = self.cpu_model if cpu else self.model
        self._restore(model, self._factors(noise, 0) if noise else None)
        keras.utils.set_random_seed(0)
        batch = [tensorflow.constant(each) for each in self.workload.batch(size)]
        losses = []
        with self._without_dropout(model), self._device(cpu):

            @tensorflow.function(jit_compile=False)
            def step(*arrays: Any) -> Any:
                return self.workload.step(model, model.optimizer, *arrays)

            for _ in range(count):
                model.reset_metrics()  # of which the loss is a running mean
                losses.append(float(step(*batch)))
        return losses

    def updates(self, count: int, timed: bool = False) -> Deviations:
        """See `verify.Step`; the optimizer is always the timed one, in its state."""
        tensorflow = devices_tensorflow.load()
        self._restore(self.model)
        before = [np.array(weight) for weight in self.model.trainable_variables]
        _, gradients = self._step(self.model, SMALLEST, 0)
        weights, states = [], []
        for model in (self.model, self.cpu_model):
            self._restore(model)
            with self._device(model is self.cpu_model):
                update = tensorflow.function(model.optimizer.apply, jit_compile=False)
                for _ in range(count):
                    update([tensorflow.constant(gradient) for gradient in gradients])
            weights.append([np.array(each) for each in model.trainable_variables])
            states.append([np.array(each) for each in model.optimizer.variables])
        deviations = {}
        names = [each.path for each in self.model.trainable_variables]
        for name, *arrays in zip(names, before, *weights, strict=True):
            deviations[f"the update of {name}"] = verify.of_update(*arrays, count * FP32_EPS)
        names = [each.path for each in self.model.optimizer.variables]
        for name, device, cpu in zip(names, *states, strict=True):
            deviations[f"the optimizer's {name}"] = verify.of_state(device, cpu, count * FP32_EPS)
        return deviations

    def _step(self, model: Any, size: int, seed: int) -> tuple:
        """Run the step of `fit` on the model's device, without dropout and without an update."""
        on_cpu = model is self.cpu_model
        keras.utils.set_random_seed(seed)
        batch = self.workload.batch(size)
        with self._without_dropout(model), self._device(on_cpu):
            loss, gradients, _ = observed_step(model, self.workload, *batch, update=False)
        if not on_cpu:
            self.case.ran_on(loss)
        return loss, gradients

    @contextlib.contextmanager
    def _without_dropout(self, model: Any) -> Iterator[None]:
        rates = {layer: layer.rate for layer in model.layers if hasattr(layer, "rate")}
        try:
            for layer in rates:
                layer.rate = 0.0
            yield
        finally:
            for layer, rate in rates.items():
                layer.rate = rate

    def _factors(self, noise: float, draw: int) -> list[np.ndarray]:
        """Return factors of the weights, with a relative error."""
        normal = np.random.default_rng(draw).standard_normal
        return [1 + noise * normal(weight.shape, "f") for weight in self.weights]

    def _restore(self, model: Any, factors: list[np.ndarray] | None = None) -> None:
        """Restore a model's weights, times factors, and the state of its optimizer."""
        pairs = zip(self.weights, factors or [1.0] * len(self.weights), strict=True)
        model.set_weights([weight * factor for weight, factor in pairs])
        for variable, value in zip(model.optimizer.variables, self.state, strict=True):
            variable.assign(value)
        model.reset_metrics()

    def _device(self, on_cpu: bool) -> Any:
        if on_cpu:
            return devices_tensorflow.load().device("/CPU:0")
        return self.case.backend.context()
