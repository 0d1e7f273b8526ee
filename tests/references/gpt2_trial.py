"""What the notebook's GPT-2 makes of three steps of AdamW, from weights that no framework made."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from pomology.models.definitions import definitions
from pomology.models.gpt2 import Shape

STEPS = 3  # of AdamW
LR = 0.01  # so high that a difference in it shows in the loss
WEIGHT_DECAY = 0.5


def shape(architecture: str) -> Shape:
    """Return the small model on which an architecture is proved."""
    return Shape(architecture, blocks=2, width=32, heads=4, vocabulary=61, context=12)


def weights(shape: Shape) -> dict[str, np.ndarray]:
    """float32: each number another, and so large that an activation shows its bends."""
    generator = np.random.default_rng(1)
    found = {}
    for name, size in _sizes(shape).items():
        spread = 2.5 / np.sqrt(size[-1]) if len(size) == 2 else 0.3
        middle = 1.0 if re.search(r"ln\d?\.weight$", name) else 0.0
        found[name] = generator.normal(middle, spread, size).astype(np.float32)
    return found


def tokens(shape: Shape) -> np.ndarray:
    """3 sequences, each one token longer than the context."""
    return np.random.default_rng(2).integers(0, shape.vocabulary, (3, shape.context + 1))


def _sizes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Return sizes by the names of both frameworks, in the layout of both."""

    def part(name: str, *size: int, bias: bool = True) -> dict[str, tuple[int, ...]]:
        return {f"{name}.weight": size} | ({f"{name}.bias": size[:1]} if bias else {})

    width = shape.width
    block = part("ln1", width) | part("ln2", width)
    for name in ("query", "key", "value", "out"):
        block |= part(f"attention.{name}_proj", width, width, bias=shape.true)
    block |= part("linear1", 4 * width, width) | part("linear2", width, 4 * width)
    found = part("embedding", shape.vocabulary, width, bias=False) | part("ln", width)
    for number in range(shape.blocks):
        found |= {f"layers.{number}.{name}": size for name, size in block.items()}
    if shape.true:
        return found | part("positions", shape.positions, width, bias=False)
    return found | part("out_proj", shape.vocabulary, width)


def torch_pass(shape: Shape, code: SimpleNamespace, adamw: Callable) -> dict[str, np.ndarray]:
    """Return `logits`, `gradient NAME`, and `losses` before and after each step.

    code: of the notebook. adamw: of (model, lr, weight_decay), makes the optimizer.
    """
    import torch

    model = code.LanguageModel(shape)
    given = weights(shape).items()
    model.load_state_dict({name: torch.from_numpy(array) for name, array in given})
    words = torch.from_numpy(tokens(shape))
    inputs, targets = words[:, :-1].contiguous(), words[:, 1:].contiguous()
    found = {"logits": model(inputs).detach().numpy()}
    optimizer = adamw(model, LR, WEIGHT_DECAY)
    losses = []
    for step in range(STEPS + 1):
        optimizer.zero_grad()
        loss = code.loss_function(model, inputs, targets)
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            for name, weight in model.named_parameters():
                found[f"gradient {name}"] = weight.grad.numpy().copy()
        optimizer.step()
    return found | {"losses": np.array(losses, np.float32)}


def mlx_pass(architecture: str) -> dict[str, np.ndarray]:
    """Return the same of the notebook's MLX."""
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten

    names = ("LanguageModel", "loss_function", "adamw", "training")
    # As PyTorch always has it.
    code = definitions("gpt2_pretraining", *names, framework="mlx", bias_correction=True)
    trial = shape(architecture)
    model, words = code.LanguageModel(trial), mx.array(tokens(trial))
    model.load_weights([(name, mx.array(array)) for name, array in weights(trial).items()])
    inputs, targets = words[:, :-1], words[:, 1:]
    found = {"logits": np.array(model(inputs))}
    backward = nn.value_and_grad(model, functools.partial(code.loss_function, model))
    _, gradients = backward(inputs, targets)
    found |= {f"gradient {name}": np.array(array) for name, array in tree_flatten(gradients)}
    step = code.training(None, model, code.adamw(model, LR, WEIGHT_DECAY))
    losses = [step(inputs, targets, LR) for _ in range(STEPS + 1)]
    return found | {"losses": np.array(losses, np.float32)}
