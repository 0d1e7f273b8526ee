"""Devices for MLX's steps that are played on the CPU: correct ones, and ones with a wrong gradient.

A step on the device runs inside of `Device.context`, the CPU's outside of it. Inside, operators are
replaced by ones that round otherwise, and gradients are changed before an optimizer gets them.
"""

import contextlib
import dataclasses
import functools
import itertools
import math
from types import SimpleNamespace
from unittest import mock

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_map, tree_unflatten
from notebook_code import twin

from pomology.models import gpt2, verify, verify_mlx, whisper_mlx

HALF = {"bf16": mx.bfloat16, "fp16": mx.float16}
MATMUL, AT = mx.matmul, mx.array.__matmul__


class Case(SimpleNamespace):
    """A case on a played GPU: what verification needs of one."""

    def __init__(self, precision, device, tf32=False):
        self.notes, self.checks = [], []
        backend = SimpleNamespace(kind="gpu", backend="mlx-gpu", framework="mlx")
        backend.tf32 = backend.tf32_products = tf32
        backend.reset_peak_memory = lambda: None
        backend.context = device.context
        super().__init__(
            backend=backend,
            config={},
            precision=precision,
            experiment=SimpleNamespace(budget_s=10.0, profile="quick"),
            note=lambda *note: self.notes.append(note),
            metric=lambda *_: None,
            at_end=self.checks.append,
            proof={},
        )


class Device:
    """A device. operators: `(object, name, function)` of each that computes in another way.

    gradient: a function of a weight's name and its gradient, which returns that of the device.
    """

    def __init__(self, operators=(), gradient=None, precision="fp32"):
        self.operators = operators
        self.gradient = gradient
        self.kind = HALF.get(precision, mx.float32)

    @contextlib.contextmanager
    def context(self):
        mask = nn.MultiHeadAttention.create_additive_causal_mask
        own = functools.partial(mask, dtype=self.kind)
        with contextlib.ExitStack() as stack:
            for place, name, function in self.operators:
                stack.enter_context(mock.patch.object(place, name, function))
            if self.gradient:
                wrong = functools.partial(self._value_and_grad, nn.value_and_grad)
                stack.enter_context(mock.patch.object(nn, "value_and_grad", wrong))
            # Attention takes only a mask of its own type.
            patch = mock.patch.object(nn.MultiHeadAttention, mask.__name__, staticmethod(own))
            stack.enter_context(patch)
            yield

    def _value_and_grad(self, right, model, loss_function):
        function = right(model, loss_function)

        def called(*arguments, **named):
            loss, gradients = function(*arguments, **named)
            flat = tree_flatten(gradients)
            changed = [(name, self.gradient(name, gradient)) for name, gradient in flat]
            return loss, tree_unflatten(changed)

        return called


# Correct devices, which round otherwise.


def differentiable(multiply):
    """A matmul with gradients by the same way of multiplying."""

    @mx.custom_function
    def product(left, right):
        return multiply(left, right)

    @product.vjp
    def gradients(primals, gradient, _product):
        left, right = primals
        if right.ndim == 2:  # a layer's weight: one sum over all samples
            rows = left.reshape(-1, left.shape[-1])
            of_rows = gradient.reshape(-1, gradient.shape[-1])
            return multiply(gradient, right.T), multiply(rows.T, of_rows)
        of_left = multiply(gradient, right.swapaxes(-1, -2))
        return of_left, multiply(left.swapaxes(-1, -2), gradient)

    def call(left, right):
        kind = mx.result_type(left, right)
        return product(left.astype(kind), right.astype(kind))

    return call


def in_fp64(left, right):
    up = [array.astype(mx.float64, stream=mx.cpu) for array in (left, right)]
    return MATMUL(*up, stream=mx.cpu).astype(left.dtype, stream=mx.cpu)


def in_parts(count):
    """A matmul whose sum is made of parts, each rounded to the type of its inputs."""

    def multiply(left, right):
        ends = np.linspace(0, left.shape[-1], count + 1).astype(int)
        total = None
        for first, last in itertools.pairwise(ends):
            if last > first:
                part = MATMUL(left[..., first:last], right[..., first:last, :])
                total = part if total is None else total + part
        return total

    return multiply


def in_tf32(left, right):
    return MATMUL(*(rounded_to_tf32(array) for array in (left, right)))


