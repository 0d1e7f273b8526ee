"""Compare a training with the same model in PyTorch and float64, before it is timed: outputs, gradients, losses."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import numpy as np

from pomology.errors import Mismatch
from pomology.workloads import isolated, parity, trainings

STEPS = 3
SHRINK = 0.05  # of the weights in a step, by a decay so high that it shows in the losses
ONLY_ROUNDING = 1e-9  # of the largest gradient of all
Arrays = dict[str, np.ndarray]


def seeded(shapes: dict[str, tuple[int, ...]]) -> Arrays:
    """Weights by name, in PyTorch's layout, made by no framework; no number is there twice.

    Each bias of a normalisation is 2.5 of its weights away from zero, up in one channel and down in the next, so that
    few values are where ReLU bends and rounding alone turns gradients.
    """
    generator, weights = np.random.default_rng(1), {}
    for name, shape in shapes.items():
        scale = weights.get(name[:-4] + "weight")
        if len(shape) > 1:
            array = generator.normal(0, 1 / np.sqrt(np.prod(shape[1:])), shape)
        elif name.endswith("running_mean") or "bias" in name:
            array = generator.normal(0, 0.1, shape)
            if name.endswith("bias") and scale is not None and scale.ndim == 1:
                array = 2.5 * scale * np.where(np.arange(shape[0]) % 2, -1, 1)
        else:  # of normalisations, and running variances
            array = generator.uniform(0.2, 0.4, shape)
        weights[name] = array.astype(np.float32)
    return weights


def _wave(shape: Iterable[int]) -> np.ndarray:
    """In place of random numbers, such as no framework draws."""
    shape = tuple(shape)
    return (1.4 * np.cos(1.7 * np.arange(np.prod(shape)))).astype(np.float32).reshape(shape)


def _outputs(outputs: Any, array: Callable[[Any], np.ndarray]) -> Arrays:
    several = outputs if isinstance(outputs, tuple) else (outputs,)
    return {f"output {number}": array(output) for number, output in enumerate(several)}


def _numbers(rates: list[float], losses: list[float]) -> Arrays:
    return {"dropout": np.sort(np.array(rates, np.float32)), "losses": np.array(losses, np.float32)}


def _rate(settings: dict) -> float:
    """The workload's own learning rate, but so high that the losses show it, and so low that rounding does not."""
    own, _, slots = trainings.load("inputs").OPTIMISERS[settings["workload"]]
    return 1e-3 if slots == 1 else max(own, 1e-4)


def mlx_pass(model: Any, settings: dict, batches: list[tuple[np.ndarray, ...]]) -> tuple[Arrays, Arrays]:
    """What MLX makes of batches in PyTorch's layout, from `seeded` weights, which are given too: `output N`, `gradient
    NAME`, `dropout`, and the `losses` before and after each of three steps. The model keeps the last weights."""
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten

    hooks = trainings.load(f"{settings['workload']}_mlx")

    def first(array):  # channels, as in PyTorch
        return np.array(array if array.ndim < 3 else mx.moveaxis(array, -1, 1))

    def pictures(array):  # of outputs those with channels
        return first(array) if array.ndim == 4 else np.array(array)

    names = {name: getattr(hooks, "NAMES", {}).get(name, name) for name, _ in tree_flatten(model.parameters())}
    shapes = {names[name]: first(array).shape for name, array in tree_flatten(model.parameters())}
    start = seeded(dict(sorted(shapes.items(), reverse=True)))  # a weight before its bias

    def load():
        loaded = ((name, start[names[name]]) for name in names)
        model.load_weights([(name, mx.array(trainings.channels_last(array))) for name, array in loaded])

    ready = [[mx.array(trainings.channels_last(array)) for array in batch] for batch in batches]
    losses, rates, lr = [], [], _rate(settings)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            rates.append(1 - module._p_1)
            module._p_1 = 1.0
    with mock.patch.object(mx.random, "normal", lambda shape, *_, **__: mx.array(_wave(shape))):
        load()
        result = _outputs(hooks.forward(model.train(), *ready[0]), pictures)
        load()
        passes = trainings.passes(hooks, model)
        optimizers = [hooks.optimizer(lr, SHRINK / lr) for _ in passes]
        for step in range(STEPS + 1):
            for (part, function), optimizer in zip(passes, optimizers, strict=True):
                loss, gradients = nn.value_and_grad(part, function)(*ready[step])
                losses.append(loss.item())
                if not step:
                    (place,) = (name for name, module in model.named_modules() if module is part)
                    flat = tree_flatten(gradients, prefix=f".{place}" if place else "")
                    result |= {f"gradient {names[name]}": first(array) for name, array in flat}
                optimizer.update(part, gradients)
                mx.eval(model.state, optimizer.state)
    return result | _numbers(rates, losses), start


