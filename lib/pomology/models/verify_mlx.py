"""Gradients and optimizer updates of an MLX step on its device and on the CPU."""

import math
import time
from collections.abc import Callable
from typing import Any, Self

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map

from pomology.models import verify
from pomology.models.blocks_mlx import Change, Noise, boundaries
from pomology.models.verify import (
    GRADIENT,
    OFTEN,
    OUTPUT,
    Deviation,
    Deviations,
    Key,
    Reference,
    name_of,
    of_cpu,
)
from pomology.models.workload import Workload
from pomology.models.workload_mlx import SMALL, before_update, optimizers_of

Arrays = dict[str, np.ndarray]
Passed = dict[Key, mx.array]  # between the modules, either forward or back


class StepOnBothDevices:
    """A workload's step on its device and on the CPU; see `verify.Step`.

    Each run of the step gets a new optimizer, so that the timed one keeps its state. timed: that
    one.
    """

    traces = False

    def __init__(self, case: Any, model: Any, workload: Workload, timed: Any):
        self.backend = case.backend
        self.model = model
        self.workload = workload
        self.timed = timed
        self.optimizers = optimizers_of(timed)
        self.unverified: set[str] = set()
        self.parameters = sum(array.size for _, array in tree_flatten(model.parameters()))
        self.dtypes: dict[Key, mx.Dtype] | None = None  # of what passes between the modules

    def __enter__(self) -> Self:
        self.weights = self.model.parameters()
        self.paths = {id(module): name for name, module in self.model.named_modules()}
        return self

    def __exit__(self, *_: object) -> None:
        self.model.update(self.weights)

    def reference(self, size: int, seed: int) -> Reference:
        """Run the CPU's step, in fp32, where modules hand on values as the device rounds them."""
        self.size = size
        reference = Reference(size, seed)
        if self.dtypes is None:
            self.dtypes = self._output_types(min(SMALL, size))

        def on_output(key: Key, output: mx.array) -> mx.array:
            return reference.keep(reference.outputs, key, self._rounded(key, output))

        def on_gradient(key: Key, gradient: mx.array) -> mx.array:
            return reference.keep(reference.gradients_of, key, self._rounded(key, gradient))

        began_s = time.perf_counter()
        with boundaries(self.model, on_output, on_gradient):
            reference.arrays = self._gradients(size, seed, on_cpu=True)
        mx.eval(reference.outputs, reference.gradients_of)  # also those without a part in the loss
        reference.seconds = time.perf_counter() - began_s
        return reference

    def deviations(self, reference: Reference, noise: float = 0.0, draw: int = 0) -> Deviations:
        """See `verify.Step`."""
        if not noise:
            arrays = self._gradients(reference.size, reference.seed, on_cpu=False)
            return verify.compared(arrays, reference.arrays)
        errors = Noise(noise, draw)
        with boundaries(
            self.model,
            lambda _, output: errors.on(output),
            lambda _, gradient: errors.on(gradient),
        ):
            arrays = self._gradients(reference.size, reference.seed, True, noise, draw)
        return verify.compared(arrays, reference.arrays)

    def in_blocks(self, reference: Reference, noise: float = 0.0, draw: int = 0) -> Deviations:
        """See `verify.Step`."""
        reference = verify.with_blocks(reference, self.reference)
        errors = Noise(noise, draw) if noise else None
        # Kept until the step is over, as MLX computes them only then.
        outputs: Passed = {}
        gradients_of: Passed = {}

        def replaced(what: str, passed: Passed, recorded: Passed) -> Change:
            def replace(key: Key, array: mx.array) -> mx.array:
                values = of_cpu(recorded, what, key)
                passed[key] = array
                return (errors.on(values) if errors else values).astype(array.dtype)

            return replace

        on_output = replaced(OUTPUT, outputs, reference.outputs)
        on_gradient = replaced(GRADIENT, gradients_of, reference.gradients_of)
        with boundaries(self.model, on_output, on_gradient):
            arrays = self._gradients(reference.size, reference.seed, noise > 0, noise, draw)
        deviations = verify.compared(arrays, reference.arrays)
        deviations |= _compared(OUTPUT, outputs, reference.outputs)
        deviations |= _compared(GRADIENT, gradients_of, reference.gradients_of)
        return deviations

    def repeated(self, size: int) -> Deviations:
        """See `verify.Step`."""
        first = self._gradients(size, 0, on_cpu=False)
        return verify.compared(self._gradients(size, 0, on_cpu=False), first)

    def _gradients(
        self, size: int, seed: int, on_cpu: bool, noise: float = 0.0, draw: int = 0
    ) -> Arrays:
        """Return the gradients that the optimizers get, and the loss."""
        gradients: dict[str, Any] = {}

        def note(_optimizer: Any, _update: Callable, part: Any, of_part: Any) -> None:
            gradients.update(self._named(part, of_part))

        (loss,), _ = self._run(size, seed, on_cpu, note, noise=noise, draw=draw)
        arrays = {f"the gradient of {name}": array for name, array in gradients.items()}
        arrays["the loss"] = loss
        return {name: np.array(array.astype(mx.float32)) for name, array in arrays.items()}

    def products(self, left: np.ndarray, right: np.ndarray) -> dict[str, np.ndarray]:
        """See `verify.Step`."""
        with self.backend.context():
            factors = [mx.array(each) for each in (left, right)]
            # Equal matrices, of which a kernel for batches multiplies each.
            batches = [mx.stack([each, each]) for each in factors]
            made = {
                "matmul": mx.matmul(*factors),
                "addmm": mx.addmm(mx.zeros(right.shape[1]), *factors),
                "batched": mx.matmul(*batches)[0],
            }
            return {operator: np.array(product) for operator, product in made.items()}

    def losses(self, size: int, count: int, cpu: bool, noise: float = 0.0) -> list[float]:
        """See `verify.Step`."""

        def note(_optimizer: Any, update: Callable, part: Any, gradients: Any) -> None:
            update(part, gradients)

        losses, _ = self._run(size, 0, cpu, note, count, noise=noise, one_batch=True)
        return [loss.item() for loss in losses]

    def updates(self, count: int, timed: bool = False) -> Deviations:
        """See `verify.Step`."""
        gradients_of_updates: list[Any] = []
        states = [_copied(each.state) for each in self.optimizers] if timed else None

        def on_device(_optimizer: Any, update: Callable, part: Any, gradients: Any) -> None:
            mx.eval(gradients)
            gradients_of_updates.append(gradients)
            update(part, gradients)

        def on_cpu(_optimizer: Any, update: Callable, part: Any, _gradients: Any) -> None:
            update(part, gradients_of_updates.pop(0))

        size = min(SMALL, self.size)
        self.model.update(self.weights)
        weights = self.model.trainable_parameters()
        # The optimizer's state has the type of its weight.
        eps = count * max(mx.finfo(weight.dtype).eps for _, weight in tree_flatten(weights))
        before = _flat(weights)
        _, optimizers = self._run(size, 0, False, on_device, count, states=states)
        device, device_states = _flat(self.model.trainable_parameters()), _slots(optimizers)
        _, optimizers = self._run(size, 0, True, on_cpu, count, states=states)
        cpu, cpu_states = _flat(self.model.trainable_parameters()), _slots(optimizers)
        deviations = {}
        for name, array in before.items():
            deviation = verify.of_update(array, device[name], cpu[name], eps)
            deviations[f"the update of {name}"] = deviation
        for name, array in cpu_states.items():
            deviations[f"the {name}"] = Deviation(math.inf, 0.0, what="is missing")
            if name in device_states:
                deviation = verify.of_state(device_states[name], array, eps)
                deviations[f"the {name}"] = deviation
        return deviations

    def _output_types(self, size: int) -> dict[Key, mx.Dtype]:
        """Return the data types of what passes between the device's modules."""
        dtypes = {}

        def on_output(key: Key, output: mx.array) -> mx.array:
            dtypes[key] = output.dtype
            return output

        with boundaries(self.model, on_output, lambda _, gradient: gradient):
            self._run(size, 0, False, lambda *_: None)
        return dtypes

    def _rounded(self, key: Key, array: mx.array) -> mx.array:
        """Return an array of the same type, rounded as the device does."""
        dtype = self.dtypes.get(key, array.dtype)
        return array.astype(dtype).astype(array.dtype)

    def _run(
        self,
        size: int,
        seed: int,
        on_cpu: bool,
        note: Callable[..., Any],
        count: int = 1,
        noise: float = 0.0,
        draw: int = 0,
        states: list[Any] | None = None,
        one_batch: bool = False,
    ) -> tuple[list[Any], list[Any]]:
        """Run steps with new optimizers, whose updates are replaced by `note`.

        Returns the losses and the optimizers. noise: relative error of the weights. states: of the
        optimizers, in place of new ones. one_batch: whether all steps have the same inputs.
        """

        def in_fp32(weight: Any) -> Any:  # a CPU is slow in bf16
            if not mx.issubdtype(weight.dtype, mx.floating):  # packed numbers of 4 bits
                return weight
            weight = weight.astype(mx.float32)
            return weight * (1 + noise * mx.random.normal(weight.shape)) if noise else weight

        with mx.stream(mx.cpu) if on_cpu else self.backend.context():
            mx.random.seed(draw)
            self.model.update(tree_map(in_fp32, self.weights) if on_cpu else self.weights)
            optimizer = self.workload.optimizer(self.model)
            optimizers = optimizers_of(optimizer)
            for each, state in zip(optimizers, states or (), strict=False):
                each.state = _copied(state)
            mx.random.seed(seed)
            losses = []
            with before_update(optimizers, note):
                for number in range(count):
                    if not (one_batch and number):
                        batch = tuple(map(_with_a_frequent_word, self.workload.batch(size)))
                    loss = self.workload.step(self.model, optimizer, *batch)
                    mx.eval(loss, self.model.parameters(), *(each.state for each in optimizers))
                    losses.append(loss)
        return losses, optimizers

    def _named(self, part: Any, gradients: Any) -> dict[str, Any]:
        """Return the gradients of a part of the model by the names in the whole model."""
        prefix = self.paths[id(part)]
        flat = tree_flatten(gradients)
        return {f"{prefix}.{name}" if prefix else name: array for name, array in flat}