def rounded_to_tf32(array):
    bits = array.view(mx.uint32)
    return ((bits + 0x1000) & 0xFFFFE000).view(mx.float32)


def matmuls(multiply):
    """What a device replaces whose matmuls are made in one way."""
    product = differentiable(multiply)

    def with_bias(bias, left, right, *, alpha=1, beta=1):
        return beta * bias + alpha * product(left, right)

    return [
        (mx, "matmul", product),
        (mx.array, "__matmul__", product),
        (mx, "addmm", with_bias),
        (mx.fast, "scaled_dot_product_attention", functools.partial(attention, product)),
    ]


def attention(product, query, key, value, *, scale, mask=None):
    """Attention without a fused kernel, in the type of its inputs."""
    repeats = query.shape[1] // key.shape[1]
    key, value = (mx.repeat(each, repeats, axis=1) for each in (key, value))
    scores = product(scale * query, key.swapaxes(-1, -2))
    if isinstance(mask, str):
        length = query.shape[2]
        later = mx.arange(length)[:, None] < mx.arange(length)
        mask = mx.where(later, mx.finfo(scores.dtype).min, 0).astype(scores.dtype)
    if mask is not None:
        scores = scores + mask
    return product(mx.softmax(scores, axis=-1, precise=True), value)


def approximate(seed):
    """What a device replaces whose operators have a relative error of a millionth."""
    draw = np.random.default_rng(seed)

    def inexact(array):
        factors = 1 + 1e-6 * draw.standard_normal(array.shape, "f")
        return (array * mx.array(factors)).astype(array.dtype)

    @mx.custom_function
    def both_ways(result):
        return inexact(result)

    @both_ways.vjp
    def backward(_result, gradient, _inexact):
        return inexact(gradient)

    def of(right):
        return lambda *arguments, **named: both_ways(right(*arguments, **named))

    own = [(mx, name) for name in ("matmul", "addmm", "softmax", "conv1d", "conv2d", "rsqrt")]
    own += [(mx, "conv_transpose2d"), (mx.array, "__matmul__")]
    own += [(mx.fast, "layer_norm"), (mx.fast, "rms_norm")]
    own += [(mx.fast, "scaled_dot_product_attention")]
    return [(place, name, of(getattr(place, name))) for place, name in own]


def correct(name, seed=0):
    """Return what a correct device replaces."""
    if name == "as the CPU":
        return []
    if name == "fast mathematics":
        return approximate(seed)
    ways = {"double": in_fp64, "two parts": in_parts(2), "sixteen parts": in_parts(16)}
    return matmuls((ways | {"TF32": in_tf32})[name])


CORRECT = ("as the CPU", "double", "two parts", "sixteen parts", "fast mathematics")


# Steps.


def lora(precision):
    size = SimpleNamespace(width=64, inner=160, layers=2, heads=4, kv_heads=2, vocabulary=256)
    options = {"rank": 8, "sequence": 16, "lr": 1e-5, "trained": 0}
    options["cost"] = lambda _count: SimpleNamespace(parameters=0, flops=0)
    return twin("lora_mlx").workload(size, range(size.layers), precision, **options)


def pretraining(architecture):
    shape = gpt2.shape("gpt2-micro", 16, architecture, vocabulary=500)
    return twin("gpt2_pretraining_mlx").workload(shape, 3e-4, 1e-5, False)


def transformer_lm():
    sizes = {"embedding_size": 16, "layers": 2, "hidden_size": 24}
    return twin("transformer_lm_mlx").language_model(sizes, 500, 2_000, 20.0)


def gpt2_finetuning():
    sizes = {"model": "gpt2-smoke", "lora": False}
    return twin("gpt2_finetuning_mlx").workload(sizes, 16, 5e-5)


# Name -> a function that returns the workload, and the samples of its step.
TWINS = {
    "lora": (None, 2),
    "gpt2_pretraining": (lambda: pretraining("true_gpt2"), 2),
    "gpt2_pretraining, transformer_lm": (lambda: pretraining("transformer_lm"), 2),
    "transformer_lm": (transformer_lm, 2),
    "gpt2_finetuning": (gpt2_finetuning, 2),
    "vae": (lambda: twin("vae_mlx").vae, 4),
    "siamese": (lambda: twin("siamese_mlx").siamese, 2),
    "model_sizes": (lambda: twin("model_sizes_mlx").workload("resnet18", 64), 2),
    "whisper": (lambda: whisper_mlx.workload("whisper-smoke", 1e-5), 1),
}


