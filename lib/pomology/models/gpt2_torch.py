"""The language models of `gpt2.Shape` in PyTorch: MLX's example `transformer_lm`, or GPT-2 itself.

Names of weights are those of the same model in MLX.
"""

import functools
import math

import torch
from torch import nn
from torch.nn import functional as F

from pomology.models.gpt2 import Shape


class Attention(nn.Module):
    """Attention of each token to itself and earlier ones: (batch, tokens, width) to the same."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.heads = shape.heads
        linear = functools.partial(nn.Linear, shape.width, shape.width, bias=shape.true)
        self.query_proj = linear()
        self.key_proj = linear()
        self.value_proj = linear()
        self.out_proj = linear()

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """Return the heads of (batch, tokens, width): (batch, heads, tokens, width / heads)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = self.split(self.query_proj(x))
        key = self.split(self.key_proj(x))
        value = self.split(self.value_proj(x))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out_proj(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and two linear layers, each after a normalization and added to its input."""

    def __init__(self, shape: Shape):
        super().__init__()
        width = shape.width
        self.attention = Attention(shape)
        self.ln1 = nn.LayerNorm(width)
        self.ln2 = nn.LayerNorm(width)
        self.linear1 = nn.Linear(width, 4 * width)
        self.linear2 = nn.Linear(4 * width, width)
        self.activation = nn.GELU(approximate="tanh") if shape.true else nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.ln1(x))
        return x + self.linear2(self.activation(self.linear1(self.ln2(x))))


def sines(shape: Shape) -> torch.Tensor:
    """Return the positions of MLX's example, (context, width)."""
    rates = 10_000.0 ** -torch.linspace(0, 1, shape.width // 2)
    angles = torch.arange(shape.context).unsqueeze(1) * rates
    return math.sqrt(2 / shape.width) * torch.cat([angles.sin(), angles.cos()], dim=1)


class LanguageModel(nn.Module):
    """Predicts the next token: (batch, tokens) to logits (batch, tokens, vocabulary)."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.true = shape.true
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        nn.init.normal_(self.embedding.weight, 0, shape.width**-0.5)  # as MLX does
        if self.true:
            self.positions = nn.Embedding(shape.positions, shape.width)
            nn.init.normal_(self.positions.weight, 0, shape.width**-0.5)
        else:
            self.register_buffer("waves", sines(shape), persistent=False)
            self.out_proj = nn.Linear(shape.width, shape.vocabulary)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.blocks))
        self.ln = nn.LayerNorm(shape.width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = self.positions.weight if self.true else self.waves
        x = self.embedding(tokens) + positions[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        x = self.ln(x)
        return F.linear(x, self.embedding.weight) if self.true else self.out_proj(x)
