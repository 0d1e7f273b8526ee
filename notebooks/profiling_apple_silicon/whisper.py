"""Whisper for the two notebooks that train it: the model, the cost of its step, and its batches."""

import functools
from dataclasses import replace

import torch
from torch.utils.data import DataLoader, RandomSampler

from pomology.models import pretrained

# Of transformers' models, with the encoder's positions, which are never trained.
PARAMETERS = {
    "whisper-tiny": 37_760_640,
    "whisper-small": 241_734_912,
    "whisper-medium": 763_857_920,
    "whisper-large": 1_543_304_960,
}


def build(name, checkpointing):
    """Return the model with random weights.

    checkpointing: whether each layer forgets what it computed in the forward pass, and computes it
    once more in the backward pass.
    """
    model = pretrained.build(name, "speech")
    if checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": True})
        # The layers keep theirs. With its own, the decoder around them would do without its cache,
        # and look into its inputs then.
        model.model.decoder.gradient_checkpointing = False
    return model


def one_step(model, batch_size):
    """Forward and backward pass with random clips and labels of 32 tokens; returns the loss."""
    features, labels = torch.randn(batch_size, 80, 3000), torch.randint(50_000, (batch_size, 32))
    loss = model(input_features=features, labels=labels).loss
    loss.backward()
    return loss


@functools.cache
def cost(name, batch_size, checkpointing, backend):
    """Count a step with AdamW without running it; what checkpointing computes twice counts once."""
    plain = _counted(name, batch_size, False, backend)
    kept = _counted(name, batch_size, checkpointing, backend)
    return replace(plain, saved_bytes=kept.saved_bytes)


@functools.cache
def _counted(name, batch_size, checkpointing, backend):
    step = functools.partial(one_step, batch_size=batch_size)
    return pretrained.workload(name, lambda name: build(name, checkpointing), step, 2, backend)


def batches(clips, batch_size, count, seed):
    """Return a loader of so many batches, always the same ones in the same order."""
    order = torch.Generator().manual_seed(seed)
    sampler = RandomSampler(clips, num_samples=count * batch_size, generator=order)
    return DataLoader(clips, batch_size, sampler=sampler)
