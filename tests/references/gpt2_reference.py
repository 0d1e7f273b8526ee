"""What a model of GPT-2's shape must give, computed in float64 by PyTorch on the CPU."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
from references import gpt2_trial
from references.gpt2_trial import LR, STEPS, WEIGHT_DECAY
from torch import nn
from torch.nn import functional as F

from pomology.models.gpt2 import Shape


def reference_model(shape: Shape) -> Any:
    """Return the model from parts that PyTorch ships, or transformers' GPT-2, without dropout."""
    if not shape.true:
        return _Encoder(shape)
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": shape.blocks, "n_embd": shape.width, "n_head": shape.heads}
    sizes |= {"vocab_size": shape.vocabulary, "n_positions": shape.positions}
    return GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, use_cache=False, **sizes))


class _Encoder(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        width, heads = shape.width, shape.heads
        self.embedding = nn.Embedding(shape.vocabulary, width)
        order = {"batch_first": True, "norm_first": True}
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "relu", **order)
        layer.self_attn = nn.MultiheadAttention(width, heads, bias=False, batch_first=True)
        norm = nn.LayerNorm(width)
        self.encoder = nn.TransformerEncoder(layer, shape.blocks, norm, enable_nested_tensor=False)
        self.head = nn.Linear(width, shape.vocabulary)
        self.sinusoids = torch.from_numpy(_sinusoids(shape))

    def forward(self, tokens):
        x = self.embedding(tokens)
        x = x + self.sinusoids[: tokens.shape[1]].to(x)
        mask = torch.full((tokens.shape[1], tokens.shape[1]), -torch.inf).to(x).triu(1)
        return self.head(self.encoder(x, mask=mask, is_causal=True))


def _sinusoids(shape: Shape) -> np.ndarray:
    """Positions x width: sines of all frequencies from 1 to 1/10,000, and then cosines."""
    rates = 10_000.0 ** -(np.arange(shape.width // 2) / (shape.width // 2 - 1))
    angles = np.arange(shape.context)[:, None] * rates
    return np.sqrt(2 / shape.width) * np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


# What the reference calls a part of a name: transformers' GPT-2, and PyTorch's encoder.
_GPT2 = """layers.=transformer.h. inputs.=attn.c_attn. attention.out_proj=attn.c_proj
    linear1=mlp.c_fc linear2=mlp.c_proj ln1=ln_1 ln2=ln_2 ln.=transformer.ln_f.
    embedding=transformer.wte positions=transformer.wpe"""
_ENCODER = """layers.=encoder.layers. inputs.=self_attn.in_proj_ ln1=norm1 ln2=norm2
    attention.out_proj=self_attn.out_proj ln.=encoder.norm. out_proj=head"""


def _reference_names(shape: Shape, weights: dict[str, Any]) -> dict[str, Any]:
    """Return our weights by the reference's names; transformers keeps matrices transposed."""
    parts: dict[str, list[Any]] = {}
    for name, array in weights.items():  # queries, keys and values come from one matrix there
        joint = re.sub(r"attention\.(query|key|value)_proj", "inputs", name)
        parts.setdefault(joint, []).append(array)
    table = dict(pair.split("=") for pair in (_GPT2 if shape.true else _ENCODER).split())
    pattern = re.compile("|".join(map(re.escape, table)))
    named = {}
    for name, arrays in parts.items():
        array = torch.cat(arrays)
        transposed = shape.true and array.dim() == 2 and name.startswith("layers.")
        named[pattern.sub(lambda part: table[part[0]], name)] = array.T if transposed else array
    return named


def reference(shape: Shape) -> dict[str, np.ndarray]:
    """Return what `torch_pass` should give, computed in float64 by `reference_model`."""
    model = reference_model(shape).eval()
    weights = {
        name: torch.from_numpy(array.astype(np.float64)).requires_grad_()
        for name, array in gpt2_trial.weights(shape).items()
    }
    optimizer = torch.optim.AdamW(weights.values(), LR, weight_decay=WEIGHT_DECAY)
    tokens = torch.from_numpy(gpt2_trial.tokens(shape))
    found, losses = {}, []
    for step in range(STEPS + 1):
        own = _reference_names(shape, weights)
        logits = torch.func.functional_call(model, own, (tokens[:, :-1],))
        logits = getattr(logits, "logits", logits)
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            found = {"logits": logits.detach().float().numpy()}
            for name, weight in weights.items():
                found[f"gradient {name}"] = weight.grad.float().numpy()
        optimizer.step()
    return found | {"losses": np.array(losses, np.float32)}
