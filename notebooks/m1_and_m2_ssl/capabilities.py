"""Models of the notebook `capabilities`, and the comparison of a feature with plain fp32."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torchvision.models import resnet18

from pomology.data.text import WIKITEXT2
from pomology.errors import Mismatch
from pomology.measure import calls, clock, intervals
from pomology.models import cost, gpt2, pretrained, verify
from pomology.models.definitions import definitions
from pomology.models.vision import simclr_resnet18

COMPILED = 0.01  # tolerance of gradients in fp32, relative
# In bf16 the tolerance is LEAST + ROUNDED x the change from rounding weights and inputs.
ROUNDED, LEAST = 2.5, 0.02
LAYERS = ("linear", "conv1d", "conv2d", "conv_transpose2d")


class Work(NamedTuple):
    """Training workload on which a feature is tried.

    build: returns the model. inputs: takes a batch size, returns a tuple of random tensors. loss:
    takes a model and its inputs; a loss that needs no gradient already ran its backward pass.
    optimizer: takes parameters.
    """

    build: Callable
    inputs: Callable
    loss: Callable
    optimizer: Callable
    batch_size: int


def resnet(image_size, batch_size, lr):
    """Return ResNet-18 on random images of 1,000 classes."""

    def inputs(count):
        return torch.rand(count, 3, image_size, image_size), torch.randint(1000, (count,))

    def loss(model, images, labels):
        return F.cross_entropy(model(images), labels)

    sgd = partial(torch.optim.SGD, lr=lr, momentum=0.9)
    return Work(resnet18, inputs, loss, sgd, batch_size)


def article_works(lr):
    """Return the articles' models by name, as their notebooks define them, on random inputs.

    The optimizers are of the articles' kinds, but DCGAN has one instead of two. lr: of SGD.
    """
    sgd = partial(torch.optim.SGD, lr=lr, momentum=0.9)
    adam, adamw = torch.optim.Adam, torch.optim.AdamW  # not fused, like the articles'
    vae = definitions("vae", "VAE", "loss_function")
    siamese = definitions("siamese", "Siamese")
    dcgan = definitions("dcgan", "build", "three_passes")
    language = definitions("transformer_lm", "LanguageModel", "loss_function")
    gpt = definitions("gpt2_pretraining", "LanguageModel", "loss_function", framework="torch")
    small = gpt2.shape("gpt2", 1024, "true_gpt2")
    simclr = definitions("simclr", "nt_xent")
    words = WIKITEXT2.vocabulary
    return {
        "vae": Work(
            vae.VAE,
            lambda count: (torch.rand(count, 1, 28, 28),),
            lambda model, images: vae.loss_function(images, *model(images)),
            adam,
            128,
        ),
        "siamese": Work(
            siamese.Siamese,
            lambda count: (*torch.rand(2, count, 1, 28, 28), torch.randint(2, (count,)).float()),
            lambda model, left, right, same: F.binary_cross_entropy(model(left, right), same),
            torch.optim.Adadelta,
            64,
        ),
        "dcgan": Work(
            dcgan.build,
            lambda count: (torch.rand(count, 3, 64, 64), torch.randn(count, 100, 1, 1)),
            dcgan.three_passes,
            adam,
            64,
        ),
        "transformer_lm": Work(
            lambda: language.LanguageModel(words, 200, 2, 200),
            lambda count: (verify.words(words, 35, count),),
            lambda model, tokens: language.loss_function(model(tokens), tokens.flatten()),
            sgd,
            20,
        ),
        "gpt2": Work(
            lambda: gpt.LanguageModel(small),
            lambda count: (verify.words(small.vocabulary, count, small.context),),
            lambda model, tokens: gpt.loss_function(model, tokens, tokens),
            adamw,
            1,
        ),
        "whisper": Work(
            lambda: pretrained.build("whisper-tiny", "speech"),
            lambda count: (torch.randn(count, 80, 3000), verify.words(50_000, count, 32)),
            lambda model, features, labels: model(input_features=features, labels=labels).loss,
            adamw,
            4,
        ),
        "simclr": Work(
            simclr_resnet18,
            lambda count: tuple(torch.rand(2, count, 3, 32, 32)),
            lambda model, first, second: simclr.nt_xent(model(first), model(second)),
            sgd,
            128,
        ),
    }


def backward(work, model, batch_size):
    """Run forward and backward with new inputs; return the loss."""
    loss = work.loss(model, *work.inputs(batch_size))
    if loss.requires_grad:
        loss.backward()
    return loss


@cache
def count(work, batch_size, backend):
    """Count a step, with memory for three models: the two that are timed, and one to verify."""
    step = partial(backward, work, batch_size=batch_size)
    counted = cost.workload(work.build, step, 2, backend)
    return replace(counted, state_bytes=3 * counted.state_bytes)


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


def difference(found, exact):
    """Return the largest relative difference of a parameter's gradient, and the parameter's name.

    The norm of the difference is divided by the norm of the exact gradient plus 1 % of the norm of
    all gradients.
    """
    hundredth = 0.01 * float(torch.stack([each.norm() for each in exact.values()]).norm())
    shares = {
        name: float((found[name] - gradient).norm()) / (float(gradient.norm()) + hundredth)
        for name, gradient in exact.items()
    }
    return max((math.inf if math.isnan(share) else share, name) for name, share in shares.items())


def rounded(tensors, dtype):
    """Round floating-point tensors to a type; return them in fp32."""
    return [each.to(dtype).float() if each.is_floating_point() else each for each in tensors]


def compare(case, trainer, plain, another, dtype, inputs, seed):
    """Compare loss and gradients of the first step with plain fp32's. Raises Mismatch.

    another: a further trainer in plain fp32, whose weights are rounded. dtype: the type in which
    the feature computes.
    """
    exact = dtype == torch.float32
    losses = [float(each.losses[0]) for each in (trainer, plain)]
    verify.check(
        case, *losses, tolerance=1e-3 if exact else 0.05, what="the first loss", relative=True
    )
    if dtype == torch.float16:
        return  # small gradients vanish or overflow until a scaler has found its factor
    plain_gradients, allowed = gradients(plain), COMPILED
    if not exact:
        with torch.no_grad():
            for weight in another.model.parameters():
                weight.copy_(*rounded([weight], dtype))
        first_step(another, rounded(inputs, dtype), seed)
        allowed = LEAST + ROUNDED * difference(gradients(another), plain_gradients)[0]
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
    counts = [clock.block_steps(each.step_s, block_s, synchronize) for each in warm]
    left_s = case.experiment.limit_s - sum(each.seconds for each in first + warm)
    blocks = ([], [])
    stopped = ""
    while not stopped:
        # The order alternates (A B, B A), so that a drift affects both alike.
        for side in (0, 1) if len(blocks[0]) % 2 == 0 else (1, 0):
            blocks[side].append(timed(steps[side], counts[side], synchronize))
        pairs = len(blocks[0])
        spent_s = sum(each.seconds for side in blocks for each in side)
        if pairs >= 2 and spent_s >= left_s:
            stopped = "limit"
        elif pairs >= intervals.VALUES_LEAST and spent_s >= budget_s:
            stopped = "budget"
    median = intervals.median_interval([each.step_s for each in blocks[0]])
    times = calls.Measurement(first[0].seconds, median, tuple(blocks[0]), stopped, (warm[0],))
    return times, blocks[1]
