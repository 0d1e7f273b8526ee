"""Compare a feature, such as autocast or `torch.compile`, with plain fp32: results and speed.

Both make the same step from the same weights on the same inputs. Loss and gradients of the first
step may differ by what rounding explains; then the steps are timed alternately.
"""

import math
import time

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from pomology.errors import Mismatch
from pomology.measure import calls, clock, intervals
from pomology.models import verify

COMPILED = 0.01  # tolerance of gradients in fp32, relative
# In bf16 the tolerance is LEAST + ROUNDED x the change from rounding weights and inputs.
ROUNDED, LEAST = 2.5, 0.02
LAYERS = ("linear", "conv1d", "conv2d", "conv_transpose2d")


def as_float(outputs):
    """Return a tensor, or the tensors of a tuple, in fp32; other values unchanged."""
    if isinstance(outputs, tuple):
        return tuple(map(as_float, outputs))
    is_float = isinstance(outputs, torch.Tensor) and outputs.is_floating_point()
    return outputs.float() if is_float else outputs


class FirstStep(TorchFunctionMode):
    """Draw noise in fp32 in every precision; `used` is the output type of the first layer."""

    used = None

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.randn_like:
            return torch.randn(args[0].shape, device=args[0].device).to(args[0].dtype)
        result = function(*args, **(kwargs or {}))
        if self.used is None and getattr(function, "__name__", "") in LAYERS:
            self.used = result.dtype
        return result


def first_step(trainer, inputs, seed):
    """Make a step without dropout, for comparison; its gradients remain until the next step.

    `trainer.used` becomes the type in which the step computes. A compiled model computes in the
    type of its weights.
    """
    random_layers = (nn.Dropout, nn.MultiheadAttention)
    layers = [layer for layer in trainer.model.modules() if isinstance(layer, random_layers)]
    for layer in layers:
        layer.eval()
    torch.manual_seed(seed)
    if trainer.feature == "torch.compile":
        trainer.step(*inputs)
    else:
        with FirstStep() as seen:
            trainer.step(*inputs)
        trainer.used = seen.used
    for layer in layers:
        layer.train()


def gradients(trainer):
    """Return the gradients by name, without those of key biases.

    A key bias has a gradient of 0 except for rounding, since softmax ignores a common summand.
    """
    return {
        name: weight.grad.float()
        for name, weight in trainer.model.named_parameters()
        if weight.grad is not None and not name.endswith("key_proj.bias")
    }


def difference(compared, exact):
    """Return the largest relative difference of a parameter's gradient, and the parameter's name.

    The norm of the difference is divided by the norm of the exact gradient plus 1 % of the norm of
    all gradients.
    """
    hundredth = 0.01 * float(torch.stack([gradient.norm() for gradient in exact.values()]).norm())
    shares = {
        name: float((compared[name] - gradient).norm()) / (float(gradient.norm()) + hundredth)
        for name, gradient in exact.items()
    }
    return max((math.inf if math.isnan(share) else share, name) for name, share in shares.items())


def rounded(tensors, dtype):
    """Round floating-point tensors to a type; return them in fp32."""
    return [
        tensor.to(dtype).float() if tensor.is_floating_point() else tensor for tensor in tensors
    ]


def copied(work, model):
    """Return a model with the same weights, which is not watched by the case."""
    other = work.build().to(next(model.parameters()).device)
    other.load_state_dict(model.state_dict())
    return other


def compare(case, trainer, reference, dtype, inputs, seed):
    """Compare loss and gradients of the first step with plain fp32's. Raises Mismatch.

    reference: a trainer in plain fp32, with the weights that `trainer` began with. dtype: the type
    in which the feature computes.
    """
    exact = dtype == torch.float32
    weights = [weight.detach().clone() for weight in reference.model.parameters()]
    first_step(reference, inputs, seed)
    losses = [float(run.losses[0]) for run in (trainer, reference)]
    verify.check(
        case, *losses, tolerance=1e-3 if exact else 0.05, what="the first loss", relative=True
    )
    if dtype == torch.float16:
        return  # small gradients vanish or overflow until a scaler has found its factor
    plain_gradients, allowed = gradients(reference), COMPILED
    if not exact:
        with torch.no_grad():
            for weight, first in zip(reference.model.parameters(), weights, strict=True):
                weight.copy_(*rounded([first], dtype))
        first_step(reference, rounded(inputs, dtype), seed)
        allowed = LEAST + ROUNDED * difference(gradients(reference), plain_gradients)[0]
    worst, name = difference(gradients(trainer), plain_gradients)
    percent = f"{100 * worst:.2g} %", f"{100 * allowed:.2g} %"
    if not worst <= allowed:
        text = "the gradient of {} differs by {} from plain fp32's, where {} is allowed"
        raise Mismatch(text.format(name, *percent))
    case.note("gradients within {} of plain fp32's, {} allowed".format(*percent))


def timed(step, count, synchronize):
    """Time a number of steps on an idle device until it is idle again."""
    start_s = time.perf_counter()
    for _ in range(count):
        step()
    synchronize()
    return clock.Block(count, time.perf_counter() - start_s)


def in_pairs(case, steps, budget_s):
    """Time two steps alternately; return the first one's times and the second one's blocks.

    At least 6 pairs are timed, which an interval needs, and more until the budget is spent, within
    the case's limit.
    """
    synchronize = case.backend.synchronize
    first = [timed(step, 1, synchronize) for step in steps]
    warm = [timed(step, 1, synchronize) for step in steps]
    block_s = min(clock.BLOCK_S, budget_s / 50)
    counts = [clock.block_steps(block.step_s, block_s, synchronize) for block in warm]
    left_s = case.experiment.limit_s - sum(block.seconds for block in first + warm)
    blocks = ([], [])
    stopped = ""
    while not stopped:
        # The order alternates (A B, B A), so that a drift affects both alike.
        for side in (0, 1) if len(blocks[0]) % 2 == 0 else (1, 0):
            blocks[side].append(timed(steps[side], counts[side], synchronize))
        pairs = len(blocks[0])
        spent_s = sum(block.seconds for side in blocks for block in side)
        if pairs >= 2 and spent_s >= left_s:
            stopped = "limit"
        elif pairs >= intervals.VALUES_LEAST and spent_s >= budget_s:
            stopped = "budget"
    median = intervals.median_interval([block.step_s for block in blocks[0]])
    times = calls.Measurement(first[0].seconds, median, tuple(blocks[0]), stopped, (warm[0],))
    return times, blocks[1]
