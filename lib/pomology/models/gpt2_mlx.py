"""GPT-2 in MLX, as transformers builds it; weights have its names.

A weight of a linear layer is outputs x inputs, as usual; transformers stores it transposed.
"""

import mlx.core as mx
import mlx.nn as nn

WORDS, POSITIONS = 50_257, 1_024
NOT_SEEN = -1e9  # score of a token that attention must not see


class Attention(nn.Module):
    """Attention of each token to itself and earlier ones, in one matrix for all three inputs."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.attn_dropout = nn.Dropout(dropout)
        self.resid_dropout = nn.Dropout(dropout)
        self.drops = dropout > 0

    def __call__(self, x: mx.array, mask: mx.array) -> mx.array:
        count, length, width = x.shape
        query, key, value = (
            part.reshape(count, length, self.heads, -1).swapaxes(1, 2)
            for part in mx.split(self.c_attn(x), 3, axis=-1)
        )
        scale = (width // self.heads) ** -0.5
        if self.drops:  # the fused kernel has no dropout
            scores = mx.softmax(scale * (query @ key.swapaxes(2, 3)) + mask, axis=-1)
            mixed = self.attn_dropout(scores) @ value
        else:
            attend = mx.fast.scaled_dot_product_attention
            mixed = attend(query, key, value, scale=scale, mask=mask)
        return self.resid_dropout(self.c_proj(mixed.swapaxes(1, 2).reshape(x.shape)))


class Lora(nn.Module):
    """A linear layer, which is frozen, with two trained matrices, in the form of peft.

    rank: of the matrices. The output is that of the layer plus 2 B (A x). A training begins with
    B = 0. Here B is random, since the gradient of A would be 0 otherwise.
    """

    def __init__(self, base_layer: nn.Linear, rank: int, dropout: float):
        super().__init__()
        outputs, inputs = base_layer.weight.shape
        self.base_layer = base_layer
        self.lora_dropout = nn.Dropout(dropout)
        self.lora_A = nn.Linear(inputs, rank, bias=False)
        self.lora_B = nn.Linear(rank, outputs, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        return self.base_layer(x) + 2 * self.lora_B(self.lora_A(self.lora_dropout(x)))


class MLP(nn.Module):
    """Two linear layers with the approximation of GELU by tanh between them."""

    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def __call__(self, x: mx.array) -> mx.array:
        return self.dropout(self.c_proj(nn.gelu_approx(self.c_fc(x))))


class Block(nn.Module):
    """Attention and two linear layers, each after a normalization and added to its input."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads, dropout)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = MLP(width, dropout)

    def __call__(self, x: mx.array, mask: mx.array) -> mx.array:
        x = x + self.attn(self.ln_1(x), mask)
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    """Tokens (batch, tokens) to features (batch, tokens, width).

    mask: (batch, tokens), true for text and false for padding; None is text alone.
    """

    def __init__(self, width: int, layers: int, heads: int, dropout: float):
        super().__init__()
        self.wte = nn.Embedding(WORDS, width)
        self.wpe = nn.Embedding(POSITIONS, width)
        self.drop = nn.Dropout(dropout)
        self.h = [Block(width, heads, dropout) for _ in range(layers)]
        self.ln_f = nn.LayerNorm(width)

    def __call__(self, tokens: mx.array, mask: mx.array | None = None) -> mx.array:
        length = tokens.shape[1]
        x = self.drop(self.wte(tokens) + self.wpe(mx.arange(length)))
        seen = nn.MultiHeadAttention.create_additive_causal_mask(length)
        if mask is not None:
            seen = mx.maximum(seen + mx.where(mask, 0.0, NOT_SEEN)[:, None, None, :], NOT_SEEN)
        for block in self.h:
            x = block(x, seen)
        return self.ln_f(x)


class LanguageModel(nn.Module):
    """Predicts the next token: (batch, tokens) to logits (batch, tokens, vocabulary)."""

    def __init__(self, width: int, layers: int, heads: int, dropout: float = 0.0):
        super().__init__()
        self.transformer = Transformer(width, layers, heads, dropout)

    def __call__(self, tokens: mx.array) -> mx.array:
        return self.transformer.wte.as_linear(self.transformer(tokens))


class Classifier(nn.Module):
    """Classifies texts by their last tokens: (batch, tokens) to logits (batch, classes).

    rank: of LoRA on `c_attn`, which freezes all other weights but the score; 0 is without LoRA.
    """

    def __init__(
        self,
        width: int,
        layers: int,
        heads: int,
        dropout: float = 0.1,
        classes: int = 2,
        rank: int = 0,
    ):
        super().__init__()
        self.transformer = Transformer(width, layers, heads, dropout)
        self.score = nn.Linear(width, classes, bias=False)
        if rank:
            self.transformer.freeze()
            for block in self.transformer.h:
                block.attn.c_attn = Lora(block.attn.c_attn, rank, dropout)

    def __call__(self, tokens: mx.array, mask: mx.array) -> mx.array:
        scores = self.score(self.transformer(tokens, mask))
        last = mask.sum(axis=1) - 1  # padding is at the end
        return scores[mx.arange(len(tokens)), last]
