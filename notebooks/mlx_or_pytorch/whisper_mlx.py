"""Whisper in MLX, with AdamW and clipped gradients; weights are named as in transformers."""

import math

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

from pomology.models.pretrained import SIZES

VOCABULARY, POSITIONS, WORDS = 51_865, 1500, 448
START = 50_257  # the token before the first word, as transformers shifts labels


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self._heads = heads
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj, self.q_proj, self.out_proj = (nn.Linear(width, width) for _ in range(3))

    def __call__(self, x, others, mask=None):
        count, length, width = x.shape
        query, key, value = (
            part.reshape(count, -1, self._heads, width // self._heads).swapaxes(1, 2)
            for part in (self.q_proj(x), self.k_proj(others), self.v_proj(others))
        )
        scale = (width // self._heads) ** -0.5
        mixed = mx.fast.scaled_dot_product_attention(query, key, value, scale=scale, mask=mask)
        return self.out_proj(mixed.swapaxes(1, 2).reshape(count, length, width))


class Layer(nn.Module):
    def __init__(self, width, heads, decodes):
        super().__init__()
        self.self_attn, self.self_attn_layer_norm = Attention(width, heads), nn.LayerNorm(width)
        if decodes:
            self.encoder_attn, self.encoder_attn_layer_norm = (
                Attention(width, heads),
                nn.LayerNorm(width),
            )
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.final_layer_norm = nn.LayerNorm(width)

    def __call__(self, x, heard=None, mask=None):
        y = self.self_attn_layer_norm(x)
        x = x + self.self_attn(y, y, mask)
        if heard is not None:
            x = x + self.encoder_attn(self.encoder_attn_layer_norm(x), heard)
        return x + self.fc2(nn.gelu(self.fc1(self.final_layer_norm(x))))


class Encoder(nn.Module):
    def __init__(self, width, layers, heads):
        super().__init__()
        self.conv1, self.conv2 = (
            nn.Conv1d(80, width, 3, padding=1),
            nn.Conv1d(width, width, 3, stride=2, padding=1),
        )
        self.layers, self.layer_norm = (
            [Layer(width, heads, False) for _ in range(layers)],
            nn.LayerNorm(width),
        )
        rates = mx.exp(-math.log(10_000) / (width // 2 - 1) * mx.arange(width // 2))
        angles = mx.arange(POSITIONS)[:, None] * rates
        self._positions = mx.concatenate([mx.sin(angles), mx.cos(angles)], axis=1)  # not trained

    def __call__(self, features):
        x = nn.gelu(self.conv2(nn.gelu(self.conv1(features)))) + self._positions
        for layer in self.layers:
            x = layer(x)
        return self.layer_norm(x)


class Decoder(nn.Module):
    def __init__(self, width, layers, heads):
        super().__init__()
        self.embed_tokens, self.embed_positions = (
            nn.Embedding(VOCABULARY, width),
            nn.Embedding(WORDS, width),
        )
        self.layers, self.layer_norm = (
            [Layer(width, heads, True) for _ in range(layers)],
            nn.LayerNorm(width),
        )

    def __call__(self, words, heard):
        length = words.shape[1]
        mask = nn.MultiHeadAttention.create_additive_causal_mask(length)
        x = self.embed_tokens(words) + self.embed_positions(mx.arange(length))
        for layer in self.layers:
            x = layer(x, heard, mask)
        return self.embed_tokens.as_linear(self.layer_norm(x))


class Whisper(nn.Module):
    def __init__(self, name):
        super().__init__()
        size = SIZES[name]
        shape = size["d_model"], size["encoder_layers"], size["encoder_attention_heads"]
        self.model = nn.Module()
        self.model.encoder, self.model.decoder = Encoder(*shape), Decoder(*shape)


def build(size, **_):
    return Whisper(size)


def forward(model, features, words):
    """Return the logits; features are clips x 3,000 x 80 mel bands, words clips x tokens."""
    before = mx.concatenate([mx.full((len(words), 1), START, words.dtype), words[:, :-1]], axis=1)
    return model.model.decoder(before, model.model.encoder(features))


def loss(outputs, features, words):
    return nn.losses.cross_entropy(outputs, words, reduction="mean")


class Clipped(optim.AdamW):
    def apply_gradients(self, gradients, parameters):
        return super().apply_gradients(optim.clip_grad_norm(gradients, 1.0)[0], parameters)


def optimizer(lr, weight_decay):
    return Clipped(lr, weight_decay=weight_decay, bias_correction=True)
