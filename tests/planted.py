"""A model on the pretended MPS, and faults planted in the operators that compute it there."""

import contextlib
import functools

import pretended_mps
import torch
from torch import nn
from torch.nn import functional as F


class Network(nn.Module):
    """Most of what the notebooks' models are made of."""

    def __init__(self):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 16, 3, stride=2), nn.BatchNorm2d(16)
        self.up = nn.ConvTranspose2d(16, 4, 4, 2, 1, bias=False)
        self.tokens = nn.Embedding(500, 24)
        self.layer = nn.TransformerEncoderLayer(24, 2, 32, 0.2, batch_first=True)
        self.first, self.head = nn.Linear(4 * 14 * 14, 24), nn.Linear(24, 500)

    def forward(self, images, tokens):
        seen = self.up(F.relu(self.norm(self.convolution(images)), inplace=True)).flatten(1)
        both = F.gelu(self.first(seen)).unsqueeze(1) + self.layer(self.tokens(tokens))
        return self.head(both + torch.randn_like(both) * 0.01)


def draw(count):
    return torch.rand(count, 3, 16, 16), torch.randint(500, (count, 5))


def loss_of(model, images, tokens):
    return F.cross_entropy(model(images, tokens).flatten(0, 1), tokens.flatten())


def _spoil(wrong, inner, *arguments, **named):
    return wrong(inner(*arguments, **named), *arguments, **named)


@contextlib.contextmanager
def faults(wrong_by_operator):
    """A block in which operators of the device give what these make of results and arguments."""
    right = dict(pretended_mps.BY_HAND)
    for operator, wrong in wrong_by_operator.items():
        inner = right.get(operator, operator)
        pretended_mps.BY_HAND[operator] = functools.partial(_spoil, wrong, inner)
    try:
        yield
    finally:
        pretended_mps.BY_HAND.clear()
        pretended_mps.BY_HAND.update(right)


def times(factor, place=0):
    """A result that is too large, or one of several."""

    def wrong(result, *_, **__):
        if not isinstance(result, tuple):
            return result * factor
        changed = list(result)
        if changed[place] is not None:  # a gradient that nobody needs
            changed[place] = changed[place] * factor
        return tuple(changed)

    return wrong


def odd_places_kept(result, weight, numerator, denominator, value=1.0):
    """An update that leaves every second element as it was."""
    update = value * numerator / denominator
    weight.view(-1)[1::2] -= update.view(-1)[1::2]
    return result


def first_weights():
    """A matmul with the weights that were there at its first call of that shape."""
    kept = {}

    def wrong(_result, bias, left, right, **named):
        bias, right = kept.setdefault(right.shape, (bias.clone(), right.clone()))
        return torch.addmm(bias, left, right, **named)

    return wrong


def second_size():
    """A result that is right at the first shape, and wrong at every other one."""
    shapes = []

    def wrong(result, *_, **__):
        shapes.append(result.shape)
        return result if result.shape == shapes[0] else result * 1.1

    return wrong


def after(calls, wrong, every=1):
    """A result that is wrong at every so many calls after the first ones."""
    seen = []

    def late(result, *arguments, **named):
        seen.append(1)
        due = len(seen) > calls and len(seen) % every == 0
        return wrong(result, *arguments, **named) if due else result

    return late


def previous():
    """A number that is the one of the call before."""
    numbers = []

    def late(number, *_, **__):
        numbers.append(number)
        return numbers[-2:][0]

    return late


def the_same_again():
    """Random numbers that are those of the first call."""
    drawn = {}

    def repeated(result, *_, **__):
        return drawn.setdefault(result.shape, result.clone()).clone()

    return repeated


def lost_images(result, *_, **__):
    if result.dim() == 4:
        result[::7] = 0.0
    return result


def moved(result, *_, **__):
    """Gradients one place away, with the same sum."""
    return result.roll(1, -1)


def without_repeats(result, grad, indices, *_, **__):
    """The gradient of an embedding without that of repeated words."""
    words, counts = indices.unique(return_counts=True)
    result[words[counts > 1]] *= 0.5
    return result


def one_nan(result, *_, **__):
    if len(result) > 20:
        result[7, 3] = float("nan")
    return result
