"""A training in PyTorch and float64, and the same one in MLX: two steps of it."""

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np

from pomology.models import verify

STEPS = 2
SHRINK = 0.05  # of the weights in a step, by a decay so high that it shows in the losses
ONLY_ROUNDING = 1e-9  # of the largest gradient of all
Arrays = dict[str, np.ndarray]


def seeded(shapes: dict[str, tuple[int, ...]]) -> Arrays:
    """Weights by name, in PyTorch's layout, made by no framework; no number is there twice.

    Each bias of a batch normalisation is 2.5 of its weights away from zero, up in one channel and
    down in the next, so that few values are where ReLU bends and rounding alone turns gradients.
    """
    generator, weights = np.random.default_rng(1), {}
    for name, shape in shapes.items():
        batch_norm = f"{name.rpartition('.')[0]}.running_mean" in shapes
        if len(shape) > 1:
            array = generator.normal(0, 1 / np.sqrt(np.prod(shape[1:])), shape)
        elif name.endswith("running_mean") or "bias" in name:
            array = generator.normal(0, 0.1, shape)
            if batch_norm and name.endswith("bias"):
                sign = np.where(np.arange(shape[0]) % 2, -1, 1)
                array = 2.5 * sign * weights[f"{name[:-4]}weight"]
        else:  # of normalisations, and running variances
            array = generator.uniform(*((0.2, 0.4) if batch_norm else (0.5, 1.5)), shape)
        weights[name] = array.astype(np.float32)
    return weights


def _wave(shape: Sequence[int]) -> np.ndarray:
    """In place of random numbers, such as no framework draws."""
    return (1.4 * np.cos(1.7 * np.arange(np.prod(shape)))).astype(np.float32).reshape(shape)


def _outputs(outputs: Any, array: Callable[[Any], np.ndarray]) -> Arrays:
    several = outputs if isinstance(outputs, tuple) else (outputs,)
    return {f"output {number}": array(output) for number, output in enumerate(several)}


