"""What several files of MLX share."""

import mlx.core as mx

# PyTorch bounds a logarithm at -100; MLX's function bounds its result, which has no gradient then.
LEAST = 1e-38


def binary_cross_entropy(probabilities, answers):
    """Of each element."""
    right, wrong = mx.maximum(probabilities, LEAST), mx.maximum(1 - probabilities, LEAST)
    return -(answers * mx.log(right) + (1 - answers) * mx.log(wrong))
