"""Whisper of transformers in PyTorch, with AdamW and clipped gradients."""

import torch

from pomology.models import pretrained


def build(size, **_):
    return pretrained.build(size, "speech")


def forward(model, features, words):
    return model(input_features=features, labels=words).logits


def loss(outputs, features, words):
    return torch.nn.functional.cross_entropy(outputs.flatten(0, 1), words.flatten())


class Clipped(torch.optim.AdamW):
    def step(self, closure=None):
        torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 1.0)
        return super().step(closure)


def optimizer(part, lr, weight_decay):
    trained = [weight for weight in part.parameters() if weight.requires_grad]
    return Clipped(trained, lr, weight_decay=weight_decay)