def torch_pass(
    settings: dict,
    batches: list[tuple[np.ndarray, ...]],
    start: Arrays | None = None,
    device: Any = "cpu",
) -> tuple[Arrays, Arrays]:
    """The same of PyTorch, in its default type. start: the weights, by the names of either framework.

    Raises Mismatch where a weight of `start` has no place in the model, or a place has no weight.
    """
    import torch
    from torch import nn

    hooks = trainings.load(f"{settings['workload']}_torch")
    model = hooks.build(**settings)
    own = {name: array for name, array in model.state_dict().items() if not name.endswith("num_batches_tracked")}
    turned = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.ConvTranspose2d)}
    fixed = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    fixed |= {name for name, _ in model.named_buffers() if "running" not in name}
    trained = dict(model.named_parameters())  # tied ones once
    wanted = {name for name in own.keys() - fixed if name in trained or "running" in name}

    def laid(name: str, array: np.ndarray) -> np.ndarray:
        return array.swapaxes(0, 1) if name in turned else array  # inputs x outputs there

    start = start or seeded({name: laid(name, own[name]).shape for name in sorted(wanted, reverse=True)})
    # MLX's Sequential is seen in a name: `layers.4.weight`.
    given = {name if name in own else re.sub(r"\blayers\.(?=\d)", "", name): name for name in start}
    if wrong := sorted(given.keys() ^ wanted):
        raise Mismatch(f"the weight {wrong[0]} is in one of the two models only")
    for name, there in given.items():
        if (shape := laid(name, own[name]).shape) != start[there].shape:
            raise Mismatch(f"the weight {there} has shape {start[there].shape}, in PyTorch {tuple(shape)}")
        with torch.no_grad():
            own[name].copy_(torch.from_numpy(np.ascontiguousarray(laid(name, start[there]))))
    kind = torch.get_default_dtype()
    model = model.to(device, kind)
    ready = [[torch.from_numpy(array).to(device) for array in batch] for batch in batches]
    ready = [[array.to(kind) if array.is_floating_point() else array for array in batch] for batch in ready]
    losses, rates, lr = [], [], _rate(settings)
    for module in model.modules():
        for word in ("p", "dropout"):
            if module.training and isinstance(rate := getattr(module, word, None), float) and rate:
                rates.append(rate)
                setattr(module, word, 0.0)

    def same(*shape: int, **_: Any) -> Any:
        return torch.from_numpy(_wave(shape)).to(device, kind)

    def array(tensor: Any) -> np.ndarray:
        return tensor.detach().float().cpu().numpy()

    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with mock.patch.multiple(torch, randn=same, randn_like=lambda tensor: same(*tensor.shape)):
        result = _outputs(hooks.forward(model, *ready[0]), array)
        model.load_state_dict(kept)
        passes = trainings.passes(hooks, model)
        optimizers = [hooks.optimizer(part, lr, SHRINK / lr) for part, _ in passes]
        for step in range(STEPS + 1):
            for (part, function), optimizer in zip(passes, optimizers, strict=True):
                model.zero_grad()
                loss = function(*ready[step])
                loss.backward()
                losses.append(loss.item())
                of_part = {id(weight) for weight in part.parameters()}
                for name, weight in model.named_parameters() if not step else ():
                    if id(weight) in of_part and weight.requires_grad:
                        result[f"gradient {given[name]}"] = laid(name, array(weight.grad))
                optimizer.step()
    return result | _numbers(rates, losses), start


def exact(settings: dict, batches: list[tuple[np.ndarray, ...]], start: Arrays) -> Arrays:
    """The same in float64, in a process that does nothing else."""
    import torch

    torch.set_default_dtype(torch.float64)  # of a mask, which attention would misread in fp32 (torch 2.13)
    return torch_pass(settings, batches, start)[0]


def difference(result: Arrays, expected: Arrays) -> tuple[float, str | None]:
    """The largest difference of a pass from the reference, and what is wrong, if anything: see `prove`."""
    gradients = {name: np.abs(array).max() for name, array in expected.items() if name.startswith("gradient")}
    # As of a bias of attention's keys, which adds as much to all scores of a query.
    rounding = {name for name, size in gradients.items() if size < ONLY_ROUNDING * max(gradients.values())}
    worst = 0.0
    for word, allowed in (("output", 3e-5), ("gradient", 3e-3), ("dropout", 1e-6), ("losses", 1e-4)):
        pair = [
            {name: array for name, array in arrays.items() if name.startswith(word) and name not in rounding}
            for arrays in (result, expected)
        ]
        error, complaint = parity.difference(*pair, allowed, relative=True)
        if complaint:
            return worst, complaint
        worst = max(worst, error)
    return worst, None


def prove(case: Any, model: Any, batches: list[tuple[np.ndarray, ...]]) -> dict[str, float]:
    """Compare a training with the same model in PyTorch and float64, on the CPU in a process of its own; else Mismatch.

    model: in MLX the row's own, whose weights are others afterwards. batches: as of `trainings.batches`, one for each
    step. Of the largest element of each array outputs may be 0.003 % off, losses 0.01 %, gradients 0.3 %: rounding
    turns some where ReLU bends. The rates of dropout, which is off meanwhile, must be the same. Returns two metrics.
    """
    if case.backend.framework == "mlx":
        result, start = mlx_pass(model, case.config, batches)
    else:
        result, start = torch_pass(case.config, batches, device=case.device)
    what = f"the reference in float64, {case.workload!r},"
    expected = isolated.call(what, f"{__name__}:exact", case.config, batches, start)
    worst, complaint = difference(result, expected)
    if complaint:
        raise Mismatch(f"against PyTorch in float64: {complaint}")
    checksum = zlib.crc32(b"".join(array.tobytes() for batch in batches for array in batch))
    return {"inputs_checksum": checksum, "max_abs_error": worst}
