"""The training step of ResNet-18 of `model_sizes.ipynb` in MLX: the same model, loss and update.

MLX is lazy: it records operations, and computes a result when the program asks for it. So each step
evaluates its loss, its weights and the optimizer's state, and waits for them.
"""

import functools
import math

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

from pomology import TooSlow, Workload
from pomology.format import seconds
from pomology.measure import calls
from pomology.models import resnet_mlx
from pomology.models.losses_mlx import cross_entropy
from pomology.models.workload_mlx import initialized

SMALL = (2, 64)  # images and pixels a side of the step from which the time of others is predicted
LEAST_CALLS = 4  # of a case: the first, one of warm-up and two that are timed
BUILD = {"resnet18": resnet_mlx.resnet18}


def step(model, optimizer, images, labels):
    loss, gradients = nn.value_and_grad(model, cross_entropy)(model, images, labels)
    optimizer.update(model, gradients)
    mx.eval(loss, model.parameters(), optimizer.state)
    return loss


def macs(image_size):
    """Return the multiply-accumulates of an image's first convolution, and of all layers."""
    pixels = [math.ceil(image_size / 2**halvings) ** 2 for halvings in range(6)]
    first = pixels[1] * 7 * 7 * 3 * 64
    stages = pixels[2] * 4 * 9 * 64**2
    for halvings, width in ((3, 128), (4, 256), (5, 512)):
        before = width // 2
        stages += pixels[halvings] * width * (3 * 9 * width + 9 * before + before)
    return first, first + stages + 512 * 1000


def workload(name, image_size, lr=0.01):
    """Return the training of a model of `BUILD` on images of so many pixels a side."""

    def batch(batch_size):
        images = mx.random.uniform(shape=(batch_size, image_size, image_size, 3))
        return images, mx.random.randint(0, 1000, (batch_size,))

    first, every = macs(image_size)
    return Workload(
        build=BUILD[name],
        batch=batch,
        optimizer=lambda model: initialized(optim.SGD(lr, momentum=0.9), model),
        step=step,
        parameters=11_689_512,
        flops_per_sample=6 * every - 2 * first,
        optimizer_class="SGD",
        slots=1,
        saved_bytes_per_sample=442.0 * image_size**2,
        moved_bytes_per_sample=3_511.0 * image_size**2,
    )


def prepare(case, work, limit_s):
    """Return a model on the case's device and its optimizer, if its steps end within `limit_s`."""
    require_time(case, work, limit_s)
    return case.prepare(work)


def tensors(images, labels):
    """Return the inputs of a step as they are: in MLX channels are the last axis."""
    return images, labels


def require_time(case, wanted, limit_s):
    """End the case as too-slow if its fewest steps would take longer, by the time of a small step.

    On Linux MLX's CPU build multiplies matrices with a reference BLAS on one thread, so the rate of
    its fastest matmul says little.
    """
    count, image_size = SMALL
    small = workload(case["model"], image_size)
    model = small.build()
    optimizer = small.optimizer(model)
    batch = small.batch(count)
    mx.eval(batch, model.parameters(), optimizer.state)
    once = {"warmup_calls": 0, "warmup_s": 0, "repeats": 1, "calls_per_block": 1}
    update = functools.partial(small.step, model, optimizer, *batch)
    timed = calls.measure(update, case.backend.synchronize, **once)
    small_s = min(timed.first_call_s, timed.seconds.value)
    flops = wanted.flops_per_sample * case["batch_size"]
    step_s = small_s * flops / (small.flops_per_sample * count)
    if LEAST_CALLS * step_s > limit_s:
        raise TooSlow(
            f"a step would take about {seconds(step_s)}, predicted from one of {count} images at "
            f"{image_size} pixels; a case needs {LEAST_CALLS} steps within {seconds(limit_s)}"
        )
