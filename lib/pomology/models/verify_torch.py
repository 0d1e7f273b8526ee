"""A PyTorch step on its device and on the CPU: gradients, updates, and what passes in between."""

import copy
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self
from unittest import mock

import numpy as np
import torch
from torch.nn import functional

from pomology.errors import Mismatch
from pomology.models import verify
from pomology.models.blocks_torch import Noise, boundaries
from pomology.models.random_on_cpu import RandomOnCPU, is_convolved, mark_convolved
from pomology.models.verify import (
    GRADIENT,
    NONE_OF_CPU,
    OUTPUT,
    SMALLEST,
    Deviation,
    Deviations,
    Key,
    Reference,
    name_of,
    of_cpu,
)
from pomology.models.workload import Workload, before_update, scalers, updates, weights_of

SCALES = 24  # of gradients that are tried: 65,536 and its halves
Tensors = dict[str, torch.Tensor]


class StepOnBothDevices:
    """A workload's step on its device, and in a `with` block also on the CPU; see `verify.Step`.

    The block ends with the model as it was, without gradients. Each run of the step gets a new
    optimizer, so that the timed one keeps its state. timed: that one.
    """

    traces = False

    def __init__(self, case: Any, model: Any, workload: Workload, timed: Any):
        self.device = case.device
        self.model = model
        self.workload = workload
        self.timed = timed
        self.optimizers = updates(timed)
        self.training = model.training
        self.unverified: set[str] = set()
        self.parameters = sum(weight.numel() for weight in model.parameters())
        self.dtypes: dict[Key, torch.dtype] | None = None  # of what passes between the modules

    def __enter__(self) -> Self:
        if self.model.training != self.training:
            self.model.train(self.training)
        self.random_checked: set[tuple] = set()
        self.seed = torch.initial_seed()
        self.random = torch.get_rng_state()
        self.kept = {name: tensor.clone() for name, tensor in self.model.named_buffers()}
        self.cpu_model = _on_cpu(self.model)
        self.scaling: dict[bool, list[dict]] = {}  # on the CPU or not -> states of the scalers
        # The weights before any step, from which the device's are restored.
        self.weights = [weight.detach().clone() for weight in self.cpu_model.parameters()]
        return self

    def __exit__(self, *_: object) -> None:
        self._restore(self.model)
        self.model.zero_grad()
        torch.manual_seed(self.seed)
        torch.set_rng_state(self.random)
        del self.cpu_model, self.weights, self.kept

    def reference(self, size: int, seed: int) -> Reference:
        """Run the CPU's step, in fp32, where modules hand on values as the device rounds them."""
        self.size = size
        reference = Reference(size, seed)
        if self.dtypes is None:
            self.dtypes = self._output_types(min(SMALLEST, size))

        def note(name: str, tensor: torch.Tensor) -> None:
            if is_convolved(tensor):
                reference.convolved.add(name)

        def on_output(key: Key, output: torch.Tensor) -> torch.Tensor:
            note(name_of(OUTPUT, key), output)
            kept = reference.keep(reference.outputs, key, self._rounded(key, output)).clone()
            mark_convolved(kept, False)  # the device goes on with the same values
            return kept

        def on_gradient(key: Key, gradient: torch.Tensor) -> torch.Tensor:
            note(name_of(GRADIENT, key), gradient)
            kept = reference.keep(reference.gradients_of, key, self._rounded(key, gradient))
            mark_convolved(kept, False)
            return kept

        def keep(tensors: Tensors) -> Tensors:
            for name, tensor in tensors.items():
                note(name, tensor)
            return tensors

        began_s = time.perf_counter()
        with boundaries(self.cpu_model, on_output, on_gradient):
            reference.arrays = self._step(self.cpu_model, size, seed, keep, traces=True)
        reference.seconds = time.perf_counter() - began_s
        reference.scale = self.scale
        return reference

    def deviations(self, reference: Reference, noise: float = 0.0, draw: int = 0) -> Deviations:
        """See `verify.Step`."""
        convolves = bool(reference.convolved)
        compared = Compared(reference.arrays, lambda _: convolves)
        if not noise:
            return self._compared_step(self.model, reference, compared)
        errors = Noise(noise, draw)
        with boundaries(
            self.cpu_model,
            lambda _, output: errors.on(output),
            lambda _, gradient: errors.on(gradient),
        ):
            return self._compared_step(self.cpu_model, reference, compared, errors)

    def in_blocks(self, reference: Reference, noise: float = 0.0, draw: int = 0) -> Deviations:
        """See `verify.Step`."""
        reference = verify.with_blocks(reference, self.reference)
        model = self.cpu_model if noise else self.model
        errors = Noise(noise, draw) if noise else None
        compared = Compared(reference.arrays, reference.convolved.__contains__)

        def replaced(recorded: torch.Tensor, like: torch.Tensor, factor: float) -> torch.Tensor:
            values = errors.on(recorded) if errors else recorded
            return torch.empty_like(like).copy_(values * factor if factor != 1 else values)

        def on_output(key: Key, output: torch.Tensor) -> torch.Tensor:
            recorded = of_cpu(reference.outputs, OUTPUT, key)
            compared.add(name_of(OUTPUT, key), output, recorded)
            return replaced(recorded, output, 1.0)

        def on_gradient(key: Key, gradient: torch.Tensor) -> torch.Tensor:
            recorded = of_cpu(reference.gradients_of, GRADIENT, key)
            factor = self.scale / reference.scale
            compared.add(name_of(GRADIENT, key), gradient / factor, recorded)
            return replaced(recorded, gradient, factor)

        with boundaries(model, on_output, on_gradient):
            return self._compared_step(model, reference, compared, errors)

    def repeated(self, size: int) -> Deviations:
        """See `verify.Step`."""
        first = self._step(self.model, size, 0, dict)
        compared = Compared(first, lambda _: True)
        self._step(self.model, size, 0, compared.on_tensors)
        return compared.deviations()

    def _compared_step(
        self, model: Any, reference: Reference, compared: "Compared", errors: Noise | None = None
    ) -> Deviations:
        self._step(model, reference.size, reference.seed, compared.on_tensors, errors)
        return compared.deviations()

    def _step(
        self,
        model: Any,
        size: int,
        seed: int,
        keep: Callable[[Tensors], Any],
        errors: Noise | None = None,
        traces: bool = False,
    ) -> Tensors:
        """Run a step without its update; return what `keep` makes of its tensors.

        The gradients are those that the optimizers get, after clipping. Raises Mismatch for wrong
        random numbers of the device. errors: of the weights. traces: see `RandomOnCPU`.
        """
        kept: Tensors = {}

        def note(_number: int, optimizer: Any, _step: Callable, *_: Any) -> None:
            chosen = {id(weight) for weight in weights_of(optimizer, model)}
            for name, weight in model.named_parameters():
                if weight.grad is not None and id(weight) in chosen:
                    # To the CPU at once: a large model's gradients take gigabytes.
                    copied = weight.grad.detach().to("cpu", torch.float32, copy=True)
                    kept.update(keep({f"the gradient of {name}": copied}))

        losses = self._run(model, size, seed, note, errors=errors, traces=traces)
        loss = torch.as_tensor(losses[-1]).detach()
        kept.update(keep({"the loss": loss.float().cpu()}))
        if loss.numel() == 1:
            kept.update(keep({"the loss by `item`": torch.tensor(loss.item())}))
        return kept

    def products(self, left: np.ndarray, right: np.ndarray) -> dict[str, np.ndarray]:
        """See `verify.Step`; only convolutions may be in TF32."""
        factors = [torch.from_numpy(each).to(self.device) for each in (left, right)]
        bias = torch.zeros(right.shape[1], device=self.device)
        # Equal matrices, of which a kernel for batches multiplies each.
        batch = torch.bmm(*(torch.stack([each, each]) for each in factors))
        made = {"mm": torch.mm(*factors), "addmm": torch.addmm(bias, *factors), "bmm": batch[0]}
        return {operator: _array(product) for operator, product in made.items()}

    def losses(self, size: int, count: int, cpu: bool, noise: float = 0.0) -> list[float]:
        """See `verify.Step`."""

        def update(_number: int, _optimizer: Any, step: Callable, *arguments: Any) -> Any:
            return step(*arguments)

        model = self.cpu_model if cpu else self.model
        errors = Noise(noise, 0) if noise else None
        losses = self._run(model, size, 0, update, count, errors=errors, one_batch=True)
        return [float(torch.as_tensor(loss).detach()) for loss in losses]

    def updates(self, count: int, timed: bool = False) -> Deviations:
        """See `verify.Step`.

        The CPU makes each update right after the device, with the device's gradients. Gradients
        differ by rounding, after which an optimizer such as Adam may move a weight the other way.
        """
        mirrored: dict[int, Any] = {}  # id of a running optimizer -> the CPU's

        def on_device(number: int, optimizer: Any, step: Callable, *arguments: Any) -> Any:
            with torch.device("cpu"):
                if not number:  # also where a gradient scaler begins anew
                    own_optimizers = self._cpu_optimizers(timed)
                    mirrored.clear()
                    mirrored.update(zip(map(id, self.running), own_optimizers, strict=True))
                own = mirrored[id(optimizer)]
                self._copy_gradients(own, optimizer)
                own.step()
            return step(*arguments)

        size = min(SMALLEST, self.size)
        self._run(self.model, size, 0, on_device, count, optimizer=self.timed if timed else None)
        deviations = self._compared_weights(count)
        for other in self.running:
            deviations |= self._compared_states(mirrored[id(other)], other, count)
        return deviations

    def _cpu_optimizers(self, timed: bool) -> list[Any]:
        """Return new optimizers of the CPU's restored model. timed: with the state of the timed."""
        self._restore(self.cpu_model)
        optimizers = updates(self.workload.optimizer(self.cpu_model))
        for own, other in zip(optimizers, self.optimizers, strict=True):
            if timed and hasattr(own, "load_state_dict"):
                own.load_state_dict(other.state_dict())
                for state in own.state.values():  # loading shares the number of steps
                    for slot, value in state.items():
                        if isinstance(value, torch.Tensor) and not value.dim():
                            state[slot] = value.to("cpu", copy=True)
        return optimizers

    def _copy_gradients(self, own: Any, other: Any) -> None:
        """Give the weights of a CPU's optimizer the gradients of the device's."""
        weights = zip(weights_of(own, self.cpu_model), weights_of(other, self.model), strict=True)
        for on_cpu, on_device in weights:
            grad = on_device.grad
            on_cpu.grad = None if grad is None else grad.to("cpu", on_cpu.dtype, copy=True)

    def _compared_weights(self, count: int) -> Deviations:
        """Compare each element of each weight after so many updates."""
        deviations = {}
        pairs = zip(self.model.named_parameters(), self.cpu_model.parameters(), strict=True)
        for ((name, weight), expected), before in zip(pairs, self.weights, strict=True):
            if weight.requires_grad:
                arrays = [_array(tensor) for tensor in (before, weight, expected)]
                eps = count * torch.finfo(weight.dtype).eps
                deviations[f"the update of {name}"] = verify.of_update(*arrays, eps)
        return deviations

    def _compared_states(self, own: Any, other: Any, count: int) -> Deviations:
        """Compare the states of two optimizers, in all tensors in the size of a weight."""
        deviations = {}
        names = {id(weight): name for name, weight in self.model.named_parameters()}
        weights = zip(weights_of(own, self.cpu_model), weights_of(other, self.model), strict=True)
        expected_state, state = getattr(own, "state", {}), getattr(other, "state", {})
        for on_cpu, on_device in weights:
            for slot, expected in expected_state.get(on_cpu, {}).items():
                if not isinstance(expected, torch.Tensor) or expected.shape != on_cpu.shape:
                    continue
                name = f"the {slot} of {names[id(on_device)]}"
                tensor = state.get(on_device, {}).get(slot)
                if tensor is None:
                    deviations[name] = Deviation(math.inf, 0.0, what="is missing")
                    continue
                eps = count * torch.finfo(tensor.dtype).eps
                deviations[name] = verify.of_state(_array(tensor), _array(expected), eps)
        return deviations

    def _output_types(self, size: int) -> dict[Key, torch.dtype]:
        """Return the data types of what passes between the device's modules."""
        dtypes = {}

        def on_output(key: Key, output: torch.Tensor) -> torch.Tensor:
            dtypes[key] = output.dtype
            return output.clone()

        with boundaries(self.model, on_output, lambda _, gradient: gradient):
            self._run(self.model, size, 0, lambda *_: None)
        return dtypes

    def _rounded(self, key: Key, tensor: torch.Tensor) -> torch.Tensor:
        """Return a new tensor of the same type, rounded as the device does."""
        dtype = self.dtypes.get(key, tensor.dtype)
        if dtype == tensor.dtype:
            return tensor.clone()
        return tensor.to(dtype).to(tensor.dtype)

    def _run(
        self,
        model: Any,
        size: int,
        seed: int,
        note: Callable[..., Any],
        count: int = 1,
        errors: Noise | None = None,
        optimizer: Any = None,
        one_batch: bool = False,
        traces: bool = False,
    ) -> list[torch.Tensor | float]:
        """Run steps from the first weights, and return their losses.

        note: called in place of each update, with its number. errors: of the weights. optimizer:
        by default a new one. one_batch: whether all steps have the same inputs. traces: see
        `RandomOnCPU`. A gradient scaler leaves an update out if a gradient overflows, and halves
        its scale; then all steps run again with that scale. Raises Mismatch if no scale avoids it.
        """
        on_cpu = model is self.cpu_model
        for _ in range(SCALES):
            used = self.workload.optimizer(model) if optimizer is None else optimizer
            scaling = scalers(used)
            for scaler, state in zip(scaling, self.scaling.get(on_cpu, ()), strict=False):
                scaler.load_state_dict(state)
            self.running = updates(used)
            self.scale = scaling[0].get_scale() if scaling else 1.0
            numbers = itertools.count()
            self._restore(model, errors)
            random_on_cpu = RandomOnCPU(self.random_checked, traces)
            with before_update(self.running, _numbered(note, numbers)), random_on_cpu:
                losses = self._steps(model, used, size, seed, count, one_batch)
            model.zero_grad()  # gigabytes in a large model
            if not scaling or next(numbers) == count * len(self.running):
                return losses
            self.scaling[on_cpu] = [scaler.state_dict() for scaler in scaling]
        scale = scaling[0].get_scale()
        raise Mismatch(f"gradients are not finite with any gradient scale down to {scale:.2g}")

    def _steps(
        self, model: Any, optimizer: Any, size: int, seed: int, count: int, one_batch: bool
    ) -> list[torch.Tensor | float]:
        """Run steps on random inputs of a seed; return their losses."""
        device = torch.device("cpu" if model is self.cpu_model else self.device)
        attention = mock.patch.object(functional, "scaled_dot_product_attention", self._attention)
        model.zero_grad()
        torch.manual_seed(seed)
        losses = []
        with attention, device:
            for number in range(count):
                if not (one_batch and number):
                    batch = self.workload.batch(size)
                loss = self.workload.step(model, optimizer, *batch)
                losses.append(loss[0] if isinstance(loss, tuple) else loss)
        return losses

    def _attention(
        self, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **options
    ):
        """Attention without dropout, because its random numbers would differ between devices."""
        if dropout_p:
            self.unverified.add("the dropout of attention")
        return attention(query, key, value, attn_mask, 0.0, is_causal, **options)

    @torch.no_grad()
    def _restore(self, model: Any, errors: Noise | None = None) -> None:
        """Restore a model's buffers and weights, these with relative errors."""
        for name, buffer in model.named_buffers():
            buffer.copy_(self.kept[name])
        for weight, kept in zip(model.parameters(), self.weights, strict=True):
            weight.copy_(errors.on(kept) if errors else kept)


