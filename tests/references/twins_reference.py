"""One workload in PyTorch and float64, and its MLX twin, from equal weights and inputs.

The step that a case times runs in both. Compared are its first loss, the gradients that its
optimizers get, and the weights after two updates by PyTorch's gradients.
"""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
from references.trainings_reference import (
    _wave,
    channels_first,
    in_mlx_layout,
    seeded,
    without_sequential,
)

from pomology.data.synthetic import END_OF_TEXT
from pomology.paths import root

Arrays = dict[str, np.ndarray]
UPDATES = 2
SAMPLES = 64  # of a counted step
PEFT = "base_model.model."  # begins the names in a model with LoRA


def in_torch(
    notebook: str, variable: str, size: int, every: int, values: dict[str, Any], *settings: Any
) -> dict[str, Any]:
    """Return inputs, first loss, gradients of each update, and weights before and after.

    variable: name of the notebook's workload, or of the function of `settings` that returns it.
    every: number of the pixels that are taken, in both directions of images. values: parameters of
    the notebook.
    """
    import torch
    from notebook_code import definitions
    from torch import nn
    from torch.utils._pytree import tree_leaves, tree_map

    from pomology.models import workload

    values = {name: range(60_000) for name in ("photographs", "pairs", "train_set")} | values
    declared = definitions(notebook, **values)[variable]
    declared = declared(*settings) if callable(declared) else declared
    cost = declared.cost(SAMPLES)
    torch.manual_seed(1)
    batch = padded(declared.batch(size))
    torch.set_default_dtype(torch.float64)
    model = declared.build().to(torch.float64)
    turned = {  # inputs x outputs
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, nn.ConvTranspose2d) or type(module).__name__ == "Conv1D"  # GPT-2
    }

    def laid(name: str, array: Any) -> Any:
        return array.swapaxes(0, 1) if name in turned else array

    own = dict(model.named_parameters())
    # peft keeps the score that it replaces.
    own = {name: weight for name, weight in own.items() if "original_module" not in name}
    own |= {name: kept for name, kept in model.named_buffers() if "running" in name}
    start = seeded({name: tuple(laid(name, own[name]).shape) for name in sorted(own, reverse=True)})
    with torch.no_grad():
        for name, array in start.items():
            own[name].copy_(torch.from_numpy(np.ascontiguousarray(laid(name, array))))
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0

    def single(name: str, tensor: Any) -> np.ndarray:  # precision, in which MLX computes
        return laid(name, tensor.numpy()).astype(np.float32)

    def now() -> Arrays:
        return {plain(name): single(name, each.detach()) for name, each in own.items()}

    def same(*shape: int, **_: Any) -> Any:
        return torch.from_numpy(_wave(shape)).double()

    updates: list[Arrays] = []

    def note(optimizer: Any, step: Any, *arguments: Any) -> Any:
        chosen = {id(weight) for weight in workload.weights_of(optimizer, model)}
        found = {}
        for name, weight in model.named_parameters():
            if id(weight) in chosen and weight.grad is not None:
                found[plain(name)] = single(name, weight.grad)
        updates.append(found)
        return step(*arguments)

    def exact(tensor: Any) -> Any:
        return tensor.double() if tensor.is_floating_point() else tensor

    def smaller(tensor: Any) -> Any:
        return tensor[..., ::every, ::every] if tensor.ndim == 4 else tensor

    batch = tree_map(smaller, batch)
    double = tree_map(exact, batch)  # a batch may have a list of views
    optimizer = declared.optimizer(model)
    losses = []
    draws = mock.patch.multiple(torch, randn=same, randn_like=lambda each: same(*each.shape))
    with draws, workload.before_update(workload.updates(optimizer), note):
        for _ in range(UPDATES):
            loss = declared.step(model, optimizer, *double)
            losses.append(float(loss[0] if isinstance(loss, tuple) else loss))
    inputs = [tensor.numpy() for tensor in tree_leaves(batch)]
    return {
        "cost": [cost.parameters, cost.flops, cost.saved_bytes, cost.moved_bytes],
        "inputs": inputs,
        "start": {plain(name): array for name, array in start.items()},
        "loss": losses[0],
        "updates": updates,
        "after": now(),
    }


