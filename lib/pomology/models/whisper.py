"""Whisper's model, training step and cost, for the three notebooks that train it.

A step follows Hugging Face's Trainer: AdamW without weight decay, and gradients clipped to a norm
of 1. It is timed, counted and verified; see `pomology.models.workload`.
"""

import contextlib
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler

from pomology.data.speech import TOKENS
from pomology.errors import Unsupported
from pomology.models import offload, pretrained, verify
from pomology.models.autocast import DTYPES, forward_context
from pomology.models.cost import Cost
from pomology.models.whisper_sizes import BANDS, FRAMES, POSITIONS, flops
from pomology.models.workload import Workload

# Numbers of all parameters, from the model hub; that of `smoke` is a sum by hand. The encoder's
# positions, which are not trained, are among them.
PARAMETERS = {
    "whisper-smoke": 3_705_152,
    "whisper-tiny": 37_760_640,
    "whisper-small": 241_734_912,
    "whisper-medium": 763_857_920,
    "whisper-large": 1_543_304_960,
}


def build(name: str, recompute: bool = False) -> Any:
    """Return the model with random weights.

    recompute: gradient checkpointing, by which the backward pass computes the activations of each
    layer again, in place of keeping them.
    """
    model = pretrained.build(name, "speech")
    if recompute:  # only the reentrant variant lets saved tensors be counted
        model.activation_checkpointing_enable({"use_reentrant": True})
        # Only the layers need it. The decoder's own flag would switch its cache off, and without
        # the cache the decoder inspects its inputs.
        model.model.decoder.gradient_checkpointing = False
    return model


def batch(batch_size: int) -> tuple[dict[str, torch.Tensor]]:
    """Return random clips of 30 s with labels of 32 tokens."""
    labels = verify.words(50_000, batch_size, TOKENS)
    return ({"input_features": torch.randn(batch_size, BANDS, FRAMES), "labels": labels},)


def optimizers(
    model: Any, lr: float, precision: str = "fp32", kind: str = "cpu", offloaded: bool = False
) -> tuple[Any, Any]:
    """Return AdamW and its gradient scaler, which does nothing but in fp16.

    AdamW is PyTorch's default, which is not fused; that of offloaded weights is, on the host. kind:
    of the device, such as `mps`. Raises Unsupported if the scaler switches itself off.
    """
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    adamw = torch.optim.AdamW(trained, lr, weight_decay=0.0, fused=offloaded or None)
    scaled = precision == "fp16"
    scaler = torch.amp.GradScaler(kind, enabled=scaled)
    if scaler.is_enabled() != scaled:
        raise Unsupported("the gradient scaler that fp16 needs switched itself off")
    return adamw, scaler


def step(
    model: Any,
    optimizers: tuple[Any, Any],
    batch: dict[str, torch.Tensor],
    *,
    context: Any,
    phase: Any = contextlib.nullcontext,
) -> torch.Tensor:
    """Make a training step, and return its loss.

    batch: tensors by the names of the model's inputs. context: of the forward pass, for autocast.
    phase: times the parts of a step, `forward`, `backward` and `update`.
    """
    optimizer, scaler = optimizers
    with phase("forward"), context:
        loss = model(**batch).loss
    with phase("backward"):
        scaler.scale(loss).backward()
    with phase("update"):
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return loss


def workload(
    name: str,
    *,
    precision: str = "fp32",
    kind: str = "cpu",
    recompute: bool = False,
    offloaded: bool = False,
    lr: float = 1e-5,
    step: Callable[..., torch.Tensor] = step,
) -> Workload:
    """Return the training of a model of `pretrained.SIZES`. Arguments: see above.

    step: a notebook's own.
    """
    if precision not in DTYPES:
        kind = "cpu"  # without autocast the step is the same everywhere, and is counted once
    return _workload(name, precision, kind, recompute, offloaded, lr, step)


@functools.cache
def _workload(
    name: str,
    precision: str,
    kind: str,
    recompute: bool,
    offloaded: bool,
    lr: float,
    step: Callable[..., torch.Tensor],
) -> Workload:
    sizes = pretrained.sizes(name)
    width, layers = sizes["d_model"], sizes["encoder_layers"]
    parameters = PARAMETERS.get(name)
    half = precision in DTYPES

    def adjust(counted: Cost, batch_size: int, backend: str) -> Cost:
        if recompute:  # recomputed operations count once
            plain = _workload(name, "fp32", "cpu", False, False, lr, step).cost(batch_size, backend)
            counted = replace(plain, saved_bytes=counted.saved_bytes)
        if half:
            # `meta` has no autocast, so the step in fp32 was counted. Autocast keeps at least half
            # of its bytes, and a 16-bit copy of the weights.
            saved_bytes = counted.saved_bytes // 2 + 2 * counted.parameters
            counted = replace(counted, saved_bytes=saved_bytes)
        if offloaded:
            counted = offload.placed(counted, functools.partial(build, name))
        return counted

    return Workload(
        build=functools.partial(build, name, recompute),
        batch=batch,
        optimizer=lambda model: optimizers(model, lr, precision, kind, offloaded),
        step=functools.partial(step, context=forward_context(precision, kind)),
        parameters=parameters,
        trained=parameters and parameters - POSITIONS * width,
        flops_per_sample=flops(width, layers),
        optimizer_class="AdamW",
        slots=2,
        autocast=half,
        layers=layers,
        # Offload changes where tensors are, which `adjust` does for all layers.
        with_layers=lambda few: _workload(
            f"{name}/{few}", precision, kind, recompute, False, lr, step
        ),
        adjust=adjust,
    )


def batches(clips: Any, batch_size: int, count: int, seed: int) -> DataLoader:
    """Return a loader of `count` batches; equal seeds give the same batches in the same order."""
    order = torch.Generator().manual_seed(seed)
    sampler = RandomSampler(clips, num_samples=count * batch_size, generator=order)
    return DataLoader(clips, batch_size, sampler=sampler)
