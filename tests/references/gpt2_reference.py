"""What a model of GPT-2's shape must give, computed in float64 by PyTorch on the CPU."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
from references.gpt2_trial import STEPS, Trial
from torch import nn
from torch.nn import functional as F

from pomology.models.gpt2 import Shape


def reference_model(shape: Shape) -> Any:
    """The model from parts that PyTorch ships, or GPT-2 from transformers, without dropout."""
    if shape.true:
        from transformers import GPT2Config, GPT2LMHeadModel

        size = {
            "n_layer": shape.blocks,
            "n_embd": shape.width,
            "n_head": shape.heads,
            "vocab_size": shape.vocabulary,
        }
        size |= {
            "n_positions": shape.positions,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "use_cache": False,
        }
        return GPT2LMHeadModel(GPT2Config(**size, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    return _Encoder(shape)


class _Encoder(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        form = {
            "dim_feedforward": 4 * shape.width,
            "dropout": 0.0,
            "batch_first": True,
            "norm_first": True,
        }
        layer = nn.TransformerEncoderLayer(shape.width, shape.heads, activation="relu", **form)
        layer.self_attn = nn.MultiheadAttention(
            shape.width, shape.heads, bias=False, batch_first=True
        )
        ln = nn.LayerNorm(shape.width)
        self.encoder = nn.TransformerEncoder(layer, shape.blocks, ln, enable_nested_tensor=False)
        self.head = nn.Linear(shape.width, shape.vocabulary)
        self.sinusoids = torch.from_numpy(_sinusoids(shape))

    def forward(self, tokens):
        x = self.embedding(tokens)
        x = x + self.sinusoids[: tokens.shape[1]].to(x)
        mask = torch.full((tokens.shape[1], tokens.shape[1]), -torch.inf).to(x).triu(1)
        return self.head(self.encoder(x, mask=mask, is_causal=True))


def _sinusoids(shape: Shape) -> np.ndarray:
    """Positions x width, in float64: sines of all frequencies from 1 to 1/10,000, and then cosines."""
    rates = 10_000.0 ** -(np.arange(shape.width // 2) / (shape.width // 2 - 1))
    turns = np.arange(shape.context)[:, None] * rates
    return np.sqrt(2 / shape.width) * np.concatenate([np.sin(turns), np.cos(turns)], axis=1)


# What the reference calls a part of a name: transformers' GPT-2, and PyTorch's encoder.
_GPT2 = """layers.=transformer.h. inputs.=attn.c_attn. attention.out_proj=attn.c_proj linear1=mlp.c_fc
    linear2=mlp.c_proj ln1=ln_1 ln2=ln_2 ln.=transformer.ln_f. embedding=transformer.wte positions=transformer.wpe"""
_ENCODER = """layers.=encoder.layers. inputs.=self_attn.in_proj_ attention.out_proj=self_attn.out_proj
    ln1=norm1 ln2=norm2 ln.=encoder.norm. out_proj=head"""


def _reference_names(shape: Shape, weights: dict[str, Any]) -> dict[str, Any]:
    """Our weights under the reference's names and in its layouts: transformers keeps matrices inputs x outputs."""
    parts: dict[str, list[Any]] = {}
    for name, array in weights.items():  # queries, keys and values come from one matrix there
        parts.setdefault(re.sub(r"attention\.(query|key|value)_proj", "inputs", name), []).append(
            array
        )
    table = dict(pair.split("=") for pair in (_GPT2 if shape.true else _ENCODER).split())
    named = {}
    pattern = re.compile("|".join(map(re.escape, table)))
    for name, arrays in parts.items():
        array = torch.cat(arrays)
        transposed = shape.true and array.dim() == 2 and name.startswith("layers.")
        named[pattern.sub(lambda part: table[part[0]], name)] = array.T if transposed else array
    return named


def reference(trial: Trial) -> dict[str, np.ndarray]:
    """What `torch_pass` should give, computed in float64 on the CPU by `reference_model`.

    The optimiser is AdamW as in Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019, algorithm 2;
    without `bias_correction` the averages are used as they are.
    """
    model = reference_model(trial.shape)
    exact = {
        name: torch.from_numpy(array.astype(np.float64)) for name, array in trial.weights.items()
    }
    weights = {
        name: weight.requires_grad_() for name, weight in exact.items()
    }  # in place of the model's own
    tokens = torch.from_numpy(trial.tokens)
    averages = {
        name: (torch.zeros_like(weight), torch.zeros_like(weight))
        for name, weight in weights.items()
    }
    found, losses = {}, []
    for step in range(1, STEPS + 2):
        logits = torch.func.functional_call(
            model, _reference_names(trial.shape, weights), (tokens[:, :-1],)
        )
        logits = getattr(logits, "logits", logits)
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        gradients = dict(
            zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True)
        )
        losses.append(loss.item())
        if step == 1:
            found = {"logits": logits.detach().float().numpy()}
            found |= {
                f"gradient {name}": gradient.float().numpy() for name, gradient in gradients.items()
            }
        with torch.no_grad():
            for name, weight in weights.items():
                m, v = averages[name]
                m.mul_(0.9).add_(gradients[name], alpha=0.1)
                v.mul_(0.999).addcmul_(gradients[name], gradients[name], value=0.001)
                one, two = (1 - 0.9**step, 1 - 0.999**step) if trial.bias_correction else (1.0, 1.0)
                weight.sub_(
                    trial.lr * ((m / one) / ((v / two).sqrt() + 1e-8) + trial.weight_decay * weight)
                )
    return found | {"losses": np.array(losses, np.float32)}
