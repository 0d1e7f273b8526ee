"""Comparison of a compiled MLX step with the plain one: faults, and what rounding hides."""

import itertools

import pytest

from pomology.devices import find
from pomology.errors import Mismatch

pytestmark = [pytest.mark.process("mlx")]
find.prepare("mlx")
import mlx.core as mx  # noqa: E402
import mlx.nn as nn  # noqa: E402
import mlx.optimizers as optim  # noqa: E402

from pomology.models import verify_compiled  # noqa: E402


class Case:
    """What the comparison needs of a case; it is run at once."""

    def __init__(self):
        self.notes = []
        self.precision, self.config = "fp32", {}

    def note(self, *note):
        self.notes.append(note)

    def at_end(self, check):
        check(1.0)


def compared(compiled_loss=None, optimizer=None, rounding_only=()):
    """Return the notes of a comparison of a small model. compiled_loss: of the compiled step.

    rounding_only: weights whose gradient is the rounding of a sum that is 0.
    """
    mx.random.seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    optimizer = optimizer or optim.SGD(0.1)
    optimizer.init(model.trainable_parameters())

    def loss_function(model, x):
        return model(x).square().mean()

    def step(function, signs):
        def run(x):
            loss, gradients = nn.value_and_grad(model, function)(model, x)
            sign = next(signs)
            for name in rounding_only:
                layer, weight = name.split()
                part = gradients["layers"][int(layer)]
                part[weight] = sign * mx.ones_like(part[weight])
            optimizer.update(model, gradients)
            return loss

        return run

    case = Case()
    state = [model.state, optimizer.state, mx.random.state]
    plain = step(loss_function, itertools.cycle([1e-9, -1e-9]))  # any rounding turns it
    steps = plain, step(compiled_loss or loss_function, itertools.repeat(-1e-9))
    batch = lambda: (mx.random.normal((5, 8)),)  # noqa: E731
    verify_compiled.at_end(case, model, steps, batch, state)
    return case.notes


AGREED = "the compiled step agreed with the plain one in 2 batches"
ALL = ("0 weight", "0 bias", "1 weight", "1 bias")


def test_a_compiled_step_that_does_the_same_agrees():
    assert compared() == [(AGREED,)]


def test_a_compiled_step_that_does_otherwise_is_refused():
    with pytest.raises(Mismatch, match="the compiled step's update of layers"):
        compared(lambda model, x: mx.stop_gradient(model(x)).square().mean() + 0 * model(x).sum())


def test_the_share_of_elements_that_rounding_moves_is_in_the_note():
    (agreed,), unproved = compared(optimizer=optim.Adam(0.1), rounding_only=["0 bias"])
    assert agreed == f"{AGREED}, without 7.5 % of the elements, which rounding alone moves"
    assert unproved == ("not verified in the compiled step: layers.0.bias", "unproved")


def test_nothing_is_concluded_from_a_comparison_without_elements():
    (note,) = compared(optimizer=optim.Adam(0.1), rounding_only=ALL)
    words = "the compiled step was not verified: rounding moves all of its updates"
    assert note == (words, "unproved")
