"""Trainings in MLX with a mistake in each, which the comparison with PyTorch has to see. `test_trainings.py` runs these
tests in a process of their own: MLX must not share one with PyTorch.

python -m pytest tests/trainings_mlx.py
"""

from __future__ import annotations

import functools
from unittest import mock

import pytest

from pomology.devices import find
from pomology.workloads import isolated, trainings
from pomology.workloads.trainings import reference

find.prepare("mlx")
import mlx.core as mx  # noqa: E402
import mlx.nn as nn  # noqa: E402

ROWS = {"transformer_lm": "transformer_lm 3 16x2x16x101", "whisper": "whisper 1 whisper-smoke", "vae": "vae 4"}


@functools.cache
def given(workload: str):
    """The settings of a case, its batches, and what PyTorch makes of them."""
    (settings,) = trainings.rows([ROWS[workload]])
    batches = trainings.batches(1, settings)
    (expected,) = isolated.call("", f"{reference.__name__}:exact", [(settings, batches)])
    return settings, batches, expected


def in_mlx(settings, batches):
    model = trainings.load(f"{settings['workload']}_mlx").build(**settings)
    return reference.mlx_pass(model, settings, batches)


def hooks(workload: str):
    return trainings.load(f"{workload}_mlx")


def norm_first(layer, x, mask):
    x = x + layer.self_attn(layer.norm1(x), mask)
    return x + layer.linear2(nn.relu(layer.linear1(layer.norm2(x))))


def always_drops(layer, x):
    return x * (mx.random.uniform(shape=x.shape) > 0.2) / 0.8


class Coarse(nn.LayerNorm):
    def __init__(self, size):
        super().__init__(size, eps=1e-3)


def turned(layer, x):
    return x @ layer.weight + layer.bias if layer.weight.shape[0] == layer.weight.shape[1] else LINEAR(layer, x)


LINEAR, ADAMW = nn.Linear.__call__, hooks("whisper").Clipped
UNMASKED = staticmethod(lambda length: mx.zeros((length, length)))
LOSS = hooks("vae").loss
MISTAKES = {
    "activation": ("transformer_lm", nn, "relu", nn.gelu),
    "normalisation": ("transformer_lm", hooks("transformer_lm").Layer, "__call__", norm_first),
    "epsilon": ("transformer_lm", nn, "LayerNorm", Coarse),
    "weight decay": ("whisper", hooks("whisper"), "optimizer", lambda lr, decay: ADAMW(lr, bias_correction=True)),
    "learning rate": (
        "whisper",
        hooks("whisper"),
        "optimizer",
        lambda lr, decay: ADAMW(0.5 * lr, weight_decay=decay, bias_correction=True),
    ),
    "mask": ("whisper", nn.MultiHeadAttention, "create_additive_causal_mask", UNMASKED),
    "transposed weights": ("transformer_lm", nn.Linear, "__call__", turned),
    "reduction": ("vae", hooks("vae"), "loss", lambda outputs, images: LOSS(outputs, images) / len(images)),
    "dropout left on": ("transformer_lm", nn.Dropout, "__call__", always_drops),
    "rate of dropout": ("transformer_lm", hooks("transformer_lm"), "DROPOUT", 0.1),
    "no correction of Adam's bias": (
        "vae",
        hooks("vae"),
        "optimizer",
        lambda lr, decay: hooks("vae").optim.Adam(lr, bias_correction=False),
    ),
}


@pytest.mark.parametrize("workload", ROWS)
def test_a_training_in_mlx_is_that_in_pytorch(workload):
    settings, batches, expected = given(workload)
    assert reference.difference(in_mlx(settings, batches), expected)[1] is None


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_seen(mistake):
    workload, where, name, wrong = MISTAKES[mistake]
    settings, batches, expected = given(workload)
    with mock.patch.object(where, name, wrong):
        result = in_mlx(settings, batches)
    assert reference.difference(result, expected)[1] is not None


def test_batches_in_another_order_are_seen():
    settings, batches, expected = given("vae")
    result = in_mlx(settings, [batches[0], *reversed(batches[1:])])
    assert "losses" in reference.difference(result, expected)[1]
