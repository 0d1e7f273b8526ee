"""What passes between the modules of an MLX model in a step: outputs forward, gradients back."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map

from pomology.models.verify import Key

Change = Callable[[Key, mx.array], mx.array]
NOISE = 2**16 + 1  # random numbers that are repeated; a prime, so that no shape meets them in step


@contextlib.contextmanager
def boundaries(model: nn.Module, on_output: Change, on_gradient: Change) -> Iterator[None]:
    """Replace the outputs of all modules with weights, and the outputs' gradients.

    on_output: returns the array in place of an output. on_gradient: returns the gradient to go on
    with. Weights are those of a module and of its parts: a block of a Transformer in half precision
    adds its parts' outputs, and is a boundary, too. What a part has just returned is not replaced
    again. A module without weights, such as an activation, belongs to the block of the next one.
    """
    names = {
        id(module): name
        for name, module in model.named_modules()
        if tree_flatten(module.parameters())
    }
    calls: Counter[str] = Counter()
    running: set[int] = set()
    last = [None]  # the array that was passed last

    def replaced(name: str, outputs: Any) -> Any:
        number = calls[name]
        calls[name] += 1
        index = -1

        def passed(leaf: Any) -> Any:
            nonlocal index
            index += 1
            if not isinstance(leaf, mx.array) or not mx.issubdtype(leaf.dtype, mx.floating):
                return leaf
            if leaf is not last[0]:
                last[0] = _passed((name, number, index), leaf, on_output, on_gradient)
            return last[0]

        return tree_map(passed, outputs)

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(module: Any, *arguments: Any, **named: Any) -> Any:
            name = names.get(id(module))
            if name is None or id(module) in running:  # a class calls its parent's `__call__`
                return call(module, *arguments, **named)
            running.add(id(module))
            try:
                outputs = call(module, *arguments, **named)
            finally:
                running.discard(id(module))
            return replaced(name, outputs)

        return called

    # Of all classes before any is changed, since a class may have the method of another. That of a
    # container without one is of its metaclass, and remains uncalled.
    own = {kind: kind.__call__ for kind in {type(module) for module in model.modules()}}
    with contextlib.ExitStack() as stack:
        for kind, call in own.items():
            stack.enter_context(mock.patch.object(kind, "__call__", watched(call)))
        yield


def _passed(key: Key, output: mx.array, on_output: Change, on_gradient: Change) -> mx.array:
    """Return what is in place of an output, with the output's gradient."""

    @mx.custom_function
    def forward(output: mx.array) -> mx.array:
        return on_output(key, output)

    @forward.vjp
    def backward(_output: mx.array, gradient: mx.array, _result: mx.array) -> mx.array:
        return on_gradient(key, gradient)

    return forward(output)


class Noise:
    """Relative errors of a standard deviation: the same ones again for the same draw."""

    def __init__(self, deviation: float, draw: int):
        # With a key of its own, since the step's random numbers must remain the same.
        factors = mx.random.normal((NOISE,), key=mx.random.key(draw), stream=mx.cpu)
        self.factors = 1 + deviation * factors
        self.calls = 0

    def on(self, array: mx.array) -> mx.array:
        """Return an array of the same type with errors; each call begins with other ones."""
        self.calls += 1
        factors = mx.roll(self.factors, 7919 * self.calls)
        repeated = mx.tile(factors, array.size // NOISE + 1)[: array.size]
        return (array * repeated.reshape(array.shape)).astype(array.dtype)
