"""Verification of a compiled MLX step: it must do what the plain step does, which is verified.

`mx.compile` traces a step once. A fault of the tracing, such as inputs or a state that stay those
of the first call, does not show in the plain step, and that is the one that the CPU repeats.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from pomology.errors import Mismatch
from pomology.models import verify
from pomology.results import cases

BATCHES = 2  # different ones, each from the same weights
SAMPLED = 2**16  # elements of a weight that are compared, drawn at random
# Share of an element's update. Where rounding changes it by more, as Adam does where a gradient is
# little but rounding, the element is left out.
ROUNDING_ONLY = 0.05
TOLERANCE = 0.02  # share of the norm of a weight's update
NAMED = 3  # weights that a note names
UNPROVED = "unproved"  # the flag, see `results.cases.FLAGS`

Arrays = dict[str, np.ndarray]


def at_end(
    case: Any,
    model: Any,
    steps: tuple[Callable[..., Any], Callable[..., Any]],
    batch: Callable[[], tuple],
    state: list[Any],
) -> None:
    """Compare a compiled step with the plain one after the timing, so that nothing is slower.

    steps: the plain one and the compiled one, functions of the inputs that `batch` returns; both
    return the loss. state: what they change: the states of the model and its optimizers, and that
    of the random numbers. Raises Mismatch, which ends the case. The note has the share of elements
    that were left out. A weight of which all were left out in each batch is not verified.
    """

    def check(_seconds: float) -> None:
        saved = _leaves(state)
        try:
            batches = (_Runs(model, batch, state, saved, number) for number in range(BATCHES))
            shares = [_compare(case, runs, *steps) for runs in batches]
        finally:
            _restore(state, saved)
        _note(case, shares, _sizes(model))

    case.at_end(check)


class _Runs:
    """Steps on one batch from the same state."""

    def __init__(
        self, model: Any, batch: Callable[[], tuple], state: list[Any], saved: dict, seed: int
    ):
        self.model = model
        self.state = state
        self.saved = saved
        self.seed = seed
        mx.random.seed(seed)
        self.inputs = batch()
        mx.eval(self.inputs)

    def run(self, step: Callable[..., Any], noise: float = 0.0) -> tuple[float, Arrays]:
        """Return the loss of a step, and the updates. noise: relative error of the weights."""
        _restore(self.state, self.saved, noise)
        mx.random.seed(self.seed)
        before = _sampled(self.model)
        loss = step(*self.inputs)
        mx.eval(loss, self.state)
        after = _sampled(self.model)
        return float(loss), {name: after[name] - before[name] for name in before}


def _compare(
    case: Any, runs: _Runs, plain: Callable[..., Any], compiled: Callable[..., Any]
) -> dict[str, float]:
    """Compare the loss and the updates of a step. Raises Mismatch.

    Returns of each weight the share of elements that rounding alone moves, and that were left out.
    """
    tolerance = verify.TOLERANCE[cases.precision(case)]
    loss, expected = runs.run(plain)
    loss_compiled, updates = runs.run(compiled)
    if not abs(loss_compiled - loss) <= tolerance * max(abs(loss), 1e-3):
        raise Mismatch(
            f"the compiled step has a loss of {loss_compiled:.6g}, the plain one of {loss:.6g}"
        )
    left_out = dict.fromkeys(expected, 0.0)
    doubtful = [name for name, update in expected.items() if not _agree(updates[name], update)]
    if not doubtful:
        return left_out
    _, rounded = runs.run(plain, verify.ROUNDING[cases.precision(case)])
    for name in doubtful:
        update = expected[name]
        certain = np.abs(rounded[name] - update) <= ROUNDING_ONLY * np.abs(update)
        certain &= update != 0  # where nothing moves, nothing is shown
        left_out[name] = 1 - float(np.mean(certain))
        if not _agree(updates[name][certain], update[certain]):
            difference = np.linalg.norm((updates[name] - update)[certain])
            raise Mismatch(
                f"the compiled step's update of {name} differs by {difference:.2g} from the plain "
                f"step's, whose norm is {np.linalg.norm(update[certain]):.2g}"
            )
    return left_out


def _note(case: Any, shares: list[dict[str, float]], sizes: dict[str, int]) -> None:
    """Add what was compared to the notes. shares: of each batch, what was left out by weight."""
    least = {name: min(each[name] for each in shares) for name in sizes}
    unverified = [name for name, share in least.items() if share == 1]
    if len(unverified) == len(sizes):
        case.note("the compiled step was not verified: rounding moves all of its updates", UNPROVED)
        return
    left_out = sum(least[name] * size for name, size in sizes.items()) / sum(sizes.values())
    note = f"the compiled step agreed with the plain one in {len(shares)} batches"
    if left_out:
        note += f", without {100 * left_out:.2g} % of the elements, which rounding alone moves"
    case.note(note)
    if unverified:
        names = ", ".join(unverified[:NAMED]) + (", ..." if len(unverified) > NAMED else "")
        case.note(f"not verified in the compiled step: {names}", UNPROVED)


def _agree(update: np.ndarray, expected: np.ndarray) -> bool:
    """Return whether two updates of a weight agree; a norm that is not finite shows nothing."""
    norm = float(np.linalg.norm(expected))
    return not math.isfinite(norm) or float(np.linalg.norm(update - expected)) <= TOLERANCE * norm


def _sizes(model: Any) -> dict[str, int]:
    """Return the elements of each trained weight."""
    return {name: array.size for name, array in tree_flatten(model.trainable_parameters())}


@functools.cache
def _indices(size: int) -> Any:
    return mx.array(np.random.default_rng(size).integers(size, size=SAMPLED))


def _sampled(model: Any) -> Arrays:
    """Return elements of each trained weight, which are the same ones each time."""
    arrays = {}
    for name, array in tree_flatten(model.trainable_parameters()):
        elements = array.reshape(-1)
        if array.size > SAMPLED:
            elements = elements[_indices(array.size)]
        arrays[name] = np.array(elements.astype(mx.float32))
    return arrays


def _leaves(state: Any) -> dict[str, Any]:
    return {path: leaf for path, leaf in tree_flatten(state) if isinstance(leaf, mx.array)}


def _restore(state: list[Any], saved: dict[str, Any], noise: float = 0.0) -> None:
    """Put the saved arrays back, those of the model with an error.

    In place, since the compiled step reads and writes these dictionaries.
    """

    def put(items: Any, prefix: str) -> None:
        for key in list(items.keys() if isinstance(items, dict) else range(len(items))):
            path = f"{prefix}.{key}" if prefix else str(key)
            if isinstance(items[key], (dict, list)):
                put(items[key], path)
            elif path in saved:
                items[key] = saved[path]
                if noise and path.startswith("0.") and mx.issubdtype(items[key].dtype, mx.floating):
                    factors = 1 + noise * mx.random.normal(items[key].shape)
                    items[key] = (items[key] * factors).astype(items[key].dtype)

    put(state, "")
    mx.eval(state)
