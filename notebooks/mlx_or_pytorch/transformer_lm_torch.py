"""Transformer language model in PyTorch, trained by SGD with clipped gradients."""

import torch

from pomology.models.definitions import definitions

notebook = definitions("transformer_lm", "LanguageModel", "loss_function")


def build(size, **_):
    """Build the model; size is `WIDTHxLAYERSxHIDDEN`, and `xWORDS` for another vocabulary."""
    width, layers, hidden, *words = map(int, size.split("x"))
    return notebook.LanguageModel(*words or [33_278], width, layers, hidden)


def forward(model, words, targets):
    return model(words)


def loss(outputs, words, targets):
    return notebook.loss_function(outputs, targets)


class ClippedDescent(torch.optim.SGD):
    def step(self, closure=None):
        torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 0.25)
        return super().step(closure)


def optimizer(part, lr, weight_decay):
    return ClippedDescent(part.parameters(), lr)