def padded(batch: tuple) -> tuple:
    """Return a batch of reviews with masks of padding, as a loader gives; others as they are."""
    if not isinstance(batch[0], dict) or "attention_mask" not in batch[0]:
        return batch
    import torch

    tokens = batch[0]["input_ids"].clone()
    mask = torch.ones_like(tokens)
    for number in range(len(tokens)):
        mask[number, mask.shape[1] - 3 * number :] = 0
    tokens[mask == 0] = END_OF_TEXT
    return (batch[0] | {"input_ids": tokens, "attention_mask": mask},)


def plain(name: str) -> str:
    """Return the name of a tensor without what peft adds."""
    name = name.removeprefix(PEFT).replace(".modules_to_save", "")
    return name.replace(".default", "")


def in_mlx(source: str, reference: dict[str, Any], *settings: Any) -> dict[str, Any]:
    """Return the same of a twin, whose weights are updated by the reference's gradients.

    source: `folder/file.py:name`, in the notebooks' folder.
    """
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten, tree_unflatten

    from pomology.experiment import twin
    from pomology.models import workload_mlx

    declared = twin.load(str(root() / "notebooks" / source))
    file = importlib.import_module(source.partition(":")[0].rpartition("/")[2].removesuffix(".py"))
    declared = declared(*settings) if callable(declared) else declared
    model = declared.build().train()
    modules = dict(model.named_modules())
    paths = {id(module): name for name, module in modules.items()}

    def named(name: str) -> str:
        other = getattr(file, "PREFIX", "") + without_sequential(name, modules)
        return getattr(file, "NAMES", {}).get(name, other)

    def own(array: np.ndarray) -> Any:
        kind = np.float32 if array.dtype.kind == "f" else array.dtype
        return mx.array(in_mlx_layout(np.ascontiguousarray(array, dtype=kind)))

    names = {name: named(name) for name, _ in tree_flatten(model.parameters())}
    missing = sorted(name for name in names if names[name] not in reference["start"])
    if missing:
        here, there = ", ".join(missing), ", ".join(sorted(reference["start"]))
        raise ValueError(f"NAMES of {source} lacks {here}; PyTorch's weights are {there}")
    model.load_weights([(name, own(reference["start"][names[name]])) for name in names])
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module._p_1 = 1.0
    gradients: dict[str, np.ndarray] = {}
    waiting = list(reference["updates"])

    def note(_optimizer: Any, update: Any, part: Any, found: Any) -> None:
        prefix = f"{paths[id(part)]}." if paths[id(part)] else ""
        flat = dict(tree_flatten(found))
        given = waiting.pop(0)
        if len(waiting) >= len(reference["updates"]) // 2:  # of the first step
            for name, array in flat.items():
                gradients[names[prefix + name]] = channels_first(array)
        equal = [(name, own(given[names[prefix + name]])) for name in flat]
        update(part, tree_unflatten(equal))

    inputs = [own(array) for array in reference["inputs"]]
    optimizer = declared.optimizer(model)
    losses = []
    with _waves(mx), workload_mlx.before_update(workload_mlx.optimizers_of(optimizer), note):
        for _ in range(UPDATES):
            loss = declared.step(model, optimizer, *inputs)
            mx.eval(loss, model.parameters())
            losses.append(loss.item())
    after = {names[name]: channels_first(array) for name, array in tree_flatten(model.parameters())}
    cost = workload_mlx.declared_cost(declared, SAMPLES)
    declares = cost.parameters, cost.flops, cost.saved_bytes, cost.moved_bytes
    return {"cost": declares, "loss": losses[0], "gradients": gradients, "after": after}


@contextlib.contextmanager
def _waves(mx: Any) -> Iterator[None]:
    """Let MLX draw the same numbers as PyTorch."""
    with mock.patch.object(mx.random, "normal", lambda shape, *_, **__: mx.array(_wave(shape))):
        yield
