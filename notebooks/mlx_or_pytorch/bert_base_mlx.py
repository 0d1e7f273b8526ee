"""BERT-base with two classes in MLX, without dropout; weights are named as in transformers."""

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

WIDTH, HEADS, EPSILON = 768, 12, 1e-12


class Module(nn.Module):
    """A module with submodules by name, nested as in transformers."""

    def __init__(self, /, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


def block():
    return Module(
        attention=Module(
            self=Module(**{name: nn.Linear(WIDTH, WIDTH) for name in ("query", "key", "value")}),
            output=Module(dense=nn.Linear(WIDTH, WIDTH), LayerNorm=nn.LayerNorm(WIDTH, EPSILON)),
        ),
        intermediate=Module(dense=nn.Linear(WIDTH, 4 * WIDTH)),
        output=Module(dense=nn.Linear(4 * WIDTH, WIDTH), LayerNorm=nn.LayerNorm(WIDTH, EPSILON)),
    )


def through(block, x):
    count, length, _ = x.shape
    inside = block.attention["self"]
    query, key, value = (
        part(x).reshape(count, length, HEADS, -1).swapaxes(1, 2)
        for part in (inside.query, inside.key, inside.value)
    )
    mixed = mx.fast.scaled_dot_product_attention(query, key, value, scale=(WIDTH // HEADS) ** -0.5)
    output = block.attention.output
    x = output.LayerNorm(x + output.dense(mixed.swapaxes(1, 2).reshape(x.shape)))
    return block.output.LayerNorm(x + block.output.dense(nn.gelu(block.intermediate.dense(x))))


def build(size, **_):
    """Build the model; size is `TOKENS` or `TOKENSxLAYERS`, by default 12 layers."""
    _, layers = map(int, f"{size}x12".split("x")[:2])
    embeddings = Module(
        word_embeddings=nn.Embedding(28_996, WIDTH),
        position_embeddings=nn.Embedding(512, WIDTH),
        token_type_embeddings=nn.Embedding(2, WIDTH),
        LayerNorm=nn.LayerNorm(WIDTH, EPSILON),
    )
    encoder = Module(layer=[block() for _ in range(layers)])
    pooler = Module(dense=nn.Linear(WIDTH, WIDTH))
    return Module(
        bert=Module(embeddings=embeddings, encoder=encoder, pooler=pooler),
        classifier=nn.Linear(WIDTH, 2),
    )


def forward(model, words, labels):
    known = model.bert.embeddings
    places, kinds = mx.arange(words.shape[1]), mx.zeros_like(words)
    x = (
        known.word_embeddings(words)
        + known.token_type_embeddings(kinds)
        + known.position_embeddings(places)
    )
    x = known.LayerNorm(x)
    for block in model.bert.encoder.layer:
        x = through(block, x)
    return model.classifier(mx.tanh(model.bert.pooler.dense(x[:, 0])))


def loss(outputs, words, labels):
    return nn.losses.cross_entropy(outputs, labels, reduction="mean")


def optimizer(lr, weight_decay):
    return optim.Adam(lr, bias_correction=True)
