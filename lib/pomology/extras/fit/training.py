"""The training step of a plan in PyTorch: transformers' model, with LoRA as peft makes it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from typing import Any
from unittest import mock

import torch

from pomology.extras.fit import networks, truncated
from pomology.extras.fit.plan import Plan
from pomology.extras.fit.truncated import Blocks
from pomology.models import autocast, verify
from pomology.models.workload import Workload

LR = 1e-5
SLOTS = {"adamw": 2, "sgd": 1}  # an optimizer's tensors per trained weight


def workload(config: Mapping[str, Any], plan: Plan, blocks: Blocks, kind: str) -> Workload:
    """Return the training of a model with so many blocks.

    config: of the whole model, for transformers. kind: of PyTorch's device, such as `mps`. A sample
    of the step is a sequence; a step has `batch` × `accumulation` of them.
    """
    short = truncated.configuration(config, blocks)

    def context() -> contextlib.AbstractContextManager:
        return autocast.forward_context(plan.precision if plan.amp else "fp32", kind)

    def build() -> Any:
        network = networks.untrained(short, plan)
        if plan.checkpointing:
            networks.recompute(network, context)
        if plan.method == "full":
            return network
        networks.freeze(network)
        some = range(blocks.frozen, blocks.total) if blocks.frozen else None
        network = networks.with_lora(network, plan, some)
        # A training begins with B = 0, and the gradient of A is 0 then: nothing to verify.
        for name, weight in network.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.02)
        return network

    def step(network: Any, optimizer: Any, *inputs: Any) -> Any:
        optimizer.zero_grad()
        for part in zip(*(each.chunk(plan.accumulation) for each in inputs), strict=True):
            with context():
                loss = loss_of(network, *part) / plan.accumulation
            loss.backward()
        optimizer.step()
        return loss

    return Workload(
        build=build,
        batch=functools.partial(batch, short, plan.sequence),
        optimizer=functools.partial(optimizer, plan.optimizer, kind),
        step=step,
        trained=trained(short, plan, blocks),
        optimizer_class="SGD" if plan.optimizer == "sgd" else "AdamW",
        slots=SLOTS[plan.optimizer],
        autocast=plan.amp,
    )


def optimizer(name: str, kind: str, network: Any) -> Any:
    """Return AdamW, or SGD with momentum, of a model's trained weights.

    On CUDA as PyTorch has it by default, which updates many tensors at once; elsewhere, where that
    would be a loop over the tensors, fused. kind: of the device.
    """
    weights = [weight for weight in network.parameters() if weight.requires_grad]
    fused = kind != "cuda"
    if name == "sgd":
        return torch.optim.SGD(weights, LR, momentum=0.9, fused=fused)
    return torch.optim.AdamW(weights, LR, fused=fused)


def batch(config: Mapping[str, Any], sequence: int, count: int) -> tuple[Any, ...]:
    """Return the random inputs of so many samples: words, or pictures and their classes."""
    if "image_size" in config:
        size = config["image_size"]
        pictures = torch.randn(count, config.get("num_channels", 3), size, size)
        return pictures, torch.zeros(count, dtype=torch.long)
    return (verify.words(config["vocab_size"], count, sequence),)


def loss_of(network: Any, inputs: Any, classes: Any = None) -> Any:
    """Return the loss of a model's own class: of the next words, or of classes.

    inputs: words (batch, sequence), or pictures (batch, channels, height, width).
    """
    own = network.get_base_model() if hasattr(network, "get_base_model") else network
    if classes is not None:
        return network(pixel_values=inputs.to(own.dtype), labels=classes).loss
    labels = inputs[:, 0] % own.num_labels if "Classification" in type(own).__name__ else inputs
    with not_packed(inputs):
        return network(input_ids=inputs, labels=labels, **uncached(own)).loss


def uncached(network: Any) -> dict[str, bool]:
    """Return the argument by which a decoder keeps no keys and values, as trainers have it."""
    return {"use_cache": False} if hasattr(network.config, "use_cache") else {}


def not_packed(inputs: Any) -> contextlib.AbstractContextManager:
    """Return a context in which a step on `meta` does not ask whether sequences are packed.

    transformers reads that from the positions, which have no values there.
    """
    if not inputs.is_meta:
        return contextlib.nullcontext()
    from transformers import masking_utils

    return mock.patch.object(masking_utils, "find_packed_sequence_indices", lambda _: None)


def trained(config: Mapping[str, Any], plan: Plan, blocks: Blocks) -> int | None:
    """Return the number of trained parameters by arithmetic; None for all.

    LoRA has `rank` rows and columns next to each of its matrices.
    """
    if plan.method == "full":
        return None
    with torch.device("meta"):
        network = networks.untrained(dict(config), plan)
    last = set(networks.targets(network, plan))
    elements = 0
    for name, module in network.named_modules():
        numbers = [int(part) for part in name.split(".") if part.isdigit()]
        if name.rpartition(".")[2] in last and numbers and numbers[0] >= blocks.frozen:
            elements += plan.rank * sum(module.weight.shape)
    return elements
