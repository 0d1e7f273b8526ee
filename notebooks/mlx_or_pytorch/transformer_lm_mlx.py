"""Transformer language model in MLX, trained by SGD with clipped gradients."""

import math

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

DROPOUT, HEADS = 0.2, 2


class Attention(nn.Module):
    """Attention as in PyTorch: one matrix for queries, keys and values; dropout on the weights."""

    def __init__(self, size):
        super().__init__()
        self.in_proj_weight, self.in_proj_bias = (
            nn.init.glorot_uniform()(mx.zeros((3 * size, size))),
            mx.zeros(3 * size),
        )
        self.out_proj, self.dropout = nn.Linear(size, size), nn.Dropout(DROPOUT)

    def __call__(self, x, mask):
        length, batch, size = x.shape
        parts = mx.split(x @ self.in_proj_weight.T + self.in_proj_bias, 3, axis=-1)
        query, key, value = (
            part.reshape(length, batch, HEADS, -1).transpose(1, 2, 0, 3) for part in parts
        )
        scores = query @ key.swapaxes(2, 3) / math.sqrt(size // HEADS) + mask
        mixed = self.dropout(mx.softmax(scores, axis=-1)) @ value
        return self.out_proj(mixed.transpose(2, 0, 1, 3).reshape(length, batch, size))


class Layer(nn.Module):
    def __init__(self, size, hidden_size):
        super().__init__()
        self.self_attn, self.dropout = Attention(size), nn.Dropout(DROPOUT)
        self.linear1, self.linear2 = nn.Linear(size, hidden_size), nn.Linear(hidden_size, size)
        self.dropout1, self.dropout2 = nn.Dropout(DROPOUT), nn.Dropout(DROPOUT)
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)

    def __call__(self, x, mask):
        x = self.norm1(x + self.dropout1(self.self_attn(x, mask)))
        return self.norm2(x + self.dropout2(self.linear2(self.dropout(nn.relu(self.linear1(x))))))


class Encoder(nn.Module):
    def __init__(self, size, layers, hidden_size):
        super().__init__()
        self.layers = [Layer(size, hidden_size) for _ in range(layers)]


class LanguageModel(nn.Module):
    def __init__(self, words, size, layers, hidden_size):
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(words, size), nn.Dropout(DROPOUT)
        self.encoder = Encoder(size, layers, hidden_size)
        self.decoder = nn.Linear(size, words)
        uniform = nn.init.uniform(-0.1, 0.1)
        self.embedding.weight, self.decoder.weight = (
            uniform(self.embedding.weight),
            uniform(self.decoder.weight),
        )
        self.decoder.bias = mx.zeros(words)
        rate = mx.exp(mx.arange(0, size, 2) * (-math.log(10_000.0) / size))
        place = mx.arange(5000)[:, None] * rate
        self._waves = mx.stack([mx.sin(place), mx.cos(place)], axis=2).reshape(5000, 1, size)
        self._scale = math.sqrt(size)

    def __call__(self, words):
        length = len(words)
        mask = nn.MultiHeadAttention.create_additive_causal_mask(length)
        x = self.dropout(self.embedding(words) * self._scale + self._waves[:length])
        for layer in self.encoder.layers:
            x = layer(x, mask)
        return nn.log_softmax(self.decoder(x), axis=-1)


def build(size, **_):
    """Build the model; size is `WIDTHxLAYERSxHIDDEN`, and `xWORDS` for another vocabulary."""
    width, layers, hidden, *words = map(int, size.split("x"))
    return LanguageModel(*words or [33_278], width, layers, hidden)


def forward(model, words, targets):
    return model(words)


def loss(outputs, words, targets):
    return nn.losses.nll_loss(outputs.reshape(len(targets), -1), targets, reduction="mean")


class ClippedDescent(optim.SGD):
    def apply_gradients(self, gradients, parameters):
        return super().apply_gradients(optim.clip_grad_norm(gradients, 0.25)[0], parameters)


def optimizer(lr, weight_decay):
    return ClippedDescent(lr)