def _with_a_frequent_word(array: Any) -> Any:
    """Return an input of words with one word in an eighth of its places, and others as they are.

    It is one of these words, as the vocabulary is not known here; see `verify.words`.
    """
    words = isinstance(array, mx.array) and mx.issubdtype(array.dtype, mx.integer)
    if not words or array.ndim < 2:  # classes have one dimension
        return array
    kept = mx.random.randint(0, OFTEN, array.shape) > 0
    return mx.where(kept, array, array.reshape(-1)[0])


def _compared(what: str, arrays: Passed, reference: Passed) -> Deviations:
    """Compare what passed between the modules, one by one, as each is copied."""
    deviations = {}
    for key, array in arrays.items():
        name = name_of(what, key)
        expected = {name: np.array(reference[key].astype(mx.float32))}
        deviations |= verify.compared({name: np.array(array.astype(mx.float32))}, expected)
    return deviations


def _copied(state: Any) -> Any:
    """Return an optimizer's state with arrays of its own, which an update does not change."""
    return tree_map(mx.array, state)


def _slots(optimizers: list[Any]) -> Arrays:
    """Return the arrays of the optimizers' states, such as `m of fc.weight`."""
    arrays = {}
    for number, optimizer in enumerate(optimizers):
        for path, array in tree_flatten(optimizer.state):
            weight, _, slot = path.rpartition(".")
            if isinstance(array, mx.array) and weight:
                of = f"{weight} in optimizer {number + 1}" if number else weight
                arrays[f"{slot} of {of}"] = np.array(array.astype(mx.float32))
    return arrays


def _flat(weights: Any) -> Arrays:
    return {name: np.array(array.astype(mx.float32)) for name, array in tree_flatten(weights)}
