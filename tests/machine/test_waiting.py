"""A synchronization that does not wait, on devices with a simulated queue and clock."""

import contextlib

import fakes
import numpy as np
import pytest

from pomology.machine import waiting


class Queue:
    """A device that computes in the background. waits: whether its synchronization does."""

    def __init__(self, clock, waits, product_s):
        self.clock, self.waits, self.product_s = clock, waits, product_s
        self.done_s = 0.0  # when the last product will be there

    def context(self):
        return contextlib.nullcontext()

    def dispatch(self, function):
        return function

    def product(self, precision, side):
        assert precision == "fp32"

        def launch():
            self.clock.pass_s(2e-5)
            self.done_s = max(self.done_s, self.clock()) + self.product_s
            return Product(self)

        return launch

    def wait(self):
        self.clock.pass_s(max(0.0, self.done_s - self.clock()))

    def synchronize(self):
        self.clock.pass_s(2e-4)
        if self.waits:
            self.wait()


class Product(np.ndarray):
    """The matrix of a queue; to read from it takes 0.3 ms after its product."""

    def __new__(cls, queue):
        matrix = np.ones((1, 1)).view(cls)
        matrix.queue = queue
        return matrix

    def __getitem__(self, index):
        self.queue.wait()
        self.queue.clock.pass_s(3e-4)
        return 1.0


@pytest.mark.parametrize("product_s", [2e-5, 1e-4, 1e-3, 0.2])
def test_a_synchronization_that_returns_at_once_is_found(monkeypatch, product_s):
    clock = fakes.Clock()
    monkeypatch.setattr(waiting.time, "perf_counter", clock)
    assert waiting.late_result(Queue(clock, True, product_s)) is None
    late = waiting.late_result(Queue(clock, False, product_s))
    if product_s == 2e-5:  # as quick as its launch: nothing is left to wait for
        assert late is None
        return
    assert late.startswith("a synchronization ended after ") and "it does not wait" in late
