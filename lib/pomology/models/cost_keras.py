"""FLOPs and memory of a training step of a Keras model, by formulas for each layer."""

import math

from pomology.errors import PomologyError
from pomology.models.cost import Cost


def keras_workload(model, batch_size):
    """Return the `Cost` of a step of a built model with Adam, without running it.

    It covers Dense, Conv2D, LSTM and layers without weights; others raise PomologyError. Each
    matmul counts once forward, once for the gradient of its weights, and once for that of its
    input. The first layer needs no gradient of its input, and an LSTM none of its first state.
    The backward pass keeps the output of each layer. An LSTM keeps seven vectors more per time
    step: four gates, both states, and tanh of one of them.
    """
    macs = 0  # multiply-accumulates per sample; 1 MAC is 2 FLOPs
    kept = 0  # elements per sample that the backward pass needs
    gradients = 1  # for the first layer with weights; 2 for the others
    for layer in model.layers:
        kind = type(layer).__name__
        output = layer.output.shape[1:]
        kept += math.prod(output)
        if kind == "Dense":
            forward = math.prod(layer.kernel.shape) * math.prod(output[:-1])
        elif kind == "Conv2D":
            forward = math.prod(layer.kernel.shape) * math.prod(output) // layer.filters
        elif kind == "LSTM":
            times = layer.input.shape[1]
            forward = times * math.prod(layer.cell.kernel.shape)
            macs += (3 * times - 1) * math.prod(layer.cell.recurrent_kernel.shape)
            kept += 7 * times * layer.units
        elif layer.weights:
            formulas = "Dense, Conv2D and LSTM have one"
            raise PomologyError(f"keras_workload: no formula for the layer {kind}; {formulas}")
        else:
            continue
        macs += (1 + gradients) * forward
        gradients = 2
    weights = sum(math.prod(weight.shape) for weight in model.weights)
    trained = sum(math.prod(weight.shape) for weight in model.trainable_weights)
    return Cost(
        parameters=weights,
        flops=2 * macs * batch_size,
        state_bytes=4 * (weights + 3 * trained),
        saved_bytes=4 * kept * batch_size,
    )
