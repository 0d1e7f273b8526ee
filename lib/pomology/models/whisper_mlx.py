"""Whisper's model, training step and cost in MLX, as `whisper` has them in PyTorch.

Weights have the names of transformers. A step is in fp32.
"""

import math
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

from pomology.data.speech import TOKENS
from pomology.models import pretrained
from pomology.models.whisper_sizes import BANDS, FRAMES, POSITIONS, VOCABULARY, flops
from pomology.models.workload import Workload
from pomology.models.workload_mlx import also_moves, initialized

MOST_TOKENS = 448
START = 50_257  # the token before the first one, which transformers puts before the labels


class Attention(nn.Module):
    """Attention of each position of `x` to those of `others`."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width)
        self.q_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def __call__(self, x: mx.array, others: mx.array, mask: mx.array | None = None) -> mx.array:
        count, length, width = x.shape

        def by_head(projected: mx.array) -> mx.array:
            return projected.reshape(count, -1, self.heads, width // self.heads).swapaxes(1, 2)

        query, key, value = self.q_proj(x), self.k_proj(others), self.v_proj(others)
        attend = mx.fast.scaled_dot_product_attention
        scale = (width // self.heads) ** -0.5
        mixed = attend(by_head(query), by_head(key), by_head(value), scale=scale, mask=mask)
        return self.out_proj(mixed.swapaxes(1, 2).reshape(count, length, width))


class Layer(nn.Module):
    """A layer of the encoder, or of the decoder, which attends to the encoder's output, too."""

    def __init__(self, width: int, heads: int, decodes: bool):
        super().__init__()
        self.self_attn = Attention(width, heads)
        self.self_attn_layer_norm = nn.LayerNorm(width)
        if decodes:
            self.encoder_attn = Attention(width, heads)
            self.encoder_attn_layer_norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)
        self.final_layer_norm = nn.LayerNorm(width)

    def __call__(
        self, x: mx.array, heard: mx.array | None = None, mask: mx.array | None = None
    ) -> mx.array:
        normalized = self.self_attn_layer_norm(x)
        x = x + self.self_attn(normalized, normalized, mask)
        if heard is not None:
            x = x + self.encoder_attn(self.encoder_attn_layer_norm(x), heard)
        return x + self.fc2(nn.gelu(self.fc1(self.final_layer_norm(x))))


class Encoder(nn.Module):
    """Sound (batch, frames, bands) to features (batch, positions, width)."""

    def __init__(self, width: int, layers: int, heads: int):
        super().__init__()
        self.conv1 = nn.Conv1d(BANDS, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(POSITIONS, width)
        self.embed_positions.weight = sinusoids(width)
        self.embed_positions.freeze()
        self.layers = [Layer(width, heads, decodes=False) for _ in range(layers)]
        self.layer_norm = nn.LayerNorm(width)

    def __call__(self, features: mx.array) -> mx.array:
        x = nn.gelu(self.conv2(nn.gelu(self.conv1(features))))
        x = x + self.embed_positions.weight
        for layer in self.layers:
            x = layer(x)
        return self.layer_norm(x)


class Decoder(nn.Module):
    """Tokens (batch, tokens) and the encoder's features to logits (batch, tokens, vocabulary)."""

    def __init__(self, width: int, layers: int, heads: int):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, width)
        self.embed_positions = nn.Embedding(MOST_TOKENS, width)
        self.layers = [Layer(width, heads, decodes=True) for _ in range(layers)]
        self.layer_norm = nn.LayerNorm(width)

    def __call__(self, tokens: mx.array, heard: mx.array) -> mx.array:
        length = tokens.shape[1]
        mask = nn.MultiHeadAttention.create_additive_causal_mask(length)
        x = self.embed_tokens(tokens) + self.embed_positions(mx.arange(length))
        for layer in self.layers:
            x = layer(x, heard, mask)
        return self.embed_tokens.as_linear(self.layer_norm(x))


