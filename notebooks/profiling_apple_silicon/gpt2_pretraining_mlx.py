"""The language models of `gpt2_pretraining.ipynb` in MLX, with their training step and its loop.

MLX's example `transformer_lm`, or GPT-2 itself; names of weights are those in PyTorch.
"""

import math

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

from pomology import Workload
from pomology.models import workload_mlx
from pomology.models.workload_mlx import initialized, one_update


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        width = shape.width
        self.attention = nn.MultiHeadAttention(width, shape.heads, bias=shape.true)
        self.ln1 = nn.LayerNorm(width)
        self.ln2 = nn.LayerNorm(width)
        self.linear1 = nn.Linear(width, 4 * width)
        self.linear2 = nn.Linear(4 * width, width)
        self.activation = nn.gelu_approx if shape.true else nn.relu

    def __call__(self, x, mask):
        y = self.ln1(x)
        x = x + self.attention(y, y, y, mask)
        return x + self.linear2(self.activation(self.linear1(self.ln2(x))))


class LanguageModel(nn.Module):
    """Predicts the next token: (batch, tokens) to logits (batch, tokens, vocabulary)."""

    def __init__(self, shape):
        super().__init__()
        self.true = shape.true
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        if self.true:
            self.positions = nn.Embedding(shape.positions, shape.width)
        else:
            self.positions = nn.SinusoidalPositionalEncoding(shape.width)
            self.out_proj = nn.Linear(shape.width, shape.vocabulary)
        self.layers = [Block(shape) for _ in range(shape.blocks)]
        self.ln = nn.LayerNorm(shape.width)

    def __call__(self, tokens):
        length = tokens.shape[1]
        mask = nn.MultiHeadAttention.create_additive_causal_mask(length)
        x = self.embedding(tokens) + self.positions(mx.arange(length))
        for layer in self.layers:
            x = layer(x, mask)
        x = self.ln(x)
        return self.embedding.as_linear(x) if self.true else self.out_proj(x)


def loss_function(model, inputs, targets):
    return nn.losses.cross_entropy(model(inputs), targets, reduction="mean")


step = one_update(loss_function)


def adamw(model, lr, weight_decay, bias_correction):
    options = {"betas": [0.9, 0.999], "weight_decay": weight_decay}
    return initialized(optim.AdamW(lr, bias_correction=bias_correction, **options), model)


def workload(shape, lr, weight_decay, bias_correction):
    """Return the training of a `gpt2.Shape`, whose formulas say what is expected of a step."""

    def batch(batch_size):
        half = (batch_size, math.ceil(shape.context / 2))
        words = mx.random.randint(0, shape.vocabulary, half)
        tokens = mx.tile(words, (1, 2))[:, : shape.context]  # its words repeat, as those of a text
        return tokens, tokens

    one = shape.workload(1)
    return Workload(
        build=lambda: LanguageModel(shape),
        batch=batch,
        optimizer=lambda model: adamw(model, lr, weight_decay, bias_correction),
        step=step,
        parameters=one.parameters,
        flops_per_sample=one.flops,
        optimizer_class="AdamW",
        slots=2,
        saved_bytes_per_sample=one.saved_bytes,
    )


def compiled(case, training, model, optimizer):
    """Return a function of a batch and a learning rate that makes a step and returns its loss.

    As in MLX's example, `mx.compile` makes one graph of the step, which `mx.eval` runs.
    """
    step = workload_mlx.compiled(case, training, model, optimizer, always=True)

    def timed(inputs, targets, rate):
        optimizer.learning_rate = rate
        return step(mx.array(inputs), mx.array(targets))

    return timed


def train(case, training, windows, lr, warmup, seed):
    """Make a step with each window, as the notebook's `train` does in PyTorch."""
    mx.random.seed(seed)
    step = compiled(case, training, *case.prepare(training))
    for number, (inputs, targets) in enumerate(case.steps(windows, per_epoch=0)):
        case.loss(step(inputs, targets, lr * min(1, number / warmup)))
