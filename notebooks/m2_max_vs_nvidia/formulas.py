"""For the notebook `mlp_cnn_lstm`: what a training step of a Keras model costs, by formulas."""

import math

from pomology.errors import PomologyError
from pomology.models.cost import Workload


def keras_workload(model, batch_size):
    """Return the `Workload` of a step of a built model with Adam, layer by layer; nothing runs.

    Knows Dense, Conv2D and LSTM, and layers without weights; raises PomologyError for any other.
    Each product counts forward and once for each gradient: that of the weights, and that of the
    input, which the first layer does not need, nor an LSTM that of its first state. Kept for the
    backward pass is at the least each layer's output, and of an LSTM seven vectors a time step:
    four gates, both states, and tanh of one.
    """
    macs = 0  # multiply-adds of a sample
    kept = 0  # numbers of a sample
    gradients = 1  # of the first layer with weights; of the others 2
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
            known = "Dense, Conv2D and LSTM have one"
            raise PomologyError(f"keras_workload: no formula for the layer {kind}; {known}")
        else:
            continue
        macs += (1 + gradients) * forward
        gradients = 2
    weights = sum(math.prod(weight.shape) for weight in model.weights)
    trained = sum(math.prod(weight.shape) for weight in model.trainable_weights)
    return Workload(
        parameters=weights,
        flops=2 * macs * batch_size,
        state_bytes=4 * (weights + 3 * trained),
        saved_bytes=4 * kept * batch_size,
    )