class Whisper(nn.Module):
    """Sound and labels (batch, tokens) to the logits of each label."""

    def __init__(self, width: int, layers: int, heads: int):
        super().__init__()
        self.model = nn.Module()
        self.model.encoder = Encoder(width, layers, heads)
        self.model.decoder = Decoder(width, layers, heads)

    def __call__(self, features: mx.array, labels: mx.array) -> mx.array:
        start = mx.full((len(labels), 1), START, labels.dtype)
        before = mx.concatenate([start, labels[:, :-1]], axis=1)
        return self.model.decoder(before, self.model.encoder(features))


def sinusoids(width: int) -> mx.array:
    """Return the encoder's positions, which are not trained: sines, then cosines."""
    rates = mx.exp(-math.log(10_000) / (width // 2 - 1) * mx.arange(width // 2))
    angles = mx.arange(POSITIONS)[:, None] * rates
    return mx.concatenate([mx.sin(angles), mx.cos(angles)], axis=1)


def batch(batch_size: int) -> tuple[mx.array, mx.array]:
    """Return random clips of 30 s with labels."""
    labels = mx.random.randint(0, 50_000, (batch_size, TOKENS))
    return mx.random.normal((batch_size, FRAMES, BANDS)), labels


def adamw(model: Whisper, lr: float) -> Any:
    """Return PyTorch's AdamW without weight decay."""
    options = {"betas": [0.9, 0.999], "weight_decay": 0.0, "bias_correction": True}
    return initialized(optim.AdamW(lr, **options), model)


def loss_function(model: Whisper, features: mx.array, labels: mx.array) -> mx.array:
    """Return the mean cross-entropy of labels (batch, tokens)."""
    return nn.losses.cross_entropy(model(features, labels), labels, reduction="mean")


def step(model: Whisper, optimizer: Any, features: mx.array, labels: mx.array) -> mx.array:
    """Make a training step as `whisper.step` does, in fp32, and return its loss."""
    loss, gradients = nn.value_and_grad(model, loss_function)(model, features, labels)
    gradients, _ = optim.clip_grad_norm(gradients, 1.0)
    optimizer.update(model, gradients)
    return loss


def elements(width: int, layers: int, heads: int) -> tuple[int, int]:
    """Return the elements that PyTorch's operators keep and move for each clip."""
    heard, said = POSITIONS, TOKENS
    scores = heads * (heard**2 + heard * said + said**2)
    norms = 4 * heard + 6 * said
    kept = layers * (width * (18 * heard + 20 * said) + scores + norms)
    kept += width * (7 * heard + 2 * said) + FRAMES * BANDS + said * VOCABULARY
    masked = 2 * heads * said**2
    moved = layers * (width * (191 * heard + 201 * said) + 11 * scores + masked + 2 * norms)
    moved += width * (31 * heard + 18 * said) + 2 * FRAMES * BANDS + 9 * said * VOCABULARY
    return kept, moved


def parameters(width: int, layers: int) -> int:
    """Return the number of parameters; the encoder's positions, which are fixed, are among them."""
    convolutions = 3 * BANDS * width + 3 * width**2 + 2 * width
    embeddings = (POSITIONS + VOCABULARY + MOST_TOKENS) * width
    # The keys have no bias.
    layer = 28 * width**2 + 29 * width  # of the encoder, and of the decoder
    return convolutions + embeddings + layers * layer + 4 * width


def workload(name: str, lr: float) -> Workload:
    """Return the training of a model of `pretrained.SIZES` in fp32."""
    sizes = pretrained.sizes(name)
    width, layers, heads = (
        sizes[key] for key in ("d_model", "encoder_layers", "encoder_attention_heads")
    )
    kept, moved = elements(width, layers, heads)

    return Workload(
        build=lambda: Whisper(width, layers, heads),
        batch=batch,
        optimizer=lambda model: adamw(model, lr),
        step=step,
        parameters=parameters(width, layers),
        trained=parameters(width, layers) - POSITIONS * width,
        flops_per_sample=flops(width, layers),
        optimizer_class="AdamW",
        slots=2,
        saved_bytes_per_sample=4 * kept,
        moved_bytes_per_sample=4 * moved,
        # Two layers share the embeddings of the tokens; two gradients are written and summed.
        adjust=also_moves(4 * 4 * VOCABULARY * width),
    )
