"""The MLP, CNN and LSTM of `mlp_cnn_lstm.ipynb` in MLX: the same models, loss and update.

Keras computes the loss from probabilities, and MLX from logits, which is the same number.
"""

import math

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

from pomology import Workload
from pomology.models.losses_mlx import cross_entropy
from pomology.models.workload_mlx import Pass, also_moves, initialized, one_update

LINES, UNITS, GATES = 28, 128, 4 * 128  # of the LSTM


def flattened(images):
    return images.reshape(len(images), -1)


def mlp():
    return nn.Sequential(
        flattened,
        nn.Linear(784, 512),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        flattened,
        nn.Linear(576, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


class Lines(nn.Module):
    """An LSTM over the lines of an image, whose last output is classified."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(28, UNITS)
        self.classes = nn.Linear(UNITS, 10)

    def __call__(self, images):
        outputs, _ = self.lstm(images)
        return self.classes(outputs[:, -1])


BUILD = {"mlp": mlp, "cnn": cnn, "lstm": Lines}
PARAMETERS = {"mlp": 435_402, "cnn": 93_322, "lstm": 81_674}
FIRST = {"mlp": 784 * 512, "cnn": 288 * 26**2, "lstm": LINES * 28 * GATES}  # MACs, first layer
REST = {
    "mlp": 512 * 64 + 64 * 10,
    "cnn": 18_432 * 11**2 + 36_864 * 3**2 + 576 * 64 + 64 * 10,
    "lstm": LINES * UNITS * GATES + UNITS * 10,
}
# Outputs of the layers in Keras, which the backward pass needs; in the LSTM also four gates, both
# states and a tanh of each line.
KEPT = {
    "mlp": 784 + 2 * 512 + 64 + 10,
    "cnn": 32 * (26**2 + 13**2) + 64 * (11**2 + 5**2 + 3**2) + 576 + 64 + 10,
    "lstm": 7 * LINES * UNITS + UNITS + 10,
}
MOVED = {"mlp": 50_720, "cnn": 1_460_128, "lstm": 1_653_280}  # bytes of a sample, see `Workload`
# Further weights that a step of any size reads or writes. The first layer of the MLP needs no
# gradient of its input. The LSTM reads its weights and adds to their gradients for each line.
WEIGHTS = {"mlp": -784 * 512, "cnn": 0, "lstm": LINES * (6 * UNITS + 4 * 28) * GATES}


def build(model):
    """Return a model with the initial weights of Keras."""
    network = BUILD[model]()
    for module in network.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            module.weight = nn.init.glorot_uniform()(module.weight)
            module.bias = mx.zeros(module.bias.shape)
    return network


class Adam(optim.Adam):
    """Keras's Adam: its epsilon is added before the bias is corrected, in MLX after that."""

    def apply_single(self, gradient, parameter, state):
        first, second = self.betas
        state["m"] = first * state["m"] + (1 - first) * gradient
        state["v"] = second * state["v"] + (1 - second) * mx.square(gradient)
        corrected = mx.sqrt(1 - second**self.step) / (1 - first**self.step)
        rate = (self.learning_rate * corrected).astype(gradient.dtype)
        return parameter - rate * state["m"] / (mx.sqrt(state["v"]) + self.eps)


def workload(config, validation_samples):
    """Return the workload of a case's settings. validation_samples: of the end of each epoch."""
    model, batch_size = config["model"], config["batch_size"]
    shape = (28, 28, 1) if model == "cnn" else (28, 28)

    def batch(size):
        return mx.random.uniform(shape=(size, *shape)), mx.random.randint(0, 10, (size,))

    first_state = 2 * UNITS * GATES if model == "lstm" else 0  # needs no gradient
    steps = math.ceil(validation_samples / batch_size)
    return Workload(
        build=lambda: build(model),
        batch=batch,
        optimizer=lambda network: initialized(Adam(1e-3, eps=1e-7), network),  # as in Keras
        step=one_update(cross_entropy),
        parameters=PARAMETERS[model],
        flops_per_sample=4 * FIRST[model] + 6 * REST[model] - first_state,
        optimizer_class="Adam",
        slots=2,
        saved_bytes_per_sample=4 * KEPT[model],
        moved_bytes_per_sample=MOVED[model],
        adjust=also_moves(4 * WEIGHTS[model]),
        passes=[Pass("validation", cross_entropy, batch, batch_size, steps)],
    )
