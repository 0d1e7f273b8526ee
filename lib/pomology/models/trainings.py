"""Training workloads in PyTorch and MLX: one file per framework, with the same functions.

`notebooks/mlx_or_pytorch/WORKLOAD_FRAMEWORK.py` defines `build(**settings)`, which returns the
model, `forward(model, *batch)`, `loss(outputs, *batch)`, a scalar, and `optimizer(lr,
weight_decay)`, in PyTorch with the parameters first. If parts of a model are trained one after the
other, `passes(model)` returns each part with its loss function of a batch. Weights have PyTorch's
names, or `NAMES` maps them to these.
"""

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
BATCHES = 4  # different ones, used in rotation


def load(name: str) -> ModuleType:
    """Import `inputs`, or a workload such as `vae_mlx`, from `FOLDER`. Raises PomologyError."""
    if not (root() / FOLDER / f"{name}.py").is_file():
        raise PomologyError(f"{FOLDER} has no {name}.py, which would define that workload")
    if str(root() / FOLDER) not in sys.path:
        sys.path.append(str(root() / FOLDER))
    return importlib.import_module(name)


def rows(texts: list[str]) -> list[dict[str, Any]]:
    """Parse texts such as `mlp 32/128` and `bert_base 16 512` into the settings of cases.

    A text has the workload, its batch sizes and, if any, the size of the model or its input. Raises
    PomologyError for other texts.
    """
    workloads = load("inputs").OPTIMISERS
    rows = []
    for text in texts:
        read = re.fullmatch(r"(\w+) ([1-9]\d*(?:/[1-9]\d*)*)(?: (\S+))?", text)
        if not read or read[1] not in workloads:
            form = "`WORKLOAD BATCH` or `WORKLOAD BATCH SIZE`"
            raise PomologyError(f"{text!r} must read {form}, with one of {', '.join(workloads)}")
        settings = {"workload": read[1]} | ({"size": read[3]} if read[3] else {})
        rows += [settings | {"batch_size": int(size)} for size in read[2].split("/")]
    return rows


def passes(hooks: ModuleType, model: Any) -> list[tuple[Any, Callable]]:
    """Return the parts that a step trains, mostly the whole model, each with its loss function."""
    if hasattr(hooks, "passes"):
        return hooks.passes(model)
    return [(model, lambda *batch: hooks.loss(hooks.forward(model, *batch), *batch))]


def batches(seed: int, settings: dict) -> list[tuple[np.ndarray, ...]]:
    """Return `BATCHES` batches of inputs for a case, equal in every framework."""
    generator = np.random.default_rng(seed)
    return [load("inputs").batch(generator, **settings) for _ in range(BATCHES)]


def checksum(batches: list[tuple[np.ndarray, ...]]) -> int:
    """Return a checksum of inputs, equal in every framework."""
    arrays = [np.ascontiguousarray(array) for batch in batches for array in batch]
    return zlib.crc32(b"".join(array.tobytes() for array in arrays))


def in_mlx_layout(array: np.ndarray) -> np.ndarray:
    """Convert images or convolution weights from PyTorch's layout to MLX's."""
    return array if array.ndim < 3 else np.ascontiguousarray(np.moveaxis(array, 1, -1))


def work(cases: list[dict], trained: bool = False) -> list[Workload]:
    """Count a step of each case without running it. trained: count only trained parameters."""
    import torch

    counts = []
    for row in cases:
        hooks = load(f"{row['workload']}_torch")
        slots = load("inputs").OPTIMISERS[row["workload"]][-1]
        build = functools.partial(hooks.build, **row)
        counted = cost.workload(build, functools.partial(step, hooks, row), slots)
        if trained:
            with torch.device("meta"):
                weights = [weight for weight in build().parameters() if weight.requires_grad]
            counted = replace(counted, parameters=sum(weight.numel() for weight in weights))
        counts.append(counted)
    return counts


def step(hooks: ModuleType, settings: dict, model: Any, batch_size: int = 0) -> Any:
    """Run a forward and backward pass in PyTorch on random inputs; return the loss.

    batch_size: by default that of the settings.
    """
    import torch

    if batch_size:
        settings = settings | {"batch_size": batch_size}
    arrays = load("inputs").batch(np.random.default_rng(torch.initial_seed()), **settings)
    batch = [torch.as_tensor(array) for array in arrays]
    for _, loss_function in passes(hooks, model):
        loss = loss_function(*batch)
        loss.backward()
    return loss
