"""The trainings of four large models: Whisper, and GPT-2 that classifies texts (Feng et al. 2025).

Their memory is counted on tensors without data, at the batch sizes of the article's table 3.
"""

import functools

import torch
from torch.nn import functional as F

from pomology.models import pretrained, whisper
from pomology.models.workload import Workload

BATCH_SIZES = {"whisper-medium": 4, "whisper-large": 32, "gpt2-large": 16, "gpt2-xl": 16}  # table 3
TEXT_TOKENS = 128  # of GPT-2's texts; the article gives none
PARAMETERS = {"gpt2-large": 774_030_080, "gpt2-xl": 1_557_611_200} | whisper.PARAMETERS
COUNTED_AS = {"unfused": "mps", "fused": "cuda"}  # attention -> a backend that computes it so


def build(name, checkpointing=False, task="classification"):
    """Return a model. `task` applies to GPT-2 only."""
    if name.startswith("whisper"):
        return whisper.build(name, checkpointing)
    model = pretrained.build(name, task)
    if checkpointing:  # only the reentrant variant lets saved tensors be counted
        model.activation_checkpointing_enable({"use_reentrant": True})
    return model


def _texts(batch_size):
    # transformers would derive this mask from the values of a given one; tensors here have none.
    mask = torch.ones(batch_size, 1, TEXT_TOKENS, TEXT_TOKENS, dtype=torch.bool).tril()
    tokens = torch.zeros(batch_size, TEXT_TOKENS, dtype=torch.long)
    return tokens, mask, torch.zeros(batch_size, dtype=torch.long)


def _text_step(model, optimizer, tokens, mask, labels):
    hidden = model.transformer(input_ids=tokens, attention_mask=mask).last_hidden_state
    loss = F.cross_entropy(model.score(hidden)[:, -1], labels)
    loss.backward()
    optimizer.step()
    return loss


@functools.cache
def workload(name, checkpointing=False):
    """Return the training of a model, with AdamW in fp32."""
    if name.startswith("whisper"):
        return whisper.workload(name, recompute=checkpointing)
    sizes = pretrained.sizes(name)
    width, layers = sizes["n_embd"], sizes["n_layer"]
    macs = layers * (12 * width**2 + 2 * TEXT_TOKENS * width) + 2 * width  # of a token
    return Workload(
        build=functools.partial(build, name, checkpointing),
        batch=_texts,
        optimizer=lambda model: torch.optim.AdamW(model.parameters()),  # counted only, so not fused
        step=_text_step,
        parameters=PARAMETERS[name] + 2 * width if name in PARAMETERS else None,
        flops_per_sample=None if checkpointing else 6 * TEXT_TOKENS * macs,
        optimizer_class="AdamW",
        slots=2,
        layers=layers,
        with_layers=lambda few: workload(f"{name}/{few}", checkpointing),
    )


def work(name, attention, checkpointing=False):
    """Count a step at the batch size of table 3, with AdamW. attention: a key of `COUNTED_AS`."""
    return workload(name, checkpointing).cost(BATCH_SIZES[name], COUNTED_AS[attention])


@functools.cache
def parameters(name):
    """Return the number of all parameters and of trained parameters."""
    with torch.device("meta"):
        weights = list(build(name, task="language-model").parameters())
    trained = sum(weight.numel() for weight in weights if weight.requires_grad)
    return sum(weight.numel() for weight in weights), trained
