"""What a workload's step does in Keras, whose `fit` owns the loop.

`fit` calls the model's own `train_step` for each batch. So that is the step that is counted by
formulas for each layer, observed once before the timing, and verified on both devices.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np

from pomology.devices import tensorflow as devices_tensorflow
from pomology.models import workload as workloads
from pomology.models.cost_keras import keras_workload
from pomology.models.workload import Counted, Seen, Workload

SMALL = 2  # samples of the observed step


def train_step(model: Any, _optimizer: Any, inputs: Any, labels: Any) -> Any:
    """Make the step of `fit`, and return its loss: the `step` of a workload in Keras."""
    return model.train_step((inputs, labels))["loss"]


def observed_step(model: Any, workload: Workload, *batch: Any, update: bool = True) -> tuple:
    """Run a step in a graph, as `fit` does; return its loss, gradients, and what modules met.

    update: whether the optimizer updates the weights. The gradients are those that it gets.
    """
    tensorflow = devices_tensorflow.load()
    seen: list[Seen] = []
    apply = model.optimizer.apply_gradients

    @tensorflow.function(jit_compile=False)
    def step(*arrays: Any) -> tuple:
        gradients = []

        def note(pairs: Any) -> Any:
            listed = list(pairs)
            gradients.extend(gradient for gradient, _ in listed)
            return apply(listed) if update else None

        with mock.patch.object(model.optimizer, "apply_gradients", note), watched(model) as met:
            loss = workload.step(model, model.optimizer, *arrays)
        seen.append(met)
        return loss, gradients

    model.reset_metrics()
    loss, gradients = step(*map(tensorflow.constant, batch))
    # A tensor that the loss does not depend on has no gradient.
    arrays = [np.zeros(0) if gradient is None else np.asarray(gradient) for gradient in gradients]
    return loss, arrays, seen[0]


@contextlib.contextmanager
def watched(model: Any) -> Iterator[Seen]:
    """Note in which mode, precision and with which inputs layers are called in the block.

    Only layers whose call depends on the mode, such as dropout, note it.
    """
    seen = Seen(autocast={model.dtype_policy.compute_dtype != "float32"})

    def noted(name: str, call: Callable, inputs: Any, *arguments: Any, **named: Any) -> Any:
        seen.shapes.setdefault(name, tuple(inputs.shape))
        if name and "training" in named:
            seen.training.setdefault(name, bool(named["training"]))
        return call(inputs, *arguments, **named)

    with contextlib.ExitStack() as stack:
        for name, layer in [("", model), *((layer.name, layer) for layer in model.layers)]:
            call = functools.partial(noted, name, layer.call)
            stack.enter_context(mock.patch.object(layer, "call", call))
        yield seen


def observe(workload: Workload, model: Any) -> Counted:
    """Run one step of `SMALL` samples; the model's weights and optimizer stay as they were."""
    weights = model.get_weights()
    variables = model.trainable_variables
    model.optimizer.build(variables)
    state = [np.array(variable) for variable in model.optimizer.variables]
    _, gradients, seen = observed_step(model, workload, *workload.batch(SMALL))
    names = [weight.path for weight in variables]
    pairs = zip(names, gradients, strict=True)
    updated = {name for name, gradient in pairs if np.any(gradient != 0)}
    shapes = {tuple(weight.shape) for weight in variables}
    slots = [variable for variable in model.optimizer.variables if tuple(variable.shape) in shapes]
    slot_bytes = sum(4 * int(np.prod(variable.shape)) for variable in slots)
    model.set_weights(weights)
    for variable, value in zip(model.optimizer.variables, state, strict=True):
        variable.assign(value)
    model.reset_metrics()
    sizes = {}
    for weight in variables:
        elements = int(np.prod(weight.shape))
        sizes[weight.path] = (elements, 4 * elements)
    counted = keras_workload(model, SMALL)
    kinds = [type(model.optimizer).__name__]
    return Counted(counted, SMALL, sizes, updated, kinds, slot_bytes, seen)


def differences(workload: Workload, small: Counted) -> Iterator[str]:
    """Yield what an observed step does other than its workload declares, as sentences."""
    yield from workloads.differences(workload, small)
    samples = small.seen.shapes[""][0]
    if samples != SMALL:
        yield f"the model gets {samples} samples, not {SMALL}"
