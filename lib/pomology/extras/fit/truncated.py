"""Models with fewer blocks of the same width, and what follows from them for the whole model.

A step's time and memory are a part that every step has, plus a part of each block that is trained,
or adapted, and of each block before these, which only runs forward:

    value = rest + trained · a + frozen · f
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pomology.errors import PomologyError
from pomology.extras.fit import networks
from pomology.extras.fit.plan import Plan

LEAST = 3  # blocks of the longer of two models, if the whole one has more
PATTERNS = ("layer_types", "mlp_layer_types")  # keys of lists with the kind of each block


class Blocks(NamedTuple):
    """The blocks of a model. trained: or adapted. frozen: those before them."""

    trained: int
    frozen: int = 0

    @property
    def total(self) -> int:
        return self.trained + self.frozen


class Linear(NamedTuple):
    """What a step takes: of the rest, and of each block of both kinds."""

    rest: float
    trained: float
    frozen: float = 0.0

    def at(self, blocks: Blocks) -> float:
        """Return what a step of a model with so many blocks takes."""
        return self.rest + self.trained * blocks.trained + self.frozen * blocks.frozen


def whole(config: Mapping[str, Any], plan: Plan) -> Blocks:
    """Return the blocks of the whole model. Raises PomologyError for two kinds of blocks."""
    depth = networks.depth(dict(config))
    if not depth:
        raise PomologyError("--measure: expected a model with one list of equal blocks")
    trained = networks.adapted_layers(plan, depth)
    return Blocks(trained, depth - trained)


def configuration(config: Mapping[str, Any], blocks: Blocks) -> dict[str, Any]:
    """Return the configuration of a model with so many blocks."""
    key = networks.depth_key(dict(config))
    short = dict(config) | {key: blocks.total}
    for name in PATTERNS:
        if short.get(name):
            short[name] = short[name][: blocks.total]
    return short


def period(config: Mapping[str, Any]) -> int:
    """Return after how many blocks their kinds repeat. Raises PomologyError if they never do."""
    depth = networks.depth(dict(config))
    for name in PATTERNS:
        kinds = config.get(name) or ()
        if len(set(kinds)) > 1:
            for length in range(2, depth // LEAST + 1):
                if all(kind == kinds[n % length] for n, kind in enumerate(kinds)):
                    return length
            raise PomologyError("--measure: its blocks are of kinds that never repeat")
    return 1


def choices(all_blocks: Blocks, step: int) -> Iterator[list[Blocks]]:
    """Yield sets of models to measure, from the longest to the shortest, of `step` blocks.

    step: after how many blocks their kinds repeat. Each set suffices for `fitted`. A model that is
    as short as the longest is measured as it is.
    """
    trained, frozen = all_blocks
    longest = LEAST * step
    if all_blocks.total <= longest:
        yield [all_blocks]
        return
    # The longer they are, the less noise is multiplied.
    lengths = [share * trained // 4 // step * step for share in (3, 2, 1)] + [longest, 2 * step]
    for length in sorted({each for each in lengths if 2 * step <= each <= trained}, reverse=True):
        short = max(step, length // 3 // step * step)
        pair = [Blocks(short), Blocks(length)]
        yield [*pair, Blocks(short, length)] if frozen else pair


def suffices(models: Sequence[Blocks], every: Blocks) -> bool:
    """Return whether what the whole model takes follows from these models."""
    if list(models) == [every]:
        return True
    return np.linalg.matrix_rank(_rows(models)) == (3 if every.frozen else 2)


def fitted(models: Sequence[Blocks], values: Sequence[float]) -> Linear:
    """Return what each block takes, from what a step of each of the models takes.

    Of one model, which is the whole one, all is the rest.
    """
    if len(models) == 1:
        return Linear(values[0], 0.0)
    return Linear(*map(float, np.linalg.pinv(_rows(models)) @ np.array(values, float)))


def weights(models: Sequence[Blocks], every: Blocks) -> list[float]:
    """Return by how much each model's value counts in that of the whole model."""
    if len(models) == 1:
        return [1.0]
    return (_rows([every]) @ np.linalg.pinv(_rows(models)))[0].tolist()


def _rows(models: Sequence[Blocks]) -> np.ndarray:
    return np.array([[1, blocks.trained, blocks.frozen] for blocks in models], float)
