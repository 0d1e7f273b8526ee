"""The network of `memory.ipynb` in MLX: the same blocks, loss, parts of a batch and update."""

import functools
from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

from pomology import Workload
from pomology.models.workload_mlx import initialized

WIDTH, BLOCKS, CLASSES, PART = 32, 16, 10, 16_384


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def __call__(self, numbers):
        return numbers + nn.gelu(self.linear(self.norm(numbers)))


def build():
    return nn.Sequential(*(Block() for _ in range(BLOCKS)), nn.Linear(WIDTH, CLASSES))


def loss_function(model, numbers, labels):
    losses = []
    for start in range(0, len(labels), PART):
        logits = model(numbers[start : start + PART])
        targets = labels[start : start + PART]
        losses.append(nn.losses.cross_entropy(logits, targets, reduction="mean"))
    return sum(losses) / len(losses)


def step(model, optimizer, numbers, labels):
    """Make a step and evaluate its loss, the weights and the optimizer's state, as MLX is lazy."""
    loss, gradients = nn.value_and_grad(model, loss_function)(model, numbers, labels)
    optimizer.update(model, gradients)
    mx.eval(loss, model.parameters(), optimizer.state)
    return loss


def batch(count):
    return mx.random.normal((count, WIDTH)), mx.random.randint(0, CLASSES, (count,))


def tensors(numbers, labels):
    return mx.array(numbers), mx.array(labels.astype("int32"))


def adamw(model, lr):
    return initialized(optim.AdamW(lr), model)


@functools.cache
def step_bytes(backend, parts):
    """Return the peak of the memory that MLX itself counts for a step of so many parts."""
    model = build()
    optimizer = adamw(model, 1e-3)
    numbers, labels = batch(parts * PART)
    mx.eval(model.parameters(), numbers, labels)
    backend.reset_peak_memory()
    step(model, optimizer, numbers, labels)
    return backend.peak_memory()["allocated_peak_bytes"]


@functools.cache
def workload(backend, lr):
    """Return the training on a device, whose memory is predicted from steps of one and two parts.

    A step has three matmuls for each matrix: one forward, two backward.
    """

    def measured(declared, count, _backend):
        one = step_bytes(backend, 1)
        part = step_bytes(backend, 2) - one
        saved_bytes = one - part + part * count // PART - declared.state_bytes
        return replace(declared, saved_bytes=max(saved_bytes, 0))

    return Workload(
        build=build,
        batch=batch,
        optimizer=lambda model: adamw(model, lr),
        step=step,
        parameters=BLOCKS * (2 * WIDTH + WIDTH * WIDTH + WIDTH) + WIDTH * CLASSES + CLASSES,
        flops_per_sample=3 * 2 * (BLOCKS * WIDTH * WIDTH + WIDTH * CLASSES),
        optimizer_class="AdamW",
        slots=2,
        adjust=measured,
    )