def prepared(name, precision, seed=1):
    """Return a twin's workload, a model with weights and inputs in a precision, and its samples."""
    build, size = TWINS[name]
    training = build() if build else lora(precision)
    mx.random.seed(seed)
    model = training.build().train()
    if precision in HALF and build:
        model.set_dtype(HALF[precision])
        training = dataclasses.replace(training, batch=in_half(training.batch, HALF[precision]))
    mx.eval(model.parameters())
    return training, model, size


def in_half(batch, kind):
    """Return a function that draws the inputs of both devices in half precision."""

    def cast(array):
        return array.astype(kind) if mx.issubdtype(array.dtype, mx.floating) else array

    return lambda size: tree_map(cast, batch(size))


def verified(name, precision="fp32", operators=(), gradient=None, seed=1, tf32=False, seeds=(0,)):
    """Verify products, gradients and updates of a twin's step; return the `Verification`.

    seeds: of the inputs. Raises Mismatch.
    """
    training, model, size = prepared(name, precision, seed)
    case = Case(precision, Device(operators, gradient, precision), tf32)
    step = verify_mlx.StepOnBothDevices(case, model, training, ())
    verification = verify.Verification(case, step)
    verification._product()
    with step:
        for number in seeds:
            verification._gradients(size, number, {})
        verification._updates(2)
    return verification


# Wrong gradients of one weight, by shares of their norm.


def norm(array):
    return float(np.linalg.norm(array))


def unit(gradient, random):
    other = np.random.default_rng(2).standard_normal(gradient.shape) if random else 1.0
    other = np.broadcast_to(other, gradient.shape)
    return other / norm(other)


def without(gradient, share, order):
    """Without so many elements, in an order, that the norm of the difference is this share."""
    flat = gradient.flatten()
    energy = np.cumsum(np.square(flat[order]))
    flat[order[: int((energy <= share**2 * energy[-1]).sum()) + 1]] = 0
    return flat.reshape(gradient.shape)


def at_odd_places(gradient, share):
    flat = gradient.flatten()
    odd = norm(flat[1::2])
    if odd > 0:
        flat[1::2] *= 1 + share * norm(flat) / odd
    return flat.reshape(gradient.shape)


def rounded(gradient, share):
    """To multiples of so much that the norm of the difference is this share."""
    used = gradient[gradient != 0]  # of an embedding few rows are
    if not used.size:
        return gradient
    step = math.sqrt(np.square(used).mean()) * share * 12**0.5
    error = np.round(gradient / step) * step - gradient
    return gradient + error * share * norm(gradient) / norm(error)


SHAPES = {
    "too large": lambda gradient, share: gradient * (1 + share),
    "too small": lambda gradient, share: gradient * (1 - share),
    "noise": lambda gradient, share: gradient + share * norm(gradient) * unit(gradient, True),
    "a constant": lambda gradient, share: gradient + share * norm(gradient) * unit(gradient, False),
    "first rows": lambda gradient, share: without(gradient, share, np.arange(gradient.size)),
    "last rows": lambda gradient, share: without(gradient, share, np.arange(gradient.size)[::-1]),
    "odd places": at_odd_places,
    "the largest": lambda gradient, share: without(
        gradient, share, np.argsort(-np.abs(gradient.flatten()))
    ),
    "moved": lambda gradient, share: (1 - share) * gradient + share * np.roll(gradient, 1, 0),
    "rounded": rounded,
}


def planted(weight, shape, share):
    """Return a device's gradients, of which that of one weight is off by a share of its norm."""

    def gradient(name, right):
        if name != weight:
            return right
        exact = np.array(right.astype(mx.float32)).astype(np.float64)
        return mx.array(SHAPES[shape](exact, share).astype(np.float32)).astype(right.dtype)

    return gradient


@functools.cache
def trained_weights(name, precision="fp32"):
    """Return names and numbers of elements of the weights that a twin trains."""
    _, model, _ = prepared(name, precision)
    return {path: array.size for path, array in tree_flatten(model.trainable_parameters())}
