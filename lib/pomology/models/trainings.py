"""One training in two frameworks: a file for each, with the same hooks, so that both are timed alike.

`notebooks/mlx_or_pytorch/WORKLOAD_FRAMEWORK.py` has `build(**settings)`, the model; `forward(model, *batch)`, what it
gives; `loss(outputs, *batch)`, one number; and `optimizer(lr, weight_decay)`, in PyTorch of the parameters first. Where
parts of a model are trained one after the other it also has `passes(model)`: each part, and the function of a batch
that gives its loss. Weights have the names of PyTorch's, or `NAMES` says what they are called there.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from pomology.errors import PomologyError
from pomology.models import cost
from pomology.models.cost import Workload
from pomology.paths import root

FOLDER = "notebooks/mlx_or_pytorch"
BATCHES = 4  # different ones, in turn


def load(name: str) -> ModuleType:
    """A file beside the notebooks: `inputs`, or the hooks of `vae_mlx`. Raises PomologyError where there is none."""
    if not (root() / FOLDER / f"{name}.py").is_file():
        raise PomologyError(f"{FOLDER} has no {name}.py, with the hooks of that training")
    if str(root() / FOLDER) not in sys.path:
        sys.path.append(str(root() / FOLDER))
    return importlib.import_module(name)


def rows(texts: list[str]) -> list[dict[str, Any]]:
    """The settings of cases from `mlp 32/128` and `bert_base 16 512`: workload, batch sizes, and where it has one the
    size of the model or its input. Raises PomologyError for another text."""
    result, known = [], load("inputs").OPTIMISERS
    for text in texts:
        read = re.fullmatch(r"(\w+) ([1-9]\d*(?:/[1-9]\d*)*)(?: (\S+))?", text)
        if not read or read[1] not in known:
            names = ", ".join(known)
            raise PomologyError(
                f"{text!r} must read `WORKLOAD BATCH` or `WORKLOAD BATCH SIZE`, with one of {names}"
            )
        sizes = map(int, read[2].split("/"))
        more = {"size": read[3]} if read[3] else {}
        result += [{"workload": read[1], "batch_size": size, **more} for size in sizes]
    return result


def passes(hooks: ModuleType, model: Any) -> list[tuple[Any, Callable]]:
    """What a step trains, each with the function of a batch that gives its loss: mostly the model as a whole."""
    if hasattr(hooks, "passes"):
        return hooks.passes(model)
    return [(model, lambda *batch: hooks.loss(hooks.forward(model, *batch), *batch))]


def batches(seed: int, settings: dict) -> list[tuple[np.ndarray, ...]]:
    """The inputs of some steps of a case, the same in every framework."""
    generator = np.random.default_rng(seed)
    return [load("inputs").batch(generator, **settings) for _ in range(BATCHES)]


def checksum(batches: list[tuple[np.ndarray, ...]]) -> int:
    """A number that is the same for the same inputs, whichever framework they are given to."""
    return zlib.crc32(
        b"".join(np.ascontiguousarray(array).tobytes() for batch in batches for array in batch)
    )


def in_mlx_layout(array: np.ndarray) -> np.ndarray:
    """Of PyTorch's layout of pictures, and of weights of convolutions, MLX's."""
    return array if array.ndim < 3 else np.ascontiguousarray(np.moveaxis(array, 1, -1))


def work(cases: list[dict], trained: bool = False) -> list[Workload]:
    """What a step of each case takes, counted in PyTorch without running it. trained: of the parameters only those."""
    result = []
    for row in cases:
        workload = row["workload"]
        hooks, (*_, slots) = load(f"{workload}_torch"), load("inputs").OPTIMISERS[workload]
        counted = cost.workload(
            functools.partial(hooks.build, **row), functools.partial(step, hooks, row), slots
        )
        result.append(replace(counted, parameters=_trained(hooks, row)) if trained else counted)
    return result


def step(hooks: ModuleType, settings: dict, model: Any, batch_size: int = 0) -> Any:
    """Forward and backward in PyTorch, with random inputs; the loss. batch_size: another one than in the settings."""
    import torch

    settings = settings | ({"batch_size": batch_size} if batch_size else {})
    arrays = load("inputs").batch(np.random.default_rng(torch.initial_seed()), **settings)
    batch = [torch.as_tensor(array) for array in arrays]
    for _, loss_function in passes(hooks, model):
        loss = loss_function(*batch)
        loss.backward()
    return loss


def _trained(hooks: ModuleType, row: dict) -> int:
    import torch

    with torch.device("meta"):
        return sum(
            weight.numel() for weight in hooks.build(**row).parameters() if weight.requires_grad
        )
