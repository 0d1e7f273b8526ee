"""Single operators of a training in PyTorch on a processor, which the notebook `peaks` times.

`pomology predict` takes their rates. `apply(case)` returns a call, how much it moves or computes,
and the rate's metric and unit. Bytes are those of each operator by itself, the operations of the
depthwise convolution two a multiply-add. Forward and backward where an operator has both.
"""

import math

import torch
import torch.nn.functional as F

SHAPES = {
    "addition": ["300x100", "1000x100", "2000x1000", "7000x1000", "10000x1000", "20000x1000"],
    "bernoulli": ["1000x1000"],
    "batch_norm": ["16x64x48x48"],
    "max_pool": ["4x32x96x96"],
    "index_put": ["20000x128"],
    "depthwise": ["8x32x48x48"],
}
ROWS = 1000  # to which `index_put` adds
BYTES = ("bytes_per_s", "B/s")


def rows():
    """Return the settings of all cases."""
    return [
        {"operation": name, "shape": shape, "precision": "fp32"}
        for name, shapes in SHAPES.items()
        for shape in shapes
    ]


def apply(case):
    shape = tuple(map(int, case["shape"].split("x")))
    function, amount, rate, mean, trained = OPERATORS[case["operation"]](shape)
    result = function()
    case.ran_on(result)
    case.check(result.mean().item(), mean, 0.05 + 0.02 * mean, "the mean")
    if not trained:
        return function, amount, rate
    gradient = torch.rand_like(result)
    for tensor in trained:
        tensor.requires_grad_()
    return lambda: torch.autograd.grad(function(), trained, gradient), amount, rate


def addition(shape):
    data, other = torch.rand(shape), torch.rand(shape)
    return lambda: data + other, 12 * data.numel(), BYTES, 1.0, []


def bernoulli(shape):
    data = torch.rand(shape)  # as dropout draws it
    return lambda: data.bernoulli_(0.9), 4 * data.numel(), BYTES, 0.9, []


def index_put(shape):
    data = torch.rand(shape)
    places = torch.randint(ROWS, shape[:1])
    amount = 4 * data.numel() + 8 * len(places) + 8 * ROWS * shape[1]

    def add_rows():
        return torch.zeros(ROWS, shape[1]).index_put_((places,), data, True)

    return add_rows, amount, BYTES, 0.5 * len(places) / ROWS, []


def batch_norm(shape):
    data = torch.rand(shape)

    def normalize():
        return F.batch_norm(data, running_mean=None, running_var=None, training=True)

    return normalize, 20 * data.numel(), BYTES, 0.0, [data]


def max_pool(shape):
    data = torch.rand(shape)
    amount = 18 * math.prod(shape)  # with the places of the maxima, 8 bytes each
    return lambda: F.max_pool2d(data, 2), amount, BYTES, 0.8, [data]


def depthwise(shape):
    data = torch.rand(shape)
    kernels = [torch.ones(shape[1], 1, size, size) / size**2 for size in (3, 7)]

    def convolve():
        result = data
        for kernel in kernels:
            padding = kernel.shape[-1] // 2
            result = F.conv2d(result, kernel, padding=padding, groups=len(kernel))
        return result

    amount = 3 * 2 * (3**2 + 7**2) * data.numel()
    # The mean is below 0.5, since a convolution loses some at the border.
    return convolve, amount, ("flops_per_s", "FLOP/s"), 0.45, [data, *kernels]


OPERATORS = {
    "addition": addition,
    "bernoulli": bernoulli,
    "batch_norm": batch_norm,
    "max_pool": max_pool,
    "index_put": index_put,
    "depthwise": depthwise,
}
