"""What the notebooks' GPT-2 makes of three steps of AdamW, from weights and tokens that no framework made.

`python tests/references/gpt2_trial.py FILE.npz ARCHITECTURE BIAS_CORRECTION` saves what that in MLX gives.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pomology.models.definitions import definitions
from pomology.models.gpt2 import Shape

STEPS = 3  # of AdamW


@dataclass(frozen=True)
class Trial:
    """A small model with weights by name, and tokens, on which both frameworks and the reference make three steps."""

    shape: Shape
    bias_correction: bool = True
    lr: float = 0.01  # so high that a difference in it shows in the loss
    weight_decay: float = 0.5

    @functools.cached_property
    def weights(self) -> dict[str, np.ndarray]:
        """By name, as float32: every number another, and large enough that an activation shows its bends."""
        generator = np.random.default_rng(1)
        found = {}
        for name, size in _names(self.shape).items():
            spread = 2.5 / np.sqrt(size[-1]) if len(size) == 2 else 0.3
            middle = 1.0 if re.search(r"ln\d?\.weight$", name) else 0.0
            found[name] = generator.normal(middle, spread, size).astype(np.float32)
        return found

    @functools.cached_property
    def tokens(self) -> np.ndarray:
        """3 sequences, each one token longer than the context."""
        return np.random.default_rng(2).integers(
            0, self.shape.vocabulary, (3, self.shape.context + 1)
        )


def trial(architecture: str, bias_correction: bool = True) -> Trial:
    """The small model on which an architecture is proved."""
    return Trial(
        Shape(architecture, blocks=2, width=32, heads=4, vocabulary=61, context=12), bias_correction
    )


def _names(shape: Shape) -> dict[str, tuple[int, ...]]:
    """The weights of a model, by the names that both notebooks give them, in the layout of PyTorch and MLX."""

    def part(name: str, *size: int, bias: bool = True) -> dict[str, tuple[int, ...]]:
        return {f"{name}.weight": size} | ({f"{name}.bias": size[:1]} if bias else {})

    width, block = shape.width, {}
    for name in ("query", "key", "value", "out"):
        block |= part(f"attention.{name}_proj", width, width, bias=shape.true)
    block |= part("ln1", width) | part("ln2", width)
    block |= part("linear1", 4 * width, width) | part("linear2", width, 4 * width)
    found = part("embedding", shape.vocabulary, width, bias=False)
    found |= part("positions", shape.positions, width, bias=False) if shape.true else {}
    found |= {
        f"layers.{n}.{name}": size for n in range(shape.blocks) for name, size in block.items()
    }
    return (
        found
        | part("ln", width)
        | ({} if shape.true else part("out_proj", shape.vocabulary, width))
    )


def torch_pass(
    trial: Trial, build: Callable, loss_function: Callable, optimizer: Callable
) -> dict[str, np.ndarray]:
    """What a notebook's PyTorch makes of a trial: `logits`, `gradient NAME`, and `losses` before and after each step.

    build: of a shape. loss_function: of (model, inputs, targets). optimizer: of (model, lr, weight_decay).
    """
    import torch

    model = build(trial.shape)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in trial.weights.items()})
    tokens = torch.from_numpy(trial.tokens)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    found = {"logits": model(inputs).detach().cpu().numpy()}
    made, losses = optimizer(model, trial.lr, trial.weight_decay), []
    for step in range(STEPS + 1):
        made.zero_grad(set_to_none=True)
        loss = loss_function(model, inputs, targets)
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            for name, weight in model.named_parameters():
                gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
                found[f"gradient {name}"] = gradient.cpu().numpy()
        made.step()
    return found | {"losses": np.array(losses, np.float32)}


def mlx_pass(
    trial: Trial,
    build: Callable,
    loss_function: Callable,
    optimizer: Callable,
    training: Callable,
) -> dict[str, np.ndarray]:
    """The same of a notebook's MLX.

    training: of (case, model, optimizer), gives a step of (inputs, targets, rate) that returns its
    loss.
    """
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten

    model = build(trial.shape)
    model.load_weights([(name, mx.array(array)) for name, array in trial.weights.items()])
    inputs, targets = mx.array(trial.tokens[:, :-1]), mx.array(trial.tokens[:, 1:])
    found = {"logits": np.array(model(inputs))}
    _, gradients = nn.value_and_grad(model, lambda *given: loss_function(model, *given))(
        inputs, targets
    )
    found |= {f"gradient {name}": np.array(array) for name, array in tree_flatten(gradients)}
    step = training(None, model, optimizer(model, trial.lr, trial.weight_decay))
    losses = [step(inputs, targets, trial.lr) for _ in range(STEPS + 1)]
    return found | {"losses": np.array(losses, np.float32)}


def code(notebook: str, *wanted: str, **given: Any) -> tuple:
    """What a notebook defines by these names."""
    scope = definitions(notebook, *wanted, **given)
    return tuple(getattr(scope, name) for name in wanted)


if __name__ == "__main__":
    path, architecture, bias_correction = sys.argv[1], sys.argv[2], sys.argv[3] == "True"
    names = ("LanguageModel", "loss_function", "adamw", "training")
    scope = code("gpt2_pretraining", *names, framework="mlx", bias_correction=bias_correction)
    np.savez(path, **mlx_pass(trial(architecture, bias_correction), *scope))
