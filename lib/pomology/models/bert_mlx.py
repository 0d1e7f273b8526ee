"""BERT-base in MLX, without dropout; weights are named as in transformers."""

import mlx.core as mx
import mlx.nn as nn

WORDS, POSITIONS, KINDS = 28_996, 512, 2  # of cased text; kinds are first and second sentences
WIDTH, HEADS, EPSILON = 768, 12, 1e-12


class Attention(nn.Module):
    """Attention of each token to all tokens of its text."""

    def __init__(self):
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)

    def __call__(self, x: mx.array) -> mx.array:
        count, length, _ = x.shape

        def by_head(projected: mx.array) -> mx.array:
            return projected.reshape(count, length, HEADS, -1).swapaxes(1, 2)

        query, key, value = by_head(self.query(x)), by_head(self.key(x)), by_head(self.value(x))
        scale = (WIDTH // HEADS) ** -0.5
        mixed = mx.fast.scaled_dot_product_attention(query, key, value, scale=scale)
        return mixed.swapaxes(1, 2).reshape(x.shape)


class Dense(nn.Module):
    """A linear layer. With `normalized` its output is added to `before`, and normalized."""

    def __init__(self, width_in: int, width: int, normalized: bool = False):
        super().__init__()
        self.dense = nn.Linear(width_in, width)
        if normalized:
            self.LayerNorm = nn.LayerNorm(width, EPSILON)

    def __call__(self, x: mx.array, before: mx.array | None = None) -> mx.array:
        x = self.dense(x)
        return x if before is None else self.LayerNorm(x + before)


class Layer(nn.Module):
    """A layer of the encoder: attention, and two linear layers with GELU between them."""

    def __init__(self):
        super().__init__()
        self.attention = nn.Module()
        self.attention.self = Attention()
        self.attention.output = Dense(WIDTH, WIDTH, normalized=True)
        self.intermediate = Dense(WIDTH, 4 * WIDTH)
        self.output = Dense(4 * WIDTH, WIDTH, normalized=True)

    def __call__(self, x: mx.array) -> mx.array:
        x = self.attention.output(self.attention["self"](x), x)
        return self.output(nn.gelu(self.intermediate(x)), x)


class Embeddings(nn.Module):
    """The sum of the embeddings of words, positions and kind, normalized."""

    def __init__(self):
        super().__init__()
        self.word_embeddings = nn.Embedding(WORDS, WIDTH)
        self.position_embeddings = nn.Embedding(POSITIONS, WIDTH)
        self.token_type_embeddings = nn.Embedding(KINDS, WIDTH)
        self.LayerNorm = nn.LayerNorm(WIDTH, EPSILON)

    def __call__(self, words: mx.array) -> mx.array:
        x = self.word_embeddings(words)
        # Word 0 is padding, whose weights transformers does not train.
        x = mx.where((words == 0)[..., None], mx.stop_gradient(x), x)
        x = x + self.token_type_embeddings(mx.zeros_like(words))
        return self.LayerNorm(x + self.position_embeddings(mx.arange(words.shape[1])))


class Bert(nn.Module):
    """A classifier of texts: words (batch, tokens) to logits (batch, classes)."""

    def __init__(self, layers: int = 12, classes: int = 2):
        super().__init__()
        self.bert = nn.Module()
        self.bert.embeddings = Embeddings()
        self.bert.encoder = nn.Module()
        self.bert.encoder.layer = [Layer() for _ in range(layers)]
        self.bert.pooler = Dense(WIDTH, WIDTH)
        self.classifier = nn.Linear(WIDTH, classes)

    def __call__(self, words: mx.array) -> mx.array:
        x = self.bert.embeddings(words)
        for layer in self.bert.encoder.layer:
            x = layer(x)
        first = x[:, 0]  # the pooler reads the first token
        return self.classifier(mx.tanh(self.bert.pooler(first)))
