"""Model, batches, training step and cost of Whisper, for the three notebooks that train it."""

import functools
from dataclasses import replace

import torch
from torch.utils.data import DataLoader, RandomSampler

from pomology.errors import Unsupported
from pomology.models import pretrained, verify

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# Counts include the encoder's positions, which are not trained.
PARAMETERS = {
    "whisper-tiny": 37_760_640,
    "whisper-small": 241_734_912,
    "whisper-medium": 763_857_920,
    "whisper-large": 1_543_304_960,
}


def build(name, checkpointing):
    """Return the model with random weights.

    checkpointing: whether to use gradient checkpointing, by which each layer recomputes its
    activations in the backward pass.
    """
    model = pretrained.build(name, "speech")
    if checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": True})
        # Only the layers need it. The decoder's own flag would switch its cache off, and without
        # the cache the decoder inspects its inputs.
        model.model.decoder.gradient_checkpointing = False
    return model


def one_step(model, batch_size):
    """Run forward and backward pass on random clips with labels of 32 tokens; return the loss."""
    features, labels = torch.randn(batch_size, 80, 3000), verify.words(50_000, batch_size, 32)
    loss = model(input_features=features, labels=labels).loss
    loss.backward()
    return loss


@functools.cache
def cost(name, batch_size, checkpointing, backend):
    """Count a step with AdamW without running it. Recomputed operations count once."""
    plain = _counted(name, batch_size, False, backend)
    kept = _counted(name, batch_size, checkpointing, backend)
    return replace(plain, saved_bytes=kept.saved_bytes)


@functools.cache
def _counted(name, batch_size, checkpointing, backend):
    step = functools.partial(one_step, batch_size=batch_size)
    return pretrained.workload(name, lambda name: build(name, checkpointing), step, 2, backend)


def batches(clips, batch_size, count, seed):
    """Return a loader of `count` batches; equal seeds give the same batches in the same order."""
    order = torch.Generator().manual_seed(seed)
    sampler = RandomSampler(clips, num_samples=count * batch_size, generator=order)
    return DataLoader(clips, batch_size, sampler=sampler)


class Training:
    """Optimizer and training step of a case, with the settings of Hugging Face's Trainer.

    AdamW has no weight decay. It is PyTorch's default, which is not fused; offloaded weights use
    the fused one on the host. fp16 and bf16 are autocast, and fp16 has a gradient scaler. Raises
    Unsupported if the scaler disables itself.
    """

    def __init__(self, case, model, lr, offloaded=False):
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        self.case, self.model = case, model
        fused = offloaded or None
        self.optimizer = torch.optim.AdamW(trained, lr, weight_decay=0.0, fused=fused)
        scaled = case.precision == "fp16"
        self.scaler = torch.amp.GradScaler(case.device.type, enabled=scaled)
        if self.scaler.is_enabled() != scaled:
            raise Unsupported("the gradient scaler that fp16 needs switched itself off")

    def autocast(self):
        """Return the autocast context of the forward pass; disabled in fp32."""
        dtype = DTYPES[self.case.precision]
        return torch.autocast(self.case.device.type, dtype, dtype != torch.float32)

    def step(self, batch):
        """Make one step, and time forward pass, backward pass and update separately.

        batch: tensors by the names of the model's inputs. Gradients are clipped to a norm of 1.
        """
        case, dtype = self.case, DTYPES[self.case.precision]
        batch = {name: tensor.to(case.device) for name, tensor in batch.items()}
        with case.phase("forward"), self.autocast():
            output = self.model(**batch)
        case.ran_on(output.loss)
        if output.logits.dtype != dtype:
            raise Unsupported(f"asked for {dtype}; autocast computes in {output.logits.dtype} here")
        with case.phase("backward"):
            self.scaler.scale(output.loss).backward()
        with case.phase("update"):
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
        case.loss(output.loss.item())