class Compared:
    """The deviations of a step's tensors, which are compared one by one and not kept.

    tf32_of: returns for a tensor's name whether a device with TF32 computes it in TF32.
    """

    def __init__(self, reference: Mapping[str, torch.Tensor], tf32_of: Callable[[str], bool]):
        self.reference = reference
        self.tf32_of = tf32_of
        self._deviations: Deviations = {}

    def on_tensors(self, tensors: Tensors) -> Tensors:
        """Compare a step's tensors with those of the reference; return none to keep."""
        for name, tensor in tensors.items():
            expected = self.reference.get(name)
            if expected is None:
                self._deviations[name] = NONE_OF_CPU
            else:
                self.add(name, tensor, expected)
        return {}

    def add(self, name: str, tensor: torch.Tensor | None, expected: torch.Tensor) -> None:
        """Compare a tensor, on any device, with the CPU's. tensor: None if it is missing."""
        norm = _norm(expected)
        if not math.isfinite(norm):  # then the case ends by its loss
            return
        difference = None
        if tensor is not None:
            difference = _norm(tensor.detach().to("cpu", torch.float32) - expected)
        elements, tf32 = expected.numel(), self.tf32_of(name)
        deviation = verify.deviation(name, norm, elements, difference, tf32)
        self._deviations[name] = deviation

    def deviations(self) -> Deviations:
        """Return all of them; what the reference has and the step has not is missing."""
        for name in self.reference.keys() - self._deviations.keys():
            self.add(name, None, self.reference[name])
        return self._deviations


def _norm(tensor: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))


def _on_cpu(model: Any) -> Any:
    """Return a copy of a model on the CPU, with weights of at least fp32."""
    # Tensors anywhere in the model, such as a mask that a module keeps, are moved as well:
    # `deepcopy` alone would make copies on the GPU.
    copies: dict[int, Any] = {}
    for weight in model.parameters():
        kind = torch.promote_types(weight.dtype, torch.float32)  # a CPU is slow in bf16
        values = weight.detach().to("cpu", kind, copy=True)
        copies[id(weight)] = torch.nn.Parameter(values, weight.requires_grad)

    def moved(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
        memo[id(tensor)] = tensor.detach().to("cpu", copy=True)
        return memo[id(tensor)]

    with mock.patch.object(torch.Tensor, "__deepcopy__", moved):
        return copy.deepcopy(model, copies)


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().to("cpu", torch.float32).numpy()


def _numbered(note: Callable[..., Any], numbers: Iterator[int]) -> Callable[..., Any]:
    """Return a function that calls `note` with the number of the call, and its arguments."""

    def called(*arguments: Any) -> Any:
        return note(next(numbers), *arguments)

    return called


attention = functional.scaled_dot_product_attention
