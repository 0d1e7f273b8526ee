"""A Keras model of `mlp_cnn_lstm` in float64, in the form of `twins_reference.in_torch`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from references.trainings_reference import seeded

SAMPLES = 64  # of a counted step
UPDATES = 2
LSTM = {"kernel": "Wx", "recurrent_kernel": "Wh"}


def in_keras(modules: dict[str, Sequence[str]], size: int) -> dict[str, dict[str, Any]]:
    """Return inputs, first loss, gradients of each update, and weights before and after, by model.

    modules: model -> names in MLX of its layers that have weights, in their order. Arrays are in
    PyTorch's layout.
    """
    from pomology.devices import find

    find.prepare("tensorflow", fusion=True)
    import keras
    from notebook_code import definitions

    keras.config.set_floatx("float64")
    declared = definitions("mlp_cnn_lstm")["network"]
    return {model: _trained(declared(model, "cpu"), modules[model], size) for model in modules}


def _trained(declared: Any, modules: Sequence[str], size: int) -> dict[str, Any]:
    import keras

    from pomology.models import cost_keras, workload_keras

    images, labels = declared.batch(size)
    network = declared.build()
    for layer in network.layers:
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    weighted = [layer for layer in network.layers if layer.weights]
    names = []
    for module, layer in zip(modules, weighted, strict=True):
        own = LSTM if isinstance(layer, keras.layers.LSTM) else {"kernel": "weight"}
        names += [f"{module}.{own.get(each.name, each.name)}" for each in layer.weights]
    variables = network.trainable_variables
    shapes = [laid(np.array(each)).shape for each in variables]
    order = dict(sorted(zip(names, shapes, strict=True), reverse=True))  # a weight before its bias
    start = seeded(order)
    for name, variable in zip(names, variables, strict=True):
        variable.assign(in_layout_of_keras(start[name]))
    cost = cost_keras.keras_workload(network, SAMPLES)
    losses, updates = [], []
    for _ in range(UPDATES):
        batch = images.astype(np.float64), labels
        loss, gradients, _ = workload_keras.observed_step(network, declared, *batch)
        losses.append(float(loss))
        arrays = [laid(gradient).astype(np.float32) for gradient in gradients]
        updates.append(dict(zip(names, arrays, strict=True)))
    after = [laid(np.array(each)).astype(np.float32) for each in variables]
    return {
        "cost": [cost.parameters, cost.flops, cost.saved_bytes, cost.moved_bytes],
        "inputs": [np.moveaxis(images, -1, 1), labels],
        "start": start,
        "loss": losses[0],
        "updates": updates,
        "after": dict(zip(names, after, strict=True)),
    }


def laid(array: np.ndarray) -> np.ndarray:
    """Return a weight in PyTorch's layout: outputs, inputs, height, width."""
    return np.transpose(array, (3, 2, 0, 1)) if array.ndim == 4 else array.T


def in_layout_of_keras(array: np.ndarray) -> np.ndarray:
    """Return a weight in Keras's layout: height, width, inputs, outputs."""
    return np.transpose(array, (2, 3, 1, 0)) if array.ndim == 4 else array.T


def moved_bytes() -> dict[str, int]:
    """Return what operators of the same models move in a step in PyTorch; Keras counts nothing."""
    from pomology.models.article_models import CLASSIFIERS, classifier

    return {model: classifier(model).cost(SAMPLES).moved_bytes for model in CLASSIFIERS}