def _numbers(rates: list[float], losses: list[float]) -> Arrays:
    first, later = np.split(np.array(losses, np.float32), [len(losses) // (STEPS + 1)])
    return {"dropout": np.sort(np.array(rates, np.float32)), "losses": first, "later losses": later}


def in_mlx_layout(array: np.ndarray) -> np.ndarray:
    """Images or convolution weights in MLX's layout, from PyTorch's."""
    return array if array.ndim < 3 else np.ascontiguousarray(np.moveaxis(array, 1, -1))


def _passes(hooks: Any, model: Any) -> list[tuple[Any, Callable]]:
    """The parts that a step trains, mostly the whole model, each with its loss function."""
    if hasattr(hooks, "passes"):
        return hooks.passes(model)
    return [(model, lambda *batch: hooks.loss(hooks.forward(model, *batch), *batch))]


def without_sequential(name: str, modules: dict[str, Any]) -> str:
    """Return the name of a weight without MLX's Sequential, which is seen in `layers.4.weight`.

    modules: of the model, by name.
    """
    import mlx.nn as nn

    parts = name.split(".")
    kept = [
        part
        for place, part in enumerate(parts)
        if part != "layers" or not isinstance(modules[".".join(parts[:place])], nn.Sequential)
    ]
    return ".".join(kept)


def channels_first(array: Any) -> np.ndarray:
    """Images or convolution weights of MLX in PyTorch's layout."""
    import mlx.core as mx

    return np.array(array if array.ndim < 3 else mx.moveaxis(array, -1, 1))


def mlx_pass(hooks: Any, model: Any, lr: float, batches: list[tuple[np.ndarray, ...]]) -> Arrays:
    """What MLX makes of batches in PyTorch's layout, from `seeded` weights, by PyTorch's names.

    `output N`, `gradient NAME`, `dropout`, and the `losses` before and after each step.
    """
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten

    modules = dict(model.named_modules())

    def named(name: str) -> str:
        return getattr(hooks, "NAMES", {}).get(name, without_sequential(name, modules))

    def pictures(array):  # of outputs those with channels
        return channels_first(array) if array.ndim == 4 else np.array(array)

    names = {name: named(name) for name, _ in tree_flatten(model.parameters())}
    shapes = {
        names[name]: channels_first(array).shape for name, array in tree_flatten(model.parameters())
    }
    start = seeded(dict(sorted(shapes.items(), reverse=True)))  # a weight before its bias

    def own(array):
        return mx.array(in_mlx_layout(array))

    def load():
        model.load_weights([(name, own(start[names[name]])) for name in names])

    ready = [[own(array) for array in batch] for batch in batches]
    losses, rates = [], []
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            rates.append(1 - module._p_1)
            module._p_1 = 1.0
    with mock.patch.object(mx.random, "normal", lambda shape, *_, **__: mx.array(_wave(shape))):
        load()
        result = _outputs(hooks.forward(model.train(), *ready[0]), pictures)
        load()
        passes = _passes(hooks, model)
        optimizers = [hooks.optimizer(lr, SHRINK / lr) for _ in passes]
        for step in range(STEPS + 1):
            for (part, function), optimizer in zip(passes, optimizers, strict=True):
                if step == STEPS:  # only its loss, which shows the step before
                    losses.append(function(*ready[step]).item())
                    continue
                loss, gradients = nn.value_and_grad(part, function)(*ready[step])
                losses.append(loss.item())
                if not step:
                    (place,) = (name for name, module in model.named_modules() if module is part)
                    flat = tree_flatten(gradients, prefix=f".{place}" if place else "")
                    result |= {
                        f"gradient {names[name]}": channels_first(array) for name, array in flat
                    }
                optimizer.update(part, gradients)
                mx.eval(model.state, optimizer.state)
    return result | _numbers(rates, losses)


def torch_pass(hooks: Any, model: Any, lr: float, batches: list[tuple[np.ndarray, ...]]) -> Arrays:
    """The same of PyTorch, in its default type."""
    import torch
    from torch import nn

    turned = {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, nn.ConvTranspose2d)
    }
    own = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    own |= {name: kept for name, kept in model.named_buffers() if "running" in name}

    def laid(name: str, array: Any) -> Any:
        return array.swapaxes(0, 1) if name in turned else array  # inputs x outputs there

    start = seeded({name: tuple(laid(name, own[name]).shape) for name in sorted(own, reverse=True)})
    with torch.no_grad():
        for name, array in start.items():
            own[name].copy_(torch.from_numpy(np.ascontiguousarray(laid(name, array))))
    kind = torch.get_default_dtype()
    model = model.to(kind)
    ready = []
    for batch in batches:
        arrays = map(torch.from_numpy, batch)
        ready.append([array.to(kind) if array.is_floating_point() else array for array in arrays])
    losses, rates = [], []
    for module in model.modules():
        for word in ("p", "dropout"):
            if module.training and isinstance(rate := getattr(module, word, None), float) and rate:
                rates.append(rate)
                setattr(module, word, 0.0)

    def same(*shape: int, **_: Any) -> Any:
        return torch.from_numpy(_wave(shape)).to(kind)

    def array(tensor: Any) -> np.ndarray:
        return tensor.detach().float().numpy().copy()  # clipping changes a gradient where it is

    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with mock.patch.multiple(torch, randn=same, randn_like=lambda tensor: same(*tensor.shape)):
        result = _outputs(hooks.forward(model, *ready[0]), array)
        for buffer, before in kept:
            buffer.copy_(before)
        passes = _passes(hooks, model)
        optimizers = [hooks.optimizer(part, lr, SHRINK / lr) for part, _ in passes]
        for step in range(STEPS + 1):
            for (part, function), optimizer in zip(passes, optimizers, strict=True):
                model.zero_grad()
                loss = function(*ready[step])
                losses.append(loss.item())
                if step == STEPS:
                    continue
                loss.backward()
                of_part = {id(weight) for weight in part.parameters()}
                for name, weight in model.named_parameters() if not step else ():
                    if id(weight) in of_part and weight.requires_grad:
                        result[f"gradient {name}"] = laid(name, array(weight.grad))
                optimizer.step()
    return result | _numbers(rates, losses)


def complaint(result: Arrays, expected: Arrays, strictness: float = 1.0) -> str | None:
    """What is wrong with a result, if anything.

    Of the largest element of each array outputs and losses may be 0.01 % off, gradients 0.3 %:
    rounding turns some where ReLU bends. So may losses behind updates of two networks by each
    other: Adam moves a weight as far where its gradient is rounding alone, and DCGAN's were seen
    0.09 % off. The rates of dropout, which is off, must be the same.
    """
    sizes = {
        name: np.abs(array).max() for name, array in expected.items() if name.startswith("gradient")
    }
    # Of gradients those above rounding, which is all that of a bias of attention's keys is: it adds
    # as much to all scores of a query.
    least = ONLY_ROUNDING * max(sizes.values())
    names = [name for name in expected if sizes.get(name, least) >= least]
    later = 3e-3 if len(expected["losses"]) > 1 else 1e-4
    allowed = {"output": 1e-4, "gradient": 3e-3, "dropout": 1e-6, "losses": 1e-4, "later": later}
    for word, share in allowed.items():
        some = [name for name in names if name.startswith(word)]
        pair = [{name: arrays[name] for name in some} for arrays in (result, expected)]
        wrong = verify.difference(*pair, share / strictness, relative=True)[1]
        if wrong:
            return wrong
    return None
