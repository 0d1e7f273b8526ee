"""BERT-base with two classes in PyTorch, without dropout; the model of its notebook."""

import torch

from pomology.models.definitions import definitions


def build(size, **_):
    """Build the model; size is `TOKENS` or `TOKENSxLAYERS`, by default 12 layers."""
    _, layers = map(int, f"{size}x12".split("x")[:2])
    return definitions("bert_base", "build", layers=layers).build()


def forward(model, words, labels):
    return model(words).logits


def loss(outputs, words, labels):
    return torch.nn.functional.cross_entropy(outputs, labels)


def optimizer(part, lr, weight_decay):
    return torch.optim.Adam(part.parameters(), lr)
