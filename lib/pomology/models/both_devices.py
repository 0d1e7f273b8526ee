"""A training step on a GPU and on the CPU, from the same weights, inputs and random numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

from pomology.devices import tensorflow as devices_tensorflow

LOSS = "the loss"
UPDATES = 2  # of an optimizer: the second one reads what the first one wrote
SAMPLED = 4096  # numbers of each weight whose update is kept
Arrays = dict[str, np.ndarray]


def of(case: Any, model: Any, one_step: Any, optimizers: tuple, twin: Callable | None) -> Any:
    """The sides of a case, with `gradients` and `restore`. Arguments: as of `verify.step`."""
    if case.backend.framework == "torch":
        return Torch(case, model, one_step, optimizers)
    if case.backend.framework == "mlx":
        return MLX(case, model, one_step)
    return Keras(case, model, twin)


class Torch:
    """A model of PyTorch on its device, and a copy of it on the CPU."""

    def __init__(self, case: Any, model: Any, one_step: Callable, optimizers: tuple):
        import torch

        self.torch, self.device, self.one_step = torch, case.device, one_step
        self.model, self.optimizers = model, optimizers
        self.seed, self.random = torch.initial_seed(), torch.get_rng_state()
        self.kept = [buffer.clone() for buffer in model.buffers()]
        # What `deepcopy` takes for a copy: else that would be on the GPU.
        copies = {id(buffer): buffer.to("cpu", copy=True) for buffer in model.buffers()}
        for weight in model.parameters():
            values = weight.detach().to("cpu", copy=True)
            copies[id(weight)] = torch.nn.Parameter(values, weight.requires_grad)
        self.twin, self.twin_optimizers = copy.deepcopy((model, optimizers), copies)

    def gradients(self, size: int, seed: int, on_cpu: bool = False, change: float = 0.0) -> Arrays:
        """Gradients of a step by name, and its loss. change: of the CPU's weights, as a share."""
        torch, functional = self.torch, self.torch.nn.functional
        model, device = (self.twin, "cpu") if on_cpu else (self.model, self.device)
        attention = functional.scaled_dot_product_attention

        def without_dropout(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, **options):
            return attention(q, k, v, attn_mask, 0.0, is_causal, **options)

        self._align(change)
        model.zero_grad()
        torch.manual_seed(seed)
        patch = mock.patch.object(functional, "scaled_dot_product_attention", without_dropout)
        with patch, torch.device(device), _same_numbers(torch):
            result = self.one_step(model, size)
        arrays = {} if result is None else {LOSS: result.detach()}
        for name, weight in model.named_parameters():
            if weight.grad is not None:
                arrays[f"the gradient of {name}"] = weight.grad
        return {name: tensor.float().cpu().numpy() for name, tensor in arrays.items()}

    def updates(self) -> tuple[Arrays, Arrays, Arrays]:
        """What the optimizers make of some numbers of each weight, from the device's gradients.

        The changes on the device, those on the CPU, and the same within the weights' rounding.
        """
        self._align()
        pairs = [*zip(self.model.parameters(), self.twin.parameters(), strict=True)]
        for weight, twin in pairs:
            twin.grad = None if weight.grad is None else weight.grad.to("cpu", copy=True)
        before = self._sample(self.twin)
        for optimizer in self.optimizers * UPDATES:
            optimizer.step()
        device = self._sample(self.model)
        with self.torch.no_grad():
            for weight, twin in pairs:
                weight.copy_(twin)
        for optimizer in self.twin_optimizers * UPDATES:
            optimizer.step()
        cpu = self._sample(self.twin)
        changes = [{n: each[n] - before[n] for n in before} for each in (device, cpu)]
        eps = 4 * self.torch.finfo(pairs[0][0].dtype).eps
        return *changes, {n: changes[1][n] + eps * before[n] for n in before}

    def _sample(self, model: Any) -> Arrays:
        arrays = {}
        for name, weight in model.named_parameters():
            numbers = weight.detach().flatten()
            some = numbers[:: max(1, len(numbers) // SAMPLED)]
            arrays[f"the update of {name}"] = some.cpu().double().numpy()
        return arrays

    def _align(self, change: float = 0.0) -> None:
        """Buffers as they were, and the copy as the model, but for a change of its weights."""
        weights, torch = [*self.twin.parameters()], self.torch
        with torch.no_grad():
            for buffer, kept in zip(self.model.buffers(), self.kept, strict=True):
                buffer.copy_(kept)
            pairs = zip(self.twin.buffers(), self.kept, strict=True)
            for one, other in (*pairs, *zip(weights, self.model.parameters(), strict=True)):
                one.copy_(other)
            for weight in weights if change else ():
                weight.mul_(1 + change * torch.randn(weight.shape))

    def restore(self) -> None:
        """Leave the model, its optimizers and the random numbers as they were; no gradients."""
        self._align()
        self.model.zero_grad()
        for optimizer in self.optimizers:
            optimizer.state.clear()
        self.torch.manual_seed(self.seed)
        self.torch.set_rng_state(self.random)


def _same_numbers(torch: Any) -> Any:
    """A mode in which the CPU draws all random numbers, in fp32 and in the order of their place."""
    from torch.utils import _pytree as pytree
    from torch.utils._python_dispatch import TorchDispatchMode

    def on_cpu(tensor: Any) -> Any:
        dtype = torch.float32 if tensor.is_floating_point() else tensor.dtype
        return tensor.to("cpu", dtype).contiguous()

    class SameNumbers(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            kwargs, name = kwargs or {}, function.overloadpacket.__name__
            draws = torch.Tag.nondeterministic_seeded in function.tags
            if not draws or "attention" in name or "rnn" in name:  # they give more than that
                return function(*args, **kwargs)
            like = next((item for item in args if isinstance(item, torch.Tensor)), None)
            device = kwargs.get("device") if like is None else like.device
            given, named = pytree.tree_map_only(torch.Tensor, on_cpu, (args, kwargs))
            named |= {"device": torch.device("cpu")} if named.get("device") else {}
            drawn = function(*given, **named)
            if function._schema.is_mutable:
                return args[0].copy_(drawn)

            def back(tensor: Any) -> Any:
                cast = like is not None and tensor.is_floating_point()
                dtype = like.dtype if cast else tensor.dtype
                return torch.empty_like(tensor, dtype=dtype, device=device).copy_(tensor)

            return pytree.tree_map_only(torch.Tensor, back, drawn)

    return SameNumbers()


class MLX:
    """A model of MLX, whose arrays belong to no device."""

    def __init__(self, case: Any, model: Any, one_step: Callable):
        self.backend, self.model, self.one_step = case.backend, model, one_step
        self.kept = model.parameters()

    def gradients(self, size: int, seed: int, on_cpu: bool = False, change: float = 0.0) -> Arrays:
        import mlx.core as mx
        from mlx.utils import tree_flatten, tree_map

        def changed(weight: Any) -> Any:
            return weight * (1 + change * mx.random.normal(weight.shape))

        with self.backend.on_cpu() if on_cpu else self.backend.context():
            self.model.update(tree_map(changed, self.kept) if change else self.kept)
            mx.random.seed(seed)
            loss, gradients = self.one_step(self.model, size)
            mx.eval(loss, gradients)
        arrays = {f"the gradient of {name}": array for name, array in tree_flatten(gradients)}
        arrays[LOSS] = loss
        return {name: np.array(array.astype(mx.float32)) for name, array in arrays.items()}

    def restore(self) -> None:
        self.model.update(self.kept)


class Keras:
    """A classifier of Keras on a GPU, and the same one, built on the CPU."""

    def __init__(self, case: Any, model: Any, twin: Callable):
        self.case, self.model, self.kept = case, model, model.get_weights()
        with case.backend.on_cpu():
            self.twin = twin()

    def gradients(self, size: int, seed: int, on_cpu: bool = False, change: float = 0.0) -> Arrays:
        """Of the cross-entropy of random pictures, in a graph as training is, without dropout."""
        import keras

        tensorflow, backend = devices_tensorflow.load(), self.case.backend
        model = self.twin if on_cpu else self.model
        draw = np.random.default_rng(seed)
        images = draw.random((size, *model.input_shape[1:]), dtype=np.float32)
        labels = draw.integers(0, model.output_shape[-1], size)
        noise = [1 + change * draw.standard_normal(each.shape, "f") for each in self.kept]
        model.set_weights([each * by for each, by in zip(self.kept, noise, strict=True)])
        weights = [each.value for each in model.trainable_variables]

        @tensorflow.function(jit_compile=False)
        def both(images: Any, labels: Any) -> tuple:
            with tensorflow.GradientTape() as tape:
                outputs = model(images, training=False)
                losses = keras.losses.sparse_categorical_crossentropy(labels, outputs)
                loss = tensorflow.reduce_mean(losses)
            return loss, outputs, tape.gradient(loss, weights)

        with backend.on_cpu() if on_cpu else backend.context():
            loss, outputs, gradients = both(*map(tensorflow.constant, (images, labels)))
        if not on_cpu:
            self.case.ran_on(outputs)
        arrays = {LOSS: loss, "the output": outputs}
        names = [f"the gradient of {weight.path}" for weight in self.model.trainable_variables]
        arrays |= dict(zip(names, gradients, strict=True))
        return {name: np.asarray(array) for name, array in arrays.items()}

    def restore(self) -> None:
        self.model.set_weights(self.kept)
