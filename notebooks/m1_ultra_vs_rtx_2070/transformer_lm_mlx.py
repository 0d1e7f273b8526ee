"""The Transformer language model of `transformer_lm.ipynb` in MLX: the same model and update."""

import math

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

from pomology import Workload
from pomology.models.workload_mlx import Pass, also_moves, initialized, one_update

LENGTH = 35  # words of each text in a step
DROPOUT, HEADS = 0.2, 2
EVALUATED = 10  # texts of a batch of the evaluation


class Attention(nn.Module):
    """Attention as in PyTorch: one matrix for queries, keys and values; dropout on the weights."""

    def __init__(self, size):
        super().__init__()
        self.in_proj_weight = nn.init.glorot_uniform()(mx.zeros((3 * size, size)))
        self.in_proj_bias = mx.zeros(3 * size)
        self.out_proj = nn.Linear(size, size)
        self.dropout = nn.Dropout(DROPOUT)

    def __call__(self, x, mask):
        length, batch, size = x.shape
        projected = x @ self.in_proj_weight.T + self.in_proj_bias
        query, key, value = (
            part.reshape(length, batch, HEADS, -1).transpose(1, 2, 0, 3)
            for part in mx.split(projected, 3, axis=-1)
        )
        scores = query @ key.swapaxes(2, 3) / math.sqrt(size // HEADS) + mask
        mixed = self.dropout(mx.softmax(scores, axis=-1)) @ value
        return self.out_proj(mixed.transpose(2, 0, 1, 3).reshape(length, batch, size))


class Layer(nn.Module):
    def __init__(self, size, hidden_size):
        super().__init__()
        self.self_attn = Attention(size)
        self.linear1 = nn.Linear(size, hidden_size)
        self.linear2 = nn.Linear(hidden_size, size)
        self.norm1 = nn.LayerNorm(size)
        self.norm2 = nn.LayerNorm(size)
        self.dropout = nn.Dropout(DROPOUT)
        self.dropout1 = nn.Dropout(DROPOUT)
        self.dropout2 = nn.Dropout(DROPOUT)

    def __call__(self, x, mask):
        x = self.norm1(x + self.dropout1(self.self_attn(x, mask)))
        hidden = self.dropout(nn.relu(self.linear1(x)))
        return self.norm2(x + self.dropout2(self.linear2(hidden)))


class Encoder(nn.Module):
    def __init__(self, size, layers, hidden_size):
        super().__init__()
        self.layers = [Layer(size, hidden_size) for _ in range(layers)]

    def __call__(self, x, mask):
        for layer in self.layers:
            x = layer(x, mask)
        return x


class LanguageModel(nn.Module):
    """The model; its inputs are words of shape (length, batch), as in PyTorch."""

    def __init__(self, words, size, layers, hidden_size, longest=5000):
        super().__init__()
        self.embedding = nn.Embedding(words, size)
        self.dropout = nn.Dropout(DROPOUT)
        self.encoder = Encoder(size, layers, hidden_size)
        self.decoder = nn.Linear(size, words)
        uniform = nn.init.uniform(-0.1, 0.1)
        self.embedding.weight = uniform(self.embedding.weight)
        self.decoder.weight = uniform(self.decoder.weight)
        self.decoder.bias = mx.zeros(words)
        rate = mx.exp(mx.arange(0, size, 2) * (-math.log(10_000.0) / size))
        position = mx.arange(longest)[:, None] * rate
        waves = mx.stack([mx.sin(position), mx.cos(position)], axis=2)
        self._waves = waves.reshape(longest, 1, size)  # a constant, due to the underscore
        self._scale = math.sqrt(size)

    def __call__(self, tokens):
        mask = nn.MultiHeadAttention.create_additive_causal_mask(len(tokens))
        x = self.dropout(self.embedding(tokens) * self._scale + self._waves[: len(tokens)])
        return nn.log_softmax(self.decoder(self.encoder(x, mask)), axis=-1)


class PlainSGD(optim.Optimizer):
    """The article's update by clipped gradients, without a state; MLX's SGD keeps a velocity."""

    def __init__(self, lr):
        super().__init__()
        self._lr = lr

    def init_single(self, parameter, state):
        pass

    def apply_gradients(self, gradients, parameters):
        clipped, _ = optim.clip_grad_norm(gradients, 0.25)
        return super().apply_gradients(clipped, parameters)

    def apply_single(self, gradient, parameter, state):
        return parameter - self._lr * gradient


def loss_function(model, tokens, targets):
    outputs = model(tokens).reshape(len(targets), -1)
    return nn.losses.nll_loss(outputs, targets, reduction="mean")


def language_model(config, words, evaluation_words, lr):
    """Return the workload of a case's settings.

    words: of the vocabulary. evaluation_words: of the text that an epoch evaluates.
    """
    width, layers, hidden = (config[key] for key in ("embedding_size", "layers", "hidden_size"))
    matrices = layers * (4 * width**2 + 2 * width * hidden)
    others = layers * (9 * width + hidden)
    attention = layers * 2 * LENGTH * width
    rows = words * width

    def batch(batch_size):
        tokens = mx.random.randint(0, words, (LENGTH, batch_size))
        return tokens, tokens.flatten()

    kept = 4 * words + 8 + 8 * width + layers * (48 * width + 12 * hidden + 856)
    moved = 40 * words + 32 + 84 * width + layers * (548 * width + 84 * hidden + 6_192)
    steps = math.ceil((evaluation_words // EVALUATED - 1) / LENGTH)
    return Workload(
        build=lambda: LanguageModel(words, width, layers, hidden),
        batch=batch,
        optimizer=lambda model: initialized(PlainSGD(lr), model),
        step=one_update(loss_function),
        parameters=matrices + others + 2 * rows + words,
        flops_per_sample=6 * LENGTH * (matrices + attention + rows),
        optimizer_class="PlainSGD",
        slots=0,
        saved_bytes_per_sample=LENGTH * kept,
        moved_bytes_per_sample=LENGTH * moved,
        adjust=also_moves(-2 * 4 * rows),  # a pass reads and writes few rows of the embedding
        passes=[Pass("evaluation", loss_function, batch, EVALUATED, steps)],
    )
