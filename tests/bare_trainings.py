"""Ten trainings in one framework, without the kit's clock, and the notebook's own steps on it in turn:
`python tests/bare_trainings.py torch|mlx ROUND SECONDS` is half a round of `bench.py trainings`. It prints the ratios
of the notebook's steps to the bare ones, of each row as soon as it has them."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from typing import Any

import in_turn

from pomology.devices import find
from pomology.models import trainings
from pomology.models.definitions import definitions

ROWS = ["vae 128", "mlp 128", "cnn 32", "lstm 32", "siamese 2", "dcgan 2", "simclr 2", "transformer_lm 2 64x2x64x1000"]
ROWS += ["bert_base 1 16x1", "resnet50 2 32"]


def torch_step(hooks: Any, config: dict, rates: tuple) -> tuple[Callable, Callable]:
    """A bare step of a batch, and what makes one of arrays."""
    import torch

    model = hooks.build(**config)
    made = [(hooks.optimizer(part, *rates), loss) for part, loss in trainings.passes(hooks, model)]

    def step(batch):
        for optimizer, loss_function in made:
            optimizer.zero_grad()
            loss = loss_function(*batch)
            loss.backward()
            optimizer.step()
        return loss.item()

    return step, lambda arrays: [torch.from_numpy(array) for array in arrays]


def mlx_step(hooks: Any, config: dict, rates: tuple) -> tuple[Callable, Callable]:
    """The same in MLX; on a CPU not compiled, as in the notebook."""
    import mlx.core as mx
    import mlx.nn as nn

    model = hooks.build(**config).train()
    made = [(part, hooks.optimizer(*rates), nn.value_and_grad(part, f)) for part, f in trainings.passes(hooks, model)]
    for part, optimizer, _ in made:
        optimizer.init(part.trainable_parameters())
    state = [model.state, mx.random.state, *(optimizer.state for _, optimizer, _ in made)]

    def whole(*batch):
        for part, optimizer, value_and_grad in made:
            loss, gradients = value_and_grad(*batch)
            optimizer.update(part, gradients)
        return loss

    def step(batch):
        loss = whole(*batch)
        mx.eval(loss, state)
        return loss.item()

    return step, lambda arrays: [mx.array(trainings.in_mlx_layout(array)) for array in arrays]


def ratios(framework: str, config: dict, seed: int, seconds: float) -> list[float]:
    """Of a row's steps in its notebook to bare ones."""
    (backend,) = find.find("cpu", framework)
    hooks = trainings.load(f"{config['workload']}_{framework}")
    rates = trainings.load("inputs").OPTIMISERS[config["workload"]][:2]
    step, ready = (torch_step if framework == "torch" else mlx_step)(hooks, config, rates)
    batches = [ready(arrays) for arrays in trainings.batches(seed, config)]
    own = itertools.cycle(batches)
    with backend.context():
        case = in_turn.InTurn(batches, lambda: step(next(own)), seconds, config)
        case.backend, case.device = backend, backend.handle
        given = {"seed": seed, "works": {tuple(config.values()): None}}
        definitions(f"trainings_{framework}", "train", **given).train(case)
    return case.ratios


if __name__ == "__main__":
    framework, number, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    find.prepare(framework)
    for text, config in zip(ROWS, trainings.rows(ROWS), strict=True):
        print(json.dumps([f"{text}, {framework}", ratios(framework, config, number, seconds)]), flush=True)
