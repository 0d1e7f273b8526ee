"""Losses of several workloads in MLX."""

import mlx.core as mx
import mlx.nn as nn

# PyTorch clamps the logarithm at -100. MLX clamps the loss instead, where its gradient is then 0.
LEAST = 1e-38


def binary_cross_entropy(probabilities, answers):
    """Return the loss of each element."""
    right, wrong = mx.maximum(probabilities, LEAST), mx.maximum(1 - probabilities, LEAST)
    return -(answers * mx.log(right) + (1 - answers) * mx.log(wrong))


def cross_entropy(model, inputs, labels):
    """Return the mean loss of a model that classifies its inputs."""
    return nn.losses.cross_entropy(model(inputs), labels, reduction="mean")
